"""`mgpu-ngram distribution`: the probabilities of every next word, after every history of a text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mgpu_ngram.commands.run import run_jobs
from mgpu_ngram.commands.shared import add_cluster_flags, cluster_config, command, stdin_as_file
from mgpu_ngram.config import RunConfig, check_checkpoint_seconds
from mgpu_ngram.core.model_file import identify
from mgpu_ngram.core.output import check_free
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.count.run import CHECKPOINT_SECONDS
from mgpu_ngram.jobs.distribution.config import DistributionConfig

EXAMPLES = """examples:
  mgpu-ngram distribution model.safetensors heldout.txt -o rows --orders max --dtype float16
  mgpu-ngram distribution model.arpa heldout.txt -o best --top-k 100 --format parquet
  mgpu-ngram distribution model.safetensors crawl/*.txt.zst -o blocks --format compact --workers 4
  echo "the cat" | mgpu-ngram distribution model.arpa - -o next --positions last"""
FLAGS: dict[str, dict[str, Any]] = {
    "orders": {"metavar": "all|max|LIST", "help": "orders of the rows, such as 1,2,5 (default all)"},
    "mode": {
        "choices": ["smoothed", "stored"], "help": "with backoff (default); or stored n-grams alone, and 0 elsewhere"
    },
    "top_k": {"type": int, "metavar": "K", "help": "only the K most probable words of each row"},
    "format": {
        "choices": ["zarr", "npy", "compact", "parquet"],
        "help": "whole rows (zarr, the default, or npy), exact blocks of which rows can be made (compact), or tables",
    },
    "dtype": {"choices": ["float32", "float16", "bfloat16"], "help": "of rows (default float32)"},
    "scale": {"choices": ["prob", "log10", "ln"], "help": "of values (default prob)"},
    "positions": {
        "choices": ["every", "last"],
        "help": "a history ends before every word and at the end of each line (default); or a line is one",
    },
    "text_column": {"metavar": "NAME", "help": "text column of Parquet inputs (default text)"},
    "chunk_bytes": {"metavar": "SIZE", "help": "text per task, such as '64 KiB'"},
}  # fmt: skip


def add(verbs: Any) -> None:
    parser = command(verbs, "distribution", "write the probabilities of every next word", EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="model file, or ARPA file, plain or compressed")
    parser.add_argument(
        "corpus", nargs="+", metavar="TEXT|HISTORIES", help="file, glob, directory, URL, or - for stdin"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="folder to write")
    parser.add_argument("-n", dest="bare", action="store_true", help="no <s> before a line; its end is no position")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    for setting, how in FLAGS.items():
        parser.add_argument("--" + setting.replace("_", "-"), **how)
    parser.add_argument("--no-verify", action="store_true", help="do not compare the checksums of a model file")
    add_cluster_flags(parser)
    parser.add_argument("--resume", action="store_true", help="go on with a run that ended early")
    parser.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", default=CHECKPOINT_SECONDS,
        help=f"how often finished work is noted (default {CHECKPOINT_SECONDS:.0f})",
    )  # fmt: skip
    parser.set_defaults(verb=_distribution)


def _distribution(arguments: argparse.Namespace) -> None:
    given = {setting: value for setting in FLAGS if (value := getattr(arguments, setting)) is not None}
    given |= {"model": arguments.model, "text": arguments.corpus}
    given |= {"sentence_markers": not arguments.bare, "verify": not arguments.no_verify}
    settings = fill(DistributionConfig, given, "distribution")
    identify(settings.model)  # at once, for a cluster takes its time to start
    check_checkpoint_seconds(arguments.checkpoint_seconds)
    output = Path(arguments.output)
    cluster = cluster_config(arguments)
    config = RunConfig(output, [], cluster, checkpoint_seconds=arguments.checkpoint_seconds)
    if not arguments.resume:
        check_free(arguments.output, arguments.overwrite)  # at once, for a long pipe takes its time
    with stdin_as_file(settings.text, output.absolute().parent, text_column=settings.text_column) as corpus:
        run_jobs([("distribution", settings, output)], config, arguments, corpus)
