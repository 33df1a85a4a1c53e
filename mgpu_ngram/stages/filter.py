"""The filter stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.jobs.filter.config import FilterConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import FILTER_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_no_verify, add_overwrite, add_text
from mgpu_ngram.stages.report import many, show_options, show_seconds, show_transport, shown_path, where, where_planned

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.filter.run import FilterResult

EXAMPLES = """examples:
  mgpu-ngram filter crawl/*.jsonl.zst -o clean --model wiki.safetensors --max-perplexity 1500
  mgpu-ngram filter crawl/*.parquet -o clean --model wiki.arpa --normalize nfkc --keep perplexity,lines
  mgpu-ngram filter crawl/ -o clean -m wiki.arpa --buckets head:30,middle:60 --only head,middle --workers 16
  mgpu-ngram filter *.json.gz -o out -m en.arpa.bin --tokenizer en.sp.model --normalize ccnet --text raw_content
  mgpu-ngram filter *.json.gz -o out -m en.arpa.bin --buckets head:30,middle:60 --cutoffs cutoff.csv"""


class FilterStage(Stage[FilterConfig, "FilterResult"]):
    """Documents in, documents with their perplexities out. Limits and buckets may drop documents."""

    name = "filter"
    config = FilterConfig
    format = "mgpu_ngram filtered documents"
    resumes = True
    memory_keys = frozenset({"device_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"model": "model", "contrast_model": "model"}
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_text(parser, "text", "DOCUMENTS", stdin=False)
        add = parser.add_argument
        add(
            "-o",
            "--output",
            required=True,
            metavar="OUT",
            help="folder to write: documents/, rejects.jsonl, report.html",
        )
        add_overwrite(parser)
        add(
            "-m", "--model", required=True, metavar="MODEL",
            help="model file, ARPA file or KenLM binary; {language} in the path stands for a document's language; "
            "or a table of models by language (.csv, .yaml)",
        )  # fmt: skip
        add(
            "--contrast-model", metavar="MODEL",
            help="second model, such as one of general text, for the cross-entropy difference (Moore and Lewis 2010)",
        )  # fmt: skip
        add(
            "--text-column",
            "--text",
            dest="text_column",
            metavar="NAME",
            help="key or column of the text (default text)",
        )
        add("--tokenizer", metavar="FILE", help="SentencePiece model or tokenizer.json (default: split at white space)")
        add(
            "--normalize",
            choices=["none", "ccnet", "nfc", "nfkc"],
            help="normalise text before tokenising (default none)",
        )
        add(
            "--sentences", choices=["auto", "line", "document"],
            help="score lines or whole documents as sentences (auto, the default: document with ccnet, else line)",
        )  # fmt: skip
        add("--min-perplexity", type=float, metavar="P", help="drop documents with a perplexity below P")
        add("--max-perplexity", type=float, metavar="P", help="drop documents with a perplexity above P")
        add(
            "--min-difference",
            type=float,
            metavar="BITS",
            help="drop documents with a smaller cross-entropy difference",
        )
        add(
            "--max-difference",
            type=float,
            metavar="BITS",
            help="drop documents with a greater cross-entropy difference",
        )
        add(
            "--buckets",
            nargs="+",
            metavar="NAME:PERCENTILE",
            help="divide documents at percentiles, such as head:30,middle:60; the rest is the tail",
        )
        add(
            "--fixed-buckets",
            nargs="+",
            metavar="NAME:PERPLEXITY",
            help="divide documents at perplexities, such as head:340,middle:520",
        )
        add(
            "--bucket-by", choices=["perplexity", "difference"],
            help="figure by which buckets are divided (default perplexity)",
        )  # fmt: skip
        add(
            "--sample",
            type=int,
            metavar="N",
            help="compute percentiles from about N documents, equally many from each file",
        )
        add("--cutoffs", metavar="FILE.csv", help="table of percentiles by language, such as CCNet's cutoff.csv")
        add("--language-column", metavar="NAME", help="field with the language; each language has its own cut-offs")
        add("--only", nargs="+", metavar="BUCKET", help="keep only the documents of these buckets")
        add(
            "--keep",
            nargs="+",
            metavar="FIELD",
            help="new fields to write, such as perplexity,lines (default: all but lines)",
        )
        add("--no-report", action="store_true", help="do not write report.html")
        add("--block-bytes", metavar="SIZE", help="bytes of a file to score at once, such as '4 MiB'")
        add_no_verify(parser)

    def settings(self, arguments: argparse.Namespace) -> FilterConfig:
        from mgpu_ngram.core.typed_config import fill

        names = (
            "text", "model", "contrast_model", "text_column", "tokenizer", "normalize", "sentences", "min_perplexity",
            "max_perplexity", "min_difference", "max_difference", "buckets", "fixed_buckets", "bucket_by", "sample",
            "cutoffs", "language_column", "only", "keep", "block_bytes",
        )  # fmt: skip
        found = given(arguments, names) | {"verify": not arguments.no_verify, "report": not arguments.no_report}
        return fill(FilterConfig, found, "filter")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output)

    def check(self, config: FilterConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.filter.run import check

        check(config, made)

    def open_inputs(self, config: FilterConfig) -> Corpus:
        from mgpu_ngram.jobs.filter.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: FilterConfig, inputs: Corpus | None) -> float:
        opening = math.inf if config.by_language else opening_seconds(config.model, scores_only=True)
        return opening + self.work_bytes(config, inputs) / FILTER_BYTES

    def product(self, config: FilterConfig) -> str:
        from mgpu_ngram.jobs.filter.run import DOCUMENTS_FOLDER

        return DOCUMENTS_FOLDER

    def show_result(self, config: FilterConfig, result: FilterResult) -> None:
        stats = result.stats
        print(f"{shown_path(result.path)}: {many(stats.documents, 'document')}, {stats.kept:,} kept")
        _show_buckets(stats.summary()["buckets"], result.cutoffs, config.bucket_by)
        if stats.rejects:
            print(f"{many(stats.rejects, 'record')} could not be read; see {shown_path(result.path)}/rejects.jsonl")
        if result.resumed:
            print(f"{many(result.resumed, 'shard')} had been finished by an earlier run")
        print(
            f"{result.wall_seconds:.2f} s on {where(result)}: {result.bytes_per_second / 1e6:,.1f} MB/s of stored input"
        )
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        tokenizer = f" on pieces of {plan['tokenizer']}" if plan["tokenizer"] else ""
        contrast = f" in contrast to {plan['contrast_model']}" if plan["contrast_model"] else ""
        buckets = "".join(f", {name} below percentile {value:g}" for name, value in plan["percentiles"].items())
        buckets += "".join(f", {name} below {value:g}" for name, value in plan["limits"].items())
        sample = f" of {plan['sample']:,} documents" if plan["sample"] else ""
        print(
            f"{plan['job']}: {many(plan['inputs'], 'shard')} of {plan['input_bytes']:,} bytes in "
            f"{plan['passes']} pass{'es' * (plan['passes'] > 1)}; {where_planned(plan)}; "
            f"{plan['model']}{contrast}{tokenizer}; new fields {', '.join(plan['fields'])}{buckets}{sample}"
        )

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        totals = described["totals"]
        print(
            f"{path}: {many(totals['documents'], 'document')} of {many(len(described['inputs']), 'shard')}, "
            f"{totals['kept']:,} kept, {many(totals['rejects'], 'reject')}; by {described['model']['path']}"
        )
        _show_buckets(totals["buckets"], described["cutoffs"], described["options"].get("bucket_by", "perplexity"))
        show_options(described)


STAGE = FilterStage()


def _show_buckets(buckets: dict[str, dict[str, int]], cutoffs: Mapping[str, Any], by: str) -> None:
    from mgpu_ngram.core.documents.buckets import shown_cutoff

    if not cutoffs:
        return
    for name, values in cutoffs.items():
        of = f" of {name}" if name else ""
        print(f"cut-offs{of}: " + ", ".join(shown_cutoff(value, by) for value in values))
    sizes = [f"{name} {bucket['documents']:,}" for name, bucket in sorted(buckets.items())]
    print("buckets: " + (", ".join(sizes) or "none, there are no documents"))
