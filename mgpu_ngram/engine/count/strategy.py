"""Choose how to count each order: first by what fits in memory, then by measured rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from mgpu_ngram.core.counts.shards import sort_bytes_per_token
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels import check

STRATEGIES = ("auto", "global", "private", "sort", "hash")
BIN_BYTES = 4
MEMORY_SHARE = 0.8  # share of the free memory to use; the rest is for the allocator's rounding and other users
MAX_SORT_TOKENS = 1 << 31
WITH_VOCABULARY = "counted while the vocabulary is built"

# Nanoseconds per token, measured by `mgpu-ngram bench count` on one H200 and on one core of a 2-core
# server: see benchmarks/results/count.csv. Dense histograms by order (the last entry for all above).
RATES_NS: dict[str, dict[str, Any]] = {
    "gpu": {
        "private": (0.0003, 0.0009, 0.004, 0.009),
        "global": (0.25, 0.065, 0.025, 0.025),
        "bin": 0.012,  # zeroing and reading one bin
        "hash": 0.2,
        "sort_pass": 0.0065,  # one 8-bit digit of one 64-bit column
        "emit": 0.01,  # one order derived from the sorted keys
    },
    "cpu": {
        "private": (1.5, 2.5, 4.0, 8.0),
        "global": (1.2, 2.0, 3.0, 7.0),
        "bin": 2.0,
        "hash": 60.0,
        "sort_pass": 4.0,
        "emit": 12.0,
    },
}


@dataclass(frozen=True)
class OrderPlan:
    """The strategy of one order, its reason, and the device bytes that `tokens` tokens need."""

    order: int
    strategy: str
    reason: str
    device_bytes: int


def dense_bytes(order: int, symbols: int, histograms: int = 1) -> int:
    """Return the bytes of `histograms` dense histograms of symbols**order bins."""
    return symbols**order * BIN_BYTES * histograms


def hash_bytes_per_token(order: int, bits: int) -> int:
    """Return the peak device bytes per token of hashing one order, if all n-grams are distinct."""
    return 12 * 8 + 3 * 8 * (check.num_columns(order, bits) + 1)  # a quarter-full table while it grows, then rows


class TextFacts(NamedTuple):
    """The facts about a text on which the choice of a strategy depends.

    symbols            size of the alphabet or vocabulary
    tokens             number of tokens of the largest part that is counted at once
    symbols_are_known  False if `symbols` is a guess
    """

    unit: str
    symbols: int
    tokens: int
    symbols_are_known: bool = True


def choose(
    order: int, text: TextFacts, strategy: str, histograms: int, device: str, memory_bytes: int
) -> list[OrderPlan]:
    """Return a plan for each order 1..order.

    memory_bytes  free memory of the device

    Raises InputError if the strategy is dense and its histogram cannot fit.
    """
    budget = int(memory_bytes * MEMORY_SHARE)
    symbols, tokens = text.symbols, text.tokens
    bits = check.code_bits(symbols)
    plans = []
    for n in range(1, order + 1):
        if strategy in ("global", "private"):
            need = dense_bytes(n, symbols, histograms if strategy == "private" else 1)
            if need > budget:
                raise InputError(
                    f"strategy {strategy} at order {n} needs {need:,} bytes ({symbols:,}**{n} bins of {BIN_BYTES} bytes"
                    + (f", {histograms} histograms" if strategy == "private" and histograms > 1 else "")
                    + f") but {budget:,} are free on the {device}; use strategy sort, hash or auto"
                )
            plans.append(OrderPlan(n, strategy, "asked for", need))
        elif strategy == "sort":
            plans.append(OrderPlan(n, strategy, "asked for", sort_bytes_per_token(order, bits) * tokens))
        elif strategy == "hash":
            plans.append(OrderPlan(n, strategy, "asked for", hash_bytes_per_token(n, bits) * tokens))
        else:
            plans.append(_auto(n, order, text, histograms, device, budget))
    return plans


def plans_of_shards(symbols: int, order: int, device_bytes: int = 0) -> list[OrderPlan]:
    """Return the plan of each order 1..order of a run that counts one group of shards after another from the tokens.

    device_bytes  that a group needs
    """
    first = OrderPlan(1, "global", WITH_VOCABULARY, dense_bytes(1, symbols))
    why = "sorted once for all orders, one group of shards after another"
    return [first, *(OrderPlan(n, "sort", why, device_bytes) for n in range(2, order + 1))]


def _auto(n: int, order: int, text: TextFacts, histograms: int, device: str, budget: int) -> OrderPlan:
    unit, symbols, tokens, known = text
    if n == 1:
        return OrderPlan(1, "global", WITH_VOCABULARY, dense_bytes(1, symbols))
    rates = RATES_NS[device]
    bits = check.code_bits(symbols)
    dense = "private" if device == "gpu" else "global"
    copies = histograms if dense == "private" else 1
    need = dense_bytes(n, symbols, copies)
    per_token = sort_bytes_per_token(order, bits)
    columns = check.num_columns(order, bits)
    # One sort of the highest order serves all others. The cost of an order is its derivation from the sorted keys plus
    # the passes over its own digits, which the orders above it share.
    sort_ns = rates["emit"] + rates["sort_pass"] * -(-n * bits // 8) * columns / (order - n + 1)
    num_bins = min(symbols**n, 1 << 62)  # more do not fit anyway, and may be no float
    dense_ns = rates[dense][min(n, 4) - 1] + rates["bin"] * copies * num_bins / max(tokens, 1)
    about = "" if known else "up to " if unit == "byte" else "about "
    if need > budget or dense_ns > sort_ns or (unit != "byte" and not known):
        if need > budget:
            why = f"{about}{symbols:,}**{n} bins do not fit in {budget:,} bytes"
        elif dense_ns > sort_ns:
            bins = f"a histogram of {about}{symbols:,}**{n} bins {dense_ns:.3g}"
            why = f"sorted once for all orders: {sort_ns:.3g} ns a token, {bins}"
        else:
            why = f"sorted once for all orders: {about}{symbols:,}**{n} bins are only a guess"
        return OrderPlan(n, "sort", why, per_token * min(tokens, MAX_SORT_TOKENS))
    why = f"{about}{symbols:,}**{n} bins fit: {dense_ns:.3g} ns a token, sorting {sort_ns:.3g}"
    return OrderPlan(n, dense, why, need)
