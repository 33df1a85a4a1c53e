"""Topics of documents by a trained model: shares of topics, and how probable the documents are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.ahead import map_ahead
from mgpu_ngram.core.bags import Bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.topic_model import TopicModel
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.held_out import hold_out
from mgpu_ngram.engine.lda import word_topics
from mgpu_ngram.engine.lda_blocks import to_bag
from mgpu_ngram.engine.lda_metrics import UNITS, complete, document_ranges
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.lda.fold_in import FixedTopics, entries, fixed_topics, fold_in
from mgpu_ngram.kernels.lda.weights import WordTopics

TOKEN_TOPICS = 300e6  # tokens x topics that 2 CPU cores infer in a second, rounded down
T = TypeVar("T")


def cpu_seconds(tokens: float, num_topics: int) -> float:
    """Return the approximate seconds in which 2 CPU cores find the topics of this number of tokens."""
    return tokens * num_topics / TOKEN_TOPICS


class TopicFinder:
    """A topic model on a device, for any documents.

    threads  of a CPU, each with documents of its own
    """

    def __init__(self, model: TopicModel, device: str, threads: int = 1):
        self.model, self.device, self.threads = model, device, threads if device == "cpu" else 1
        self._topics = FixedTopics(*(to_device(array, device) for array in fixed_of(model)))

    @cached_property
    def _words(self) -> WordTopics:
        return word_topics(to_device(self.model.counts_VZ(), self.device), self.model.priors)

    def shares(self, bags: Bags, max_iter: int = 100, tol: float = 1e-3) -> Iterator[Any]:
        """Yield the shares of topics in consecutive documents, (d, Z) float32 on the device; each row sums to 1.

        max_iter, tol  as of `fold_in`

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
        """Return (sum of ln p of the target tokens, their number) by document completion: see `lda_metrics`.

        seed   of the random numbers that make each token observed or a target
        first  number of document 0
        max_iter, tol  as of `fold_in`
        """

        def sums(start: int, part: Bags) -> tuple[int, int]:
            return complete(self._words, self._topics, hold_out(part, first + start, 1.0, seed), max_iter, tol)

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


def fixed_of(model: TopicModel) -> FixedTopics:
    """Return the probabilities of words in topics, in host memory, as `fixed_topics` does; without a dense array."""
    priors = model.priors
    if priors.seeds:
        return fixed_topics(word_topics(model.counts_VZ(), priors))
    inverse_Z = (1 / (model.totals_Z() + priors.sums_Z(model.num_words))).astype(np.float32)
    shares_N = model.counts_N.astype(np.float32) * inverse_Z[model.topics_N]
    floor_Z, alpha_Z = np.float32(priors.beta) * inverse_Z, priors.alpha_Z.astype(np.float32)
    words_N = np.repeat(np.arange(model.num_words), np.diff(model.word_starts_V1))
    return FixedTopics(model.word_starts_V1, entries(words_N, model.topics_N, shares_N), floor_Z, alpha_Z)


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
