"""Distributions by plain array code, which check the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs.distribution_cases import Case
from mgpu_ngram.benchmarks.inputs.plain_scoring import walk
from mgpu_ngram.core.counts.vocabulary import START_ID
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.kernels.dispatch import array_module

CHECKED = 8  # histories, the first and the last among them
# Of a probability: half a step of its type, and of the float32 of each backoff before it; float16 ends at 6e-8.
RELATIVE = {"float32": 1e-6, "float16": 5e-4, "bfloat16": 4e-3}
SMALLEST = {"float32": 1e-38, "float16": 3e-8, "bfloat16": 1e-38}


def nodes_of(case: Case, histories: int) -> Any:
    """(H, K) int64: nodes of the last k + 1 words before the first tokens of the text; -1 where there is none."""
    _, nodes = walk(case.subject.trie, case.subject.text_T[:histories])
    return array_module(nodes[0]).stack(nodes, axis=1)


def row_of(trie: Trie, nodes: list[int], mode: str) -> list[Any]:
    """(V,) float64 of each order: log10 probabilities after a history; -inf where nothing is stored."""
    xp = array_module(trie.prob_G)
    rows = [trie.prob_G[: trie.symbols].astype(np.float64)]
    for node in nodes:
        row = rows[-1].copy() if mode == "smoothed" else xp.full(trie.symbols, -np.inf)
        if node >= 0:
            children = slice(*(int(n) for n in trie.first_child_M[node : node + 2]))
            if mode == "smoothed":
                row += trie.backoff_M[node]
            row[trie.word_G[children]] = trie.prob_G[children]
        rows.append(row)
    return rows


def check_found(case: Case, found: FoundHistories) -> None:
    """Raise WrongResult unless ranges of children are those of the nodes, and backoffs theirs."""
    trie, xp = case.subject.trie, array_module(found.first_HK)
    node_HK = nodes_of(case, len(found.first_HK))
    there_HK, node_HK = node_HK >= 0, xp.maximum(node_HK, 0)
    for name, got, at_M in (
        ("first children", found.first_HK, trie.first_child_M[:-1]),
        ("last children", found.end_HK, trie.first_child_M[1:]),
        ("backoffs", found.backoff_HK, trie.backoff_M),
    ):
        expected = xp.where(there_HK, at_M[node_HK], 0) if len(at_M) else xp.zeros_like(got)
        _refuse(int((expected != got).sum()), got.size, name)


def check_rows(case: Case, options: RowOptions, rows: Any, first: int = 0) -> None:
    """Raise WrongResult unless rows of probabilities, or of logarithms, are those of array code; some are looked at.

    first  the number of the first one among the histories of the text
    """
    xp = array_module(case.subject.text_T)
    for h, expected in _expected(case, options, len(rows), first):
        got = xp.asarray(rows[h - first])
        if options.dtype == "bfloat16":
            got = (got.astype(np.uint32) << np.uint32(16)).view(np.float32)
        wrong = ~xp.isclose(got.astype(np.float64), expected, RELATIVE[options.dtype], SMALLEST[options.dtype])
        _refuse(int(wrong.sum()), wrong.size, f"probabilities after history {h}")


def check_top(case: Case, options: RowOptions, found: tuple[Any, Any]) -> None:
    """Raise WrongResult unless words are different, none is <s>, they have their values and there are no greater."""
    ids, values = found
    xp = array_module(ids)
    for h, expected in _expected(case, options, len(ids)):
        expected[:, START_ID] = -np.inf
        k = ids.shape[2]
        greatest = -xp.sort(-expected, axis=1)[:, :k]
        theirs = xp.take_along_axis(expected, xp.maximum(ids[h], 0).astype(np.int64), axis=1)
        for wanted in greatest, theirs:
            wrong = ~xp.isclose(values[h].astype(np.float64), wanted, RELATIVE["float32"])
            _refuse(int(wrong.sum()), wrong.size, f"most probable words after history {h}")
        twice = sum(k - len(xp.unique(row)) for row in ids[h])
        _refuse(twice, ids[h].size, f"most probable words after history {h}")


def check_children(case: Case, found: FoundHistories, children: tuple[Any, Any, Any]) -> None:
    """Raise WrongResult unless these are the children of each range, one range after the other."""
    trie, (offsets, word_C, value_C) = case.subject.trie, children
    first_R, end_R = (array.reshape(-1).astype(np.int64) for array in (found.first_HK, found.end_HK))
    xp = array_module(first_R)
    expected = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(end_R - first_R)])
    _refuse(int((expected != offsets).sum()), len(offsets), "offsets")
    at_C = xp.arange(len(word_C))
    entry_C = at_C + (first_R - offsets[:-1])[xp.searchsorted(offsets[1:], at_C, side="right")]
    for name, got, stored_G in (("words", word_C, trie.word_G), ("log10 probabilities", value_C, trie.prob_G)):
        _refuse(int((got != stored_G[entry_C]).sum()), len(got), f"{name} of children")


def _expected(case: Case, options: RowOptions, histories: int, first: int = 0) -> Any:
    """Yield (h, (orders, V) float64) for some of so many histories of the text, h from `first` on."""
    node_HK = nodes_of(case, first + histories)
    xp = array_module(node_HK)
    for h in sorted(set(np.linspace(first, first + histories - 1, CHECKED).astype(int).tolist())):
        rows = row_of(case.subject.trie, node_HK[h].tolist(), options.mode)
        row = xp.stack([rows[n - 1] for n in options.orders])
        yield h, {"prob": lambda r: 10.0**r, "ln": lambda r: r * np.log(10), "log10": lambda r: r}[options.scale](row)


def _refuse(wrong: int, of: int, what: str) -> None:
    if wrong:
        raise WrongResult(f"{wrong:,} of {of:,} {what} are not those of array code; not timed")
