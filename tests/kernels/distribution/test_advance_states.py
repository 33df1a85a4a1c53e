"""Rows after states by plain code, and by kernels of three sizes."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution import advance_states as module


def plain_row(state, made):
    """Return (values, states) of every word after a state, order by order, from the shortest history on."""
    nodes_M2, state_G = made["states"]
    values, (first_child_M, backoff_M), histories = made["values"], made["histories"], []
    while 0 <= state < len(nodes_M2):
        histories.append(state)
        suffix = int(nodes_M2[state, 1] >> np.uint64(32))
        state = -1 if suffix == 0xFFFFFFFF else suffix
    row, after = values.value_V.copy(), state_G[: len(values.value_V)].copy()
    for node in reversed(histories):
        if len(backoff_M):
            row = row * backoff_M[node] if made["kind"].multiply else row + backoff_M[node]
        children = slice(*first_child_M[node : node + 2].astype(int))
        row[values.word_G[children]] = values.value_G[children]
        after[values.word_G[children]] = state_G[children]
    return row, after


@pytest.mark.parametrize("size", [993, 45_003])
@pytest.mark.parametrize("sizes", ["SMALL", "SHORT", "MIDDLE", "LARGE"])
def test_rows_are_those_of_plain_code(size, sizes, to_device, monkeypatch):
    monkeypatch.setattr(module, "_sizes", lambda words, width, has_states: getattr(module, sizes))
    made = module.example(np.random.default_rng(size), size)
    V, states_H = (
        len(made["values"].value_V),
        np.append(made["states_H"], [-1, 10**9, len(made["states"].nodes_M2), 0]).astype(np.int32),
    )
    rows_HV, next_HV = (np.zeros((len(states_H), V + 5), dtype) for dtype in (np.float32, np.int32))
    there = made | {"rows_HV": rows_HV, "next_HV": next_HV, "states_H": states_H}
    for name, value in there.items():
        if isinstance(value, np.ndarray):
            there[name] = to_device(value)
    for name in "states", "histories", "values":
        there[name] = type(made[name])(*map(to_device, made[name]))
    there["kind"] = made["kind"]._replace(bfloat16=False)
    assert module.advance_states(**there) is None
    for h, state in enumerate(states_H.tolist()):
        row, after = plain_row(state, made)
        assert np.array_equal(to_host(there["rows_HV"])[h, :V], row)
        assert np.array_equal(to_host(there["next_HV"])[h, :V], after)
    there["rows_HV"][...] = 0
    module.advance_states(**there | {"next_HV": None})
    assert np.array_equal(to_host(there["rows_HV"])[-1, :V], plain_row(0, made)[0])
