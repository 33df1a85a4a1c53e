"""Kernels: arrays in, arrays out. Nothing here knows files, configurations or Dask."""
