"""The estimate stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.ngrams.smoothing import KNESER_NEY, METHODS
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import ESTIMATE_BYTES, TOKEN_BYTES
from mgpu_ngram.stages.flags import add_model_output, add_text, model_format
from mgpu_ngram.stages.report import (
    many,
    print_table,
    show_memory,
    show_options,
    show_seconds,
    shown_path,
    table,
    where,
    where_planned,
)
from mgpu_ngram.stages.show_plan import show_text_plan, show_time_plan

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import PlanContext
    from mgpu_ngram.jobs.estimate.estimation import Statistics
    from mgpu_ngram.jobs.estimate.run import EstimateResult

EXAMPLES = """examples:
  mgpu-ngram estimate books/*.txt.gz -o model.safetensors --order 5
  mgpu-ngram estimate corpus.txt -o model.arpa --prune 0 0 1
  mgpu-ngram estimate corpus.txt -o model.arpa --smoothing witten-bell --interpolate
  mgpu-ngram estimate corpus.txt -o model.arpa --smoothing good-turing --prune 0 0 1 --vocabulary words.txt
  mgpu-ngram estimate --from-counts counts -o model.safetensors
  mgpu-ngram estimate --from-counts srilm.counts.gz -o model.arpa --smoothing absolute --discount 0.7 --closed
  zcat corpus.gz | mgpu-ngram estimate - -o model.arpa --discount-fallback
  mgpu-ngram estimate tokens.bin -o model.arpa --unit id --separator-id 0"""
FLAGS: dict[str, dict[str, Any]] = {
    "order": {"type": int, "metavar": "N", "help": "highest n-gram order (default 5, or the order of the counts)"},
    "prune": {
        "type": int, "nargs": "+", "metavar": "K",
        "help": "drop n-grams that occur at most K times: one K for each order, the last also for all higher orders",
    },
    "smoothing": {
        "choices": list(METHODS), "help": "smoothing method (default kneser-ney)",
    },
    "interpolate": {"action": "store_true", "help": "witten-bell, absolute: interpolate with the lower order"},
    "discount": {
        "type": float, "nargs": "+", "metavar": "D",
        "help": "absolute: discount of each order, the last also for all higher orders (default "
        "n1 / (n1 + 2 n2) of each order)",
    },
    "delta": {
        "type": float, "nargs": "+", "metavar": "D",
        "help": "additive: number added to each count, for each order (default 1)",
    },
    "gt_max": {
        "type": int, "nargs": "+", "metavar": "K",
        "help": "good-turing: highest discounted count of each order (default 1 7)",
    },
    "vocabulary": {"metavar": "F", "help": "file of words; other words of the text count as <unk>"},
    "closed": {
        "action": "store_true", "help": "no <unk>: drop n-grams with words outside the vocabulary; not for kneser-ney",
    },
    "limit_vocab_file": {"metavar": "F", "help": "drop n-grams with words that are not in this file"},
    "vocab_pad": {"type": int, "metavar": "V", "help": "least vocabulary size for the uniform distribution"},
    "discount_fallback": {
        "type": float, "nargs": "*", "metavar": "D",
        "help": "discounts of counts 1, 2 and 3 on for orders where none can be computed (without numbers: 0.5 1 1.5)",
    },
    "interpolate_unigrams": {
        "type": int, "choices": [0, 1], "nargs": "?", "const": 1,
        "help": "0: <unk> gets all mass that order 1 leaves, as in SRILM (default 1)",
    },
    "skip_symbols": {
        "action": "store_true", "help": "drop <unk>, <s> and </s> from the text (default: they are errors)"
    },
    "collapse_values": {"action": "store_true", "help": "write one value for probability and backoff (ARPA file only)"},
    "exact_discounts": {
        "action": "store_true", "help": "compute discounts from exact counts of counts (default: with lmplz's error)"
    },
    "verbose_header": {"action": "store_true", "help": "write comments at the head of an ARPA file"},
    "unit": {"choices": ["word", "id"], "help": "symbols of the n-grams (default word)"},
    "dtype": {"choices": ["uint16", "uint32"], "help": "type of raw token ids (default uint16)"},
    "separator_id": {"type": int, "metavar": "ID", "help": "token id that ends a sentence"},
    "text_column": {"metavar": "NAME", "help": "Parquet column or JSON key (default text, or the only text column)"},
    "chunk_bytes": {"metavar": "SIZE", "help": "bytes of text for each task, such as '64 MiB'"},
}  # fmt: skip
DISCOUNT_NAMES = {KNESER_NEY: ("D1", "D2", "D3+"), "absolute": ("D",), "additive": ("delta",)}  # columns of statistics


class EstimateStage(Stage[EstimateConfig, "EstimateResult"]):
    """Text or counts in, a model out: modified Kneser-Ney, or another smoothing."""

    name = "estimate"
    config = EstimateConfig
    format = "mgpu_ngram model"
    makes = "model"
    needs: ClassVar[Mapping[str, Product]] = {"counts": "counts"}
    files = ("vocabulary", "limit_vocab_file")
    resumes = True
    memory_keys = frozenset({"device_bytes", "host_bytes", "spill_dir"})
    examples = EXAMPLES
    stdin_setting = "corpus"
    stdout = "arpa"
    bench = "estimate"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_text(parser, "corpus", required=False)
        parser.add_argument(
            "--from-counts",
            dest="counts",
            metavar="PATH",
            help="output folder of count, or a counts file of SRILM's ngram-count, instead of TEXT",
        )
        add_model_output(parser)
        for setting, how in FLAGS.items():
            parser.add_argument("--" + setting.replace("_", "-"), **how)

    def settings(self, arguments: argparse.Namespace) -> EstimateConfig:
        from mgpu_ngram.core.typed_config import fill

        found = given(arguments, ["corpus", "counts", *FLAGS])
        if arguments.discount_fallback is not None:
            found["discount_fallback"] = arguments.discount_fallback
        if arguments.interpolate_unigrams is not None:
            found["interpolate_unigrams"] = bool(arguments.interpolate_unigrams)
        found["format"] = model_format(arguments.output)
        return fill(EstimateConfig, found, "estimate")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output, single_file=True)

    def check_file(self, config: EstimateConfig, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.jobs.estimate.run import check_free_model

        check_free_model(config, path, overwrite)

    def open_inputs(self, config: EstimateConfig) -> Corpus | None:
        from mgpu_ngram.jobs.estimate.run import open_inputs

        return open_inputs(config)

    def work_bytes(self, config: EstimateConfig, inputs: Corpus | None) -> int:
        from mgpu_ngram.core.storage.output import find_manifest

        manifest = find_manifest(config.counts) if config.counts else None
        return TOKEN_BYTES * manifest["tokens"] if manifest else super().work_bytes(config, inputs)

    def cpu_seconds(self, config: EstimateConfig, inputs: Corpus | None) -> float:
        size = self.work_bytes(config, inputs)
        return size / ESTIMATE_BYTES if inputs or size else math.inf  # inf: counts that an earlier job makes

    def plan(self, config: EstimateConfig, context: PlanContext) -> dict[str, Any]:
        from mgpu_ngram.jobs.estimate.plan import plan

        return plan(config, context)

    def product(self, config: EstimateConfig) -> str:
        return "model.arpa" if config.format == "arpa" else "model.safetensors"

    def show_result(self, config: EstimateConfig, result: EstimateResult) -> None:
        show_estimate(result, config.smoothing)

    def show_plan(self, plan: dict[str, Any]) -> None:
        if "counts" in plan:
            print(f"{plan['job']}: {plan['counts']} to a {_kind(plan['smoothing'])}, on {where_planned(plan)}")
            return
        show_text_plan(plan, f", {many(plan['shards'], 'part')}")
        print(
            "one part: its tokens are sorted once" if plan["shards"] == 1
            else f"parts are made from the tokens, which are read {many(plan['passes'], 'time')}"
        )  # fmt: skip
        print(
            f"tokens: up to {plan['device_bytes']:,} bytes on devices, {plan['host_bytes']:,} in host memory, "
            f"{plan['spill_bytes']:,} in files"
        )
        show_time_plan(plan)

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        show_estimated(path, described)


STAGE = EstimateStage()


def show_estimate(result: EstimateResult, smoothing: str) -> None:
    """Print a result of an estimate job."""
    found = result.statistics
    print(f"{shown_path(result.path)}: {sum(found.kept.values()):,} n-grams in {result.size_bytes:,} bytes")
    print(f"unigram tokens {result.tokens:,}, types {result.types:,}")
    _show_statistics(found, smoothing)
    print(f"{result.wall_seconds:.2f} s on {where(result)}: {result.tokens_per_second:,.0f} tokens/s")
    show_seconds(result.seconds)
    show_memory(result)
    if result.resumed_chunks:
        parts = many(result.resumed_parts, "finished part")
        print(f"the words of {many(result.resumed_chunks, 'chunk')} and {parts} had been saved before")


def _kind(smoothing: str) -> str:
    """Return the name of the kind of a model with a smoothing."""
    return "Kneser-Ney model" if smoothing == KNESER_NEY else f"model with smoothing {smoothing}"


def _show_statistics(found: Statistics, smoothing: str) -> None:
    """Print n-grams, counts of counts and discounts by order, for Kneser-Ney as lmplz does."""
    pruned, names = found.kept != found.total, DISCOUNT_NAMES.get(smoothing, ())
    rows = table("order", "n-grams", *["of"] * pruned, "with 1", "2", "3", "4", *names)
    for n in sorted(found.kept):
        sizes = [found.kept[n], *[found.total[n]] * pruned, *found.counts_of_counts[n][:4]]
        rows.add_row(str(n), *(f"{size:,}" for size in sizes), *(f"{d:.6g}" for d in found.discounts[n][: len(names)]))
    print_table(rows)
    for n, values in found.discounts.items() if smoothing == "good-turing" else ():
        coefficients = ", ".join(f"{d:.4g}" for d in values) or "none"
        print(f"order {n}: discount coefficients of counts 1 to {len(values)}: {coefficients}")
    for n in found.fallback:
        print(f"order {n}: no discounts could be computed; uses discount_fallback")


def show_estimated(path: str, manifest: dict[str, Any]) -> None:
    """Print a description of the output of an estimate job."""
    from mgpu_ngram.jobs.estimate.estimation import Statistics

    found = manifest["statistics"]
    by_order = {k: {int(n): v for n, v in by.items()} for k, by in found.items() if k != "fallback"}
    size = sum(i["size_bytes"] for i in manifest["inputs"])
    smoothing = manifest["options"].get("smoothing", KNESER_NEY)
    print(f"{path}: a {_kind(smoothing)} of order {manifest['order']}, {sum(found['kept'].values()):,} n-grams, of "
          f"{many(len(manifest['inputs']), 'input')} of {size:,} bytes")  # fmt: skip
    print(f"unigram tokens {manifest['tokens']:,}, types {manifest['types']:,}; fingerprint {manifest['fingerprint']}")
    _show_statistics(Statistics(**by_order, fallback=found["fallback"]), smoothing)
    show_options(manifest)
