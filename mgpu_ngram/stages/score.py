"""The score stage: the flags of its command, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.jobs.score.config import ScoreConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import SCORE_BYTES, opening_seconds
from mgpu_ngram.stages.flags import add_model, add_no_verify, add_overwrite, add_text, add_text_flags
from mgpu_ngram.stages.report import many, show_options, show_seconds, show_transport, shown_path, where
from mgpu_ngram.stages.show_plan import show_text_plan

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.engine.score.score_chunk import ChunkScores
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.score.run import Printing, ScoreResult, ScoreTotals

EXAMPLES = """examples:
  mgpu-ngram score model.arpa heldout.txt -v summary
  mgpu-ngram score model.safetensors heldout.txt.gz -v word
  mgpu-ngram score model.safetensors crawl/*.txt.zst -o scores.parquet --workers 4
  echo "the cat sat" | mgpu-ngram score model.arpa -"""
LEVELS = ("word", "sentence", "summary")


@dataclass(frozen=True)
class ScoreCommand(ScoreConfig):
    """Settings of the command, which prints scores unless it writes a file."""

    printed: tuple[str, ...] = ()  # of LEVELS
    one_line: bool = False  # words of all sentences on one line, as query -v word prints them


class ScoreStage(Stage[ScoreConfig, "ScoreResult"]):
    """Text in, log10 probabilities out, equal to those of KenLM's query."""

    name = "score"
    config = ScoreConfig
    format = "mgpu_ngram scores"
    memory_keys = frozenset({"device_bytes", "host_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"model": "model"}
    examples = EXAMPLES
    stdin_setting = "text"
    bench = "score"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        add_text(parser, "text")
        parser.add_argument(
            "-v", dest="levels", action="append", choices=LEVELS,
            help="what to print; repeat the flag for several (default: all); with -o: row unit (default: sentence)",
        )  # fmt: skip
        parser.add_argument(
            "-n", dest="bare", action="store_true", help="score without <s> before and </s> after a sentence"
        )
        parser.add_argument("-o", "--output", metavar="SCORES.parquet", help="write a Parquet file instead of printing")
        add_overwrite(parser)
        parser.add_argument(
            "--index",
            choices=["auto", "edge", "btree"],
            help="edge: hash table, faster; btree: trie alone, smaller, ready at once (default: by text size)",
        )
        add_no_verify(parser)
        add_text_flags(parser, "8 MiB")

    def settings(self, arguments: argparse.Namespace) -> ScoreConfig:
        from mgpu_ngram.core.typed_config import fill

        levels = arguments.levels or (["sentence"] if arguments.output else ["summary"] if arguments.json else LEVELS)
        found = given(arguments, ["model", "text", "index", "text_column", "chunk_bytes"])
        found |= {"sentence_markers": not arguments.bare, "verify": not arguments.no_verify}
        if arguments.output:
            if len(levels) != 1 or levels[0] == "summary":
                raise InputError(f"rows of -o cannot be {' and '.join(levels)}; give -v word or -v sentence")
            found["level"] = levels[0]
            levels = ["summary"]
        elif arguments.json and levels != ["summary"]:
            raise InputError("--json prints the summary alone; leave -v out, or give -o SCORES.parquet")
        config = fill(ScoreConfig, found, "score")
        return self.printing(config, tuple(levels))

    def printing(self, config: ScoreConfig, printed: tuple[str, ...], one_line: bool = False) -> ScoreCommand:
        """Return the settings of a command that prints."""
        return ScoreCommand(**vars(config), printed=printed, one_line=one_line)

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None, single_file=True)

    def check_file(self, config: ScoreConfig, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.jobs.score.run import check_file

        check_file(path, overwrite)

    def check(self, config: ScoreConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.core.models.model_head import check_models

        check_models([config.model], made)

    def open_inputs(self, config: ScoreConfig) -> Corpus:
        from mgpu_ngram.jobs.score.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: ScoreConfig, inputs: Corpus | None) -> float:
        return opening_seconds(config.model, scores_only=True) + self.work_bytes(config, inputs) / SCORE_BYTES

    def run(self, config: ScoreConfig, context: RunContext, inputs: Corpus | None) -> ScoreResult:
        from mgpu_ngram.jobs.score.run import run

        if context.output is None and isinstance(config, ScoreCommand):
            return run(config, context, inputs, _printing(config))
        return run(config, context, inputs)

    def print_at_once(self, config: ScoreCommand, lines: Iterable[bytes]) -> None:
        """Print the scores of each line before the next line is read; print the summary at the end."""
        from mgpu_ngram.jobs.score.run import score_at_once

        printing = _printing(config)

        def take(scores: ChunkScores) -> None:
            printing.take(scores)
            sys.stdout.flush()

        totals = score_at_once(config, lines, replace(printing, take=take))
        if "summary" in config.printed:
            _show_totals(totals)

    def shows_progress(self, config: ScoreConfig) -> bool:
        prints = isinstance(config, ScoreCommand) and config.printed != ("summary",)
        return not (prints and sys.stdout.isatty())  # a bar would be drawn between the lines

    def print_json(self, result: ScoreResult) -> None:
        print(to_json(result.totals.summary(), indent=2))

    def show_result(self, config: ScoreConfig, result: ScoreResult) -> None:
        if not isinstance(config, ScoreCommand):
            _show_scores(result)
        elif "summary" in config.printed:
            _show_totals(result.totals)

    def show_plan(self, plan: dict[str, Any]) -> None:
        show_text_plan(plan, f"; {plan['index']} of {plan['model']}")

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        _show_scored(path, described)


STAGE = ScoreStage()


def _printing(config: ScoreCommand) -> Printing:
    """Return the object that prints the scores of a chunk."""
    from mgpu_ngram.jobs.score.run import Printing

    def write(scores: ChunkScores) -> None:
        if "word" in config.printed:
            sys.stdout.buffer.write(scores.lines.replace(b"\n", b"") if config.one_line else scores.lines)
        elif "sentence" in config.printed and scores.sentences:
            from mgpu_ngram.engine.score.lines import sentence_lines

            sys.stdout.buffer.write(sentence_lines(*map(scores.sentences.__getitem__, ("prob_log10", "oovs"))))

    return Printing(write, "lines" if "word" in config.printed else "", "sentence" in config.printed)


def _show_scores(result: ScoreResult) -> None:
    totals = result.totals
    print(f"{shown_path(result.path)}: {many(totals.sentences, 'sentence')}, {totals.tokens:,} tokens")
    _show_totals(totals)
    print(f"{result.wall_seconds:.2f} s on {where(result)}: ", end="")
    print(f"{result.tokens_per_second:,.0f} tokens/s")
    show_seconds(result.seconds)
    show_transport(result)


def _show_totals(totals: ScoreTotals) -> None:
    """Print the summary of KenLM's query."""
    for name, value in ("including", totals.perplexity), ("excluding", totals.perplexity_without_oovs):
        print(f"Perplexity {name} OOVs:\t{_double(value)}")
    print(f"OOVs:\t{totals.oovs}\nTokens:\t{totals.tokens}")


def _double(value: float) -> str:
    """Return a number from 1e-6 on as KenLM prints it: the shortest that reads back the same, with e from 1e21 on."""
    if math.isnan(value):
        return "NaN"
    if value < 1e21:
        import numpy as np

        return np.format_float_positional(value, trim="-")
    return repr(value).replace("e+", "e").replace(".0e", "e")


def _show_scored(path: str, manifest: dict[str, Any]) -> None:
    """Print a description of the output of a score job."""
    from mgpu_ngram.jobs.score.run import ScoreTotals

    found, size = manifest["totals"], sum(i["size_bytes"] for i in manifest["inputs"])
    log10, oov_log10 = (-math.inf if found[name] is None else found[name] for name in ("log10", "oov_log10"))
    totals = ScoreTotals(found["sentences"], found["tokens"], found["oovs"], log10, oov_log10)
    print(
        f"{path}: scores of {many(totals.sentences, 'sentence')} from {many(len(manifest['inputs']), 'input')} of "
        f"{size:,} bytes, by {manifest['model']['path']}"
    )
    _show_totals(totals)
    show_options(manifest)
