"""Read the counts of an earlier run in the form that pass 1 and pass 2 make from text: a vocabulary and sorted runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.counts.parquet import read_vocabulary
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import SPECIALS, LocalVocabulary
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.count_chunk import CountOptions, split
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.read_counts import read_tables
from mgpu_ngram.engine.count.sorted_runs import SortedRun, map_table, spill_run
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.dispatch import array_module


@dataclass(frozen=True)
class EarlierCounts:
    """Word counts of earlier text. Picklable.

    folder        output folder of count
    tokens        number of words of the text, without sentence markers
    lines         number of lines of the text
    markers       whether the counts have sentence markers
    first_source  number of inputs before the inputs of this text
    columns       "text" or "ids": the form of n-grams in the files
    """

    folder: str
    tokens: int
    lines: int
    markers: bool
    first_source: int
    columns: str


@dataclass(frozen=True)
class EarlierShard:
    """One shard of earlier counts: its number among all chunks, its files by order, and their size in bytes."""

    index: int
    counts: EarlierCounts
    paths: dict[int, Path]
    size_bytes: int


class Earlier(NamedTuple):
    """Counts to which a run adds the counts of its text, and their shards."""

    counts: Sequence[EarlierCounts]
    shards: Sequence[EarlierShard]


NONE_EARLIER = Earlier((), ())


def earlier_vocabulary(counts: EarlierCounts, seed: int) -> LocalVocabulary:
    """Return the words of earlier counts in the form of a chunk's vocabulary, in host memory.

    seed  seed of the word hash

    <unk>, <s> and </s> count as words of a text unless they are its sentence markers.
    """
    found = read_vocabulary(Path(counts.folder) / "vocabulary.parquet", "word")
    counts_V = found.counts_V.copy()
    if counts.markers:
        counts_V[1 : len(SPECIALS)] -= counts.lines
    rows_V = np.flatnonzero((counts_V > 0) | (np.arange(len(counts_V)) >= len(SPECIALS)))
    offsets_V, data = take_words(found.offsets_V, found.data, rows_V)
    places = np.arange(len(data)) + np.repeat(np.arange(len(rows_V)), np.diff(offsets_V))
    text_B = np.full(len(data) + len(rows_V), ord(" "), np.uint8)
    text_B[places] = data
    positions_V = (offsets_V[:-1] + np.arange(len(rows_V))).astype(np.uint32)
    return LocalVocabulary(
        hash_words(text_B, positions_V, seed), offsets_V, data, counts_V[rows_V],
        found.first_source_V[rows_V] + np.int32(counts.first_source), found.first_offset_V[rows_V],
        tokens=counts.tokens, lines=counts.lines,
    )  # fmt: skip


def new_ids(counts: EarlierCounts, words: Words) -> np.ndarray | None:
    """Return the new ids of the words of earlier counts; None if their files hold text."""
    if counts.columns == "text":
        return None
    before = read_vocabulary(Path(counts.folder) / "vocabulary.parquet", "word")
    return words.ids(before.offsets_V, before.data).astype(np.uint32)


def count_earlier(
    shard: EarlierShard, words: Words, unknown: bool, new_ids_V: np.ndarray | None, lexicon: Lexicon,
    options: CountOptions, threads: int,
) -> SortedRun:  # fmt: skip
    """Read a shard of earlier counts, give its words their new ids, and cut its tables into the shards of this run.

    words      number of words of the new vocabulary
    unknown    whether the text holds <unk> as a word
    new_ids_V  the result of `new_ids`
    """
    device = options.budget.device
    watch = Stopwatch(device)
    run = SortedRun({}, chunks=(shard.index,))
    for n, path in shard.paths.items():
        [table] = read_tables([path], n, words, threads, shard.counts.columns, unknown, new_ids_V)
        watch.lap("read")
        with memory_guard("adding counts", device):
            run.tables[n] = [on_device_or_host(partial(_sorted, table, lexicon), device)]
        watch.lap("count")
    run = spill_run(run, options.budget, options.spill_folder)
    watch.lap("reduce")
    run.seconds = watch.seconds
    return run


def _sorted(table: ShardedTable, lexicon: Lexicon, device: str) -> ShardedTable:
    """Return the rows of a table sorted by their keys, in the shards of this run."""
    moved = map_table(table, partial(move_to, device=device))
    columns = array_module(moved.keys).concatenate([moved.keys, moved.counts.view(np.uint64)[None]])
    columns = radix_sort(columns, table.order * table.bits)
    return split(Table(columns[:-1], columns[-1].view(np.int64), table.order, table.bits), lexicon)


def earlier_shards(folders: Sequence[tuple[EarlierCounts, int]], order: int, first: int) -> list[EarlierShard]:
    """Return the shards of all earlier counts for orders 2 to `order`, numbered from `first` on.

    folders  pairs of (counts, number of their shards)

    Raises InputError if a file is missing.
    """
    pieces: list[EarlierShard] = []
    for counts, shards in folders:
        for s in range(shards if order > 1 else 0):
            paths = {n: Path(counts.folder) / f"order={n}" / f"part-{s:05d}.parquet" for n in range(2, order + 1)}
            missing = next((path for path in paths.values() if not path.is_file()), None)
            if missing is not None:
                raise InputError(f"{missing} is missing, so the output of count is incomplete; count again")
            size_bytes = sum(path.stat().st_size for path in paths.values())
            pieces.append(EarlierShard(first + len(pieces), counts, paths, size_bytes))
    return pieces
