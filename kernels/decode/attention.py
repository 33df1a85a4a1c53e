"""Attend to encoded sentences: energies, their softmax and the weighted mean of the contexts, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import multiply_add
from ..launch import LANES, kernel, launch
from .activations import GROW_LIMIT, PARTS, exponential, grown, number_format, singles, stored, sum_parts, tanh

THREADS, ROWS = 256, 4  # as in attention.cu
MAX_BLOCKS = 1 << 30
VARIANTS = tuple({"VECTOR": vector} | half for vector in (0, 1) for half in FORMATS)


class Sentences(NamedTuple):
    """Encoded sentences that rows attend to, float32, float16, or uint16: the bits of bfloat16.

    memory_STA   (S, T, A) the summands of the energies that come from the sentences
    context_STC  (S, T, C)
    length_S     (S,) int64, number of positions of each sentence, 1 to T; later positions are not read
    """

    memory_STA: Any
    context_STC: Any
    length_S: Any


def attention(query_RA: Any, slot_R: Any, sentences: Sentences, energy_A: Any) -> tuple[Any, Any]:
    """Return the weights of source positions and the weighted means of contexts, of each row.

    query_RA  (R, A) of the dtype of the sentences
    slot_R    (R,) int64, the sentence of each row
    energy_A  (A,) of the same dtype

    Returns weights_RT (R, T) float32, the softmax over positions t of sum(tanh(memory + query) * energy), 0 after the
    end of the sentence; and context_RC (R, C) of the dtype, sum(weights * context) (Bahdanau et al., "Neural machine
    translation by jointly learning to align and translate", 2015). Arithmetic is float32. All devices return the same
    bits, for any number of rows, sentences and positions. The sums over A are never stored for more than a few rows.

    tanh(m + q) is 1 - 2 / (1 + exp(2m) exp(2q)): neighbouring rows of a sentence share the exponentials of its memory,
    and the softmax is the same without the sum of the energies. If |m| or |q| is above GROW_LIMIT, the position or
    the row computes the tangents directly.
    """
    memory_STA, context_STC, length_S = sentences
    check.dtype(query_RA, np.float32, np.float16, np.uint16)
    for array in (memory_STA, context_STC, energy_A):
        check.dtype(array, query_RA.dtype)
    for array in (slot_R, length_S):
        check.dtype(array, np.int64)
    (R, A), (S, T, _) = query_RA.shape, context_STC.shape
    wanted = {"slot_R": (R,), "memory_STA": (S, T, A), "length_S": (S,), "energy_A": (A,)}
    found = {"slot_R": slot_R, "memory_STA": memory_STA, "length_S": length_S, "energy_A": energy_A}
    for name, array in found.items():
        if array.shape != wanted[name]:
            raise ValueError(f"{name} has shape {array.shape} but query_RA and context_STC need {wanted[name]}")
    run = pick(_cpu, _cuda, query_RA=query_RA, context_STC=context_STC, **found)
    return run(query_RA, slot_R, sentences, energy_A)


def _cpu(query_RA, slot_R, sentences, energy_A):
    memory, context, query, energy = (np.ascontiguousarray(singles(a)) for a in (*sentences[:2], query_RA, energy_A))
    R, (_, T, C) = len(query), context.shape
    weights_RT, context_RC = np.zeros((R, T), np.float32), np.zeros((R, C), np.float32)
    _attend(query, slot_R, memory, context, sentences.length_S, energy, weights_RT, context_RC)
    return weights_RT, stored(context_RC, query_RA.dtype)


@njit(nogil=True, cache=True, error_model="numpy")
def _attend(query_RA, slot_R, memory_STA, context_STC, length_S, energy_A, weights_RT, context_RC):
    parts, lanes = np.empty(PARTS, np.float32), np.empty(LANES, np.float32)
    A, T = len(energy_A), memory_STA.shape[1]
    grown_A, grown_TA, far_T = np.empty(A, np.float32), np.empty((T, A), np.float32), np.empty(T, np.bool_)
    minus_2_energy_A = float32(-2) * energy_A
    for r in range(len(query_RA)):
        s = slot_R[r]
        weights_T = weights_RT[r, : length_S[s]]
        if r == 0 or s != slot_R[r - 1]:
            for t in range(len(weights_T)):
                far_T[t] = _grow(memory_STA[s, t], grown_TA[t])
        is_far = _grow(query_RA[r], grown_A)
        top = float32(-np.inf)
        for t in range(len(weights_T)):
            if is_far or far_T[t]:
                _add_far_energies(memory_STA[s, t], query_RA[r], minus_2_energy_A, parts)
            else:
                _add_energies(grown_TA[t], grown_A, minus_2_energy_A, parts)
            weights_T[t] = sum_parts(parts)
            top = weights_T[t] if weights_T[t] > top else top
        lanes[:] = 0
        for t in range(len(weights_T)):
            weights_T[t] = exponential(weights_T[t] - top)
            lanes[t % LANES] += weights_T[t]
        half = LANES // 2
        while half:
            for i in range(half):
                lanes[i] += lanes[i + half]
            half //= 2
        for t in range(len(weights_T)):
            weight = weights_T[t] / lanes[0]
            weights_T[t] = weight
            _add_context(weight, context_STC[s, t], context_RC[r])


@njit(nogil=True, cache=True, error_model="numpy")
def _grow(x_A, grown_A):
    """Write exp(2x); return whether a number is too large for it, or NaN."""
    near = 0
    for a in range(len(x_A)):
        near += abs(x_A[a]) <= GROW_LIMIT
        grown_A[a] = grown(x_A[a])
    return near < len(x_A)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_energies(memory_A, query_A, energy_A, parts):
    """Set the parts of the sum of energy / (1 + memory * query)."""
    parts[:] = 0
    for start in range(0, len(memory_A), PARTS):
        stop = start + PARTS
        memory, query, energy = memory_A[start:stop], query_A[start:stop], energy_A[start:stop]
        for i in range(len(memory)):
            inverse = float32(1) / multiply_add(memory[i], query[i], float32(1))
            parts[i] = multiply_add(inverse, energy[i], parts[i])


@njit(nogil=True, cache=True, error_model="numpy")
def _add_far_energies(memory_A, query_A, energy_A, parts):
    """Set the parts of the sum of energy * (1 - tanh(memory + query)) / 2."""
    parts[:] = 0
    for start in range(0, len(memory_A), PARTS):
        stop = start + PARTS
        memory, query, energy = memory_A[start:stop], query_A[start:stop], energy_A[start:stop]
        for i in range(len(memory)):
            half = (float32(1) - tanh(memory[i] + query[i])) * float32(0.5)
            parts[i] = multiply_add(half, energy[i], parts[i])


@njit(nogil=True, cache=True, error_model="numpy")
def _add_context(weight, context_C, sum_C):
    for c in range(len(sum_C)):
        sum_C[c] = multiply_add(weight, context_C[c], sum_C[c])


def _cuda(query_RA, slot_R, sentences, energy_A):
    import cupy

    arrays = query_RA, *sentences[:2], energy_A
    query, memory, context, energy = (check.aligned(a) for a in arrays)
    slot, length = cupy.ascontiguousarray(slot_R), cupy.ascontiguousarray(sentences.length_S)
    (R, A), (_, T, C) = query.shape, context.shape
    weights_RT, context_RC = cupy.empty((R, T), np.float32), cupy.empty((R, C), query.dtype)
    if R:
        fn = kernel("decode/attention", "attention", VECTOR=int(A % 4 == 0 and C % 4 == 0), **number_format(query))
        args = (query, slot, memory, context, length, energy, R, T, A, C, weights_RT, context_RC)
        launch(fn, min(R, MAX_BLOCKS), THREADS, args, shared_bytes=4 * ((ROWS + 1) * A + ROWS * T))
    return weights_RT, context_RC


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of a few sentences of different lengths, of about `size` energies; by size, of any dtype."""
    A, C = (130, 4, 64, 7)[size // 2 % 4], (5, 12, 64, 300)[size // 3 % 4]
    T = 1 + min(size, 40) + size % 3
    R = min(-(-size // T), 500)
    S = 1 + R // 3
    dtype = np.dtype((np.float32, np.float32, np.float16, np.uint16)[size % 4])

    def numbers(*shape: int) -> np.ndarray:
        return stored(2 * rng.standard_normal(shape, np.float32), dtype)

    length_S = rng.integers(1, T + 1, S)
    length_S[0] = T
    return {
        "query_RA": numbers(R, A),
        "slot_R": np.sort(rng.integers(0, S, R)),
        "sentences": Sentences(numbers(S, T, A), numbers(S, T, C), length_S),
        "energy_A": numbers(A),
    }
