"""`mgpu-ngram bench`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mgpu_ngram.cluster.devices import resolve_device
from mgpu_ngram.commands.shared import DEVICES, command
from mgpu_ngram.core.errors import InputError

EXAMPLES = """examples:
  mgpu-ngram bench count
  mgpu-ngram bench count --text big.txt --results results
  mgpu-ngram bench cluster --workers 1,2,4 --only speedup,shuffle --folder /dev/shm
  mgpu-ngram bench score --only table3,ceilings
  mgpu-ngram bench distribution --only dense,saturation
  mgpu-ngram bench estimate --only ids,text --folder /dev/shm
  mgpu-ngram bench estimate --only lmplz --text reviews.txt"""
# Those that a stage obeys, of the ones that not every stage does.
FLAGS = {
    "count": {"text", "size", "tokens"},
    "cluster": {"size", "tokens", "workers", "only", "folder"},
    "score": {"tokens", "workers", "only", "folder"},
    "distribution": {"size", "tokens", "workers", "only", "folder"},
    "estimate": {"text", "tokens", "workers", "only", "folder"},
}


def add(verbs: Any) -> None:
    bench = command(verbs, "bench", "measure a stage beside its limits", EXAMPLES)
    bench.add_argument("stage", choices=list(FLAGS))
    bench.add_argument("--device", default="auto", choices=DEVICES)
    bench.add_argument(
        "--text",
        metavar="FILE",
        help="real text: of bench count, to draw lines from (default: the standard library's); of bench estimate, to "
        "compare with lmplz (default: a generated one)",
    )
    bench.add_argument(
        "--size",
        metavar="BYTES",
        help="text to count, such as '1 GiB'; of bench cluster, tables that a worker shuffles; of bench distribution, "
        "rows that are made at once (default: by device)",
    )
    bench.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="words of the generated corpus; what bench score, distribution, estimate make models from "
        "(default: by device)",
    )
    bench.add_argument("--results", default="benchmarks/results", metavar="FOLDER")
    bench.add_argument("--workers", metavar="G,G", help="such as 1,2,4 (default: what there is)")
    bench.add_argument("--only", metavar="PART,PART", help="parts of the bench, such as 1,shuffle (default: all)")
    bench.add_argument("--folder", metavar="FOLDER", help="for texts and models (default: a temporary one)")
    bench.set_defaults(verb=_bench)


def _bench(arguments: argparse.Namespace) -> None:
    from mgpu_ngram.benchmarks import cluster, count, distribution, estimate, score
    from mgpu_ngram.benchmarks.rows import show_rows

    for flag in sorted(set().union(*FLAGS.values()) - FLAGS[arguments.stage]):
        if getattr(arguments, flag) is not None:
            others = ", ".join(f"bench {stage}" for stage, flags in FLAGS.items() if flag in flags)
            raise InputError(f"bench {arguments.stage} takes no --{flag}, which is of {others}; leave it out")
    device, a = resolve_device(arguments.device), arguments
    if a.stage == "cluster":
        rows = cluster.bench(device, a.tokens, a.size, a.results, a.workers, a.only, a.folder)
    elif a.stage == "distribution":
        rows = distribution.bench(device, a.tokens, a.size, a.results, a.workers, a.only, a.folder)
    elif a.stage == "estimate":
        rows = estimate.bench(device, a.tokens, a.results, a.workers, a.only, a.folder, a.text)
    elif a.stage == "score":
        rows = score.bench(device, a.tokens, a.results, a.workers, a.only, a.folder)
    else:
        rows = count.bench(device, a.text, a.size, a.tokens, a.results)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        show_rows(rows)
