"""The tune job."""
