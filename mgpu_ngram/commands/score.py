"""`mgpu-ngram score`: what KenLM's query prints, or a table."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mgpu_ngram.api import open_executor
from mgpu_ngram.commands.shared import add_cluster_flags, cluster_config, command, stdin_as_file, stdout
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import identify
from mgpu_ngram.core.scratch import scratch_folder
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.engine.score import ChunkScores
from mgpu_ngram.engine.score_lines import sentence_lines
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.score.run import ScoreConfig, check_file, score
from mgpu_ngram.report import Bars, show_totals

EXAMPLES = """examples:
  mgpu-ngram score model.arpa heldout.txt -v summary
  mgpu-ngram score model.safetensors heldout.txt.gz -v word
  mgpu-ngram score model.safetensors crawl/*.txt.zst -o scores.parquet --workers 4
  echo "the cat sat" | mgpu-ngram score model.arpa -"""
LEVELS = ["word", "sentence", "summary"]


def add(verbs: Any) -> None:
    parser = command(verbs, "score", "score text as KenLM's query does", EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="model file, or ARPA file, plain or compressed")
    parser.add_argument("corpus", nargs="+", metavar="TEXT", help="file, glob, directory, URL, or - for stdin")
    parser.add_argument(
        "-v", dest="levels", action="append", choices=LEVELS,
        help="what to print, several times for several (default: all); or the rows of -o (default: sentence)",
    )  # fmt: skip
    parser.add_argument("-n", dest="bare", action="store_true", help="no <s> before a sentence and no </s> after it")
    parser.add_argument("-o", "--output", metavar="SCORES.parquet", help="a Parquet file to write instead")
    parser.add_argument("--overwrite", action="store_true", help="replace SCORES.parquet if it exists")
    parser.add_argument(
        "--index", choices=["edge", "btree"], help="edge table, faster (default); or the trie alone, smaller"
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the checksums of a model file")
    parser.add_argument("--text-column", metavar="NAME", help="text column of Parquet inputs (default text)")
    parser.add_argument("--chunk-bytes", metavar="SIZE", help="text per task, such as '8 MiB'")
    add_cluster_flags(parser)
    parser.set_defaults(verb=_score)


def _score(arguments: argparse.Namespace) -> None:
    levels = arguments.levels or (["sentence"] if arguments.output else ["summary"] if arguments.json else LEVELS)
    settings = {"model": arguments.model, "text": arguments.corpus, "sentence_markers": not arguments.bare}
    settings |= {k: v for k in ("index", "text_column", "chunk_bytes") if (v := getattr(arguments, k)) is not None}
    if arguments.output:
        if len(levels) != 1 or levels[0] == "summary":
            raise InputError(f"rows of -o cannot be {' and '.join(levels)}; give -v word or -v sentence")
        settings["level"] = levels[0]
        check_file(arguments.output, arguments.overwrite)
    elif arguments.json and levels != ["summary"]:
        raise InputError("--json prints the summary alone; leave -v out, or give -o SCORES.parquet")
    config = fill(ScoreConfig, settings, "score")
    identify(config.model)  # at once, for a cluster takes its time to start
    words = "lines" if "word" in levels and not arguments.output else ""
    with ExitStack() as stack:
        if arguments.output:
            folder = Path(arguments.output).absolute().parent
        else:
            folder = Path(scratch_folder())
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        corpus = stack.enter_context(stdin_as_file(config.text, folder, text_column=config.text_column))
        executor = open_executor(cluster_config(arguments))
        stack.callback(executor.close)
        stack.enter_context(stdout())
        quiet = arguments.output or levels == ["summary"] or not sys.stdout.isatty()
        bars = stack.enter_context(Bars()) if quiet else Progress()  # a bar would stand between the lines
        result = score(
            config, executor, arguments.output, None if arguments.output else _printer(levels), words,
            "sentence" in levels, bars, corpus, not arguments.no_verify,
        )  # fmt: skip
        if arguments.json:
            print(json.dumps(result.totals.summary(), indent=2))
        elif arguments.output or "summary" in levels:
            show_totals(result.totals)


def _printer(levels: list[str]) -> Any:
    """Prints the scores of a chunk."""

    def write(scores: ChunkScores) -> None:
        if "word" in levels:
            sys.stdout.buffer.write(scores.lines)
        elif "sentence" in levels and scores.sentences:
            sys.stdout.buffer.write(sentence_lines(*map(scores.sentences.__getitem__, ("prob_log10", "oovs"))))

    return write
