"""Words, orders 1 to 5 in one pass: codes on the device to sorted tables, and each kernel of it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.count.codes import count_codes
from mgpu_ngram.benchmarks.count.traffic import keys_bytes, radix_bytes, runs_bytes, sort_bytes, table_bytes
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.benchmarks.inputs.corpora import zipf_ids
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.engine.count.count_chunk import Codes
from mgpu_ngram.engine.count.strategy import OrderPlan
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.count.join_ranges import join_ranges
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from mgpu_ngram.kernels.dispatch import to_host

ORDER = 5
VOCABULARY = 500_000
ORACLE_WORDS = 50_000  # counted by collections.Counter, too
TARGET = 2e9  # tokens/s on one H200
PAGES, PAGES_BYTES = 64, {"gpu": 1 << 30, "cpu": 1 << 24}


def run(suite: Suite, tokens: int) -> list[np.ndarray]:
    """All measurements on one generated stream. Returns the counts of each order's n-grams, ascending."""
    suite.say("words: codes on the device to tables")
    codes_T = zipf_ids(tokens, VOCABULARY, xp=suite.xp)
    _check_beginning(suite, codes_T[:ORACLE_WORDS])
    counts = _codes_to_tables(suite, codes_T, tokens)
    _kernels(suite, codes_T, tokens, [len(c) for c in counts])
    suite.release()
    _pages(suite)
    suite.release()
    suite.run(
        f"words/peer {suite.xp.__name__}.unique by ranks",
        _sizes(tokens),
        lambda: oracles.unique_ngrams(codes_T, ORDER),
        runs=3,
        items=tokens,
        unit=TOKENS_PER_SECOND,
    )
    suite.release()
    return counts


def _sizes(tokens: int) -> str:
    return f"tokens={tokens} V={VOCABULARY} n=1..{ORDER}"


def _count(codes_T: Any, budget: Budget) -> list[Table]:
    """Count codes on the device with the engine."""
    plans = [OrderPlan(n, "sort", "asked for", 0) for n in range(1, ORDER + 1)]
    return count_codes(Codes(codes_T, len(codes_T)), VOCABULARY, plans, budget)


def _check_beginning(suite: Suite, codes_T: Any) -> None:
    """A short stream, beside collections.Counter."""
    sentences: list[list[int]] = [[]]
    for code in to_host(codes_T).tolist():
        if code:
            sentences[-1].append(code)
        else:
            sentences.append([])
    for table in _count(codes_T, suite.budget()):
        n = table.order
        counter = Counter(
            itertools.chain.from_iterable(zip(*(s[i:] for i in range(n)), strict=False) for s in sentences)
        )
        ngrams = sorted(counter)
        words = to_device(np.array(ngrams, np.uint32).reshape(-1, n).T, suite.device)
        counts = to_device(np.array([counter[ngram] for ngram in ngrams], np.int64), suite.device)
        oracles.check_words(table, (words, counts), f"codes of order {n} beside Counter")


def _codes_to_tables(suite: Suite, codes_T: Any, tokens: int) -> list[np.ndarray]:
    expected = oracles.unique_ngrams(codes_T, ORDER)
    bits = check.code_bits(VOCABULARY)
    distinct, budget = [len(counts) for _, counts in expected], suite.budget()

    def verify(tables: list[Table]) -> None:
        for table, oracle in zip(tables, expected, strict=True):
            oracles.check_words(table, oracle, f"codes of order {table.order}")

    suite.run(
        "words/codes to tables",
        _sizes(tokens),
        lambda: _count(codes_T, budget),
        check=verify,
        items=tokens,
        unit=TOKENS_PER_SECOND,
        bytes_moved=sort_bytes(len(codes_T), 4, ORDER, bits)
        + sum(table_bytes(n, bits, G) for n, G in enumerate(distinct, 1)),
        ceiling="copy",
        target=TARGET if suite.device == "gpu" else None,
        notes="distinct n-grams by order: " + ", ".join(f"{G:,}" for G in distinct),
    )
    return [to_host(suite.xp.sort(counts)) for _, counts in expected]


def _kernels(suite: Suite, codes_T: Any, tokens: int, distinct: list[int]) -> None:
    """A row for each kernel on the way from codes to tables."""
    T, bits = len(codes_T), check.code_bits(VOCABULARY)
    sizes = _sizes(tokens)
    row: dict[str, Any] = {"items": tokens, "unit": TOKENS_PER_SECOND, "ceiling": "copy"}
    suite.release()
    suite.run(
        "words/ngram_keys",
        sizes,
        lambda: ngram_keys(codes_T, ORDER, bits),
        bytes_moved=keys_bytes(T, 4, ORDER, bits),
        **row,
    )
    columns = ngram_keys(codes_T, ORDER, bits)
    suite.run(
        "words/radix_sort",
        sizes,
        lambda keys: radix_sort(keys, ORDER * bits),
        setup=columns.copy,
        bytes_moved=radix_bytes(T, ORDER, bits),
        notes=f"keys of {ORDER * bits} bits in {len(columns)} columns",
        **row,
    )
    columns = radix_sort(columns, ORDER * bits)
    suite.run(
        "words/prefix_runs",  # count_prefixes; the name that stored rows have
        sizes,
        lambda: count_prefixes(columns, bits, 1, ORDER),
        bytes_moved=runs_bytes(T, ORDER, bits) + sum(table_bytes(n, bits, G) for n, G in enumerate(distinct, 1)),
        **row,
    )


def _pages(suite: Suite) -> None:
    """Rows: put the bytes of packed columns and of suffixes into the order of pages, PAGES row groups of four parts."""
    rng = np.random.default_rng(1)
    total = PAGES_BYTES[suite.device]
    bytes_B = to_device(rng.integers(0, 256, total, np.uint8), suite.device)
    cuts = np.sort(rng.integers(0, total, 4 * PAGES - 1)).tolist()
    parts = list(itertools.pairwise([0, *cuts, total]))
    ranges = [parts[column * PAGES + page] for page in range(PAGES) for column in range(4)]
    A = parts[3 * PAGES][0]
    packed_A, suffixes_B = bytes_B[:A], bytes_B[A:]

    def verify(data: Any) -> None:
        if not suite.xp.array_equal(data, suite.xp.concatenate([bytes_B[begin:end] for begin, end in ranges])):
            raise WrongResult("join_ranges gives other bytes than slices; not timed")

    suite.run(
        "words/join_ranges", f"bytes={total} ranges={len(ranges)}", lambda: join_ranges(packed_A, suffixes_B, ranges),
        check=verify, items=total, unit="bytes/s", bytes_moved=2 * total, ceiling="copy",
    )  # fmt: skip
