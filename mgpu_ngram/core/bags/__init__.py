"""Bags of words and topic models as values and files."""
