"""Tries of words as strings of an alphabet's symbols: the lexicon of an n-gram model, and hot words."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.ctc_tokens import Alphabet
from mgpu_ngram.kernels.ctc.search_beams import HotWords, Lexicon, edges_of_trie

MARKERS = ("<unk>", "<s>", "</s>")
NO_WORD = -1  # of word_G: ~0, the unknown word
LONGEST = np.iinfo(np.int64).max


class _Trie(NamedTuple):
    """A trie; its first nodes are all single symbols, then come those of two symbols, and so on.

    symbol_G        (G,) uint32
    parent_G        (G,) int64; -1 of single symbols
    first_child_G1  (G + 1,) uint32
    depth_G         (G,) int64: symbols
    end_S           (S,) int64: the node of each string
    """

    symbol_G: np.ndarray
    parent_G: np.ndarray
    first_child_G1: np.ndarray
    depth_G: np.ndarray
    end_S: np.ndarray

    def least(self, value_S: np.ndarray) -> np.ndarray:
        """Return the least value of the strings that begin with each node's, (G,) int64; LONGEST without one."""
        least_G = np.full(len(self.symbol_G), LONGEST)
        np.minimum.at(least_G, self.end_S, value_S)
        starts = np.searchsorted(self.depth_G, np.arange(1, self.depth_G[-1] + 2))
        for begin, end in zip(starts[-2:0:-1], starts[:1:-1], strict=True):
            np.minimum.at(least_G, self.parent_G[begin:end], least_G[begin:end])
        return least_G


def _trie_of(strings: list[str], alphabet: Alphabet) -> _Trie:
    """Return the trie of sorted strings, none empty, in which chr(s) stands for symbol s."""
    data = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)
    length_S = np.array([len(string) for string in strings], np.int64)
    offset_S, end_S = np.cumsum(length_S) - length_S, np.empty(len(strings), np.int64)
    C = len(alphabet.symbols)
    symbols, parents, depths = [np.arange(C, dtype=np.uint32)], [np.full(C, -1)], [np.ones(C, np.int64)]
    active, node, base = np.arange(len(strings)), data[offset_S].astype(np.int64), C
    for depth in range(1, int(length_S.max(initial=0)) + 1):
        end_S[active] = node
        longer = length_S[active] > depth
        active, parent = active[longer], node[longer]
        if not len(active):
            break
        symbol = data[offset_S[active] + depth]
        is_new = np.append(True, (parent[1:] != parent[:-1]) | (symbol[1:] != symbol[:-1]))
        node = base + np.cumsum(is_new) - 1
        symbols.append(symbol[is_new])
        parents.append(parent[is_new])
        depths.append(np.full(int(is_new.sum()), depth + 1))
        base += int(is_new.sum())
    parent_G = np.concatenate(parents)
    first_child_G1 = (C + np.searchsorted(parent_G[C:], np.arange(base + 1))).astype(np.uint32)
    return _Trie(np.concatenate(symbols), parent_G, first_child_G1, np.concatenate(depths), end_S)


class _Speller:
    """Spells words in an alphabet's symbols, up to the first character that the alphabet lacks."""

    def __init__(self, alphabet: Alphabet):
        self._of = {symbol: chr(s) for s, symbol in enumerate(alphabet.symbols)}

    def __call__(self, word: str) -> tuple[str, bool]:
        """Return (symbols, whether they are the whole word)."""
        try:
            return "".join([self._of[character] for character in word]), True
        except KeyError:
            made = ""
            for character in word:
                if character not in self._of:
                    break
                made += self._of[character]
            return made, False


def make_lexicon(alphabet: Alphabet, words: Words | None, known: Collection[str] | None) -> Lexicon:
    """Return the trie of a model's words, in host memory.

    words  None: no words
    known  those that do not count as unknown; None: all. If none of the model's words is among them, the end of a word
           is not judged by them, but all beginnings count as unknown
    """
    spell = _Speller(alphabet)
    ids = {} if words is None else {word: v for v, word in enumerate(words) if word not in MARKERS}
    listed = ids.keys() if known is None else known & ids.keys()
    found: dict[str, tuple[int, int]] = {}  # (word or NO_WORD, 0 if a known word begins so)
    for word, v in ids.items():
        spelling, is_whole = spell(word)
        if spelling:
            before = found.get(spelling, (NO_WORD, 1))
            code = before[0] if not is_whole else v if word in listed or not listed else ~v
            found[spelling] = code, min(before[1], int(word not in listed))
    strings = sorted(found)
    trie = _trie_of(strings, alphabet)
    pairs = np.array([found[string] for string in strings], np.int64).reshape(-1, 2)
    word_G = np.full(len(trie.symbol_G), NO_WORD, np.int32)
    word_G[trie.end_S] = pairs[:, 0]
    return Lexicon(edges_of_trie(trie.symbol_G, trie.first_child_G1, trie.least(pairs[:, 1]) == 0), word_G)


def make_hot_words(alphabet: Alphabet, phrases: Iterable[str], weight: float) -> HotWords:
    """Return the trie of the words of phrases, in host memory."""
    spell = _Speller(alphabet)
    lengths: dict[str, int] = {}  # of the shortest word that begins so
    whole = set()
    for word in " ".join(phrases).split():
        spelling, is_whole = spell(word)
        if spelling:
            lengths[spelling] = min(lengths.get(spelling, len(word)), len(word))
            if is_whole:
                whole.add(spelling)
    strings = sorted(lengths)
    trie = _trie_of(strings, alphabet)
    least_G = trie.least(np.array([lengths[string] for string in strings], np.int64))
    is_hot_G, whole_G = least_G < LONGEST, np.zeros(len(least_G), np.uint8)
    whole_G[trie.end_S[np.array([string in whole for string in strings], bool)]] = 1
    score_G = np.where(is_hot_G, weight * trie.depth_G / np.where(is_hot_G, least_G, 1), 0.0)
    return HotWords(edges_of_trie(trie.symbol_G, trie.first_child_G1, is_hot_G), score_G, whole_G, weight)
