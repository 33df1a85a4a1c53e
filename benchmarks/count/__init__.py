"""Counting: kernels, whole runs, and the strategies beside each other."""
