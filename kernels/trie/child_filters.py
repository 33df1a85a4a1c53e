"""Filters that usually show, without a search, that a node of a trie has no child by a word."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())


def child_filters(word_G: Any, first_child_M: Any, symbols: int, filter_bits: int) -> Any:
    """Return a filter of each node's children: bit `filter_bit` of every child's word is set.

    word_G, first_child_M  arrays of a trie, as for `find_children`
    symbols      nodes below this number (single words) have filters of 64 bits
    filter_bits  bits of the filters of other nodes, 1 to 64

    Returns filter_M (M,) uint64: Bloom filters ("Space/time trade-offs in hash coding", 1970) with one hash function.
    """
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    if not 1 <= filter_bits <= 64:
        raise ValueError(f"filters have {filter_bits} bits but must have 1 to 64")
    run = pick(cpu=_cpu, cuda=_cuda, word_G=word_G, first_child_M=first_child_M)
    return run(word_G, first_child_M, symbols, filter_bits)


@njit(nogil=True, inline="always")
def filter_bit(word, bits):
    """Return the bit of a word in a filter of `bits` bits; as in include/child_filters.cuh."""
    return (uint64(word) * uint64(0x9E3779B1) & uint64(0xFFFFFFFF)) * uint64(bits) >> uint64(32)


@njit(nogil=True, cache=True)
def _cpu(word_G, first_child_M, symbols, filter_bits):
    filter_M = np.zeros(len(first_child_M) - 1, np.uint64)
    for m in range(len(filter_M)):
        bits, filter_of_m = 64 if m < symbols else filter_bits, uint64(0)
        for g in range(np.int64(first_child_M[m]), np.int64(first_child_M[m + 1])):
            filter_of_m |= uint64(1) << filter_bit(word_G[g], bits)
        filter_M[m] = filter_of_m
    return filter_M


def _cuda(word_G, first_child_M, symbols, filter_bits):
    import cupy

    M = len(first_child_M) - 1
    filter_M = cupy.empty(M, np.uint64)
    if M:
        fn = kernel("trie/child_filters", "child_filters", CHILD=check.INTEGER[first_child_M.dtype])
        launch(fn, grid_for(M, 8), 256, (word_G, first_child_M, M, symbols, filter_bits, filter_M))
    return filter_M


def example_children(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return first_child_M (M + 1,) int64 of nodes without children, with a few, and one with half of all children."""
    M = size // 4
    runs_M = rng.poisson(2, M)
    if M:
        runs_M[rng.integers(M)] = size // 2
    return np.concatenate([[0], np.cumsum(runs_M)])


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return random words below the nodes of `example_children`."""
    first_child_M = example_children(rng, size)
    return {
        "word_G": rng.integers(0, 1 << 32, first_child_M[-1], np.uint32),
        "first_child_M": first_child_M.astype(np.uint32 if size % 2 else np.int64),
        "symbols": size // 4 // 3,
        "filter_bits": 1 + size % 64,
    }
