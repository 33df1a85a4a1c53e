"""The topics job."""
