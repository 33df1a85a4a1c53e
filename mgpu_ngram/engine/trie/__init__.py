"""Models as tries: built, opened, shared by a host, and written."""
