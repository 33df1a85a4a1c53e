"""Restrict a model to the n-grams of given words, as KenLM's `filter` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.corpus import open_corpus
from mgpu_ngram.core.trie import Trie
from mgpu_ngram.core.word_list import whole_text
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.backoff_nodes import Nodes, nodes_of, subtrie
from mgpu_ngram.engine.device import device_of, to_device
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.score.find_codes import find_codes

LINES = 64  # lines whose words are bits of one number


@dataclass(frozen=True)
class AllowedWords:
    """The words of a text that a model has, in host memory.

    pairs_P2  (P, 2) int64: line, word id; sorted, each pair once
    always_V  (V,) bool: words in angle brackets, such as <s>, belong to every line
    """

    pairs_P2: np.ndarray
    always_V: np.ndarray


def read_allowed(path: str, words: Words) -> AllowedWords:
    """Return the words of a text file, plain or compressed, between the white space of C's isspace."""
    text_B = np.frombuffer(whole_text(open_corpus([path])), np.uint8)
    codes_T = find_codes(text_B, find_tokens(text_B, isspace=True), words.slots_C, words.offsets_V, words.data)
    lines_T = np.cumsum(codes_T == 0)
    filled = codes_T > 0
    pairs_P2 = np.unique(np.stack([lines_T[filled], codes_T[filled].astype(np.int64) - 1], axis=1), axis=0)
    first, last = words.offsets_V[:-1], words.offsets_V[1:] - 1
    spelled = np.append(words.data, np.uint8(0))  # an empty word at the end reads a byte after it
    return AllowedWords(pairs_P2, (spelled[first] == ord("<")) & (spelled[last] == ord(">")) & (last > first))


def restrict(trie: Trie, words: Words, allowed: AllowedWords, mode: str) -> tuple[Trie, Words]:
    """Return the part of a model whose n-grams are allowed, with the same probabilities and backoffs, and its words.

    trie  not quantised, with backoffs
    mode  "single": all words of an n-gram are in the text; "union": in one line of it

    After a history, the probabilities of the words that stay may sum to less than 1, as with KenLM's `filter`.
    """
    nodes = nodes_of(trie)
    passes_G = _in_text(nodes, allowed) if mode == "single" else _in_one_line(nodes, allowed)
    nodes.listed_G &= passes_G
    kept_V = to_host(passes_G[: trie.symbols])
    return subtrie(nodes, trie.prob_G, trie.backoff_M, trie.fanout), words.kept(kept_V)


def _in_text(nodes: Nodes, allowed: AllowedWords) -> Any:
    allowed_V = allowed.always_V.copy()
    allowed_V[allowed.pairs_P2[:, 1]] = True
    return _and_of_words(nodes, to_device(allowed_V, device_of(nodes.word_G)))


def _in_one_line(nodes: Nodes, allowed: AllowedWords) -> Any:
    lines_P, words_P = allowed.pairs_P2.T
    passes_G = array_module(nodes.word_G).zeros(len(nodes.word_G), bool)
    for first in range(0, max(1, int(lines_P[-1]) + 1 if len(lines_P) else 1), LINES):
        begin, end = np.searchsorted(lines_P, [first, first + LINES])
        bits_V = np.where(allowed.always_V, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0))
        bits_P = np.uint64(1) << (lines_P[begin:end] - first).astype(np.uint64)
        np.bitwise_or.at(bits_V, words_P[begin:end], bits_P)
        passes_G |= _and_of_words(nodes, to_device(bits_V, device_of(nodes.word_G))) != 0
    return passes_G


def _and_of_words(nodes: Nodes, values_V: Any) -> Any:
    """Return (G,) the bitwise and of the values of each n-gram's words."""
    values_G = values_V[nodes.word_G]
    for n in range(2, nodes.order + 1):
        level = nodes.level(n)
        values_G[level] &= values_G[nodes.parent_G[level]]
    return values_G
