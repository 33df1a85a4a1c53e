"""What people see: progress bars on a terminal's stderr, summaries on stdout."""

from __future__ import annotations

import itertools
import math
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mgpu_ngram.jobs import progress
from mgpu_ngram.jobs.count.run import CountResult
from mgpu_ngram.jobs.distribution.run import DistributionResult
from mgpu_ngram.jobs.estimate.passes import Statistics
from mgpu_ngram.jobs.estimate.run import EstimateResult
from mgpu_ngram.jobs.score.run import ScoreResult, Totals
from mgpu_ngram.jobs.trie.run import TrieResult

PIPE_COLUMNS = 100  # width of what is no terminal
MAX_SHOWN = 60  # characters of an n-gram
WITHOUT_DIGITS = str.maketrans("", "", "0123456789.,")
UNITS = {"word": "tokens", "byte": "bytes", "id": "ids"}


class Bars(progress.Progress):
    """A bar per phase; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            _Rate(),
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

    def start(self, phase: str, total: int, unit: str = "", rate: str = "") -> None:
        self._task = self._bars.add_task(phase, total=total, unit=unit, rate=rate, amount=0)

    def advance(self, done: int, amount: int = 0) -> None:
        amount += self._bars.tasks[self._task].fields["amount"]
        self._bars.update(self._task, advance=done, amount=amount)


class _Rate(ProgressColumn):
    """Tokens, bytes or histories per second of a phase so far."""

    def render(self, task: Any) -> Text:
        elapsed = task.finished_time or task.elapsed
        if not task.fields["rate"] or not elapsed or not task.fields["amount"]:
            return Text("")
        rate, unit = task.fields["amount"] / elapsed, f"{task.fields['rate']}/s"
        return Text(f"{rate / 1e6:,.1f} M {unit}" if rate >= 1e5 else f"{rate:,.0f} {unit}")


def show_result(result: CountResult | EstimateResult | ScoreResult | TrieResult | DistributionResult) -> None:
    """The summary of a job's run."""
    if isinstance(result, ScoreResult):
        _show_scores(result)
    elif isinstance(result, EstimateResult):
        _show_estimate(result)
    elif isinstance(result, DistributionResult):
        _show_written(result)
    elif isinstance(result, TrieResult):
        _show_trie(result)
    else:
        _show_counts(result)
    print()


def _show_counts(result: CountResult) -> None:
    m, unit = result.manifest, UNITS[result.manifest["unit"]]
    print(f"{_shown(result.path)}: {m['tokens']:,} {unit} from {_many(len(m['inputs']), 'input')}")
    _show_orders(m, {p.order: p.strategy for p in result.plans})
    _show_reasons((p.order, p.strategy, p.reason) for p in result.plans)
    print("most frequent")
    for order, top in result.top.items():
        if top:
            _show_top(order, top)
    where = _many(result.workers, f"{result.device} worker")
    print(f"{result.wall_seconds:.2f} s on {where}: {result.tokens_per_second:,.0f} {unit}/s")
    _show_seconds(result.seconds)
    if len(result.worker_rates) > 1:
        rates = ", ".join(f"{worker}: {rate:,.0f}" for worker, rate in result.worker_rates.items())
        print(textwrap.fill(f"{unit}/s while counting, by worker: {rates}", _console().width, subsequent_indent="  "))
    _show_memory(result)
    if result.resumed_chunks:
        print(f"{_many(result.resumed_chunks, 'chunk')} had been counted before")


def _show_memory(result: CountResult | EstimateResult) -> None:
    if result.peak_device_bytes:
        print(f"device memory: {result.peak_device_bytes:,} bytes at most")
    if result.peak_host_bytes:
        print(f"host memory: {result.peak_host_bytes:,} bytes at most in one process")
    _show_transport(result)


def _show_transport(result: CountResult | EstimateResult | ScoreResult | DistributionResult) -> None:
    if result.workers > 1 or result.device == "gpu":
        print(f"transport: {result.transport}")


def _show_seconds(seconds: dict[str, float]) -> None:
    total = sum(seconds.values()) or 1.0
    print("time went to " + ", ".join(f"{stage} {s / total:.0%}" for stage, s in seconds.items()))


def _show_written(result: DistributionResult) -> None:
    m = result.manifest
    print(f"{_shown(result.path)}: {_distributions(m)}")
    where = _many(result.workers, f"{result.device} worker")
    print(f"{result.wall_seconds:.2f} s on {where}: {result.histories_per_second:,.0f} histories/s, ", end="")
    print(f"{result.bytes_per_second / 1e9:,.3f} GB/s")
    _show_seconds(result.seconds)
    _show_transport(result)
    if result.resumed_chunks:
        print(f"{_many(result.resumed_chunks, 'chunk')} had been written before")


def _distributions(m: dict[str, Any]) -> str:
    """What an output holds, in a line."""
    orders = ", ".join(map(str, m["orders"]))
    top_k = m["options"].get("top_k")
    columns = f"{_many(top_k, 'word')} of {m['symbols']:,}" if top_k else _many(m["symbols"], "word")
    histories = f"{m['histories']:,} {'history' if m['histories'] == 1 else 'histories'}"
    return f"{histories}, orders {orders}, {columns}: {m['size_bytes']:,} bytes of {m['options']['format']}"


def _show_trie(result: TrieResult) -> None:
    counts = " + ".join(f"{count:,}" for count in result.counts)
    print(f"{_shown(result.path)}: order {result.order}, {sum(result.counts):,} n-grams ({counts})")
    print(f"{result.size_bytes:,} bytes, {result.bytes_per_ngram:.1f} an n-gram; fingerprint {result.fingerprint}")
    spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in result.seconds.items())
    print(f"time went to {spent}")


def _show_estimate(result: EstimateResult) -> None:
    found = result.statistics
    print(f"{_shown(result.path)}: {sum(found.kept.values()):,} n-grams in {result.size_bytes:,} bytes")
    print(f"unigram tokens {result.tokens:,}, types {result.types:,}")
    show_statistics(found)
    where = _many(result.workers, f"{result.device} worker")
    print(f"{result.wall_seconds:.2f} s on {where}: {result.tokens_per_second:,.0f} tokens/s")
    _show_seconds(result.seconds)
    _show_memory(result)
    if result.resumed_chunks:
        print(f"{_many(result.resumed_chunks, 'chunk')} had been counted before")


def show_statistics(found: Statistics) -> None:
    """What lmplz prints: n-grams, counts of counts and discounts by order."""
    pruned = found.kept != found.total
    table = _table("order", "n-grams", *["of"] * pruned, "with 1", "2", "3", "4", "D1", "D2", "D3+")
    for n in sorted(found.kept):
        sizes = [found.kept[n], *[found.total[n]] * pruned, *found.counts_of_counts[n]]
        table.add_row(str(n), *(f"{size:,}" for size in sizes), *(f"{d:.6g}" for d in found.discounts[n]))
    _print(table)
    for n in found.fallback:
        print(f"order {n}: no discounts could be computed; those of discount_fallback are taken")


def _show_scores(result: ScoreResult) -> None:
    totals = result.totals
    print(f"{_shown(result.path)}: {_many(totals.sentences, 'sentence')}, {totals.tokens:,} tokens")
    show_totals(totals)
    print(f"{result.wall_seconds:.2f} s on {_many(result.workers, f'{result.device} worker')}: ", end="")
    print(f"{result.tokens_per_second:,.0f} tokens/s")
    _show_seconds(result.seconds)
    _show_transport(result)


def show_totals(totals: Totals) -> None:
    """The summary of KenLM's query."""
    for name, value in ("including", totals.perplexity), ("excluding", totals.perplexity_without_oovs):
        print(f"Perplexity {name} OOVs:\t{_double(value)}")
    print(f"OOVs:\t{totals.oovs}\nTokens:\t{totals.tokens}")


def _double(value: float) -> str:
    """A number from 1e-6 on as KenLM prints it: the shortest that reads back the same, with e from 1e21 on."""
    if math.isnan(value):
        return "NaN"
    if value < 1e21:
        return np.format_float_positional(value, trim="-")
    return repr(value).replace("e+", "e").replace(".0e", "e")


def _shown(path: Path | None) -> Path | None:
    """A path from here, where it lies below."""
    return path.relative_to(Path.cwd()) if path and path.is_relative_to(Path.cwd()) else path


def show_plan(plan: dict[str, Any]) -> None:
    """What a job would do."""
    if "counts" in plan:
        where = _many(plan["workers"], f"{plan['device']} worker")
        print(f"{plan['job']}: {plan['counts']} to a Kneser-Ney model, on {where} (transport {plan['transport']})\n")
        return
    if "input_bytes" not in plan:
        print(f"{plan['job']}: {plan['model']} to a model file, index {plan['index']}, on the {plan['device']}\n")
        return
    print(f"{plan['job']}: {_many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes")
    if "histories_about" in plan:
        _show_distribution_plan(plan)
        return
    print(
        f"about {plan['tokens_about']:,} tokens in {_many(plan['chunks'], 'chunk')} of up to {plan['chunk_bytes']:,} "
        f"bytes; {_many(plan['workers'], plan['device'] + ' worker')} (transport {plan['transport']})"
        + (f", {_many(plan['shards'], 'shard')}" if "shards" in plan else f"; {plan['index']} of {plan['model']}")
    )
    if "orders" in plan:
        _show_count_plan(plan)
    print()


def _show_distribution_plan(plan: dict[str, Any]) -> None:
    print(
        f"about {plan['histories_about']:,} histories, by {plan['model']}, to {plan['format']}; "
        f"{_many(plan['workers'], plan['device'] + ' worker')} (transport {plan['transport']})"
    )
    if "chunks" in plan:
        print(
            f"about {plan['output_bytes_about']:,} bytes, in {_many(plan['chunks'], 'chunk')} of up to "
            f"{plan['chunk_bytes']:,} bytes of text"
        )
    print()


def _show_count_plan(plan: dict[str, Any]) -> None:
    table = _table("order", "strategy", "device bytes")
    for row in plan["orders"]:
        table.add_row(str(row["order"]), row["strategy"], f"{row['device_bytes']:,}")
    _print(table)
    _show_reasons((row["order"], row["strategy"], row["reason"]) for row in plan["orders"])
    print(f"device: about {plan['device_bytes']:,} of {plan['device_bytes_free']:,} free bytes")
    print(f"host: up to {plan['host_bytes']:,} of {plan['host_bytes_free']:,} bytes")
    print(f"disk: up to {plan['spill_bytes']:,} bytes of sorted runs")


def show_info(path: str, manifest: dict[str, Any]) -> None:
    """What an output holds."""
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    unit = UNITS[manifest["unit"]]
    print(f"{path}: counts of {manifest['unit']} n-grams, orders 1 to {manifest['order']}")
    print(
        f"{manifest['tokens']:,} {unit} from {_many(len(manifest['inputs']), 'input')} of {size:,} bytes; "
        f"{_many(manifest['symbols'], 'symbol')}, {_many(manifest['num_shards'], 'shard')}"
    )
    _show_orders(manifest)
    _show_options(manifest)


def show_estimated(path: str, manifest: dict[str, Any]) -> None:
    """What the output of an estimate job holds."""
    found = manifest["statistics"]
    by_order = {k: {int(n): v for n, v in by.items()} for k, by in found.items() if k != "fallback"}
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    print(f"{path}: a Kneser-Ney model of order {manifest['order']}, {sum(found['kept'].values()):,} n-grams, of "
          f"{_many(len(manifest['inputs']), 'input')} of {size:,} bytes")  # fmt: skip
    print(f"unigram tokens {manifest['tokens']:,}, types {manifest['types']:,}; fingerprint {manifest['fingerprint']}")
    show_statistics(Statistics(**by_order, fallback=found["fallback"]))
    _show_options(manifest)


def show_scored(path: str, manifest: dict[str, Any]) -> None:
    """What the output of a score job holds."""
    found, size = manifest["totals"], sum(i["size_bytes"] for i in manifest["inputs"])
    log10, oov_log10 = (-math.inf if found[name] is None else found[name] for name in ("log10", "oov_log10"))
    totals = Totals(found["sentences"], found["tokens"], found["oovs"], log10, oov_log10)
    print(
        f"{path}: scores of {_many(totals.sentences, 'sentence')} from {_many(len(manifest['inputs']), 'input')} of "
        f"{size:,} bytes, by {manifest['model']['path']}"
    )
    show_totals(totals)
    _show_options(manifest)


def show_distributions(path: str, manifest: dict[str, Any]) -> None:
    """What an output of distributions holds."""
    print(f"{path}: {_distributions(manifest)}")
    for name, array in manifest.get("arrays", {}).items():
        shape = " x ".join(f"{n:,}" for n in array["shape"])
        print(f"{name}.{manifest['options']['format']}: {shape}, {array['dtype']}")
    if "part_histories" in manifest:
        print(f"a file for every {manifest['part_histories']:,} histories")
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    print(
        f"from {_many(len(manifest['inputs']), 'input')} of {size:,} bytes, by {manifest['model']['path']} of order "
        f"{manifest['order']}"
    )
    _show_options(manifest)


def show_model(path: str, found: dict[str, Any]) -> None:
    """What a model file holds."""
    counts = " + ".join(f"{count:,}" for count in found["orders"])
    print(f"{path}: a model of order {found['order']}, {sum(found['orders']):,} n-grams ({counts})")
    values = "quantised values" if found["quantized"] else "float32 values"
    backoffs = "backoffs" if found["backoffs"] else "no backoffs: it scores no text"
    edges = "an edge table" if found["edge_table"] else "no edge table"
    print(f"{values}, {backoffs}, fanout {found['fanout']}, {edges}")
    print(
        f"{found['size_bytes']:,} bytes, {found['bytes_per_ngram']:.1f} an n-gram; fingerprint {found['fingerprint']}"
    )


def show_file(path: str, found: dict[str, Any]) -> None:
    """What a file is that is no model file of ours."""
    many = " + ".join(f"{count:,}" for count in found.get("orders", []))
    of_order = f" of order {found['order']}, {sum(found['orders']):,} n-grams ({many})" if many else ""
    compressed = f" ({found['compression']})" if found["compression"] else ""
    print(f"{path}: {found['format']}{compressed}{of_order}")
    shown = {name: found[name] for name in ("type", "vocabulary", "rows", "columns", "keys") if name in found}
    for name, value in shown.items():
        print(f"{name}: {', '.join(value) if isinstance(value, (list, dict)) else value}")
    print(f"{found['size_bytes']:,} bytes")
    if "type" in found:
        print("KenLM binary models cannot be read yet; mgpu-ngram convert reads the ARPA file that this was built from")


def _many(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'s' * (n != 1)}"


def _show_options(manifest: dict[str, Any]) -> None:
    options = {k: v for k, v in manifest["options"].items() if v is not None}
    line = "options: " + ", ".join(f"{k}={v}" for k, v in options.items())
    print(textwrap.fill(line, _console().width, subsequent_indent="  ", break_long_words=False))
    print("versions: " + ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()))


def _show_orders(manifest: dict[str, Any], strategies: dict[int, str] | None = None) -> None:
    pruned = manifest["options"]["min_count"] > 1
    table = _table("order", "n-grams", "distinct", *["written"] * pruned, *["strategy"] * (strategies is not None))
    for order, row in sorted(manifest["orders"].items(), key=lambda item: int(item[0])):
        cells = [order, f"{row['total']:,}", f"{row['distinct']:,}", *[f"{row['rows']:,}"] * pruned]
        table.add_row(*cells, *([strategies[int(order)]] if strategies else []))
    _print(table)


def _show_reasons(plans: Any) -> None:
    """Why each strategy: a line for neighbouring orders that share it and, numbers apart, its reason."""
    for (strategy, _), group in itertools.groupby(plans, lambda p: (p[1], p[2].translate(WITHOUT_DIGITS))):
        orders, reasons = zip(*((order, reason) for order, _, reason in group), strict=True)
        which = f"order {orders[0]}" if len(orders) == 1 else f"orders {orders[0]} to {orders[-1]}"
        why = f"{which} by {strategy}: {reasons[0]}"
        print(textwrap.fill(why, _console().width, subsequent_indent="  ", break_on_hyphens=False))


def _show_top(order: int, top: list[tuple[str, int]]) -> None:
    """As many of the heaviest n-grams as fit a line, but at least one."""
    line, width = f"{order:5}", _console().width
    for i, (text, count) in enumerate(top):
        shown = repr(text) if len(text) <= MAX_SHOWN else repr(text[:MAX_SHOWN]) + "..."
        cell = f"  {shown} {count:,}"
        if i > 0 and len(line) + len(cell) > width:
            break
        line += cell
    print(line)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS, markup=False, emoji=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    return table


def _print(table: Table) -> None:
    console = _console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
