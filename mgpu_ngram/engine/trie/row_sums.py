"""Check that the probabilities of a model sum to 1: of all words, and after a sample of its contexts."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.dispatch import array_module

SAMPLED = 64  # contexts of each order
MAX_CHILDREN = 1000  # of a context that is checked; each costs some searches
TOLERANCE = 1e-3  # float32 logarithms, and masses below 3e-6 that SRILM takes for 0, stay far below


def words_sum_to_one(trie: Trie, words: Words) -> bool:
    """Return whether the probabilities of single words sum to 1, without <s>."""
    return abs(_sum_of_words(trie, words) - 1) < TOLERANCE


def check_row_sums(trie: Trie, words: Words) -> None:
    """Raise RunError if the probabilities of single words, or those after a sampled context, do not sum to 1.

    trie  in host memory, without codes, with backoffs
    """
    _refuse("of single words", _sum_of_words(trie, words))
    for n in range(1, trie.order):
        begin, end = trie.starts[n - 1 : n + 1]
        for node in np.unique(np.linspace(begin, end - 1, SAMPLED).astype(np.int64)) if end > begin else ():
            first, last = (int(child) for child in trie.first_child_M[node : node + 2])
            if first < last <= first + MAX_CHILDREN:
                shorter = [_prob(trie, _suffix(trie, n, int(node)), n - 1, int(w)) for w in trie.word_G[first:last]]
                total = _power(trie.prob_G[first:last]).sum() + _power(trie.backoff_M[node]) * (1 - sum(shorter))
                _refuse(f"after {_spelled(trie, words, n, int(node))!r}", float(total))


def _refuse(where: str, total: float) -> None:
    if not abs(total - 1) < TOLERANCE:  # also for nan
        raise RunError(
            f"the probabilities {where} sum to {total:.6g} instead of 1, so no model is written; this is a fault of "
            "mgpu_ngram: report it with the command and its input"
        )


def _sum_of_words(trie: Trie, words: Words) -> float:
    prob_V = _power(trie.prob_G[: trie.symbols])
    return float(prob_V.sum()) - float(prob_V[words.id("<s>")]) * (words.id("<s>") > 0)


def _power(log10: Any) -> Any:
    return array_module(log10).power(10.0, log10.astype(np.float64))


def _suffix(trie: Trie, n: int, node: int) -> int:
    """Return the node without the first word of a node of order n below the highest; -1 for none."""
    if n == 1:
        return -1
    return int(trie.word_G[node] if n == 2 else trie.suffix_L[node - trie.starts[2]])


def _prob(trie: Trie, node: int, n: int, word: int) -> float:
    """Return P(word | the words of a node of order n)."""
    if node < 0:
        return float(_power(trie.prob_G[word]))
    first, last = (int(child) for child in trie.first_child_M[node : node + 2])
    at = first + int(np.searchsorted(trie.word_G[first:last], word))
    if at < last and trie.word_G[at] == word:
        return float(_power(trie.prob_G[at]))
    return float(_power(trie.backoff_M[node])) * _prob(trie, _suffix(trie, n, node), n - 1, word)


def _spelled(trie: Trie, words: Words, n: int, node: int) -> str:
    found: list[str] = []
    for k in range(n, 0, -1):
        found.append(words.word(int(trie.word_G[node])))
        if k > 1:
            begin, end = trie.starts[k - 2 : k]
            node = begin + int(np.searchsorted(trie.first_child_M[begin:end], node, "right")) - 1
    return " ".join(reversed(found))
