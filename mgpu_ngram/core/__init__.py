"""Values that every stage shares: errors, corpus chunks, vocabulary, count tables, files."""
