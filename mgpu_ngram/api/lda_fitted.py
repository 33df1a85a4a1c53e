"""A fitted topic model on the devices that its documents need: `LDA` applies it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from mgpu_ngram.cluster.devices import cpu_cores, resolve_device
from mgpu_ngram.cluster.placement import GPU_START_SECONDS
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.topic_model import TopicModel
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.lda.fold_in import TopicFinder, cpu_seconds
from mgpu_ngram.kernels.dispatch import to_host


def device_for(device: str, seconds: float) -> str:
    """Return the device for work of this many seconds of 2 CPU cores; "auto" opens no GPU for less than a second."""
    return "cpu" if device == "auto" and seconds < GPU_START_SECONDS else resolve_device(device)


class FittedModel:
    """A model and its device arrays, which are made at first use; a copy in another process makes them again."""

    def __init__(self, model: TopicModel):
        self.model = model
        self._finders: dict[str, TopicFinder] = {}

    @cached_property
    def components_ZV(self) -> np.ndarray:
        return self.model.pseudocounts_ZV()

    def shares(self, documents: BagCorpus, device: str, updates: tuple[int, float], is_open: bool) -> Iterator[Any]:
        """Yield the shares of topics in documents, (documents, topics) float32, block by block.

        updates  greatest number of iterations for a document, and the change at which it is finished
        is_open  whether the caller already uses the GPU; then blocks stay there
        """
        for bags in documents.blocks():
            for block in self._finder(bags, device, is_open).shares(bags, *updates):
                yield block if is_open else to_host(block)

    def completion(self, documents: BagCorpus, device: str, updates: tuple[int, float]) -> tuple[float, int]:
        """Return (log-likelihood of the target tokens, their number)."""
        seed, first, score, tokens = self.model.settings.get("seed", 0), 0, 0.0, 0
        for bags in documents.blocks():
            found = self._finder(bags, device).completion(bags, seed, first, *updates)
            score, tokens, first = score + found[0], tokens + found[1], first + bags.documents
        return score, tokens

    def _finder(self, bags: Bags, device: str, is_open: bool = False) -> TopicFinder:
        """Return the model on the device for these documents."""
        place = device_for(device, math.inf if is_open else cpu_seconds(bags.tokens, self.model.num_topics))
        if place not in self._finders:
            self._finders[place] = TopicFinder(self.model, place, cpu_cores())
        return self._finders[place]

    def __reduce__(self) -> tuple[Any, ...]:
        return FittedModel, (self.model,)
