"""`mgpu-ngram trie`: a model file out of an ARPA file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mgpu_ngram.cluster.devices import cpu_cores, resolve_device
from mgpu_ngram.commands.shared import DEVICES, command, stdout
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.trie.run import TrieConfig, build
from mgpu_ngram.report import show_result

EXAMPLES = """examples:
  mgpu-ngram trie model.arpa.gz -o model.safetensors
  mgpu-ngram trie model.arpa -o small.safetensors --quantize 8
  mgpu-ngram trie model.safetensors -o fast.safetensors --index edge"""


def add(verbs: Any) -> None:
    parser = command(verbs, "trie", "make a model file, which loads fast, of an ARPA file", EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="ARPA file, plain or compressed, or a model file")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.safetensors", help="model file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it is a model file")
    parser.add_argument(
        "--index", choices=["btree", "edge", "both"],
        help="btree: the trie alone; edge, both: the edge table too, three times as large (default: as a model file "
        "has it, btree of an ARPA file)",
    )  # fmt: skip
    parser.add_argument(
        "--fanout", type=int, metavar="K",
        help="words that a search looks at in one step (default: as a model file has it, 32 of an ARPA file)",
    )  # fmt: skip
    parser.add_argument(
        "--quantize", type=int, metavar="BITS", help="codes of so many bits in place of probabilities and backoffs"
    )
    parser.add_argument("--no-backoff", action="store_true", help="leave out backoffs; such a model scores no text")
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.set_defaults(verb=_trie)


def _trie(arguments: argparse.Namespace) -> None:
    names = ("model", "index", "fanout", "quantize")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    config = fill(TrieConfig, given | {"backoff": not arguments.no_backoff}, "trie")
    device = resolve_device(arguments.device)
    result = build(config, arguments.output, device, cpu_cores(), arguments.overwrite)
    with stdout():
        if arguments.json:
            print(json.dumps(result.as_json(), indent=2))
        else:
            show_result(result)
