"""The figures of `bench distribution`, drawn from its rows beside the figures of papers and peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.distribution.rates import NGPU_LM_RATES
from mgpu_ngram.benchmarks.distribution.steps import TABLE_54
from mgpu_ngram.benchmarks.distribution.thesis import TABLE_51, TABLE_53
from mgpu_ngram.benchmarks.harness.figures import draw_each, size_of
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGE, SMALL

PREFIX = "distribution/"
PUBLISHED = "as published, K80"
GILM_SATURATED, GLM_SATURATED = 50, 10_000  # sentences, by Li (2018)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw distribution_NAME_DEVICE.png of each experiment that has rows."""
    figures = {
        "dense": (PREFIX + "dense", _dense),
        "small": (PREFIX + "small batches", _small),
        "peers": (PREFIX + "peer batches", _peers),
        "saturation": (PREFIX + "saturation", _saturation),
        "order": (PREFIX + "table5.3", _order),
        "steps": (PREFIX + "table5.4", _steps),
    }
    draw_each(rows, folder, "distribution", figures)


def _dense(rows: Sequence[Row]) -> None:
    """Bars: bytes a second, and the ceiling."""
    labels = [f"{r.kernel.removeprefix(PREFIX)}, V = {size_of(r, 'V'):,}" for r in rows]
    plt.barh(labels, [(r.bytes_per_second or 0) / 1e9 for r in rows])
    for y, row in enumerate(rows):
        end, rate = (row.bytes_per_second or 0) / 1e9, (row.rate or 0) / 1e6
        plt.text(end, y, f" {rate:,.3g} M distributions/s", va="center", fontsize=8)
    ceiling = rows[0].ceiling_bytes_per_second
    if ceiling:
        plt.axvline(ceiling / 1e9, color="k", linestyle=":", label=rows[0].ceiling)
        plt.legend(fontsize=8)
    plt.margins(x=0.4)
    plt.gca().invert_yaxis()
    plt.xlabel("GB/s written")
    plt.title(f"Dense rows of all orders, {rows[0].device}")


def _small(rows: Sequence[Row]) -> None:
    """Curves by histories at once, and the rate that the ceiling allows."""
    for V in sorted({size_of(r, "V") for r in rows}):
        mine = sorted(
            (r for r in rows if size_of(r, "V") == V and size_of(r, "orders") > 1), key=lambda r: size_of(r, "H")
        )
        [curve] = plt.plot([size_of(r, "H") for r in mine], [r.rate or 0 for r in mine], "o-", label=f"V = {V:,}")
        if mine and mine[0].ceiling_bytes_per_second:
            plt.axhline(mine[0].ceiling_bytes_per_second / 4 / V, color=curve.get_color(), linestyle=":")
    plt.axhline(TABLE_51["smoothed"][SMALL], color="grey", linestyle="--", label=f"giLM, V = 1,350, {PUBLISHED}")
    _titles(rows, "Small vocabularies (dotted: the write ceiling)", "histories at once", "distributions a second")


def _peers(rows: Sequence[Row]) -> None:
    """Curves by vocabulary, of each number of histories at once."""
    for k, batch in enumerate((1, 1_024)):
        mine = sorted((r for r in rows if size_of(r, "H") == batch), key=lambda r: size_of(r, "V"))
        theirs = {V: rate for (V, H), rate in NGPU_LM_RATES.items() if H == batch}
        plt.plot(
            [size_of(r, "V") for r in mine], [r.rate or 0 for r in mine], "o-", color=f"C{k}", label=f"batch {batch:,}"
        )
        plt.plot(
            list(theirs), list(theirs.values()), "s--", color=f"C{k}", label=f"NGPU-LM on an H200, batch {batch:,}"
        )
    _titles(rows, "The highest order alone", "words of the vocabulary", "histories a second")


def _saturation(rows: Sequence[Row]) -> None:
    """Figures 5.1 and 5.2 in one."""
    for kernel, what, theirs, since in (
        ("rows", "distributions", TABLE_51["smoothed"][LARGE], GILM_SATURATED),
        ("scores", "scores of words", TABLE_51["scores"][LARGE], GLM_SATURATED),
    ):
        mine = [r for r in rows if r.kernel.endswith(kernel)]
        [curve] = plt.plot(
            [size_of(r, "sentences") for r in mine], [r.rate or 0 for r in mine], "o-", label=f"{what}, here"
        )
        label = f"{'giLM' if kernel == 'rows' else 'gLM'}, saturated from {since:,}, {PUBLISHED}"
        plt.axhline(theirs, color=curve.get_color(), linestyle="--", label=label)
    _titles(rows, "Figures 5.1 and 5.2: saturation", "sentences at once", "a second")


def _order(rows: Sequence[Row]) -> None:
    for k, name in enumerate((LARGE, SMALL)):
        mine = [r for r in rows if f" {name} " in r.kernel and not r.kernel.endswith("scores")]
        plt.plot(
            [size_of(r, "n") for r in mine],
            [r.rate or 0 for r in mine],
            "o-",
            color=f"C{k}",
            label=f"{name} model, here",
        )
        theirs = TABLE_53[name]
        plt.plot(list(theirs), list(theirs.values()), "s--", color=f"C{k}", label=f"{name} model, {PUBLISHED}")
    _titles(rows, "Table 5.3: order", "order of the model", "distributions a second")
    plt.xscale("linear")
    plt.xticks(list(TABLE_53[LARGE]))


def _steps(rows: Sequence[Row]) -> None:
    names = list(TABLE_54[LARGE])
    for k, name in enumerate((LARGE, SMALL)):
        found = {names.index(step): r.rate or 0 for r in rows for step in names if f" {name} {step}" in r.kernel}
        plt.plot(list(found), list(found.values()), "o-", color=f"C{k}", label=f"{name} model, here")
        theirs = [TABLE_54[name][step] for step in names]
        plt.plot(range(len(names)), theirs, "s--", color=f"C{k}", label=f"{name} model, {PUBLISHED}")
    _titles(rows, "Table 5.4: steps", "", "distributions a second")
    plt.xscale("linear")
    plt.xticks(range(len(names)), names)


def _titles(rows: Sequence[Row], title: str, x: str, y: str) -> None:
    plt.xscale("log")
    plt.yscale("log")
    plt.title(f"{title}, {rows[0].device}")
    plt.xlabel(x)
    plt.ylabel(y)
    plt.legend(fontsize=8)
