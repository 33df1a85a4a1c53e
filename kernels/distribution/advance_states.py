"""Write whole rows after states: the value of every word, and the state after it; few words in one kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import current_limits, kernel, launch
from ..score.step_states import StateTable, states_of_a_text
from .find_histories import check_backoffs
from .rows import HALF, RowKind, WordValues, check_rows, is_aligned, layers_of, rounding_of, strides_of
from .state_children import state_children
from .write_rows import write_rows
from .write_states import write_states

TILE = {"TILE": 1024, "THREADS": 128}  # words of a block, and its threads
MAX_RANGES = 128  # histories of a block, times the orders of their suffixes; as in advance_states.cu
MOST_HISTORIES = 4  # of a block
BLOCKS = 16  # for each multiprocessor, before blocks take several histories
# One kernel is faster than three for rows of up to SHORT_WORDS words, or for FEW_WORDS in all for each multiprocessor.
SHORT_WORDS, FEW_WORDS = 2048, 1 << 14
VARIANTS = (
    *(TILE | {"CHILD": "u32", "STATES": states, "VECTOR": vector} | half
      for states in (0, 1) for vector in (0, 1) for half in HALF[:2]),
    TILE | {"CHILD": "i64", "STATES": 1, "VECTOR": 1} | HALF[2],
)  # fmt: skip


class Histories(NamedTuple):
    """The histories of a trie: first_child_M (M + 1,), and backoff_M (M,) float32 or (0,)."""

    first_child_M: Any
    backoff_M: Any


def advance_states(
    rows_HV: Any,
    next_HV: Any,
    states_H: Any,
    states: StateTable,
    order: int,
    histories: Histories,
    values: WordValues,
    kind: RowKind,
) -> None:
    """Fill the rows of the highest order after states, and the state after every word.

    rows_HV   (H, V or more) float32, float16, or uint16 if kind.bfloat16, as in `write_rows`
    next_HV   None, or (H, V or more) int32. The last axis of both is contiguous; what lies behind V words is undefined
    states_H  (H,) int32, as `step_states` returns them; other numbers than nodes are EMPTY
    states    of the model
    order     of the model; at most 33
    histories of its trie, with backoffs in the scale of `values`
    values    values.word_G is the trie's
    kind      smoothed rows

    Returns nothing. A row has the bits of the one that `write_rows` makes for the history from which the state comes:
    words that the state does not remember have no children and a backoff of 0. The state after a word is that of the
    longest match.
    """
    first_child_M, backoff_M = histories
    word_G, value_G, value_V = values
    check.dtype(rows_HV, *([np.uint16] if kind.bfloat16 else [np.float32, np.float16]))
    check.dtype(states_H, np.int32)
    check.dtype(states.nodes_M2, np.uint64)
    check.dtype(states.state_G, np.int32)
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(word_G, np.uint32)
    for floats in backoff_M, value_G, value_V:
        check.dtype(floats, np.float32)
    check_backoffs(backoff_M, first_child_M)
    arrays = {
        "rows_HV": rows_HV, "states_H": states_H, **states._asdict(), **histories._asdict(), **values._asdict(),
    }  # fmt: skip
    if next_HV is not None:
        check.dtype(next_HV, np.int32)
        arrays["next_HV"] = next_HV
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    for made in (rows_HV, next_HV)[: 1 + (next_HV is not None)]:
        check_rows(made[:, None], (order,), len(states_H), order - 1, len(value_V))
    if 0 not in rows_HV.shape:
        run(rows_HV, next_HV, states_H, states, order, histories, values, kind)


def _one_after_the_other(rows_HV, next_HV, states_H, states, order, histories, values, kind):
    neutral = 1.0 if kind.multiply else -0.0
    children = state_children(states_H, states.nodes_M2, order, *histories, neutral)
    write_rows(rows_HV[:, None], (order,), children, values, kind)
    if next_HV is not None:
        write_states(next_HV[:, : len(values.value_V)], children, values.word_G, states.state_G)


_cpu = _one_after_the_other


def _cuda(rows_HV, next_HV, states_H, states, order, histories, values, kind):
    first_child_M, backoff_M = histories
    (H, width), K, V, processors = rows_HV.shape, order - 1, len(values.value_V), current_limits()[0]
    if width > SHORT_WORDS and H * width > FEW_WORDS * processors:
        _one_after_the_other(rows_HV, next_HV, states_H, states, order, histories, values, kind)
        return
    tiles = -(-width // TILE["TILE"])
    most = min(MOST_HISTORIES, MAX_RANGES // max(1, K), max(1, H * tiles // (BLOCKS * processors)))
    arrays = [array[:, None] for array in (rows_HV, next_HV) if array is not None]
    defines = TILE | {
        "CHILD": check.INTEGER[first_child_M.dtype], "STATES": len(arrays) - 1,
        "VECTOR": int(all(map(is_aligned, arrays))),
    }  # fmt: skip
    half = HALF[rounding_of(rows_HV, kind.bfloat16)]
    fn = kernel("distribution/advance_states", "advance_states", **defines, **half)
    backoffs = backoff_M if len(backoff_M) else np.uintp(0)
    strides = [strides_of(array)[0] for array in arrays]
    following = (np.uintp(0), 0, 0) if next_HV is None else (next_HV, next_HV.shape[1], strides[1])
    nodes_M2, state_G = map(check.aligned, states)
    args = (
        states_H, H, K, most, nodes_M2, len(nodes_M2), first_child_M, backoffs, int(kind.multiply), values.word_G,
        values.value_G, check.aligned(values.value_V), state_G, V, rows_HV, width, strides[0], *following,
    )  # fmt: skip
    launch(fn, (tiles, *layers_of(-(-H // most))), TILE["THREADS"], args)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return states of a trigram model and its values. By size: probabilities or logarithms, with or without the states
    after words, each dtype.
    """
    made, states = states_of_a_text(rng, size)
    index = made["index"]
    V, G, multiply = int(index.first_child_M[0]), len(index.word_G), bool(size % 2)
    sign, dtype = (1 if multiply else -1), (np.float32, np.float16, np.uint16)[size % 3]
    H = min(size, 5 + size // 4000)
    child = np.uint32 if size % 4 < 2 else np.int64
    value_G = sign * rng.random(G, np.float32)
    return {
        "rows_HV": np.zeros((H, V), dtype),
        "next_HV": np.zeros((H, V), np.int32) if size % 5 else None,
        "states_H": rng.integers(-1, len(states.nodes_M2) + 1, H).astype(np.int32),
        "states": states,
        "order": made["order"],
        "histories": Histories(
            index.first_child_M.astype(child),
            sign * rng.random(0 if size % 7 == 2 else len(states.nodes_M2), np.float32),
        ),
        "values": WordValues(index.word_G, value_G, value_G[:V]),
        "kind": RowKind(multiply, None, dtype == np.uint16),
    }
