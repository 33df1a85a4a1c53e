"""Kernels of the decode stage."""
