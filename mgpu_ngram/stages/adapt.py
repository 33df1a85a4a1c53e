"""The adapt stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.adapt.config import OWN, AdaptConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.count import show_count_plan, show_resumed
from mgpu_ngram.stages.cpu_rates import COUNT_BYTES, ESTIMATE_BYTES, TOKEN_BYTES
from mgpu_ngram.stages.estimate import FLAGS, show_estimate, show_estimated
from mgpu_ngram.stages.flags import add_overwrite
from mgpu_ngram.stages.report import shown_path
from mgpu_ngram.stages.show_plan import show_text_plan

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.adapt.run import AdaptResult

EXAMPLES = """examples:
  mgpu-ngram adapt counts new.txt -o adapted
  mgpu-ngram adapt adapted newer.txt -o adapted_again
  mgpu-ngram adapt counts new/*.txt.gz -o adapted --format arpa --prune 0 0 1 --resume"""


class AdaptStage(Stage[AdaptConfig, "AdaptResult"]):
    """Earlier counts and more text in, the counts of both and their model out."""

    name = "adapt"
    config = AdaptConfig
    format = "mgpu_ngram adapted model"
    makes = "model"
    needs: ClassVar[Mapping[str, Product]] = {"earlier": "counts"}
    files = ("estimate",)  # its vocabulary
    resumes = True
    memory_keys = frozenset({"device_bytes", "host_bytes", "spill_dir"})
    examples = EXAMPLES
    stdin_setting = "corpus"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "inputs", nargs="+", metavar="DIR|TEXT",
            help="an output folder of count --sentence-markers or of adapt; then the new text",
        )  # fmt: skip
        parser.set_defaults(many="inputs")
        parser.add_argument(
            "-o",
            "--output",
            required=True,
            metavar="OUT",
            help="folder to write: the model, and the counts of all text",
        )
        add_overwrite(parser)
        parser.add_argument(
            "--format", choices=["safetensors", "arpa"], help="format of the model (default safetensors)"
        )
        for setting, how in FLAGS.items():
            if setting not in OWN:
                parser.add_argument("--" + setting.replace("_", "-"), **how)
        for setting in "text_column", "chunk_bytes":
            parser.add_argument("--" + setting.replace("_", "-"), **FLAGS[setting])

    def settings(self, arguments: argparse.Namespace) -> AdaptConfig:
        from mgpu_ngram.core.typed_config import fill

        if len(arguments.inputs) < 2:
            raise InputError(f"{arguments.inputs[0]} is given without a text; give the counts, then the new text")
        estimate = given(arguments, ["format", *(name for name in FLAGS if name not in OWN)])
        if arguments.discount_fallback is not None:
            estimate["discount_fallback"] = arguments.discount_fallback
        if arguments.interpolate_unigrams is not None:
            estimate["interpolate_unigrams"] = bool(arguments.interpolate_unigrams)
        found = given(arguments, ["text_column", "chunk_bytes"])
        earlier, *corpus = arguments.inputs
        return fill(AdaptConfig, found | {"earlier": earlier, "corpus": corpus, "estimate": estimate}, "adapt")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output)

    def check(self, config: AdaptConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.adapt.run import settings

        if config.earlier not in made:
            settings(config)

    def open_inputs(self, config: AdaptConfig) -> Corpus:
        from mgpu_ngram.jobs.adapt.run import open_inputs

        return open_inputs(config)

    def work_bytes(self, config: AdaptConfig, inputs: Corpus | None) -> int:
        from mgpu_ngram.core.storage.output import find_manifest

        manifest = find_manifest(config.earlier)
        return TOKEN_BYTES * (manifest["tokens"] if manifest else 0) + super().work_bytes(config, inputs)

    def cpu_seconds(self, config: AdaptConfig, inputs: Corpus | None) -> float:
        return self.work_bytes(config, inputs) * (1 / COUNT_BYTES + 1 / ESTIMATE_BYTES)

    def product(self, config: AdaptConfig) -> str:
        return "model.arpa" if config.estimate.get("format") == "arpa" else "model.safetensors"

    def show_result(self, config: AdaptConfig, result: AdaptResult) -> None:
        print(f"{shown_path(result.path)}: {result.added:,} tokens added to {result.before:,}")
        show_resumed(result.count)
        print(f"counted in {result.count.wall_seconds:.2f} s")
        show_estimate(result.estimate, result.smoothing)

    def show_plan(self, plan: dict[str, Any]) -> None:
        show_text_plan(plan, f"; added to {plan['earlier']}")
        if "orders" in plan:
            show_count_plan(plan, is_whole=False)

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        show_estimated(path, described)
        print(f"the counts of its text: {os.path.join(path, 'counts')}")


STAGE = AdaptStage()
