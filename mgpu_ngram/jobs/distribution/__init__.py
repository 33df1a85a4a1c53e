"""The distribution job: its settings, its passes, its run."""
