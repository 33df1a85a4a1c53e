"""Kernels of the distribution stage."""
