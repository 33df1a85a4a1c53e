"""Scores of text under a model, and the comparison of models."""
