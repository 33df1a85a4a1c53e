"""Tries of words spelled in the characters of the labels: the lexicon of an n-gram model, and hot words."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.states.ctc_tokens import Alphabet
from mgpu_ngram.engine.states.string_trie import StringTrie, make_string_trie
from mgpu_ngram.kernels.ctc.search_arrays import HotWords, LexiconTrie
from mgpu_ngram.kernels.ctc.search_beams import edges_of_trie
from mgpu_ngram.kernels.trie.edges import EdgeTable

MARKERS = ("<unk>", "<s>", "</s>")
UNKNOWN_WORD = -1  # value in word_G: ~0, the unknown word
NO_LENGTH = np.iinfo(np.int64).max


def _trie_of(strings: list[str], alphabet: Alphabet) -> StringTrie:
    """Return the trie of sorted strings, in which chr(s) stands for symbol s; its first nodes are all symbols."""
    data = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)
    lengths_S = np.array([len(string) for string in strings], np.int64)
    return make_string_trie(data, np.cumsum(lengths_S) - lengths_S, lengths_S, len(alphabet.symbols))


def _edges(trie: StringTrie, marked_G: np.ndarray) -> EdgeTable:
    first_child_G1 = np.searchsorted(trie.parent_G, np.arange(len(trie.parent_G) + 1)).astype(np.uint32)
    return edges_of_trie(trie.symbol_G, first_child_G1, marked_G)


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


def make_lexicon(alphabet: Alphabet, words: Words | None, known: Collection[str] | None) -> LexiconTrie:
    """Return the trie of a model's words, in host memory.

    words  None: no words
    known  words that do not count as unknown; None: all. If none of the model's words is among them, the end of a word
           is not checked against them, but all prefixes count as unknown
    """
    spell = _Speller(alphabet)
    ids = {} if words is None else {word: v for v, word in enumerate(words) if word not in MARKERS}
    listed = ids.keys() if known is None else known & ids.keys()
    found: dict[str, tuple[int, int]] = {}  # (word or UNKNOWN_WORD, 0 if a known word begins so)
    for word, v in ids.items():
        spelling, is_whole = spell(word)
        if spelling:
            before = found.get(spelling, (UNKNOWN_WORD, 1))
            code = before[0] if not is_whole else v if word in listed or not listed else ~v
            found[spelling] = code, min(before[1], int(word not in listed))
    strings = sorted(found)
    trie = _trie_of(strings, alphabet)
    pairs = np.array([found[string] for string in strings], np.int64).reshape(-1, 2)
    word_G = np.full(len(trie.symbol_G), UNKNOWN_WORD, np.int32)
    word_G[trie.node_S] = pairs[:, 0]
    return LexiconTrie(_edges(trie, trie.least(pairs[:, 1], NO_LENGTH) == 0), word_G)


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
    least_G = trie.least(np.array([lengths[string] for string in strings], np.int64), NO_LENGTH)
    is_hot_G, whole_G = least_G < NO_LENGTH, np.zeros(len(least_G), np.uint8)
    whole_G[trie.node_S[np.array([string in whole for string in strings], bool)]] = 1
    score_G = np.where(is_hot_G, weight * trie.depth_G / np.where(is_hot_G, least_G, 1), 0.0)
    return HotWords(_edges(trie, is_hot_G), score_G, whole_G, weight)
