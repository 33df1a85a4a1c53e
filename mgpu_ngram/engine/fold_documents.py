"""Topics of documents by a trained model: shares of topics, and how probable the documents are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.ahead import map_ahead
from mgpu_ngram.core.bags import Bags
from mgpu_ngram.core.topic_model import TopicModel
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.lda import word_topics
from mgpu_ngram.engine.lda_blocks import to_bag
from mgpu_ngram.engine.lda_metrics import UNITS, complete, hold_out
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.lda.fold_in import fixed_topics, fold_in

BLOCK_WEIGHTS = {"cpu": 1 << 20, "gpu": 1 << 26}  # weights of topics in documents that are computed at once
T = TypeVar("T")


class TopicFinder:
    """A topic model on a device, for any documents. The counts of its words are (V, Z) uint32 there.

    threads  of a CPU, each with documents of its own
    """

    def __init__(self, model: TopicModel, device: str, threads: int = 1):
        self.model, self.device, self.threads = model, device, threads if device == "cpu" else 1
        self._words = word_topics(to_device(model.counts_VZ(), device), model.priors)
        self._topics = fixed_topics(self._words)

    def shares(self, bags: Bags) -> Iterator[Any]:
        """Yield the shares of topics in consecutive documents, (d, Z) float32 on the device; each row sums to 1.

        Documents are folded in (see `fold_in`). A row depends on its document alone, not on the cut into blocks; a
        document without words has the shares of the topics' priors.
        """

        def share(first: int, part: Bags) -> Any:
            theta_DZ = fold_in(to_bag(part, self.device), self._topics)
            return (theta_DZ / row_sums(theta_DZ)).astype(np.float32)

        yield from self._each_part(share, bags)

    def completion(self, bags: Bags, seed: int, first: int = 0) -> tuple[float, int]:
        """Return (sum of ln p of the target tokens, their number) by document completion: see `lda_metrics`.

        seed   of the random numbers that make each token observed or a target
        first  number of document 0
        """

        def sums(start: int, part: Bags) -> tuple[int, int]:
            _, halves = hold_out(part, first + start, 1.0, seed)
            return complete(self._words, self._topics, halves)

        found = list(self._each_part(sums, bags))
        return sum(units for units, _ in found) / UNITS, sum(tokens for _, tokens in found)

    def _each_part(self, fn: Callable[[int, Bags], T], bags: Bags) -> Iterator[T]:
        """Yield fn(number of the first document, documents) of parts of the documents, in order."""
        most = max(1, BLOCK_WEIGHTS[self.device] // self.model.num_topics)
        step = max(1, min(most, -(-bags.documents // (4 * self.threads)) if self.threads > 1 else most))
        firsts = range(0, bags.documents, step)

        def work(first: int) -> T:
            return fn(first, bags.slice(first, min(first + step, bags.documents)))

        if self.threads == 1 or len(firsts) < 2:
            yield from map(work, firsts)
            return
        with ThreadPoolExecutor(self.threads) as pool:  # kernels release the GIL
            yield from map_ahead(pool, work, firsts, 2 * self.threads)


def row_sums(values_DZ: Any) -> Any:
    """Return (D, 1) float64. The order of each sum depends on Z alone, so all devices give the same bits."""
    sums_DZ = values_DZ.astype(np.float64)
    while (Z := sums_DZ.shape[1]) > 1:
        half = (Z + 1) // 2
        sums_DZ[:, : Z - half] += sums_DZ[:, half:]
        sums_DZ = sums_DZ[:, :half]
    return sums_DZ


def to_sparse(shares_DZ: Any, threshold: float) -> tuple[Any, Any, Any]:
    """Return (starts_D1 int64, topics_N int32, shares_N) of the shares that are at least the threshold, CSR."""
    xp = array_module(shares_DZ)
    documents_N, topics_N = xp.nonzero(shares_DZ >= threshold)
    starts_D1 = xp.searchsorted(documents_N, xp.arange(len(shares_DZ) + 1))
    return starts_D1, topics_N.astype(np.int32), shares_DZ[documents_N, topics_N]
