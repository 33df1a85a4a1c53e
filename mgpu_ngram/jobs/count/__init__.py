"""The count job: its settings, its plan, its passes, its run."""
