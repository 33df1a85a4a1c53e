"""The figure of `bench estimate`, drawn from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.estimate.ids import STEPS
from mgpu_ngram.benchmarks.estimate.peers import PEER, TEXT_TO_ARPA
from mgpu_ngram.benchmarks.estimate.text import TEXT_TO_MODEL
from mgpu_ngram.benchmarks.harness.figures import save
from mgpu_ngram.benchmarks.harness.rows import Row

STAGES = ("read", "copy", "tokenise", "vocabulary", *STEPS)
BARS = {"estimate/ids to model": "estimate/ids", TEXT_TO_MODEL: TEXT_TO_MODEL}  # rows of steps begin with these
RATES = (*BARS, TEXT_TO_ARPA, PEER)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw estimate_DEVICE.png, if there are rows of steps: time by step, and rates beside lmplz."""
    found = {row.kernel: row for row in rows if row.rate}
    kernels = [kernel for kernel in BARS if kernel in found]
    if not kernels:
        return
    _, (left, right) = plt.subplots(1, 2, figsize=(13, 3.2), layout="constrained")
    for k, stage in enumerate(STAGES):
        widths = [_ns(found.get(f"{BARS[kernel]}, {stage}"), found[kernel]) for kernel in kernels]
        starts = [sum(_ns(found.get(f"{BARS[kernel]}, {s}"), found[kernel]) for s in STAGES[:k]) for kernel in kernels]
        if any(widths):
            left.barh([_name(kernel) for kernel in kernels], widths, left=starts, label=stage, color=f"C{k}")
    left.set_xlabel("ns a token, summed over workers")
    left.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8)
    kernels = [kernel for kernel in RATES if kernel in found]
    rates = [found[kernel].rate or 0.0 for kernel in kernels]
    bars = right.barh([_name(kernel) for kernel in kernels], [rate / 1e6 for rate in rates])
    right.bar_label(bars, [f"{rate / 1e6:,.3g}" for rate in rates], padding=3)
    right.set_xscale("log")
    right.set_xlim(10.0 ** math.floor(math.log10(min(rates) / 1e6)), 2 * max(rates) / 1e6)
    right.set_xlabel("M tokens/s")
    plt.suptitle(f"Kneser-Ney models of order 5, {rows[0].device}")
    save(rows, folder, "estimate")


def _ns(stage: Row | None, whole: Row) -> float:
    """Of a stage, for each token of the whole."""
    if stage is None or not stage.median_seconds or not whole.rate or not whole.median_seconds:
        return 0.0
    return stage.median_seconds / (whole.rate * whole.median_seconds) * 1e9


def _name(kernel: str) -> str:
    return kernel.removeprefix("estimate/").removeprefix("peer ")
