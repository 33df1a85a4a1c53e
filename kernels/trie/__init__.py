"""Kernels that build and search tries."""
