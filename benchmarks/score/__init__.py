"""Scores: kernels, whole texts, ceilings and peers."""
