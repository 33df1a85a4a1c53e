"""Compact distributions: the children and backoffs of each matched history instead of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import FILLED, without_filled
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

COMPACT_KIND = "compact distributions"
COMPACT_ARRAYS = ("first_HK", "end_HK", "backoff_HK", "word_C", "prob_C")


@dataclass(frozen=True, eq=False)
class CompactBlock:
    """The exact distributions of H histories from a model of order K + 1 and V words; NumPy.

    first_HK, end_HK  (H, K) uint32 or int64: the children of the last k + 1 words of a history are entries
                      first_HK[h, k] to end_HK[h, k] - 1 of word_C and prob_C
    word_C            (C,) uint32, rising within a history's children
    prob_C            (C,) float32, log10 P(word | history); several histories may share children
    backoff_HK        (H, K) float32, log10 of the backoff weight of the last k + 1 words; -0 if the model lacks them
    has_backoffs      whether the model has backoffs
    prob_V            (V,) float32, log10 probability of single words; None in a file and in transfer
    filled_F          (F,) as first_HK, rising: entries of n-grams that the trie has but the model lacks
                      (`core.ngrams.trie.Trie`); None if there are none
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
        """The order of the model."""
        return int(self.first_HK.shape[1]) + 1

    @property
    def size_bytes(self) -> int:
        """Bytes that are stored or sent."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of this block alone, by name."""
        filled = {} if self.filled_F is None else {FILLED: self.filled_F}
        return {name: getattr(self, name) for name in COMPACT_ARRAYS} | filled

    def with_words(self, prob_V: np.ndarray | None) -> CompactBlock:
        """Return the block with (or with None without) the probabilities of single words."""
        return replace(self, prob_V=prob_V)

    def stored(self) -> CompactBlock:
        """Return the block without filled-in n-grams."""
        if self.filled_F is None:
            return self
        first_HK, end_HK = (without_filled(self.filled_F, nodes) for nodes in (self.first_HK, self.end_HK))
        word_C, prob_C = (np.delete(array, self.filled_F) for array in (self.word_C, self.prob_C))
        return replace(self, first_HK=first_HK, end_HK=end_HK, word_C=word_C, prob_C=prob_C, filled_F=None)

    def parts(self, rows: int) -> Iterator[CompactBlock]:
        """Yield blocks of up to `rows` of the histories; they share their children."""
        for i in range(0, len(self), rows):
            ranges: dict[str, Any] = {name: getattr(self, name)[i : i + rows] for name in COMPACT_ARRAYS[:3]}
            yield replace(self, **ranges)


def save_compact(path: str | Path, block: CompactBlock, metadata: dict[str, Any] | None = None) -> int:
    """Write a block to a safetensors file; return its size in bytes. Raises RunError when the disk is full."""
    header = {**(metadata or {}), "kind": COMPACT_KIND, "has_backoffs": block.has_backoffs}
    return save_arrays(path, block.arrays(), header)


def load_compact(path: str | Path, prob_V: np.ndarray | None = None, verify: bool = True) -> CompactBlock:
    """Return the block of a file from `save_compact`, as views of a memory map.

    prob_V  log10 probabilities of single words, which the file does not hold
    verify  compare the checksums

    Raises InputError when the file is missing, damaged or of another kind.
    """
    arrays, metadata = load_arrays(path, verify)
    if metadata.get("kind") != COMPACT_KIND:
        found = metadata.get("kind") or "other arrays"
        raise InputError(f"{path} holds {found}, not {COMPACT_KIND}; give a file of a compact distribution")
    fields: dict[str, Any] = {name: arrays[name] for name in COMPACT_ARRAYS}
    return CompactBlock(**fields, has_backoffs=metadata["has_backoffs"], prob_V=prob_V, filled_F=arrays.get(FILLED))
