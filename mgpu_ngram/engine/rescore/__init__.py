"""Rescoring of n-best lists and lattices, and the tuning of weights."""
