"""Words drawn from distributions, beside the rate at which the device reads at random."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.machine_rates import READ_BYTES, SECTORS, random_reads
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.harness.units import NGRAMS_PER_SECOND, WORDS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGEST, SHAPES, Case, DistributionBench
from mgpu_ngram.benchmarks.inputs.plain_distributions import nodes_of, row_of
from mgpu_ngram.core.counts.vocabulary import START_ID
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.engine.distribution.sample_words import WordSampler
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.distribution.sum_children import sum_children

DRAWN = {"gpu": 1_000_000, "cpu": 2_000}  # words
BEST, SHARE, WARM = 50, 0.9, 0.7  # words, a share of the probability, a temperature
TARGET = 10e6  # words a second on an H200, of all words and of the best
NODE_BYTES = 12  # a sum and a word
FEWEST = 10  # expected draws of a word that chi-square counts alone; others are pooled
MAX_DEVIATIONS = 6  # standard deviations of chi-square


def sampling(bench: DistributionBench) -> None:
    """Rows: sums of weights; words drawn of all, of the best, of a share, at a temperature, and after one history."""
    case, suite = bench.case(SHAPES[LARGEST]), bench.suite
    suite.say(f"sampling, V = {case.symbols:,}")
    H, trie = min(DRAWN[suite.device], len(case.subject.text_T)), case.subject.trie
    found, sizes, sampler = case.find_first(H), case.sizes(H), WordSampler(case.model)
    sums = partial(sum_children, trie.prob_G, trie.word_G, trie.first_child_M, 1.0, START_ID)
    suite.run("distribution/sums of weights", case.subject.model_sizes, sums, items=len(trie), unit=NGRAMS_PER_SECOND)
    ceiling = random_reads(suite, SECTORS, NODE_BYTES * len(trie)) if suite.device == "gpu" else ""

    def run(what: str, found: FoundHistories, check: Any = None, target: float | None = None, **settings: Any) -> None:
        draw = partial(sampler.sample, found, 0, 1, **settings)
        suite.run(
            f"distribution/words drawn {what}", sizes, draw,
            check=check or partial(check_drawn, case), items=H, unit=WORDS_PER_SECOND, target=target,
            bytes_moved=None if "top_k" in settings or "top_p" in settings else READ_BYTES[SECTORS] * lookups(found),
            ceiling=ceiling,
        )  # fmt: skip

    run("of all", found, target=bench.target(TARGET))
    run(f"of all, temperature {WARM}", found, temperature=WARM)
    run(f"of the best {BEST}", found, target=bench.target(TARGET), top_k=BEST)
    run(f"of a share of {SHARE}", found, top_p=SHARE)
    one = int(case.longest_history()[0])
    repeated = FoundHistories(*(suite.xp.repeat(array, H, 0) for array in case.find(suite.xp.array([one])).arrays))
    run("after one history", repeated, check=partial(check_shares, probabilities(case, one)))


def lookups(found: FoundHistories) -> int:
    """Return the least random reads that drawing a word of each history takes.

    They are the sum of each level (all words are one), the sum and the word of the child that is drawn, and a word of
    the longer history.
    """
    levels = int((found.end_HK > found.first_HK).sum())
    return levels + 4 * len(found.first_HK)


def probabilities(case: Case, position: int) -> np.ndarray:
    """Return (V,) float64 by array code: the probability of each word at a position of the text, 0 for <s>."""
    node_K = nodes_of(case, position + 1)[position]
    row = 10.0 ** to_host(row_of(case.subject.trie, node_K.tolist(), "smoothed")[-1]).astype(np.float64)
    row[START_ID] = 0
    return row / row.sum()


def check_drawn(case: Case, id_H: Any) -> None:
    """Raise WrongResult unless words are of the vocabulary, and none is <s>."""
    wrong = int(((id_H < 0) | (id_H >= case.symbols) | (id_H == START_ID)).sum())
    if wrong:
        raise WrongResult(f"{wrong:,} of {len(id_H):,} words that were drawn are none, or <s>; not timed")


def check_shares(expected_V: np.ndarray, id_H: Any) -> None:
    """Raise WrongResult unless words come as often as their probabilities say: Pearson's chi-square."""
    seen_V = to_host(array_module(id_H).bincount(id_H, minlength=len(expected_V)))
    draws = len(id_H)
    wanted_V = draws * expected_V
    alone = wanted_V >= FEWEST
    seen, wanted = (np.append(a[alone], a[~alone].sum()) for a in (seen_V, wanted_V))
    terms = (seen - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]
    freedom = max(1, len(terms) - 1)
    if seen[wanted == 0].any() or terms.sum() > freedom + MAX_DEVIATIONS * np.sqrt(2 * freedom):
        raise WrongResult(
            f"chi-square of {draws:,} words that were drawn is {terms.sum():.1f}, of {freedom} degrees; not timed"
        )
