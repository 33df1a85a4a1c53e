"""Fixtures of tests of tries: tries of n-grams given in a dict."""

from dataclasses import replace

import numpy as np
import pytest

from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.engine.trie.build import build_trie


@pytest.fixture(scope="session")
def trie_of():
    """A function that returns the trie of {n-gram: (prob, backoff)}."""

    def make(ngrams, fanout=2, dtype=np.uint32):
        order = max(map(len, ngrams))
        levels = []
        for n in range(1, order + 1):
            rows = [g for g in ngrams if len(g) == n]
            prob, backoff = np.array([ngrams[g] for g in rows], np.float32).T.copy()
            levels.append(Ngrams(np.array(rows, np.uint32), prob, backoff if n < order else None))
        trie = build_trie(levels, fanout)
        return replace(trie, first_child_M=trie.first_child_M.astype(dtype))

    return make
