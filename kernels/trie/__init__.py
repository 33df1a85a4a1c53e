"""Kernels of the trie."""
