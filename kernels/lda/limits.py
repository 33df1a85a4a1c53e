"""Limits of topic models: the weights of a draw sum to less than 2^64, and counts of words have 32 bits."""

MAX_TOPICS = 1 << 16
MAX_DOCUMENT_TOKENS = 1 << 23  # their weights sum to less than 2^62
MAX_ALPHA_SUM = 1 << 23  # sum of the priors of all topics, so that the weights of the priors sum to less than 2^62
MAX_WORD_TOKENS = (1 << 32) - 1  # tokens of a word in all documents
