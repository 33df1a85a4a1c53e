"""The estimate job: its settings, its passes, its run."""
