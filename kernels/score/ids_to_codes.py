"""Turn sentences of word ids into codes, and check the ids and the offsets in the same pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

ID_TYPES = {np.dtype(np.int32): "int", np.dtype(np.uint32): "u32", np.dtype(np.int64): "i64"}
VARIANTS = tuple({"ID": name} for name in ID_TYPES.values())
THREADS, TILE = 256, 4096  # as in ids_to_codes.cu


def ids_to_codes(
    ids_T: Any, offsets_S1: Any, num_words: int, wrong_2: np.ndarray | None = None
) -> tuple[Any, Any, Any]:
    """Return the codes of all sentences, the end of each sentence, and what is wrong with the input.

    ids_T       (T,) int32, uint32 or int64, 0 to num_words - 1
    offsets_S1  (S + 1,) int64, from 0 to T, not falling: sentence s is ids_T[offsets_S1[s]:offsets_S1[s + 1]]
    wrong_2     (2,) int32, zeros in pinned host memory, for the last result; None: new ones where the ids are

    Returns codes_C (C,) uint32 with C = T + S: a word is its id + 1, and a 0 ends each sentence; ends_S (S,) int64, the
    position after each 0; and wrong_2 (2,) int32, 1 if ids, and 1 if offsets are out of range. An id that is out of
    range gets the code 1. With wrong offsets the codes and ends are meaningless but within 0 to num_words and 0 to C.
    The host does not wait: it can read wrong_2 in its memory while the device works on the codes.
    """
    check.dtype(ids_T, *ID_TYPES)
    check.dtype(offsets_S1, np.int64)
    if not len(offsets_S1):
        raise ValueError("got no offsets but needs at least 1, the 0 where the first sentence begins")
    return pick(cpu=_cpu, cuda=_cuda, ids_T=ids_T, offsets_S1=offsets_S1)(ids_T, offsets_S1, num_words, wrong_2)


def _cpu(ids_T, offsets_S1, num_words, wrong_2):
    wrong_2 = np.zeros(2, np.int32) if wrong_2 is None else wrong_2
    return *_codes(ids_T, offsets_S1, num_words, wrong_2), wrong_2


@njit(nogil=True, cache=True)
def _codes(ids_T, offsets_S1, num_words, wrong_2):
    T, S = len(ids_T), len(offsets_S1) - 1
    codes_C, ends_S = np.zeros(T + S, np.uint32), np.zeros(S, np.int64)
    for t in range(T):
        if ids_T[t] < 0 or ids_T[t] >= num_words:
            wrong_2[0] = 1
    if offsets_S1[0] != 0 or offsets_S1[S] != T or (np.diff(offsets_S1) < 0).any():
        wrong_2[1] = 1
        return codes_C, ends_S
    for s in range(S):
        for t in range(offsets_S1[s], offsets_S1[s + 1]):
            known = 0 <= ids_T[t] < num_words
            codes_C[t + s] = np.uint32(ids_T[t]) + np.uint32(1) if known else np.uint32(1)
        ends_S[s] = offsets_S1[s + 1] + s + 1
    return codes_C, ends_S


def _cuda(ids_T, offsets_S1, num_words, wrong_2):
    import cupy

    T, S = len(ids_T), len(offsets_S1) - 1
    codes_C, ends_S = cupy.empty(T + S, np.uint32), cupy.empty(S, np.int64)
    ids_T, offsets_S1 = cupy.ascontiguousarray(ids_T), cupy.ascontiguousarray(offsets_S1)
    fn = kernel("score/ids_to_codes", "ids_to_codes", ID=ID_TYPES[ids_T.dtype])
    flags = cupy.zeros(2, np.int32) if wrong_2 is None else wrong_2
    to_flags = flags if wrong_2 is None else np.intp(flags.ctypes.data)
    args = ids_T, T, offsets_S1, S, np.int64(num_words), codes_C, ends_S, to_flags
    launch(fn, grid_for(max(T + S, 1), TILE), THREADS, args)
    return codes_C, ends_S, flags


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Sentences of about 15 words, some empty and one long."""
    offsets = np.sort(rng.integers(0, size + 1, size // 15))
    offsets[: len(offsets) // 4] //= 8
    return {
        "ids_T": rng.integers(0, 1000, size).astype(np.int32),
        "offsets_S1": np.concatenate([[0], offsets, [size]]).astype(np.int64),
        "num_words": 1000,
    }
