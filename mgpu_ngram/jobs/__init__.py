"""Whole runs. Each stage is a folder; the other files serve every stage."""
