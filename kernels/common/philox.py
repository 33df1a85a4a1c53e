"""Random numbers by counter; include/philox.cuh is the same generator on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from ..compile_cpu import njit

ROUNDS = 10
DRAWS, FIRST_TOPICS, HELD_OUT, WORDS = 0, 1, 2, 3  # streams, which share no numbers


@njit(nogil=True, cache=True, inline="always")
def random_bits(seed, stream, sweep, document, position):
    """Return 64 random bits of one token in one sweep: the same on any device, in any order.

    Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the seed as key and
    (document, position, sweep, stream and upper bits of document) as counter; the first two of its four words.

    seed      uint64
    stream    DRAWS, FIRST_TOPICS, HELD_OUT or WORDS
    document  0 to 2^46 - 1
    position  position of the token in its document, 0 to 2^32 - 1
    """
    low = uint64(0xFFFFFFFF)
    c0, c1, c2 = uint64(document) & low, uint64(position), uint64(sweep)
    c3 = (uint64(document) >> uint64(32)) << uint64(2) | uint64(stream)
    k0, k1 = seed & low, seed >> uint64(32)
    for _ in range(ROUNDS):
        a, b = c0 * uint64(0xD2511F53), c2 * uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> uint64(32)) ^ c1 ^ k0, b & low, (a >> uint64(32)) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + uint64(0x9E3779B9)) & low, (k1 + uint64(0xBB67AE85)) & low
    return c0 | c1 << uint64(32)


@njit(nogil=True, cache=True)
def fill_random_bits(seed, stream, sweep, document_M, position_M, bits_M):
    """Fill bits_M with the `random_bits` of many tokens, by SIMD instructions: 1 ns a token instead of 20 ns."""
    for i in range(uint64(len(bits_M))):
        bits_M[i] = random_bits(seed, stream, sweep, document_M[i], position_M[i])


def random_numbers(seed: int, stream: int, documents: Any, positions: Any) -> np.ndarray:
    """Return a number in [0, 1) for each document and position, from `random_bits` of sweep 0."""
    arrays = np.broadcast_arrays(np.asarray(documents, np.int64), np.asarray(positions, np.int64))
    documents, positions = (np.array(array) for array in arrays)
    return _numbers(np.uint64(seed), stream, documents, positions)


@njit(nogil=True, cache=True)
def _numbers(seed, stream, documents, positions):
    numbers = np.empty(len(documents))
    for i in range(len(documents)):
        numbers[i] = (random_bits(seed, stream, 0, documents[i], positions[i]) >> uint64(11)) * 2.0**-53
    return numbers
