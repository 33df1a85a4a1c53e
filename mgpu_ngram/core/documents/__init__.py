"""Documents with fields: JSON lines, Parquet and WARC, and their text."""
