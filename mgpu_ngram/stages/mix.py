"""The mix stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.jobs.mix.config import MixConfig
from mgpu_ngram.stages.contract import Product, given
from mgpu_ngram.stages.cpu_rates import CONVERT_BYTES
from mgpu_ngram.stages.flags import add_model_output, model_format
from mgpu_ngram.stages.one_model import OneModelStage, show_made
from mgpu_ngram.stages.report import print_table, table

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.engine.model_tools.mix import Tuned
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.mix.run import MixResult

EXAMPLES = """examples:
  mgpu-ngram mix news.arpa talks.arpa --weights 0.3 0.7 -o mixed.arpa
  mgpu-ngram mix a.arpa b.arpa --weights 0.4 0.6 --log-linear -o mixed.arpa
  mgpu-ngram mix a.safetensors b.arpa c.binary --tune heldout.txt -o mixed.safetensors
  mgpu-ngram mix a.arpa b.arpa --weights 0.5 0.5 --bayes 2 -o mixed.arpa"""


class MixStage(OneModelStage[MixConfig, "MixResult"]):
    """Models in, their linear or log-linear interpolation out."""

    name = "mix"
    config = MixConfig
    format = "mgpu_ngram mixed model"
    needs: ClassVar[Mapping[str, Product]] = {"models": "model"}
    files = ("tune",)
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "models", nargs="+", metavar="MODEL", help="model files, ARPA files (plain or compressed), KenLM binaries"
        )
        parser.set_defaults(many="models")
        add_model_output(parser)
        parser.add_argument(
            "--weights", type=float, nargs="+", metavar="W",
            help="one weight for each model; without --log-linear they must sum to 1",
        )  # fmt: skip
        parser.add_argument(
            "--log-linear", action="store_true",
            help="multiply the probabilities of the models, each to the power of its weight, as KenLM's interpolate",
        )  # fmt: skip
        parser.add_argument(
            "--bayes",
            type=int,
            metavar="N",
            help="adapt the weights to the last N words of the history, as SRILM's -bayes",
        )
        parser.add_argument(
            "--bayes-scale", type=float, metavar="S", help="exponent of the probability of these words (default 1)"
        )
        parser.add_argument("--tune", metavar="TEXT", help="find the best weights for this held-out text")

    def settings(self, arguments: argparse.Namespace) -> MixConfig:
        from mgpu_ngram.core.typed_config import fill

        found = given(arguments, ["models", "weights", "tune", "log_linear", "bayes", "bayes_scale"])
        return fill(MixConfig, found | {"format": model_format(arguments.output)}, "mix")

    def check(self, config: MixConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.inputs.corpus import open_corpus
        from mgpu_ngram.core.models.model_head import check_models

        check_models(config.models, made)
        if config.tune is not None:
            open_corpus([config.tune])

    def cpu_seconds(self, config: MixConfig, inputs: Corpus | None) -> float:
        if not all(map(os.path.isfile, config.models)):
            return math.inf
        return sum(map(os.path.getsize, config.models)) / CONVERT_BYTES

    def run(self, config: MixConfig, context: RunContext, inputs: Corpus | None) -> MixResult:
        from mgpu_ngram.jobs.mix.run import run

        return run(config, context)

    def show_result(self, config: MixConfig, result: MixResult) -> None:
        if result.tuned:
            _show_tuned(result.tuned, config.log_linear)
        show_made(result)
        for model, weight, counts in zip(config.models, result.weights, result.before, strict=True):
            print(f"{weight:.6f} of {model}: {sum(counts):,} n-grams ({' + '.join(f'{n:,}' for n in counts)})")
        if result.overfull:
            print(f"after {result.overfull:,} histories the probabilities sum to more than 1; their backoff is -99")

    def show_plan(self, plan: dict[str, Any]) -> None:
        how = f"weights for {plan['tune']}" if "tune" in plan else f"weights {', '.join(map(str, plan['weights']))}"
        log = (
            "log-linearly " if plan["log_linear"] else f"by Bayes' rule of {plan['bayes']} words " * (plan["bayes"] > 0)
        )
        print(f"{plan['job']}: {', '.join(plan['models'])} mixed {log}with {how}, on the {plan['device']}")


STAGE = MixStage()


def _show_tuned(tuned: Tuned, log_linear: bool) -> None:
    """Print the weights and perplexities of iterations 0, 1, 2, 4, 8, ... and the last."""
    last = len(tuned.perplexities) - 1
    shown = [0, *(1 << k for k in range(last.bit_length()) if 1 << k < last), *[last] * (last > 0)]
    rows = table("iteration", "perplexity", "weights")
    for i in shown:
        rows.add_row(str(i), f"{tuned.perplexities[i]:.4f}", " ".join(f"{w:.6f}" for w in tuned.weights[i]))
    print_table(rows)
    left_out = f"{tuned.skipped:,} words that no model has are left out"
    print(f"{tuned.tokens:,} tokens; {'unknown words count as <unk>' if log_linear else left_out}")
