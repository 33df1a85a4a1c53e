"""Units of rates that rows of several benches have."""

TOKENS_PER_SECOND = "tokens/s"
WORDS_PER_SECOND = "words/s"
HISTORIES_PER_SECOND = "histories/s"
ROWS_PER_SECOND = "rows/s"
NGRAMS_PER_SECOND = "n-grams/s"
QUERIES_PER_SECOND = "n-gram queries/s"  # a query scores a token, as the papers count them
DISTRIBUTIONS_PER_SECOND = "distributions/s"  # a row of V probabilities for one history and one order
