"""A package, for other folders have a test_count.py, too."""
