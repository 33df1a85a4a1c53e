"""The distribution stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.jobs.distribution.config import DistributionConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import HISTORIES, ROW_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_model, add_no_verify, add_overwrite, add_text
from mgpu_ngram.stages.report import many, show_options, show_seconds, show_transport, shown_path, where, where_planned

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.distribution.run import DistributionResult

EXAMPLES = """examples:
  mgpu-ngram distribution model.safetensors heldout.txt -o rows --orders max --dtype float16
  mgpu-ngram distribution model.arpa heldout.txt -o best --top-k 100 --format parquet
  mgpu-ngram distribution model.safetensors crawl/*.txt.zst -o blocks --format compact --workers 4
  echo "the cat" | mgpu-ngram distribution model.arpa - -o next --positions last"""
FLAGS: dict[str, dict[str, Any]] = {
    "orders": {"metavar": "all|max|LIST", "help": "orders of the rows, such as 1,2,5 (default all)"},
    "mode": {
        "choices": ["smoothed", "stored"],
        "help": "smoothed: with backoff (default); stored: only n-grams of the model, 0 for other words"
    },
    "top_k": {"type": int, "metavar": "K", "help": "write only the K most probable words of each row"},
    "format": {
        "choices": ["zarr", "npy", "compact", "parquet"],
        "help": "zarr (default), npy: whole rows; compact: small files, from which mgpu_ngram computes the same rows; "
        "parquet: a table",
    },
    "dtype": {"choices": ["float32", "float16", "bfloat16"], "help": "type of whole rows (default float32)"},
    "scale": {"choices": ["prob", "log10", "ln"], "help": "scale of the values (default prob)"},
    "positions": {
        "choices": ["every", "last"],
        "help": "every: a history ends before each word and at the line end (default); last: a line is one history",
    },
    "text_column": {"metavar": "NAME", "help": "Parquet column or JSON key (default text, or the only text column)"},
    "chunk_bytes": {"metavar": "SIZE", "help": "bytes of text for each task, such as '64 KiB'"},
}  # fmt: skip


class DistributionStage(Stage[DistributionConfig, "DistributionResult"]):
    """Text or histories in, the probability of every next word out."""

    name = "distribution"
    config = DistributionConfig
    format = "mgpu_ngram distributions"
    memory_keys = frozenset({"device_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"model": "model"}
    resumes = True
    examples = EXAMPLES
    stdin_setting = "text"
    bench = "distribution"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_text(parser, "text", metavar="TEXT|HISTORIES")
        parser.add_argument("-o", "--output", required=True, metavar="OUT", help="folder to write")
        parser.add_argument(
            "-n", dest="bare", action="store_true", help="no <s> before a line, and no history at the end of a line"
        )
        add_overwrite(parser)
        for setting, how in FLAGS.items():
            parser.add_argument("--" + setting.replace("_", "-"), **how)
        add_no_verify(parser)

    def settings(self, arguments: argparse.Namespace) -> DistributionConfig:
        from mgpu_ngram.core.typed_config import fill

        found = given(arguments, ["model", "text", *FLAGS])
        found |= {"sentence_markers": not arguments.bare, "verify": not arguments.no_verify}
        return fill(DistributionConfig, found, "distribution")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output)

    def check(self, config: DistributionConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.models.model_head import check_models
        from mgpu_ngram.jobs.distribution.sizes import known_facts

        check_models([config.model], made)
        if config.model not in made:
            known_facts(config)

    def open_inputs(self, config: DistributionConfig) -> Corpus:
        from mgpu_ngram.jobs.distribution.run import open_inputs

        return open_inputs(config)

    def work_bytes(self, config: DistributionConfig, inputs: Corpus | None) -> int:
        from mgpu_ngram.jobs.distribution.sizes import output_bytes

        return max(super().work_bytes(config, inputs), output_bytes(config, inputs) if inputs else 0)

    def cpu_seconds(self, config: DistributionConfig, inputs: Corpus | None) -> float:
        from mgpu_ngram.jobs.distribution.sizes import known_facts, output_bytes, text_bytes

        opening = opening_seconds(config.model)
        if inputs is None or math.isinf(opening) or (known_facts(config) is None and not config.top_k):
            return math.inf  # whole rows of an ARPA file, whose number of words is not known yet
        histories = inputs.text_bytes / text_bytes(config)
        return opening + histories / HISTORIES + output_bytes(config, inputs) / ROW_BYTES

    def print_json(self, result: DistributionResult) -> None:
        print(to_json([result.as_json()], indent=2))

    def show_result(self, config: DistributionConfig, result: DistributionResult) -> None:
        _show_written(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        _show_plan(plan)

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        _show_distributions(path, described)


STAGE = DistributionStage()


def _show_written(result: DistributionResult) -> None:
    m = result.manifest
    print(f"{shown_path(result.path)}: {_distributions(m)}")
    print(f"{result.wall_seconds:.2f} s on {where(result)}: {result.histories_per_second:,.0f} histories/s, ", end="")
    print(f"{result.bytes_per_second / 1e9:,.3f} GB/s")
    show_seconds(result.seconds)
    show_transport(result)
    if result.resumed_chunks:
        print(f"{many(result.resumed_chunks, 'chunk')} had been written before")


def _distributions(m: dict[str, Any]) -> str:
    """Return a line that describes an output."""
    orders = ", ".join(map(str, m["orders"]))
    top_k = m["options"].get("top_k")
    columns = f"{many(top_k, 'word')} of {m['symbols']:,}" if top_k else many(m["symbols"], "word")
    histories = f"{m['histories']:,} {'history' if m['histories'] == 1 else 'histories'}"
    return f"{histories}, orders {orders}, {columns}: {m['size_bytes']:,} bytes of {m['options']['format']}"


def _show_plan(plan: dict[str, Any]) -> None:
    print(f"{plan['job']}: {many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes")
    print(
        f"about {plan['histories_about']:,} histories, by {plan['model']}, to {plan['format']}; {where_planned(plan)}"
    )
    if "chunks" in plan:
        print(
            f"about {plan['output_bytes_about']:,} bytes, in {many(plan['chunks'], 'chunk')} of up to "
            f"{plan['chunk_bytes']:,} bytes of text"
        )


def _show_distributions(path: str, manifest: dict[str, Any]) -> None:
    """Print a description of an output."""
    print(f"{path}: {_distributions(manifest)}")
    for name, array in manifest.get("arrays", {}).items():
        shape = " x ".join(f"{n:,}" for n in array["shape"])
        print(f"{name}.{manifest['options']['format']}: {shape}, {array['dtype']}")
    if "part_histories" in manifest:
        print(f"a file for every {manifest['part_histories']:,} histories")
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    print(
        f"from {many(len(manifest['inputs']), 'input')} of {size:,} bytes, by {manifest['model']['path']} of order "
        f"{manifest['order']}"
    )
    show_options(manifest)
