"""Draw the measurements of counting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.count.byte_ngrams import DENSE_ORDERS, EXPERIMENT_B_ORDER, SPARSE_ORDERS, STRATEGIES, label
from mgpu_ngram.benchmarks.count.words_text import STAGES
from mgpu_ngram.benchmarks.harness.figures import save, size_of
from mgpu_ngram.benchmarks.harness.rows import Row

LABELS = [label(*strategy) for strategy in STRATEGIES]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw experiment_a, experiment_b and words, each NAME_DEVICE.png, of those that have rows."""
    for name, prefix, figure in (
        ("experiment_a", "bytes/a ", _experiment_a),
        ("experiment_b", "bytes/b ", _experiment_b),
        ("words", "words/", _words),
    ):
        if any(row.kernel.startswith(prefix) for row in rows):
            figure(rows)
            save(rows, folder, name)


def _experiment_a(rows: Sequence[Row]) -> None:
    """Bars by order and strategy."""
    kernels = ["bytes/python loop", *(f"bytes/a {name}" for name in LABELS)]
    plt.figure(figsize=(11, 5))
    least = min(r.rate for r in rows if r.kernel in kernels and r.rate) / 2
    for k, kernel in enumerate(kernels):
        mine = {size_of(r, "n"): r for r in rows if r.kernel == kernel}
        x = np.array(sorted(mine)) + (k - len(kernels) / 2 + 0.5) * 0.14
        plt.bar(
            x, [(mine[n].rate or 0) / 1e9 for n in sorted(mine)], 0.14, label=kernel.split("/")[1].removeprefix("a ")
        )
        for place, n in zip(x, sorted(mine), strict=True):
            if not mine[n].rate:
                plt.text(place, least / 1e9, "does not fit", rotation=90, ha="center", va="bottom", fontsize=7)
    for target in sorted({(size_of(r, "n"), r.target) for r in rows if r.kernel in kernels and r.target}):
        label = "target" if target[0] == 1 else "_"  # once in the legend
        plt.hlines(target[1] / 1e9, target[0] - 0.45, target[0] + 0.45, "k", linestyles=":", label=label)
    plt.yscale("log")
    plt.ylim(bottom=least / 1e9)
    plt.xticks(list(SPARSE_ORDERS))
    plt.xlabel(f"bytes per n-gram (dense histograms up to {DENSE_ORDERS[-1]})")
    plt.ylabel("GB/s of text = G n-grams/s, to the sorted table")
    plt.title(f"Experiment A: byte n-grams, {_text_size(rows, 'a')}, {rows[0].device}")
    plt.legend(ncols=len(kernels), loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=8)
    plt.grid(axis="y", alpha=0.3)


def _experiment_b(rows: Sequence[Row]) -> None:
    """Throughput by corpus size."""
    plt.figure(figsize=(8, 5))
    for k, name in enumerate(LABELS):  # dashes, for curves that lie on each other
        mine = sorted((r for r in rows if r.kernel == f"bytes/b {name}" and r.rate), key=lambda r: size_of(r, "T"))
        plt.plot(
            [size_of(r, "T") / 2**20 for r in mine],
            [(r.rate or 0) / 1e9 for r in mine],
            "o-" if k % 2 else "s--",
            label=name,
        )
    plt.xscale("log", base=2)
    plt.yscale("log")
    plt.xlabel("corpus size, MiB")
    plt.ylabel("GB/s of text = G n-grams/s")
    plt.title(f"Experiment B: n = {EXPERIMENT_B_ORDER}, byte n-grams, {rows[0].device}")
    plt.legend()
    plt.grid(alpha=0.3)


def _text_size(rows: Sequence[Row], experiment: str) -> str:
    return f"{max(size_of(r, 'T') for r in rows if r.kernel.startswith(f'bytes/{experiment} ')) / 2**20:,.6g} MiB"


def _words(rows: Sequence[Row]) -> None:
    """Where the time of counting words goes."""
    bars = {
        "codes to tables": ("ngram_keys", "radix_sort", "prefix_runs"),
        "text to tables": tuple(f"stage {stage}" for stage in (*STAGES, "split")),
    }
    found = {r.kernel.removeprefix("words/"): r for r in rows if r.kernel.startswith("words/")}
    plt.figure(figsize=(10, 3.2))
    for y, (bar, parts) in enumerate(bars.items()):
        left = 0.0
        tokens = size_of(found[bar], "tokens") if bar in found else 1
        for part in parts:
            width = (found[part].median_seconds or 0.0) / tokens * 1e9 if part in found else 0.0
            plt.barh(y, width, left=left, label=part.removeprefix("stage "))
            left += width
        rate = found[bar].rate if bar in found else None
        if rate:
            plt.text(left, y, f" {rate / 1e6:,.4g} M tokens/s", va="center")
    plt.yticks(range(len(bars)), list(bars))
    plt.margins(x=0.2)
    plt.xlabel("ns a token")
    plt.title(f"Words, orders 1 to 5: where the time goes, {rows[0].device}")
    plt.legend(ncols=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=8)
