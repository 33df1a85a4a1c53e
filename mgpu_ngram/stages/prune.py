"""The prune stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.jobs.prune.config import WAYS, PruneConfig
from mgpu_ngram.stages.contract import Product, given
from mgpu_ngram.stages.cpu_rates import CONVERT_BYTES
from mgpu_ngram.stages.flags import add_model, add_model_output, model_format
from mgpu_ngram.stages.one_model import OneModelStage, show_made

if TYPE_CHECKING:
    from mgpu_ngram.core.corpus import Corpus
    from mgpu_ngram.jobs.context import PlanContext, RunContext
    from mgpu_ngram.jobs.prune.run import PruneResult

EXAMPLES = """examples:
  mgpu-ngram prune model.arpa --entropy 1e-8 -o small.arpa
  mgpu-ngram prune model.safetensors --max-ngrams 10000000 -o small.safetensors
  mgpu-ngram prune model.arpa --min-count 1 2 --counts counts -o small.arpa
  mgpu-ngram prune model.arpa --vocabulary words.txt -o filtered.arpa
  mgpu-ngram prune model.arpa --vocabulary test.txt --vocabulary-mode union -o filtered.arpa"""


class PruneStage(OneModelStage[PruneConfig, "PruneResult"]):
    """A model in, a model with fewer n-grams out."""

    name = "prune"
    config = PruneConfig
    format = "mgpu_ngram pruned model"
    needs: ClassVar[Mapping[str, Product]] = {"model": "model", "counts": "counts"}
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_model_output(parser)
        parser.add_argument(
            "--entropy", type=float, metavar="T",
            help="drop n-grams without which the perplexity changes by a smaller ratio, such as 1e-8 (Stolcke, 1998)",
        )  # fmt: skip
        parser.add_argument(
            "--max-ngrams", type=int, metavar="N", help="keep at most N n-grams of all orders, by the same measure"
        )
        parser.add_argument(
            "--vocabulary", metavar="TEXT", help="keep the n-grams whose words occur in this file, as KenLM's filter"
        )
        parser.add_argument(
            "--min-count", type=int, nargs="+", metavar="K",
            help="drop n-grams with counts below K; of orders 2, 3, ..., the last K also holds for all higher orders",
        )  # fmt: skip
        parser.add_argument("--counts", metavar="DIR", help="output folder of count, for --min-count")
        parser.add_argument(
            "--vocabulary-mode", choices=["single", "union"],
            help="single: the words occur anywhere in TEXT (default); union: in one line of it",
        )  # fmt: skip

    def settings(self, arguments: argparse.Namespace) -> PruneConfig:
        from mgpu_ngram.core.typed_config import fill

        found = given(arguments, ["model", *WAYS, "vocabulary_mode", "counts"])
        return fill(PruneConfig, found | {"format": model_format(arguments.output)}, "prune")

    def check(self, config: PruneConfig) -> None:
        from mgpu_ngram.core.corpus import open_corpus
        from mgpu_ngram.core.counts import read_counts
        from mgpu_ngram.core.model_file import identify

        identify(config.model)
        if config.vocabulary is not None:
            open_corpus([config.vocabulary])
        if config.counts is not None:
            read_counts(config.counts)

    def cpu_seconds(self, config: PruneConfig, inputs: Corpus | None) -> float:
        return os.path.getsize(config.model) / CONVERT_BYTES if os.path.isfile(config.model) else math.inf

    def plan(self, config: PruneConfig, context: PlanContext) -> dict[str, Any]:
        from mgpu_ngram.jobs.prune.run import plan

        return plan(config, context)

    def run(self, config: PruneConfig, context: RunContext, inputs: Corpus | None) -> PruneResult:
        from mgpu_ngram.jobs.prune.run import run

        return run(config, context)

    def changed_since(self, config: PruneConfig, manifest: dict[str, Any]) -> str:
        from mgpu_ngram.jobs.prune.run import changed_since

        return changed_since(config, manifest)

    def show_result(self, config: PruneConfig, result: PruneResult) -> None:
        show_made(result)
        before = " + ".join(f"{count:,}" for count in result.before)
        limit = "" if result.threshold is None else f"; threshold {result.threshold:.6g}"
        print(f"of {sum(result.before):,} n-grams ({before}){limit}")
        if result.overfull:
            print(f"after {result.overfull:,} histories the probabilities sum to more than 1; their backoff is -99")

    def show_plan(self, plan: dict[str, Any]) -> None:
        ways = ", ".join(f"{way} {plan[way]}" for way in WAYS if way in plan)
        print(f"{plan['job']}: {plan['model']} pruned by {ways}, on the {plan['device']}")


STAGE = PruneStage()
