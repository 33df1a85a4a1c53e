"""Restrict a model to the n-grams of given words, as KenLM's `filter` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.inputs.read_text import read_list
from mgpu_ngram.core.ngrams.phrases import Phrases
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.model_tools.backoff_nodes import BackoffNodes, nodes_of, subtrie
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.score.find_codes import find_codes

LINES_AT_ONCE = 64  # lines whose words are bits of one number
BEGIN_TAG, END_TAG = ord("<"), ord(">")


@dataclass(frozen=True)
class AllowedWords:
    """The words of a text that a model has, in host memory.

    pairs_P2  (P, 2) int64: line, word id; sorted, each pair once
    always_V  (V,) bool: words in angle brackets, such as <s>, belong to every line
    lines     number of lines
    phrases   phrases of each line; None: n-grams need not fit into phrases
    end       the word </s>
    """

    pairs_P2: np.ndarray
    always_V: np.ndarray
    lines: int = 1
    phrases: list[Phrases] | None = None
    end: int = 2

    def some(self, first: int, last: int) -> AllowedWords:
        """Return the words of lines `first` to `last` - 1, numbered from 0."""
        begin, end = np.searchsorted(self.pairs_P2[:, 0], [first, last])
        pairs_P2 = self.pairs_P2[begin:end] - np.array([first, 0])
        phrases = None if self.phrases is None else self.phrases[first:last]
        return replace(self, pairs_P2=pairs_P2, lines=last - first, phrases=phrases)


def read_allowed(path: str, words: Words, phrases: bool = False) -> AllowedWords:
    """Return the words of a text file, plain or compressed, separated by the white space of C's isspace.

    phrases  each line holds phrases, separated by tabs
    """
    text = read_list(path)
    text_B = np.frombuffer(text, np.uint8)
    codes_T = find_codes(text_B, find_tokens(text_B, isspace=True), words.slots_C, words.offsets_V, words.data)
    lines_T = np.cumsum(codes_T == 0)
    filled = codes_T > 0
    pairs_P2 = np.unique(np.stack([lines_T[filled], codes_T[filled].astype(np.int64) - 1], axis=1), axis=0)
    first, last = words.offsets_V[:-1], words.offsets_V[1:] - 1
    spelled = np.append(words.data, np.uint8(0))  # an empty word at the end reads a byte after it
    always_V = (spelled[first] == BEGIN_TAG) & (spelled[last] == END_TAG) & (last > first)
    found = None
    if phrases:
        found = [Phrases([_ids(phrase, words) for phrase in line.split(b"\t")]) for line in text.split(b"\n")[:-1]]
    return AllowedWords(pairs_P2, always_V, int((codes_T == 0).sum()), found, words.id("</s>"))


def _ids(phrase: bytes, words: Words) -> list[int]:
    """Return the ids of a phrase's words; -1 for words that the model lacks."""
    return [words.id(word) if word in words else -1 for word in phrase.split()]


def restrict(trie: Trie, words: Words, allowed: AllowedWords, mode: str, context: bool = False) -> tuple[Trie, Words]:
    """Return the part of a model whose n-grams are allowed, with the same probabilities and backoffs, and its words.

    trie     not quantised, with backoffs
    mode     "single": all words of an n-gram are in the text; "union": in one line of it
    context  the last word of an n-gram may be any word

    After a history, the probabilities of the kept words may sum to less than 1, as with KenLM's `filter`.
    """
    return restricted(nodes_of(trie), trie, words, allowed, mode, context)


def restricted(
    nodes: BackoffNodes, trie: Trie, words: Words, allowed: AllowedWords, mode: str, context: bool = False
) -> tuple[Trie, Words]:
    """Like `restrict`, from the nodes of the trie; does not change them."""
    passes_G = _in_text(nodes, allowed) if mode == "single" else _in_one_line(nodes, allowed)
    if context:
        passes_G[nodes.starts[1] :] = passes_G[nodes.parent_G[nodes.starts[1] :]]
        passes_G[: nodes.starts[1]] = True
    kept = replace(nodes, listed_G=nodes.listed_G & passes_G)
    kept_V = to_host(passes_G[: trie.symbols])
    return subtrie(kept, trie.prob_G, trie.backoff_M, trie.fanout), words.kept(kept_V)


def by_line(
    nodes: BackoffNodes, trie: Trie, words: Words, allowed: AllowedWords, context: bool = False
) -> Iterator[tuple[Trie, Words]]:
    """Yield the part of a model that each line allows, as `restrict` with the mode union."""
    for first in range(0, allowed.lines, LINES_AT_ONCE):
        some = allowed.some(first, min(first + LINES_AT_ONCE, allowed.lines))
        small, few = restricted(nodes, trie, words, replace(some, phrases=None), "union", context)
        of_small, small_nodes = _renumbered(some, words, few), nodes_of(small)
        for line in range(some.lines):
            yield restricted(small_nodes, small, few, of_small.some(line, line + 1), "union", context)


def _renumbered(allowed: AllowedWords, words: Words, few: Words) -> AllowedWords:
    """Return allowed words by their ids among a few words of the model."""
    id_V = few.ids(words.offsets_V, words.data).astype(np.int64)
    kept_P = (id_V[allowed.pairs_P2[:, 1]] > 0) | (allowed.pairs_P2[:, 1] == 0)
    pairs_P2 = allowed.pairs_P2[kept_P].copy()
    pairs_P2[:, 1] = id_V[pairs_P2[:, 1]]
    always_V = np.zeros(len(few), bool)
    always_V[id_V[allowed.always_V]] = True
    phrases = None
    if allowed.phrases is not None:
        new = [*id_V.tolist(), -1]
        phrases = [Phrases([[new[w] for w in phrase] for phrase in line.wholes]) for line in allowed.phrases]
    return AllowedWords(pairs_P2, always_V, allowed.lines, phrases, few.id("</s>"))


def _in_text(nodes: BackoffNodes, allowed: AllowedWords) -> Any:
    allowed_V = allowed.always_V.copy()
    allowed_V[allowed.pairs_P2[:, 1]] = True
    return _and_of_words(nodes, to_device(allowed_V, device_of(nodes.word_G)))


def _in_one_line(nodes: BackoffNodes, allowed: AllowedWords) -> Any:
    lines_P, words_P = allowed.pairs_P2.T
    passes_G = array_module(nodes.word_G).zeros(len(nodes.word_G), bool)
    for first in range(0, max(1, allowed.lines), LINES_AT_ONCE):
        begin, end = np.searchsorted(lines_P, [first, first + LINES_AT_ONCE])
        bits_V = np.where(allowed.always_V, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0))
        bits_P = np.uint64(1) << (lines_P[begin:end] - first).astype(np.uint64)
        np.bitwise_or.at(bits_V, words_P[begin:end], bits_P)
        bits_G = _and_of_words(nodes, to_device(bits_V, device_of(nodes.word_G)))
        if allowed.phrases is None:
            passes_G |= bits_G != 0
            continue
        # An n-gram whose words are all exempt passes in every line, even if the list has no line.
        for line, phrases in enumerate(allowed.phrases[first : first + LINES_AT_ONCE] or [Phrases([])]):
            candidates = array_module(bits_G).flatnonzero(bits_G & np.uint64(1 << line))
            ids = _spelled(nodes, candidates)
            kept = [phrases.allow(_counted(gram, allowed)) for gram in ids]
            passes_G[candidates[to_device(np.array(kept, bool), device_of(bits_G))]] = True
    return passes_G


def _counted(ngram: tuple[int, ...], allowed: AllowedWords) -> tuple[int, ...]:
    """Return the words of an n-gram that must be in phrases: no leading tag, neither </s> nor the words after it."""
    words = ngram[1:] if allowed.always_V[ngram[0]] else ngram
    return words[: words.index(allowed.end)] if allowed.end in words else words


def _spelled(nodes: BackoffNodes, wanted: Any) -> list[tuple[int, ...]]:
    """Return the words of some nodes, from the first one on."""
    columns, node = [], wanted
    while len(node) and int(node.max()) >= 0:
        inside = node >= 0
        columns.append(to_host(array_module(node).where(inside, nodes.word_G[node].astype(np.int64), -1)))
        node = array_module(node).where(inside, nodes.parent_G[node], -1)
    if not columns:
        return []
    return [tuple(w for w in row if w >= 0) for row in np.stack(columns[::-1], axis=1).tolist()]


def _and_of_words(nodes: BackoffNodes, values_V: Any) -> Any:
    """Return (G,) the bitwise and of the values of each n-gram's words."""
    values_G = values_V[nodes.word_G]
    for n in range(2, nodes.order + 1):
        level = nodes.level(n)
        values_G[level] &= values_G[nodes.parent_G[level]]
    return values_G
