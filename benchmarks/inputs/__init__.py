"""Texts and models that are measured, and plain programs that check results."""
