"""The steps on all workers from counted n-grams to the estimated parts of one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.cluster.executor import Handle, reduce_tasks
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.ngrams.kneser_ney_discounts import check_fallback, discounts_of
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.file_heads import HEAD_BYTES, refuse_as_text
from mgpu_ngram.core.utf8 import without_mark
from mgpu_ngram.engine.estimate.adjusted_counts import MAX_COUNTED, LastNgram
from mgpu_ngram.engine.estimate.part import EstimateOptions
from mgpu_ngram.jobs.estimate.assemble import Assembly, Resources
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.tasks import (
    PartReport,
    PartResources,
    add_splits,
    all_split_left,
    join_split,
    last_of,
    left_of,
    report_of,
    split_left_of,
    split_probs_of,
    totals_of,
)
from mgpu_ngram.jobs.estimate.word_tasks import (
    ReportOfWords,
    add_vectors,
    adjust_words,
    counts_of_last,
    element_at,
    estimate_unigrams_of,
    last_word,
    report_of_words,
    words_outside,
)
from mgpu_ngram.kernels.estimate.count_counts import count_counts

Estimate = Callable[[tuple[Any, ...]], list[Handle]]

SUM_ARITY = 8  # vectors over the vocabulary that one task sums


@dataclass(frozen=True)
class Statistics:
    """The statistics of an estimate, by order.

    kept, total       numbers of n-grams in the model, and before pruning
    counts_of_counts  numbers of n-grams with count 1, 2, ..., from which discounts are computed; for Kneser-Ney, with
                      adjusted count 1, 2, 3, 4
    discounts         Kneser-Ney: of adjusted counts 1, 2, and 3 or more; absolute: one; additive: delta; Good-Turing:
                      the coefficients of counts 1, 2, ...; Witten-Bell: none
    fallback          orders with fallback discounts, because theirs could not be computed
    """

    kept: dict[int, int]
    total: dict[int, int]
    counts_of_counts: dict[int, list[int]]
    discounts: dict[int, Sequence[float]]
    fallback: list[int]


def part_resources(resources: Resources, parts: int) -> PartResources:
    """Return the resources of the tasks of a model with this number of parts."""
    return PartResources(resources.budget, resources.folder, parts == 1)


class Estimation:
    """The steps after counting.

    limit       the words of a limited vocabulary; None: the vocabulary is not limited
    vocabulary  the handle of the `Vocabulary`, which has `symbols` words
    split       words whose trigrams and longer n-grams are assigned to parts by the word before them

    Tasks that adjust the counts of parts take `bad`, the words outside a limited vocabulary, and `last`, the last word
    of the text if lmplz's slip depends on it.
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
        self.resumed_chunks = self.resumed_parts = 0  # of `EstimateResult`
        self.bad = None if limit is None else self.executor.call(words_outside, vocabulary, limit, self.budget.device)
        slips = not options.smoothing and not config.exact_discounts and options.order > 1
        self.last = self.executor.call(last_word, vocabulary) if slips else None

    def finish(self, parts: list[Handle], estimate: Estimate) -> tuple[Handle, Statistics]:
        """Return (the model's handle, its statistics).

        parts     handles of the only part, or of `CountedParts`; emptied
        estimate  estimate(arguments) calls the tasks that estimate the parts, with `arguments` behind their own, waits
                  for them, and returns their handles
        """
        executor, device = self.executor, self.budget.device
        smoothing = self.options.smoothing
        totals = [executor.call(totals_of, part, colocate_with=part) for part in parts]
        lefts = [] if smoothing else [executor.call(left_of, of_part) for of_part in totals]
        by_turns = (lefts[i::SUM_ARITY] for i in range(SUM_ARITY))
        lefts = [h for some in by_turns for h in reduce_tasks(executor, add_vectors, some, SUM_ARITY)]
        words = executor.call(adjust_words, lefts, self.vocabulary, self.options, self.bad, device)
        del lefts
        split_left = None
        if self.split and not smoothing:
            split_lefts = [executor.call(split_left_of, of_part) for of_part in totals]
            [summed] = reduce_tasks(executor, partial(add_splits, device=device), split_lefts, SUM_ARITY)
            split_left = executor.call(all_split_left, summed, len(self.split) * self.symbols, self.budget)
        statistics, rules = self._rules(totals, words) if smoothing else self._statistics(totals, words, split_left)
        del totals
        unigrams = executor.call(estimate_unigrams_of, words, rules[1], self.options)
        split_L = None
        if self.split:
            how = self.split, split_left, rules[2], unigrams, device
            found = [executor.call(split_probs_of, part, *how, colocate_with=part) for part in parts]
            split_L = executor.call(join_split, found, len(self.split) * self.symbols, self.budget)
            del found, how
        parts.clear()
        made = estimate((rules, unigrams, split_left, split_L))
        del words, split_left, split_L  # vectors over the vocabulary
        assembly = Assembly(self.resources, unigrams, self.vocabulary, self.symbols, self.options, self.split)
        model, seconds = assembly.assembled(made)
        self.seconds += seconds
        return model, statistics

    def _rules(self, totals: Sequence[Handle], words: Handle) -> tuple[Statistics, dict[int, Any]]:
        """Return (the statistics, the rule of each order) of a smoothing of plain counts."""
        smoothing, orders = self.options.smoothing, range(1, self.options.order + 1)
        assert smoothing is not None
        asked = [self.executor.call(report_of_words, words), *(self.executor.call(report_of, p) for p in totals)]
        of_words, *reports = self.executor.gather(asked)
        self._note(of_words, reports)
        events = self.symbols - 1 - smoothing.closed
        counts, sizes = {1: of_words.counts_of_counts}, {1: (events + 1, events + 1)}
        rules, used = dict[int, Any](), dict[int, Sequence[float]]()
        for n in orders:
            if n > 1:
                counts[n] = np.sum([report.counts_of_counts[n] for report in reports], axis=0).tolist()
                sizes[n] = tuple(np.sum([report.sizes[n] for report in reports], axis=0).tolist())
            rules[n], used[n], warnings = smoothing.rule(n, counts[n], events, self.options.thresholds[n - 1])
            for warning in warnings:
                warn(warning)
        kept, total = ({n: size[i] for n, size in sizes.items()} for i in (0, 1))
        return Statistics(kept, total, counts, used, []), rules

    def _note(self, of_words: ReportOfWords, reports: Sequence[PartReport]) -> None:
        """Keep tokens and seconds of reports."""
        self.tokens = of_words.tokens
        self.seconds += [report.seconds for report in reports]

    def _statistics(
        self, totals: Sequence[Handle], words: Handle, split_left: Handle | None
    ) -> tuple[Statistics, dict[int, Any]]:
        """Return (the statistics, the discounts of each order) of a Kneser-Ney model."""
        call, orders = self.executor.call, range(2, self.options.order + 1)
        # Call all tasks before waiting: one wait takes as long as a short task.
        asked = [call(report_of_words, words), *(call(report_of, part) for part in totals)]
        if self.split:
            asked.append(call(count_counts, split_left, MAX_COUNTED))
        if self.last is not None:
            asked.append(call(counts_of_last, self.vocabulary, words, self.last))
            asked += [call(last_of, part) for part in totals]
        of_words, *answers = self.executor.gather(asked)
        reports, answers = answers[: len(totals)], answers[len(totals) :]
        self._note(of_words, reports)
        counts = {n: np.sum([report.counts_of_counts[n] for report in reports], axis=0) for n in orders}
        counts = {1: np.array(of_words.counts_of_counts)} | counts
        if self.split:
            counts[2] = counts[2] + answers.pop(0)
        if self.last is not None:
            for n, adjusted, raw in self._slipped(*answers, split_left=split_left):
                for count, change in (adjusted, -1), (raw, 1):
                    if 1 <= count <= MAX_COUNTED:
                        counts[n][count - 1] += change
        given = self.config.discount_fallback
        fallback = None if given is None else check_fallback(given)
        found = {n: discounts_of(n, c.tolist(), fallback) for n, c in counts.items()}
        sizes = {n: tuple(np.sum([report.sizes[n] for report in reports], axis=0).tolist()) for n in orders}
        sizes = {1: of_words.size} | sizes
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
        self, word: tuple[int, int, int], *of_parts: dict[int, list[LastNgram]], split_left: Handle | None
    ) -> list[tuple[int, int, int]]:
        """Return (order, adjusted count, raw count) of n-grams whose raw count lmplz uses in its counts of counts.

        These are the suffixes of the last n-gram, if n-grams are compared by lmplz's ids, last word first.

        word      the last word, its adjusted count and its raw count
        of_parts  `Part.last` of each part
        """
        last, adjusted, raw = word
        found = max((ngrams[-1] for ngrams in of_parts), default=[])  # in one part, up to a split bigram
        if found and found[0].first in self.split:
            first = found[0].first
            place = self.split.index(first) * self.symbols + last
            [of_bigram] = self.executor.gather([self.executor.call(element_at, split_left, place)])
            found = [found[0]._replace(adjusted=of_bigram), *max(ngrams[first] for ngrams in of_parts)]
        return [(1, adjusted, raw), *((n, ngram.adjusted, ngram.raw) for n, ngram in enumerate(found, 2))]


def read_word_file(path: str | None, setting: str) -> Words | None:
    """Return <unk> and the words of a file, separated by white space or NULs; None without a file."""
    if path is None:
        return None
    try:
        text = without_mark(Path(path).read_bytes())
        refuse_as_text(path, text[:HEAD_BYTES])
        return Words.of([b"<unk>", *sorted(set(text.replace(b"\0", b" ").split()))])
    except OSError as error:
        raise InputError(f"{setting} {path}: cannot be read ({error.strerror}); give a file of words") from None
