"""Beam search: the models that score steps, the search, and its output."""
