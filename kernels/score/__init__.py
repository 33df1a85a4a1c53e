"""Kernels of the score stage."""
