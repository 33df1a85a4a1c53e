"""Metrics of topic models: likelihoods of the training tokens, and the perplexity of held-out documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.topic_model import Priors
from mgpu_ngram.engine.lda.blocks import in_threads
from mgpu_ngram.engine.lda.coherence import COHERENCE_MEASURES, PairCounts, WordPairs, count_pairs
from mgpu_ngram.engine.lda.documents import Block, strips, to_bag
from mgpu_ngram.engine.lda.hold_out import HeldOut
from mgpu_ngram.engine.lda.sweep import Group, Sampler, document_counts, merged, numbers_of_counts, total, word_topics
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.fold_in import FixedTopics, fixed_topics, fold_in
from mgpu_ngram.kernels.lda.layout import repeat
from mgpu_ngram.kernels.lda.plugin_likelihood import UNITS, plugin_likelihood
from mgpu_ngram.kernels.lda.topic_totals import topic_totals
from mgpu_ngram.kernels.lda.weights import WordTopics

TOP_WORDS = 10  # words with most tokens in a topic; their coherence is measured
BLOCK_WEIGHTS = {"cpu": 1 << 20, "gpu": 1 << 26}  # weights of topics in documents that are computed at once
TARGET_BLOCK = 1 << 22  # probabilities that are computed at once


def plugin(sampler: Sampler, group: Group, priors: Priors) -> float:
    """Return the plug-in log-likelihood, natural, of the tokens of all devices: see `plugin_likelihood`."""
    words = word_topics(sampler.counts_VZ, priors)
    sums = [
        sampler.each(plugin_likelihood, [(block.documents, pairs, words) for pairs in block.threads])
        for block in sampler.blocks.loaded()
    ]
    return total(sampler, group, sum(int(number[0]) for block in sums for number in block)) / UNITS


def joint(sampler: Sampler, group: Group, priors: Priors) -> float:
    """Return ln p(words, topics | priors) of the tokens of all devices, with theta and phi integrated out.

    Griffiths and Steyvers, "Finding scientific topics" (2004), equations 2 and 3, with asymmetric priors.
    """
    alpha_Z, V = priors.alpha_Z, len(sampler.counts_VZ)
    alpha, xp = float(alpha_Z.sum()), array_module(sampler.counts_VZ)
    keys, numbers_K, lengths, numbers_L = ([np.zeros(0, np.int64)] for _ in range(4))
    for block in sampler.blocks.loaded():
        for _, topic_E, count_E in document_counts(block, sampler.num_topics):
            _append(xp.unique(topic_E << 32 | count_E, return_counts=True), keys, numbers_K)
        _append(xp.unique(block.documents.lengths_D, return_counts=True), lengths, numbers_L)
    keys_N, numbers_N = merged(keys, numbers_K)
    topics_N, counts_N = keys_N >> 32, keys_N & 0xFFFFFFFF
    units = _units(numbers_N, _lgamma(counts_N + alpha_Z[topics_N]) - _lgamma(alpha_Z)[topics_N])
    lengths_N, numbers_N = merged(lengths, numbers_L)
    units += _units(numbers_N, math.lgamma(alpha) - _lgamma(lengths_N + alpha))
    result = total(sampler, group, units) / UNITS

    for word, own_Z in priors.seeds.items():
        prior_Z = own_Z.astype(np.float64)
        result += float((_lgamma(to_host(sampler.counts_VZ[word]) + prior_Z) - _lgamma(prior_Z)).sum())
    counts, numbers = numbers_of_counts(sampler.counts_VZ, np.setdiff1d(np.arange(V), [*priors.seeds]))
    result += float((numbers * (_lgamma(counts + priors.beta) - math.lgamma(priors.beta))).sum())
    sums_Z = priors.sums_Z(V)
    totals_Z = to_host(topic_totals(sampler.counts_VZ))
    return result + float((_lgamma(sums_Z) - _lgamma(totals_Z + sums_Z)).sum())


def _append(arrays: Sequence[Any], *lists: list[np.ndarray]) -> None:
    """Append each array, in host memory, to its list."""
    for array, of_array in zip(arrays, lists, strict=True):
        of_array.append(to_host(array))


def _units(numbers: np.ndarray, terms: np.ndarray) -> int:
    """Return the sum of numbers times terms in units of 1 / UNITS: the same for any division of documents."""
    return int((numbers * np.rint(terms * UNITS).astype(np.int64)).sum())


def _lgamma(values: np.ndarray) -> np.ndarray:
    """Return ln Gamma of each value."""
    return np.array([math.lgamma(x) for x in np.asarray(values, np.float64).ravel().tolist()]).reshape(np.shape(values))


def document_ranges(documents: int, num_topics: int, device: str, threads: int = 1) -> list[tuple[int, int]]:
    """Return (first, end) of the documents whose topics are computed at once; each thread gets several ranges."""
    most = max(1, BLOCK_WEIGHTS[device] // num_topics)
    step = most if threads == 1 else max(1, min(most, -(-documents // (4 * threads))))
    return [(d, min(d + step, documents)) for d in range(0, documents, step)]


def completion(counts_VZ: Any, priors: Priors, held_out: HeldOut, threads: int = 1) -> tuple[int, int]:
    """Return (sum of ln p of the target tokens in units of 1 / UNITS, their number), by document completion.

    Topics of a document are fitted to its observed half with `fold_in`. Wallach et al., "Evaluation methods for topic
    models" (2009), section 5.
    """
    words = word_topics(counts_VZ, priors)
    shares, topics = partial(word_shares, words), fixed_topics(words)
    device = "cpu" if isinstance(counts_VZ, np.ndarray) else "gpu"
    threads = threads if device == "cpu" else 1
    ranges = document_ranges(held_out.target.documents, len(priors.alpha_Z), device, threads)
    found = in_threads(threads, complete, [(shares, topics, held_out.slice(*ends)) for ends in ranges])
    return sum(units for units, _ in found), held_out.target.tokens


def complete(
    shares: Callable[[Any], Any], topics: FixedTopics, held_out: HeldOut, max_iter: int = 100, tol: float = 1e-3
) -> tuple[int, int]:
    """Return the same as `completion`, for all documents at once.

    shares         shares(word_P) returns (P, Z) float64, the probability of words in each topic
    topics         the same probabilities, rounded, for `fold_in`
    max_iter, tol  as for `fold_in`
    """
    target, xp = held_out.target, array_module(topics.floor_Z)
    theta_DZ = fold_in(to_bag(held_out.observed, "cpu" if xp is np else "gpu"), topics, max_iter, tol)
    theta_DZ = theta_DZ / theta_DZ.sum(1, keepdims=True, dtype=np.float64)
    document_P = np.repeat(np.arange(target.documents), np.diff(target.starts_D1))
    units, step = 0, max(1, TARGET_BLOCK // theta_DZ.shape[1])
    for p in range(0, target.pairs, step):
        phi_PZ = shares(xp.asarray(target.words_P[p : p + step].astype(np.int64)))
        p_P = to_host((phi_PZ * theta_DZ[xp.asarray(document_P[p : p + step])]).sum(1))
        units += int(np.rint(target.counts_P[p : p + step] * np.log(p_P) * UNITS).astype(np.int64).sum())
    return units, target.tokens


def word_shares(words: WordTopics, word_P: Any) -> Any:
    """Return (P, Z) float64: the probability of words in each topic."""
    xp = array_module(words.counts_VZ)
    beta_PZ: Any = words.beta
    if len(words.seeds_V):
        row_P = words.seeds_V[word_P]
        beta_PZ = xp.where(row_P[:, None] >= 0, words.beta_KZ[row_P].astype(np.float64), words.beta)
    return (words.counts_VZ[word_P] + beta_PZ) * words.inverse_Z.astype(np.float64)


def held_out_perplexity(sampler: Sampler, group: Group, priors: Priors, held_out: HeldOut) -> float:
    """Return the perplexity of the target tokens that all devices hold; NaN without any."""
    units, tokens = completion(sampler.counts_VZ, priors, held_out, sampler.threads)
    units, tokens = total(sampler, group, units), total(sampler, group, tokens)
    return math.exp(-units / UNITS / tokens) if tokens else math.nan


def coherences(sampler: Sampler, group: Group) -> dict[str, float]:
    """Return the mean over topics of each measure of `engine.lda.coherence`, over the documents of all devices."""
    words_Zn = most_frequent_words(sampler.counts_VZ, TOP_WORDS)
    pairs = WordPairs.of(words_Zn, len(sampler.counts_VZ))
    counts = PairCounts(0, np.zeros(len(pairs.words_U), np.int64), np.zeros(len(pairs.others_E), np.int64))
    for block in sampler.blocks.loaded():
        counts += count_pairs(_bags_of_words(block, pairs), pairs, sampler.threads)
    summed = np.concatenate([[counts.documents], counts.words_U, counts.pairs_E])
    summed = to_host(group.all_reduce(to_device(summed, sampler.device)))
    counts = PairCounts(int(summed[0]), *np.split(summed[1:], [len(pairs.words_U)]))
    return {name: float(measure(counts, pairs).mean()) for name, measure in COHERENCE_MEASURES.items()}


def most_frequent_words(counts_VZ: Any, n: int) -> np.ndarray:
    """Return (Z, n) int64: the words with most tokens of each topic, best first, ties by lower id; n is at most V."""
    xp = array_module(counts_VZ)
    left_VZ, topics = counts_VZ + np.uint32(1), xp.arange(counts_VZ.shape[1])
    found = []
    for _ in range(min(n, len(counts_VZ))):
        found.append(left_VZ.argmax(0))
        left_VZ[found[-1], topics] = 0
    return to_host(xp.stack(found, axis=1)).astype(np.int64)


def _bags_of_words(block: Block, pairs: WordPairs) -> Bags:
    """Return the documents of a block that have a word, with only the words of these pairs."""
    xp = array_module(block.pairs.document_P)
    slots_S3 = to_host(block.pairs.slots_S3)
    slots_S3 = slots_S3[np.isin(slots_S3[:, 0], pairs.words_U)]
    found = [np.zeros(0, np.int64)]
    for first, end in strips(slots_S3[:, 2] - slots_S3[:, 1]):
        word_S, first_S, end_S = (xp.asarray(column) for column in slots_S3[first:end].T)
        size_S = end_S - first_S
        before_S = xp.cumsum(size_S) - size_S
        places = xp.arange(int(size_S.sum())) + repeat(first_S - before_S, size_S)
        found.append(to_host(block.pairs.document_P[places].astype(np.int64) << 32 | repeat(word_S, size_S)))
    keys = np.unique(np.concatenate(found))  # a word has several pairs in a document where it is frequent
    documents = np.flatnonzero(to_host(block.documents.lengths_D))
    starts_D1 = np.append(np.searchsorted(keys >> 32, documents), len(keys))
    words_P = (keys & 0xFFFFFFFF).astype(np.uint32)
    return Bags(starts_D1, words_P, np.ones(len(words_P), np.uint32), pairs.num_words)
