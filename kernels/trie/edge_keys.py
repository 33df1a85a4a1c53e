"""Number the edges of a trie by the keys of its edge table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .child_filters import example_children

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())


def edge_keys(word_G: Any, first_child_M: Any, word_bits: int, key_bits: int) -> Any:
    """Return the key of each edge and the child that it leads to.

    word_G, first_child_M  arrays of a trie, as for `find_children`; single words have no edges
    word_bits  bits of a word
    key_bits   bits of a key, node << word_bits | word; 2 to 64

    Returns keys_2E (2, E) uint64: scrambled keys (`scramble`) in the upper key_bits bits, then rising children.
    """
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    run = pick(cpu=_cpu, cuda=_cuda, word_G=word_G, first_child_M=first_child_M)
    return run(word_G, first_child_M, word_bits, key_bits)


@njit(nogil=True, inline="always")
def scramble(x, bits):
    """Apply a bijection to a number of `bits` bits, 2 to 64; as in include/edges.cuh."""
    mask, half = uint64(0xFFFFFFFFFFFFFFFF) >> uint64(64 - bits), uint64(bits // 2)
    x ^= x >> half
    x = x * uint64(0x9E3779B97F4A7C15) & mask
    x ^= x >> half
    x = x * uint64(0xD6E8FEB86659FD93) & mask
    return x ^ (x >> half)


@njit(nogil=True, cache=True)
def _cpu(word_G, first_child_M, word_bits, key_bits):
    V, parent = np.int64(first_child_M[0]), 0
    keys_2E = np.empty((2, len(word_G) - V), np.uint64)
    for e in range(keys_2E.shape[1]):
        child = V + e
        while np.int64(first_child_M[parent + 1]) <= child:
            parent += 1
        x = scramble(uint64(parent) << uint64(word_bits) | uint64(word_G[child]), key_bits)
        keys_2E[0, e], keys_2E[1, e] = x << uint64(64 - key_bits), uint64(child)
    return keys_2E


def _cuda(word_G, first_child_M, word_bits, key_bits):
    import cupy

    M, V = len(first_child_M) - 1, int(first_child_M[0])
    E = len(word_G) - V
    keys_2E = cupy.empty((2, E), np.uint64)
    if E:
        fn = kernel("trie/edge_keys", "edge_keys", CHILD=check.INTEGER[first_child_M.dtype])
        launch(fn, grid_for(E, 256), 256, (word_G, first_child_M, M, V, E, word_bits, key_bits, keys_2E))
    return keys_2E


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return random words below the nodes of `example_children`; single words come first."""
    V = 1 + size // 5
    first_child_M = np.concatenate([[V], V + example_children(rng, size)])
    word_bits = max(1, (V - 1).bit_length())
    return {
        "word_G": rng.integers(0, V, first_child_M[-1], np.uint32),
        "first_child_M": first_child_M.astype(np.uint32 if size % 2 else np.int64),
        "word_bits": word_bits,
        "key_bits": min(64, word_bits + max(1, (len(first_child_M) - 2).bit_length()) + size % 9),
    }
