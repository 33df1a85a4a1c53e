"""Distributions without their rows: the children of each matched history, and its backoff; in host memory or a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.arrays import load_arrays, save_arrays
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.trie import FILLED, without_filled

KIND = "compact distributions"
ARRAYS = ("first_HK", "end_HK", "backoff_HK", "word_C", "prob_C")


@dataclass(frozen=True, eq=False)
class CompactBlock:
    """The distributions of H histories after a model of order K + 1 and V words, exact; NumPy.

    first_HK, end_HK  (H, K) uint32 or int64: the children of the last k + 1 words of a history are entries
                      first_HK[h, k] to end_HK[h, k] - 1 of
    word_C            (C,) uint32, rising within a history's children, and
    prob_C            (C,) float32, log10 P(word | history); histories of several rows may share their children
    backoff_HK        (H, K) float32, log10 of the backoff weight of the last k + 1 words; -0 where they are no history
    has_backoffs      whether the model has them
    prob_V            (V,) float32, log10 probability of single words; None in a file and on the way
    filled_F          (F,) as first_HK, rising: entries of n-grams that the model itself does not store, but the trie
                      has (`core.trie.Trie`); None: there are none
    """

    first_HK: np.ndarray
    end_HK: np.ndarray
    backoff_HK: np.ndarray
    word_C: np.ndarray
    prob_C: np.ndarray
    has_backoffs: bool = True
    prob_V: np.ndarray | None = None
    filled_F: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.first_HK)

    @property
    def order(self) -> int:
        """That of the model."""
        return self.first_HK.shape[1] + 1

    @property
    def size_bytes(self) -> int:
        """Of what is stored or sent."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, np.ndarray]:
        """Those of this block alone, by name."""
        filled = {} if self.filled_F is None else {FILLED: self.filled_F}
        return {name: getattr(self, name) for name in ARRAYS} | filled

    def with_words(self, prob_V: np.ndarray | None) -> CompactBlock:
        """The block with the probabilities of single words, or without them."""
        return replace(self, prob_V=prob_V)

    def stored(self) -> CompactBlock:
        """The block without n-grams that were filled in."""
        if self.filled_F is None:
            return self
        first_HK, end_HK = (without_filled(self.filled_F, nodes) for nodes in (self.first_HK, self.end_HK))
        word_C, prob_C = (np.delete(array, self.filled_F) for array in (self.word_C, self.prob_C))
        return replace(self, first_HK=first_HK, end_HK=end_HK, word_C=word_C, prob_C=prob_C, filled_F=None)

    def parts(self, rows: int) -> Iterator[CompactBlock]:
        """The same histories, some at a time; they share their children."""
        for i in range(0, len(self), rows):
            ranges: dict[str, Any] = {name: getattr(self, name)[i : i + rows] for name in ARRAYS[:3]}
            yield replace(self, **ranges)


def save_compact(path: str | Path, block: CompactBlock, metadata: dict[str, Any] | None = None) -> int:
    """Write a block to a safetensors file; return its bytes. Raises RunError when the disk is full."""
    return save_arrays(path, block.arrays(), {**(metadata or {}), "kind": KIND, "has_backoffs": block.has_backoffs})


def load_compact(path: str | Path, prob_V: np.ndarray | None = None, verify: bool = True) -> CompactBlock:
    """The block of a file that `save_compact` wrote: views of a memory map.

    prob_V  what the file does not hold
    verify  compare the checksums

    Raises InputError when the file is missing, damaged or of another kind.
    """
    arrays, metadata = load_arrays(path, verify)
    if metadata.get("kind") != KIND:
        raise InputError(f"{path} holds no {KIND} but {metadata.get('kind') or 'other arrays'}; give another file")
    fields: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
    return CompactBlock(**fields, has_backoffs=metadata["has_backoffs"], prob_V=prob_V, filled_F=arrays.get(FILLED))
