"""The steps from counted n-grams, spread over workers, to estimated parts of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.cluster.executor import Handle, reduce_tasks
from mgpu_ngram.core.discounts import Discounts, check_fallback, discounts_of
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.file_heads import HEAD_BYTES, refuse_as_text
from mgpu_ngram.core.tables import ShardedTable, Table
from mgpu_ngram.core.vocabulary import SPECIALS, Vocabulary
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.adjust import (
    COUNTED,
    adjust_counts,
    adjust_unigrams,
    last_longer,
    linked_part,
    narrowed,
    part_of,
    places_in_text,
    with_split_counts,
    with_suffixes,
)
from mgpu_ngram.engine.budget import Budget
from mgpu_ngram.engine.count import empty_table
from mgpu_ngram.engine.device import (
    Stopwatch,
    device_of,
    memory_guard,
    move_to,
    on_device_or_host,
    to_device,
)
from mgpu_ngram.engine.estimate import estimate_part, estimate_unigrams, split_probs
from mgpu_ngram.engine.part import START_ID, UNK_ID, Estimated, EstimateOptions, Part, Unigrams
from mgpu_ngram.engine.side_by_side import side_by_side
from mgpu_ngram.engine.smooth import plain_counts, plain_counts_of_counts, plain_unigrams, smooth_unigrams
from mgpu_ngram.engine.sorted_runs import SortedRun, merge_to, open_run, take_shards, where_it_fits
from mgpu_ngram.engine.spill import result_to_device, spill
from mgpu_ngram.jobs.estimate.assemble import Assembly, Resources
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule

ARITY = 8  # vectors over the vocabulary that one task sums
LESS = "use smaller chunks (chunk_bytes), prune, a lower order, or more workers"


@dataclass(frozen=True)
class Statistics:
    """The statistics of an estimate, by order.

    kept, total       n-grams in the model, and before pruning
    counts_of_counts  number of n-grams with count 1, 2, ..., from which discounts are computed; of Kneser-Ney, with
                      adjusted count 1, 2, 3, 4
    discounts         Kneser-Ney: of adjusted counts 1, 2, and 3 or more; absolute: one; additive: delta; Good-Turing:
                      the coefficients of counts 1, 2, ...; Witten-Bell: none
    fallback          orders whose discounts could not be computed
    """

    kept: dict[int, int]
    total: dict[int, int]
    counts_of_counts: dict[int, list[int]]
    discounts: dict[int, Sequence[float]]
    fallback: list[int]


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
    """What the task of a part may use.

    folder  where it may spill
    alone   whether the part is the only one of its model
    """

    budget: Budget
    folder: str
    threads: int = 1
    alone: bool = False


def part_resources(resources: Resources, parts: int) -> PartResources:
    """Return the resources of the tasks of a model of some parts."""
    return PartResources(resources.budget, resources.folder, resources.threads(parts), parts == 1)


class Estimation:
    """The steps after counting.

    limit       the words of a limited vocabulary; None: it is not limited
    vocabulary  the handle of the `Vocabulary`, which has `symbols` words
    split       words whose trigrams and longer n-grams are assigned by the word before them
    """

    def __init__(
        self,
        config: EstimateConfig,
        options: EstimateOptions,
        limit: Words | None,
        resources: Resources,
        vocabulary: Handle,
        symbols: int,
        split: Sequence[int] = (),
    ):
        self.config, self.options, self.resources = config, options, resources
        self.executor, self.budget, self.folder = resources.executor, resources.budget, resources.folder
        self.vocabulary, self.symbols = vocabulary, symbols
        self.split = tuple(split) if options.order > 2 else ()
        self.seconds: list[dict[str, float]] = []
        self.tokens = 0  # of the text, set by `finish`
        self.bad = None if limit is None else self.executor.call(words_outside, vocabulary, limit, self.budget.device)

    def part(self, pieces: Sequence[Handle | SortedRun], shard: int, parts: int) -> Handle:
        """Call the task that sums the share of all runs in one shard of several, and adjusts its counts; return its
        handle.
        """
        return self.executor.call(
            make_part, pieces, shard, self.symbols, self.options, self.bad, self.split,
            part_resources(self.resources, parts),
            label=f"adjusting counts of part {shard}", affinity=shard,
        )  # fmt: skip

    def finish(self, parts: list[Handle]) -> tuple[Handle, Statistics]:
        """Return (the model's handle, its statistics); empties `parts`, so that each part is freed after use."""
        executor, device = self.executor, self.budget.device
        smoothing = self.options.smoothing
        lefts = [] if smoothing else [executor.call(_left_of, part) for part in parts]
        lefts = [h for i in range(ARITY) for h in reduce_tasks(executor, _add, lefts[i::ARITY], ARITY)]
        words = executor.call(count_words, lefts, self.vocabulary, self.options, self.bad, device)
        del lefts
        split_left = None
        if self.split and not smoothing:
            [split_left] = reduce_tasks(executor, _add, [executor.call(_split_left_of, p) for p in parts], ARITY)
        statistics, rules = self._rules(parts, words) if smoothing else self._statistics(parts, words, split_left)
        unigrams = executor.call(estimate_unigrams_of, words, rules[1], self.options)
        split_L = None
        if self.split:
            how = self.split, split_left, rules[2], unigrams, device
            found = [executor.call(split_probs_of, part, *how) for part in parts]
            split_L = executor.call(join_split, found, len(self.split) * self.symbols)
        made: list[Handle] = []
        shared = split_L, part_resources(self.resources, len(parts))
        self.resources.progress.start("estimate", len(parts), "parts")
        while parts:
            made.append(
                executor.call(
                    estimate_of, parts.pop(0), rules, unigrams, self.split, split_left, *shared,
                    label=f"estimating part {len(made)}",
                )
            )  # fmt: skip
        assembly = Assembly(self.resources, unigrams, self.vocabulary, self.symbols, self.options.order)
        model, seconds = assembly.assembled(made, self.config.collapse_values)
        self.seconds += seconds
        return model, statistics

    def _rules(self, parts: list[Handle], words: Handle) -> tuple[Statistics, dict[int, Any]]:
        """Return (the statistics, the rule of each order) of a smoothing of plain counts."""
        smoothing, orders = self.options.smoothing, range(1, self.options.order + 1)
        assert smoothing is not None
        asked = [self.executor.call(_report_of_words, words), *(self.executor.call(_report_of, p) for p in parts)]
        (of_words, _, self.tokens), *reports = self.executor.gather(asked)
        self.seconds += [seconds for *_, seconds in reports]
        events = self.symbols - 1 - smoothing.closed
        counts, sizes = {1: of_words}, {1: (events + 1, events + 1)}
        rules, used = dict[int, Any](), dict[int, Sequence[float]]()
        for n in orders:
            if n > 1:
                counts[n] = np.sum([c[n] for c, *_ in reports], axis=0).tolist()
                sizes[n] = tuple(np.sum([s[n] for _, s, _ in reports], axis=0).tolist())
            rules[n], used[n], warnings = smoothing.rule(n, counts[n], events, self.options.thresholds[n - 1])
            for warning in warnings:
                warn(warning)
        kept, total = ({n: size[i] for n, size in sizes.items()} for i in (0, 1))
        return Statistics(kept, total, counts, used, []), rules

    def _statistics(
        self, parts: list[Handle], words: Handle, split_left: Handle | None
    ) -> tuple[Statistics, dict[int, Any]]:
        """Return (the statistics, the discounts of each order) of a Kneser-Ney model."""
        call, orders = self.executor.call, range(2, self.options.order + 1)
        slips = not self.config.exact_discounts and self.options.order > 1
        # Call all tasks before waiting: one wait takes as long as a short task.
        asked = [call(_report_of_words, words), *(call(_report_of, part) for part in parts)]
        if slips:
            places = call(places_of, self.vocabulary)
            asked.append(call(last_word, self.vocabulary, words, places))
        if self.split:
            asked.append(call(count_counts, split_left, COUNTED))
        (of_words, size, self.tokens), *answers = self.executor.gather(asked)
        reports, answers = answers[: len(parts)], answers[len(parts) :]
        self.seconds += [seconds for *_, seconds in reports]
        counts = {1: np.array(of_words)} | {n: np.sum([c[n] for c, *_ in reports], axis=0) for n in orders}
        if self.split:
            counts[2] = counts[2] + answers[-1]
        if slips:
            for n, adjusted, raw in self._slipped(parts, places, answers[0], split_left):
                for count, change in (adjusted, -1), (raw, 1):
                    if 1 <= count <= COUNTED:
                        counts[n][count - 1] += change
        given = self.config.discount_fallback
        fallback = None if given is None else check_fallback(given)
        found = {n: discounts_of(n, c.tolist(), fallback) for n, c in counts.items()}
        sizes = {1: size} | {n: tuple(np.sum([s[n] for _, s, _ in reports], axis=0).tolist()) for n in orders}
        discounts = {n: discounts for n, (discounts, _) in found.items()}
        statistics = Statistics(
            {n: kept for n, (kept, _) in sizes.items()},
            {n: total for n, (_, total) in sizes.items()},
            {n: c.tolist() for n, c in counts.items()},
            dict[int, Sequence[float]](discounts),
            [n for n, (_, is_fallback) in found.items() if is_fallback],
        )
        return statistics, discounts

    def _slipped(
        self, parts: list[Handle], places: Handle, last: tuple[int, int, int], split_left: Handle | None
    ) -> list[tuple[int, int, int]]:
        """Return (order, adjusted count, raw count) of n-grams whose raw count lmplz uses in its counts of counts.

        These are the suffixes of the last n-gram, if n-grams are compared by lmplz's ids, last word first. `last`
        describes its last word.
        """
        executor, (word, adjusted, raw) = self.executor, last
        slipped, suffix, holders = [(1, adjusted, raw)], [word], list(parts)
        for n in range(2, self.options.order):
            found = executor.gather([executor.call(last_longer, part, suffix, places) for part in holders])
            _, first, adjusted, raw = max(found)
            if first <= START_ID:  # no word precedes <s>
                break
            if n > 2 or first not in self.split:
                holders = [holders[found.index(max(found))]]
            else:
                place = self.split.index(first) * self.symbols + word
                [adjusted] = executor.gather([executor.call(_at, split_left, place)])
            slipped.append((n, adjusted, raw))
            suffix = [first, *suffix]
        return slipped


def read_words(path: str | None, setting: str) -> Words | None:
    """Return <unk> and the words of a file, separated by white space; None without a file."""
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
        refuse_as_text(path, text[:HEAD_BYTES])
        return Words.of([b"<unk>", *sorted(set(text.split()))])
    except OSError as error:
        raise InputError(f"{setting} {path}: cannot be read ({error.strerror}); give a file of words") from None


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

    find  returns the tables of an order; called once for each
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


def _report_of(part: Part) -> tuple[dict[int, list[int]], dict[int, tuple[int, int]], dict[str, float]]:
    return part.counts_of_counts, part.sizes, part.seconds


def _left_of(part: Part) -> Any:
    return part.left_V


def _split_left_of(part: Part) -> Any:
    return part.split_left_L


def _at(vector: Any, place: int) -> int:
    return int(vector[place])


def _add(*vectors: Any) -> Any:
    """Return the sum, on the device of the first vector, or in host memory if that is full."""

    def add(device: str) -> Any:
        total = move_to(vectors[0], device).copy()
        for vector in vectors[1:]:
            total += move_to(vector, device)
        return total

    return on_device_or_host(add, device_of(vectors[0]))


def count_words(lefts: list[Any], vocabulary: Vocabulary, options: EstimateOptions, bad_V: Any, device: str) -> _Words:
    """Return the adjusted counts of single words, from each part's numbers of words before them."""
    counts_V = to_device(vocabulary.counts_V, device)
    left_V, smoothing = move_to(_add(*lefts), device) if lefts else counts_V, options.smoothing
    if smoothing:
        count_V, kept_V = plain_unigrams(counts_V, smoothing.closed)
    else:
        count_V, kept_V = adjust_unigrams(left_V, counts_V, options, bad_V)
    counted = count_counts(count_V, smoothing.counted(1) if smoothing else COUNTED)
    tokens = int(vocabulary.counts_V[len(SPECIALS) :].sum() + vocabulary.counts_V[UNK_ID])
    return _Words(count_V, kept_V, counted, (int(kept_V.sum()), len(kept_V)), tokens)


def _report_of_words(words: _Words) -> tuple[list[int], tuple[int, int], int]:
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
    """Return the probabilities and backoffs of a part; spill them."""
    budget, folder, threads, _ = resources
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
