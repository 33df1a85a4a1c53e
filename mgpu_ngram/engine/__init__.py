"""The work of one device on one chunk. The package uses kernels and core values, and knows no cluster."""
