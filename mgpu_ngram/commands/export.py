"""`mgpu-ngram export`: the n-grams of counts as text."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from mgpu_ngram.commands.standard_streams import stdout
from mgpu_ngram.core.errors import InputError

if TYPE_CHECKING:
    from mgpu_ngram.core.counts.counts import Ngram

EXAMPLES = """examples:
  mgpu-ngram export counts --order 3 | grep '^of the'
  mgpu-ngram export counts --order 5 --top 100
  mgpu-ngram export counts --format srilm | gzip > srilm.counts.gz"""


def add(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EXAMPLES
    parser.description = (
        "Print n-grams and counts, separated by a tab. Words are printed unchanged. "
        "In counts of bytes, bytes other than printable ASCII are printed as \\n, \\t or \\xff."
    )
    parser.add_argument("path", metavar="OUT", help="folder that count wrote")
    parser.add_argument("--order", type=int, metavar="N", help="n-gram order; with --format srilm, the highest order")
    parser.add_argument("--top", type=int, metavar="K", help="print only the K most frequent n-grams")
    parser.add_argument(
        "--format",
        choices=["lines", "srilm"],
        default="lines",
        help="lines (default): one order; srilm: orders 1 to N (default: all), for ngram-count -read",
    )
    parser.set_defaults(verb=_export)


def _export(arguments: argparse.Namespace) -> None:
    from mgpu_ngram.core.counts.counts import read_counts

    counts = read_counts(arguments.path)
    if arguments.format == "srilm":
        if counts.unit == "byte":
            raise InputError(f"{arguments.path} has counts of bytes, which SRILM cannot read; count words or ids")
        for name in ("top", "json"):
            if getattr(arguments, name):
                raise InputError(f"--{name} is not for --format srilm, which writes all n-grams as text; leave it out")
        arguments.order = counts.max_order if arguments.order is None else arguments.order
    elif arguments.order is None:
        raise InputError("--order is missing; give the n-gram order, or --format srilm for all orders")
    if not 1 <= arguments.order <= counts.max_order:
        raise InputError(f"{arguments.path}: has orders 1 to {counts.max_order}, not {arguments.order}")
    if arguments.top is not None and arguments.top < 1:
        raise InputError(f"--top is {arguments.top} but must be at least 1")
    first = 1 if arguments.format == "srilm" else arguments.order
    with stdout():
        for n in range(first, arguments.order + 1):
            order = counts.order(n)
            for ngram, count in order.top(arguments.top) if arguments.top else order:
                if arguments.json:
                    line = json.dumps({"ngram": _json_ngram(ngram, counts.unit), "count": count}).encode()
                else:
                    line = _text_ngram(ngram, counts.unit) + b"\t%d" % count
                sys.stdout.buffer.write(line + b"\n")


def _text_ngram(ngram: Ngram, unit: str) -> bytes:
    """Return words unchanged, ids in decimal, and bytes with line breaks and non-ASCII as \\n or \\xff."""
    if isinstance(ngram, tuple):
        return " ".join(map(str, ngram)).encode()
    data = ngram.encode() if isinstance(ngram, str) else ngram
    return data.decode("latin-1").encode("unicode_escape") if unit == "byte" else data


def _json_ngram(ngram: Ngram, unit: str) -> Any:
    """Return words as text; ids, and bytes by their values, as a list."""
    if isinstance(ngram, bytes):
        return list(ngram) if unit == "byte" else ngram.decode("utf-8", "backslashreplace")
    return ngram
