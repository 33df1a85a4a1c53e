"""Find histories and write their rows in one kernel, which is faster than two kernels for few words or short rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.float_formats import FORMATS
from ..dispatch import pick
from ..trie.find_children import TrieIndex
from .find_histories import Positions, check_backoffs, find_histories, fits_a_warp
from .find_histories import example as some_histories
from .row_launch import (
    BLOCK_SHAPE,
    BLOCK_TILE,
    RowKind,
    WordValues,
    check_rows,
    is_little_work,
    launch_blocks,
    rounding_of,
)
from .write_rows import write_rows

VARIANTS = (
    *({"TILE": tile, "CHILD": child, "VECTOR": vector, "FIND": find} | BLOCK_SHAPE | form
      for form in FORMATS
      for child, vector, find in (("u32", 1, 0), ("u32", 1, 1), ("u32", 0, 1), ("i64", 1, 1))
      for tile in (256 if form else 128, BLOCK_TILE)),
    *({"TILE": BLOCK_TILE, "CHILD": "u32", "VECTOR": 1, "FIND": find, "MULTIPLY": find} | BLOCK_SHAPE
      for find in (0, 1)),
)  # fmt: skip


def find_and_write_rows(
    out_HNV: Any,
    orders: tuple[int, ...],
    index: TrieIndex,
    order: int,
    positions: Positions,
    backoff_M: Any,
    values: WordValues,
    kind: RowKind,
) -> None:
    """Fill out_HNV with the result of `write_rows` for the histories that `find_histories` finds.

    The arguments are those of both functions; values.word_G is index.word_G. backoff_M and `values` have the same
    scale: probabilities if kind.multiply, else logarithms.

    Returns nothing.
    """
    word_G, first_child_M, samples, sample_starts, _ = index
    codes_T, positions_H, _ = positions
    _, value_G, value_V = values
    check.dtype(out_HNV, *([np.uint16] if kind.bfloat16 else [np.float32, np.float16]))
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(positions_H, np.int64)
    for numbers in word_G, codes_T:
        check.dtype(numbers, np.uint32)
    for floats in backoff_M, value_G, value_V:
        check.dtype(floats, np.float32)
    check_backoffs(backoff_M, first_child_M)
    check_rows(out_HNV, orders, len(positions_H), order - 1, len(value_V))
    arrays = {
        "out_HNV": out_HNV, "word_G": word_G, "first_child_M": first_child_M, "samples": samples,
        "sample_starts": sample_starts, "codes_T": codes_T, "positions_H": positions_H, "backoff_M": backoff_M,
        "value_G": value_G, "value_V": value_V,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    if 0 not in out_HNV.shape:
        run(out_HNV, orders, index, positions, backoff_M, values, kind)


def _one_after_the_other(out_HNV, orders, index, positions, backoff_M, values, kind):
    neutral = 1.0 if kind.multiply else -0.0
    children = find_histories(index, orders[-1], positions, backoff_M, neutral)
    write_rows(out_HNV, orders, children, values, kind)


_cpu = _one_after_the_other


def _cuda(out_HNV, orders, index, positions, backoff_M, values, kind):
    _, first_child_M, samples, sample_starts, fanout = index
    multiply, nothing, bfloat16 = kind
    K = orders[-1] - 1
    if not (fits_a_warp(K, fanout) and is_little_work(out_HNV, True)):
        _one_after_the_other(out_HNV, orders, index, positions, backoff_M, values, kind)
        return
    levels = samples, sample_starts, len(sample_starts) - 1, fanout, len(first_child_M) - 1
    backoffs = backoff_M if len(backoff_M) else 0  # 0: a null pointer
    neutral = np.float32(1.0 if multiply else -0.0)
    walks = first_child_M, *levels, backoffs, *positions, neutral
    defines = {"FIND": 1, "CHILD": check.INTEGER[first_child_M.dtype]}
    how = multiply, nothing is not None, np.float32(nothing or 0)
    launch_blocks(out_HNV, rounding_of(out_HNV, bfloat16), orders, defines, walks, K, values, how)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a trigram model of a text and a few histories of it. By size: probabilities or logarithms, smoothed or
    stored rows, each dtype.
    """
    made = some_histories(rng, size)
    dtype = (np.float32, np.float16, np.uint16)[size % 3]
    orders = ((1, 2, 3), (3,), (1, 2), (1,))[size % 4]
    index, (codes_T, positions_H, begin) = made["index"], made["positions"]
    nodes, G, V = len(index.first_child_M) - 1, len(index.word_G), int(index.first_child_M[0])
    multiply = bool(size % 2)
    sign = 1 if multiply else -1
    positions_H = positions_H[:5]
    made["backoff_M"] = sign * rng.random(nodes if len(made["backoff_M"]) else 0, np.float32)
    value_G = sign * rng.random(G, np.float32)
    return made | {
        "out_HNV": np.zeros((len(positions_H), len(orders), V), dtype),
        "orders": orders,
        "positions": Positions(codes_T, positions_H, begin),
        "values": WordValues(index.word_G, value_G, value_G[:V]),
        "kind": RowKind(multiply, (0.0 if multiply else -np.inf) if size % 5 < 2 else None, dtype == np.uint16),
    }
