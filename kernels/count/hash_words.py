"""Hash every word of a text to 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from mgpu_ngram.kernels.common.find_tokens import find_tokens, is_delimiter, random_text

from .. import check
from ..common.integer_hash import mix64
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch


def hash_words(text_B: Any, positions_T: Any, seed: int = 0) -> Any:
    """Return one 64-bit hash per token, 0 for a newline.

    text_B       (B,) uint8
    positions_T  (T,) uint32, from `find_tokens`
    seed         different seeds give independent hashes

    Returns hash_T (T,) uint64. Words of up to 8 bytes never collide. Longer ones collide with
    probability about V**2 / 2**65 for V distinct words; `count_mismatches` detects that.
    """
    check.dtype(text_B, np.uint8)
    check.dtype(positions_T, np.uint32)
    return pick(cpu=_cpu, cuda=_cuda, text_B=text_B, positions_T=positions_T)(text_B, positions_T, np.uint64(seed))


@njit(nogil=True, cache=True)
def _cpu(text_B, positions_T, seed):
    hash_T = np.empty(len(positions_T), np.uint64)
    B = len(text_B)
    for t in range(len(positions_T)):
        at = np.int64(positions_T[t])
        c = text_B[at]
        if c == 10:
            hash_T[t] = 0
            continue
        h = uint64(seed)
        while not is_delimiter(c):
            piece = uint64(0)
            i = 0
            while i < 8 and not is_delimiter(c):
                piece |= uint64(c) << uint64(8 * i)
                i += 1
                at += 1
                c = text_B[at] if at < B else np.uint8(32)
            h = mix64(h ^ piece)
        hash_T[t] = h if h != 0 else uint64(1)
    return hash_T


def _cuda(text_B, positions_T, seed):
    import cupy

    T = len(positions_T)
    hash_T = cupy.empty(T, np.uint64)
    if T:
        launch(
            kernel("count/hash_words", "hash_words"),
            grid_for(T, 256),
            256,
            (text_B, len(text_B), positions_T, T, seed, hash_T),
        )
    return hash_T


def hash_ids(ids_T: Any) -> Any:
    """Return mix64(id + 1) of every token id (NumPy or CuPy) as uint64: a bijection, never 0."""
    x = ids_T.astype(np.uint64) + np.uint64(1)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the tokens of a random text."""
    text_B = random_text(rng, size)
    return {"text_B": text_B, "positions_T": find_tokens(text_B), "seed": 7}
