"""Find histories and write their rows in one kernel: faster than two kernels for few words or short rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from .find_histories import check_backoffs, find_histories, fits_a_warp
from .find_histories import example as some_histories
from .rows import BLOCK, BLOCK_TILE, HALF, check_rows, is_little_work, launch_blocks, rounding_of
from .write_rows import write_rows

VARIANTS = tuple(
    {"TILE": tile, "CHILD": child, "VECTOR": vector, "FIND": find} | BLOCK | half
    for half in HALF
    for child, vector, find in (("u32", 1, 0), ("u32", 1, 1), ("u32", 0, 1), ("i64", 1, 1))
    for tile in (256 if half else 128, BLOCK_TILE)
)


def find_and_write_rows(
    out_HNV: Any,
    orders: tuple[int, ...],
    word_G: Any,
    first_child_M: Any,
    samples: Any,
    sample_starts: Any,
    fanout: int,
    order: int,
    codes_T: Any,
    positions_H: Any,
    begin: int,
    backoff_M: Any,
    value_G: Any,
    value_V: Any,
    multiply: bool,
    nothing: float | None = None,
    bfloat16: bool = False,
) -> None:
    """Fill out_HNV with the rows that `write_rows` makes of the histories that `find_histories` finds.

    The arguments are those of these two functions. backoff_M, value_G and value_V share one scale: probabilities if
    `multiply`, else logarithms.

    Returns nothing.
    """
    check.dtype(out_HNV, *([np.uint16] if bfloat16 else [np.float32, np.float16]))
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(positions_H, np.int64)
    for numbers in word_G, codes_T:
        check.dtype(numbers, np.uint32)
    for values in backoff_M, value_G, value_V:
        check.dtype(values, np.float32)
    check_backoffs(backoff_M, first_child_M)
    check_rows(out_HNV, orders, len(positions_H), order - 1, len(value_V))
    arrays = {
        "out_HNV": out_HNV, "word_G": word_G, "first_child_M": first_child_M, "samples": samples,
        "sample_starts": sample_starts, "codes_T": codes_T, "positions_H": positions_H, "backoff_M": backoff_M,
        "value_G": value_G, "value_V": value_V,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    trie = word_G, first_child_M, samples, sample_starts, fanout
    histories = codes_T, positions_H, begin, backoff_M
    if 0 not in out_HNV.shape:
        run(out_HNV, orders, trie, histories, (word_G, value_G, value_V), (multiply, nothing, bfloat16))


def _one_after_the_other(out_HNV, orders, trie, histories, values, how):
    neutral = 1.0 if how[0] else -0.0
    found = find_histories(*trie, orders[-1], *histories, neutral)
    write_rows(out_HNV, orders, *found, *values, *how)


_cpu = _one_after_the_other


def _cuda(out_HNV, orders, trie, histories, values, how):
    _, first_child_M, samples, sample_starts, fanout = trie
    codes_T, positions_H, begin, backoff_M = histories
    multiply, nothing, bfloat16 = how
    K = orders[-1] - 1
    if not (fits_a_warp(K, fanout) and is_little_work(out_HNV, True)):
        _one_after_the_other(out_HNV, orders, trie, histories, values, how)
        return
    index = samples, sample_starts, len(sample_starts) - 1, fanout, len(first_child_M) - 1
    backoffs = backoff_M if len(backoff_M) else 0  # 0: a null pointer
    neutral = np.float32(1.0 if multiply else -0.0)
    walks = first_child_M, *index, backoffs, codes_T, positions_H, begin, neutral
    defines = {"FIND": 1, "CHILD": check.INTEGER[first_child_M.dtype]}
    kind = multiply, nothing is not None, np.float32(nothing or 0)
    launch_blocks(out_HNV, rounding_of(out_HNV, bfloat16), orders, defines, walks, K, values, kind)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a trigram model of a text and a few histories of it. By size: probabilities or logarithms, smoothed or
    stored rows, each dtype.
    """
    made = some_histories(rng, size)
    dtype = (np.float32, np.float16, np.uint16)[size % 3]
    orders = ((1, 2, 3), (3,), (1, 2), (1,))[size % 4]
    nodes, G, V = len(made["first_child_M"]) - 1, len(made["word_G"]), int(made["first_child_M"][0])
    multiply = bool(size % 2)
    sign = 1 if multiply else -1
    made["positions_H"] = made["positions_H"][:5]
    made["backoff_M"] = sign * rng.random(nodes if len(made["backoff_M"]) else 0, np.float32)
    value_G = sign * rng.random(G, np.float32)
    return made | {
        "out_HNV": np.zeros((len(made["positions_H"]), len(orders), V), dtype),
        "orders": orders,
        "value_G": value_G,
        "value_V": value_G[:V],
        "multiply": multiply,
        "nothing": (0.0 if multiply else -np.inf) if size % 5 < 2 else None,
        "bfloat16": dtype == np.uint16,
    }
