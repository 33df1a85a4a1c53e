"""Whole runs, one file per stage: a job's settings and its algorithm."""
