"""Measurements beside the papers' tables, each checked against an oracle before it is timed."""
