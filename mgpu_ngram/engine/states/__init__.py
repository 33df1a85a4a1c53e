"""Models step by step: states, pieces of words, CTC, and mixtures."""
