"""Whole runs. A stage is STAGE.py, with its parts in STAGE_*.py beside; the other files serve every stage."""
