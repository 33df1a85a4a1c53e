"""Find the topics of documents with a trained model: shares of topics, and the likelihood of the documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mgpu_ngram.core.ahead import map_ahead
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.topic_model import TopicModel
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.lda.documents import to_bag
from mgpu_ngram.engine.lda.hold_out import hold_out
from mgpu_ngram.engine.lda.metrics import complete, document_ranges
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.lda.fold_in import FixedTopics, entries, fold_in, lay_out_rows
from mgpu_ngram.kernels.lda.layout import repeat
from mgpu_ngram.kernels.lda.plugin_likelihood import UNITS

TOKEN_TOPICS = 300e6  # tokens x topics that 2 CPU cores infer in a second, rounded down
T = TypeVar("T")


def cpu_seconds(tokens: float, num_topics: int) -> float:
    """Return the approximate seconds in which 2 CPU cores find the topics of this number of tokens."""
    return tokens * num_topics / TOKEN_TOPICS


class TopicFinder:
    """A topic model on a device, for any documents.

    threads  threads of a CPU, which share the documents
    """

    def __init__(self, model: TopicModel, device: str, threads: int = 1):
        self.model, self.device, self.threads = model, device, threads if device == "cpu" else 1
        self._topics = FixedTopics(*(to_device(array, device) for array in fixed_of(model)))

    @cached_property
    def _words(self) -> SparseWords:
        return SparseWords(*(to_device(array, self.device) for array in sparse_words(self.model)))

    def shares(self, bags: Bags, max_iter: int = 100, tol: float = 1e-3) -> Iterator[Any]:
        """Yield the shares of topics in consecutive documents, (d, Z) float32 on the device; each row sums to 1.

        max_iter, tol  as for `fold_in`

        Documents are folded in (see `fold_in`). A row depends on its document alone, not on the cut into blocks; a
        document without words has the shares of the topics' priors.
        """

        def share(first: int, part: Bags) -> Any:
            theta_DZ = fold_in(to_bag(part, self.device), self._topics, max_iter, tol)
            return (theta_DZ / row_sums(theta_DZ)).astype(np.float32)

        yield from self._each_part(share, bags)

    def completion(
        self, bags: Bags, seed: int, first: int = 0, max_iter: int = 100, tol: float = 1e-3
    ) -> tuple[float, int]:
        """Return (sum of ln p of the target tokens, their number) by document completion: see `engine.lda.metrics`.

        seed   of the random numbers that make each token observed or a target
        first  number of document 0
        max_iter, tol  as for `fold_in`
        """

        def sums(start: int, part: Bags) -> tuple[int, int]:
            return complete(self._words.shares, self._topics, hold_out(part, first + start, 1.0, seed), max_iter, tol)

        found = list(self._each_part(sums, bags))
        return sum(units for units, _ in found) / UNITS, sum(tokens for _, tokens in found)

    def _each_part(self, fn: Callable[[int, Bags], T], bags: Bags) -> Iterator[T]:
        """Yield fn(number of the first document, documents) of parts of the documents, in order."""
        ranges = document_ranges(bags.documents, self.model.num_topics, self.device, self.threads)

        def work(ends: tuple[int, int]) -> T:
            return fn(ends[0], bags.slice(*ends))

        if self.threads == 1 or len(ranges) < 2:
            yield from map(work, ranges)
            return
        with ThreadPoolExecutor(self.threads) as pool:  # kernels release the GIL
            yield from map_ahead(pool, work, ranges, 2 * self.threads)


class SparseWords(NamedTuple):
    """The topics of each word, without topics that have no tokens of the word.

    starts_V1  (V + 1,) int64: word v has the entries starts_V1[v] to starts_V1[v + 1] - 1
    topics_N   (N,) uint16, rising within a word
    weights_N  (N,) uint32 or float32: tokens of the word with the topic, plus the excess of its own prior over beta
    inverse_Z  (Z,) float32: 1 / (tokens of a topic + sum of its word priors)
    floor_Z    (Z,) float64, the probability of a word without tokens of the topic
    """

    starts_V1: Any
    topics_N: Any
    weights_N: Any
    inverse_Z: Any
    floor_Z: Any

    def shares(self, word_P: Any) -> Any:
        """Return (P, Z) float64: the probability of words in each topic."""
        xp, first_P = array_module(word_P), self.starts_V1[word_P]
        size_P = self.starts_V1[word_P + 1] - first_P
        row_N = repeat(xp.arange(len(word_P)), size_P)
        entry_N = xp.arange(len(row_N)) + repeat(first_P - (xp.cumsum(size_P) - size_P), size_P)
        topic_N = self.topics_N[entry_N].astype(np.int64)
        phi_PZ = xp.zeros((len(word_P), len(self.floor_Z))) + self.floor_Z
        phi_PZ[row_N, topic_N] += self.weights_N[entry_N] * self.inverse_Z[topic_N].astype(np.float64)
        return phi_PZ


def sparse_words(model: TopicModel) -> SparseWords:
    """Return the topics of words in host memory, without a dense array. A seed word has all topics."""
    priors, starts_V1, topics_N, weights_N = model.priors, model.word_starts_V1, model.topics_N, model.counts_N
    inverse_Z = (1 / (model.totals_Z() + priors.sums_Z(model.num_words))).astype(np.float32)
    if priors.seeds:
        sizes_V, topics, weights, done = np.diff(starts_V1), [], [], 0
        for word in sorted(priors.seeds):
            first, end = starts_V1[word : word + 2].tolist()
            own_Z = priors.seeds[word] - np.float32(priors.beta)
            own_Z[topics_N[first:end]] += weights_N[first:end].astype(np.float32)
            topics += [topics_N[done:first], np.arange(len(own_Z), dtype=np.uint16)]
            weights += [weights_N[done:first].astype(np.float32), own_Z]
            sizes_V[word], done = len(own_Z), end
        topics_N = np.concatenate([*topics, topics_N[done:]])
        weights_N = np.concatenate([*weights, weights_N[done:].astype(np.float32)])
        starts_V1 = np.concatenate([[0], np.cumsum(sizes_V)])
    return SparseWords(starts_V1, topics_N, weights_N, inverse_Z, priors.beta * inverse_Z.astype(np.float64))


def fixed_of(model: TopicModel) -> FixedTopics:
    """Return the probabilities of words in topics, in host memory, as `fixed_topics` does; without a dense array."""
    words, alpha_Z = sparse_words(model), model.priors.alpha_Z.astype(np.float32)
    shares_N = words.weights_N.astype(np.float32) * words.inverse_Z[words.topics_N]
    words_N = np.repeat(np.arange(model.num_words), np.diff(words.starts_V1))
    floor_Z = np.float32(model.priors.beta) * words.inverse_Z
    entries_N = entries(words_N, words.topics_N, shares_N)
    return FixedTopics(*lay_out_rows(words.starts_V1, entries_N, len(alpha_Z)), floor_Z, alpha_Z)


def row_sums(values_DZ: Any) -> Any:
    """Return (D, 1) float64. The order of each sum depends on Z alone, so all devices give the same bits."""
    sums_DZ = values_DZ.astype(np.float64)
    while (Z := sums_DZ.shape[1]) > 1:
        half = (Z + 1) // 2
        sums_DZ[:, : Z - half] += sums_DZ[:, half:]
        sums_DZ = sums_DZ[:, :half]
    return sums_DZ


def to_csr(blocks: Iterable[Any], threshold: float, num_topics: int) -> Any:
    """Return the shares that are at least the threshold as a CSR matrix (D, Z), of SciPy or, if they are CuPy's, cupyx.

    blocks  (d, Z) float32 of consecutive documents

    Raises InputError if SciPy is not installed.
    """
    xp: Any = np
    parts: list[tuple[Any, Any, Any]] = []
    for shares_DZ in blocks:
        xp = array_module(shares_DZ)
        large_DZ = shares_DZ >= threshold
        documents_N, topics_N = xp.nonzero(large_DZ)
        parts.append((large_DZ.sum(1, dtype=np.int64), topics_N.astype(np.int32), shares_DZ[documents_N, topics_N]))
    none = xp.zeros(0, np.int64), xp.zeros(0, np.int32), xp.zeros(0, np.float32)
    lengths_D, topics_N, shares_N = (xp.concatenate(column) for column in zip(none, *parts, strict=True))
    starts_D1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(lengths_D)])
    if xp is not np:
        from cupyx.scipy.sparse import csr_matrix as csr
    else:
        try:
            from scipy.sparse import csr_array as csr
        except ImportError:
            raise InputError("a sparse result needs SciPy, which is not installed; pip install scipy") from None
    return csr((shares_N, topics_N, starts_D1), shape=(len(lengths_D), num_topics))
