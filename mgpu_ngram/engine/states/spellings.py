"""The words of a model by their spelling: a trie of prefixes, and the words that begin with each prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from mgpu_ngram.core.counts.arrow_numbers import numbers_from_arrow
from mgpu_ngram.core.counts.vocabulary import SPECIALS, words_to_arrow
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.copies import to_device_together
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.states.string_trie import make_string_trie
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.trie.last_words import TokenPieces, last_words
from mgpu_ngram.kernels.trie.walk_spellings import SpellingTrie, walk_spellings

EncodedTexts = tuple[Any, Any]  # offsets_T (T + 1,) int64 and data uint8, on a device


class Spellings:
    """A trie of the W words of a model without <unk>, <s> and </s>, with a node for each prefix; node 0 is empty.

    The nodes are 0 to M - 1; node M stands for all texts that are not a prefix of a word.

    ids_W     (W,) int64, words by rising bytes
    first_M   (M + 1,) int32: words first_M[m] to end_M[m] - 1 in this order begin with node m
    end_M     (M + 1,) int32
    word_M    (M + 1,) int32, the word that equals node m; 0, <unk>, if no word does
    """

    def __init__(self, words: Words, device: str):
        ids_W = numbers_from_arrow(pc.array_sort_indices(words_to_arrow(words.offsets_V, words.data))).astype(np.int64)
        ids_W = ids_W[~np.isin(ids_W, [0, *map(words.id, SPECIALS)])]
        trie = make_string_trie(words.data, words.offsets_V[ids_W], np.diff(words.offsets_V)[ids_W])
        nodes, W = 1 + len(trie.symbol_G), len(ids_W)
        word_M = np.zeros(nodes + 1, np.int32)
        word_M[1 + trie.node_S] = ids_W
        byte_M = np.append(np.uint8(0), trie.symbol_G)
        first_child_M = 1 + np.searchsorted(trie.parent_G, np.arange(-1, nodes))
        first_M, end_M = (np.concatenate([[root], of_G, [0]]) for root, of_G in ((0, trie.first_G), (W, trie.end_G)))
        ranges = [array.astype(np.int32) for array in (first_M, end_M)]
        made = to_device_together([byte_M, first_child_M.astype(np.int32), ids_W, *ranges, word_M], device)
        self.device, self.nodes = device, nodes
        self._trie = SpellingTrie(*made[:2])
        self.ids_W, self.first_M, self.end_M, self.word_M = made[2:]

    def walk(self, nodes_R: Any, texts: EncodedTexts) -> Any:
        """Return the node of each text after each node, (R, T) int32."""
        return walk_spellings(self._trie, nodes_R, *texts)

    def walk_from_root(self, texts: EncodedTexts) -> Any:
        """Return the node of each text, (T,) int32."""
        return self.walk(array_module(self.ids_W).zeros(1, np.int32), texts)[0]

    def last_words(self, pieces: TokenPieces, tokens_BT: Any, lengths_B: Any, words: int) -> Any:
        """Return the nodes of the last words of texts of tokens; see `last_words` of the kernels."""
        return last_words(self._trie, pieces, tokens_BT, lengths_B, words)

    def texts(self, texts: Sequence[bytes]) -> EncodedTexts:
        """Return texts in the form that `walk` takes."""
        offsets_T = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        data = np.frombuffer(bytearray().join(texts), np.uint8)  # writable, or Numba would compile the walk again
        return to_device(offsets_T, self.device), to_device(data, self.device)
