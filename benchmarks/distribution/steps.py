"""Where the time goes (Li, 2018, Table 5.4), and the same distributions word by word, which he could not compare."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np

from mgpu_ngram.benchmarks.distribution.rates import ON_DEVICE, dense_row, described
from mgpu_ngram.benchmarks.distribution.thesis import GILM_ON_K80
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.harness.units import DISTRIBUTIONS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import (
    FOUND_HISTORIES,
    LARGE,
    SHAPES,
    SMALL,
    UNTOUCHED,
    Case,
    DistributionBench,
)
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_found
from mgpu_ngram.engine.trie.build import edges_of
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.distribution import row_launch as shared
from mgpu_ngram.kernels.distribution import write_rows
from mgpu_ngram.kernels.launch import OPTIONS, source
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges

# On one GPU of a K80, histories and orders a second.
TABLE_54 = {
    LARGE: {"only search": 200.24e6, "no write": 7.95e6, "normal": 0.36e6},
    SMALL: {"only search": 353.65e6, "no write": 45.25e6, "normal": 30.00e6},
}
QUERIES = {"gpu": 32_000_000, "cpu": 300_000}  # codes of words one by one, about
STORE = re.compile(r"(void store\(out_t\* to, const float\* value, int left, u64 policy\) \{\n)")
# No row has such a value, which the compiler cannot know: all the work is done, and nothing is stored.
NO_STORE = r"""\1  bool is_stored = false;
#pragma unroll
  for (int i = 0; i < PER; ++i) is_stored |= value[i] == 1e30f;
  if (!is_stored) return;
"""


def steps(bench: DistributionBench) -> None:
    """Rows: histories searched for, rows made but not written, and written."""
    for name in LARGE, SMALL:
        case, suite = bench.case(SHAPES[name]), bench.suite
        suite.say(f"steps, V = {case.symbols:,}")
        H = min(FOUND_HISTORIES[suite.device], len(case.subject.text_T))
        items = H * case.order
        suite.run(
            f"distribution/table5.4 {name} only search", case.sizes(H), partial(case.find, case.positions(H)),
            check=partial(check_found, case), items=items, unit=DISTRIBUTIONS_PER_SECOND,
            baseline=GILM_ON_K80, baseline_seconds=items / TABLE_54[name]["only search"],
        )  # fmt: skip
        _no_write(bench, name, case)
        dense_row(bench, f"table5.4 {name} normal", case, case.options(), peer=(GILM_ON_K80, TABLE_54[name]["normal"]))


def _no_write(bench: DistributionBench, name: str, case: Case) -> None:
    """A row: the kernel that writes rows, but for its stores."""
    kernel = f"distribution/table5.4 {name} no write"
    if bench.suite.device == "cpu":
        bench.suite.add_note(kernel, case.subject.model_sizes, "only on a GPU")
        return
    options = case.options()
    H = bench.most(case, options)
    call = partial(case.model.dense, case.find_first(H, options.scale), options, bench.rows(H, case, options))
    how = described(bench, H, case, options, None, (GILM_ON_K80, TABLE_54[name]["no write"]))
    bare = _without_stores
    with mock.patch.object(write_rows, "kernel", bare), mock.patch.object(shared, "kernel", bare):
        bench.suite.run(kernel, case.sizes(H), call, check=_check_untouched, **how | {"bytes_moved": None})


def _check_untouched(rows: Any) -> None:
    if bool((rows.view(np.uint32) != np.uint32(UNTOUCHED * 0x01010101)).any()):
        raise WrongResult("rows that are not to be written were; not timed")


@cache
def _without_stores(stem: str, name: str, **defines: Any) -> Any:
    """As `kernels.launch.kernel`."""
    import cupy

    return cupy.RawModule(code=without_stores(source(stem, defines)), options=OPTIONS).get_function(name)


def without_stores(text: str) -> str:
    """The source of a kernel that writes rows, made to store nothing. Raises ValueError if it stores in another way."""
    text, times = STORE.subn(NO_STORE, text)
    if times != 1:
        raise ValueError(f"the source has {times} functions `store` as {STORE.pattern} but must have one")
    return text


def one_by_one(bench: DistributionBench) -> None:
    """Rows: distributions of the highest order, and the same by scoring each word after each history."""
    case, suite = bench.case(SHAPES[LARGE]), bench.suite
    suite.say("word by word")
    V, options, codes_T = case.symbols, case.options(orders="max", scale="log10"), case.subject.text_T
    positions_H = whole_histories(case, bench.most(case, options))  # of rows; of scores fewer fill the device
    H, few = len(positions_H), min(len(positions_H), max(1, QUERIES[suite.device] // ((case.order + 1) * V)))
    queries_Q = queries_after(case, positions_H[H - few :])
    score = partial(score_by_edges, edges_of(case.subject.trie), case.order, begin=-1, end=-1, codes_T=queries_Q)
    call = partial(case.model.find_and_make, codes_T, positions_H, options, out=bench.rows(H, case, options))
    wrong = int((call()[H - few :, 0].reshape(-1) != score()[0].reshape(-1, case.order + 1)[:, case.order - 1]).sum())
    if wrong:
        raise WrongResult(f"{wrong:,} of {few * V:,} log10 probabilities are not the scores of words; not timed")
    rows = suite.add(
        "distribution/one by one: rows", case.sizes(H), device_seconds(call, suite.device),
        notes=ON_DEVICE[suite.device], **described(bench, H, case, options, None, None),
    )  # fmt: skip
    suite.add(
        "distribution/one by one: scores", case.sizes(few), device_seconds(score, suite.device), items=few,
        unit=DISTRIBUTIONS_PER_SECOND,
        notes=f"{V:,} queries each, of {case.order} words", baseline="rows",
        baseline_seconds=(rows.median_seconds or 0) * few / H,
    )  # fmt: skip


def whole_histories(case: Case, most: int) -> Any:
    """Positions of the text with order - 1 words of their sentence before them."""
    codes_T = case.subject.text_T
    xp = array_module(codes_T)
    ends_T = xp.cumsum(codes_T == 0)
    K = case.order - 1
    return K + xp.flatnonzero((ends_T[K - 1 : -1] == ends_T[:-K]) & (codes_T[:-K] > 0))[:most]


def queries_after(case: Case, positions_H: Any) -> Any:
    """(H * V * (order + 1),) uint32: a sentence of codes for each word after each history, ended by 0."""
    codes_T, K, V = case.subject.text_T, case.order - 1, case.symbols
    xp = array_module(codes_T)
    queries = xp.zeros((len(positions_H), V, K + 2), np.uint32)
    queries[:, :, :K] = codes_T[positions_H[:, None] - K + xp.arange(K)][:, None, :]
    queries[:, :, K] = xp.arange(1, V + 1, dtype=np.uint32)
    return queries.reshape(-1)
