"""The rescore job."""
