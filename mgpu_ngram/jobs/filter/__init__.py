"""The filter job."""
