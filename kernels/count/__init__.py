"""Kernel pairs of the count stage: tokenising, packing, sorting and counting."""
