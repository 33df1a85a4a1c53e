"""Whole runs of stages. Each stage has a folder; all stages share the other files."""
