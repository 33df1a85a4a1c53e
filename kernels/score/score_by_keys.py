"""Score text with the hash tables of KenLM's probing models, which hold keys of n-grams instead of their words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch
from .score_tokens import MAX_SCORED_ORDER, THREADS

BATCH = 64  # tokens that a CPU scores together
SIGN = np.uint32(1 << 31)


class KeyTables(NamedTuple):
    """The tables of a probing model in the form of its file (lm/search_hashed.hh).

    tables_U  (U,) uint32, the tables of orders 1 to N one after another. Words have the slots {probability, backoff},
              orders 2 to N - 1 {key, key, probability, backoff}, order N {key, key, probability}; values are float32
    slots_N   (N,) int64, slots of each table; order 1 has a slot for each word. Other tables have at least one empty
              slot, of key 0
    rest      numbers after each backoff: 1 in a model with rest costs, which scores do not use, else 0

    The key of a word is its id; `longer_key` computes other keys. The entry of a key is the first slot with this key
    from slot key % slots on. A cleared sign of a probability of an order below N shows that longer n-grams end with
    this one; no log10 probability is above 0.
    """

    tables_U: Any
    slots_N: Any
    rest: int


def score_by_keys(tables: KeyTables, begin: int, end: int, codes_T: Any) -> tuple[Any, Any]:
    """Return the log10 probability and the order of the longest match of every token.

    begin, end, codes_T  as in `score_tokens`

    Returns prob_T (T,) float32 and order_T (T,) uint8; both are 0 at a sentence end without `end`. Like KenLM, it finds
    the matches of a token from the token backwards, and adds the backoffs of longer histories, shortest first.
    """
    tables_U, slots_N, rest = tables
    check.dtype(tables_U, np.uint32)
    check.dtype(slots_N, np.int64)
    check.dtype(codes_T, np.uint32)
    if not 2 <= len(slots_N) <= MAX_SCORED_ORDER:
        raise ValueError(f"the tables have order {len(slots_N)} but scores by keys need 2 to {MAX_SCORED_ORDER}")
    run = pick(cpu=_cpu, cuda=_cuda, tables_U=tables_U, slots_N=slots_N, codes_T=codes_T)
    return run(tables_U, slots_N, rest, begin, end, codes_T)


@njit(nogil=True, inline="always")
def longer_key(key, word):
    """Return the key of an n-gram from that of its suffix and its first word; as in score_by_keys.cu."""
    return key * uint64(8978948897894561157) ^ (uint64(word) + uint64(1)) * uint64(17894857484156487943)


def _cpu(tables_U, slots_N, rest, begin, end, codes_T):
    return _score(tables_U, tables_U.view(np.float32), slots_N, rest, begin, end, codes_T)


@njit(nogil=True, cache=True)
def _score(tables_U, values_U, slots_N, rest, begin, end, codes_T):
    """Order by order for BATCH tokens together, so that their slots are prefetched together.

    Column i + 1 of backoffs is that of token i of the batch, column 0 that of the token before.
    """
    T, N = len(codes_T), len(slots_N)
    prob_T, order_T = np.zeros(T, np.float32), np.zeros(T, np.uint8)
    backoffs, matched = np.zeros((N, BATCH + 1), np.float32), np.zeros(BATCH + 1, np.int64)
    tokens, keys, slots = np.empty(BATCH, np.int64), np.empty(BATCH, np.uint64), np.empty(BATCH, np.int64)
    goes_on, single = np.empty(BATCH, np.int64), 2 + rest
    for base in range(0, T, BATCH):
        size, open = min(BATCH, T - base), 0
        for i in range(size):
            word = np.int64(codes_T[base + i]) - 1 if codes_T[base + i] else end
            prefetch(tables_U, single * max(word, 0))
        for i in range(size):
            word = np.int64(codes_T[base + i]) - 1 if codes_T[base + i] else end
            matched[i + 1] = 0
            if word >= 0:
                at = single * word
                prob_T[base + i], backoffs[0, i + 1], matched[i + 1] = -abs(values_U[at]), values_U[at + 1], 1
                tokens[open], keys[open] = i, uint64(word)
                open += np.int64(tables_U[at] < SIGN)
        start = single * slots_N[0]
        for n in range(2, N + 1):
            asked, stride, table = 0, 3 if n == N else 4 + rest, uint64(slots_N[n - 1])
            for a in range(open):
                before = base + tokens[a] - (n - 1)  # -1 is before the first sentence
                code = codes_T[before] if before >= 0 else np.uint32(0)
                word = np.int64(code) - 1 if code else begin
                if word >= 0:
                    key = longer_key(keys[a], word)
                    tokens[asked], keys[asked], slots[asked] = tokens[a], key, np.int64(key % table)
                    goes_on[asked] = code != 0
                    prefetch(tables_U, start + stride * slots[asked])
                    asked += 1
            open = 0
            for a in range(asked):
                at, key = start + stride * slots[a], keys[a]
                found = uint64(tables_U[at]) | uint64(tables_U[at + 1]) << uint64(32)
                while found != key and found != 0:
                    at += stride
                    if at == start + stride * slots_N[n - 1]:
                        at = start
                    found = uint64(tables_U[at]) | uint64(tables_U[at + 1]) << uint64(32)
                if found == key:
                    i = tokens[a]
                    prob_T[base + i], matched[i + 1] = -abs(values_U[at + 2]), n
                    if n < N:
                        backoffs[n - 1, i + 1] = values_U[at + 3]
                        tokens[open], keys[open] = i, key
                        open += goes_on[a] & np.int64(tables_U[at + 2] < SIGN)
            start += stride * slots_N[n - 1]
        for i in range(size):
            t = base + i
            if matched[i + 1]:
                starts = t == 0 or codes_T[t - 1] == 0
                longest = np.int64(begin >= 0) if starts else min(matched[i], N - 1)  # history that has a backoff
                for m in range(matched[i + 1], longest + 1):
                    prob_T[t] += values_U[single * begin + 1] if starts else backoffs[m - 1, i]
                order_T[t] = matched[i + 1]
        matched[0] = matched[size]
        for n in range(N):
            backoffs[n, 0] = backoffs[n, size]
    return prob_T, order_T


def _cuda(tables_U, slots_N, rest, begin, end, codes_T):
    import cupy

    T, N = len(codes_T), len(slots_N)
    prob_T, order_T = cupy.empty(T, np.float32), cupy.empty(T, np.uint8)
    if T:
        fn = kernel("score/score_by_keys", "score_by_keys")
        args = (tables_U, slots_N, N, rest, begin, end, codes_T, T, prob_T, order_T)
        launch(fn, grid_for(T, THREADS - 1), THREADS, args, shared_bytes=4 * N * THREADS)
    return prob_T, order_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a text of sentences of 1 to 30 words, and tables of some of its n-grams of orders 1 to 4."""
    V, rest = 3 + size // 20, size % 2
    words_T = np.minimum(rng.zipf(1.3, size) - 1, V - 1)
    ngrams = [np.arange(V)[:, None]]
    for n in (2, 3, 4):
        windows = np.lib.stride_tricks.sliding_window_view(words_T, n)[::2] if size >= n else np.empty((0, n), int)
        ngrams.append(np.unique(windows, axis=0))
    codes_T = (words_T + 1).astype(np.uint32)
    codes_T[rng.random(size) < 1 / 15] = 0
    begin, end = min(1, V - 1) if size % 3 else -1, 2 if size % 5 else -1
    return {"tables": _tables(rng, ngrams, rest), "begin": begin, "end": end, "codes_T": codes_T}


def _tables(rng: np.random.Generator, ngrams: list[np.ndarray], rest: int) -> KeyTables:
    """Return tables of n-grams, the words of each order in rows, with random values and signs."""
    parts, slots_N, N = [], [], len(ngrams)
    for n, words_G in enumerate(ngrams, 1):
        values = 1 if n == N else 2 + rest
        table = np.zeros((len(words_G) * 3 // 2 + 1, values + 2 * (n > 1)), np.uint32)
        value_G = -rng.random((len(words_G), values), np.float32) * 5
        value_G[:, 0] *= rng.choice([1, -1], len(words_G), p=[0.2, 0.8]) if n < N else 1
        if n == 1:
            table[: len(words_G)] = value_G.view(np.uint32)
        else:
            _fill(words_G, value_G.view(np.uint32), table)
        parts.append(table.reshape(-1))
        slots_N.append(len(table))
    return KeyTables(np.concatenate(parts), np.array(slots_N), rest)


@njit(nogil=True, cache=True)
def _fill(words_G, value_G, table):
    for g in range(len(words_G)):
        key = uint64(words_G[g, -1])
        for k in range(words_G.shape[1] - 2, -1, -1):
            key = longer_key(key, words_G[g, k])
        slot = np.int64(key % uint64(len(table)))
        while table[slot, 0] | table[slot, 1]:
            slot = slot + 1 if slot + 1 < len(table) else 0
        table[slot, 0], table[slot, 1] = key & uint64(0xFFFFFFFF), key >> uint64(32)
        for i in range(value_G.shape[1]):  # a copy of slices takes Numba 2 s to compile
            table[slot, 2 + i] = value_G[g, i]
