"""The tasks between the passes of a count run: merge vocabularies of chunks, at once or in ranges; number symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mgpu_ngram.cluster.executor import Executor, Handle, reduce_tasks
from mgpu_ngram.core.counts.vocabulary import LocalVocabulary, Vocabulary
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.count.lexicon import Lexicon, place_lexicon
from mgpu_ngram.engine.count.merge_vocabularies import (
    BYTES_AT_ONCE,
    hash_range,
    merge_where_it_fits,
    where_vocabulary_fits,
)
from mgpu_ngram.engine.count.number_symbols import number_symbols
from mgpu_ngram.engine.count.sentence_markers import LmplzText
from mgpu_ngram.engine.count.vocabulary_ranges import (
    NumberedPiece,
    RangeOfHashes,
    Ranges,
    deal_range,
    hashes_of,
    join_pieces,
    limits_of,
    merge_sorted,
    number_piece,
    sample_of,
    words_of_piece,
)
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.device import device_of
from mgpu_ngram.engine.memory.spill import spill
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds

T = TypeVar("T")

MERGE_ARITY = 8  # vocabularies that are merged at once
WORD_BYTES = 47  # bytes in a vocabulary of a word of 11 bytes
MAX_HASH_RANGES = 256  # an exchange takes at most MAX_HASH_RANGES ** 2 tasks
SORTING_SHARE = 0.1  # of host memory for temporary arrays of threads that sort words
RANGE_COPIES = 3  # copies of the words of a range or piece while they are merged or sorted


@dataclass
class Numbered:
    """The result of pass 1."""

    lexicon: Lexicon
    vocabulary: Vocabulary
    lines: int
    checksums: list[PartCrc]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Numbering:
    """Options for numbering symbols, as for `number_symbols`. Results are spilled to `folder`. No other task runs while
    one numbers them, so it has all `threads` of its host.
    """

    unit: str
    sentence_markers: bool
    seed: int
    lmplz: LmplzText | None
    budget: Budget
    folder: str
    threads: int


def number_vocabulary(executor: Executor, vocabularies: Sequence[Handle], how: Numbering) -> Handle:
    """Merge the vocabularies of chunks in a tree, and number the symbols in one task; return the `Numbered`."""
    merge = partial(_merge, budget=how.budget, folder=how.folder)
    merged = reduce_tasks(executor, merge, vocabularies, MERGE_ARITY, roots=MERGE_ARITY, priority=True)
    return executor.call(_number, merged, how, affinity=0)


def number_in_ranges(
    executor: Executor, vocabularies: Sequence[Handle], sizes: Sequence[int], how: Numbering, ranges: int
) -> Handle:
    """Merge the words in `ranges` tasks and number them in as many, on all workers; return the `Numbered`.

    sizes  bytes of each vocabulary

    The result is that of `number_vocabulary`. A worker gets only the parts of each vocabulary that its tasks need.
    """
    options = Ranges(ranges, how.sentence_markers, how.seed, how.lmplz, how.budget, how.folder)
    call, each = executor.call, range(ranges)

    def cut(take: Callable[..., Any], wholes: Sequence[Handle], *which: int) -> list[Handle]:
        return [call(take, whole, *which, priority=True) for whole in wholes]

    sorted_ = [
        call(merge_sorted, options, *group, label="vocabularies of chunks", priority=True)
        for group in groups(vocabularies, sizes, how.budget.block_bytes())
    ]
    merged = [
        call(merge_sorted, options, *cut(hash_range, sorted_, r, ranges), label=f"range {r} of the words", affinity=r)
        for r in each
    ]
    del sorted_
    limits = call(limits_of, options, *[call(sample_of, options, m, priority=True) for m in merged])
    dealt = [
        call(deal_range, options, m, r, limits, label=f"range {r} of the words, by count", affinity=r)
        for r, m in enumerate(merged)
    ]
    del merged
    pieces = [
        call(number_piece, options, *cut(words_of_piece, dealt, p), label=f"ids of words, piece {p}", affinity=p)
        for p in each
    ]
    return call(_joined, options, cut(hashes_of, dealt), pieces, label="the vocabulary", affinity=0)


def ranges_needed(sizes: Sequence[int], budget: Budget) -> int:
    """Return the number of ranges for vocabularies of these sizes: 1 if a task has memory for all of them."""
    return min(max(1, -(-RANGE_COPIES * sum(sizes) // max(1, budget.host_working_bytes()))), MAX_HASH_RANGES)


def groups(items: Sequence[T], sizes: Sequence[int], most_bytes: int) -> list[list[T]]:
    """Return groups of neighbours with at most `most_bytes` in total; a larger item is a group of its own.

    sizes  bytes of each item
    """
    found: list[list[T]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if not found or size > room:
            found.append([])
            room = most_bytes
        found[-1].append(item)
        room -= size
    return found


def _merge(*vocabularies: LocalVocabulary, budget: Budget, folder: str) -> LocalVocabulary:
    return spill(merge_where_it_fits(vocabularies, budget, folder), budget, folder)


def _number(vocabularies: list[LocalVocabulary], how: Numbering) -> Numbered:
    budget, folder = how.budget, how.folder
    threads = max(1, min(how.threads, int(SORTING_SHARE * budget.host_bytes) // BYTES_AT_ONCE))

    def number(merged: LocalVocabulary) -> Numbered:
        device = device_of(merged.hash_V)
        numbered = number_symbols(merged, how.unit, how.sentence_markers, how.seed, device, how.lmplz, threads)
        return _placed(*numbered, merged.lines, merged.checksums, merged.seconds, how)

    watch = Stopwatch(budget.device)
    merged = merge_where_it_fits(vocabularies, budget, folder, threads)
    if len(vocabularies) > 1 and device_of(merged.hash_V) == "cpu":
        merged = spill(merged, budget, folder)  # numbering takes as much memory again
    numbered = where_vocabulary_fits(number, merged, budget)
    watch.lap("vocabulary")
    numbered.seconds = add_seconds(numbered.seconds, watch.seconds)
    return numbered


def _joined(how: Ranges, hashes: list[RangeOfHashes], pieces: list[NumberedPiece]) -> Numbered:
    watch = Stopwatch("cpu")
    numbered, first = join_pieces(how, hashes, pieces), hashes[0]
    placed = _placed(*numbered, first.totals.lines, first.checksums, first.seconds, how)
    watch.lap("vocabulary")
    placed.seconds = add_seconds(placed.seconds, watch.seconds)
    return placed


def _placed(
    lexicon: Lexicon, vocabulary: Vocabulary, lines: int, checksums: list[PartCrc], seconds: dict[str, float],
    how: Numbering | Ranges,
) -> Numbered:  # fmt: skip
    """Return the result, moved to where the budget has room."""
    placed = place_lexicon(lexicon, how.budget, how.folder), spill(vocabulary, how.budget, how.folder)
    return Numbered(*placed, lines, checksums, seconds)
