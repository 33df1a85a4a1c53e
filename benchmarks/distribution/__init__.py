"""Next-word distributions: kernels, files and samples."""
