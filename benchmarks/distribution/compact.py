"""Distributions that are not written out: the most probable words, and compact blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.distribution.ceilings import COPY
from mgpu_ngram.benchmarks.distribution.rates import dense_row
from mgpu_ngram.benchmarks.harness.units import DISTRIBUTIONS_PER_SECOND, HISTORIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import FOUND_HISTORIES, LARGEST, SHAPES, Case, DistributionBench
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_children, check_found, check_rows, check_top
from mgpu_ngram.engine.distribution.next_word import densify_block
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.gather_children import gather_children

# Targets of one H200.
TOP_K, TOP_SPEEDUP = 100, 3  # over the dense rows that are not written
FIND_TARGET = 500e6  # histories a second
COPY_SHARE = 0.5
CHECK_BYTES = 64  # bytes of memory to check a child
# Li (2018), histories and orders a second when giLM only searches: its large model.
GILM_SEARCHES = "giLM on a K80", 200.24e6


def top(bench: DistributionBench) -> None:
    """Rows: the most probable words beside the dense rows that they come from."""
    case, suite = bench.case(SHAPES[LARGEST]), bench.suite
    suite.say(f"top {TOP_K}, V = {case.symbols:,}")
    for orders in "max", "all":
        options = case.options(orders=orders)
        dense = dense_row(bench, f"top: dense rows, orders {orders},", case, options)
        best = replace(options, top_k=TOP_K)
        H = min(
            FOUND_HISTORIES[suite.device], len(case.subject.text_T), bench.size_bytes // best.row_bytes(case.symbols)
        )
        found, sizes = case.find_first(H), case.sizes(H)
        how: dict[str, Any] = {"items": H * len(options.orders), "unit": DISTRIBUTIONS_PER_SECOND}
        if dense.rate:
            how |= {"baseline": "dense rows", "baseline_seconds": how["items"] / dense.rate}
        suite.run(
            f"distribution/top {TOP_K}, orders {orders}", sizes, partial(case.model.top, found, best),
            check=partial(check_top, case, best), target=bench.target(TOP_SPEEDUP * (dense.rate or 0)), **how,
        )  # fmt: skip


def compact(bench: DistributionBench) -> None:
    """Rows: ranges of children on the device; the children themselves, there and on the host; these made dense."""
    case, suite = bench.case(SHAPES[LARGEST]), bench.suite
    suite.say("compact distributions")
    H = min(FOUND_HISTORIES[suite.device], len(case.subject.text_T))
    who, rate = GILM_SEARCHES
    suite.run(
        "distribution/search only", case.sizes(H), partial(case.find, case.positions(H)),
        check=partial(check_found, case), items=H, unit=HISTORIES_PER_SECOND, target=bench.target(FIND_TARGET),
        baseline=who, baseline_seconds=H * case.order / rate,
    )  # fmt: skip
    H = that_fit(case.find_first(H), bench.size_bytes // CHECK_BYTES)
    found, trie = case.find_first(H), case.subject.trie
    gather = partial(gather_children, found.first_HK.reshape(-1), found.end_HK.reshape(-1), trie.word_G, trie.prob_G)
    C = int(children_of(found).sum())
    suite.run(
        "distribution/children", f"{case.sizes(H)} C={C}", gather, check=partial(check_children, case, found),
        items=C, unit="children/s", bytes_moved=16 * C, ceiling=COPY,
        target=bench.target(COPY_SHARE * suite.ceilings[COPY] / 16),
    )  # fmt: skip
    suite.release()
    _blocks(bench, case, min(H, bench.most(case, case.options())))


def children_of(found: FoundHistories) -> np.ndarray:
    """(H,) int64: children of each history, of all orders together."""
    return to_host(found.end_HK.astype(np.int64) - found.first_HK).sum(axis=1)


def that_fit(found: FoundHistories, children: int) -> int:
    """How many of the first histories have no more children than that; 1 at least."""
    return max(1, int((children_of(found).cumsum() <= children).sum()))


def _blocks(bench: DistributionBench, case: Case, histories: int) -> None:
    """Rows: compact blocks brought to the host, their size, and dense rows made of them."""
    suite, options, found = bench.suite, case.options(), case.find_first(histories)
    block, sizes = case.model.compact(found), case.sizes(histories)
    dense_bytes = histories * options.row_bytes(case.symbols)
    row = suite.add_note("distribution/compact size", sizes, f"dense rows take {dense_bytes / histories:,.0f}")
    row.rate, row.rate_unit = block.size_bytes / histories, "B/history"
    what: dict[str, Any] = {"items": histories, "unit": HISTORIES_PER_SECOND}
    there = partial(case.model.compact, found)
    suite.run("distribution/compact to the host", sizes, there, bytes_moved=block.size_bytes, **what)
    block = block.with_words(to_host(case.subject.trie.prob_G[: case.symbols]))
    out = bench.rows(histories, case, options)[:, :, : case.symbols]
    again = partial(densify_block, block, options, suite.device, case.model.threads, out)
    check = partial(check_rows, case, options)
    suite.run("distribution/compact made dense", sizes, again, check=check, bytes_moved=dense_bytes, **what)
