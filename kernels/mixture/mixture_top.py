"""Return the most probable words of each row of a mixture of distributions, without making the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import float32, float64

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..decode.activations import exponential, number_format, singles, stored
from ..decode.best_words import MAX_K
from ..decode.logit_rows import NgramChildren
from ..dispatch import pick
from ..distribution.find_histories import Children
from ..distribution.row_launch import WordValues, layers_of
from ..distribution.top_words import check_children, histories_and_children
from ..intrinsics import multiply_add
from ..launch import LANES, grid_for, kernel, launch
from .mixture_sums import softmax_sums, with_adjacent_columns

VARIANTS = tuple({"VECTOR": vector} | form for vector in (0, 1) for form in FORMATS)
# As in mixture_top.cu:
THREADS, TILE = 256, 2048  # threads and words of a block
MAX_MODELS, MAX_RANGES = 16, 256  # count distributions, and histories of a row in all of them
MERGE_THREADS = 128
FIELDS = ("first_RK", "end_RK", "backoff_RK", "word_G", "value_G", "value_V", "histories", "is_wide", "range")
TABLE = np.dtype([("models", np.dtype([(name, np.int64) for name in FIELDS]), MAX_MODELS)])


def mixture_top(logits_RX: Any, words: int, k: int, counts: Sequence[NgramChildren]) -> tuple[Any, Any]:
    """Return the k most probable words of each row, and their probabilities.

    logits_RX  (R, X) as in `Mixture`: logits of `words` words, then of N count distributions, then columns that are not
               read. Fastest if each row starts at a multiple of 16 bytes
    k          1 to 64, at most `words`
    counts     N n-gram models with at most 256 histories of a row together, N up to 16. Values are probabilities, and
               a missing history has backoff 1

    Returns words_RK (R, k) int32 and probs_RK (R, k) float32, by falling probability, ties by lower word. The
    probability of word w is weight_w + sum of weight_i P_i(w), where the weights are the softmax of the logits. P_i(w)
    is the value of w times the backoffs of longer histories: the rows of `write_rows`, except for rounding. Products
    and sums are float32, in the order of the models. Words of probability 0 may be among the k. A row whose softmax has
    no sum, as defined in `mixture_sums`, has words -1 and probabilities NaN. All devices return the same bits.

    The logits are read twice. No rows of the mixture or of the models are written.
    """
    check.dtype(logits_RX, np.float32, np.float16, np.uint16)
    arrays = {"logits_RX": logits_RX}
    for i, model in enumerate(counts):
        check_children(Children(*model[:3]), WordValues(*model[3:]))
        arrays |= {f"{name} of model {i}": array for name, array in model._asdict().items()}
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    R, N = logits_RX.shape[0], len(counts)
    ranges = sum(model.first_HK.shape[1] for model in counts)
    if not 1 <= k <= min(MAX_K, words):
        raise ValueError(f"k is {k} but must be 1 to {min(MAX_K, words)}; sort whole rows for more")
    if N > MAX_MODELS or ranges > MAX_RANGES:
        raise ValueError(
            f"got {N} models with {ranges} histories of a row but at most {MAX_MODELS} with {MAX_RANGES} fit; make "
            "whole rows"
        )
    for i, model in enumerate(counts):
        if model.value_V.shape != (words,) or len(model.first_HK) != R:
            raise ValueError(
                f"model {i} has {len(model.value_V)} words and histories of {len(model.first_HK)} rows but logits of "
                f"{words} words have {R} rows"
            )
    return run(logits_RX, words, k, counts, softmax_sums(logits_RX, words, N))


def _cpu(logits_RX, words, k, counts, log_sum_R):
    R = len(logits_RX)
    z_RX = np.ascontiguousarray(singles(logits_RX[:, : words + len(counts)]))
    models = [
        [*(np.ascontiguousarray(nodes_HK, np.int64) for nodes_HK in model[:2]), *map(np.ascontiguousarray, model[2:])]
        for model in counts
    ]
    words_RK, probs_RK = np.full((R, k), -1, np.int32), np.full((R, k), np.nan, np.float32)
    row_V, prob_X = np.empty(words, np.float32), np.empty(words + len(counts), np.float32)
    for r in np.flatnonzero(log_sum_R == log_sum_R):
        softmax(z_RX[r], log_sum_R[r], prob_X)
        for i, (first_RK, end_RK, backoff_RK, *values) in enumerate(models):
            children = first_RK[r], end_RK[r], backoff_RK[r]
            _add_model(prob_X[words + i], children, tuple(values), row_V, prob_X)
        probs_RK[r] = -1
        _choose(prob_X[:words], words_RK[r], probs_RK[r])
    return words_RK, probs_RK


@njit(nogil=True, cache=True)
def softmax(z_X, log_sum, prob_X):
    """Set prob_X to exp(z_X - log_sum)."""
    high = float32(log_sum)
    low = float32(log_sum - float64(high))
    for x in range(len(z_X)):
        prob_X[x] = exponential((z_X[x] - high) - low)


@njit(nogil=True, cache=True)
def _add_model(weight, children, values, row_V, prob_X):
    """Add a weight times the row of a model; overwrites row_V."""
    (first_K, end_K, backoff_K), (word_G, value_G, value_V) = children, values
    K = len(first_K)
    rest_K, product = np.empty(K, np.float32), float32(1)
    for n in range(K - 1, -1, -1):
        rest_K[n] = product
        product *= backoff_K[n]
    for v in range(len(row_V)):
        row_V[v] = value_V[v] * product
    for n in range(K):  # longer histories later
        for g in range(first_K[n], end_K[n]):
            row_V[word_G[g]] = value_G[g] * rest_K[n]
    for v in range(len(row_V)):
        prob_X[v] = multiply_add(weight, row_V[v], prob_X[v])


@njit(nogil=True, cache=True)
def _choose(prob_V, words_K, probs_K):
    """Fill sorted lists; probs_K begins with numbers below 0."""
    last = len(words_K) - 1
    for v in range(len(prob_V)):
        if prob_V[v] > probs_K[last]:
            at = last
            while at and probs_K[at - 1] < prob_V[v]:
                probs_K[at], words_K[at] = probs_K[at - 1], words_K[at - 1]
                at -= 1
            probs_K[at], words_K[at] = prob_V[v], v


def _cuda(logits_RX, words, k, counts, log_sum_R):
    import cupy

    R = len(logits_RX)
    words_RK, probs_RK = cupy.empty((R, k), np.int32), cupy.empty((R, k), np.float32)
    if R == 0:
        return words_RK, probs_RK
    logits = with_adjacent_columns(logits_RX)
    kept = [[cupy.ascontiguousarray(array) for array in model[:5]] + [check.aligned(model.value_V)] for model in counts]
    table, ranges = np.zeros(1, TABLE), 0
    for i, arrays in enumerate(kept):
        K = arrays[0].shape[1]
        pointers = (array.data.ptr for array in arrays)
        table["models"][0, i] = (*pointers, K, arrays[0].dtype == np.int64, ranges)
        ranges += K
    N, tiles = len(counts), -(-words // TILE)
    starts = cupy.empty((R, ranges, tiles + 1), np.int64)
    keys_RTK, bound_R = cupy.empty((R, tiles, k), np.uint64), cupy.zeros(R, np.uint64)
    vector = not (logits.data.ptr % 16 or logits.strides[0] % 16)
    defines = {"VECTOR": int(vector)} | number_format(logits)
    if ranges:
        find = kernel("mixture/mixture_top", "find_tiles", **defines)
        launch(find, grid_for(starts.size, THREADS), THREADS, (table, N, ranges, R, words, tiles, starts))
    fn = kernel("mixture/mixture_top", "mixture_top", **defines)
    stride = logits.strides[0] // logits.itemsize
    args = logits, stride, words, N, ranges, table, tiles, k, starts, log_sum_R, bound_R, keys_RTK
    launch(fn, (R, *layers_of(tiles)), THREADS, args)
    merge = kernel("mixture/mixture_top", "merge_tiles", **defines)
    args = keys_RTK, R, tiles, k, log_sum_R, words_RK, probs_RK
    launch(merge, grid_for(LANES * R, MERGE_THREADS), MERGE_THREADS, args)
    return words_RK, probs_RK


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return up to 8 rows of `histories_and_children` of up to two models, with logits of any dtype."""
    made = [histories_and_children(rng, size, True) for _ in range(size % 3)]
    counts = [NgramChildren(*(array[:8] for array in of["children"]), *of["values"]) for of in made]
    words = len(counts[0].value_V) if counts else max(1, size)
    R = len(counts[0].first_HK) if counts else size % 4
    logits_RX = 3 * rng.standard_normal((R, words + len(counts) + size % 9), np.float32)
    logits_RX[:, words : words + len(counts)] += 5
    logits_RX[rng.random(logits_RX.shape) < 0.01] = -np.inf
    logits_RX[:, 0] = 1
    dtype = np.dtype((np.float32, np.float16, np.uint16)[size // 2 % 3])
    k = min(words, (1, 5, 40)[size // 3 % 3])
    return {"logits_RX": stored(logits_RX, dtype), "words": words, "k": k, "counts": counts}
