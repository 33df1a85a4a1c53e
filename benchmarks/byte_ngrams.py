"""Experiments A and B of Bianco, "Ngrams with CUDA": byte n-grams by strategy, order and corpus size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks import oracles
from mgpu_ngram.benchmarks.suite import DOES_NOT_FIT, Suite
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.tables import Table
from mgpu_ngram.engine.count import Codes, CountOptions, count_streams
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.plan import BIN_BYTES, OrderPlan, choose
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.histogram_global import histogram_global
from mgpu_ngram.kernels.count.histogram_private import count_bytes, histogram_private
from mgpu_ngram.kernels.count.radix_sort import digits_of_column
from mgpu_ngram.kernels.dispatch import to_host

STRATEGIES = (("global", 1), ("private", 1), ("private", 128), ("sort", 1), ("hash", 1))
DENSE_ORDERS, SPARSE_ORDERS = range(1, 5), range(1, 9)
EXPERIMENT_B_ORDER = 3
LOOP_BYTES = 1 << 20  # of text that the plain Python loop counts; it takes the same time for every byte
ORACLE_BYTES = {"gpu": 1 << 30, "cpu": 1 << 25}  # of text that is counted by sorting all its windows, too
TARGETS = {1: 1e12, 2: 4e11, 3: 1e11} | dict.fromkeys(range(4, 9), 1e10)  # n-grams/s on one H200
UNIT = "n-grams/s"  # of bytes: as many as bytes of text per second


@dataclass(frozen=True)
class Text:
    """A text on the device, its alphabet by rising value, and the tables that translate its bytes to codes."""

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

    @property
    def sizes(self) -> str:
        return f"T={len(self.text_B)} A={len(self.alphabet_A)}"

    def head(self, size_bytes: int) -> Text:
        """The beginning of the text, with the alphabet of the whole."""
        return Text(self.text_B[:size_bytes], self.alphabet_A, self.lut)


def label(strategy: str, histograms: int) -> str:
    """Name of a strategy in rows and figures."""
    return f"private K={histograms}" if strategy == "private" else strategy


def count_text(text: Text, plan: OrderPlan, histograms: int, device: str) -> Table:
    """What the engine does with raw bytes on the device: the sorted table of one order."""
    stream = Codes(text.text_B, len(text.text_B), text.lut)
    return count_streams([stream], len(text.alphabet_A), CountOptions((plan,), histograms, device=device))[0]


def run(suite: Suite, text_B: np.ndarray) -> None:
    """Both experiments on one text."""
    text = Text.of(to_device(text_B, suite.device))
    loop_seconds = {n: _baseline(suite, text, n) for n in DENSE_ORDERS}
    _histograms(suite, text)
    for n in SPARSE_ORDERS:
        _experiment_a(suite, text, n, loop_seconds.get(n))
    suite.say(f"bytes by corpus size, n={EXPERIMENT_B_ORDER}")
    for size in ladder(len(text_B)):
        for strategy, histograms in STRATEGIES:
            _time_strategy(suite, "b", text.head(size), EXPERIMENT_B_ORDER, strategy, histograms)


def ladder(size_bytes: int) -> list[int]:
    """Corpus sizes of experiment B: the whole, a quarter of it, ... a thousandth."""
    return sorted({max(size_bytes >> shift, 16) for shift in range(0, 12, 2)})


def _baseline(suite: Suite, text: Text, n: int) -> float:
    """Seconds that the paper's CPU baseline would take, from a part of the text."""
    part = to_host(text.text_B[:LOOP_BYTES]).tobytes()
    start = time.perf_counter()
    counts = oracles.python_loop(part, n)
    seconds = (time.perf_counter() - start) * len(text.text_B) / len(part)
    table = count_text(text.head(len(part)), OrderPlan(n, "sort", "", 0), 1, suite.device)
    ngrams = [sum(ord(c) << 8 * (n - 1 - i) for i, c in enumerate(ngram)) for ngram in counts]
    order = np.argsort(np.array(ngrams, np.uint64))
    oracle = np.array(ngrams, np.uint64)[order], np.array(list(counts.values()), np.int64)[order]
    oracles.check_bytes(
        table, text.alphabet_A, tuple(to_device(a, suite.device) for a in oracle), f"plain Python loop at n={n}"
    )
    note = f"plain Python loop on the CPU: measured on {len(part)} bytes, extrapolated to {len(text.text_B)}"
    row = suite.no_row("bytes/python loop", f"{text.sizes} n={n}", note)
    row.runs, row.median_seconds, row.min_seconds, row.max_seconds = 1, seconds, seconds, seconds
    row.rate, row.rate_unit = len(text.text_B) / seconds, UNIT
    return seconds


def _experiment_a(suite: Suite, text: Text, n: int, loop_seconds: float | None) -> None:
    suite.say(f"bytes n={n} by strategy")
    part = text.head(ORACLE_BYTES[suite.device])
    oracle = oracles.unique_windows(part.text_B, n)
    whole: list[Table] = []
    for strategy, histograms in STRATEGIES:
        if n not in DENSE_ORDERS and strategy in ("global", "private"):
            continue

        def verify(table: Table, what: str = f"strategy {label(strategy, histograms)} at n={n}") -> None:
            oracles.check_total(int(table.counts.sum()), len(text.text_B) - n + 1, what)
            if len(part.text_B) == len(text.text_B):
                oracles.check_bytes(table, text.alphabet_A, oracle, what)
            elif whole:  # too large for the oracle: strategies must agree, and be right on a part
                oracles.check_same(table, whole[0], what)
            else:
                whole.append(table)

        if len(part.text_B) < len(text.text_B):
            plan = _plan(suite, part, n, strategy, histograms)
            if isinstance(plan, OrderPlan):
                table = count_text(part, plan, histograms, suite.device)
                oracles.check_bytes(table, text.alphabet_A, oracle, f"strategy {label(strategy, histograms)} at n={n}")
        _time_strategy(suite, "a", text, n, strategy, histograms, verify, len(oracle[0]), loop_seconds)
    del oracle, whole
    if n in (1, EXPERIMENT_B_ORDER, 8):
        suite.run(
            f"bytes/peer {suite.xp.__name__}.unique of packed windows", f"{part.sizes} n={n}",
            partial(oracles.unique_windows, part.text_B, n), items=len(part.text_B), unit=UNIT,
        )  # fmt: skip
    suite.release()


def _plan(suite: Suite, text: Text, n: int, strategy: str, histograms: int) -> OrderPlan | str:
    """The engine's plan for one order, or why it cannot be."""
    symbols, T = len(text.alphabet_A), len(text.text_B)
    try:
        return choose(n, symbols, T, strategy, histograms, suite.device, suite.free_bytes(), "byte")[-1]
    except InputError as error:
        return str(error)


def _time_strategy(
    suite: Suite,
    experiment: str,
    text: Text,
    n: int,
    strategy: str,
    histograms: int,
    verify: Callable[[Table], None] | None = None,
    distinct: int = 0,
    loop_seconds: float | None = None,
) -> None:
    """A row from raw bytes on the device to the sorted table."""
    kernel, sizes = f"bytes/{experiment} {label(strategy, histograms)}", f"{text.sizes} n={n}"
    plan = _plan(suite, text, n, strategy, histograms)
    if isinstance(plan, str):
        suite.no_row(kernel, sizes, f"{DOES_NOT_FIT}: {plan}")
        return
    T, symbols = len(text.text_B), len(text.alphabet_A)
    bits = check.code_bits(symbols)
    if strategy == "sort":
        moved = sort_bytes(T, 1, n, n, bits) + table_bytes(n, bits, distinct)
    elif strategy == "hash":
        moved = T + 2 * table_bytes(n, bits, distinct)
    else:
        moved = T + 2 * histograms * BIN_BYTES * symbols**n + table_bytes(n, bits, distinct)
    auto = choose(n, symbols, T, "auto", 1, suite.device, suite.free_bytes(), "byte")[-1].strategy
    suite.run(
        kernel, sizes, partial(count_text, text, plan, histograms, suite.device), check=verify, items=T, unit=UNIT,
        bytes_moved=moved, ceiling="copy" if strategy == "sort" else "read",
        target=TARGETS[n] if suite.device == "gpu" and experiment == "a" else None,
        baseline="bytes/python loop", baseline_seconds=loop_seconds,
        notes="what auto takes" if (strategy, histograms) == (auto, 1) else "",
    )  # fmt: skip


def sort_bytes(T: int, token_bytes: int, first_order: int, last_order: int, bits: int) -> int:
    """Bytes that counting by one sort moves, tables apart: keys out, the passes of the sort, keys in twice."""
    keys, passes, runs = sort_parts(T, token_bytes, last_order, bits)
    return keys + passes + runs


def sort_parts(T: int, token_bytes: int, order: int, bits: int) -> tuple[int, int, int]:
    """Bytes moved by ngram_keys, radix_sort and prefix_runs (its output apart) for T keys."""
    columns = check.num_columns(order, bits)
    passes = 0
    for c in range(columns):
        digits = digits_of_column(c, order * bits)[1]
        passes += 8 * T + digits * 2 * 8 * columns * T  # the column's digits are counted, then rows move
    return token_bytes * T + 8 * columns * T, passes, 2 * 8 * columns * T


def table_bytes(order: int, bits: int, distinct: int) -> int:
    """Bytes of a table of `distinct` n-grams."""
    return 8 * (check.num_columns(order, bits) + 1) * distinct


def _histograms(suite: Suite, text: Text) -> None:
    """The histogram kernels alone: raw bytes to bins."""
    suite.say("byte histograms, kernels alone")
    T, symbols = len(text.text_B), len(text.alphabet_A)
    gpu = suite.device == "gpu"

    def verify(bins: Any, n: int = 1) -> None:
        oracles.check_total(int(bins.sum(dtype=np.int64)), T - n + 1, f"histogram at n={n}")

    suite.run(
        "bytes/count_bytes", f"T={T} n=1", partial(count_bytes, text.text_B), check=verify, items=T, unit=UNIT,
        bytes_moved=T, ceiling="read", target=TARGETS[1] if gpu else None,
    )  # fmt: skip
    for n in DENSE_ORDERS:
        for kernel, call, histograms in (
            ("histogram_global", histogram_global, 1),
            ("histogram_private K=1", histogram_private, 1),
            ("histogram_private K=128", partial(histogram_private, histograms=128), 128),
        ):
            plan = _plan(suite, text, n, "private", histograms)
            if isinstance(plan, str):
                suite.no_row(f"bytes/{kernel}", f"{text.sizes} n={n}", f"{DOES_NOT_FIT}: {plan}")
                continue
            suite.run(
                f"bytes/{kernel}", f"{text.sizes} n={n}", partial(call, text.text_B, n, symbols, text.lut),
                check=partial(verify, n=n), items=T, unit=UNIT, bytes_moved=T + histograms * BIN_BYTES * symbols**n,
                ceiling="read", target=TARGETS[n] if gpu else None,
            )  # fmt: skip
    _whole_alphabet(suite, text)
    _peers(suite, text)


def _whole_alphabet(suite: Suite, text: Text) -> None:
    """The paper's own setting: 256**n bins whatever the text, which ended its V1 at n = 4."""
    T = len(text.text_B)
    everything = Text(text.text_B, np.arange(256), np.arange(1, 257, dtype=np.uint16))
    for n in DENSE_ORDERS:
        plan = _plan(suite, everything, n, "global", 1)
        if isinstance(plan, str):
            suite.no_row("bytes/histogram_global", f"{everything.sizes} n={n}", f"{DOES_NOT_FIT}: {plan}")
            continue
        suite.run(
            "bytes/histogram_global", f"{everything.sizes} n={n}",
            partial(histogram_global, text.text_B, n, 256, everything.lut),
            check=lambda bins, n=n: oracles.check_total(int(bins.sum(dtype=np.int64)), T - n + 1, f"256 symbols at n={n}"),
            items=T, unit=UNIT, bytes_moved=T + BIN_BYTES * 256**n, ceiling="read",
        )  # fmt: skip


def _peers(suite: Suite, text: Text) -> None:
    """Histograms of other libraries at n = 1."""
    T = len(text.text_B)
    expected = to_host(suite.xp.bincount(text.text_B, minlength=256))

    def verify(bins: Any) -> None:
        oracles.check_total(int((to_host(bins) != expected).sum()), 0, "count_bytes beside bincount, bins that differ")

    verify(count_bytes(text.text_B))
    suite.run(f"bytes/peer {suite.xp.__name__}.bincount", f"T={T} n=1", lambda: suite.xp.bincount(text.text_B, minlength=256),
              items=T, unit=UNIT, bytes_moved=T, ceiling="read")  # fmt: skip
    if suite.device != "gpu":
        return
    try:
        import torch
    except ImportError:
        return
    tensor = torch.as_tensor(text.text_B, device="cuda")
    with torch.cuda.stream(torch.cuda.ExternalStream(suite.xp.cuda.get_current_stream().ptr)):
        suite.run("bytes/peer torch.bincount", f"T={T} n=1", lambda: torch.bincount(tensor, minlength=256),
                  check=lambda bins: verify(bins.cpu().numpy()), items=T, unit=UNIT, bytes_moved=T, ceiling="read")  # fmt: skip
    del tensor
    torch.cuda.empty_cache()
