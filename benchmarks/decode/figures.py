"""The figures of `bench decode`, drawn from its rows beside those of the paper (Hoang et al., Amun, 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.decode import published as paper
from mgpu_ngram.benchmarks.decode.generated_model import SOURCE_WORDS_PER_SECOND
from mgpu_ngram.benchmarks.harness.figures import draw_each, size_of
from mgpu_ngram.benchmarks.harness.rows import Row

PREFIX = "decode/"


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw decode_NAME_DEVICE.png of each part that has rows."""
    figures = {
        "pass": (PREFIX + "pass", _pass),
        "table3": (PREFIX + "step", _table3),
        "whole": (PREFIX + "whole", _whole),
        "figure2": (PREFIX + "drain ", _figure2),
        "figure3": (PREFIX + "batch ", _figure3),
        "figure4": (PREFIX + "fusion ", _figure4),
    }
    draw_each(rows, folder, "decode", figures)


def _pass(rows: Sequence[Row]) -> None:
    """Bars: shares of a plain read of the same bytes."""
    mine = [row for row in rows if row.share_of_ceiling]
    labels = [f"{row.kernel.removeprefix(PREFIX)}: {row.sizes}" for row in mine]
    plt.barh(labels, [100 * (row.share_of_ceiling or 0.0) for row in mine])
    plt.gca().set_yticks(range(len(mine)), labels, fontsize=6)
    plt.axvline(100, color="k", linestyle=":", label="a plain read")
    plt.gca().invert_yaxis()
    plt.xlabel("% of the rate of a plain read of the same bytes")
    plt.title(f"Softmax and the best words in one pass, {rows[0].device}")
    plt.legend()


def _table3(rows: Sequence[Row]) -> None:
    """Bars by beam size: times of the steps after the product, here and of Amun on an H200; the paper's in the text."""
    beams = sorted({size_of(row, "k") for row in rows if "fused" in row.kernel})
    found = {(row.kernel.removeprefix(PREFIX + "step "), size_of(row, "k")): row.median_seconds or 0.0 for row in rows}
    labels, left = list[str](), list[float]()
    for k in beams:
        labels += [f"beam {k}, unfused", f"beam {k}, fused"]
        left += [0.0, 1e3 * found["fused", k]]
    plt.barh(labels[1::2], left[1::2], color="C3", label="fused")
    starts = [0.0] * len(beams)
    for name in paper.UNFUSED_STEPS:
        widths = [1e3 * found[f"unfused, {name}", k] for k in beams]
        plt.barh(labels[::2], widths, left=starts, label=name)
        starts = [a + b for a, b in zip(starts, widths, strict=True)]
    if "cores" not in rows[0].device:
        for what, times in (("unfused", paper.AMUN_UNFUSED), ("fused", paper.AMUN_STEP)):
            names = [f"beam {k}, {what}, {paper.AMUN}" for k in beams]
            plt.barh(names, [1e3 * times[k] for k in beams], color="grey", label=f"Amun, {what}")
    shares = [f"beam {k}: {100 * (1 - paper.FUSED_SECONDS[k] / sum(paper.UNFUSED_SECONDS[k])):.1f} %" for k in beams]
    plt.xlabel(f"ms of a step. Saved by fusion on a V100, as published: {', '.join(shares)}")
    plt.gca().invert_yaxis()
    plt.title(f"Table 3: the output layer after the product, {rows[0].device}")
    plt.legend(fontsize=8)


def _whole(rows: Sequence[Row]) -> None:
    """Curves by beam size."""
    for kernel in dict.fromkeys(row.kernel for row in rows):
        found = sorted((size_of(row, "beam"), row.rate or 0.0) for row in rows if row.kernel == kernel)
        plt.plot(*zip(*found, strict=True), "o-", label=kernel.removeprefix(PREFIX))
    if "cores" not in rows[0].device:
        for dtype, rates in paper.AMUN_WORDS.items():
            plt.plot(list(rates), list(rates.values()), "s--", color="grey", label=f"{paper.AMUN}, {dtype}")
    plt.yscale("log")
    plt.xlabel("beam size")
    plt.ylabel(SOURCE_WORDS_PER_SECOND)
    gains = [f"beam {k}: {100 * (1 - new / old):.1f} %" for k, (old, new) in paper.TENSOR_CORE_SECONDS.items()]
    plt.title(
        f"Whole decode, {rows[0].device}\nTable 4, saved by tensor cores of a V100: {', '.join(gains)}", fontsize=9
    )
    plt.legend(fontsize=8)


def _figure2(rows: Sequence[Row]) -> None:
    for kernel in dict.fromkeys(row.kernel for row in rows):
        found = sorted(
            (size_of(row, "step"), 1e3 * (row.median_seconds or 0.0)) for row in rows if row.kernel == kernel
        )
        plt.plot(*zip(*found, strict=True), "o-", label=kernel.removeprefix(PREFIX + "drain "))
    plt.xlabel("step")
    plt.ylabel("ms of a step")
    plt.title(f"Figure 2: steps of a batch of {size_of(rows[0], 'batch'):,} sentences, {rows[0].device}")
    plt.legend()


def _figure3(rows: Sequence[Row]) -> None:
    for kernel in dict.fromkeys(row.kernel for row in rows):
        found = sorted((size_of(row, "batch"), row.rate or 0.0) for row in rows if row.kernel == kernel)
        plt.plot(*zip(*found, strict=True), "o-", label=kernel.removeprefix(PREFIX + "batch "))
    plt.xscale("log", base=2)
    plt.yscale("log")
    plt.xlabel("sentences at once")
    plt.ylabel(SOURCE_WORDS_PER_SECOND)
    plt.title(f"Figure 3: rates by size of the batch, {rows[0].device}")
    plt.legend()


def _figure4(rows: Sequence[Row]) -> None:
    beams = sorted({size_of(row, "beam") for row in rows})
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    width = 0.7 / len(kernels)
    for shift, kernel in enumerate(kernels):
        found = {size_of(row, "beam"): row.rate or 0.0 for row in rows if row.kernel == kernel}
        x = [place + width * shift for place in range(len(beams))]
        plt.bar(x, [found.get(k, 0.0) for k in beams], width, label=kernel.removeprefix(PREFIX + "fusion "))
    plt.xticks([place + 0.35 - width / 2 for place in range(len(beams))], [f"beam {k}" for k in beams])
    plt.ylabel(SOURCE_WORDS_PER_SECOND)
    plt.title(f"Figure 4: whole decodes with and without the fused pass, {rows[0].device}")
    plt.legend()
