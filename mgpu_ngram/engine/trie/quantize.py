"""Quantize the values of a trie to codes of 2 to 16 bits, as KenLM does: by bins of equal numbers of values."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.dispatch import array_module, to_host


def quantize(trie: Trie, bits: int) -> Trie:
    """Return the trie with codes of `bits` bits, 2 to 16, for log10 probabilities and backoffs from order 2 on.

    As in KenLM: the sorted values of each order are cut into bins of equal size, whose means are the centres. A value
    becomes the nearest centre; of two equally near ones, the higher. A backoff of 0 stays 0; KenLM reserves two codes
    for it.
    """
    xp = array_module(trie.word_G)
    code = np.dtype(np.uint8 if bits <= 8 else np.uint16)
    prob_G, backoff_M = xp.zeros(len(trie), code), xp.zeros(len(trie.backoff_M), code)
    centers = xp.zeros((trie.order - 1, 2, 1 << 8 * code.itemsize), np.float32)  # large enough for every code
    for (begin, end), (prob_centers, backoff_centers) in zip(pairwise(trie.starts[1:]), centers, strict=True):
        prob_G[begin:end] = _codes(trie.prob_G[begin:end], prob_centers[: 1 << bits]).astype(code)
        backoffs = trie.backoff_M[begin:end]
        nonzero = xp.flatnonzero(backoffs)
        backoff_M[begin + nonzero] = (2 + _codes(backoffs[nonzero], backoff_centers[2 : 1 << bits])).astype(code)
    words_V2 = xp.zeros((trie.symbols, 2), np.float32)
    words_V2[:, 0] = trie.prob_G[: trie.symbols]
    words_V2[: len(trie.backoff_M), 1] = trie.backoff_M[: trie.symbols]
    return replace(trie, prob_G=prob_G, backoff_M=backoff_M, words_V2=words_V2, centers=centers)


def _codes(values: Any, centers: Any) -> Any:
    """Set the centres of the bins of values; return the code of each value."""
    xp = array_module(values)
    if not len(values):
        return xp.zeros(0, np.int64)
    centers[:] = xp.asarray(bin_centers(values, len(centers)))
    return nearest_codes(values, centers)


def bin_centers(values: Any, bins: int) -> np.ndarray:
    """Return (bins,) float32, rising: the means of bins of equal size of the sorted values (float32), as in KenLM.

    An empty bin has the centre of the previous bin, or -inf (lm/quantize.cc, MakeBins).
    """
    ordered, ends = to_host(array_module(values).sort(values)), len(values) * np.arange(bins + 1) // bins
    means = _means(ordered, ends)  # on the host: the same on every device
    return np.concatenate([[-np.inf], means])[np.cumsum(np.diff(ends) > 0)].astype(np.float32)


@njit(nogil=True, cache=True)
def _means(ordered, ends):
    """Return the means of the bins that are not empty; values are added one by one, as in KenLM."""
    means, found = np.empty(len(ends) - 1, np.float64), 0
    for i in range(len(ends) - 1):
        if ends[i + 1] > ends[i]:
            total = 0.0
            for value in ordered[ends[i] : ends[i + 1]]:
                total += np.float64(value)
            means[found] = total / np.float64(np.float32(ends[i + 1] - ends[i]))
            found += 1
    return means[:found]


def nearest_codes(values: Any, centers: Any) -> Any:
    """Return the codes of values (float32): the nearest of two or more centres; of two equally near ones, the higher.

    Of equal centres, the first (lm/quantize.hh, Encode).
    """
    xp = array_module(values)
    first = xp.searchsorted(centers, values)
    above = xp.clip(first, 1, len(centers) - 1)
    with np.errstate(invalid="ignore"):  # of -inf minus -inf; such values have the code 0
        return xp.where(first == 0, 0, above - (values - centers[above - 1] < centers[above] - values))
