"""The mix job."""
