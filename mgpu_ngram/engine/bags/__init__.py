"""Documents as bags of words: from text, matrices, tables and files."""
