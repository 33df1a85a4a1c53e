"""Inputs: where files are, how they are packed, and which byte ranges a task reads."""
