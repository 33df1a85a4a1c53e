"""Count the topics of each document: the sparse rows that `sample_topics` reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int64, uint32

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .weights import ALIGN, Documents, count_bits

VARIANTS = ({"ENTRY": "u16"}, {"ENTRY": "u32"})
THREADS, TILE = 128, 2048  # as in count_topics.cu


def count_topics(documents: Documents, num_topics: int) -> Documents:
    """Return the documents with entries_T, and the numbers of entries in rows_D2, that match topics_T.

    An entry is topic << bits | count, with the bits of `count_bits`. The entries of a document are in order of rising
    topic. A count that needs more bits takes several entries, all but the last with the greatest count. Zeros follow,
    up to the next multiple of 16 bytes.

    The arrays are changed in place and returned.
    """
    documents.check()
    run = pick(cpu=_cpu, cuda=_cuda, **documents._asdict())
    check.contiguous(rows_D2=documents.rows_D2)
    run(documents, num_topics)
    return documents


def _cpu(documents, num_topics):
    _count(*documents, count_bits(num_topics)[1], num_topics)


@njit(nogil=True, cache=True)
def _count(rows_D2, lengths_D, topics_T, entries_T, bits, num_topics):
    count_Z = np.zeros(num_topics, np.uint32)
    most = (1 << bits) - 1
    for d in range(len(rows_D2)):
        begin, length = int64(rows_D2[d, 0]) * ALIGN, int64(lengths_D[d])
        for t in range(begin, begin + length):
            count_Z[topics_T[t]] += uint32(1)
        e = begin
        for k in range(num_topics):
            count = int64(count_Z[k])
            if count:
                count_Z[k] = 0
                while count:
                    here = min(count, most)
                    entries_T[e] = k << bits | here
                    e += 1
                    count -= here
        rows_D2[d, 1] = e - begin
        stop = begin + -(-length // ALIGN) * ALIGN
        while e < stop and e % 8:
            entries_T[e] = 0
            e += 1


def _cuda(documents, num_topics):
    rows_D2, lengths_D, topics_T, entries_T = documents
    D = len(rows_D2)
    if D:
        fn = kernel("lda/count_topics", "count_topics", ENTRY="u16" if entries_T.dtype == np.uint16 else "u32")
        tile = min(TILE, -(-num_topics // 32) * 32)
        args = (rows_D2, lengths_D, D, topics_T, entries_T, np.uint32(count_bits(num_topics)[1]), num_topics, tile)
        launch(fn, grid_for(D, THREADS // 32), THREADS, args, shared_bytes=THREADS // 32 * 4 * tile)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's lengths with random topics, and few topics or many by size."""
    num_topics = (3, 64, 2, 300, 4100)[size % 5]
    lengths_D = np.minimum(rng.zipf(1.4, size // 30 + 1), max(1, size)).astype(np.uint32)
    lengths_D[::7] = 0
    units_D = -(-lengths_D.astype(np.int64) // ALIGN)
    rows_D2 = np.stack([np.cumsum(units_D) - units_D, 0 * units_D], axis=1).astype(np.uint32)
    T = ALIGN * int(units_D.sum())
    topics_T = np.minimum(rng.geometric(0.05, T) - 1, num_topics - 1).astype(np.uint16)
    documents = Documents(rows_D2, lengths_D, topics_T, np.zeros(T, count_bits(num_topics)[0]))
    return {"documents": documents, "num_topics": num_topics}
