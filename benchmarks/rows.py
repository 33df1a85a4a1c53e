"""Measurements as rows: of a CSV that is kept, and of a table to read."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One measurement. `kernel`, `sizes` and `device` name it; a later one of the same name replaces it."""

    kernel: str
    sizes: str
    device: str
    version: str
    runs: int = 0
    median_seconds: float | None = None
    min_seconds: float | None = None
    max_seconds: float | None = None
    rate: float | None = None
    rate_unit: str = ""
    target: float | None = None  # at least, in rate_unit
    bytes_moved: int | None = None  # that the algorithm must move: inputs, outputs, passes over them
    bytes_per_second: float | None = None
    ceiling: str = ""
    ceiling_bytes_per_second: float | None = None
    share_of_ceiling: float | None = None
    floor_seconds: float | None = None  # bytes_moved at the ceiling
    baseline: str = ""
    speedup: float | None = None  # over the baseline
    notes: str = ""


COLUMNS = [f.name for f in fields(Row)]


def write_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Put rows into a CSV: those of the same kernel, sizes and device are replaced, others kept; sorted."""
    path = Path(path)
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    if path.exists():
        with open(path, newline="") as file:
            kept = {_key(row): row for row in csv.DictReader(file)}
    kept |= {_key(row): row for row in map(_cells, rows)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return row["device"], row["kernel"], row["sizes"]


def _cells(row: Row) -> dict[str, Any]:
    """Numbers with four digits: what a measurement is good for."""
    return {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()}


def one_line(row: Row) -> str:
    """A row for people."""
    words = [row.kernel, row.sizes]
    words += [f"{row.median_seconds:.4g} s"] if row.median_seconds is not None else []
    words += [_with_unit(row.rate, row.rate_unit)] if row.rate is not None else []
    words += [f"target {_with_unit(row.target, row.rate_unit)}"] if row.target is not None else []
    words += [f"{row.speedup:.3g}x {row.baseline}"] if row.speedup is not None else []
    return "; ".join([*words, row.notes] if row.notes else words)


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("kernel", "sizes", "seconds", "spread", "rate", "target", "bytes/s", "of ceiling", "speedup"):
        table.add_column(name, justify="left" if name in ("kernel", "sizes") else "right", no_wrap=True)
    table.add_column("notes")
    for row in rows:
        seconds, share = row["median_seconds"], row["share_of_ceiling"]
        table.add_row(
            row["kernel"],
            row["sizes"],
            "" if seconds is None else f"{seconds:.4g}",
            "" if seconds is None else f"{row['min_seconds']:.3g}..{row['max_seconds']:.3g}",
            "" if row["rate"] is None else _with_unit(row["rate"], row["rate_unit"]),
            "" if row["target"] is None else _with_unit(row["target"], ""),
            "" if row["bytes_per_second"] is None else _with_unit(row["bytes_per_second"], "B/s"),
            "" if share is None else f"{share:.0%} {row['ceiling']}",
            "" if row["speedup"] is None else f"{row['speedup']:.3g}x",
            row["notes"],
        )
    console = Console()
    console.width = max(console.width, 220)
    if rows:
        console.print(f"{rows[0]['device']}; {rows[0]['version']}", highlight=False)
    console.print(table)


def _with_unit(value: float, unit: str) -> str:
    """A rate with a prefix: 1.23e9 is "1.23 GB/s" or "1.23 G tokens/s"."""
    gap = "" if unit == "B/s" else " "
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{gap}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()
