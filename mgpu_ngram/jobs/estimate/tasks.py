"""The tasks of an estimate on the n-grams of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.ngrams.discounts import Discounts
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
    split_places,
    with_split_counts,
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
from mgpu_ngram.engine.estimate.part_values import estimate_one_of_parts, split_probs
from mgpu_ngram.engine.estimate.plain_count_smoothing import (
    plain_counts,
    plain_counts_of_counts,
)
from mgpu_ngram.engine.estimate.probabilities import estimate_part
from mgpu_ngram.engine.estimate.suffix_order import in_suffix_order, part_of_tables
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of, return_unused_memory, to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host, on_device_or_none
from mgpu_ngram.engine.memory.spill import packed, result_to_device, spill
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.engine.memory.threads import side_by_side
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
    threads: int = 1
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
) -> Part:  # fmt: skip
    """Make some parts of a text, one after another, and return what their counts say together.

    The result has no n-grams, except split bigrams. It is one for several parts, because its vectors have an element
    for each word of the vocabulary.
    """
    split, total = _split(lexicon, how), None
    for shard in shards:
        part = _part_of_text(pieces, shard, lexicon, how, bad_V)
        _add_last(part, last, split, how.symbols)
        found = summary(part, split, how.symbols)
        total = found if total is None else _with_summary(total, found)
        del part, found
    assert total is not None
    return spill(total, how.resources.budget, how.resources.folder)


def estimate_text_part(
    pieces: Sequence[WindowKeys], lexicon: Lexicon, how: TextOptions, shard: int, bad_V: Any, shared: Sequence[Any],
    stays: bool,
) -> Estimated:  # fmt: skip
    """Make a part of a text again, and estimate it: see `estimate_of`.

    shared  rules, unigrams, the adjusted counts and the probabilities of split bigrams
    stays   the result stays on the device; else another task spills it while the next part is made

    To make it twice costs less than to keep it, because a part takes 20 times the memory of its text.
    """
    rules, unigrams, left_L, split_L = shared
    parts, split = [_part_of_text(pieces, shard, lexicon, how, bad_V)], _split(lexicon, how)
    seconds = parts[0].seconds
    # Plain arguments: a tuple that is unpacked would keep the part.
    estimated = _estimated(parts.pop(), rules, unigrams, split, left_L, split_L, how.options, how.resources)
    estimated.seconds = add_seconds(seconds, estimated.seconds)
    if not stays:
        return estimated
    kept = on_device_or_none(lambda _: packed(estimated), how.resources.budget.device)
    is_on_gpu = kept is not None and all(map(on_gpu, kept.arrays().values()))
    return kept if kept is not None and is_on_gpu else keep_part(estimated, how.resources.budget, how.resources.folder)


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
    budget, threads = how.resources.budget, how.resources.threads
    watch = Stopwatch(budget.device)

    def counted(device: str) -> dict[int, Table]:
        counting = replace(how.counting, budget=replace(budget, device=device))
        tables = whole_tables(texts, lexicon, counting, threads)
        return {n: narrowed(tables.pop(n)) for n in sorted(tables)}  # frees one after another

    with memory_guard("counting n-grams", budget.device, LESS):
        tables = on_device_or_host(counted, budget.device)
        watch.lap("count")
        part = _whole_part(tables, how.symbols, how.options, bad_V, threads)
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


def summary(part: Part, split: Sequence[int], symbols: int) -> Part:
    """Return a part without its n-grams, except split bigrams."""
    bigrams = part.orders[2]
    orders = {}
    if split:
        rows = (split_places(bigrams.word(0), bigrams.word(1), split, symbols) >= 0).nonzero()[0]
        orders = {2: bigrams.taken(rows)}
    return replace(part, orders=orders)


def _with_summary(total: Part, part: Part) -> Part:
    """Return the sum of two summaries of parts."""
    bigrams = {2: total.orders[2].followed_by(part.orders[2])} if total.orders else {}
    return Part(
        bigrams,
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
            part = where_it_fits(partial(_one_part, symbols, options, bad_V), *tables.values())
        watch.lap("adjust")
    _add_last(part, last, (), symbols)
    part.seconds = watch.seconds
    return spill(part, budget, folder)


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


def _whole_part(tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any, threads: int) -> Part:
    """Return the part that is the whole model with its counts, in host memory if the device is full."""
    counted = plain_counts_of_counts(tables, options.smoothing) if options.smoothing else None
    linked = linked_part(tables, symbols, options, bad_V, threads)

    def adjust(device: str) -> Part:
        part = with_suffixes(result_to_device(linked, device))
        return adjust_counts(part, symbols, threads) if counted is None else plain_counts(part, counted)

    return on_device_or_host(adjust, device_of(linked.left_V))


class PartReport(NamedTuple):
    """What a `Part` says to the driver."""

    counts_of_counts: dict[int, list[int]]
    sizes: dict[int, tuple[int, int]]
    seconds: dict[str, float]


def report_of(part: Part) -> PartReport:
    return PartReport(part.counts_of_counts, part.sizes, part.seconds)


def left_of(part: Part) -> Any:
    return part.left_V


def split_left_of(part: Part) -> SplitLeft | None:
    return part.split_left


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


def last_of(part: Part) -> dict[int, list[LastNgram]]:
    return part.last


def _with_split_counts(part: Part, split: Sequence[int], symbols: int, left_L: Any, device: str) -> Part:
    """Return a part with the adjusted counts of its split bigrams; bigrams in host memory if the device is full."""

    def made(device: str) -> Part:
        placed = replace(part, orders=part.orders | {2: part.orders[2].on(device)})
        return with_split_counts(placed, split, symbols, left_L)

    return on_device_or_host(made, device)


def split_probs_of(
    part: Part, split: Sequence[int], left_L: Any, rule: Discounts | Rule, unigrams: Unigrams, device: str
) -> list[np.ndarray]:
    """Return places and probabilities of the split bigrams of a part, in host memory."""
    if not len(part.orders[2]):  # vectors over the vocabulary need not be moved
        return [np.empty(0, np.int64), np.empty(0, np.float32)]
    if left_L is not None:
        part = _with_split_counts(part, split, len(unigrams.prob_V), left_L, device)

    def found(device: str) -> tuple[Any, Any]:
        return split_probs(part.orders[2].on(device), split, rule, move_to(unigrams.prob_V, device))

    return [to_host(array) for array in on_device_or_host(found, device)]


def join_split(found: list[list[np.ndarray]], places: int, budget: Budget) -> Any:
    """Return (H * V,) float32, the probabilities of all split bigrams: on the device, because all parts need some, or
    in host memory if they would crowd a GPU.
    """
    prob_L = np.zeros(places, np.float32)
    for place_P, prob_P in found:
        prob_L[place_P] = prob_P
    return on_device_or_host(partial(move_to, prob_L), _place_of_split(prob_L.nbytes, budget))


def estimate_of(
    part: Part, rules: dict[int, Any], unigrams: Unigrams, split: Sequence[int], left_L: Any, split_L: Any,
    options: EstimateOptions, resources: PartResources,
) -> Estimated:  # fmt: skip
    """Return the probabilities and backoffs of a part; spill them. Drops raw counts of the part."""
    estimated = _estimated(part, rules, unigrams, split, left_L, split_L, options, resources)
    return keep_part(estimated, resources.budget, resources.folder)


def keep_part(estimated: Estimated, budget: Budget, folder: str) -> Estimated:
    """Return an estimated part, spilled."""
    return spill(estimated, budget, folder)


def _estimated(
    part: Part, rules: dict[int, Any], unigrams: Unigrams, split: Sequence[int], left_L: Any, split_L: Any,
    options: EstimateOptions, resources: PartResources,
) -> Estimated:  # fmt: skip
    budget, _, threads, _ = resources
    part.drop_raw_counts()
    watch = Stopwatch(budget.device)

    def estimate_whole(device: str) -> Estimated:
        placed = replace(unigrams, prob_V=move_to(unigrams.prob_V, device))
        return estimate_part(result_to_device(part, device), rules, placed, threads)

    with memory_guard("estimating", budget.device, LESS):
        if part.orders[2].links:
            estimated = on_device_or_host(estimate_whole, budget.device)
        else:
            part = replace(part, orders=dict(part.orders))  # to be consumed
            if left_L is not None:
                part = _with_split_counts(part, split, len(unigrams.prob_V), left_L, budget.device)
            estimated = estimate_one_of_parts(part, rules, unigrams.prob_V, options, split_L, budget.device)
        watch.lap("estimate")
    estimated.seconds = watch.seconds
    return estimated
