"""The count stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import itertools
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import COUNT_BYTES
from mgpu_ngram.stages.flags import add_overwrite, add_text
from mgpu_ngram.stages.report import (
    console,
    many,
    print_table,
    show_memory,
    show_options,
    show_seconds,
    shown_path,
    table,
    where,
)  # fmt: skip
from mgpu_ngram.stages.show_plan import show_text_plan, show_time_plan

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import PlanContext
    from mgpu_ngram.jobs.count.run import CountResult

EXAMPLES = """examples:
  mgpu-ngram count books/*.txt.gz -o counts --order 5
  mgpu-ngram count page.html -o bytes --unit byte --order 4 --strategy hash
  mgpu-ngram count tokens.bin -o ids --unit id --dtype uint16 --separator-id 0
  zcat corpus.gz | mgpu-ngram count - -o counts --min-count 2
  mgpu-ngram count crawl/*.zst -o counts --columns ids
  mgpu-ngram count 2026.txt -o both --add counts --order 5"""
FLAGS: dict[str, dict[str, Any]] = {
    "order": {"type": int, "metavar": "N", "help": "highest n-gram order; all orders from 1 are counted (default 5)"},
    "unit": {"choices": ["word", "byte", "id"], "help": "symbols of the n-grams (default word)"},
    "dtype": {"choices": ["uint16", "uint32"], "help": "type of raw token ids (default uint16)"},
    "separator_id": {"type": int, "metavar": "ID", "help": "token id between texts, which no n-gram crosses"},
    "sentence_markers": {"action": "store_true", "help": "add one <s> and one </s> per line"},
    "lowercase": {"action": "store_true", "help": "change A-Z to a-z (ASCII only: other letters do not change)"},
    "min_count": {"type": int, "metavar": "K", "help": "write only n-grams that occur at least K times"},
    "columns": {
        "choices": ["text", "ids"],
        "help": "write n-grams as text (default), or as a column of vocabulary ids for each word, which is much faster",
    },
    "strategy": {
        "choices": ["auto", "global", "private", "sort", "hash"],
        "help": "counting strategy (default auto); all give the same counts",
    },
    "histograms": {
        "type": int,
        "metavar": "K",
        "help": "strategy private: number of partial histograms (default 1)",
    },
    "add": {"nargs": "+", "metavar": "DIR", "help": "output folders of count, whose counts are added to those of TEXT"},
    "text_column": {
        "metavar": "NAME",
        "help": "Parquet column or JSON key (default text, or the only text column)",
    },
    "chunk_bytes": {"metavar": "SIZE", "help": "bytes of text for each task, such as '64 MiB'"},
}
UNIT_NAMES = {"word": "tokens", "byte": "bytes", "id": "ids"}
MAX_SHOWN = 60  # characters of an n-gram
WITHOUT_DIGITS = str.maketrans("", "", "0123456789.,")


class CountStage(Stage[CountConfig, "CountResult"]):
    """Text in, sorted Parquet tables of n-gram counts out."""

    name = "count"
    config = CountConfig
    format = "mgpu_ngram counts"
    makes = "counts"
    needs: ClassVar[Mapping[str, Product]] = {"add": "counts"}
    resumes = True
    memory_keys = frozenset({"device_bytes", "host_bytes", "spill_dir"})
    examples = EXAMPLES
    stdin_setting = "corpus"
    bench = "count"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_text(parser, "corpus")
        parser.add_argument("-o", "--output", required=True, metavar="OUT", help="folder to write")
        add_overwrite(parser)
        for setting, how in FLAGS.items():
            parser.add_argument("--" + setting.replace("_", "-"), **how)

    def settings(self, arguments: argparse.Namespace) -> CountConfig:
        from mgpu_ngram.core.typed_config import fill

        return fill(CountConfig, given(arguments, ["corpus", *FLAGS]), "count")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output)

    def check(self, config: CountConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.count.earlier import open_earlier

        open_earlier(replace(config, add=[path for path in config.add if path not in made]))

    def open_inputs(self, config: CountConfig) -> Corpus:
        from mgpu_ngram.jobs.count.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: CountConfig, inputs: Corpus | None) -> float:
        return self.work_bytes(config, inputs) / COUNT_BYTES

    def plan(self, config: CountConfig, context: PlanContext) -> dict[str, Any]:
        from mgpu_ngram.jobs.count.plan import plan

        return plan(config, context)

    def print_json(self, result: CountResult) -> None:
        print(to_json([result.as_json()], indent=2))

    def show_result(self, config: CountConfig, result: CountResult) -> None:
        _show_counts(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        show_text_plan(plan, f", {many(plan['shards'], 'shard')}")
        show_count_plan(plan)

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        _show_info(path, described)


STAGE = CountStage()


def _show_counts(result: CountResult) -> None:
    m, unit = result.manifest, UNIT_NAMES[result.manifest["unit"]]
    print(f"{shown_path(result.path)}: {m['tokens']:,} {unit} from {many(len(m['inputs']), 'input')}")
    _show_orders(m, {p.order: p.strategy for p in result.plans})
    _show_reasons((p.order, p.strategy, p.reason) for p in result.plans)
    print("most frequent")
    for order, top in result.top.items():
        if top:
            _show_top(order, top)
    print(f"{result.wall_seconds:.2f} s on {where(result)}: {result.tokens_per_second:,.0f} {unit}/s")
    show_seconds(result.seconds)
    if len(result.worker_rates) > 1:
        rates = ", ".join(f"{worker}: {rate:,.0f}" for worker, rate in result.worker_rates.items())
        print(textwrap.fill(f"{unit}/s while counting, by worker: {rates}", console().width, subsequent_indent="  "))
    show_memory(result)
    show_resumed(result)


def show_resumed(result: CountResult) -> None:
    """Print what an earlier run had done."""
    if result.resumed_shards:
        print(f"{many(result.resumed_shards, 'shard')} had been written before")
    elif result.resumed_chunks:
        print(f"{many(result.resumed_chunks, 'chunk')} had been counted before")


def show_count_plan(plan: dict[str, Any], is_whole: bool = True) -> None:
    """Print the strategies and the memory of counting.

    is_whole  False: the run does more than counting, which needs memory that the plan lacks
    """
    rows = table("order", "strategy", "device bytes")
    for row in plan["orders"]:
        rows.add_row(str(row["order"]), row["strategy"], f"{row['device_bytes']:,}")
    print_table(rows)
    _show_reasons((row["order"], row["strategy"], row["reason"]) for row in plan["orders"])
    if plan["passes"]:
        print(f"the tokens are read {many(plan['passes'], 'time')}, for a group of shards of each worker")
    if not is_whole:
        print("memory of counting, without that of estimating:")
    print(f"device: about {plan['device_bytes']:,} of {plan['device_bytes_free']:,} free bytes")
    print(f"host: up to {plan['host_bytes']:,} of {plan['host_bytes_free']:,} bytes")
    print(f"disk: up to {plan['spill_bytes']:,} bytes of {plan['kept']}")
    if is_whole:
        show_time_plan(plan)


def _show_info(path: str, manifest: dict[str, Any]) -> None:
    """Print a description of an output."""
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    unit = UNIT_NAMES[manifest["unit"]]
    print(f"{path}: counts of {manifest['unit']} n-grams, orders 1 to {manifest['order']}")
    print(
        f"{manifest['tokens']:,} {unit} from {many(len(manifest['inputs']), 'input')} of {size:,} bytes; "
        f"{many(manifest['symbols'], 'symbol')}, {many(manifest['num_shards'], 'shard')}"
    )
    _show_orders(manifest)
    show_options(manifest)


def _show_orders(manifest: dict[str, Any], strategies: dict[int, str] | None = None) -> None:
    pruned = manifest["options"]["min_count"] > 1
    rows = table("order", "n-grams", "distinct", *["written"] * pruned, *["strategy"] * (strategies is not None))
    for order, row in sorted(manifest["orders"].items(), key=lambda item: int(item[0])):
        cells = [order, f"{row['total']:,}", f"{row['distinct']:,}", *[f"{row['rows']:,}"] * pruned]
        rows.add_row(*cells, *([strategies[int(order)]] if strategies else []))
    print_table(rows)


def _show_reasons(plans: Any) -> None:
    """Print the reason for each strategy; adjacent orders with the same strategy and reason share a line."""
    for (strategy, _), group in itertools.groupby(plans, lambda p: (p[1], p[2].translate(WITHOUT_DIGITS))):
        orders, reasons = zip(*((order, reason) for order, _, reason in group), strict=True)
        which = f"order {orders[0]}" if len(orders) == 1 else f"orders {orders[0]} to {orders[-1]}"
        why = f"{which} by {strategy}: {reasons[0]}"
        print(textwrap.fill(why, console().width, subsequent_indent="  ", break_on_hyphens=False))


def _show_top(order: int, top: list[tuple[str, int]]) -> None:
    """Print as many of the most frequent n-grams as fit a line, but at least one."""
    line, width = f"{order:5}", console().width
    for i, (text, count) in enumerate(top):
        shown = repr(text) if len(text) <= MAX_SHOWN else repr(text[:MAX_SHOWN]) + "..."
        cell = f"  {shown} {count:,}"
        if i > 0 and len(line) + len(cell) > width:
            break
        line += cell
    print(line)
