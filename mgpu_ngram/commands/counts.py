"""`mgpu-ngram export` and `info`: what is in an output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from mgpu_ngram.commands.shared import command, stdout
from mgpu_ngram.core.counts import Ngram, read_counts
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.file_kind import identify_file
from mgpu_ngram.core.model_file import FORMAT as MODEL_FORMAT
from mgpu_ngram.core.output import MANIFEST, find_manifest
from mgpu_ngram.jobs.distribution import run as distribution
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.score import run as score
from mgpu_ngram.jobs.trie import run as trie
from mgpu_ngram.report import show_distributions, show_estimated, show_file, show_info, show_model, show_scored

EXPORT_EXAMPLES = """examples:
  mgpu-ngram export counts --order 3 | grep '^of the'
  mgpu-ngram export counts --order 5 --top 100"""
INFO_EXAMPLES = """examples:
  mgpu-ngram info counts
  mgpu-ngram info counts --json | jq .orders
  mgpu-ngram info model.safetensors
  mgpu-ngram info runs/scores/score
  mgpu-ngram info distributions"""


def add(verbs: Any) -> None:
    export = command(verbs, "export", "print n-grams as text, ngram TAB count", EXPORT_EXAMPLES)
    export.description = (
        "Print n-grams, ngram TAB count. Bytes that are no printable ASCII appear as \\n, \\t or \\xff."
    )
    export.add_argument("path", metavar="OUT")
    export.add_argument("--order", type=int, required=True, metavar="N")
    export.add_argument("--top", type=int, metavar="K", help="only the K that occur most")
    export.set_defaults(verb=_export)

    info = command(verbs, "info", "describe counts, distributions, a model file or what a job made", INFO_EXAMPLES)
    info.add_argument("path", metavar="PATH")
    info.set_defaults(verb=_info)


def _export(arguments: argparse.Namespace) -> None:
    counts = read_counts(arguments.path)
    if not 1 <= arguments.order <= counts.max_order:
        raise InputError(f"{arguments.path}: has orders 1 to {counts.max_order}, not {arguments.order}")
    if arguments.top is not None and arguments.top < 1:
        raise InputError(f"--top is {arguments.top} but must be at least 1")
    order = counts.order(arguments.order)
    with stdout():
        for ngram, n in order.top(arguments.top) if arguments.top else order:
            if arguments.json:
                line = json.dumps({"ngram": _json_ngram(ngram, counts.unit), "count": n}).encode()
            else:
                line = _text_ngram(ngram, counts.unit) + b"\t%d" % n
            sys.stdout.buffer.write(line + b"\n")


def _text_ngram(ngram: Ngram, unit: str) -> bytes:
    """Words as they are; ids in decimals; bytes that would break lines, or are not ASCII, as \\n or \\xff."""
    if isinstance(ngram, tuple):
        return " ".join(map(str, ngram)).encode()
    data = ngram.encode() if isinstance(ngram, str) else ngram
    return data.decode("latin-1").encode("unicode_escape") if unit == "byte" else data


def _json_ngram(ngram: Ngram, unit: str) -> Any:
    """Words as text; ids, and bytes by their values, as a list."""
    if isinstance(ngram, bytes):
        return list(ngram) if unit == "byte" else ngram.decode("utf-8", "backslashreplace")
    return ngram


def _info(arguments: argparse.Namespace) -> None:
    """Of counts, of distributions, of a model file, or of the folder of an estimate, a trie or a score job."""
    path, manifest = arguments.path, find_manifest(arguments.path) or {}
    if manifest.get("format") == trie.FORMAT:
        path = os.path.join(path, trie.MODEL)
    found: dict[str, Any]
    show: Callable[[str, dict[str, Any]], None]
    if os.path.isfile(path):
        found = identify_file(path)
        show = show_model if found["format"] == MODEL_FORMAT else show_file
    elif manifest.get("format") == estimate.FORMAT:
        found, show = manifest, show_estimated
    elif manifest.get("format") == score.FORMAT:
        found, show = manifest, show_scored
    elif manifest.get("format") == distribution.FORMAT:
        found, show = manifest, show_distributions
    elif not os.path.lexists(path):
        raise InputError(f"{path!r} does not exist; give a file, or the folder that a job wrote")
    elif not os.path.lexists(os.path.join(path, MANIFEST)):
        raise InputError(f"{path!r} is no output of mgpu-ngram: it has no {MANIFEST}; give the folder that a job wrote")
    else:
        found, show = read_counts(path).manifest, show_info
    with stdout():
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            show(path, found)
