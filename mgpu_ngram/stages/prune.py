"""The prune stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.prune.config import MODELS_OF_LINES, WAYS, PruneConfig
from mgpu_ngram.stages.contract import STDOUT, Product, Target, given
from mgpu_ngram.stages.cpu_rates import CONVERT_BYTES
from mgpu_ngram.stages.flags import add_model, add_model_output, model_format
from mgpu_ngram.stages.one_model import OneModelStage, show_made
from mgpu_ngram.stages.report import many, show_options, show_seconds, shown_path, where

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.prune.multiple import MultipleResult
    from mgpu_ngram.jobs.prune.run import PruneResult

EXAMPLES = """examples:
  mgpu-ngram prune model.arpa --entropy 1e-8 -o small.arpa
  mgpu-ngram prune model.safetensors --max-ngrams 10000000 -o small.safetensors
  mgpu-ngram prune model.arpa --min-count 1 2 --counts counts -o small.arpa
  mgpu-ngram prune model.arpa --vocabulary words.txt -o filtered.arpa
  mgpu-ngram prune model.arpa --vocabulary test.txt --vocabulary-mode union -o filtered.arpa
  mgpu-ngram prune model.arpa --vocabulary test.txt --vocabulary-mode multiple -o filtered"""


class PruneStage(OneModelStage[PruneConfig, "PruneResult | MultipleResult"]):
    """A model in, a model with fewer n-grams out."""

    name = "prune"
    config = PruneConfig
    format = "mgpu_ngram pruned model"
    needs: ClassVar[Mapping[str, Product]] = {"model": "model", "counts": "counts"}
    files = ("vocabulary",)
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_model_output(parser)
        parser.add_argument(
            "--entropy", type=float, metavar="T",
            help="drop n-grams whose removal changes the perplexity by a ratio below T, such as 1e-8 (Stolcke, 1998)",
        )  # fmt: skip
        parser.add_argument(
            "--max-ngrams",
            type=int,
            metavar="N",
            help="keep at most N n-grams of all orders: those whose removal changes the perplexity most",
        )
        parser.add_argument(
            "--vocabulary",
            metavar="TEXT",
            help="keep the n-grams whose words occur in this file, as KenLM's filter does",
        )
        parser.add_argument(
            "--min-count", type=int, nargs="+", metavar="K",
            help="drop n-grams that occur fewer than K times: one K for each order from 2, the last also for all above",
        )  # fmt: skip
        parser.add_argument("--counts", metavar="DIR", help="output folder of count, for --min-count")
        parser.add_argument(
            "--vocabulary-mode", choices=["single", "union", "multiple"],
            help="single: the words occur anywhere in TEXT (default); union: in one line of it; multiple: OUT is a "
            "folder with a model for each line (not resumable)",
        )  # fmt: skip
        parser.add_argument(
            "--context", action="store_true", help="with --vocabulary: do not check the last word of an n-gram"
        )
        parser.add_argument(
            "--phrases", action="store_true",
            help="lines have phrases separated by tabs, and n-grams must fit into the phrases (mode union or multiple)",
        )  # fmt: skip
        parser.add_argument(
            "--format", choices=["arpa", "safetensors"], help="format of the models of mode multiple (default arpa)"
        )

    def settings(self, arguments: argparse.Namespace) -> PruneConfig:
        from mgpu_ngram.core.typed_config import fill

        found = given(arguments, ["model", *WAYS, "vocabulary_mode", "counts", "context", "phrases"])
        if arguments.vocabulary_mode == "multiple":
            if arguments.output == STDOUT:
                raise InputError(
                    "mode multiple writes a model for each line, but -o - is standard output; name a folder"
                )
            return fill(PruneConfig, found | {"format": arguments.format or "arpa"}, "prune")
        if arguments.format:
            raise InputError(f"format {arguments.format} is for mode multiple; the name of the output tells the format")
        return fill(PruneConfig, found | {"format": model_format(arguments.output)}, "prune")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output, single_file=arguments.vocabulary_mode != "multiple")

    def product(self, config: PruneConfig) -> str:
        return (
            MODELS_OF_LINES[config.format].format(0)
            if config.vocabulary_mode == "multiple"
            else super().product(config)
        )

    def describe(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        is_multiple = manifest["options"].get("vocabulary_mode") == "multiple"
        return manifest if is_multiple else super().describe(path, manifest)

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        if "lines" not in described:
            return super().show_info(path, described)
        lines, ngrams = many(described["lines"], "line"), described["ngrams"]
        print(f"{path}: models of {lines} of {described['options']['vocabulary']}, {ngrams:,} n-grams in all")
        show_options(described)

    def check(self, config: PruneConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.counts.counts import read_counts
        from mgpu_ngram.core.inputs.corpus import open_list
        from mgpu_ngram.core.models.model_head import check_models

        check_models([config.model], made)
        if config.vocabulary is not None:
            open_list(config.vocabulary)
        if config.counts is not None and config.counts not in made:
            read_counts(config.counts)

    def cpu_seconds(self, config: PruneConfig, inputs: Corpus | None) -> float:
        return os.path.getsize(config.model) / CONVERT_BYTES if os.path.isfile(config.model) else math.inf

    def run(self, config: PruneConfig, context: RunContext, inputs: Corpus | None) -> PruneResult | MultipleResult:
        from mgpu_ngram.jobs.prune.run import run

        return run(config, context)

    def show_result(self, config: PruneConfig, result: PruneResult | MultipleResult) -> None:
        from mgpu_ngram.jobs.prune.multiple import MultipleResult

        if isinstance(result, MultipleResult):
            _show_models(result)
        else:
            _show_pruned(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        ways = ", ".join(f"{way} {plan[way]}" for way in WAYS if way in plan)
        print(f"{plan['job']}: {plan['model']} pruned by {ways}, on the {plan['device']}")


STAGE = PruneStage()


def _show_models(result: MultipleResult) -> None:
    print(f"{shown_path(result.path)}: {many(result.models, 'model')}, {result.ngrams:,} n-grams in all")
    print(f"{result.size_bytes:,} bytes; {result.wall_seconds:.2f} s on {where(result)}")
    show_seconds(result.seconds)


def _show_pruned(result: PruneResult) -> None:
    show_made(result)
    before = " + ".join(f"{count:,}" for count in result.before)
    limit = "" if result.threshold is None else f"; threshold {result.threshold:.6g}"
    print(f"of {sum(result.before):,} n-grams ({before}){limit}")
    if result.overfull:
        print(f"after {result.overfull:,} histories the probabilities sum to more than 1; their backoff is -99")
