"""Count the topics of each word."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int64, uint32

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import kernel, launch
from .examples import corpus
from .weights import Pairs

THREADS = 256


def count_word_topics(pairs: Pairs, topics_T: Any, counts_VZ: Any) -> Any:
    """Return counts_VZ with 1 added for each token of `pairs`, at its word and its topic.

    topics_T   (T,) uint16
    counts_VZ  (V, Z) uint32, changed in place; contiguous
    """
    pairs.check()
    check.dtype(topics_T, np.uint16)
    check.dtype(counts_VZ, np.uint32)
    run = pick(cpu=_cpu, cuda=_cuda, **pairs._asdict(), topics_T=topics_T, counts_VZ=counts_VZ)
    check.contiguous(counts_VZ=counts_VZ, slots_S3=pairs.slots_S3)
    run(*pairs, topics_T, counts_VZ)
    return counts_VZ


@njit(nogil=True, cache=True)
def _cpu(slots_S3, document_P, token_P, count_P, topics_T, counts_VZ):
    for s in range(len(slots_S3)):
        for p in range(slots_S3[s, 1], slots_S3[s, 2]):
            for t in range(int64(token_P[p]), int64(token_P[p]) + int64(count_P[p])):
                counts_VZ[slots_S3[s, 0], topics_T[t]] += uint32(1)


def _cuda(slots_S3, document_P, token_P, count_P, topics_T, counts_VZ):
    if len(slots_S3):
        args = (slots_S3, len(slots_S3), token_P, count_P, topics_T, counts_VZ.shape[1], counts_VZ)
        launch(kernel("lda/count_word_topics", "count_word_topics"), len(slots_S3), THREADS, args)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words with random topics; some counts already include them."""
    documents, pairs, words = corpus(rng, size)
    return {"pairs": pairs, "topics_T": documents.topics_T, "counts_VZ": words.counts_VZ}
