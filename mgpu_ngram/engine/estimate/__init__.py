"""Estimation: adjusted counts, probabilities, and parts that become one model."""
