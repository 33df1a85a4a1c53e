"""What one device does with one chunk. Knows kernels and core values, no cluster."""
