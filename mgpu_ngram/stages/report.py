"""Output that all stages use: progress bars on a terminal's stderr, and parts of summaries on stdout."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mgpu_ngram.jobs.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_COLUMNS = 100  # width of output without a terminal


class RunFacts(Protocol):
    """Fields about the work of a run that results of several stages share."""

    @property
    def workers(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def transport(self) -> str: ...


class MemoryFacts(RunFacts, Protocol):
    """As `RunFacts`, with the peak memory of one worker."""

    @property
    def peak_device_bytes(self) -> int: ...

    @property
    def peak_host_bytes(self) -> int: ...


class Bars(Progress):
    """A bar per phase on a terminal, erased when the job ends; nothing when stderr is not a terminal."""

    def __init__(self, drawn: bool = True) -> None:
        self._bars: Any = _rich_bars() if drawn and sys.stderr is not None and sys.stderr.isatty() else None
        self._task: Any = None

    def __enter__(self) -> Bars:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def start(self, phase: str, total: int, unit: str = "", rate: str = "") -> None:
        if self._bars:
            self._task = self._bars.add_task(phase, total=total or None, unit=unit, rate=rate, amount=0)

    def advance(self, done: int, amount: int = 0) -> None:
        if self._bars:
            amount += self._bars.tasks[self._task].fields["amount"]
            self._bars.update(self._task, advance=done, amount=amount)

    def note(self, text: str) -> None:
        if self._bars:
            self._bars.update(self._task, unit=text)


def _rich_bars() -> Any:
    from rich import progress
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Tokens, bytes or histories per second of a phase so far."""

        def render(self, task: Any) -> Text:
            elapsed = task.finished_time or task.elapsed
            if not task.fields["rate"] or not elapsed or not task.fields["amount"]:
                return Text("")
            rate, unit = task.fields["amount"] / elapsed, f"{task.fields['rate']}/s"
            return Text(f"{rate / 1e6:,.1f} M {unit}" if rate >= 1e5 else f"{rate:,.0f} {unit}")

    return progress.Progress(
        progress.TextColumn("{task.description:10}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}"),
        Rate(Column(no_wrap=True)),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,  # or finished bars would be drawn again between the results of two jobs
    )


def many(n: int, thing: str) -> str:
    """Return "1 input", "2 inputs"."""
    return f"{n:,} {thing}{'s' * (n != 1)}"


def where(result: RunFacts) -> str:
    """Return the place of the tasks of a run: "2 cpu workers" or "this process"."""
    if result.transport == "memory":
        return f"this process ({result.device}, {many(result.workers, 'thread')})"
    return many(result.workers, f"{result.device} worker")


def where_planned(plan: Mapping[str, Any]) -> str:
    """Return the place of the tasks of a planned run, as `where` does."""
    if plan["transport"] == "memory":
        return f"this process ({plan['device']}, {many(plan['workers'], 'thread')})"
    return f"{many(plan['workers'], plan['device'] + ' worker')} (transport {plan['transport']})"


def shown_path(path: Path | None) -> Path | None:
    """Return a path relative to the working folder if it is inside."""
    return path.relative_to(Path.cwd()) if path and path.is_relative_to(Path.cwd()) else path


def show_seconds(seconds: dict[str, float]) -> None:
    """Print the share of each part of the work."""
    total = sum(seconds.values()) or 1.0
    print("time went to " + ", ".join(f"{stage} {s / total:.0%}" for stage, s in seconds.items()))


def show_memory(result: MemoryFacts) -> None:
    """Print the peak memory of one worker."""
    if result.peak_device_bytes:
        print(f"device memory: {result.peak_device_bytes:,} bytes at most")
    if result.peak_host_bytes:
        print(f"host memory: {result.peak_host_bytes:,} bytes at most in one process")
    show_transport(result)


def show_transport(result: RunFacts) -> None:
    """Print the transport of arrays between workers, if the run had more than one."""
    if result.workers > 1 or result.device == "gpu":
        print(f"transport: {result.transport}")


def show_options(manifest: dict[str, Any]) -> None:
    """Print the options and versions of an output."""
    options = {k: v for k, v in manifest["options"].items() if v is not None}
    line = "options: " + ", ".join(f"{k}={v}" for k, v in options.items())
    print(textwrap.fill(line, console().width, subsequent_indent="  ", break_long_words=False))
    print("versions: " + ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()))


def show_model(path: str, found: dict[str, Any]) -> None:
    """Print a description of a model file."""
    counts = " + ".join(f"{count:,}" for count in found["orders"])
    print(f"{path}: a model of order {found['order']}, {sum(found['orders']):,} n-grams ({counts})")
    values = "quantised values" if found["quantized"] else "float32 values"
    backoffs = "backoffs" if found["backoffs"] else "no backoffs: it scores no text"
    edges = "an edge table" if found["edge_table"] else "no edge table"
    print(f"{values}, {backoffs}, fanout {found['fanout']}, {edges}")
    print(
        f"{found['size_bytes']:,} bytes, {found['bytes_per_ngram']:.1f} an n-gram; fingerprint {found['fingerprint']}"
    )


def show_topic_model(path: str, found: dict[str, Any]) -> None:
    """Print a description of the file of a topic model."""
    words = many(found["words"], "word") + ("" if found["vocabulary"] else " (ids alone)")
    print(
        f"{path}: a topic model, {many(found['topics'], 'topic')} of {words}, {many(found['sweeps'], 'sweep')} over "
        f"{many(found['tokens'], 'token')}"
    )
    alpha = found["alpha"]
    each = f"{alpha['least']:.4g}" + (f" to {alpha['most']:.4g}" if alpha["most"] > alpha["least"] else "")
    seeds = f"; {many(found['seed_words'], 'word')} with priors of their own" if found["seed_words"] else ""
    print(f"priors: alpha {each} (sum {alpha['sum']:.4g}), beta {found['beta']:.4g}{seeds}")
    metrics = {name: value for name, value in found["metrics"].items() if name != "sweep"}
    if metrics:
        print("metrics: " + ", ".join(f"{name} {value:,.4g}" for name, value in metrics.items()))
    print(f"{found['size_bytes']:,} bytes")


def show_translation_model(path: str, found: dict[str, Any]) -> None:
    """Print a description of the file of a translation model."""
    words = " x ".join(f"{n:,}" for n in found["source_words"])
    attention = "with attention" if found["attention"] else "without attention"
    print(f"{path}: a translation model, {words} source words to {found['target_words']:,} target words")
    layers = "" if max(found["layers"]) == 1 else ", encoder depth {}, decoder depth {}".format(*found["layers"])
    print(
        f"{found['cell']} of {found['state']:,}{layers}, embeddings of {found['embedding']:,}, {attention}; "
        f"{found['parameters']:,} parameters"
    )
    print(f"{found['size_bytes']:,} bytes")


def show_file(path: str, found: dict[str, Any]) -> None:
    """Print a description of a file that is not a model file."""
    counts = " + ".join(f"{count:,}" for count in found.get("orders", []))
    of_order = f" of order {found['order']}, {sum(found['orders']):,} n-grams ({counts})" if counts else ""
    compressed = f" ({found['compression']})" if found["compression"] else ""
    print(f"{path}: {found['format']}{compressed}{of_order}")
    shown = {name: found[name] for name in ("type", "vocabulary", "rows", "columns", "keys") if name in found}
    for name, value in shown.items():
        print(f"{name}: {', '.join(value) if isinstance(value, (list, dict)) else value}")
    print(f"{found['size_bytes']:,} bytes")


def console() -> Console:
    """Return a console on stdout that prints text without markup."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS, markup=False, emoji=False)


def table(*columns: str) -> Table:
    """Return an empty table; all columns except "strategy" are aligned right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    return made


def print_table(made: Table) -> None:
    """Print a table without spaces at line ends."""
    out = console()
    with out.capture() as captured:
        out.print(made)
    for line in captured.get().splitlines():
        print(line.rstrip())
