"""Kernels: arrays in, arrays out. Kernels know no files, configurations or Dask."""
