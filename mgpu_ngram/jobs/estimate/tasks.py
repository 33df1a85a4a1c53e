"""The tasks of an estimate: on the counted n-grams of a part, and on single words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import SPECIALS, UNK_ID, Vocabulary
from mgpu_ngram.core.ngrams.discounts import Discounts
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.count_chunk import empty_table
from mgpu_ngram.engine.count.sorted_runs import SortedRun, merge_to, open_run, take_shards, where_it_fits
from mgpu_ngram.engine.estimate.adjusted_counts import (
    MAX_COUNTED,
    adjust_counts,
    adjust_unigrams,
    linked_part,
    narrowed,
    part_of,
    places_in_text,
    with_split_counts,
    with_suffixes,
)
from mgpu_ngram.engine.estimate.part import Estimated, EstimateOptions, Part, Unigrams
from mgpu_ngram.engine.estimate.plain_count_smoothing import (
    plain_counts,
    plain_counts_of_counts,
    plain_unigrams,
    smooth_unigrams,
)
from mgpu_ngram.engine.estimate.probabilities import estimate_part, estimate_unigrams, split_probs
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host
from mgpu_ngram.engine.memory.spill import result_to_device, spill
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.memory.threads import side_by_side
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule

LESS = "use smaller chunks (chunk_bytes), prune, a lower order, or more workers"


@dataclass
class _Words:
    """Single words: adjusted counts (V,) and whether they are kept (V,), on the device.

    size    (kept words, all words)
    tokens  of the text, without sentence markers
    """

    count_V: Any
    kept_V: Any
    counts_of_counts: list[int]
    size: tuple[int, int]
    tokens: int


class PartResources(NamedTuple):
    """The resources of the task of a part.

    folder  folder for spilled results
    alone   whether the part is the only one of its model
    """

    budget: Budget
    folder: str
    threads: int = 1
    alone: bool = False


def words_outside(vocabulary: Vocabulary, limit: Words, device: str) -> Any:
    """Return (V,) bool, the words outside a limited vocabulary; specials are always inside."""
    bad_V = np.ones(len(vocabulary), bool)
    words = Words(vocabulary.offsets_V, vocabulary.data)
    bad_V[words.ids(limit.offsets_V, limit.data)] = False
    bad_V[: len(SPECIALS)] = False
    return to_device(bad_V, device)


def make_part(
    runs: Sequence[SortedRun], shard: int, symbols: int, options: EstimateOptions, bad_V: Any, split: Sequence[int],
    resources: PartResources,
) -> Part:  # fmt: skip
    """Sum the share of all runs in a shard, and adjust its counts. A part that is alone takes the tables out of its
    runs, so that they are freed order by order: no other task needs them.
    """
    stored = {s.path: s for run in runs for s in run.stored}
    pieces = [run.take_tables() if resources.alone else run for run in runs]
    pieces += [take_shards(open_run(s), shard, shard + 1) for s in stored.values()]

    def find(n: int) -> list[ShardedTable]:
        take = dict.pop if resources.alone else dict.get
        return [t for piece in pieces for t in take(piece.tables, n, [])]

    return adjusted(find, symbols, options, bad_V, resources, split)


def adjusted(
    find: Callable[[int], list[ShardedTable]], symbols: int, options: EstimateOptions, bad_V: Any,
    resources: PartResources, split: Sequence[int] = (),
) -> Part:  # fmt: skip
    """Sum the tables of each order and adjust their counts; in host memory if the device is full. Spill the result.

    find  function that returns the tables of an order; called once for each
    """
    budget, folder, threads, alone = resources
    watch, bits = Stopwatch(budget.device), check.code_bits(symbols)

    def found() -> Iterator[tuple[int, list[ShardedTable]]]:
        for n in range(2, options.order + 1):
            pieces = find(n)
            watch.lap("read")
            yield n, pieces

    def summed(order: tuple[int, list[ShardedTable]]) -> Table:
        n, pieces = order
        if not pieces:
            return empty_table(n, bits, to_device(np.empty(0, np.uint64), budget.device))
        return where_it_fits(narrowed, merge_to(pieces, budget.device).shard(0))

    with memory_guard("adjusting counts", budget.device, LESS):
        tables = dict[int, Table]()
        for table in side_by_side(summed, found(), threads):
            tables[table.order] = table
            watch.lap("reduce")
        del table
        if alone:
            part = _whole_part(tables, symbols, options, bad_V, threads)
        else:
            part = where_it_fits(partial(_one_part, symbols, options, bad_V, split), *tables.values())
        watch.lap("adjust")
    part.seconds = watch.seconds
    return spill(part, budget, folder)


def _one_part(symbols: int, options: EstimateOptions, bad_V: Any, split: Sequence[int], *of_orders: Table) -> Part:
    """Return one of several parts with its counts, on the device of the tables."""
    tables = {table.order: table for table in of_orders}
    counted = plain_counts_of_counts(tables, options.smoothing) if options.smoothing else None
    bad_here_V = None if bad_V is None else move_to(bad_V, device_of(tables[2].keys))
    part = part_of(tables, symbols, options, bad_here_V, split)
    return adjust_counts(part, symbols, options, split) if counted is None else plain_counts(part, counted)


def _whole_part(tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any, threads: int) -> Part:
    """Return the part that is the whole model with its counts, in host memory if the device is full."""
    counted = plain_counts_of_counts(tables, options.smoothing) if options.smoothing else None
    linked = linked_part(tables, symbols, options, bad_V, threads)

    def adjust(device: str) -> Part:
        part = with_suffixes(result_to_device(linked, device))
        return adjust_counts(part, symbols, options, (), threads) if counted is None else plain_counts(part, counted)

    return on_device_or_host(adjust, device_of(linked.left_V))


def report_of(part: Part) -> tuple[dict[int, list[int]], dict[int, tuple[int, int]], dict[str, float]]:
    return part.counts_of_counts, part.sizes, part.seconds


def left_of(part: Part) -> Any:
    return part.left_V


def split_left_of(part: Part) -> Any:
    return part.split_left_L


def element_at(vector: Any, place: int) -> int:
    return int(vector[place])


def add_vectors(*vectors: Any) -> Any:
    """Return the sum of vectors, on the device of the first one, or in host memory if that is full."""

    def add(device: str) -> Any:
        total = move_to(vectors[0], device).copy()
        for vector in vectors[1:]:
            total += move_to(vector, device)
        return total

    return on_device_or_host(add, device_of(vectors[0]))


def adjust_words(lefts: list[Any], vocabulary: Vocabulary, options: EstimateOptions, bad_V: Any, device: str) -> _Words:
    """Return the adjusted counts of single words, from each part's numbers of words before them."""
    counts_V = to_device(vocabulary.counts_V, device)
    left_V, smoothing = move_to(add_vectors(*lefts), device) if lefts else counts_V, options.smoothing
    if smoothing:
        count_V, kept_V = plain_unigrams(counts_V, smoothing.closed)
    else:
        count_V, kept_V = adjust_unigrams(left_V, counts_V, options, bad_V)
    counted = count_counts(count_V, smoothing.counted(1) if smoothing else MAX_COUNTED)
    tokens = int(vocabulary.counts_V[len(SPECIALS) :].sum() + vocabulary.counts_V[UNK_ID])
    return _Words(count_V, kept_V, counted, (count_true(kept_V), len(kept_V)), tokens)


def report_of_words(words: _Words) -> tuple[list[int], tuple[int, int], int]:
    return words.counts_of_counts, words.size, words.tokens


def estimate_unigrams_of(words: _Words, rule: Discounts | Rule, options: EstimateOptions) -> Unigrams:
    if isinstance(rule, Rule):
        closed = options.smoothing is not None and options.smoothing.closed
        return smooth_unigrams(words.count_V, rule, options.thresholds[0], closed)
    return estimate_unigrams(words.count_V, words.kept_V, rule, options)


def places_of(vocabulary: Vocabulary) -> np.ndarray:
    return places_in_text(vocabulary.first_source_V, vocabulary.first_offset_V)


def last_word(vocabulary: Vocabulary, words: _Words, place_V: np.ndarray) -> tuple[int, int, int]:
    """Return the word of the text with the greatest of `places_in_text`, its adjusted count and its raw count."""
    word = int(np.where(vocabulary.counts_V > 0, place_V, -1).argmax())
    return word, int(words.count_V[word]), int(vocabulary.counts_V[word])


def _with_split(part: Part, split: Sequence[int], left_L: Any, device: str) -> Part:
    """Return a part on the device, with the adjusted counts of its split bigrams; plain counts have no `left_L`."""
    part = result_to_device(part, device)
    return with_split_counts(part, split, len(part.left_V), move_to(left_L, device)) if left_L is not None else part


def split_probs_of(
    part: Part, split: Sequence[int], left_L: Any, rule: Discounts | Rule, unigrams: Unigrams, device: str
) -> list[np.ndarray]:
    """Return places and probabilities of the split bigrams of a part, in host memory."""
    bigrams = _with_split(replace(part, orders={2: part.orders[2]}), split, left_L, device)
    return [to_host(array) for array in split_probs(bigrams, split, rule, unigrams.prob_V)]


def join_split(found: list[list[np.ndarray]], places: int) -> np.ndarray:
    """Return (H * V,) float32, the probabilities of all split bigrams."""
    prob_L = np.zeros(places, np.float32)
    for place_P, prob_P in found:
        prob_L[place_P] = prob_P
    return prob_L


def estimate_of(
    part: Part, rules: dict[int, Any], unigrams: Unigrams, split: Sequence[int], left_L: Any, split_L: Any,
    resources: PartResources,
) -> Estimated:  # fmt: skip
    """Return the probabilities and backoffs of a part; spill them. Drops the part's raw counts."""
    budget, folder, threads, _ = resources
    part.drop_raw_counts()
    watch = Stopwatch(budget.device)

    def estimate(device: str) -> Estimated:
        whole = _with_split(part, split, left_L, device)
        shared_L = None if split_L is None else to_device(split_L, device)
        return estimate_part(whole, rules, move_to(unigrams.prob_V, device), shared_L, threads)

    with memory_guard("estimating", budget.device, LESS):
        estimated = on_device_or_host(estimate, budget.device)
        watch.lap("estimate")
    estimated.seconds = watch.seconds
    return spill(estimated, budget, folder)
