"""Time a call, and keep what was measured as rows of a CSV."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mgpu_ngram.engine.device import synchronize

MIN_RUNS, MAX_RUNS = 3, 15
BUDGET_SECONDS = {"gpu": 1.0, "cpu": 1.5}  # of one row, warm-up apart; slow calls still get MIN_RUNS


@dataclass(frozen=True)
class Timing:
    """Seconds of several runs of one call."""

    runs: int
    median_seconds: float
    min_seconds: float
    max_seconds: float


def measure(
    call: Callable[..., Any],
    device: str,
    setup: Callable[[], Any] | None = None,
    runs: int | None = None,
    warm_up: bool = True,
) -> Timing:
    """Time `call` after a warm-up: CUDA events around it on a GPU, the clock on a CPU.

    setup  makes the argument of each call, outside the clock: for calls that use up their input
    runs   how many; by default as many as a second or so allows, at least 3
    """
    seconds: list[float] = []
    if warm_up:
        _time_once(call, device, setup)
    while len(seconds) < (runs or MAX_RUNS):
        if runs is None and len(seconds) >= MIN_RUNS and sum(seconds) > BUDGET_SECONDS[device]:
            break
        seconds.append(_time_once(call, device, setup))
    return timing_of(seconds)


def timing_of(seconds: Sequence[float]) -> Timing:
    """The median and spread of some runs."""
    return Timing(len(seconds), statistics.median(seconds), min(seconds), max(seconds))


def _time_once(call: Callable[..., Any], device: str, setup: Callable[[], Any] | None) -> float:
    arguments = () if setup is None else (setup(),)
    if device == "cpu":
        start = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - start
    import cupy

    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    synchronize(device)
    before.record()
    call(*arguments)
    after.record()
    after.synchronize()
    return cupy.cuda.get_elapsed_time(before, after) / 1000


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
            "" if row["rate"] is None else f"{_si(row['rate'])}{row['rate_unit']}",
            "" if row["target"] is None else _si(row["target"]).strip(),
            "" if row["bytes_per_second"] is None else f"{_si(row['bytes_per_second'])}B/s",
            "" if share is None else f"{share:.0%} {row['ceiling']}",
            "" if row["speedup"] is None else f"{row['speedup']:.3g}x",
            row["notes"],
        )
    console = Console()
    console.width = console.width if console.is_terminal else 240
    if rows:
        console.print(f"{rows[0]['device']}; {rows[0]['version']}", highlight=False)
    console.print(table)


def _si(value: float) -> str:
    """A number with a prefix: 1.23e9 is "1.23 G"."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
