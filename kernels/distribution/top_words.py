"""Return the greatest values of distributions and their words, without storing the distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.sorted_search import first_from
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import kernel, launch
from .find_histories import Children
from .row_launch import WordValues

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())
MAX_TOP_K = 1024  # shared memory holds twice as many keys and TILE new ones
THREADS, TILE = 256, 1024  # as in top_words.cu
MAX_BLOCKS = 2**31 - 1  # blocks of a grid: one for each row, because some rows take a thousand times longer than others


def top_words(
    k: int,
    orders: tuple[int, ...],
    children: Children,
    values: WordValues,
    ranked_V: Any,
    multiply: bool,
    nothing: float | None = None,
    left_out: int = -1,
) -> tuple[Any, Any]:
    """Return the k greatest values of each row of `write_rows`, greatest first, ties by lower id.

    k           1 to 1,024
    orders      rising, each 1 to K + 1
    children    from `find_histories`, backoffs in the scale of `values`. For smoothed rows, children must also be
                children of all shorter histories
    ranked_V    (V,) uint32: the single words by falling value
    multiply    True: multiply by backoffs (probabilities, not negative); False: add them (logarithms)
    nothing     None: smoothed rows. Else stored rows: only the children of the history of n - 1 words count (all words
                in the row of order 1)
    left_out    a word that does not count; -1: none

    Returns id_HNK (H, len(orders), k) int32 and value_HNK float32 of the same shape. If a row has fewer words, the
    remaining ids are -1 and their values `nothing` (smoothed: 0 if multiply, else -inf). Values equal those of
    `write_rows` bit for bit, except that -0 becomes 0.
    """
    check_children(children, values)
    first_HK, end_HK, backoff_HK = children
    word_G, value_G, value_V = values
    check.dtype(ranked_V, np.uint32)
    if len(ranked_V) != len(value_V):
        raise ValueError(f"got {len(value_V)} words and {len(ranked_V)} ranks; pass one of each per word")
    if not 1 <= k <= MAX_TOP_K:
        raise ValueError(f"k is {k} but must be 1 to {MAX_TOP_K}; sort whole rows for more")
    K = first_HK.shape[1]
    if list(orders) != sorted(set(orders)) or not all(1 <= n <= K + 1 for n in orders):
        raise ValueError(f"orders are {orders} but must rise within 1 to {K + 1}; pass some of these orders")
    run = pick(
        cpu=_cpu, cuda=_cuda, first_HK=first_HK, end_HK=end_HK, backoff_HK=backoff_HK, word_G=word_G, value_G=value_G,
        value_V=value_V, ranked_V=ranked_V,
    )  # fmt: skip
    stored = nothing is not None
    empty = np.float32(nothing if nothing is not None else 0 if multiply else -np.inf)
    return run(k, np.array(orders, np.int32), children, values, ranked_V, (bool(multiply), stored, empty), left_out)


def check_children(children: Children, values: WordValues) -> None:
    """Raise TypeError or ValueError unless dtypes and lengths of children and values fit together."""
    first_HK, end_HK, backoff_HK = children
    word_G, value_G, value_V = values
    check.dtype(first_HK, np.uint32, np.int64)
    check.dtype(end_HK, first_HK.dtype)
    check.dtype(backoff_HK, np.float32)
    check.dtype(word_G, np.uint32)
    check.dtype(value_G, np.float32)
    check.dtype(value_V, np.float32)
    if not first_HK.shape == end_HK.shape == backoff_HK.shape:
        raise ValueError(
            f"first, end and backoff have shapes {first_HK.shape}, {end_HK.shape} and {backoff_HK.shape}; "
            "pass one of each per history and length"
        )
    if len(word_G) != len(value_G):
        raise ValueError(f"got {len(word_G)} words and {len(value_G)} values of n-grams; pass one of each per n-gram")


@njit(nogil=True, cache=True)
def _cpu(k, orders_N, children, values, ranked_V, how, left_out):
    (first_HK, end_HK, backoff_HK), (word_G, value_G, value_V) = children, values
    multiply, stored, empty = how
    H, N = len(first_HK), len(orders_N)
    id_HNK, value_HNK = np.empty((H, N, k), np.int32), np.empty((H, N, k), np.float32)
    keys = np.empty(max(2 * k, 64), np.uint64)  # key: the value's bits, then the complement of the word
    for h in range(H):
        for j in range(N):
            n = orders_N[j]
            count, bound = np.int64(0), np.uint64(0)
            for m in range(n - 1, n - 2 if stored else -1, -1):  # children of the history of m words, or single words
                first, size = np.int64(0), len(value_V)
                if m:
                    first, size = np.int64(first_HK[h, m - 1]), np.int64(end_HK[h, m - 1]) - first_HK[h, m - 1]
                elif count >= k:
                    count, bound = _prune(keys, count, k)
                for i in range(first, first + size):
                    value = value_G[i] if m else value_V[ranked_V[i]]
                    for b in range(m, n - 1):
                        value = value * backoff_HK[h, b] if multiply else value + backoff_HK[h, b]
                    bits = _rank_bits(value)
                    if bits < bound >> np.uint64(32):
                        if m == 0:
                            break  # later words are not greater
                        continue
                    word = np.int64(word_G[i] if m else ranked_V[i])
                    key = bits << np.uint64(32) | np.uint64(0xFFFFFFFF - word)
                    if key < bound or word == left_out:
                        continue
                    if m < n - 1 and contains(word_G, np.int64(first_HK[h, m]), np.int64(end_HK[h, m]), word):
                        continue
                    keys[count] = key
                    count += 1
                    if count == len(keys):
                        count, bound = _prune(keys, count, k)
            _sort(keys, count)
            for i in range(min(count, k)):
                key = keys[count - 1 - i]
                id_HNK[h, j, i] = np.int64(0xFFFFFFFF) - np.int64(key & np.uint64(0xFFFFFFFF))
                value_HNK[h, j, i] = _value(key >> np.uint64(32))
            for i in range(count, k):
                id_HNK[h, j, i], value_HNK[h, j, i] = -1, empty
    return id_HNK, value_HNK


@njit(nogil=True, cache=True)
def _prune(keys, count, k):
    """Keep the k greatest of at least k keys; return (k, the least of them)."""
    _sort(keys, count)
    for i in range(k):  # count - k may be less than k, but never less than 0: each key is read before it is replaced
        keys[i] = keys[count - k + i]
    return k, keys[0]


@njit(nogil=True, cache=True)
def _sort(keys, count):
    """Sort the first `count` keys, which differ, by Shell's method.

    Numba takes 1.3 s to compile an array's own sort. That one takes 47, 32 and 63 ns a key for 16, 64 and 2,048 keys,
    this one 31, 31 and 78 ns, on 2 cores.
    """
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap:
        for i in range(gap, count):
            key, j = keys[i], i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 3


@njit(nogil=True, cache=True)
def _rank_bits(value):
    """Return a uint64 below 2**32 that rises with the value; as in include/ranks.cuh."""
    bits = np.float32(value + np.float32(0)).view(np.uint32)
    return np.uint64(~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000))


@njit(nogil=True, cache=True)
def _value(rank_bits):
    bits = np.uint32(rank_bits)
    return np.uint32(bits ^ np.uint32(0x80000000) if bits >> np.uint32(31) else ~bits).view(np.float32)


@njit(nogil=True, cache=True)
def contains(word_G, first, end, word):
    """Return whether a word is among the rising words of nodes first to end - 1."""
    at = first_from(word_G, first, end, word)
    return at < end and word_G[at] == word


def _cuda(k, orders_N, children, values, ranked_V, how, left_out):
    import cupy

    (H, K), N = children.first_HK.shape, len(orders_N)
    multiply, stored, empty = how
    id_HNK, value_HNK = cupy.empty((H, N, k), np.int32), cupy.empty((H, N, k), np.float32)
    if H * N:
        most = 1 << max(6, (2 * k - 1).bit_length())
        capacity = 1 << (most + TILE - 1).bit_length()
        fn = kernel("distribution/top_words", "top_words", CHILD=check.INTEGER[children.first_HK.dtype])
        ranges = map(cupy.ascontiguousarray, children)
        args = (
            k, capacity, most, cupy.asarray(orders_N), N, *ranges, H, K, *values, ranked_V,
            len(values.value_V), int(multiply), int(stored), empty, left_out, id_HNK, value_HNK,
        )  # fmt: skip
        launch(fn, min(H * N, MAX_BLOCKS), THREADS, args, shared_bytes=8 * capacity + 36 * (K + 1))
    return id_HNK, value_HNK


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return `histories_and_children`; by size rows are stored or smoothed, of probabilities or logarithms."""
    made = histories_and_children(rng, size, multiply := size % 2 == 1)
    K = made["children"].first_HK.shape[1]
    return {
        "k": (1, 10, 100, MAX_TOP_K)[size % 4],
        "orders": tuple(range(1, K + 2)) if size % 5 else (K + 1,),
        **made,
        "ranked_V": np.argsort(-made["values"].value_V, kind="stable").astype(np.uint32),
        "multiply": multiply,
        "nothing": None if size % 3 else 0.0 if multiply else -np.inf,
        "left_out": 1 if size % 7 else -1,
    }


def histories_and_children(rng: np.random.Generator, size: int, multiply: bool) -> dict[str, Any]:
    """Return histories of up to 3 words with nested children: mostly a few, for one in 8 half the vocabulary."""
    V, H, K = -(-size // 4), -(-size // 256), 3
    first_HK, end_HK, words = np.zeros((H, K), np.int64), np.zeros((H, K), np.int64), [np.zeros(0, np.int64)]
    G = 0
    for h in range(H):
        among = np.arange(V)
        for m in range(rng.integers(0, K + 1)):
            least = 2 if rng.random() < 1 / 8 else 20
            among = np.sort(rng.choice(among, len(among) // least, replace=False))
            first_HK[h, m], end_HK[h, m] = G, G + len(among)
            words.append(among)
            G += len(among)
    word_G = np.concatenate(words).astype(np.uint32)
    values = [rng.integers(1, 1000, length) / np.float32(1024) for length in (G, V, H * K)]  # many ties
    value_G, value_V, backoffs = (v if multiply else -8 * v for v in values)
    code = np.uint32 if size % 2 else np.int64
    backoff_HK = backoffs.reshape(H, K).astype(np.float32)
    return {
        "children": Children(first_HK.astype(code), end_HK.astype(code), backoff_HK),
        "values": WordValues(word_G, value_G.astype(np.float32), value_V.astype(np.float32)),
    }
