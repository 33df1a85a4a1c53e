"""The convert stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.file_heads import KENLM_SUFFIXES
from mgpu_ngram.jobs.convert.config import ConvertConfig
from mgpu_ngram.stages.contract import STDOUT, Product, given
from mgpu_ngram.stages.cpu_rates import CONVERT_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_overwrite, is_arpa_name
from mgpu_ngram.stages.one_model import OneModelStage, show_made

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.one_model import ModelResult

EXAMPLES = """examples:
  mgpu-ngram convert model.arpa.gz -o model.safetensors
  mgpu-ngram convert model.arpa -o small.safetensors --quantize 8
  mgpu-ngram convert model.safetensors -o fast.safetensors --index edge
  mgpu-ngram convert model.binary -o model.arpa
  mgpu-ngram convert model.safetensors -o model.binary --format kenlm-trie
  mgpu-ngram convert model.arpa -o small.binary --format kenlm-trie --quantize 8 --pointer-bits 255"""
FORMAT_NAMES = {
    "safetensors": "a model file",
    "arpa": "an ARPA file",
    "kenlm-probing": "a probing model of KenLM",
    "kenlm-trie": "a trie of KenLM",
}


class ConvertStage(OneModelStage[ConvertConfig, "ModelResult"]):
    """A model in any format in, the model in another format out."""

    name = "convert"
    config = ConvertConfig
    format = "mgpu_ngram trie"  # the older name of the stage, which manifests keep
    needs: ClassVar[Mapping[str, Product]] = {"model": "model"}
    files = ("rest",)
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "model", metavar="MODEL", help="ARPA file (plain or compressed), KenLM binary or model file"
        )
        parser.add_argument(
            "-o",
            "--output",
            required=True,
            metavar="OUT",
            help="OUT.arpa, or compressed OUT.arpa.gz, .bz2, .xz, .zst: an ARPA file; -: an ARPA file on stdout; other "
            "names: a model file, or --format",
        )
        parser.add_argument(
            "--format", choices=["safetensors", "arpa", "kenlm-probing", "kenlm-trie"],
            help="model file, ARPA file, or a binary model that KenLM loads (default: by the name of OUT)",
        )  # fmt: skip
        add_overwrite(parser)
        parser.add_argument(
            "--index", choices=["btree", "edge", "both"],
            help="btree: store only the trie; edge: also store the edge table, so that scoring is faster and the file "
            "three times as large; both: the same as edge (default: as in MODEL if it is a model file, else btree)",
        )  # fmt: skip
        parser.add_argument(
            "--fanout", type=int, metavar="K",
            help="words that a search compares in one step (default: that of the model file, or 32)",
        )  # fmt: skip
        parser.add_argument(
            "--quantize", type=int, metavar="BITS", help="store probabilities and backoffs as codes of this many bits"
        )
        parser.add_argument(
            "--quantize-backoff",
            type=int,
            metavar="BITS",
            help="bits of the backoffs in a KenLM trie (default: as --quantize)",
        )
        parser.add_argument(
            "--pointer-bits", type=int, metavar="BITS",
            help="maximum bits of pointers that a KenLM trie stores in a table (build_binary -a)",
        )  # fmt: skip
        parser.add_argument(
            "--no-backoff", action="store_true", help="leave out backoffs; the model then cannot score text"
        )

    def settings(self, arguments: argparse.Namespace) -> ConvertConfig:
        from mgpu_ngram.core.typed_config import fill

        found = given(arguments, ["model", "format", "index", "fanout", "quantize", "quantize_backoff", "pointer_bits"])
        suffix = os.path.splitext(arguments.output)[1].lower()
        if "format" not in found and is_arpa_name(arguments.output):
            found["format"] = "arpa"
        if "format" not in found and suffix in KENLM_SUFFIXES:
            raise InputError(
                f"output {arguments.output} ends with {suffix}, as KenLM's files do; add --format kenlm-probing or "
                "--format kenlm-trie, or name a model file .safetensors"
            )
        config = fill(ConvertConfig, found | {"backoff": not arguments.no_backoff}, "convert")
        if arguments.output == STDOUT and config.format != "arpa":
            raise InputError(f"-o - writes an ARPA file, not {FORMAT_NAMES[config.format]}; name a file")
        return config

    def check(self, config: ConvertConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.models.model_head import check_models

        check_models([config.model, *config.rest], made)

    def cpu_seconds(self, config: ConvertConfig, inputs: Corpus | None) -> float:
        if not os.path.isfile(config.model):
            return math.inf
        return max(os.path.getsize(config.model) / CONVERT_BYTES, opening_seconds(config.model))

    def run(self, config: ConvertConfig, context: RunContext, inputs: Corpus | None) -> ModelResult:
        from mgpu_ngram.jobs.convert.run import run

        return run(config, context)

    def show_result(self, config: ConvertConfig, result: ModelResult) -> None:
        show_made(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        index = f", index {plan['index']}" if "index" in plan else ""
        print(f"{plan['job']}: {plan['model']} to {FORMAT_NAMES[plan['format']]}{index}, on the {plan['device']}")


STAGE = ConvertStage()
