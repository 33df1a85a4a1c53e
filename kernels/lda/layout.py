"""Arrange bags of words for sampling: tokens in the order of documents, pairs in the order of words."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch import array_module, to_host
from .weights import ALIGN, Documents, Pairs, count_bits

MAX_PAIR_TOKENS = 255  # tokens of one pair


def lay_out(
    starts_D1: Any, words_P: Any, counts_P: Any, num_topics: int, max_pairs: int | None = None
) -> tuple[Documents, Pairs]:
    """Return the documents, all tokens with topic 0, and their pairs, sorted by word, then document.

    starts_D1  (D + 1,) int64: document d has pairs starts_D1[d] to starts_D1[d + 1] - 1
    words_P    (P,) uint32, ascending and unique within a document
    counts_P   (P,) uint32, at least 1
    max_pairs  greatest number of pairs of a slot; None: one slot for each word

    The tokens of a document are in the order of its words. Slots are sorted by falling number of pairs, ties by word.
    The pairs of a word are sorted by falling number of tokens, then by falling length of the document in units of
    ALIGN: a warp takes neighbours, which then take about the same time. The arrays hold less than 2^32 tokens, with the
    gaps between documents.
    """
    xp = array_module(words_P)
    D, P = len(starts_D1) - 1, len(words_P)
    ends_P = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(counts_P, dtype=np.int64)])
    first_D1 = ends_P[starts_D1]
    lengths_D = xp.diff(first_D1)
    units_D1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(-(-lengths_D // ALIGN))])
    T = ALIGN * int(units_D1[-1])
    if T >= 2**32:
        raise ValueError(
            f"{T:,} tokens, including gaps, but a block holds at most 2^32 - 1; cut the documents into more blocks"
        )
    rows_D2 = xp.zeros((D, 2), np.uint32)
    rows_D2[:, 0] = units_D1[:-1]
    dtype = count_bits(num_topics)[0]
    documents = Documents(rows_D2, lengths_D.astype(np.uint32), xp.zeros(T, np.uint16), xp.zeros(T, dtype))

    document_P = repeat(xp.arange(D, dtype=np.int64), xp.diff(starts_D1))
    token_P = ALIGN * units_D1[document_P] + ends_P[:-1] - first_D1[document_P]
    del ends_P
    key_P = words_P.astype(np.uint64) << np.uint64(24)
    key_P |= (MAX_PAIR_TOKENS - xp.minimum(counts_P, MAX_PAIR_TOKENS)).astype(np.uint64) << np.uint64(16)
    key_P |= xp.maximum(0xFFFF - -(-lengths_D // ALIGN), 0).astype(np.uint64)[document_P]
    order_P = xp.argsort(key_P, kind="stable")
    del key_P
    count_P = counts_P[order_P].astype(np.int64)
    pieces_P = -(-count_P // MAX_PAIR_TOKENS)
    if P and int(pieces_P.max()) > 1:
        number_R = repeat(xp.arange(P), pieces_P)
        piece_R = xp.arange(len(number_R)) - (xp.cumsum(pieces_P) - pieces_P)[number_R]
        order_P = order_P[number_R]
        count_P = xp.minimum(count_P[number_R] - MAX_PAIR_TOKENS * piece_R, MAX_PAIR_TOKENS)
        token_P = token_P[order_P] + MAX_PAIR_TOKENS * piece_R
    else:
        token_P = token_P[order_P]
    slots_S3 = _slots(to_host(words_P[order_P]), max_pairs)
    return documents, Pairs(
        xp.asarray(slots_S3),
        document_P[order_P].astype(np.uint32),
        token_P.astype(np.uint32),
        count_P.astype(np.uint8),
    )


def repeat(values_N: Any, times_N: Any) -> Any:
    """Return each value repeated by its number, as `numpy.repeat`, also for numbers on a GPU."""
    xp = array_module(values_N)
    if xp is np:
        return np.repeat(values_N, times_N)
    ends_N = xp.cumsum(times_N)
    return values_N[xp.searchsorted(ends_N, xp.arange(int(ends_N[-1]) if len(ends_N) else 0), side="right")]


def _slots(words_P: np.ndarray, max_pairs: int | None) -> np.ndarray:
    """Return the slots of sorted words."""
    P = len(words_P)
    starts_W = np.flatnonzero(np.concatenate([[True], words_P[1:] != words_P[:-1]])) if P else np.zeros(0, np.int64)
    ends_W = np.append(starts_W[1:], P)[: len(starts_W)]
    size_W = ends_W - starts_W
    parts_W = -(-size_W // (max_pairs or max(1, P)))
    number_S = np.repeat(np.arange(len(starts_W)), parts_W)
    part_S = np.arange(len(number_S)) - (np.cumsum(parts_W) - parts_W)[number_S]
    first_S = starts_W[number_S] + size_W[number_S] * part_S // parts_W[number_S]
    end_S = starts_W[number_S] + size_W[number_S] * (part_S + 1) // parts_W[number_S]
    slots_S3 = np.stack([words_P[first_S].astype(np.int64), first_S, end_S], axis=1).astype(np.int64)
    return slots_S3[np.argsort(first_S - end_S, kind="stable")]
