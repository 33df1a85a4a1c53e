"""Kernels of the lda stage."""
