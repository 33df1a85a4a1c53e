"""Measurements as rows of a CSV file, and as a table to read."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One measurement, as a bench printed it. A later row of the same `kernel`, `sizes` and `device` replaces it.

    The columns from `commit` on say where a row comes from; rows that are older than these columns leave them empty.
    """

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
    bytes_moved: int | None = None  # bytes that the algorithm must move: inputs, outputs, passes over them
    bytes_per_second: float | None = None
    ceiling: str = ""
    ceiling_bytes_per_second: float | None = None
    share_of_ceiling: float | None = None
    floor_seconds: float | None = None  # bytes_moved at the ceiling
    baseline: str = ""
    speedup: float | None = None  # over the baseline
    notes: str = ""
    commit: str = ""  # of the code, with -dirty where files differ from it
    date: str = ""  # UTC, such as 2026-01-31
    driver: str = ""  # of the GPU
    host: str = ""  # GPUs, processor, cores and memory
    command: str = ""  # that made the row


DIGITS = 3  # of a figure on a page
COLUMNS = [f.name for f in fields(Row)]
INTEGERS = {"runs", "bytes_moved"}
NUMBERS = {
    f.name: int if f.name in INTEGERS else float for f in fields(Row) if f.name in INTEGERS or "float" in str(f.type)
}


def read_rows(path: str | Path) -> list[Row]:
    """Return the rows of a CSV file; empty cells and columns that the file lacks get their defaults."""
    with open(path, newline="") as file:
        return [_row(cells) for cells in csv.DictReader(file)]


def _row(cells: dict[str, str]) -> Row:
    values: dict[str, Any] = {name: NUMBERS.get(name, str)(cell) for name, cell in cells.items() if cell}
    return Row(**values)


def write_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Put rows into a sorted CSV file. Each replaces the row of the same kernel, sizes and device."""
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
    """Return the cells of a row, its numbers with four digits: measurements vary by more."""
    return {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()}


def one_line(row: Row) -> str:
    """Return a row as a line of text."""
    words = [row.kernel, row.sizes]
    words += [f"{row.median_seconds:.4g} s"] if row.median_seconds is not None else []
    words += [with_unit(row.rate, row.rate_unit)] if row.rate is not None else []
    words += [f"target {with_unit(row.target, row.rate_unit)}"] if row.target is not None else []
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
            "" if row["rate"] is None else with_unit(row["rate"], row["rate_unit"]),
            "" if row["target"] is None else with_unit(row["target"], ""),
            "" if row["bytes_per_second"] is None else with_unit(row["bytes_per_second"], "B/s"),
            "" if share is None else f"{share:.0%} {row['ceiling']}",
            "" if row["speedup"] is None else f"{row['speedup']:.3g}x",
            row["notes"],
        )
    console = Console()
    console.width = max(console.width, 220)
    if rows:
        console.print(f"{rows[0]['device']}; {rows[0]['version']}", highlight=False)
    console.print(table)


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    """Return a rate with a prefix: 1.23e9 is "1.23 GB/s" or "1.23 G tokens/s"."""
    gap = "" if unit == "B/s" else " "
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if float(f"{value:.{digits}g}") >= factor:
            return f"{rounded(value / factor, digits)} {prefix}{gap}{unit}".rstrip()
    return f"{rounded(value, digits)} {unit}".rstrip()


def rounded(value: float, digits: int) -> str:
    """Return a number with so many digits, without an exponent: 1234 with 2 digits is "1,200"."""
    value = float(f"{value:.{digits}g}")
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _seconds(seconds: float, digits: int) -> str:
    for factor, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{rounded(seconds / factor, digits)} {unit}"
    return f"{rounded(seconds * 1e6, digits)} µs"


# Fields of a row that pages quote, as text of so many digits; None if the row lacks the field.
FIELDS: dict[str, Callable[[Row, int], str | None]] = {
    "rate": lambda row, digits: None if row.rate is None else with_unit(row.rate, row.rate_unit, digits),
    "number": lambda row, digits: None if row.rate is None else with_unit(row.rate, "", digits),
    "seconds": lambda row, digits: None if row.median_seconds is None else _seconds(row.median_seconds, digits),
    "speedup": lambda row, digits: None if row.speedup is None else rounded(row.speedup, digits),
    "share": lambda row, _: None if row.share_of_ceiling is None else f"{row.share_of_ceiling:.0%}",
    "target": lambda row, digits: None if row.target is None else with_unit(row.target, row.rate_unit, digits),
}
