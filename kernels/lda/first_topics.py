"""Draw the first topic of every token; all topics have the same probability."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int64, uint64

from .. import check
from ..common.philox import FIRST_TOPICS, random_bits
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import multiply_high
from ..launch import grid_for, kernel, launch
from .count_topics import example as counted
from .weights import ALIGN, Documents


def first_topics(documents: Documents, num_topics: int, seed: int, first: int) -> Documents:
    """Return the documents with topics_T drawn: upper 64 bits of num_topics * `random_bits` of stream FIRST_TOPICS.

    seed   0 to 2^64 - 1
    first  number of document 0 in the corpus

    The given arrays are returned; topics_T is changed in place.
    """
    documents.check()
    run = pick(cpu=_cpu, cuda=_cuda, **documents._asdict())
    check.contiguous(rows_D2=documents.rows_D2)
    run(documents, num_topics, seed, first)
    return documents


def _cpu(documents, num_topics, seed, first):
    rows_D2, lengths_D, topics_T, _ = documents
    _draw(rows_D2, lengths_D, topics_T, num_topics, np.uint64(seed), first)


@njit(nogil=True, cache=True)
def _draw(rows_D2, lengths_D, topics_T, num_topics, seed, first):
    for d in range(len(rows_D2)):
        begin = int64(rows_D2[d, 0]) * ALIGN
        for t in range(int64(lengths_D[d])):
            bits = random_bits(seed, FIRST_TOPICS, 0, first + d, t)
            topics_T[begin + t] = multiply_high(bits, uint64(num_topics))


def _cuda(documents, num_topics, seed, first):
    rows_D2, lengths_D, topics_T, _ = documents
    D = len(rows_D2)
    if D:
        fn = kernel("lda/first_topics", "first_topics")
        args = (rows_D2, lengths_D, D, topics_T, num_topics, np.uint64(seed), first)
        launch(fn, grid_for(D, 8), 256, args)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's lengths."""
    return counted(rng, size) | {"seed": size << 40, "first": size << 30}
