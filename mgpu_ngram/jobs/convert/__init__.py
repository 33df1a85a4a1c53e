"""The convert job."""
