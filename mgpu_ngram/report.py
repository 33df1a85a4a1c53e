"""What people see: progress bars on a terminal's stderr, summaries on stdout."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mgpu_ngram.jobs import progress
from mgpu_ngram.jobs.count import CountResult


class Bars(progress.Progress):
    """A bar per phase; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task: Any = None

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, phase: str, total: int, unit: str = "") -> None:
        self._task = self._bars.add_task(phase, total=total, unit=unit)

    def advance(self, done: int) -> None:
        self._bars.advance(self._task, done)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 150, markup=False, emoji=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = name in ("order", "distinct", "written", "count", "total")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name in ("ngram", "strategy"), overflow="fold")
    return table


def show_result(result: CountResult) -> None:
    """The summary of a count run."""
    out, m = _console(), result.manifest
    unit = {"word": "tokens", "byte": "bytes", "id": "ids"}[m["unit"]]
    out.print(f"{result.path}: {m['tokens']:,} {unit} from {len(m['inputs']):,} inputs, {m['symbols']:,} distinct")
    table = _table("order", "total", "distinct", "written", "strategy", "why")
    for plan in result.plans:
        row = m["orders"][str(plan.order)]
        table.add_row(
            str(plan.order), f"{row['total']:,}", f"{row['distinct']:,}", f"{row['rows']:,}", plan.strategy, plan.reason
        )
    out.print(table)
    table = _table("order", "most frequent n-grams")
    for order, top in result.top.items():
        table.add_row(str(order), "   ".join(f"{text!r} {count:,}" for text, count in top))
    out.print(table)
    total = sum(result.seconds.values()) or 1.0
    spent = ", ".join(f"{stage} {s / total:.0%}" for stage, s in result.seconds.items())
    where = f"{result.workers} {result.device} worker{'s' * (result.workers != 1)}"
    out.print(f"{result.wall_seconds:.2f} s on {where}, {result.tokens_per_second:,.0f} {unit}/s; time went to {spent}")
    out.print()


def show_plan(plan: dict[str, Any]) -> None:
    """What a job would do."""
    out = _console()
    out.print(
        f"{plan['job']}: {plan['inputs']:,} inputs of {plan['input_bytes']:,} bytes, about {plan['tokens_about']:,} "
        f"tokens; {plan['chunks']:,} chunks of up to {plan['chunk_bytes']:,} bytes on {plan['workers']} "
        f"{plan['device']} workers; {plan['shards']:,} shards"
    )
    table = _table("order", "strategy", "device bytes", "why")
    for row in plan["orders"]:
        table.add_row(str(row["order"]), row["strategy"], f"{row['device_bytes']:,}", row["reason"])
    out.print(table)
    out.print(
        f"device bytes about {plan['device_bytes']:,} of {plan['device_bytes_free']:,} free, "
        f"host bytes about {plan['host_bytes']:,}"
    )
    out.print()


def show_info(path: str, manifest: dict[str, Any]) -> None:
    """What an output holds."""
    out = _console()
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    out.print(
        f"{path}: counts of {manifest['unit']} n-grams, orders 1 to {manifest['order']}, {manifest['tokens']:,} tokens, "
        f"{manifest['symbols']:,} symbols, {manifest['num_shards']} shards; {len(manifest['inputs']):,} inputs of {size:,} bytes"
    )
    table = _table("order", "total", "distinct", "written")
    for order, row in sorted(manifest["orders"].items(), key=lambda item: int(item[0])):
        table.add_row(order, f"{row['total']:,}", f"{row['distinct']:,}", f"{row['rows']:,}")
    out.print(table)
    options = {k: v for k, v in manifest["options"].items() if v not in (None, False)}
    out.print("options: " + ", ".join(f"{k}={v}" for k, v in options.items()))
    out.print("versions: " + ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()))
