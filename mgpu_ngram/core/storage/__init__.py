"""Outputs and what a run leaves on a disk: checkpoints, spilled arrays, checksums."""
