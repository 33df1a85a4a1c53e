"""Tables of n-gram counts and their vocabulary, as values and files."""
