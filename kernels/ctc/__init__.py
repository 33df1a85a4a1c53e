"""Kernels of searches over the outputs of acoustic models (connectionist temporal classification)."""
