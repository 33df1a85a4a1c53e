"""The figures of `bench lda`, drawn from its rows beside those of the paper (Xie et al., "CuLDA_CGS", 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.harness.figures import draw_each, size_of
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.lda.tables import CULDA, CULDA_SPEEDUP, ON_H200, PUBLISHED, SHARES, WARPLDA


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw lda_NAME_DEVICE.png of each table and figure that has rows."""
    drawn = {"table4": _table4, "table5": _table5, "fig7": _fig7, "fig8": _fig8, "fig9": _fig9}
    draw_each(rows, folder, "lda", {name: (f"lda/{name} ", figure) for name, figure in drawn.items()})


def _table4(rows: Sequence[Row]) -> None:
    bars, colors = dict[str, float](), list[str]()
    for row in rows:
        name = row.kernel.rsplit(" ", 1)[1]
        bars |= {f"{name}, here": row.rate or 0.0}
        if row.kernel in (CULDA, WARPLDA):
            colors.append("C1")
            continue
        bars |= {f"{name}, CuLDA_CGS on an H200": ON_H200[1]} if name == "NYTimes" else {}
        bars |= {f"{name}, {device}, as published": rate for device, rate in PUBLISHED[name].items()}
        colors += ["C0"] + ["grey"] * (len(bars) - len(colors) - 1)
    plt.barh(list(bars), [rate / 1e6 for rate in bars.values()], color=colors)
    for y, rate in enumerate(bars.values()):
        plt.text(rate / 1e6, y, f" {rate / 1e6:,.1f}", va="center", fontsize=8)
    plt.xscale("log")
    plt.margins(x=0.2)
    plt.gca().invert_yaxis()
    plt.xlabel("M tokens/s, first 100 sweeps")
    plt.title(f"Table 4: K = {size_of(rows[0], 'K'):,}, {rows[0].device}; grey: others")


def _table5(rows: Sequence[Row]) -> None:
    found = {row.kernel.removeprefix("lda/table5 "): row.rate or 0.0 for row in rows}
    devices = [*SHARES["sampling"], "here"]
    starts = [0.0] * len(devices)
    for name, shares in SHARES.items():
        widths = [*shares.values(), found.get(name, 0.0)]
        plt.barh([*(f"{device}, as published" for device in devices[:-1]), "here"], widths, left=starts, label=name)
        starts = [a + b for a, b in zip(starts, widths, strict=True)]
    plt.xlabel("% of the time")
    plt.title(f"Table 5: steps of a sweep, NYTimes, {rows[0].device}")
    plt.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _curves(rows: Sequence[Row], label: str) -> None:
    found = sorted((size_of(row, "sweep"), (row.rate or 0.0) / 1e6) for row in rows)
    plt.plot(*zip(*found, strict=True), "o-", label=label)


def _fig7(rows: Sequence[Row]) -> None:
    styles = iter(("--", "-.", ":") * len(PUBLISHED))
    for kernel in dict.fromkeys(row.kernel for row in rows):
        name = kernel.rsplit(" ", 1)[1]
        _curves([row for row in rows if row.kernel == kernel], f"{name}, here")
        for device in ("Titan X", "Titan Xp", "V100"):
            rate, color = PUBLISHED[name][device] / 1e6, "grey" if name == "NYTimes" else "silver"
            plt.axhline(rate, color=color, linestyle=next(styles), label=f"{name}, {device}, published mean")
    plt.yscale("log")
    plt.xlabel("sweep")
    plt.ylabel("M tokens/s")
    plt.title(f"Figure 7: K = {size_of(rows[0], 'K'):,}, {rows[0].device}")
    plt.legend(fontsize=7)


def _fig8(rows: Sequence[Row]) -> None:
    for kernel in dict.fromkeys(row.kernel for row in rows):
        found = sorted((row.median_seconds or 0.0, row.rate or 0.0) for row in rows if row.kernel == kernel)
        plt.plot(*zip(*found, strict=True), "o-", label=kernel.removeprefix("lda/fig8 "))
    plt.xscale("log")
    plt.xlabel("seconds of sweeps")
    plt.ylabel("plug-in log-likelihood of a token")
    plt.title(f"Figure 8: K = {size_of(rows[0], 'K'):,}, {rows[0].device}")
    plt.legend()


def _fig9(rows: Sequence[Row]) -> None:
    """Left: rates by sweep; right: how many times faster several GPUs are."""
    plt.close()
    _, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    sweeps = [row for row in rows if "sweep=" in row.sizes]
    plt.sca(left)
    for G in sorted({size_of(row, "workers") for row in sweeps}):
        _curves([row for row in sweeps if size_of(row, "workers") == G], f"{G} at once")
    left.set_xlabel("sweep")
    left.set_ylabel("M tokens/s")
    left.set_ylim(bottom=0)
    left.legend()
    left.grid(alpha=0.3)
    speedup = {size_of(row, "workers"): row.speedup or 1.0 for row in rows if "sweep=" not in row.sizes}
    right.plot([1, 4], [1, 4], "k:", label="linear")
    right.plot(list(speedup), list(speedup.values()), "o-", label="here")
    right.plot(list(CULDA_SPEEDUP), list(CULDA_SPEEDUP.values()), "s--", color="grey", label="Titan Xp, as published")
    right.plot([1, 2], [1, ON_H200[2] / ON_H200[1]], "d--", color="silver", label="CuLDA_CGS on H200s, NYTimes")
    right.set_xticks(sorted({1, 2, 4, *speedup}))
    right.set_xlabel("GPUs" if "cores" not in rows[0].device else "workers")
    right.set_ylabel("speed-up")
    right.legend()
    plt.sca(right)
    plt.suptitle(f"Figure 9: PubMed, K = {size_of(rows[0], 'K'):,}, {rows[0].device}")
