"""Draw the speed-up of more workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from mgpu_ngram.benchmarks.cluster.words import TEXT_TO_SHARDS
from mgpu_ngram.benchmarks.harness.figures import save, size_of
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.lda.tables import CULDA_SPEEDUP


def draw_speedup(rows: Sequence[Row], folder: Path) -> None:
    """Draw cluster_speedup_DEVICE.png: how many times faster several workers are, by the size of the text."""
    mine = [r for r in rows if r.kernel == TEXT_TO_SHARDS]
    workers = {1, *CULDA_SPEEDUP}
    plt.figure(figsize=(6, 5))
    plt.plot([1, 4], [1, 4], "k:", label="linear")
    for tokens in sorted({size_of(r, "tokens") for r in mine}):
        found = {size_of(r, "workers"): r.speedup for r in mine if size_of(r, "tokens") == tokens and r.speedup}
        speedup = {1: 1.0} | dict(sorted(found.items()))
        workers |= speedup.keys()
        label = f"words 1 to 5, text to merged tables, {tokens / 1e6:,.4g} M tokens"
        plt.plot(list(speedup), list(speedup.values()), "o-", label=label)
    plt.plot(
        list(CULDA_SPEEDUP), list(CULDA_SPEEDUP.values()), "s--", label="CuLDA_CGS, as published: topics, Titan Xp"
    )
    plt.xticks(sorted(workers))
    plt.xlabel("GPUs" if "cores" not in rows[0].device else "workers (of CuLDA_CGS: GPUs)")
    plt.ylabel("speed-up")
    plt.title(rows[0].device)
    plt.legend()
    plt.grid(alpha=0.3)
    save(rows, folder, "cluster_speedup")
