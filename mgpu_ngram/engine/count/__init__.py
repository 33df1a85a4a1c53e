"""Counting: text to symbols, symbols to tables, tables to files."""
