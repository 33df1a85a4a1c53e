"""The tune stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_ngram.jobs.tune.config import TuneConfig
from mgpu_ngram.stages.contract import Product, given
from mgpu_ngram.stages.flags import add_overwrite
from mgpu_ngram.stages.nbest_lists import (
    ListsStage,
    add_lists_flags,
    lists_settings,
    named_numbers,
    once_each,
    shown_lists_plan,
    shown_totals,
)
from mgpu_ngram.stages.report import show_options, show_seconds, show_transport, shown_path, where

if TYPE_CHECKING:
    from mgpu_ngram.jobs.tune.run import TuneResult

EXAMPLES = """examples:
  mgpu-ngram tune dev.nbest --lm a.safetensors --references dev.ref --weights F0=1 a=0.1 -o weights.yaml
  mgpu-ngram tune dev.nbest --lm a.arpa --references dev.ref0 dev.ref1 --weights TM=0.2,0.2 a=0.1 --restarts 20
  mgpu-ngram tune dev.nbest --lm a.arpa --references dev.ref --metric wer --grid a=0,0.1,0.2,0.3
  mgpu-ngram tune words.txt --kaldi --costs ac=ac.txt --lm a.arpa --references text --metric wer --weights ac=0.1"""


class TuneStage(ListsStage[TuneConfig, "TuneResult"]):
    """n-best lists and references in, the weights of the best BLEU or error rate out."""

    name = "tune"
    config = TuneConfig
    format = "mgpu_ngram weights"
    makes: Product = "weights"
    files = ("costs", "references")
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_lists_flags(parser)
        parser.add_argument(
            "--references",
            nargs="+",
            metavar="FILE",
            help="correct texts: line i + 1 for list i; with --kaldi or --lattices 'ID word word'",
        )
        parser.add_argument("--metric", choices=["bleu", "wer", "cer"], help="metric to optimise (default bleu)")
        parser.add_argument(
            "--grid",
            nargs="+",
            metavar="NAME=W,W",
            help="try all combinations of these weights (default: line searches)",
        )
        parser.add_argument(
            "--restarts", type=int, metavar="N", help="repeat the search from N random starts (default 10)"
        )
        parser.add_argument("--seed", type=int, metavar="N", help="seed of the random starts (default 1)")
        parser.add_argument("-o", "--output", metavar="WEIGHTS.yaml", help="file to write (default: print the weights)")
        add_overwrite(parser)

    def settings(self, arguments: argparse.Namespace) -> TuneConfig:
        from mgpu_ngram.core.typed_config import fill

        found = lists_settings(arguments) | given(arguments, ["references", "metric", "restarts", "seed"])
        grid = once_each("grid", map(named_numbers, arguments.grid or []))
        found["grid"] = {name: values if isinstance(values, list) else [values] for name, values in grid.items()}
        return fill(TuneConfig, found, "tune")

    def check_file(self, config: TuneConfig, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.jobs.tune.run import check_file

        check_file(path, overwrite)

    def check(self, config: TuneConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.tune.run import check

        check(config, made)

    def product(self, config: TuneConfig) -> str:
        from mgpu_ngram.jobs.tune.run import WEIGHTS_FILE

        return WEIGHTS_FILE

    def show_result(self, config: TuneConfig, result: TuneResult) -> None:
        from mgpu_ngram.jobs.tune.run import weights_text

        if result.path is None:
            print(weights_text(result.weights), end="")
            return
        print(f"{shown_path(result.path)}: {_gain(vars(result))}; {shown_totals(vars(result.totals))}")
        print(weights_text(result.weights), end="")
        print(f"{result.wall_seconds:.2f} s on {where(result)}")
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        how = f"a grid of {', '.join(plan['grid'])}" if plan["grid"] else f"{plan['restarts'] + 1} line searches"
        print(f"{shown_lists_plan(plan)}; {how} for {plan['metric']}")

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        from mgpu_ngram.jobs.tune.run import weights_text

        gain = _gain({"metric": described["options"]["metric"], **described})
        print(f"{path}: {gain}; {shown_totals(described['totals'])}")
        print(weights_text(described["weights"]), end="")
        show_options(described)


STAGE = TuneStage()


def _gain(found: dict[str, Any]) -> str:
    """Return the quality before and after."""
    from mgpu_ngram.engine.rescore.text_metrics import shown_quality

    before, after = (shown_quality(found["metric"], found[name]) for name in ("before", "after"))
    return f"{before} before, {after} after"
