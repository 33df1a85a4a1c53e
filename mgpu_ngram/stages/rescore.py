"""The rescore stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.rescore.config import RescoreConfig
from mgpu_ngram.stages.flags import add_overwrite
from mgpu_ngram.stages.nbest_lists import ListsStage, add_lists_flags, lists_settings, shown_lists_plan, shown_totals
from mgpu_ngram.stages.report import show_options, show_seconds, show_transport, shown_path, where

if TYPE_CHECKING:
    import numpy as np

    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.rescore.run import RescoreResult

EXAMPLES = """examples:
  mgpu-ngram rescore nbest.txt --lm model.safetensors --weights model=0.3 -o out.txt
  mgpu-ngram rescore nbest.txt.gz --lm a.safetensors --lm b.arpa --weights F0=1 a=0.2 b=0.1 --best
  mgpu-ngram rescore nbest.txt --lm a.arpa --names LM1 --weights LM1=0.5 TM=0.2,0.1 -o out.txt
  mgpu-ngram rescore nbest.jsonl --lm a.safetensors --weights a=0.3 -o out.jsonl
  mgpu-ngram rescore words.txt --kaldi --costs ac=ac.txt lm=lm.txt --lm a.arpa --weights ac=0.1 a=1 --best
  mgpu-ngram rescore nbest.txt --lm a.arpa --weights weights.yaml -o out.txt
  mgpu-ngram rescore lattices.txt --lattices kaldi --n-best 100 --lm a.arpa --weights ac=0.1 a=1 -o out.txt
  mgpu-ngram rescore - --lm a.arpa --weights a=0.2 --best < nbest.txt > best.txt"""


@dataclass(frozen=True)
class RescoreCommand(RescoreConfig):
    """Settings of the command, which prints lists unless it writes a file."""

    printed: bool = False


class RescoreStage(ListsStage[RescoreConfig, "RescoreResult"]):
    """n-best lists in, lists with the scores of n-gram models out, sorted by their new totals."""

    name = "rescore"
    config = RescoreConfig
    format = "mgpu_ngram rescored lists"
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_lists_flags(parser)
        parser.add_argument("--best", action="store_true", help="write only the text of the best line of each list")
        parser.add_argument("-o", "--output", metavar="OUT.txt", help="file to write (default: standard output)")
        add_overwrite(parser)

    def settings(self, arguments: argparse.Namespace) -> RescoreConfig:
        from mgpu_ngram.core.typed_config import fill

        found = lists_settings(arguments) | {"best": arguments.best, "printed": arguments.output is None}
        if arguments.output is None and arguments.json:
            raise InputError("--json prints a summary in place of the lists; give -o FILE for them")
        return fill(RescoreCommand, found, "rescore")

    def check_file(self, config: RescoreConfig, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.jobs.rescore.run import check_file

        check_file(path, overwrite)

    def check(self, config: RescoreConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.rescore.run import check_inputs

        check_inputs(config, made)

    def run(self, config: RescoreConfig, context: RunContext, inputs: Corpus | None) -> RescoreResult:
        from mgpu_ngram.jobs.rescore.run import run

        return run(config, context, inputs, _print)

    def shows_progress(self, config: RescoreConfig) -> bool:
        return not (getattr(config, "printed", False) and sys.stdout.isatty())  # a bar would be drawn between lines

    def show_result(self, config: RescoreConfig, result: RescoreResult) -> None:
        if result.path is None:
            return
        totals = result.totals
        print(f"{shown_path(result.path)}: {shown_totals(vars(totals))}")
        rate = f"{result.hypotheses_per_second:,.0f} hypotheses/s"
        print(f"{result.wall_seconds:.2f} s on {where(result)}: {rate}")
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        print(shown_lists_plan(plan))

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        models = ", ".join(model["path"] for model in described["models"])
        print(f"{path}: {shown_totals(described['totals'])}, by {models or 'weights alone'}")
        show_options(described)


STAGE = RescoreStage()


def _print(lines: np.ndarray) -> None:
    sys.stdout.buffer.write(lines.data)
