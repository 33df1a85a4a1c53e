"""Estimation: text, counts and ids to models, beside lmplz."""
