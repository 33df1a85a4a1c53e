"""The lda job."""
