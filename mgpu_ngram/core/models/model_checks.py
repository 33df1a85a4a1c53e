"""Check that the arrays of a model agree, so that every search stays inside the arrays and ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.ngrams.trie import Trie, node_dtype
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.trie.edges import EdgeTable, key_layout


def contradiction(trie: Trie, words: Words, edges: EdgeTable | None, verify: bool) -> str:
    """Return the inconsistency that would lead a search outside the arrays, or ""; `verify`: check values, too."""
    if trie.fanout < 2 or list(trie.starts) != sorted(trie.starts) or trie.starts[0] != 0:
        return f"its orders begin at {trie.starts}, its fanout is {trie.fanout}"
    G, M, V = len(trie), trie.histories, trie.symbols
    L = max(0, M - trie.starts[min(2, trie.order)])
    node, levels = node_dtype(G), len(trie.sample_starts)
    value: Any = np.dtype(np.float32)
    if trie.quantized:
        value = np.dtype(np.uint8 if trie.centers.shape[-1] == 256 else np.uint16)
    wanted: dict[str, tuple[Any, tuple[int, ...]]] = {
        "word_G": (np.uint32, (G,)), "prob_G": (value, (G,)), "backoff_M": (value, (M if len(trie.backoff_M) else 0,)),
        "first_child_M": (node, (M + 1,)), "suffix_L": (node, (L,)),
        "sample_starts": (np.int64, (levels,)), "samples": (np.uint32, (int(trie.sample_starts[-1]),)),
        "filled_F": (node, (0 if trie.filled_F is None else len(trie.filled_F),)),
        "words_V2": (np.float32, (V, 2)), "centers": (np.float32, (trie.order - 1, 2, 1 << 8 * value.itemsize)),
    }  # fmt: skip
    for name, array in trie.arrays().items():
        dtype, shape = wanted[name]
        if array.dtype != dtype or array.shape != shape:
            return f"{name} is {array.dtype} of shape {array.shape} but must be {np.dtype(dtype)} of {shape}"
    if words.offsets_V.shape != (V + 1,) or words.offsets_V[0] != 0 or words.offsets_V[-1] != len(words.data):
        return f"its words are {len(words):,} of {len(words.data):,} bytes but the trie has {V:,}"
    starts = np.cumsum([0, *(-(-G // trie.fanout**t) for t in range(1, levels))])
    if not np.array_equal(trie.sample_starts, starts):
        return f"levels of its index begin at {trie.sample_starts.tolist()} but at {starts.tolist()} for its fanout"
    if edges and (wrong := _edge_contradiction(edges, trie, verify)):
        return f"its edge table {wrong}"
    if not verify:
        return ""
    first, ends = trie.first_child_M, words.offsets_V
    if first[-1] != G or first[0] != V * (trie.order > 1) + G * (trie.order == 1) or (first[1:] < first[:-1]).any():
        return "children do not follow each other"
    if (ends[1:] < ends[:-1]).any() or (trie.word_G >= V).any():
        return "words lie outside"
    for n in range(3, trie.order):
        before, begin, end = trie.starts[n - 2 : n + 1]
        suffix = trie.suffix_L[begin - trie.starts[2] : end - trie.starts[2]]
        if len(suffix) and not before <= suffix.min() <= suffix.max() < begin:
            return "suffixes lie outside of the order before"
    filled = trie.filled_F
    if filled is not None and not (
        len(filled) and V <= filled[0] <= filled[-1] < M and (filled[1:] > filled[:-1]).all()
    ):
        return "n-grams that were filled in are none, out of order, or of order 1 or the highest"
    return ""


def _edge_contradiction(edges: EdgeTable, trie: Trie, verify: bool) -> str:
    """As `contradiction`, for an edge table."""
    slots, words, G, V = edges.slots_E2, edges.words_V2, len(trie), trie.symbols
    if slots.dtype != np.uint64 or slots.ndim != 2 or slots.shape[1] != 2 or len(slots) % 2:
        return f"has slots of {slots.dtype} of shape {slots.shape}"
    if words.dtype != np.uint64 or words.shape != (V, 2):
        return f"has words of {words.dtype} of shape {words.shape}"
    bits = edges.word_bits, edges.key_bits, edges.node_bits, edges.check_bits
    right_bits = bits == key_layout(V, trie.histories, G, edges.buckets)
    if not 1 <= edges.buckets <= len(slots) // 2 or not right_bits:
        return f"has {len(slots):,} slots, {edges.buckets:,} buckets and keys of {bits} bits"
    if not 1 <= edges.filter_bits <= 64 - edges.node_bits - edges.check_bits:
        return f"has filters of {edges.filter_bits} bits beside {edges.node_bits} and {edges.check_bits}"
    if slots[-1, 0]:
        return "has no empty slot at its end"
    if verify:
        child_E = slots[:, 0] & np.uint64((1 << edges.node_bits) - 1)
        if np.count_nonzero(child_E) != G - V or child_E.max() >= G or (child_E - np.uint64(1)).min() < V - 1:
            return "leads outside of the trie"
    return ""
