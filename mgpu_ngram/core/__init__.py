"""Values that every stage shares: errors, corpus chunks, vocabularies, count tables, files."""
