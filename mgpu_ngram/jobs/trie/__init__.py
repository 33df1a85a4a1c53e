"""The trie job."""
