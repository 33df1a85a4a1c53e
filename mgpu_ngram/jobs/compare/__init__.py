"""The compare job: its settings, its run."""
