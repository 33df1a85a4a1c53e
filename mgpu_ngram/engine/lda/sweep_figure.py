"""Plot the training of a topic model: perplexity and log-likelihood over sweeps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.output import new_file

SWEEP = "sweep"
PANELS = {  # axis -> {name in the history: label}
    "perplexity": {"perplexity": "training", "held_out_perplexity": "held out"},
    "log-likelihood per token": {"plugin": "plug-in", "joint": "joint with topics"},
}
STYLES = ("o-", "s--")  # as in the figures of the benchmarks
MANY_POINTS = 60  # above, points have no markers


def draw_sweeps(history: Sequence[Mapping[str, float]], path: str | Path, title: str = "") -> None:
    """Draw the metrics of a history over sweeps, as PNG; one panel for each kind of metric that it has.

    history  one mapping for each measured sweep: "sweep", and any of "perplexity", "held_out_perplexity", "plugin" and
             "joint" (log-likelihoods per token); other names and missing values are ignored
    path     path of the file, which appears when it is complete

    Raises InputError without Matplotlib, or if the history has none of these metrics.
    """
    panels = {axis: _curves(history, names) for axis, names in PANELS.items()}
    panels = {axis: curves for axis, curves in panels.items() if curves}
    if not panels:
        known = ", ".join(name for names in PANELS.values() for name in names)
        raise InputError(f"the history has no metrics to draw; measure one of {known}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a figure of the sweeps needs Matplotlib; pip install matplotlib, or leave the figure out"
        ) from error
    width = 6.5 * len(panels)
    figure = Figure(figsize=(width, 4.5))
    for place, (axis, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        for (label, (sweeps, values)), style in zip(curves.items(), STYLES, strict=False):
            axes.plot(sweeps, values, style, label=label, markersize=3 if len(sweeps) <= MANY_POINTS else 0)
            end = sweeps[-1], values[-1]
            axes.annotate(f"{end[1]:,.5g}", end, (5, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_xlabel("sweep")
        axes.set_ylabel(axis)
        axes.margins(x=0.14)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    png = io.BytesIO()
    figure.subplots_adjust(left=0.8 / width, right=1 - 0.2 / width, bottom=0.12, top=0.9, wspace=0.24)
    figure.savefig(
        png, format="png", dpi=120, pil_kwargs={"compress_level": 1}
    )  # saves 20 ms; the file is a quarter larger
    with new_file(path) as sink:
        sink.write(png.getvalue())


def _curves(
    history: Sequence[Mapping[str, float]], names: Mapping[str, str]
) -> dict[str, tuple[list[float], list[float]]]:
    """Return {label: (sweeps, values)} of the metrics that the history has."""
    curves = {}
    for name, label in names.items():
        found = [(row[SWEEP], row[name]) for row in history if row.get(name) is not None]
        if found:
            sweeps, values = zip(*found, strict=True)
            curves[label] = list(sweeps), list(values)
    return curves
