"""Estimate the Dirichlet priors from the topics: Minka's fixed-point iteration over histograms of counts."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.topic_model import Priors
from mgpu_ngram.engine.lda.sweep import Group, Sampler, document_counts, numbers_of_counts
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.common.count_ids import count_ids
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.limits import MAX_ALPHA_SUM
from mgpu_ngram.kernels.lda.topic_totals import topic_totals

ITERATIONS = 20  # most iterations of one call
PRIOR_TOLERANCE = 1e-4  # relative change of a prior at which the iterations end
MIN_PRIOR = 1e-6  # prior of a topic without tokens
MAX_FITTED_SUM = MAX_ALPHA_SUM / 2  # sum of alpha: it grows without end when all documents have the same shares
EXACT_COUNTS = 256  # counts below it have bins of their own; above it, 128 bins share the counts between powers of 2
OCTAVE_BINS = EXACT_COUNTS // 2


def optimised(sampler: Sampler, group: Group, priors: Priors) -> Priors:
    """Return priors that fit the topics of all devices better: asymmetric alpha_Z, symmetric beta.

    Minka, "Estimating a Dirichlet distribution" (2000), equation 55. Words with special priors keep them and do
    not count for beta. Histograms are sums of integers, so the result is the same for any number of devices.
    """
    counts_ZB, lengths_B = _document_histograms(sampler, group)
    values_B = _bin_values(counts_ZB.shape[1])
    alpha_Z = _fixed_point(
        priors.alpha_Z,
        lambda alpha_Z: _digamma_sums(counts_ZB, values_B, alpha_Z),
        lambda alpha_Z: _digamma_sums(lengths_B[None], values_B, alpha_Z.sum()[None])[0],
    )
    alpha_Z = alpha_Z * min(1.0, MAX_FITTED_SUM / alpha_Z.sum())
    return Priors(alpha_Z, _optimised_beta(sampler, priors), priors.seeds)


def _optimised_beta(sampler: Sampler, priors: Priors) -> float:
    xp, seeds = array_module(sampler.counts_VZ), np.array([*priors.seeds], np.int64)
    plain = np.setdiff1d(np.arange(len(sampler.counts_VZ)), seeds)
    if not len(plain):
        return priors.beta
    counts, numbers = numbers_of_counts(sampler.counts_VZ, plain)
    totals_Z = to_host(topic_totals(sampler.counts_VZ) - topic_totals(sampler.counts_VZ[xp.asarray(seeds)]))
    V = len(plain)
    [beta] = _fixed_point(
        np.array([priors.beta]),
        lambda beta: (numbers * (_digamma(counts + beta) - _digamma(beta))).sum()[None],
        lambda beta: V * (_digamma(totals_Z + V * beta) - _digamma(V * beta)).sum(),
    )
    return float(beta)


def _fixed_point(prior: np.ndarray, above: Any, below: Any) -> np.ndarray:
    """Return prior, multiplied by above(prior) / below(prior) until it stays."""
    for _ in range(ITERATIONS):
        divisor = below(prior)
        if not divisor > 0:
            return prior
        new = np.maximum(prior * above(prior) / divisor, MIN_PRIOR)
        done = (abs(new - prior) <= PRIOR_TOLERANCE * new).all()
        prior = new
        if done:
            break
    return prior


def _document_histograms(sampler: Sampler, group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Return how many documents have a count in a bin: (Z, B) of each topic, and (B,) of all their tokens."""
    xp, Z = array_module(sampler.counts_VZ), sampler.num_topics
    longest = max([1, *(int(lengths_D.max(initial=1)) for lengths_D in sampler.blocks.lengths)])
    # Each device has a slot of its own, so that the sum of all is the list of all.
    longest_of = np.zeros(group.size, np.int64)
    longest_of[group.rank] = longest
    longest = int(group.all_reduce(to_device(longest_of, sampler.device)).max())
    B = int(_bins(np.array([longest]))[0]) + 1
    sums = xp.zeros((Z + 1) * B, np.int64)
    for block in sampler.blocks.loaded():
        lengths_D = block.documents.lengths_D.astype(np.int64)
        counts = (topic_E * B + _bins(count_E) for _, topic_E, count_E in document_counts(block, Z))
        for bins in chain(counts, [Z * B + _bins(lengths_D[lengths_D > 0])]):
            sums += count_ids(bins, (Z + 1) * B)
    histograms = to_host(group.all_reduce(sums)).reshape(Z + 1, B)
    return histograms[:Z], histograms[Z]


def _bins(counts: Any) -> Any:
    """Return the bin of each count, from 1 on."""
    xp = array_module(counts)
    bits = xp.frexp(counts.astype(np.float64))[1].astype(np.int64)
    shift = xp.maximum(bits - 8, 0)
    above = EXACT_COUNTS + (shift - 1) * OCTAVE_BINS + (counts >> shift) - OCTAVE_BINS
    return xp.where(counts < EXACT_COUNTS, counts, above)


def _bin_values(bins: int) -> np.ndarray:
    """Return the count in the middle of each bin."""
    above = np.arange(max(0, bins - EXACT_COUNTS))
    shift = 1 + above // OCTAVE_BINS
    middle = ((OCTAVE_BINS + above % OCTAVE_BINS) << shift) + (1 << shift) / 2 - 0.5
    return np.concatenate([np.arange(min(bins, EXACT_COUNTS), dtype=np.float64), middle])


def _digamma_sums(histogram_ZB: np.ndarray, values_B: np.ndarray, prior_Z: np.ndarray) -> np.ndarray:
    """Return the sum over documents of digamma(count + prior) - digamma(prior), for each topic."""
    rows, bins = np.nonzero(histogram_ZB)
    terms = histogram_ZB[rows, bins] * (_digamma(values_B[bins] + prior_Z[rows]) - _digamma(prior_Z)[rows])
    return np.bincount(rows, terms, minlength=len(histogram_ZB))


def _digamma(x: np.ndarray) -> np.ndarray:
    """Return digamma of numbers above 0: by recurrence from 6 on, where the asymptotic series has 13 digits."""
    x = np.asarray(x, np.float64)
    below = np.zeros_like(x)
    for _ in range(8):
        small = x < 8
        below = np.where(small, below - 1 / x, below)
        x = np.where(small, x + 1, x)
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132 - y * (691 / 32760 - y / 12))))))
    return below + np.log(x) - 0.5 / x - series
