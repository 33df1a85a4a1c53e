"""Write Parquet files of n-grams, as a run does."""

from mgpu_ngram.core.counts.parquet import PartWriter


def write_part(table, vocabulary, path, as_text, columns="text"):
    """Write one table in host memory, in any order; return rows, bytes and crc32."""
    with PartWriter(path, table.order, vocabulary, as_text, columns) as part:
        part.add(table)
    return part.written
