"""Kernels that several stages use."""
