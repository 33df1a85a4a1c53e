"""The tasks of an estimate on the n-grams of parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.ngrams.kneser_ney_discounts import Discounts
from mgpu_ngram.engine.count.count_chunk import CountOptions, empty_table
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.sorted_runs import merge_to, where_it_fits
from mgpu_ngram.engine.count.suffix_order import tables_of_windows
from mgpu_ngram.engine.count.text_ids import TextIds, WindowKeys, keys_of_shard, whole_tables
from mgpu_ngram.engine.estimate.adjusted_counts import (
    LastNgram,
    adjust_counts,
    last_ngrams,
    linked_part,
    narrowed,
    row_of_split,
    with_suffixes,
)
from mgpu_ngram.engine.estimate.part import (
    Estimated,
    EstimateOptions,
    Part,
    SplitLeft,
    Unigrams,
    add_split_left,
)
from mgpu_ngram.engine.estimate.part_counts import CountedParts, counts_of_part
from mgpu_ngram.engine.estimate.part_of_tables import in_suffix_order, part_of_tables
from mgpu_ngram.engine.estimate.part_values import lasting_arrays, split_probs, values_of_part, with_names
from mgpu_ngram.engine.estimate.plain_count_smoothing import (
    plain_counts,
    plain_counts_of_counts,
)
from mgpu_ngram.engine.estimate.probabilities import estimate_part
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of, return_unused_memory, to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host, on_device_or_none
from mgpu_ngram.engine.memory.spill import held, leave_device, packed, result_to_device, spill
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.jobs.estimate.word_tasks import LastWord, add_vectors
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import on_gpu, to_host
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule

SPLIT_SHARE = 0.05  # of a GPU, for a vector of all split bigrams
LESS = "use a smaller memory.host_bytes, which makes smaller parts, a lower order, or more workers"


class PartResources(NamedTuple):
    """The resources of the task of a part.

    folder  folder for spilled results
    alone   whether the part is the only one of its model
    """

    budget: Budget
    folder: str
    alone: bool = False


class TextOptions(NamedTuple):
    """How the parts of a text are made. Picklable.

    symbols   words of the vocabulary
    options   settings of the estimate
    counting  how the only part of a model is counted
    """

    symbols: int
    options: EstimateOptions
    counting: CountOptions
    resources: PartResources


def make_part(
    texts: Sequence[TextIds], lexicon: Lexicon, how: TextOptions, bad_V: Any, last: LastWord | None
) -> Part:  # fmt: skip
    """Make the only part of a model from the tokens of its text."""
    part = _whole_part_of_text(texts, lexicon, how, bad_V)
    _add_last(part, last, (), how.symbols)
    return spill(part, how.resources.budget, how.resources.folder)


def adjust_parts(
    pieces: Sequence[WindowKeys], lexicon: Lexicon, how: TextOptions, shards: Sequence[int], bad_V: Any,
    last: LastWord | None,
) -> CountedParts:  # fmt: skip
    """Make some parts of a text, one after another, with their adjusted counts.

    Their totals are one sum for several parts, because its vectors have an element for each word of the vocabulary.
    """
    split, made = _split(lexicon, how), list[CountedParts]()
    for shard in shards:
        part = [_part_of_text(pieces, shard, lexicon, how, bad_V)]
        _add_last(part[0], last, split, how.symbols)
        made.append(_counted(part.pop(), how.symbols, how.options, how.resources))  # no name holds the part
        made = [_together(*made)]
    [counted] = made
    counted.totals = spill(counted.totals, how.resources.budget, how.resources.folder)
    return counted


def _split(lexicon: Lexicon, how: TextOptions) -> tuple[int, ...]:
    return lexicon.split if how.options.order > 2 else ()


def _part_of_text(pieces: Sequence[WindowKeys], shard: int, lexicon: Lexicon, how: TextOptions, bad_V: Any) -> Part:
    """Return a part in suffix order, on the device, or in host memory if the device is full."""
    device, split = how.resources.budget.device, _split(lexicon, how)
    elsewhere = [word for word in split if int(lexicon.shard_V[word]) != shard]
    watch = Stopwatch(device)

    def made(device: str) -> Part:
        # No name holds the keys, so that they are freed as soon as they are sorted.
        tables = tables_of_windows(
            keys_of_shard(pieces, shard, lexicon, how.options.order, device),
            how.options.order, check.code_bits(how.symbols),
        )  # fmt: skip
        narrow = {n: narrowed(tables.pop(n)) for n in sorted(tables)}  # frees one after another
        watch.lap("count")
        return _part_of_tables(narrow, how.symbols, how.options, bad_V, split, elsewhere)

    with memory_guard("counting n-grams", device, LESS):
        part = on_device_or_host(made, device, return_unused_memory)
        watch.lap("adjust")
    part.seconds = watch.seconds
    return part


def _whole_part_of_text(texts: Sequence[TextIds], lexicon: Lexicon, how: TextOptions, bad_V: Any) -> Part:
    budget = how.resources.budget
    watch = Stopwatch(budget.device)

    def counted(device: str) -> dict[int, Table]:
        counting = replace(how.counting, budget=replace(budget, device=device))
        tables = whole_tables(texts, lexicon, counting)
        return {n: narrowed(tables.pop(n)) for n in sorted(tables)}  # frees one after another

    with memory_guard("counting n-grams", budget.device, LESS):
        tables = on_device_or_host(counted, budget.device)
        watch.lap("count")
        part = _whole_part(tables, how.symbols, how.options, bad_V)
        watch.lap("adjust")
    part.seconds = watch.seconds
    return part


def _add_last(part: Part, last: LastWord | None, split: Sequence[int], symbols: int) -> None:
    """Find the last n-grams of a part, from the last word on, and from each bigram of it and a split word on."""
    if last is None:
        return
    part.last[-1] = last_ngrams(part, 2, last.word, last.place_V, split)
    for i, first in enumerate(split):
        row = row_of_split(part, i * symbols + last.word)
        part.last[first] = [] if row is None else last_ngrams(part, 3, row, last.place_V)


def _counted(part: Part, symbols: int, options: EstimateOptions, resources: PartResources) -> CountedParts:
    """Return a part with its counts in text order, spilled. Consumes the part."""
    budget, folder = resources.budget, resources.folder
    watch = Stopwatch(budget.device)
    part.drop_raw_counts()
    totals = replace(part, orders={})
    with memory_guard("adjusting counts", budget.device, LESS):
        counts = counts_of_part(part, symbols, options, budget.device)
    if budget.device == "gpu" and budget.fits_device(0):
        lasting = lasting_arrays(counts, options)
        counts = on_device_or_none(lambda _: packed(counts, lasting), budget.device) or counts
    counts = spill(counts, budget, folder)
    watch.lap("adjust")
    totals.seconds = add_seconds(part.seconds, watch.seconds)
    return CountedParts(totals, [counts])


def _together(first: CountedParts, *more: CountedParts) -> CountedParts:
    """Return the parts of all, with the sum of their totals."""
    for second in more:
        first = CountedParts(_sum_of_totals(first.totals, second.totals), first.parts + second.parts)
    return first


def _sum_of_totals(total: Part, part: Part) -> Part:
    return Part(
        {},
        add_vectors(total.left_V, part.left_V),
        add_splits(total.split_left, part.split_left) if total.split_left and part.split_left else None,
        {n: (np.array(counts) + part.counts_of_counts[n]).tolist() for n, counts in total.counts_of_counts.items()},
        {n: (kept + part.sizes[n][0], every + part.sizes[n][1]) for n, (kept, every) in total.sizes.items()},
        {first: max(ngrams, part.last[first]) for first, ngrams in total.last.items()},
        add_seconds(total.seconds, part.seconds),
    )


def adjusted(
    find: Callable[[int], list[ShardedTable]], symbols: int, options: EstimateOptions, bad_V: Any,
    last: LastWord | None, resources: PartResources,
) -> Part | CountedParts:  # fmt: skip
    """Sum the tables of each order and adjust their counts; in host memory if the device is full. Spill the result.

    Returns the part that is the whole model, or `CountedParts` of one part.

    find  function that returns the tables of an order; called once for each
    """
    budget, folder, alone = resources
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
        for table in map(summed, found()):
            tables[table.order] = table
            watch.lap("reduce")
        del table
        if alone:
            part = _whole_part(tables, symbols, options, bad_V)
        else:
            part = where_it_fits(partial(_one_part, symbols, options, bad_V), *tables.values())
        watch.lap("adjust")
    _add_last(part, last, (), symbols)
    part.seconds = watch.seconds
    if alone:
        return spill(part, budget, folder)
    tables.clear()
    made = [part]
    del part  # `_counted` frees its orders one after another
    counted = _counted(made.pop(), symbols, options, resources)
    counted.totals = spill(counted.totals, budget, folder)
    return counted


def _one_part(symbols: int, options: EstimateOptions, bad_V: Any, *of_orders: Table) -> Part:
    """Return one of several parts in suffix order with its counts, on the device of the tables."""
    return _part_of_tables({t.order: in_suffix_order(t) for t in of_orders}, symbols, options, bad_V)


def _part_of_tables(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any, split: Sequence[int] = (),
    elsewhere: Sequence[int] = (),
) -> Part:  # fmt: skip
    """Return a part with its counts, from tables in suffix order."""
    smoothing, bad_here_V = options.smoothing, None if bad_V is None else move_to(bad_V, device_of(tables[2].keys))
    counted = plain_counts_of_counts(tables, smoothing, True, elsewhere) if smoothing else None
    part = part_of_tables(tables, symbols, options, bad_here_V, split, elsewhere)
    return part if counted is None else plain_counts(part, counted)


def _whole_part(tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any) -> Part:
    """Return the part that is the whole model with its counts, in host memory if the device is full."""
    counted = plain_counts_of_counts(tables, options.smoothing) if options.smoothing else None
    linked = linked_part(tables, symbols, options, bad_V)

    def adjust(device: str) -> Part:
        part = with_suffixes(result_to_device(linked, device))
        return adjust_counts(part, symbols) if counted is None else plain_counts(part, counted)

    return on_device_or_host(adjust, device_of(linked.left_V))


class PartReport(NamedTuple):
    """What a `Part` says to the driver."""

    counts_of_counts: dict[int, list[int]]
    sizes: dict[int, tuple[int, int]]
    seconds: dict[str, float]


def totals_of(made: Part | CountedParts) -> Part:
    """Return the numbers of a whole model, or of some of its parts."""
    return made if isinstance(made, Part) else made.totals


def report_of(totals: Part) -> PartReport:
    return PartReport(totals.counts_of_counts, totals.sizes, totals.seconds)


def left_of(totals: Part) -> Any:
    return totals.left_V


def split_left_of(totals: Part) -> SplitLeft | None:
    return totals.split_left


def add_splits(*several: SplitLeft, device: str = "") -> SplitLeft:
    """Return the sum, on the device, or in host memory if that is full; "": the device of the first one."""

    def add(device: str) -> SplitLeft:
        return add_split_left(*(SplitLeft(*(move_to(array, device) for array in one)) for one in several))

    return on_device_or_host(add, device or device_of(several[0].place_P))


def all_split_left(left: SplitLeft, places: int, budget: Budget) -> Any:
    """Return (H * V,) int64, the adjusted counts of all split bigrams, in host memory if they would crowd a GPU."""
    place = _place_of_split(8 * places, budget)

    def dense(device: str) -> Any:
        return SplitLeft(*(move_to(array, device) for array in left)).dense(places)

    return on_device_or_host(dense, place)


def _place_of_split(nbytes: int, budget: Budget) -> str:
    return "cpu" if nbytes > SPLIT_SHARE * budget.device_bytes else budget.device


def last_of(totals: Part) -> dict[int, list[LastNgram]]:
    return totals.last


def split_probs_of(
    made: CountedParts, split: Sequence[int], left_L: Any, rule: Discounts | Rule, unigrams: Unigrams, device: str
) -> list[list[np.ndarray]]:
    """Return places and probabilities of the split bigrams of each part, in host memory."""
    found = (split_probs(counts, rule, unigrams.prob_V, split, left_L, device) for counts in made.parts)
    return [[to_host(array) for array in arrays] for arrays in found]


def join_split(found: list[list[list[np.ndarray]]], places: int, budget: Budget) -> Any:
    """Return (H * V,) float32, the probabilities of all split bigrams: on the device, because all parts need some, or
    in host memory if they would crowd a GPU.
    """
    prob_L = np.zeros(places, np.float32)
    for place_P, prob_P in itertools.chain(*found):
        prob_L[place_P] = prob_P
    return on_device_or_host(partial(move_to, prob_L), _place_of_split(prob_L.nbytes, budget))


def estimate_whole(part: Part, rules: dict[int, Any], unigrams: Unigrams, resources: PartResources) -> Estimated:
    """Return the probabilities and backoffs of the part that is the whole model; spill them. Drops its raw counts."""
    budget, folder, _ = resources
    part.drop_raw_counts()
    watch = Stopwatch(budget.device)

    def estimated(device: str) -> Estimated:
        placed = replace(unigrams, prob_V=move_to(unigrams.prob_V, device))
        return estimate_part(result_to_device(part, device), rules, placed)

    with memory_guard("estimating", budget.device, LESS):
        made = on_device_or_host(estimated, budget.device)
        watch.lap("estimate")
    made.seconds = watch.seconds
    return spill(made, budget, folder)


def estimate_one(
    made: CountedParts, i: int, shared: Sequence[Any], split: Sequence[int], options: EstimateOptions,
    resources: PartResources,
) -> Estimated:  # fmt: skip
    """Return the probabilities and backoffs of one of some parts, where its counts are: on the device, or spilled.

    shared  rules, unigrams, the adjusted counts and the probabilities of split bigrams
    """
    budget, counts, (rules, unigrams, left_L, split_L) = resources.budget, made.parts[i], shared
    watch = Stopwatch(budget.device)
    with memory_guard("estimating", budget.device, LESS):
        values = values_of_part(counts, rules, unigrams.prob_V, split, left_L, split_L, budget.device)
    if not all(map(on_gpu, [*counts.arrays().values(), *values.arrays().values()])):
        values = leave_device(values, budget, resources.folder)
    watch.lap("estimate")
    estimated = held(with_names(values, counts, options))
    estimated.seconds = watch.seconds
    return estimated
