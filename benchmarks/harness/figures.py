"""The figures of the benchmarks, drawn from their rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from mgpu_ngram.benchmarks.harness.rows import Row

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def save(rows: Sequence[Row], folder: Path, name: str) -> None:
    device = re.sub(r"\W+", "_", rows[0].device)
    plt.savefig(folder / f"{name}_{device}.png", dpi=120, bbox_inches="tight")
    plt.close()


def draw_each(
    rows: Sequence[Row], folder: Path, bench: str, figures: Mapping[str, tuple[str, Callable[..., Any]]]
) -> None:
    """Draw BENCH_NAME_DEVICE.png of each figure that has rows.

    figures  name -> (beginning of the rows' kernel, function that draws these rows)
    """
    for name, (prefix, figure) in figures.items():
        mine = [r for r in rows if r.kernel.startswith(prefix) and r.rate]
        if mine:
            plt.figure(figsize=(8, 5))
            figure(mine)
            plt.grid(alpha=0.3)
            save(mine, folder, f"{bench}_{name}")


def size_of(row: Row, letter: str) -> int:
    return int(re.findall(rf"\b{letter}=(\d+)", row.sizes)[0])
