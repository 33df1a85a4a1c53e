"""Between the two passes, first: merge the vocabularies of chunks by hash. `number_symbols` then gives symbols ids."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.counts.vocabulary import (
    SYMBOL_ARRAYS,
    HashCollision,
    LocalVocabulary,
)
from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.memory.budget import Budget, device_alone
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.engine.memory.spill import leave_device, result_to_device
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.compile_cpu import njit, read_only
from mgpu_ngram.kernels.count.join_words import join_words
from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

T = TypeVar("T")

VOCABULARY_ENTRY = "vocabulary"  # the kind of checkpoint entry is this, _, and the seed of the word hash
# Copies of vocabularies in memory of a GPU: during a merge the input, joined, two sorted, and the output; while words
# are numbered.
MERGING_COPIES, NUMBERING_COPIES = 6, 4
# In host memory, of each thread; with so many temporary bytes. As fast as all rows at once.
ROWS_AT_ONCE, BYTES_AT_ONCE = 1 << 18, 50 << 20


def move_vocabulary(vocabulary: LocalVocabulary, device: str) -> LocalVocabulary:
    """Return the vocabulary with its arrays on the device, or in host memory for "cpu"; copies only what must move."""
    return replace(vocabulary, **{name: _move(getattr(vocabulary, name), device) for name in SYMBOL_ARRAYS})


def _move(array: Any, device: str) -> Any:
    return to_host(array) if device == "cpu" else to_device(array, device)


def merge_where_it_fits(
    vocabularies: Sequence[LocalVocabulary], budget: Budget, folder: str, threads: int = 1
) -> LocalVocabulary:  # fmt: skip
    """Return merged vocabularies, on the budget's device. If a GPU has no room for all of them, it merges ranges of
    their hashes one after another, and the result is in host memory; if it cannot sort one of them, they are merged
    there.

    folder   folder for spilled vocabularies
    threads  of the merge in host memory
    """

    def merged(device: str) -> LocalVocabulary:
        if device == "cpu":
            return merge_vocabularies(*(move_vocabulary(v, "cpu") for v in vocabularies), threads=threads)
        with device_alone(budget):
            room = budget.working_bytes()
            if MERGING_COPIES * sum(v.nbytes for v in vocabularies) <= room:
                return merge_vocabularies(*(move_vocabulary(v, "gpu") for v in vocabularies))
            return _merged_in_turn(vocabularies, room, partial(leave_device, budget=budget, folder=folder))

    return vocabularies[0] if len(vocabularies) == 1 else on_device_or_host(merged, budget.device)


def _merged_in_turn(
    vocabularies: Sequence[LocalVocabulary], room: int, leave: Callable[[LocalVocabulary], LocalVocabulary]
) -> LocalVocabulary:
    """Return merged vocabularies in host memory. A GPU sorts each that is not sorted by hash, then merges their ranges.

    room   bytes that the GPU has. Raises MemoryError if it has no room to sort one
    leave  moves a vocabulary from the GPU to host memory
    """

    def merged(parts: Iterable[LocalVocabulary]) -> LocalVocabulary:
        found = [result_to_device(part, "gpu") for part in parts]
        found = [replace(part, offsets_V=part.offsets_V - part.offsets_V[:1]) for part in found]  # ranges begin later
        return leave(merge_vocabularies(*found, always_sorted=True))

    def by_hash(vocabulary: LocalVocabulary) -> LocalVocabulary:
        if not on_gpu(vocabulary.hash_V) and _rise(vocabulary.hash_V):
            return vocabulary
        if MERGING_COPIES * vocabulary.nbytes > room:
            raise MemoryError
        return merged([vocabulary])

    sorted_ = [by_hash(vocabulary) for vocabulary in vocabularies]
    ranges = -(-MERGING_COPIES * sum(v.nbytes for v in vocabularies) // max(1, room))
    made = [merged(hash_range(vocabulary, r, ranges) for vocabulary in sorted_) for r in range(ranges)]
    arrays = concatenated([part.columns() for part in made])
    return made[0].with_arrays(dict(zip(SYMBOL_ARRAYS, arrays, strict=True)))


def where_vocabulary_fits(fn: Callable[[LocalVocabulary], T], vocabulary: LocalVocabulary, budget: Budget) -> T:
    """Return fn(vocabulary) after moving it to the budget's device, or to host memory when a GPU has no room to number
    its words.
    """

    def call(device: str) -> T:
        if device == "cpu":
            return fn(move_vocabulary(vocabulary, "cpu"))
        with device_alone(budget):
            if NUMBERING_COPIES * vocabulary.nbytes > budget.working_bytes():
                raise MemoryError
            return fn(move_vocabulary(vocabulary, "gpu"))

    return on_device_or_host(call, budget.device)


def rows_at_once(array: Any) -> int:
    """Return the number of rows that are joined, sorted or copied at once on the device of an array: on a GPU all."""
    return 1 << 62 if on_gpu(array) else ROWS_AT_ONCE


def merge_vocabularies(
    *parts: LocalVocabulary, always_sorted: bool = False, threads: int = 1
) -> LocalVocabulary:  # fmt: skip
    """Join vocabularies by hash: counts are added, first positions are kept. Any order gives the same words.

    parts          one or more, all in host memory or all on one device. In host memory, each thread joins one range of
                   hashes after another
    always_sorted  also sort the words of a single part

    Returns the merged vocabulary, on the same device; for several parts, by rising hash. Raises HashCollision if
    two words have the same hash.
    """
    if len(parts) == 1 and not always_sorted:
        return parts[0]
    columns = [p.columns() for p in parts]
    rows = sum(len(p.hash_V) for p in parts)
    bits = (max(0, rows - 1) // rows_at_once(parts[0].hash_V)).bit_length()
    arrays = _joined_in_ranges(columns, bits, threads) if bits else _joined(columns)
    return LocalVocabulary(
        **dict(zip(SYMBOL_ARRAYS, arrays, strict=True)),
        tokens=sum(p.tokens for p in parts),
        lines=sum(p.lines for p in parts),
        unfinished_lines=sum(p.unfinished_lines for p in parts),
        size_bytes=sum(p.size_bytes for p in parts),
        checksums=[c for p in parts for c in p.checksums],
        seconds={s: sum(p.seconds.get(s, 0.0) for p in parts) for s in sorted({s for p in parts for s in p.seconds})},
    )


def _joined(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the `SYMBOL_ARRAYS` of merged vocabularies, from those of each."""
    xp = array_module(parts[0][0])
    hash_V, offsets_V, data, *others = concatenated(parts)
    columns = xp.stack([hash_V, xp.arange(len(hash_V), dtype=np.uint64)])
    hash_R, rows_R = radix_sort(columns, 64)
    rows_U, counts_U, mismatches = join_words(hash_R, rows_R.view(np.int64), offsets_V, data, *others)
    if mismatches:
        raise HashCollision
    _, first_source_V, first_offset_V = others
    words = take_words(offsets_V, data, rows_U)
    return [hash_V[rows_U], *words, counts_U, first_source_V[rows_U], first_offset_V[rows_U]]


def concatenated(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the `SYMBOL_ARRAYS` of vocabularies, or of their slices, as those of one; equal words are not joined."""
    xp = array_module(parts[0][0])
    hashes, offsets, datas, *others = zip(*parts, strict=True)
    starts = itertools.accumulate(map(len, datas), initial=0)
    ends = (o[1:] + (at if on_gpu(o) else at - o[0]) for o, at in zip(offsets, starts, strict=False))  # no slices there
    offsets_V = xp.concatenate([xp.zeros(1, np.int64), *ends])
    hash_V, data, *others = (xp.concatenate(arrays) for arrays in (hashes, datas, *others))
    return [hash_V, offsets_V, data, *others]


def _joined_in_ranges(parts: Sequence[Sequence[np.ndarray]], bits: int, threads: int) -> list[np.ndarray]:
    """Return the result of `_joined`, made one after another for at most 2^bits ranges of hashes of equal width,
    as many at once as there are threads.

    The result has room for all rows of the parts; memory that is never written takes no space.
    """
    made = [np.empty(sum(len(a) for a in arrays), arrays[0].dtype) for arrays in zip(*parts, strict=True)]
    hash_V, offsets_V, data, *others = made
    hashes = [part[0] for part in parts if len(part[0])]
    low, high = min(int(h.min()) for h in hashes), max(int(h.max()) for h in hashes)
    rows, end, offsets_V[0] = 0, 0, 0
    with ThreadPoolExecutor(threads) as pool:
        cut = list(pool.map(lambda part: _ByRange(part, low, high, bits), parts))
        groups = (range(first, min(first + threads, 1 << bits)) for first in range(0, 1 << bits, threads))
        joined = (pool.map(lambda r: _joined([part.range(r) for part in cut]), group) for group in groups)
        for hash_U, offsets_U, data_U, *others_U in itertools.chain.from_iterable(joined):
            last, stop = rows + len(hash_U), end + len(data_U)
            hash_V[rows:last], data[end:stop], offsets_V[rows + 1 : last + 1] = hash_U, data_U, offsets_U[1:] + end
            for column, values in zip(others, others_U, strict=True):
                column[rows:last] = values
            rows, end = last, stop
    return [hash_V[:rows], offsets_V[: rows + 1], data[:end], *(column[:rows] for column in others)]


def _rise(hash_V: np.ndarray) -> bool:
    return bool((hash_V[1:] > hash_V[:-1]).all())


class _ByRange:
    """The rows of a vocabulary in 2^bits ranges of the hashes `low` to `high`, 2^shift hashes each."""

    def __init__(self, part: Sequence[np.ndarray], low: int, high: int, bits: int):
        hash_V, shift = part[0], max(0, (high - low).bit_length() - bits)
        self._part = part
        self._rows_V = None  # of a vocabulary that is not sorted by hash: its rows by range
        if _rise(hash_V):
            limits = np.array(range(low + (1 << shift), high + 1, 1 << shift), np.uint64)
            self._ends = np.full(1 << bits, len(hash_V))
            self._ends[: len(limits)] = np.searchsorted(hash_V, limits)
        else:
            self._rows_V, self._ends = _rows_by_range(read_only(hash_V), np.uint64(low), np.uint64(shift), bits)

    def range(self, r: int) -> list[np.ndarray]:
        """Return the `SYMBOL_ARRAYS` of range r; views if the vocabulary is sorted by hash."""
        first, last = int(self._ends[r - 1]) if r else 0, int(self._ends[r])
        if self._rows_V is None:
            return slice_rows(self._part, first, last)
        return take_rows(self._part, self._rows_V[first:last].astype(np.int64))


@njit(nogil=True, cache=True)
def _rows_by_range(hash_V, low, shift, bits):
    """Return (V,) uint32, the rows by the ranges of their hashes (see `_ByRange`), and where each range ends."""
    place_R = np.zeros((1 << bits) + 1, np.int64)
    for h in hash_V:
        place_R[np.int64((h - low) >> shift) + 1] += 1
    place_R = np.cumsum(place_R)[:-1].copy()
    rows_V = np.empty(len(hash_V), np.uint32)
    for v in range(len(hash_V)):
        r = np.int64((hash_V[v] - low) >> shift)
        rows_V[place_R[r]] = v
        place_R[r] += 1
    return rows_V, place_R


def slice_rows(part: Sequence[Any], first: int, last: int) -> list[Any]:
    """Return rows `first` to `last` - 1 of the `SYMBOL_ARRAYS` of a vocabulary, as views.

    Their offsets do not begin at 0: `data` begins at the first offset. `concatenated` and this function accept such
    slices.
    """
    hash_V, offsets_V, data, *others = part
    offsets_R, rows = offsets_V[first : last + 1], slice(first, last)
    start, stop = (int(offset - offsets_V[0]) for offset in (offsets_R[0], offsets_R[-1]))
    return [hash_V[rows], offsets_R, data[start:stop], *(array[rows] for array in others)]


def take_rows(part: Sequence[Any], rows_R: Any) -> list[Any]:
    """Return some rows of the `SYMBOL_ARRAYS` of a vocabulary."""
    hash_V, offsets_V, data, *others = part
    return [hash_V[rows_R], *take_words(offsets_V, data, rows_R), *(array[rows_R] for array in others)]


def hash_range(vocabulary: LocalVocabulary, r: int, ranges: int) -> LocalVocabulary:
    """Return range r of the words by hash, as `slice_rows` returns them; `ranges` equally wide ranges hold all hashes.

    The words must be sorted by hash. Range 0 has the totals of the vocabulary.
    """
    limits = np.array([-(-(i << 64) // ranges) for i in (r, r + 1) if i < ranges], np.uint64)
    first, last = [*np.searchsorted(vocabulary.hash_V, limits).tolist(), len(vocabulary.hash_V)][:2]
    arrays = slice_rows(vocabulary.columns(), first, last)
    return vocabulary.with_arrays(dict(zip(SYMBOL_ARRAYS, arrays, strict=True))) if r == 0 else LocalVocabulary(*arrays)


def store_vocabulary(vocabulary: LocalVocabulary, kind: str, items: Sequence[int], folder: str) -> str:
    """Write the vocabulary of some chunks, `items`, to the entries of a checkpoint; return its path."""
    arrays = {name: to_host(getattr(vocabulary, name)) for name in SYMBOL_ARRAYS}
    totals = {f.name: getattr(vocabulary, f.name) for f in fields(vocabulary) if f.name not in SYMBOL_ARRAYS}
    return save_entry(folder, kind, items, arrays, {"totals": totals})


def load_vocabulary(path: str) -> LocalVocabulary:
    """Return the vocabulary that `store_vocabulary` wrote, as views of its file."""
    arrays, metadata = load_arrays(path, verify=False)
    values: dict[str, Any] = metadata["totals"] | {name: arrays[name] for name in SYMBOL_ARRAYS}
    values |= {"checksums": [tuple(c) for c in values["checksums"]], "seconds": {}}  # seconds were of another run
    return LocalVocabulary(**values)
