"""Whole next-word distributions: their histories, rows and samples."""
