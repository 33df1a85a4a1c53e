"""Return the logarithms of two sums of a mixture of distributions: of all weights, and of the parts of one word."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, float64

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..decode.activations import exponential, number_format, singles, stored
from ..decode.exponential_sums import log_of, log_of_chunks
from ..decode.logit_rows import or_null
from ..decode.sum_chunks import sum_chunks
from ..dispatch import array_module, pick
from ..launch import LANES, grid_for, kernel, launch

VARIANTS = FORMATS
LEAST_FLOAT16_SUM = -65480.0  # the greatest logit of a row with such a sum is -65,504; the next float16 is -65,472
COUNTS, WORDS = 1, 2  # bits of `dropped_R`; as in mixture.cuh


class Mixture(NamedTuple):
    """Rows of a mixture of N count distributions and of `words` distributions with one word each.

    logits_RX     (R, X) float32, float16, or uint16: the bits of bfloat16. Logits of the words' distributions, then of
                  the count distributions. Columns from words + N on are not read: with X a multiple of 8 all rows are
                  aligned, which is fastest
    words         1 or more
    log_probs_RN  (R, N) float32: ln P of the gold word by each count distribution; -inf is legal
    gold_R        (R,) int64: the gold word of each row, 0 to words - 1
    dropped_R     None or (R,) uint8, the blocks that a row lacks: COUNTS, WORDS or 0

    The weights of a row are the softmax of the logits of its blocks. The probability of its gold word is that word's
    weight plus the sum of the weights of count distributions, times their probabilities of the word (Neubig and Dyer,
    "Generalizing and hybridizing count-based and neural language models", 2016, equation 4).
    """

    logits_RX: Any
    words: int
    log_probs_RN: Any
    gold_R: Any
    dropped_R: Any = None


def mixture_sums(mixture: Mixture) -> tuple[Any, Any]:
    """Return the logarithms of two sums of exponentials of each row: of all, and of those that give the gold word.

    Returns log_sum_R and log_gold_R, (R,) float64: ln of sum_j exp(z_j), and of exp(z_gold) + sum_i exp(z_i) P_i, over
    the blocks that a row has. Their difference, log_gold_R - log_sum_R, is ln P of the gold word. log_gold_R is -inf
    for a probability of 0.

    Each logit is read once. Logits must be below 2^21, and one of the words above -2^21; otherwise both sums are NaN.
    They are also NaN if a number is NaN, both blocks are dropped, or the gold word is out of range. log_sum_R is NaN
    for a row of float16 without a logit above the least number, -65,504, from which -inf is not told apart. All devices
    return the same bits, for any number of rows.
    """
    log_sum_R, log_gold_R = pick(cpu=_cpu, cuda=_cuda, **mixture_arrays(mixture))(mixture)
    if mixture.logits_RX.dtype == np.float16:
        xp = array_module(log_sum_R)
        log_sum_R = xp.where(log_sum_R < LEAST_FLOAT16_SUM, np.nan, log_sum_R)
    return log_sum_R, log_gold_R


def softmax_sums(logits_RX: Any, words: int, N: int) -> Any:
    """Return log_sum_R of `mixture_sums` for rows without a gold word."""
    xp, R = array_module(logits_RX), len(logits_RX)
    return mixture_sums(Mixture(logits_RX, words, xp.zeros((R, N), np.float32), xp.zeros(R, np.int64)))[0]


def mixture_arrays(mixture: Mixture) -> dict[str, Any]:
    """Return all arrays by their names. Raise TypeError or ValueError unless dtypes and shapes fit together."""
    logits_RX, words, log_probs_RN, gold_R, dropped_R = mixture
    check.dtype(logits_RX, np.float32, np.float16, np.uint16)
    check.dtype(log_probs_RN, np.float32)
    check.dtype(gold_R, np.int64)
    arrays = {"logits_RX": logits_RX, "log_probs_RN": log_probs_RN, "gold_R": gold_R}
    if dropped_R is not None:
        check.dtype(dropped_R, np.uint8)
        arrays["dropped_R"] = dropped_R
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(logits_RX.shape) != 2 or len(log_probs_RN.shape) != 2 or words < 1:
        raise ValueError(
            f"words is {words} and shapes are {shapes} but words must be at least 1, and logits and log_probs need 2 "
            "axes"
        )
    (R, X), N = logits_RX.shape, log_probs_RN.shape[1]
    if words + N > X:
        raise ValueError(f"logits_RX has {X} columns but {words} words and {N} count distributions need {words + N}")
    for name, array in arrays.items():
        if array.shape[0] != R or (name.endswith("_R") and len(array.shape) != 1):
            raise ValueError(f"{name} has shape {array.shape} but logits of shape {(R, X)} have {R} rows")
    return arrays


def _cpu(mixture):
    logits_RX, words, log_probs_RN, gold_R, dropped_R = mixture
    R, N = log_probs_RN.shape
    log_sum_R, log_gold_R = np.empty(R), np.empty(R)
    if R:
        chunks_RC = sum_chunks(logits_RX[None, :, :words])[0][0]
        sum_RC, reference_RC = (
            np.ascontiguousarray(chunks_RC.view(dtype)[:, i::2]) for i, dtype in enumerate((np.float32, np.int32))
        )
        inside = (gold_R >= 0) & (gold_R < words)
        at_R = np.where(inside, gold_R, 0)[:, None]
        of_gold_R = np.where(inside, singles(np.take_along_axis(logits_RX, at_R, 1))[:, 0], np.float32(np.nan))
        of_counts_RN = np.ascontiguousarray(singles(logits_RX[:, words : words + N]))
        _log_sums(
            sum_RC, reference_RC, of_gold_R, of_counts_RN, np.ascontiguousarray(log_probs_RN),
            np.zeros(R, np.uint8) if dropped_R is None else np.ascontiguousarray(dropped_R), log_sum_R, log_gold_R,
        )  # fmt: skip
    return log_sum_R, log_gold_R


@njit(nogil=True, cache=True)
def _log_sums(sum_RC, reference_RC, of_gold_R, of_counts_RN, log_probs_RN, dropped_R, log_sum_R, log_gold_R):
    R, N = of_counts_RN.shape
    lanes_L = np.empty(LANES, np.float64)
    terms_N = np.empty(N + 1, np.float64)
    for r in range(R):
        terms_N[:] = -np.inf
        if not dropped_R[r] & 1:
            for i in range(N):
                terms_N[i] = of_counts_RN[r, i]
        if not dropped_R[r] & 2:
            terms_N[N] = log_of_chunks(sum_RC[r], reference_RC[r], lanes_L)
        log_sum = _log_of_terms(terms_N)
        if not dropped_R[r] & 1:
            for i in range(N):
                terms_N[i] += float64(log_probs_RN[r, i])
        gold = float64(of_gold_R[r])
        terms_N[N] = -np.inf if dropped_R[r] & 2 and gold == gold else gold
        log_gold = _log_of_terms(terms_N)
        is_sum = log_sum > -np.inf and log_gold == log_gold
        log_sum_R[r], log_gold_R[r] = (log_sum, log_gold) if is_sum else (np.nan, np.nan)


@njit(nogil=True, cache=True)
def _log_of_terms(terms):
    """Return the logarithm of the sum of exp(terms); NaN if one is NaN or inf."""
    top, total = -np.inf, 0.0
    for i in range(len(terms)):
        top = terms[i] if terms[i] > top else top
    for i in range(len(terms)):
        if terms[i] != -np.inf:
            total += float64(exponential(float32(terms[i] - top)))
    if total != total:
        return np.nan
    return top if top == -np.inf else top + log_of(total, 0)


def _cuda(mixture):
    import cupy

    logits_RX, words, log_probs_RN, gold_R, dropped_R = mixture
    R, N = log_probs_RN.shape
    log_sum_R, log_gold_R = cupy.empty(R, np.float64), cupy.empty(R, np.float64)
    if R:
        logits = with_adjacent_columns(logits_RX)
        chunks_RC = sum_chunks(logits[None, :, :words])[0][0]
        others = [None if a is None else cupy.ascontiguousarray(a) for a in (log_probs_RN, gold_R, dropped_R)]
        fn = kernel("mixture/mixture_sums", "mixture_sums", **number_format(logits))
        args = (
            logits, logits.strides[0] // logits.itemsize, words, N, *map(or_null, others), R, chunks_RC,
            chunks_RC.shape[1], log_sum_R, log_gold_R,
        )  # fmt: skip
        launch(fn, grid_for(LANES * R, 128), 128, args)
    return log_sum_R, log_gold_R


def with_adjacent_columns(logits_RX: Any) -> Any:
    """Return the logits, or a copy if the columns of a row are not adjacent or a stride is negative."""
    size = logits_RX.itemsize
    plain = logits_RX.strides[1] == size and logits_RX.strides[0] >= 0 and logits_RX.strides[0] % size == 0
    return logits_RX if plain else logits_RX.copy()


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of `size` words; by size, of any dtype, with 0 to 4 count distributions and dropped blocks."""
    R, words, N = size % 5 + (size > 1), max(1, size), size % 4 + size % 2
    dtype = np.dtype((np.float32, np.float16, np.uint16)[size // 2 % 3])
    logits_RX = 3 * rng.standard_normal((R, words + N + size % 9), np.float32)
    logits_RX[rng.random(logits_RX.shape) < 0.01] = -np.inf
    logits_RX[:, 0] = 1
    probs_RN = rng.random((R, N), np.float32)
    probs_RN[probs_RN < 0.2] = 0
    with np.errstate(divide="ignore"):
        log_probs_RN = np.log(probs_RN)
    return {
        "mixture": Mixture(
            stored(logits_RX, dtype),
            words,
            log_probs_RN,
            rng.integers(0, words, R),
            rng.choice(np.array([0, WORDS if N else 0, COUNTS], np.uint8), R) if size % 3 else None,
        )
    }
