"""Look the words of a text up in a model's vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint32, uint64

from mgpu_ngram.kernels.common.find_tokens import find_tokens, is_space, random_text
from mgpu_ngram.kernels.common.murmur import find_hash, murmur_hash
from mgpu_ngram.kernels.common.word_table import find_slot, held_bytes, home_slot, index_words

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch

BATCH = 64  # words whose slots are prefetched together


def find_codes(text_B: Any, positions_T: Any, slots_C: Any, offsets_V: Any, data: Any) -> Any:
    """Return the code of every token of a text: a word's id + 1, 1 for an unknown word, 0 for a newline.

    text_B       (B,) uint8
    positions_T  (T,) uint32, from `find_tokens` with isspace=True
    slots_C      (C,) uint64, from `index_words`, or from `index_hashes` if offsets_V is empty
    offsets_V    (V + 1,) int64 and
    data         uint8: word v is data[offsets_V[v]:offsets_V[v + 1]]; word 0 is <unk>

    Returns codes_T (T,) uint32. Words are equal if all their bytes are equal; if only hashes are known, if their hashes
    are equal.
    """
    check.dtype(text_B, np.uint8)
    check.dtype(positions_T, np.uint32)
    check.dtype(slots_C, np.uint64)
    check.dtype(offsets_V, np.int64)
    check.dtype(data, np.uint8)
    arrays = {
        "text_B": text_B, "positions_T": positions_T, "slots_C": slots_C, "offsets_V": offsets_V, "data": data
    }  # fmt: skip
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(text_B, positions_T, slots_C, offsets_V, data)


@njit(nogil=True, cache=True)
def _cpu(text_B, positions_T, slots_C, offsets_V, data):
    T = len(positions_T)
    codes_T = np.empty(T, np.uint32)
    if len(offsets_V) == 0:
        for t in range(T):
            start, stop = np.int64(positions_T[t]), np.int64(positions_T[t + 1]) if t + 1 < T else len(text_B)
            codes_T[t] = 0
            if text_B[start] != 10:
                while is_space(text_B[stop - 1]):
                    stop -= 1
                codes_T[t] = uint32(find_hash(murmur_hash(text_B, start, stop), slots_C)) + uint32(1)
        return codes_T
    stops, held = np.empty(BATCH, np.int64), np.empty((BATCH, 4), np.uint64)
    for base in range(0, T, BATCH):
        words = min(BATCH, T - base)
        for k in range(words):
            start = np.int64(positions_T[base + k])
            stop = start
            if text_B[start] != 10:
                stop = np.int64(positions_T[base + k + 1]) if base + k + 1 < T else len(text_B)
                while is_space(text_B[stop - 1]):
                    stop -= 1
                held[k, 0], held[k, 1], held[k, 2], h = held_bytes(text_B, start, stop)
                held[k, 3] = h
                prefetch(slots_C, np.int64(home_slot(h, slots_C)))
            stops[k] = stop
        for k in range(words):
            start, stop = np.int64(positions_T[base + k]), stops[k]
            code = uint64(0)
            if stop > start:
                bytes_and_hash = held[k, 0], held[k, 1], held[k, 2], held[k, 3]
                slot = find_slot(bytes_and_hash, text_B, start, stop, offsets_V, data, slots_C)
                code = (slots_C[slot + uint64(3)] & uint64(0xFFFFFFFF)) + uint64(1)
            codes_T[base + k] = uint32(code)
    return codes_T


def _cuda(text_B, positions_T, slots_C, offsets_V, data):
    import cupy

    text_B, slots_C, data = check.aligned(text_B), check.aligned(slots_C), check.aligned(data)
    T = len(positions_T)
    codes_T = cupy.empty(T, np.uint32)
    if T:
        table = slots_C, len(slots_C), offsets_V, data, len(data)
        fn = kernel("score/find_codes", "find_codes" if len(offsets_V) else "find_hashed_codes")
        launch(fn, grid_for(T, 256), 256, (text_B, len(text_B), positions_T, T, *table, codes_T))
    return codes_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a random text with a few very long words, and a vocabulary of half of its words."""
    text_B = random_text(rng, size)
    text_B[(text_B == 32) & (rng.random(size) < 0.3)] = ord("_")
    words = [b"<unk>", *sorted(set(text_B.tobytes().split()))[::2]]
    offsets_V = np.cumsum([0, *map(len, words)], dtype=np.int64)
    data = np.frombuffer(b"".join(words), np.uint8)
    return {
        "text_B": text_B,
        "positions_T": find_tokens(text_B, isspace=True),
        "slots_C": index_words(offsets_V, data)[0],
        "offsets_V": offsets_V,
        "data": data,
    }
