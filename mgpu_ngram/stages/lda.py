"""The lda stage: its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mgpu_ngram.jobs.lda.config import LdaConfig
from mgpu_ngram.stages.contract import Stage, Target, given
from mgpu_ngram.stages.cpu_rates import TOKEN_BYTES
from mgpu_ngram.stages.flags import add_overwrite, add_text
from mgpu_ngram.stages.report import many, show_seconds, show_transport, shown_path, where, where_planned

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.lda.run import LdaResult

EXAMPLES = """examples:
  mgpu-ngram lda docs.parquet -o topics.lda --topics 256 --sweeps 300
  mgpu-ngram lda docword.nytimes.txt.gz --vocabulary vocab.nytimes.txt -o nytimes.lda --topics 1024
  mgpu-ngram lda news.jsonl.zst -o news.lda --stop-words english --min-df 5 --max-df 0.5 --held-out 0.1
  mgpu-ngram lda counts.npz --vocabulary words.txt -o topics.lda --optimise-every 20"""


def numbers(text: str) -> float | list[float]:
    """Return a number, or the numbers between commas."""
    found = [float(number) for number in text.split(",")]
    return found if "," in text else found[0]


def number_or_share(text: str) -> int | float:
    """Return a number of documents as int; a number with a point or an exponent, which is a share, as float."""
    try:
        return int(text)
    except ValueError:
        return float(text)


FLAGS: dict[str, dict[str, Any]] = {
    "topics": {"type": int, "metavar": "K", "help": "number of topics, 1 to 65,536 (default 100)"},
    "sweeps": {"type": int, "metavar": "N", "help": "sweeps over all tokens (default 200)"},
    "vocabulary": {"metavar": "FILE", "help": "words of the columns of a matrix, one a line; not needed for documents"},
    "text_column": {"metavar": "NAME", "help": "Parquet column or JSON key (default text, or the only text column)"},
    "token_pattern": {
        "metavar": "REGEX",
        "help": "regular expression of tokens (default: words of two or more letters, digits or underscores)",
    },
    "stop_words": {"metavar": "english|FILE", "help": "words to leave out: the English list, or a file"},
    "min_df": {
        "type": number_or_share, "metavar": "N",
        "help": "leave out words in fewer than N documents; with a point, N is a share: 1 is one document, 1.0 is "
        "100 %% (default 1)"
    },
    "max_df": {
        "type": number_or_share, "metavar": "N",
        "help": "leave out words in more than N documents; 1 is one document, 1.0 is 100 %% (default 1.0)"
    },
    "max_features": {"type": int, "metavar": "N", "help": "keep the N most frequent words"},
    "alpha": {
        "type": numbers, "metavar": "A[,A...]",
        "help": "prior of topics in a document: one number, or one for each topic (default 50 / topics, as in papers "
        "on Gibbs sampling; for short documents, or documents of few topics, give less: 1 / topics, the default of "
        "scikit-learn and ng.LDA)"
    },
    "beta": {"type": float, "help": "prior of words in a topic (default 0.01; scikit-learn and ng.LDA: 1 / topics)"},
    "seeds": {"metavar": "FILE", "help": "YAML file of words for given topics, such as 3: [decimal, float]"},
    "optimise_every": {"type": int, "metavar": "N", "help": "estimate the priors every N sweeps (default 0: never)"},
    "seed": {"type": int, "help": "seed of the random numbers (default 1)"},
    "evaluate_every": {"type": int, "metavar": "N", "help": "compute metrics every N sweeps (default 10)"},
    "held_out": {
        "type": float, "metavar": "SHARE", "help": "share of documents held out for the perplexity (default 0)"
    },
    "tolerance": {
        "type": float, "metavar": "SHARE",
        "help": "stop when the perplexity falls by less than this share between two evaluations"
    },
    "block_tokens": {"type": int, "metavar": "N", "help": "tokens of each part of the corpus (default 1,048,576)"},
}  # fmt: skip


class LdaStage(Stage[LdaConfig, "LdaResult"]):
    """Documents in, a topic model out."""

    name = "lda"
    config = LdaConfig
    format = "mgpu_ngram topics"
    memory_keys = frozenset({"device_bytes", "host_bytes", "spill_dir"})
    makes = "topics"
    files = ("corpus", "vocabulary", "stop_words")
    resumes = True
    examples = EXAMPLES

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_text(parser, "corpus", metavar="DOCUMENTS", stdin=False)
        parser.add_argument("-o", "--output", required=True, metavar="OUT", help="folder to write")
        add_overwrite(parser)
        for setting, how in FLAGS.items():
            parser.add_argument("--" + setting.replace("_", "-"), **how)
        parser.add_argument("--no-lowercase", action="store_true", help="do not change documents to lower case")
        parser.add_argument("--coherence", action="store_true", help="also compute the coherence of the topics")
        parser.add_argument(
            "--include-self", action="store_true", help="do not exclude the token's own count, as in CuLDA_CGS"
        )

    def settings(self, arguments: argparse.Namespace) -> LdaConfig:
        from mgpu_ngram.core.typed_config import fill
        from mgpu_ngram.core.yaml_file import read_yaml

        found = given(arguments, ["corpus", "coherence", *FLAGS])
        if arguments.seeds:
            found["seeds"] = read_yaml(arguments.seeds, "a mapping of topics to words, such as 3: [decimal, float]")
        found |= {"lowercase": not arguments.no_lowercase, "exclude_self": not arguments.include_self}
        return fill(LdaConfig, found, "lda")

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output)

    def check(self, config: LdaConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.lda.run import check

        check(config)

    def work_bytes(self, config: LdaConfig, inputs: Corpus | None) -> int:
        from mgpu_ngram.jobs.lda.run import work_bytes

        return work_bytes(config)

    def cpu_seconds(self, config: LdaConfig, inputs: Corpus | None) -> float:
        return config.cpu_seconds(self.work_bytes(config, inputs) / config.sweeps / TOKEN_BYTES)

    def run(self, config: LdaConfig, context: RunContext, inputs: Corpus | None) -> LdaResult:
        from mgpu_ngram.jobs.lda.run import run

        return run(config, context)

    def product(self, config: LdaConfig) -> str:
        return "model.safetensors"

    def show_result(self, config: LdaConfig, result: LdaResult) -> None:
        held_out = f", {many(result.held_out_tokens, 'token')} held out" if result.held_out_tokens else ""
        print(
            f"{shown_path(result.path)}: {many(result.topics, 'topic')} of {many(result.words, 'word')}, "
            f"{many(result.sweeps, 'sweep')} over {many(result.tokens, 'token')} "
            f"of {many(result.documents, 'document')}{held_out}"
        )
        print(f"{result.wall_seconds:.2f} s on {where(result)}: {result.tokens_per_second:,.0f} tokens/s")
        _show_metrics(result.metrics)
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        print(
            f"{plan['job']}: {many(plan['inputs'], 'input')}, {many(plan['topics'], 'topic')}, "
            f"{many(plan['sweeps'], 'sweep')}; {where_planned(plan)}"
        )
        if plan["words"]:
            counts = f"counts of {many(plan['words'], 'word')}"
            print(f"{counts}: {plan['counts_bytes']:,} bytes of memory for each GPU, or process of CPU workers")

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        print(
            f"{path}: {many(described['options']['topics'], 'topic')} of {many(described['words'], 'word')}, "
            f"{many(described['sweeps'], 'sweep')} over {many(described['tokens'], 'token')} of "
            f"{many(described['documents'], 'document')}"
        )
        _show_metrics(described["metrics"])
        print(f"model: {os.path.join(path, 'model.safetensors')}")


STAGE = LdaStage()


def _show_metrics(metrics: dict[str, float]) -> None:
    """Print the last metrics of a training."""
    if not metrics:
        return
    held_out = metrics.get("held_out_perplexity")
    print(
        f"log-likelihood per token: joint {metrics['joint']:.4f}, plug-in {metrics['plugin']:.4f}"
        + (f"; held-out perplexity {held_out:,.1f}" if held_out is not None else "")
    )
    if "c_npmi" in metrics:
        print(f"coherence: NPMI {metrics['c_npmi']:.3f}, C_v {metrics['c_v']:.3f}, u_mass {metrics['u_mass']:.3f}")
