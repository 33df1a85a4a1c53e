"""Kernels of the estimate stage."""
