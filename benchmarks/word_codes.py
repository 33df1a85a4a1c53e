"""Words, orders 1 to 5 in one pass: codes on the device to sorted tables, and each kernel of it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks import oracles
from mgpu_ngram.benchmarks.byte_ngrams import sort_bytes, sort_parts, table_bytes
from mgpu_ngram.benchmarks.corpora import zipf_ids
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.tables import Table
from mgpu_ngram.engine.count import Codes, CountOptions, count_streams
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.plan import OrderPlan
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from mgpu_ngram.kernels.count.prefix_runs import prefix_runs
from mgpu_ngram.kernels.count.radix_sort import radix_sort
from mgpu_ngram.kernels.dispatch import to_host

ORDER = 5
VOCABULARY = 500_000
ORACLE_WORDS = 50_000  # counted by collections.Counter, too
TARGET = 2e9  # tokens/s on one H200


def run(suite: Suite, tokens: int) -> list[np.ndarray]:
    """Codes on the device to tables of all orders, and each kernel of it. Returns each order's counts, sorted."""
    suite.say("words: codes on the device to tables")
    codes_T = zipf_ids(tokens, VOCABULARY, xp=suite.xp)
    T, bits = len(codes_T), check.code_bits(VOCABULARY)
    sizes = f"tokens={tokens} V={VOCABULARY} n=1..{ORDER}"
    options = CountOptions(
        tuple(OrderPlan(n, "sort", "asked for", 0) for n in range(1, ORDER + 1)), device=suite.device
    )
    _check_codes(suite, codes_T[: min(T, ORACLE_WORDS)], options)
    suite.release()
    expected = oracles.unique_ngrams(codes_T, ORDER)

    def verify(tables: list[Table]) -> None:
        for table, oracle in zip(tables, expected, strict=True):
            oracles.check_words(table, oracle, f"words of order {table.order}")

    tables = [table_bytes(n, bits, len(counts)) for n, (_, counts) in enumerate(expected, 1)]
    suite.run(
        "words/codes to tables", sizes, lambda: count_streams([Codes(codes_T, T)], VOCABULARY, options), check=verify,
        items=tokens, unit="tokens/s", bytes_moved=sort_bytes(T, 4, 1, ORDER, bits) + sum(tables), ceiling="copy",
        target=TARGET if suite.device == "gpu" else None,
        notes="distinct " + " ".join(f"{len(counts):,}" for _, counts in expected),
    )  # fmt: skip
    found = [suite.xp.sort(counts) for _, counts in expected]
    host = [to_host(counts) for counts in found]
    del expected, found
    suite.release()

    keys_bytes, sort_bytes_, runs_bytes = sort_parts(T, 4, ORDER, bits)
    columns = ngram_keys(codes_T, ORDER, bits)
    row = {"items": tokens, "unit": "tokens/s", "ceiling": "copy"}
    suite.run("words/ngram_keys", sizes, lambda: ngram_keys(codes_T, ORDER, bits), bytes_moved=keys_bytes, **row)
    suite.run(
        "words/radix_sort", sizes, lambda keys: radix_sort(keys, ORDER * bits), setup=columns.copy,
        bytes_moved=sort_bytes_, notes=f"{len(columns)} columns, {ORDER * bits} bits", **row,
    )  # fmt: skip
    columns = radix_sort(columns, ORDER * bits)
    suite.run(
        "words/prefix_runs",
        sizes,
        lambda: prefix_runs(columns, bits, 1, ORDER),
        bytes_moved=runs_bytes + sum(tables),
        **row,
    )
    del columns
    suite.release()
    suite.run(
        f"words/peer {suite.xp.__name__}.unique by rank refinement", sizes, lambda: oracles.unique_ngrams(codes_T, ORDER),
        runs=3, items=tokens, unit="tokens/s",
    )  # fmt: skip
    suite.release()
    return host


def _check_codes(suite: Suite, codes_T: Any, options: CountOptions) -> None:
    """A short stream, beside collections.Counter."""
    sentences = [[]]
    for code in to_host(codes_T).tolist():
        if code:
            sentences[-1].append(code)
        else:
            sentences.append([])
    tables = count_streams([Codes(codes_T, len(codes_T))], VOCABULARY, options)
    for table in tables:
        n = table.order
        counter = Counter(
            itertools.chain.from_iterable(zip(*(s[i:] for i in range(n)), strict=False) for s in sentences)
        )
        ngrams = sorted(counter)
        words = np.array(ngrams, np.uint32).reshape(-1, n).T
        oracle = words, np.array([counter[g] for g in ngrams], np.int64)
        oracles.check_words(
            table, tuple(to_device(a, suite.device) for a in oracle), f"words of order {n} beside Counter"
        )
