"""`mgpu-ngram estimate`: a Kneser-Ney model out of text or counts, as KenLM's lmplz makes it."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from mgpu_ngram.api import open_executor
from mgpu_ngram.commands.shared import (
    add_cluster_flags,
    add_memory_flags,
    cluster_config,
    command,
    memory_config,
    stdin_as_file,
    stdout,
)
from mgpu_ngram.config import check_checkpoint_seconds
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.estimate.run import EstimateConfig, check_free_model, open_inputs, run_to_file
from mgpu_ngram.report import Bars, show_result

EXAMPLES = """examples:
  mgpu-ngram estimate books/*.txt.gz -o model.safetensors --order 5
  mgpu-ngram estimate corpus.txt -o model.arpa --prune 0 0 1
  mgpu-ngram estimate --from-counts counts -o model.safetensors
  zcat corpus.gz | mgpu-ngram estimate - -o model.arpa --discount-fallback
  mgpu-ngram estimate tokens.bin -o model.arpa --unit id --separator-id 0"""
FLAGS: dict[str, dict[str, Any]] = {
    "order": {"type": int, "metavar": "N", "help": "highest n-gram order (default 5; that of counts)"},
    "prune": {
        "type": int, "nargs": "+", "metavar": "K",
        "help": "leave out n-grams that occur K times or less, by order; the last K is that of all higher orders, too",
    },
    "limit_vocab_file": {"metavar": "F", "help": "leave out n-grams with words that do not stand in this file"},
    "vocab_pad": {"type": int, "metavar": "V", "help": "words that the uniform distribution is over, at least"},
    "discount_fallback": {
        "type": float, "nargs": "*", "metavar": "D",
        "help": "discounts of counts 1, 2, 3 and more for orders where none can be computed (default 0.5 1 1.5)",
    },
    "interpolate_unigrams": {
        "type": int, "choices": [0, 1], "nargs": "?", "const": 1,
        "help": "0: <unk> has all that order 1 leaves, as SRILM does it (default 1)",
    },
    "skip_symbols": {"action": "store_true", "help": "leave <unk>, <s> and </s> out of the text (else refused)"},
    "collapse_values": {"action": "store_true", "help": "one value in place of two (ARPA file only)"},
    "exact_discounts": {"action": "store_true", "help": "without lmplz's slip in its counts of counts"},
    "verbose_header": {"action": "store_true", "help": "comments at the head of an ARPA file"},
    "unit": {"choices": ["word", "id"], "help": "what n-grams are made of (default word)"},
    "dtype": {"choices": ["uint16", "uint32"], "help": "of raw token ids (default uint16)"},
    "separator_id": {"type": int, "metavar": "ID", "help": "token id that ends a sentence"},
    "text_column": {"metavar": "NAME", "help": "text column of Parquet inputs (default text)"},
    "chunk_bytes": {"metavar": "SIZE", "help": "text per task, such as '64 MiB'"},
}  # fmt: skip


def add(verbs: Any) -> None:
    parser = command(verbs, "estimate", "make a Kneser-Ney model of text", EXAMPLES)
    parser.add_argument("corpus", nargs="*", metavar="TEXT", help="file, glob, directory, URL, or - for stdin")
    parser.add_argument("--from-counts", dest="counts", metavar="DIR", help="what count wrote, in place of TEXT")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="OUT.arpa: an ARPA file; OUT.safetensors: a model file"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it is a model")
    add_cluster_flags(parser)
    add_memory_flags(parser)
    for setting, how in FLAGS.items():
        parser.add_argument("--" + setting.replace("_", "-"), **how)
    parser.set_defaults(verb=_estimate)


def _estimate(arguments: argparse.Namespace) -> None:
    names = {f.name for f in fields(EstimateConfig)}
    given = {k: v for k, v in vars(arguments).items() if k in names and v is not None and v is not False and v != []}
    if arguments.discount_fallback is not None:
        given["discount_fallback"] = arguments.discount_fallback
    if arguments.interpolate_unigrams is not None:
        given["interpolate_unigrams"] = bool(arguments.interpolate_unigrams)
    given["format"] = Path(arguments.output).suffix.removeprefix(".")
    if given["format"] not in ("arpa", "safetensors"):
        raise InputError(f"output {arguments.output!r} must end with .arpa (ARPA file) or .safetensors (model file)")
    config = fill(EstimateConfig, given, "estimate")
    memory, cluster = memory_config(arguments), cluster_config(arguments)
    check_checkpoint_seconds(arguments.checkpoint_seconds)
    check_free_model(config, arguments.output, arguments.overwrite)  # at once, for a long pipe takes its time
    text = config.unit, config.dtype, config.text_column
    with stdin_as_file(config.corpus, Path(arguments.output).absolute().parent, *text) as corpus:
        inputs = corpus or open_inputs(config)
        executor = open_executor(cluster)
        try:
            with Bars() as bars:
                result = run_to_file(
                    config, executor, arguments.output, arguments.overwrite, bars, inputs, memory,
                    arguments.checkpoint_seconds, arguments.resume,
                )  # fmt: skip
        finally:
            executor.close()
    with stdout():
        if arguments.json:
            print(json.dumps(result.as_json(), indent=2))
        else:
            show_result(result)
