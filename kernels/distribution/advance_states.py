"""Write whole rows after states: the value of every word, and the state after it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..dispatch import on_gpu, pick
from ..launch import current_limits, kernel, launch
from ..score.step_states import StateTable, states_of_a_text
from .find_histories import check_backoffs
from .row_launch import MAX_BACKOFF_ORDERS, RowKind, WordValues, layers_of, rounding_of
from .state_children import state_children
from .write_rows import write_rows

# Few words, for each multiprocessor: then many warps share them. With many words and no states, a warp makes several
# tiles, for which it searches the children once. A row of one tile needs blocks of one warp.
FEW_WORDS, MANY_WORDS = 1 << 14, 1 << 18
SMALL = {"TILE": 256, "WARPS": 4, "BLOCKS": 8, "PART": 1, "GROUP": 4, "AT_ONCE": 2}
MIDDLE = {"TILE": 1024, "WARPS": 2, "BLOCKS": 16, "PART": 1, "GROUP": 4, "AT_ONCE": 4}
SHORT = MIDDLE | {"WARPS": 1, "BLOCKS": 32}
LARGE = MIDDLE | {"PART": 4, "GROUP": 1}
VARIANTS = (
    *({**SMALL, "MULTIPLY": 0, "CHILD": "u32", "VECTOR": vector, "STATES": 1} | form
      for vector in (0, 1) for form in FORMATS),
    *({**sizes, "MULTIPLY": multiply, "CHILD": "u32", "VECTOR": 1, "STATES": states}
      for sizes, multiply in ((SHORT, 0), (MIDDLE, 1)) for states in (0, 1)),
    {**LARGE, "MULTIPLY": 1, "CHILD": "i64", "VECTOR": 1, "STATES": 0} | FORMATS[2],
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
    next_HV   None, or (H, V or more) int32. The last axis of both is contiguous; values after the V words are undefined
    states_H  (H,) int32, as `step_states` returns them; numbers that are not nodes count as EMPTY
    states    the states of the model
    order     order of the model, at most 33
    histories the histories of its trie, with backoffs in the scale of `values`
    values    values.word_G is the trie's
    kind      smoothed rows

    Returns nothing. A row has the same bits as the row of `write_rows` for the history of the state: words that the
    state drops have no children and a backoff of 0. The state after a word is that of the longest match. `StateRows`
    checks a model once for many calls.
    """
    arrays = {"rows_HV": rows_HV, "states_H": states_H} | ({} if next_HV is None else {"next_HV": next_HV})
    pick(cpu=_cpu, cuda=_cuda, **arrays, **states._asdict(), **histories._asdict(), **values._asdict())
    StateRows(states, order, histories, values, kind.multiply).fill(rows_HV, next_HV, states_H, kind.bfloat16)


class StateRows:
    """A model that makes rows after states; arguments as in `advance_states`."""

    def __init__(self, states: StateTable, order: int, histories: Histories, values: WordValues, multiply: bool):
        check.dtype(states.nodes_M2, np.uint64)
        check.dtype(states.state_G, np.int32)
        check.dtype(histories.first_child_M, np.uint32, np.int64)
        check.dtype(values.word_G, np.uint32)
        for floats in histories.backoff_M, values.value_G, values.value_V:
            check.dtype(floats, np.float32)
        check_backoffs(histories.backoff_M, histories.first_child_M)
        self.states, self.order, self.histories, self.values, self.multiply = states, order, histories, values, multiply
        pick(cpu=_cpu, cuda=_cuda, **states._asdict(), **histories._asdict(), **values._asdict())
        if on_gpu(values.word_G):
            nodes_M2, state_G = map(check.aligned, states)
            backoffs = histories.backoff_M if len(histories.backoff_M) else np.uintp(0)
            value_V = check.aligned(values.value_V)
            self.arguments = (
                nodes_M2, len(nodes_M2), histories.first_child_M, backoffs, values.word_G, values.value_G, value_V,
                state_G, len(value_V),
            )  # fmt: skip

    def fill(self, rows_HV: Any, next_HV: Any, states_H: Any, bfloat16: bool) -> None:
        """Fill rows after states; arguments as in `advance_states`."""
        check.dtype(states_H, np.int32)
        check.dtype(rows_HV, *([np.uint16] if bfloat16 else [np.float32, np.float16]))
        if next_HV is not None:
            check.dtype(next_HV, np.int32)
        arrays = {"rows_HV": rows_HV, "next_HV": next_HV, "states_H": states_H, "word_G": self.values.word_G}
        run = pick(cpu=_cpu, cuda=_cuda, **arrays)
        H, V = len(states_H), len(self.values.value_V)
        for array in (rows_HV, next_HV)[: 1 + (next_HV is not None)]:
            if array.ndim != 2 or len(array) != H or array.shape[1] < V:
                raise ValueError(f"got an array of shape {array.shape} to fill; pass one of shape {(H, V)}")
        if self.order - 1 > MAX_BACKOFF_ORDERS:
            raise ValueError(
                f"the order is {self.order} but at most {MAX_BACKOFF_ORDERS + 1} is supported; "
                "make a model of a lower order"
            )
        if 0 not in rows_HV.shape:
            run(rows_HV, next_HV, states_H, self, bfloat16)


def _cpu(rows_HV, next_HV, states_H, model, bfloat16):
    neutral = 1.0 if model.multiply else -0.0
    children = state_children(states_H, model.states.nodes_M2, model.order, *model.histories, neutral)
    kind = RowKind(model.multiply, None, bfloat16)
    write_rows(rows_HV[:, None], (model.order,), children, model.values, kind)
    if next_HV is not None:
        V = len(model.values.value_V)
        _fill_states(next_HV[:, :V], children.first_HK, children.end_HK, model.values.word_G, model.states.state_G)


@njit(nogil=True, cache=True)
def _fill_states(next_HV, first_HK, end_HK, word_G, state_G):
    H, V = next_HV.shape
    for h in range(H):
        for v in range(V):
            next_HV[h, v] = state_G[v]
        for k in range(first_HK.shape[1]):
            for g in range(np.int64(first_HK[h, k]), np.int64(end_HK[h, k])):
                next_HV[h, word_G[g]] = state_G[g]


def _cuda(rows_HV, next_HV, states_H, model, bfloat16):
    H, width = rows_HV.shape
    sizes, arrays, is_aligned = _sizes(H * width // current_limits()[0], width, next_HV is not None), [], True
    for array in (rows_HV, next_HV):
        if array is None:
            arrays += [np.uintp(0), 0, 0]
        else:
            stride = _stride_of(array)
            is_aligned &= (array.data.ptr | stride * array.itemsize) % 16 == 0
            arrays += [array, array.shape[1], stride]
    defines = sizes | {
        "MULTIPLY": int(model.multiply), "CHILD": check.INTEGER[model.histories.first_child_M.dtype],
        "VECTOR": int(is_aligned), "STATES": int(next_HV is not None),
    }  # fmt: skip
    fn = kernel("distribution/advance_states", "advance_states", **defines, **FORMATS[rounding_of(rows_HV, bfloat16)])
    grid = -(-width // (sizes["TILE"] * sizes["PART"] * sizes["WARPS"])), *layers_of(H)
    launch(fn, grid, 32 * sizes["WARPS"], (states_H, H, *model.arguments, *arrays))


def _sizes(words, width, has_states):
    """Return the sizes of tiles and blocks for `words` words for each multiprocessor, in rows of `width` words."""
    if words <= FEW_WORDS:
        return SMALL
    if width <= SHORT["TILE"]:
        return SHORT
    return MIDDLE if words <= MANY_WORDS or has_states else LARGE


def _stride_of(array):
    """Return the values from one row to the next."""
    (row, one), size = array.strides, array.itemsize
    H, width = array.shape
    if (width > 1 and one != size) or (H > 1 and (row < 0 or row % size)):
        raise ValueError(
            f"strides are {array.strides} but rows must be contiguous, and strides not negative; pass another array"
        )
    return row // size if H > 1 else 0


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
