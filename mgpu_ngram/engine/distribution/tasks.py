"""Tasks of the distribution stage: find the histories of a chunk of text and write their rows to files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.counts.parquet import strings
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import TextBlock
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.models.compact import save_compact
from mgpu_ngram.core.models.distributions import ArrayFile, array_files, compact_file, parquet_path, save_words
from mgpu_ngram.core.models.row_options import RowOptions, block_rows
from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.output import new_file
from mgpu_ngram.engine.distribution.next_word import NextWordModel, next_word_model_of
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.engine.memory.blocks import device_blocks
from mgpu_ngram.engine.memory.copies import each_slice, to_host_fast
from mgpu_ngram.engine.memory.device import free_bytes
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.distribution.scale_values import scale_values

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

MIN_TEXT_BYTES, MAX_TEXT_BYTES = 1 << 16, 16 << 20  # bytes of text on the device at once
BYTES_PER_TEXT_BYTE = 128  # device bytes of codes and found histories; a history may be 2 bytes of text
GROUP_ROWS = 1 << 20  # most rows of a Parquet row group


@dataclass(frozen=True)
class ModelFile:
    """The model that tasks load where they run, with the arguments of `next_word_model_of`. Picklable."""

    path: str
    identity: str
    device: str
    threads: int
    verify: bool

    def replica(self) -> NextWordModel:
        return next_word_model_of(self.path, self.identity, self.device, self.threads, self.verify)


@dataclass(frozen=True)
class DistributeOptions:
    """How the chunks of a run become files. Picklable; the same for all chunks.

    rows       options of the rows; not used for compact blocks
    format     "npy", "zarr", "compact" or "parquet"
    positions  "every" or "last", as in `Encoder.text`
    bos        whether <s> precedes each line, as in `Encoder.text`
    folder     folder of the files
    arrays     descriptions of the array files (`array_files`); empty for compact blocks and Parquet
    part       histories per file of compact blocks or Parquet (the last file may have fewer); 1 for arrays
    group      histories per row group of Parquet
    tasks_per_host    number of tasks that share a host
    """

    model: ModelFile
    rows: RowOptions
    format: str
    positions: str
    bos: bool
    folder: str
    arrays: dict[str, Any]
    part: int
    group: int
    tasks_per_host: int


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model that the driver needs."""

    order: int
    symbols: int
    has_backoffs: bool


@dataclass(frozen=True)
class WrittenRows:
    """The result of a task.

    files  the files to which the task wrote
    """

    histories: int
    files: tuple[str, ...]
    seconds: dict[str, float]


def model_facts(model: ModelFile) -> tuple[ModelFacts, dict[str, float]]:
    """Load the model; return its facts, and seconds."""
    watch = Stopwatch(model.device)
    replica = model.replica()
    watch.lap("load")
    return ModelFacts(replica.order, replica.symbols, replica.has_backoffs), watch.seconds


def write_words(model: ModelFile, folder: str) -> None:
    """Write the words of the model to the folder of the files."""
    replica = model.replica()
    save_words(folder, replica.words, to_host(replica.prob_V), replica.begin)


def count_histories(
    chunks: Sequence[Chunk], positions: str, bos: bool, device: str, threads: int
) -> tuple[list[int], dict[str, float]]:
    """Return the number of histories of each chunk, and seconds; needs no model.

    Raises InputError for an empty line without <s>.
    """
    watch = Stopwatch(device)
    counts = []
    for chunk in chunks:
        counts.append(0)
        with _guard(f"counting the histories of {chunk}", device):
            for block, text_B in device_blocks(chunk, "word", MAX_TEXT_BYTES, 0, device, threads, None, watch):
                positions_T = find_tokens(text_B, isspace=True)
                ends_T = text_B[positions_T] == 10
                if positions == "last":
                    counts[-1] += count_true(ends_T)
                else:
                    counts[-1] += len(ends_T) - (0 if bos else count_true(ends_T))
                if positions == "last" and not bos:
                    _check_words(chunk, block, to_host(positions_T), to_host(ends_T))
                watch.lap("count")
    return counts, watch.seconds


@contextmanager
def _guard(what: str, device: str) -> Iterator[None]:
    """Raise RunError with one line if memory runs out, and for an OSError, so the driver does not mistake it for an
    output error.
    """
    try:
        with memory_guard(what, device, "use smaller chunks (chunk_bytes), top_k or fewer workers"):
            yield
    except OSError as error:
        raise RunError(f"{what} failed: {type(error).__name__}: {error}; run again") from error


def _check_words(chunk: Chunk, block: TextBlock, positions_T: np.ndarray, ends_T: np.ndarray) -> None:
    """Raise InputError for the first line without words."""
    empty_T = ends_T & np.concatenate([[True], ends_T[:-1]])
    if not empty_T.any():
        return
    source, at = block.place(chunk, int(positions_T[empty_T.argmax()]))
    where = f"of row group {at >> 40:,}" if source.format == "parquet" else f"that ends at byte {at:,}"
    raise InputError(
        f"{source.name!r}: the line {where} is empty, and an empty history needs <s>; remove the line, or keep <s> "
        "before each line (no -n; sentence_markers: true)"
    )


def write_distributions(
    chunk: Chunk, following: Sequence[Chunk], starts: Sequence[int], first: int, last: int, options: DistributeOptions
) -> WrittenRows:
    """Write the rows of histories `first` to `last` - 1. A second call writes the same bytes to the same places.

    following  the next chunks, if they contain some of these histories, because parts do not end with chunks
    starts     number of the first history of each of these chunks, and the end of the last one
    """
    device = options.model.device
    watch, files = Stopwatch(device), []
    with _guard(f"making the distributions of {chunk}", device):
        replica = options.model.replica()
        watch.lap("load")
        found = _find([chunk, *following], starts, first, last, options, replica, watch)
        write = {"compact": _write_compact, "parquet": _write_parquet}.get(options.format, _write_arrays)
        for at, batch in found if options.arrays else _in_parts(found, options.part):
            files += write(replica, at, batch, options, watch)
    return WrittenRows(last - first, tuple(dict.fromkeys(files)), watch.seconds)


def save_done(written: Sequence[WrittenRows], items: Sequence[int], folder: str, kind: str) -> dict[str, float]:
    """Record in a checkpoint that chunks are done, after their data is on disk; returns seconds."""
    watch = Stopwatch("cpu")
    files = {file for one in written for file in one.files}
    for path in sorted(files | {os.path.dirname(file) for file in files}):
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            why = f"{error.strerror or error}; free space there or give another output path"
            raise RunError(f"cannot write {path}: {why}") from error
    save_entry(folder, kind, items, {})
    watch.lap("checkpoint")
    return watch.seconds


def _find(
    chunks: Sequence[Chunk], starts: Sequence[int], first: int, last: int, options: DistributeOptions,
    replica: NextWordModel, watch: Stopwatch,
) -> Iterator[tuple[int, FoundHistories]]:  # fmt: skip
    """Yield (row, found) of histories `first` to `last` - 1 in batches.

    Raises RunError if the number of histories of a chunk differs from when they were counted.
    """
    model, scale = options.model, options.rows.scale if options.arrays else "log10"
    block_bytes = max(MIN_TEXT_BYTES, min(MAX_TEXT_BYTES, _free(options) // BYTES_PER_TEXT_BYTE))
    for chunk, (row, stop) in zip(chunks, pairwise(starts), strict=True):
        counted = stop - row
        for _, text_B in device_blocks(chunk, "word", block_bytes, 0, model.device, model.threads, None, watch):
            codes_T, positions_H = replica.encoder.text(text_B, options.bos, options.positions)
            begin, end = max(first - row, 0), min(last - row, len(positions_H))
            if begin < end:
                found = replica.find(codes_T, positions_H[begin:end], options.bos, scale)
                watch.lap("find")
                yield row + begin, found
            row += len(positions_H)
            if last <= row < stop:
                return
        if row != stop:
            now = f"has {counted + row - stop:,} histories but had {counted:,} at first"
            raise RunError(f"{chunk} {now}: the file has changed; run again")


def _in_parts(found: Iterator[tuple[int, FoundHistories]], part: int) -> Iterator[tuple[int, FoundHistories]]:
    """Yield (row, found) in whole parts: the rows from a multiple of `part` to the next one."""
    waiting: list[FoundHistories] = []
    begin = 0
    for row, batch in found:
        begin, at, H = begin if waiting else row, 0, len(batch.first_HK)
        while at < H:
            n = min(part - (row + at) % part, H - at)
            waiting.append(batch.part(at, at + n))
            at += n
            if (row + at) % part == 0:
                yield begin, _joined(waiting)
                waiting, begin = [], row + at
    if waiting:
        yield begin, _joined(waiting)


def _joined(parts: list[FoundHistories]) -> FoundHistories:
    xp = array_module(parts[0].first_HK)
    first_HK, end_HK, backoff_HK = map(xp.concatenate, zip(*(part.arrays for part in parts), strict=True))
    return FoundHistories(first_HK, end_HK, backoff_HK, parts[0].scale)


def _free(options: DistributeOptions) -> int:
    device = options.model.device
    return free_bytes(device) // (options.tasks_per_host if device == "cpu" else 1)


def _write_arrays(
    replica: NextWordModel, row: int, found: FoundHistories, options: DistributeOptions, watch: Stopwatch
) -> list[str]:
    """Write whole rows, or the greatest words, in blocks that fit the device; return the files."""
    H, rows, paths = len(found.first_HK), options.rows, []
    files = array_files(options.folder, options.format, options.arrays)
    replica.of_mode(rows.mode).scaled(rows.scale)  # before free memory is measured
    step = min(H, block_rows(rows, replica.symbols, options.model.device, _free(options)))
    xp = array_module(found.first_HK)
    out = xp.empty((0 if rows.top_k else step, *files[0].shape[1:]), files[0].stored)
    for i in range(0, H, step):
        block = found.part(i, i + step)
        made = replica.top(block, rows) if rows.top_k else [replica.dense(block, rows, out[: len(block.first_HK)])]
        watch.lap("rows")
        for file, array in zip(files, made, strict=True):
            each_slice(array, partial(_write_slice, file, (row + i) * file.row_bytes), options.model.threads)
            paths += file.files(row + i, row + i + len(array))
        watch.lap("write")
    return paths


def _write_slice(file: ArrayFile, first: int, at: int, data: np.ndarray) -> None:
    file.write(first + at, data)


def _write_compact(
    replica: NextWordModel, row: int, found: FoundHistories, options: DistributeOptions, watch: Stopwatch
) -> list[str]:
    block = replica.compact(found)
    watch.lap("rows")
    path = compact_file(options.folder, row // options.part)
    save_compact(path, block, {"first": row})
    watch.lap("write")
    return [path]


def _write_parquet(
    replica: NextWordModel, row: int, found: FoundHistories, options: DistributeOptions, watch: Stopwatch
) -> list[str]:
    """Write one row group per `group` histories, so a file's bytes depend only on the rows; return the files."""
    path, words = parquet_path(options.folder, row // options.part), replica.words
    spelled = strings(words.offsets_V, words.data)
    make = _top_columns if options.rows.top_k else _stored_columns
    with new_file(path) as sink, pq.ParquetWriter(sink, _schema(options.rows)) as writer:
        for i in range(0, len(found.first_HK), options.group):
            columns = make(replica, found.part(i, i + options.group), options.rows)
            columns["history"] += row + i
            columns["word"] = spelled.take(pa.array(columns["id"]))
            watch.lap("rows")
            writer.write_table(pa.table(columns, _schema(options.rows)), row_group_size=GROUP_ROWS)
            watch.lap("write")
    return [path]


def _schema(rows: RowOptions) -> pa.Schema:
    ranks = [("rank", pa.int32())] if rows.top_k else []
    fields = [("history", pa.int64()), ("order", pa.uint8()), *ranks]
    return pa.schema([*fields, ("id", pa.uint32()), ("word", pa.large_string()), ("value", pa.float32())])


def _top_columns(replica: NextWordModel, found: FoundHistories, rows: RowOptions) -> dict[str, Any]:
    """Return the columns of the greatest words of each row, rank 1 first; `history` counts from 0."""
    ids, values = map(to_host_fast, replica.top(found, rows))
    h, n, k = np.nonzero(ids >= 0)
    return {
        "history": h,
        "order": np.array(rows.orders, np.uint8)[n],
        "rank": (k + 1).astype(np.int32),
        "id": ids[h, n, k].astype(np.uint32),
        "value": values[h, n, k],
    }


def _stored_columns(replica: NextWordModel, found: FoundHistories, rows: RowOptions) -> dict[str, Any]:
    """Return the columns of the words stored after each history (order 1: all words); `history` counts from 0."""
    block = replica.compact(found).stored()
    prob_V, V, H = to_host(replica.prob_V), replica.symbols, len(block)
    words = np.concatenate([np.arange(V, dtype=np.uint32), block.word_C])
    values = scale_values(np.concatenate([prob_V, block.prob_C]), rows.scale)
    begin_HN = np.concatenate([np.zeros((H, 1), np.int64), V + block.first_HK.astype(np.int64)], axis=1)
    end_HN = np.concatenate([np.full((H, 1), V), V + block.end_HK.astype(np.int64)], axis=1)
    kept = np.array(rows.orders) - 1
    begin_Q, size_Q = begin_HN[:, kept].reshape(-1), (end_HN - begin_HN)[:, kept].reshape(-1)
    entry = np.arange(size_Q.sum()) + np.repeat(begin_Q - (np.cumsum(size_Q) - size_Q), size_Q)
    return {
        "history": np.repeat(np.repeat(np.arange(H), len(kept)), size_Q),
        "order": np.repeat(np.tile(np.array(rows.orders, np.uint8), H), size_Q),
        "id": words[entry],
        "value": values[entry],
    }
