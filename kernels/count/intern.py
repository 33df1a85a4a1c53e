"""Number the distinct hashes of a chunk: its vocabulary, extended block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import array_module, pick
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch

MIN_CAPACITY = 1 << 16
UNSEEN = np.uint32(0xFFFFFFFF)
PREFETCHED_TOKENS = 16  # tokens whose slots a CPU fetches ahead


class WordTable:
    """Open-addressing table from 64-bit hash to word number; numbers follow first appearance.

    hash_V   (V,) uint64, the hash of word v
    keys_C   (C,) uint64, 0 where empty; C is a power of two and at least twice V
    first_C  (C,) uint32, scratch of `intern`
    ids_C    (C,) uint32, the word of a slot
    """

    def __init__(self, like: Any = None, capacity: int = MIN_CAPACITY):
        xp = np if like is None else array_module(like)
        self.hash_V = xp.empty(0, np.uint64)
        self._allocate(xp, capacity)

    def __len__(self) -> int:
        return len(self.hash_V)

    def _allocate(self, xp: Any, capacity: int) -> None:
        self.keys_C = xp.zeros(capacity, np.uint64)
        self.first_C = xp.full(capacity, UNSEEN, np.uint32)
        self.ids_C = xp.empty(capacity, np.uint32)


def intern(hash_T: Any, table: WordTable) -> tuple[Any, Any]:
    """Return each token's word number + 1, and the first positions of words that are new to `table`.

    hash_T  (T,) uint64, 0 for a newline; T < 2**32
    table   on the same device; receives the new words in order of appearance

    Returns tokens_T (T,) uint32 (0 for a newline) and new_N (N,) int64, ascending indexes into
    hash_T: word V + i of the table first occurs at new_N[i].
    """
    check.dtype(hash_T, np.uint64)
    check.length(hash_T, 2**32 - 1)
    return pick(cpu=_cpu, cuda=_cuda, hash_T=hash_T, table=table.keys_C)(hash_T, table)


def _cpu(hash_T, table):
    tokens_T, new, t = np.zeros(len(hash_T), np.uint32), [np.empty(0, np.int64)], 0
    while True:
        new_N, t = _insert(hash_T, t, table.keys_C, table.ids_C, len(table), tokens_T)
        new.append(new_N)
        table.hash_V = np.concatenate([table.hash_V, hash_T[new_N]])
        if t == len(hash_T):
            return tokens_T, np.concatenate(new)
        table._allocate(np, 4 * len(table.keys_C))
        _rebuild(table.hash_V, table.keys_C, table.ids_C)


@njit(nogil=True, cache=True)
def _insert(hash_T, begin, keys_C, ids_C, V, tokens_T):
    """Number the tokens from `begin` on; return the positions of new words, and the first token that has no room."""
    mask = np.uint64(len(keys_C) - 1)
    new_N = np.empty(1024, np.int64)
    n = 0
    for t in range(begin, len(hash_T)):
        h = hash_T[t]
        ahead = hash_T[min(t + PREFETCHED_TOKENS, len(hash_T) - 1)] & mask
        prefetch(keys_C, np.int64(ahead))
        prefetch(ids_C, np.int64(ahead))
        if h == 0:
            continue
        slot = h & mask
        while keys_C[slot] != h and keys_C[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        if keys_C[slot] == 0:
            if 2 * (V + n + 1) > len(keys_C):
                return new_N[:n].copy(), t
            if n == len(new_N):
                new_N = np.concatenate((new_N, np.empty(n, np.int64)))
            keys_C[slot] = h
            ids_C[slot] = V + n
            new_N[n] = t
            n += 1
        tokens_T[t] = ids_C[slot] + 1
    return new_N[:n].copy(), len(hash_T)


@njit(nogil=True, cache=True)
def _rebuild(hash_V, keys_C, ids_C):
    mask = np.uint64(len(keys_C) - 1)
    for v in range(len(hash_V)):
        slot = hash_V[v] & mask
        while keys_C[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        keys_C[slot] = hash_V[v]
        ids_C[slot] = v


def _cuda(hash_T, table):
    import cupy

    T, stem = len(hash_T), "count/intern"
    slot_T = cupy.empty(T, np.uint32)
    if T == 0:
        return slot_T, cupy.empty(0, np.int64)
    room = min(1 << 22, 1 << (2 * T).bit_length())  # a GPU block adds many words: few tables grow
    if len(table.keys_C) < room:
        _grow(table, room)
    while True:
        capacity = len(table.keys_C)
        limit = capacity // 2 - len(table)
        new_count = cupy.zeros(1, np.uint32)
        new_slots = cupy.empty(limit, np.uint32)
        launch(
            kernel(stem, "insert_words"),
            grid_for(T, 256),
            256,
            (hash_T, T, table.keys_C, table.first_C, capacity, np.uint32(limit), new_count, new_slots, slot_T),
        )
        N = int(new_count[0])
        if N <= limit:
            break
        _grow(table, 4 * capacity)
    new_N = cupy.empty(N, np.int64)
    if N:
        slots_N = new_slots[:N]
        order_N, V = cupy.argsort(table.first_C[slots_N]), len(table)
        hash_V = cupy.empty(V + N, np.uint64)
        hash_V[:V] = table.hash_V
        table.hash_V = hash_V
        table_columns = table.keys_C, table.first_C, table.ids_C
        launch(
            kernel(stem, "number_words"), grid_for(N, 256), 256, (slots_N, order_N, N, V, *table_columns, hash_V, new_N)
        )
    launch(kernel(stem, "slots_to_tokens"), grid_for(T, 256), 256, (hash_T, slot_T, T, table.ids_C, slot_T))
    return slot_T, new_N


def _grow(table, capacity):
    import cupy

    table._allocate(cupy, capacity)
    V = len(table)
    if V:
        launch(
            kernel("count/intern", "rebuild_table"),
            grid_for(V, 256),
            256,
            (table.hash_V, V, table.keys_C, table.first_C, table.ids_C, capacity),
        )


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return Zipf-distributed hashes with newlines (0) between, and an empty table."""
    hash_T = rng.zipf(1.2, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hash_T[rng.random(size) < 0.05] = 0
    return {"hash_T": hash_T, "table": WordTable()}
