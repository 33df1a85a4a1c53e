"""The score job."""
