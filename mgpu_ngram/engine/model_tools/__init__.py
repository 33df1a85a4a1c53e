"""Changes of finished models: pruning, restricting, mixing, and KenLM binaries."""
