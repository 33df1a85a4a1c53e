"""The compare stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.compare.config import CompareConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import SCORE_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_no_verify, add_overwrite, add_text_flags
from mgpu_ngram.stages.report import (
    many,
    print_table,
    show_options,
    show_seconds,
    show_transport,
    shown_path,
    table,
    where,
)
from mgpu_ngram.stages.show_plan import show_text_plan

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.compare.run import CompareResult

EXAMPLES = """examples:
  mgpu-ngram compare old.arpa new.safetensors heldout.txt
  mgpu-ngram compare small.binary large.binary heldout.txt.gz -o comparison
  mgpu-ngram compare a.arpa b.arpa c.arpa --text news/*.txt talks/*.txt --json"""
LINE_CHARACTERS = 60  # characters of a sentence to show


class CompareStage(Stage[CompareConfig, "CompareResult"]):
    """Models and a held-out text in, their perplexities and the differences of its sentences out."""

    name = "compare"
    config = CompareConfig
    format = "mgpu_ngram comparison"
    memory_keys = frozenset({"device_bytes", "host_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"models": "model"}
    examples = EXAMPLES
    stdin_setting = "text"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "inputs", nargs="+", metavar="MODEL|TEXT",
            help="two or more models, then a held-out text: a file, glob, directory, URL, or - for stdin",
        )  # fmt: skip
        parser.set_defaults(many="inputs")
        parser.add_argument(
            "--text", nargs="+", metavar="TEXT", help="held-out texts; all other arguments are then models"
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="OUT",
            help="folder to write: a table of all sentences, a plot, a manifest (not resumable)",
        )
        add_overwrite(parser)
        parser.add_argument(
            "-n", dest="bare", action="store_true", help="score without <s> before and </s> after a sentence"
        )
        parser.add_argument(
            "--shown", type=int, metavar="K",
            help="show the K sentences with the largest gains, and the K with the largest losses (default 10)",
        )  # fmt: skip
        add_no_verify(parser)
        add_text_flags(parser, "8 MiB")

    def settings(self, arguments: argparse.Namespace) -> CompareConfig:
        from mgpu_ngram.core.typed_config import fill

        models, text = arguments.inputs, arguments.text
        if text is None:
            models, text = models[:-1], models[-1:]
        if len(models) < 2:
            raise InputError(
                f"{many(len(models), 'model')} and {many(len(text), 'text')} are given, but a comparison has two "
                "models or more, then a text; give another model"
            )
        found = given(arguments, ["text_column", "chunk_bytes"]) | {"models": models, "text": text}
        found |= {"sentence_markers": not arguments.bare, "verify": not arguments.no_verify}
        if arguments.shown is not None:
            found["shown"] = arguments.shown
        return fill(CompareConfig, found, "compare")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None)

    def check(self, config: CompareConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.models.model_head import check_models

        check_models(config.models, made)

    def open_inputs(self, config: CompareConfig) -> Corpus:
        from mgpu_ngram.jobs.compare.run import open_inputs

        return open_inputs(config)

    def work_bytes(self, config: CompareConfig, inputs: Corpus | None) -> int:
        return len(config.models) * super().work_bytes(config, inputs)

    def cpu_seconds(self, config: CompareConfig, inputs: Corpus | None) -> float:
        return (
            sum(opening_seconds(model, scores_only=True) for model in config.models)
            + self.work_bytes(config, inputs) / SCORE_BYTES
        )

    def show_result(self, config: CompareConfig, result: CompareResult) -> None:
        if result.path:
            print(f"{shown_path(result.path)}: a table of all sentences, and the comparison")
        _show_comparison(result.figures())
        print(f"{result.wall_seconds:.2f} s on {where(result)}")
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        show_text_plan(plan, f"; {', '.join(plan['models'])}")

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        size = sum(i["size_bytes"] for i in described["inputs"])
        print(f"{path}: a comparison of models on {many(len(described['inputs']), 'input')} of {size:,} bytes")
        _show_comparison(described["comparison"])
        show_options(described)


STAGE = CompareStage()


def _show_comparison(found: Mapping[str, Any]) -> None:
    """Print a comparison: `CompareResult.figures`."""
    models, first = found["models"], found["models"][0]["totals"]
    for i, model in enumerate(models, 1):
        orders = f"{sum(model['orders']):,} n-grams ({' + '.join(f'{n:,}' for n in model['orders'])})"
        print(f"model {i}: {model['path']}, {model['size_bytes']:,} bytes, {orders}")
    size = f"{many(first['sentences'], 'sentence')}, {first['tokens']:,} words"
    print(f"{size}; {found['known']:,} of them are known to all models")
    rows = table("model", "perplexity", "without OOVs", "of known to all", "log10", "OOVs")
    for i, model in enumerate(models, 1):
        totals = model["totals"]
        perplexities = totals["perplexity"], totals["perplexity_without_oovs"], model["known_perplexity"]
        cells = [*map(_number, perplexities), _number(totals["log10"]), f"{totals['oovs']:,}"]
        rows.add_row(str(i), *cells)
    print_table(rows)
    _show_lengths([model["lengths"] for model in models])
    for i, (pair, shown) in enumerate(zip(found["paired"], found["shown"], strict=True), 2):
        _show_paired(i, pair)
        _show_sentences(i, shown)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"


def _show_lengths(lengths: Sequence[Sequence[int]]) -> None:
    longest = max(map(len, lengths))
    rows = table("model", "unknown", *(f"{n}-gram" for n in range(1, longest)))
    for i, counts in enumerate(lengths, 1):
        total = max(1, sum(counts))
        rows.add_row(str(i), *(f"{n / total:.2%}" for n in counts), *["-"] * (longest - len(counts)))
    print("share of words by the longest n-gram that ends there:")
    print_table(rows)


def _show_paired(i: int, pair: Mapping[str, Any]) -> None:
    interval = ""
    if pair["low"] is not None:
        interval = f" (95 % interval {10 ** -pair['high']:.4f} to {10 ** -pair['low']:.4f})"
    ratio = _number(pair["perplexity_ratio"])
    print(f"model {i} beside model 1, on words known to all: perplexity x {ratio}{interval}")
    print(
        f"  {many(pair['better'], 'sentence')} more probable, {pair['worse']:,} less, {pair['equal']:,} equal; "
        f"sign test p = {pair['sign_p']:.3g}"
    )


def _show_sentences(i: int, shown: Sequence[Mapping[str, Any]]) -> None:
    if not shown:
        return
    rows = table("line", "model 1", f"model {i}", "difference", "sentence")
    rows.columns[-1].justify = "left"
    for sentence in shown:
        first, other = (-math.inf if log10 is None else log10 for log10 in sentence["log10"])
        text = textwrap.shorten(sentence["text"], LINE_CHARACTERS, placeholder="...") or ""
        rows.add_row(f"{sentence['line']:,}", f"{first:.3f}", f"{other:.3f}", f"{other - first:+.3f}", text)
    print_table(rows)
