"""`mgpu-ngram count`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from mgpu_ngram.commands.run import run_jobs
from mgpu_ngram.commands.shared import (
    add_cluster_flags,
    add_memory_flags,
    cluster_config,
    command,
    memory_config,
    stdin_as_file,
)
from mgpu_ngram.config import RunConfig, check_checkpoint_seconds
from mgpu_ngram.core.output import check_free
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.count.run import CountConfig

EXAMPLES = """examples:
  mgpu-ngram count books/*.txt.gz -o counts --order 5
  mgpu-ngram count page.html -o bytes --unit byte --order 4 --strategy hash
  mgpu-ngram count tokens.bin -o ids --unit id --dtype uint16 --separator-id 0
  zcat corpus.gz | mgpu-ngram count - -o counts --min-count 2"""
FLAGS: dict[str, dict[str, Any]] = {
    "order": {"type": int, "metavar": "N", "help": "highest n-gram order; all from 1 are counted (default 5)"},
    "unit": {"choices": ["word", "byte", "id"], "help": "what n-grams are made of (default word)"},
    "dtype": {"choices": ["uint16", "uint32"], "help": "of raw token ids (default uint16)"},
    "separator_id": {"type": int, "metavar": "ID", "help": "token id that no n-gram crosses"},
    "sentence_markers": {"action": "store_true", "help": "one <s> and one </s> per line"},
    "lowercase": {"action": "store_true", "help": "turn A-Z into a-z (ASCII only: other letters stay as they are)"},
    "min_count": {"type": int, "metavar": "K", "help": "write only n-grams that occur at least K times"},
    "strategy": {"choices": ["auto", "global", "private", "sort", "hash"]},
    "histograms": {"type": int, "metavar": "K", "help": "copies of the histogram, strategy private (default 1)"},
    "text_column": {"metavar": "NAME", "help": "text column of Parquet inputs (default text)"},
    "chunk_bytes": {"metavar": "SIZE", "help": "text per task, such as '64 MiB'"},
}


def add(verbs: Any) -> None:
    count = command(verbs, "count", "count the n-grams of text", EXAMPLES)
    count.add_argument("corpus", nargs="+", metavar="TEXT", help="file, glob, directory, URL, or - for stdin")
    count.add_argument("-o", "--output", required=True, metavar="OUT", help="folder to write")
    count.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    add_cluster_flags(count)
    add_memory_flags(count)
    for setting, how in FLAGS.items():
        count.add_argument("--" + setting.replace("_", "-"), **how)
    count.set_defaults(verb=_count)


def _count(arguments: argparse.Namespace) -> None:
    names = {f.name for f in fields(CountConfig)}
    given = {k: v for k, v in vars(arguments).items() if k in names and v is not None and v is not False}
    settings = fill(CountConfig, given, "count")
    memory = memory_config(arguments)
    check_checkpoint_seconds(arguments.checkpoint_seconds)
    output = Path(arguments.output)
    config = RunConfig(output, [], cluster_config(arguments), memory, arguments.checkpoint_seconds)
    if not arguments.resume:
        check_free(arguments.output, arguments.overwrite)  # at once, for a long pipe takes its time
    text = settings.unit, settings.dtype, settings.text_column
    with stdin_as_file(settings.corpus, output.absolute().parent, *text) as corpus:
        run_jobs([("count", settings, output)], config, arguments, corpus)
