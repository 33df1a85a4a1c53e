"""Beam search: kernels, whole translations, and peers."""
