"""Topic models: speed, quality, and peers."""
