"""The words of a model by their spelling: the beginnings of words, and the words that each may become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from mgpu_ngram.core.arrow_numbers import numbers_from_arrow
from mgpu_ngram.core.vocabulary import SPECIALS, words_to_arrow
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.device import to_device, to_device_together
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.trie.walk_spellings import SpellingTrie, walk_spellings

Texts = tuple[Any, Any]  # offsets_T (T + 1,) int64 and data uint8, on a device


class Spellings:
    """A trie of the W words of a model without <unk>, <s> and </s>, with a node for each beginning; node 0 is empty.

    Node M, of M, stands for all texts with which no word begins.

    ids_W     (W,) int64, words by rising bytes
    first_M   (M + 1,) int32: words first_M[m] to end_M[m] - 1 of that order begin as node m
    end_M     (M + 1,) int32
    word_M    (M + 1,) int32, the word that is node m; 0, <unk>, if none is
    """

    def __init__(self, words: Words, device: str):
        ids_W = numbers_from_arrow(pc.array_sort_indices(words_to_arrow(words.offsets_V, words.data))).astype(np.int64)
        ids_W = ids_W[~np.isin(ids_W, [0, *map(words.id, SPECIALS)])]
        starts_W, lengths_W = words.offsets_V[ids_W], np.diff(words.offsets_V)[ids_W]
        W = len(ids_W)
        # One level of nodes after the other: places of words that are long enough, and the node above each.
        at_W, above_W, nodes, depth = np.arange(W), np.zeros(W, np.int64), 1, 0
        levels = [(np.zeros(1, np.uint8), np.full(1, -1), np.zeros(1, np.int64), np.full(1, W), np.zeros(1, np.int64))]
        while len(at_W):
            bytes_W = words.data[starts_W[at_W] + depth]
            is_new = np.ones(len(at_W), bool)
            is_new[1:] = (above_W[1:] != above_W[:-1]) | (bytes_W[1:] != bytes_W[:-1])
            first_N = np.flatnonzero(is_new)
            last_N = np.append(first_N[1:], len(at_W)) - 1
            is_whole = lengths_W[at_W] == depth + 1  # the first of those that begin so
            word_N = np.where(is_whole[first_N], ids_W[at_W[first_N]], 0)
            levels.append((bytes_W[first_N], above_W[first_N], at_W[first_N], at_W[last_N] + 1, word_N))
            above_W = (nodes - 1 + np.cumsum(is_new))[~is_whole]
            at_W, nodes, depth = at_W[~is_whole], nodes + len(first_N), depth + 1
        byte_M, above_M, first_M, end_M, word_M = map(np.concatenate, zip(*levels, strict=True))
        first_child_M = 1 + np.searchsorted(above_M[1:], np.arange(nodes + 1))
        ranges = [np.append(array, 0).astype(np.int32) for array in (first_M, end_M, word_M)]
        made = to_device_together([byte_M, first_child_M.astype(np.int32), ids_W, *ranges], device)
        self.device, self.nodes = device, nodes
        self._trie = SpellingTrie(*made[:2])
        self.ids_W, self.first_M, self.end_M, self.word_M = made[2:]

    def walk(self, nodes_R: Any, texts: Texts) -> Any:
        """Return the node of each text after each node, (R, T) int32."""
        return walk_spellings(self._trie, nodes_R, *texts)

    def walk_from_root(self, texts: Texts) -> Any:
        """Return the node of each text, (T,) int32."""
        return self.walk(array_module(self.ids_W).zeros(1, np.int32), texts)[0]

    def texts(self, texts: Sequence[bytes]) -> Texts:
        """Return texts as `walk` takes them."""
        offsets_T = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        data = np.frombuffer(bytearray().join(texts), np.uint8)  # writable, or Numba would compile the walk again
        return to_device(offsets_T, self.device), to_device(data, self.device)
