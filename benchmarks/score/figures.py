"""The figures of `bench score`, drawn from its rows beside the figures of papers and peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.harness.figures import draw_each, size_of
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.inputs.scoring_subjects import EDGES
from mgpu_ngram.benchmarks.score.published import (
    GLM,
    GLM_BEST_FANOUT,
    GLM_STUMPS,
    MEASURED,
    PUBLISHED,
    PUBLISHED_ORDERS,
    PUBLISHED_SIZES,
)

RATE = "n-gram queries a second"


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw score_NAME_DEVICE.png of each experiment that has rows."""
    drawn = {
        "table3": _table3, "table4": _table4, "table5": _table5, "figure9": _figure9, "figure10": _figure10,
        "stumps": _stumps,
    }  # fmt: skip
    draw_each(rows, folder, "score", {name: (f"score/{name} ", figure) for name, figure in drawn.items()})


def _curves(rows: Sequence[Row], letter: str) -> None:
    """A curve for each kernel, by a number in `sizes`."""
    for kernel in dict.fromkeys(r.kernel for r in rows):
        found = sorted((size_of(r, letter), r.rate) for r in rows if r.kernel == kernel)
        plt.plot(*zip(*found, strict=True), "o-", label=f"{kernel.split(' ', 1)[1]}, here")


def _published(curves: Mapping[str, Mapping[Any, float]]) -> None:
    for (label, points), style in zip(curves.items(), ("s--", "^--", "v--"), strict=True):
        plt.plot(list(points), list(points.values()), style, color="grey", label=label)


def _titles(rows: Sequence[Row], title: str, x: str) -> None:
    plt.title(f"{title}, {rows[0].device}")
    plt.xlabel(x)
    plt.ylabel(RATE)
    plt.legend(fontsize=8)


def _table3(rows: Sequence[Row]) -> None:
    found = {r.kernel.removeprefix("score/table3 "): r.rate or 0 for r in rows}
    ours = {name: rate for name, rate in found.items() if not name.startswith("size of ")}
    sizes = {name.removeprefix("size of "): size for name, size in found.items() if name not in ours}
    sizes[EDGES] = sizes[f"{EDGES} and trie"]
    labels = {name: f"{name}, {sizes[name]:.3g} B/n-gram" if name in sizes else name for name in ours}
    bars = {labels[name]: rate for name, rate in ours.items()} | MEASURED | PUBLISHED
    plt.barh(list(bars), list(bars.values()), color=["C0"] * len(ours) + ["grey"] * (len(bars) - len(ours)))
    for y, value in enumerate(bars.values()):
        plt.text(value, y, f" {value / 1e6:,.{0 if value >= 1e9 else 1}f} M", va="center", fontsize=8)
    plt.xscale("log")
    plt.margins(x=0.2)
    plt.gca().invert_yaxis()
    plt.xlabel(RATE)
    plt.title(f"Table 3: structures, {size_of(rows[0], 'G') / 1e6:,.3g} M n-grams, {rows[0].device}; grey: others")


def _table4(rows: Sequence[Row]) -> None:
    _curves(rows, "G")
    _published(PUBLISHED_SIZES)
    plt.xscale("log")
    plt.yscale("log")
    _titles(rows, "Table 4: the size of the model", "n-grams")


def _table5(rows: Sequence[Row]) -> None:
    _curves(rows, "n")
    _published(PUBLISHED_ORDERS)
    plt.yscale("log")
    plt.xticks(list(PUBLISHED_ORDERS[GLM]))
    _titles(rows, "Table 5: order", "order of the model")


def _figure9(rows: Sequence[Row]) -> None:
    _curves(rows, "fanout")
    plt.axvline(GLM_BEST_FANOUT, color="grey", linestyle=":", label=f"gLM is fastest at {GLM_BEST_FANOUT}")
    plt.plot([31], [PUBLISHED[GLM]], "s", color="grey", label=GLM)
    plt.plot([31], [MEASURED["gLM on an H200"]], "d", color="grey", label="gLM on an H200")
    plt.yscale("log")
    _titles(rows, "Figure 9: fanout of the B+-tree", "words that a search looks at in one step")


def _figure10(rows: Sequence[Row]) -> None:
    _curves(rows, "batch")
    for (label, value), style in zip(PUBLISHED.items(), ("--", "-.", ":"), strict=True):
        plt.axhline(value, color="grey", linestyle=style, label=f"{label}, saturated")
    plt.xscale("log")
    plt.yscale("log")
    _titles(rows, "Figure 10: batches", "queries scored at once")


def _stumps(rows: Sequence[Row]) -> None:
    _curves(rows, "order")
    plt.plot(list(GLM_STUMPS), list(GLM_STUMPS.values()), "s--", color="grey", label="of nodes, gLM, 23 M n-grams")
    plt.xticks(list(GLM_STUMPS))
    _titles(rows, "B-stumps: nodes of one B-tree node", "order of the n-grams")
    plt.ylabel("share")
