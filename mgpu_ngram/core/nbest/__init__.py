"""N-best lists and lattices as values and files."""
