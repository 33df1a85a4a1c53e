"""Kernels that prepare the texts of documents: normalise them, and cut them into pieces."""
