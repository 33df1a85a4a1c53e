"""Distributions a second beside what the device can write: dense rows, small vocabularies, the peer's shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.units import DISTRIBUTIONS_PER_SECOND, HISTORIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import (
    LARGE,
    LARGEST,
    MIDDLE,
    SHAPES,
    SMALL,
    WRITES,
    Case,
    DistributionBench,
    ModelSize,
)
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_rows
from mgpu_ngram.core.models.row_options import RowOptions

# Targets of one H200.
DENSE_SHARE, SMALL_SHARE = 0.95, 0.8  # of what it writes: the latter of small vocabularies,
SMALL_HISTORIES = 10_000  # from so many histories on
ONE_HISTORY_SECONDS = 10e-6  # on the device, for V = 10,000
HALF_SPEEDUP = 1.8  # speed-up of float16 over float32
BATCHES = tuple(10**k for k in range(6))
ON_DEVICE = {"gpu": "time on the device", "cpu": ""}

# (who, distributions a second). Li (2018), with backoff; and a throw-away kernel at V = 296,488, 85 % of the ceiling.
GILM_SMALL, GILM_LARGE = ("giLM on a K80", 27.9e6), ("giLM on a K80", 0.36e6)
SPIKE = "a spike on an H200", 3.1e6
# NeMo's Triton kernel on one H200, an automaton of 10.6 M words, scores in ln with the next states:
# {(V, histories at once): histories a second}.
NGPU_LM = "NGPU-LM on an H200"
NGPU_LM_RATES = {
    (1_024, 1): 1 / 21.5e-6, (1_024, 1_024): 24.0e6, (1_024, 16_384): 48.2e6,
    (8_192, 1): 1 / 163e-6, (8_192, 1_024): 0.55e6, (8_192, 16_384): 0.53e6,
    (32_768, 1): 1 / 978e-6, (32_768, 1_024): 0.111e6, (32_768, 16_384): 0.108e6,
    (131_072, 1): 1 / 4.2e-3, (131_072, 1_024): 0.026e6, (131_072, 4_096): 0.025e6,
}  # fmt: skip
NGPU_LM_SPEEDUPS = {(32_768, 1_024): 20, (131_072, 1_024): 100}  # to reach


def dense(bench: DistributionBench) -> None:
    """Rows: all orders of two models, smoothed and stored, in each type; and with the histories to be found first."""
    for name, peer in ((LARGE, GILM_LARGE), (LARGEST, SPIKE)):
        case = bench.case(SHAPES[name])
        bench.suite.say(f"dense rows, V = {case.symbols:,}")
        options = case.options()
        target = bench.written(DENSE_SHARE, case, options)
        float32 = dense_row(bench, "dense", case, options, target, peer)
        dense_row(bench, "dense", case, case.options(mode="stored"), target, peer)
        dense_row(bench, "dense packed", case, options, None, peer, packed=True)
        H = bench.most(case, options)
        call = partial(find_and_write, case, case.positions(H), options, bench.rows(H, case, options))
        how = described(bench, H, case, options, target, peer)
        bench.suite.run(
            "distribution/dense with finding", case.sizes(H), call, check=partial(check_rows, case, options), **how
        )
        if float32.rate:
            beside = "float32", float32.rate
            dense_row(
                bench, "dense", case, case.options(dtype="float16"), bench.target(HALF_SPEEDUP * float32.rate), beside
            )
            dense_row(bench, "dense", case, case.options(dtype="bfloat16"), None, beside)


def dense_row(
    bench: DistributionBench,
    part: str,
    case: Case,
    options: RowOptions,
    target: float | None = None,
    peer: tuple[str, float] | None = None,
    packed: bool = False,
) -> Row:
    """A row: rows of as many histories as there is room for, which were found before.

    peer    who stands beside it, and its distributions a second
    packed  rows without bytes between them
    """
    H = bench.most(case, options)
    call = partial(case.model.dense, case.find_first(H, options.scale), options, bench.rows(H, case, options, packed))
    name, check = f"distribution/{part} {options.mode} {options.dtype}", partial(check_rows, case, options)
    return bench.suite.run(name, case.sizes(H), call, check=check, **described(bench, H, case, options, target, peer))


def find_and_write(case: Case, positions_H: Any, options: RowOptions, out: Any) -> Any:
    return case.model.find_and_make(case.subject.text_T, positions_H, options, True, out)


def described(
    bench: DistributionBench,
    histories: int,
    case: Case,
    options: RowOptions,
    target: float | None,
    peer: tuple[str, float] | None,
) -> dict[str, Any]:
    """Rows of probabilities, as `Suite.add` wants them described."""
    items = histories * len(options.orders)
    how: dict[str, Any] = {"items": items, "unit": DISTRIBUTIONS_PER_SECOND, "target": target}
    how |= {"bytes_moved": histories * options.row_bytes(case.symbols), "ceiling": WRITES[bench.suite.device]}
    return how | ({"baseline": peer[0], "baseline_seconds": items / peer[1]} if peer else {})


def small(bench: DistributionBench) -> None:
    """Rows: small vocabularies by histories at once, found and written, as the device sees it; one as the host does."""
    for name, peer in ((SMALL, GILM_SMALL), (MIDDLE, None)):
        case = bench.case(SHAPES[name])
        bench.suite.say(f"batches, V = {case.symbols:,}")
        for orders in "all", "max":
            options = case.options(orders=orders)
            for batch in BATCHES if orders == "all" else BATCHES[:1]:
                if batch > bench.most(case, options):
                    break
                target = bench.written(SMALL_SHARE, case, options) if batch >= SMALL_HISTORIES else None
                if batch == 1 and name == MIDDLE:
                    target = bench.target(len(options.orders) / ONE_HISTORY_SECONDS)
                batch_row(bench, "small", case, batch, options, target, peer)
        options = case.options()
        call = partial(find_and_write, case, case.longest_history(), options, bench.rows(1, case, options))
        what: dict[str, Any] = {
            "items": len(options.orders),
            "unit": DISTRIBUTIONS_PER_SECOND,
            "notes": "with what the host takes to start kernels",
        }
        bench.suite.run("distribution/small from the host", case.sizes(1), call, **what)


def peers(bench: DistributionBench) -> None:
    """Rows: the highest order alone, beside NGPU-LM."""
    for (symbols, batch), rate in NGPU_LM_RATES.items():
        case = bench.case(ModelSize(symbols))
        options = case.options(orders="max", scale="ln")
        if batch <= bench.most(case, options):
            speedup = NGPU_LM_SPEEDUPS.get((symbols, batch))
            target = bench.target(speedup * rate) if speedup else None
            batch_row(bench, "peer", case, batch, options, target, (NGPU_LM, rate)).rate_unit = HISTORIES_PER_SECOND


def batch_row(
    bench: DistributionBench,
    part: str,
    case: Case,
    batch: int,
    options: RowOptions,
    target: float | None = None,
    peer: tuple[str, float] | None = None,
) -> Row:
    """A row: so many histories at once, found and written; one alone is as long as they get."""
    positions_H = case.positions(batch) if batch > 1 else case.longest_history()
    call = partial(find_and_write, case, positions_H, options, bench.rows(batch, case, options))
    check_rows(case, options, call(), int(positions_H[0]))
    seconds = device_seconds(call, bench.suite.device)
    sizes = f"{case.sizes(batch)} orders={len(options.orders)}"
    how = described(bench, batch, case, options, target, peer)
    return bench.suite.add(f"distribution/{part} batches", sizes, seconds, notes=ON_DEVICE[bench.suite.device], **how)
