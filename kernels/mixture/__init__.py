"""Kernels of mixtures of distributions."""
