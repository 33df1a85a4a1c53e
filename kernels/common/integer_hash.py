"""Hash a 64-bit integer; include/integer_hash.cuh has the same function for a GPU. Strings: `count.hash_words`."""

from __future__ import annotations

from numpy import uint64

from ..compile_cpu import njit


@njit(nogil=True, cache=True, inline="always")
def mix64(x):
    """Return x mixed by the finaliser of MurmurHash3 (Appleby), a bijection of 64-bit numbers."""
    x = uint64(x)
    x ^= x >> uint64(33)
    x *= uint64(0xFF51AFD7ED558CCD)
    x ^= x >> uint64(33)
    x *= uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> uint64(33))
