"""Experiments A and B of Bianco, "Ngrams with CUDA": byte n-grams by strategy, order and corpus size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.count.codes import count_codes
from mgpu_ngram.benchmarks.count.traffic import strategy_bytes
from mgpu_ngram.benchmarks.harness.suite import DOES_NOT_FIT, Suite
from mgpu_ngram.benchmarks.harness.units import NGRAMS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.count.count_chunk import Codes
from mgpu_ngram.engine.count.strategy import OrderPlan, TextFacts, choose
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.count.histogram_private import count_bytes
from mgpu_ngram.kernels.dispatch import to_host

STRATEGIES = (("global", 1), ("private", 1), ("private", 128), ("sort", 1), ("hash", 1))
DENSE_ORDERS, SPARSE_ORDERS = range(1, 5), range(1, 9)
EXPERIMENT_B_ORDER = 3
PEER_ORDERS = (1, 3, 8)
LOOP_BYTES = 1 << 20  # bytes of text that the plain Python loop counts; every byte takes the same time
ORACLE_BYTES = {"gpu": 1 << 30, "cpu": 1 << 25}  # bytes of text that are also counted by sorting all windows
TARGETS = {1: 1e12, 2: 4e11, 3: 1e11} | dict.fromkeys(range(4, 9), 1e10)  # n-grams/s on one H200


@dataclass(frozen=True)
class Text:
    """A text on the device, its alphabet by rising value, and the table that translates its bytes to codes."""

    text_B: Any
    alphabet_A: np.ndarray
    lut: np.ndarray

    @classmethod
    def of(cls, text_B: Any) -> Text:
        """Find the alphabet by counting bytes."""
        alphabet_A = np.flatnonzero(to_host(count_bytes(text_B)))
        lut = np.zeros(256, np.uint16)
        lut[alphabet_A] = np.arange(1, len(alphabet_A) + 1)
        return cls(text_B, alphabet_A, lut)

    def __len__(self) -> int:
        return len(self.text_B)

    @property
    def symbols(self) -> int:
        return len(self.alphabet_A)

    def sizes(self, n: int) -> str:
        """Name of a measurement at order n."""
        return f"T={len(self)} A={self.symbols} n={n}"

    def head(self, size_bytes: int) -> Text:
        """The beginning of the text, with the alphabet of the whole."""
        return Text(self.text_B[:size_bytes], self.alphabet_A, self.lut)


class Oracle:
    """The right table of one order of a text, or of the longest beginning that can be sorted whole."""

    def __init__(self, suite: Suite, text: Text, n: int):
        self.text, self.part, self.n = text, text.head(ORACLE_BYTES[suite.device]), n
        self.expected = oracles.unique_windows(self.part.text_B, n)
        self.distinct = len(self.expected[0])
        self._first: Table | None = None

    def check(self, table: Table, what: str) -> None:
        """Raise WrongResult unless `table` is right. Of a text too large, tables of all strategies must agree."""
        oracles.check_total(int(table.counts.sum()), len(self.text) - self.n + 1, what)
        if len(self.part) == len(self.text):
            self.check_part(table, what)
        elif self._first is None:
            self._first = table
        else:
            oracles.check_same(table, self._first, what)

    def check_part(self, table: Table, what: str) -> None:
        """The same for the table of `part`."""
        oracles.check_bytes(table, self.text.alphabet_A, self.expected, what)


def label(strategy: str, histograms: int) -> str:
    """Name of a strategy in rows and figures."""
    return f"private K={histograms}" if strategy == "private" else strategy


def count_text(text: Text, plan: OrderPlan, histograms: int, budget: Budget) -> Table:
    """Return the sorted table of one order that the engine makes of raw bytes on the device."""
    return count_codes(Codes(text.text_B, len(text), text.lut), text.symbols, [plan], budget, histograms)[0]


def plan_for(suite: Suite, text: Text, n: int, strategy: str, histograms: int = 1) -> OrderPlan | str:
    """Return the engine's plan for one order, or the reason why it has none."""
    try:
        facts = TextFacts("byte", text.symbols, len(text))
        plans = choose(n, facts, strategy, histograms, suite.device, suite.free_bytes())
    except InputError as error:
        return f"{DOES_NOT_FIT}: {error}"
    return plans[-1]


def experiment_a(suite: Suite, text: Text) -> None:
    """Rows of each order: the strategies and the plain Python loop on the whole text."""
    for n in SPARSE_ORDERS:
        suite.say(f"bytes n={n} by strategy")
        loop_seconds = _python_loop(suite, text, n) if n in DENSE_ORDERS else None
        _strategies(suite, "a", text, n, loop_seconds)
        if n in PEER_ORDERS:
            _peer(suite, text.head(ORACLE_BYTES[suite.device]), n)


def experiment_b(suite: Suite, text: Text) -> None:
    """Rows of each size of the text: the strategies at one order."""
    for size in ladder(len(text)):
        suite.say(f"{size:,} bytes, n={EXPERIMENT_B_ORDER}, by strategy")
        _strategies(suite, "b", text.head(size), EXPERIMENT_B_ORDER, None)


def ladder(size_bytes: int) -> list[int]:
    """Return the corpus sizes of experiment B: the whole, a quarter of it, ... a thousandth, and at least 1 KiB."""
    return [size_bytes >> shift for shift in range(10, -1, -2) if size_bytes >> shift >= 1024 or shift == 0]


def _strategies(suite: Suite, experiment: str, text: Text, n: int, loop_seconds: float | None) -> None:
    """A row for each strategy: raw bytes on the device to the sorted table of one order."""
    oracle = Oracle(suite, text, n)
    auto, budget = plan_for(suite, text, n, "auto"), suite.budget()
    for strategy, histograms in STRATEGIES:
        if strategy in ("global", "private") and n not in DENSE_ORDERS:
            continue
        kernel, what = f"bytes/{experiment} {label(strategy, histograms)}", f"strategy {strategy} at n={n}"
        plan = plan_for(suite, text, n, strategy, histograms)
        if isinstance(plan, str):
            suite.add_note(kernel, text.sizes(n), plan)
            continue
        if len(oracle.part) < len(text):
            oracle.check_part(count_text(oracle.part, plan, histograms, budget), what)
        suite.run(
            kernel,
            text.sizes(n),
            partial(count_text, text, plan, histograms, budget),
            check=partial(oracle.check, what=what),
            items=len(text),
            unit=NGRAMS_PER_SECOND,
            bytes_moved=strategy_bytes(strategy, len(text), n, text.symbols, oracle.distinct, histograms, suite.device),
            ceiling="copy" if strategy == "sort" else "read",
            target=TARGETS[n] if suite.device == "gpu" and experiment == "a" else None,
            baseline="bytes/python loop",
            baseline_seconds=loop_seconds,
            notes="auto takes this"
            if histograms == 1 and isinstance(auto, OrderPlan) and auto.strategy == strategy
            else "",
        )
    suite.release()


def _python_loop(suite: Suite, text: Text, n: int) -> float:
    """A row for the paper's CPU baseline, timed on a part of the text; returns the seconds of the whole."""
    part = text.head(LOOP_BYTES)
    data = to_host(part.text_B).tobytes()
    start = time.perf_counter()
    counts = oracles.python_loop(data, n)
    seconds = (time.perf_counter() - start) * len(text) / len(part)
    values = np.array([int.from_bytes(ngram.encode("latin-1"), "big") for ngram in counts], np.uint64)
    rising = np.argsort(values)
    expected = [to_device(a[rising], suite.device) for a in (values, np.array(list(counts.values()), np.int64))]
    table = count_text(part, OrderPlan(n, "sort", "", 0), 1, suite.budget())
    oracles.check_bytes(table, text.alphabet_A, (expected[0], expected[1]), f"beside the plain Python loop at n={n}")
    suite.add(
        "bytes/python loop",
        text.sizes(n),
        [seconds],
        items=len(text),
        unit=NGRAMS_PER_SECOND,
        notes=f"on the CPU, measured on {len(part)} bytes and extrapolated to {len(text)}",
    )
    return seconds


def _peer(suite: Suite, text: Text, n: int) -> None:
    """Sort and reduce as one writes it with the array library alone."""
    kernel = f"bytes/peer {suite.xp.__name__}.unique"
    call = partial(oracles.unique_windows, text.text_B, n)
    suite.run(kernel, text.sizes(n), call, runs=3, items=len(text), unit=NGRAMS_PER_SECOND, notes="of packed windows")
    suite.release()
