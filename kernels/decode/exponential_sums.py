"""Sums of exponentials on the CPU; include/exponential_sums.cuh has the same arithmetic for a GPU.

A row is cut into chunks, a chunk into four groups, a group into LOADS runs. Logit i of a run is added to sum number i
of the chunk. exp(x) is 2^n times 2^f with n = x * log2(e), rounded to an integer. The sums of a chunk are in units of
2^reference: the greatest n so far. 2^f is a polynomial, and each step is one float32 operation, so all devices give
the same bits. For |x| < 16, the error of exp(x) is below 4 units in the last place for float32; for other logits,
whose own rounding is larger, the relative error is below 4e-6.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import float32, float64, int64

from ..common.float_formats import FLOAT16
from ..compile_cpu import njit
from ..intrinsics import from_bfloat16, from_float16, from_float32, multiply_add, power_of_2
from ..launch import LANES

RUN = (128, 256, 256)  # logits of a run: what a warp loads at once, 16 bytes a lane
LOADS = 4
CHUNKS = (2048, 4096, 4096)  # four groups
LOG2_E, LN_2 = float32(math.log2(math.e)), float32(math.log(2))
LN_2_EXACT = math.log(2)
ROUND = float32(1.5 * 2**23)  # adding it rounds to an integer
LIMIT = float32(2**21)  # logits must not be greater; the greatest of a row must be above -LIMIT
FIRST_REFERENCE = int64(-(1 << 30))  # the reference of a chunk that has no group yet
MIN_REFERENCE = -int64(np.rint(LIMIT * float64(LOG2_E)))  # the reference of a chunk without a logit above -LIMIT
# Polynomials of least relative error on [-1/2, 1/2], lowest power first.
EXP_COEFFICIENTS = np.array(
    [
        [1.0000000716550264, 0.6931469670639854, 0.2402211972214386, 0.05550713273940666, 0.009675541426496306,
         0.0013276472110761196],
        [0.9999992614421854, 0.6931218146366507, 0.24024744832123746, 0.0559178611401972, 0.009570102030302785, 0],
    ],
    np.float32,
)  # fmt: skip
LOG_TERMS = 11  # as in estimate/log10_values.py


@njit(nogil=True, cache=True)
def load_group(bits_N, kind, x):
    """Set x to the floats of bits_N, then -inf."""
    if kind == 0:
        for i in range(len(bits_N)):
            x[i] = from_float32(bits_N[i])
    elif kind == 1:
        for i in range(len(bits_N)):
            x[i] = from_float16(bits_N[i])
    else:
        for i in range(len(bits_N)):
            x[i] = from_bfloat16(bits_N[i])
    x[len(bits_N) :] = -np.inf


@njit(nogil=True, cache=True)
def greatest(x, count, most, tops, at):
    """Return the greatest of x, ignoring NaN, and set tops[at + p] to that of part p; overwrites `most` (a quarter).

    x  512 or 1,024 floats, -inf from `count` on; part p of four has the quarter p of each run
    """
    run, least = len(most), float32(-np.inf)
    if count <= run:
        for i in range(run):
            most[i] = x[i] if x[i] > least else least
    else:
        x0, x1, x2, x3 = x[:run], x[run : 2 * run], x[2 * run : 3 * run], x[3 * run :]
        for i in range(run):
            a = x0[i] if x0[i] > least else least
            b = x1[i] if x1[i] > a else a
            c = x2[i] if x2[i] > b else b
            most[i] = x3[i] if x3[i] > c else c
    for p in range(4):
        part = most[p * (run // 4) : (p + 1) * (run // 4)]
        if run == 256:
            _fold(part, 32)
        _fold(part, 16)  # constants: LLVM makes no loops of these
        _fold(part, 8)
        _fold(part, 4)
        tops[at + p] = max(max(part[0], part[1]), max(part[2], part[3]))
    return max(max(tops[at], tops[at + 1]), max(tops[at + 2], tops[at + 3]))


@njit(nogil=True, cache=True, inline="always")
def _fold(most, half):
    for i in range(half):
        most[i] = most[i + half] if most[i + half] > most[i] else most[i]


@njit(nogil=True, cache=True)
def add_terms(x, count, run, kind, powers, top, reference, sums):
    """Add exp(x) / 2^reference to `sums` of a chunk, and return the new reference.

    x    the values of a group, -inf from `count` on
    kind FLOAT32, FLOAT16 or BFLOAT16, the kind of the logits
    top  the greatest of x
    """
    limited = min(max(top, -LIMIT), LIMIT)
    new = max(reference, int64(multiply_add(limited, LOG2_E, ROUND) - ROUND))
    if new != reference:
        factor = _power(reference - new)
        for i in range(run):
            sums[i] *= factor
    if top > LIMIT:
        sums[0] = np.nan
    low = float32(new - 126) * LN_2
    if kind == FLOAT16:  # low becomes one, too: a GPU limits pairs
        low = max(np.ceil(low * float32(1 / 32)) * float32(32), float32(-65504))
    shift = ROUND + float32(127 - new)
    p0, p1, p2, p3, p4, p5 = powers[0], powers[1], powers[2], powers[3], powers[4], powers[5]
    loads = (count + run - 1) // run
    for u in range(loads):
        part = x[u * run : (u + 1) * run]
        for i in range(run):
            value = low if part[i] < low else part[i]  # a NaN stays
            whole = multiply_add(value, LOG2_E, shift)
            f = multiply_add(value, LOG2_E, shift - whole)
            p = multiply_add(multiply_add(p5, f, p4), f, p3)
            p = multiply_add(multiply_add(multiply_add(p, f, p2), f, p1), f, p0)
            sums[i] = multiply_add(p, power_of_2(whole), sums[i])
    if loads < LOADS:  # the term of -inf is tiny, but a GPU adds it
        whole = multiply_add(low, LOG2_E, shift)
        f = multiply_add(low, LOG2_E, shift - whole)
        p = multiply_add(multiply_add(p5, f, p4), f, p3)
        p = multiply_add(multiply_add(multiply_add(p, f, p2), f, p1), f, p0)
        for _ in range(loads, LOADS):
            for i in range(run):
                sums[i] = multiply_add(p, power_of_2(whole), sums[i])
    return new


@njit(nogil=True, cache=True)
def _power(n):
    """Return 2^n for n <= 0 as float32, or 0 if it is subnormal."""
    return from_float32(np.uint32(n + 127) << np.uint32(23)) if n >= -126 else float32(0)


@njit(nogil=True, cache=True)
def sum_chunk(sums, run):
    """Return the total of the sums of a chunk, added in pairs; overwrites sums."""
    half = run // 2
    while half:
        for i in range(half):
            sums[i] = sums[2 * i] + sums[2 * i + 1]
        half //= 2
    return sums[0]


@njit(nogil=True, cache=True)
def log_of_chunks(sum_C, reference_C, lanes_L):
    """Return the logarithm of the sum of chunks in float64, or NaN if no logit is above -LIMIT; overwrites lanes_L."""
    reference = reference_C[0]
    for c in range(len(reference_C)):
        reference = max(reference, reference_C[c])
    lanes_L[:] = 0
    for c in range(len(reference_C)):
        n = max(int64(reference_C[c]) - int64(reference), -1000)
        lanes_L[c % LANES] += float64(sum_C[c]) * math.ldexp(1.0, n)
    half = LANES // 2
    while half:
        for i in range(half):
            lanes_L[i] += lanes_L[i + half]
        half //= 2
    total = lanes_L[0]
    if reference <= MIN_REFERENCE or np.isnan(total):
        return np.nan
    return log_of(total, reference)


@njit(nogil=True, cache=True)
def log_of(total, reference):
    """Return the natural logarithm of total * 2^reference in float64; total is a normal number above 0."""
    fraction, exponent = math.frexp(total)
    fraction, exponent = 2 * fraction, exponent - 1
    if fraction > 1.4142135623730951:
        fraction, exponent = 0.5 * fraction, exponent + 1
    s = (fraction - 1.0) / (fraction + 1.0)
    square, series = s * s, 0.0
    for k in range(LOG_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * k + 1)
    return float64(int64(reference) + exponent) * LN_2_EXACT + 2.0 * s * series
