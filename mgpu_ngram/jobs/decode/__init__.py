"""The decode job."""
