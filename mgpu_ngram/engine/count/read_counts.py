"""Read tables of word n-grams back from the files that `engine.count.write_counts` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mgpu_ngram.core.counts.arrow_numbers import numbers_of_column
from mgpu_ngram.core.counts.parquet import count_columns, open_parquet, reading
from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.core.counts.vocabulary import words_from_arrow
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")


def read_tables(
    paths: Sequence[Path],
    order: int,
    words: Words,
    threads: int,
    columns: str = "text",
    unknown: bool = False,
    new_ids_V: np.ndarray | None = None,
) -> list[ShardedTable]:
    """Return the tables of some shards, one file each, in host memory; views of shared arrays.

    words    the symbols of the vocabulary
    columns  "text" or "ids", as `PartWriter` wrote the files
    threads  threads that read; each one holds one row group at a time
    unknown  whether the text holds <unk> as a word
    new_ids_V  for columns "ids": (V,) uint32, the new id of each id in the files; None: these are the ids of `words`

    Raises InputError if a file is missing, damaged, or has a word that is not in the vocabulary.
    """
    bits, names = check.code_bits(len(words)), count_columns(order, columns)
    groups: list[tuple[Path, int, slice]] = []
    ends, rows = [], 0
    for path in paths:
        metadata = open_parquet(path, names).metadata
        for g in range(metadata.num_row_groups):
            groups.append((path, g, slice(rows, rows + metadata.row_group(g).num_rows)))
            rows = groups[-1][2].stop
        ends.append(rows)
    keys = np.empty((check.num_columns(order, bits), rows), np.uint64)
    counts = np.empty(rows, np.int64)

    def read(path: Path, group: int, mine: slice) -> None:
        with reading(path):
            table = open_parquet(path, names).read_row_group(group, use_threads=False)
        if columns == "ids":
            ids = np.stack([numbers_of_column(table[name]) for name in names[:-1]], axis=1).view(np.uint32)
            beyond = ids >= (len(words) if new_ids_V is None else len(new_ids_V))
            lacking = beyond | ((ids == 0) & (not unknown))
            if new_ids_V is not None and not lacking.any():
                ids = new_ids_V[ids]
        else:
            ngrams = table["ngram"].cast(pa.large_binary()).combine_chunks()
            ids = words.ids_of_ngrams(*words_from_arrow(ngrams), order)
            lacking = (ids == 0) & (not unknown)
        if lacking.any():  # 0 is <unk>, which no text of a model contains
            raise InputError(f"{path} is damaged: it has a word that its vocabulary lacks; count again")
        keys[:, mine] = ngram_keys((ids + 1).reshape(-1), order, bits, None, np.arange(len(ids)) * order)
        counts[mine] = numbers_of_column(table["count"])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda group: read(*group), groups))
    whole = ShardedTable(keys, counts, np.array(ends), order, bits)
    return [whole.part(s, s + 1) for s in range(len(paths))]
