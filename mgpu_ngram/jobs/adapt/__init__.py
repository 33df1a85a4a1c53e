"""The adapt job: its settings, its run."""
