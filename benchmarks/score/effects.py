"""Effects on the rate: Figures 9 and 10 of gLM, its B-stumps (5.2) and its compile-time constants (5.6)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.plain_scoring import ScoreWork, stump_shares
from mgpu_ngram.benchmarks.inputs.scoring_subjects import Index, Subject, edge_table, head, of_edges, queries, tree
from mgpu_ngram.benchmarks.score.rates import rate
from mgpu_ngram.engine.trie.build import edges_of, with_fanout
from mgpu_ngram.kernels.launch import OPTIONS, source
from mgpu_ngram.kernels.score import score_by_edges, score_tokens

FANOUTS = (4, 5, 7, 9, 11, 15, 16, 21, 27, 31, 32, 33, 41, 51, 63, 64, 128)
BATCHES = tuple(10**k for k in range(7))
EDGE_BITS = "word_bits", "key_bits", "node_bits", "check_bits", "filter_bits"


def figure9(suite: Suite, subject: Subject) -> None:
    """Rows: the B+-tree by fanout."""
    suite.say("Figure 9: fanout")
    codes_T, repeated = queries(subject, suite.device)
    work = ScoreWork.of(subject.trie, codes_T)
    for fanout in FANOUTS:
        index = tree(with_fanout(subject.trie, fanout))
        rate(suite, "figure9", f"{subject.sizes(codes_T, repeated)} fanout={fanout}", index, codes_T, work, {})


def figure10(suite: Suite, subject: Subject) -> None:
    """Rows: both structures by queries scored at once; and on a GPU with the copies of codes and results."""
    suite.say("Figure 10: batches")
    for index in edge_table(subject.trie), tree(subject.trie):
        for batch in BATCHES:
            if batch > len(subject.text_T):
                break
            codes_T, sizes = subject.text_T[:batch], f"{subject.model_sizes} batch={batch}"
            what: dict[str, Any] = {"items": batch, "unit": QUERIES_PER_SECOND}
            suite.run(f"score/figure10 {index.name}", sizes, partial(index.score, codes_T), **what)
            if suite.device == "gpu":
                copied = _with_copies(index, codes_T)
                suite.run(f"score/figure10 {index.name}, copies", sizes, copied, notes="pinned memory", **what)


def _with_copies(index: Index, codes_T: Any) -> Callable[[], None]:
    import cupy
    import cupyx

    codes, probs = cupyx.empty_pinned(len(codes_T), np.uint32), cupyx.empty_pinned(len(codes_T), np.float32)
    codes[:] = codes_T.get()
    there_T = cupy.empty_like(codes_T)

    def call() -> None:
        there_T.set(codes)
        index.score(there_T)[0].get(out=probs)

    return call


def stumps(suite: Suite, subject: Subject) -> None:
    """Rows: the share of B-stumps among the nodes that lead to n-grams of an order, and among those that are met."""
    suite.say("B-stumps")
    trie = subject.trie
    work = ScoreWork.of(trie, head(subject.text_T, len(queries(subject, suite.device)[0])))
    used = work.stumps / np.maximum(1, work.parents)
    for n, (of_nodes, of_searches) in enumerate(zip(stump_shares(trie), used.tolist(), strict=True), 2):
        sizes = f"{subject.model_sizes} fanout={trie.fanout} order={n}"
        for kernel, share, unit in (
            ("score/stumps of nodes", of_nodes, "of nodes that have children"),
            ("score/stumps of searches", of_searches, "of searches that meet children"),
        ):
            row = suite.add_note(kernel, sizes, f"at most {trie.fanout} children")
            row.rate, row.rate_unit = share, unit


def constants(suite: Suite, subject: Subject) -> None:
    """Rows on a GPU: the kernels as they are, and compiled with their parameters as numbers."""
    if suite.device == "cpu":
        suite.add_note("score/constants", subject.model_sizes, "only on a GPU")
        return
    suite.say("compile-time constants")
    codes_T, repeated = queries(subject, suite.device)
    sizes, work = subject.sizes(codes_T, repeated), ScoreWork.of(subject.trie, codes_T)
    for module, index, values in parameters(subject):
        as_is = rate(suite, "constants, parameters of", sizes, index, codes_T, work, {})
        with mock.patch.object(module, "kernel", compiler(values)):
            baseline: dict[str, Any] = {"baseline": as_is.kernel, "baseline_seconds": as_is.median_seconds}
            rate(suite, "constants, numbers in", sizes, index, codes_T, work, {}, **baseline)


def parameters(subject: Subject) -> list[tuple[Any, Index, dict[str, int]]]:
    """(module of a kernel, its index, what stands in its source for what is the same in every call)."""
    trie, table = subject.trie, edges_of(subject.trie)
    for_edges = {"N": trie.order} | {f"edges.{name}": getattr(table, name) for name in EDGE_BITS}
    for_tree = {"N": trie.order, "trie.fanout": trie.fanout, "trie.levels": len(trie.sample_starts) - 1}
    return [(score_by_edges, of_edges(table, trie.order), for_edges), (score_tokens, tree(trie), for_tree)]


def compiler(values: dict[str, int]) -> Callable[..., Any]:
    """Compile as `kernels.launch.kernel` does, with numbers in the source."""

    @cache
    def kernel(stem: str, name: str, **defines: Any) -> Any:
        import cupy

        text = with_constants(source(stem, defines), values)
        return cupy.RawModule(code=text, options=OPTIONS).get_function(name)

    return kernel


def with_constants(text: str, values: dict[str, int]) -> str:
    """A source with numbers wherever these names are read. Raises ValueError for a name that is not."""
    for name, value in values.items():
        text, times = re.subn(rf"(?<!i64 )(?<![\w.]){re.escape(name)}\b", f"{value}LL", text)
        if not times:
            raise ValueError(f"{name} is not in the source of the kernel; name what is")
    return text
