"""Check that the probabilities of a model sum to 1: of all words, and after a sample of its contexts."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.trie.find_children import find_children

SAMPLED = 64  # contexts of each order
MAX_CHILDREN = 1000  # of a context that is checked; each costs some searches
LOG_OF_10 = float(np.log(10))
TOLERANCE = 1e-3  # float32 logarithms, and masses below 3e-6 that SRILM takes for 0, stay far below


def words_sum_to_one(trie: Trie, words: Words) -> bool:
    """Return whether the probabilities of single words sum to 1, without <s>."""
    return bool(_is_one(_sum_of_words(trie, words)))


def check_row_sums(trie: Trie, words: Words) -> None:
    """Raise RunError if the probabilities of single words, or those after a sampled context, do not sum to 1.

    trie  on any device, without codes, with backoffs
    """
    total = _sum_of_words(trie, words)
    if not _is_one(total):
        raise _fault("of single words", total)
    for n in range(1, trie.order):
        begin, end = trie.starts[n - 1 : n + 1]
        nodes_Q = np.unique(np.linspace(begin, end - 1, min(SAMPLED, end - begin)).astype(np.int64))
        first_Q, last_Q = (_taken(trie.first_child_M, nodes_Q + k).astype(np.int64) for k in (0, 1))
        checked_Q = (first_Q < last_Q) & (last_Q <= first_Q + MAX_CHILDREN)
        nodes_Q, first_Q, last_Q = nodes_Q[checked_Q], first_Q[checked_Q], last_Q[checked_Q]
        total_Q = _sums_after(trie, n, nodes_Q, first_Q, last_Q)
        for q in np.flatnonzero(~_is_one(total_Q)):
            raise _fault(f"after {_spelled(trie, words, n, int(nodes_Q[q]))!r}", float(total_Q[q]))


def _sums_after(trie: Trie, n: int, nodes_Q: Any, first_Q: Any, last_Q: Any) -> Any:
    """Return (Q,) float64, the sums of all probabilities after nodes of order n, whose children begin at first_Q and
    end before last_Q: those of the children, and the backoff weight's share of the other words.
    """
    size_Q = last_Q - first_Q
    row_R = np.repeat(np.arange(len(nodes_Q)), size_Q)
    child_R = np.arange(len(row_R)) + np.repeat(last_Q - np.cumsum(size_Q), size_Q)
    shorter_R = _probs(trie, _suffixes(trie, n, nodes_Q)[row_R], n - 1, _taken(trie.word_G, child_R))
    seen_R = _power(_taken(trie.prob_G, child_R))
    seen_Q, shorter_Q = (np.bincount(row_R, p_R, len(nodes_Q)) for p_R in (seen_R, shorter_R))
    return seen_Q + _power(_taken(trie.backoff_M, nodes_Q)) * (1 - shorter_Q)


def _taken(array: Any, index_Q: np.ndarray) -> np.ndarray:
    """Return the elements of an array of any device at places, in host memory.

    Only they are copied. All arithmetic is NumPy's, because the first run on a GPU would compile a program for each
    operation, for 5 s.
    """
    return to_host(array[array_module(array).asarray(index_Q)])


def _is_one(total: Any) -> Any:
    return np.abs(total - 1) < TOLERANCE  # not nan


def _fault(where: str, total: float) -> RunError:
    return RunError(
        f"the probabilities {where} sum to {total:.6g} instead of 1, so no model is written; this is a fault of "
        "mgpu_ngram: report it with the command and its input"
    )


def _sum_of_words(trie: Trie, words: Words) -> float:
    prob_V, start = _power(to_host(trie.prob_G[: trie.symbols])), words.find(b"<s>")
    return float(prob_V.sum()) - (float(prob_V[start]) if start else 0)


def _power(log10: Any) -> Any:
    return np.exp(log10.astype(np.float64) * LOG_OF_10)  # three times as fast as power(10, ...)


def _suffixes(trie: Trie, n: int, nodes_Q: Any) -> Any:
    """Return the nodes without the first word of nodes of order n, which is below the highest; -1 for single words."""
    if n == 1:
        return np.full(len(nodes_Q), -1)
    suffix_Q = _taken(trie.word_G, nodes_Q) if n == 2 else _taken(trie.suffix_L, nodes_Q - trie.starts[2])
    return suffix_Q.astype(np.int64)


def _probs(trie: Trie, nodes_R: Any, n: int, words_R: Any) -> Any:
    """Return (R,) float64, P(word | the words of a node of order n); order 0 has no words."""
    R, asarray = len(nodes_R), array_module(trie.word_G).asarray
    left_R: np.ndarray = np.arange(R)
    weight_R: np.ndarray = np.ones(R)
    prob_R = np.empty(R)
    index = (trie.word_G, trie.first_child_M, trie.samples, trie.sample_starts, trie.fanout)
    for k in range(n, 0, -1):
        child_R = to_host(find_children(*index, asarray(nodes_R), asarray(words_R)))
        is_found_R = child_R >= 0
        prob_R[left_R[is_found_R]] = weight_R[is_found_R] * _power(_taken(trie.prob_G, child_R[is_found_R]))
        left_R, words_R, weight_R, nodes_R = (array[~is_found_R] for array in (left_R, words_R, weight_R, nodes_R))
        weight_R = weight_R * _power(_taken(trie.backoff_M, nodes_R))
        nodes_R = _suffixes(trie, k, nodes_R)
    prob_R[left_R] = weight_R * _power(_taken(trie.prob_G, words_R))
    return prob_R


def _spelled(trie: Trie, words: Words, n: int, node: int) -> str:
    found: list[str] = []
    for k in range(n, 0, -1):
        found.append(words.word(int(trie.word_G[node])))
        if k > 1:
            begin, end = trie.starts[k - 2 : k]
            node = begin + int((trie.first_child_M[begin:end] <= node).sum()) - 1
    return " ".join(reversed(found))
