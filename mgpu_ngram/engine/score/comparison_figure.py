"""Plot a comparison of models: differences of sentences, and lengths of the matched n-grams."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mgpu_ngram.core.storage.output import new_file

HISTOGRAM_BINS = 61
TAIL_SHARE = 0.005  # share of sentences at either end of a histogram that lie outside its axis


def draw_comparison(
    names: Sequence[str], differences: Sequence[np.ndarray], lengths: Sequence[Sequence[int]], path: str | Path
) -> None:
    """Draw as PNG a histogram of each model's differences from the first model, and the shares of match lengths.

    names        names of the M models
    differences  for M - 1 models: (S,) log10 probability of each sentence, minus that in the first model
    lengths      for M models: words by the length of the longest n-gram; place 0 counts unknown words
    path         path of the file, which appears when it is complete

    Needs Matplotlib.
    """
    from matplotlib.figure import Figure

    panels = len(differences) + 1
    figure = Figure(figsize=(5.2 * panels, 4.2), layout="constrained")
    for place, (name, difference_S) in enumerate(zip(names[1:], differences, strict=True), 1):
        axes = figure.add_subplot(1, panels, place)
        finite_S = difference_S[np.isfinite(difference_S)]
        far = float(np.quantile(np.abs(finite_S), 1 - TAIL_SHARE)) if len(finite_S) else 0.0
        edges = np.linspace(-1, 1, HISTOGRAM_BINS + 1) * (far or 1.0)
        axes.hist(np.clip(difference_S, edges[0], edges[-1]), edges.tolist(), color="#2f7ed8")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel(f"log10 P in {name}, minus that in {names[0]}")
        axes.set_ylabel("sentences")
        axes.grid(alpha=0.3)
    axes = figure.add_subplot(1, panels, panels)
    places, width = np.arange(max(map(len, lengths))), 0.8 / len(names)
    for i, (name, counts) in enumerate(zip(names, lengths, strict=True)):
        share = np.zeros(len(places))
        share[: len(counts)] = np.array(counts) / max(1, sum(counts))
        axes.bar(places + (i - (len(names) - 1) / 2) * width, share, width, label=name)
    axes.set_xticks(places, ["unknown", *map(str, places[1:])])
    axes.set_xlabel("words of the longest n-gram")
    axes.set_ylabel("share of words")
    axes.grid(alpha=0.3)
    axes.legend()
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120)
    with new_file(path) as sink:
        sink.write(png.getvalue())
