"""N-gram models as files: safetensors, ARPA, and rows of distributions."""
