"""The prune job."""
