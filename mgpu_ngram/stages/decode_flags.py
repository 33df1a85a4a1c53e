"""The flags of the command decode: options of Amun, and settings under their own names."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from mgpu_ngram.core.nmt.amun_config import IGNORED_OPTIONS, REFUSED
from mgpu_ngram.stages.flags import add_overwrite

AMUN_FLAGS: dict[str, dict[str, Any]] = {  # options that Amun's config files have too
    "input-file": {"short": "-i", "metavar": "FILE", "help": "text to decode (default: standard input)"},
    "model": {"short": "-m", "nargs": "+", "metavar": "FILE", "help": "models, as the arguments MODEL"},
    "source-vocab": {
        "short": "-s", "nargs": "+", "metavar": "FILE", "help": "vocabulary of each column, or factor of a word"
    },
    "target-vocab": {
        "short": "-t", "metavar": "FILE", "help": "vocabulary: JSON, YAML or a word a line, plain or gzipped"
    },
    "bpe": {"nargs": "+", "metavar": "FILE", "help": "BPE codes of each column; the output is joined to words"},
    "no-debpe": {"action": "store_true", "help": "do not join the BPE pieces of the output"},
    "debpe": {"action": "store_true", "help": argparse.SUPPRESS},
    "load-weights": {"metavar": "FILE", "help": "weights of a config file's scorers, lines 'NAME= weight'"},
    "show-weights": {"action": "store_true", "help": "print the weights in this format and end"},
    "dump-config": {"action": "store_true", "help": "print all settings as a job of a YAML file and end"},
    "relative-paths": {"action": "store_true", "help": "paths in the config file are relative to its folder"},
    "beam-size": {"short": "-b", "type": int, "metavar": "K", "help": "hypotheses for each sentence (default 1)"},
    "normalize": {"short": "-n", "action": "store_true", "help": "the same as --length-penalty 1"},
    "allow-unk": {"short": "-u", "action": "store_true", "help": "allow <unk> in results"},
    "max-length": {"type": int, "metavar": "N", "help": "read at most N words of a sentence; 0: all (default 200)"},
    "max-length-multiple": {
        "type": float, "metavar": "X", "help": "maximum words of a result for each source word (default 2)"
    },
    "n-best": {"action": "store_true", "help": "write n-best lists of beam-size results"},
    "wipo": {"action": "store_true", "help": "n-best lists with their sizes, 'OUT: ' before each line"},
    "return-alignment": {"action": "store_true", "help": "write word alignments as pairs target-source"},
    "return-soft-alignment": {"action": "store_true", "help": "write the attention weights of each target word"},
    "return-nematus-alignment": {"action": "store_true", "help": "write attention weights in the format of Nematus"},
    "softmax-filter": {
        "short": "-f", "nargs": "+", "metavar": ("FILE", "N"),
        "help": "shortlist of N frequent words (default 10000) and N translations of each source word (default 1000)",
    },
    "mini-batch": {"type": int, "metavar": "N", "help": "sentences decoded at once (default: by device and beam size)"},
    "mini-batch-words": {"type": int, "metavar": "N", "help": "maximum source words decoded at once; 0: no limit"},
    "maxi-batch": {"type": int, "metavar": "N", "help": "sort N sentences at a time by length; 0: all of a task"},
    "devices": {
        "short": "-d", "nargs": "+", "metavar": "N", "help": "GPU numbers, such as 0 1, or all; one worker for each"
    },
    "cpu-threads": {"type": int, "metavar": "N", "help": "decode on the CPU with N workers"},
    "gpu-threads": {"short": "--threads-per-device", "type": int, "metavar": "N", "help": argparse.SUPPRESS},
    "mode": {"metavar": "CPU|GPU", "help": argparse.SUPPRESS},
    "tensor-cores": {"action": "store_true", "help": "the same as --dtype float16"},
    "use-fused-softmax": {"type": "bool", "metavar": "BOOL", "help": argparse.SUPPRESS},
}  # fmt: skip
OUR_FLAGS: dict[str, dict[str, Any]] = {  # settings under their own names
    "lm": {"metavar": "FILE", "help": "n-gram model for the search: a model file, ARPA file or KenLM binary"},
    "lm_weight": {"type": float, "metavar": "W", "help": "weight of the n-gram model (default 0.2)"},
    "length_penalty": {
        "type": float, "metavar": "A",
        "help": "rank results by sum / length^A (default 0; 1: by the mean log-probability)"
    },
    "word_penalty": {"type": float, "metavar": "P", "help": "penalty for each word of a result (default 0)"},
    "max_steps": {"type": int, "metavar": "N", "help": "maximum words of a result; 0: only --max-length-multiple"},
    "early_stopping": {
        "choices": ["amun", "first", "bound"],
        "help": "when the search of a sentence ends. amun (default): when beam-size hypotheses have ended; first: when "
        "one has ended; bound: when no better result is possible",
    },
    "prefixes": {"metavar": "FILE", "help": "force these first words of the results, a line for each sentence"},
    "targets": {"metavar": "FILE", "help": "score these translations, a line for each sentence"},
    "sample": {"action": "store_true", "help": "sample beam-size results"},
    "top_k": {"type": int, "metavar": "K", "help": "sample from the K most probable words"},
    "top_p": {"type": float, "metavar": "P", "help": "sample from the most probable words with total probability P"},
    "temperature": {"type": float, "metavar": "T", "help": "divide log-probabilities by T (default 1)"},
    "seed": {"type": int, "help": "seed of the random numbers (default 0)"},
    "batching": {
        "choices": ["refill", "drain", "naive"],
        "help": "when sentences end. refill (default): new ones take their places; drain: the batch shrinks; naive: "
        "the batch keeps its size until all its sentences have ended",
    },
    "dtype": {
        "choices": ["float32", "tf32", "float16", "bfloat16"],
        "help": "number format of matrix products (default float32)"
    },
    "table_bytes": {"metavar": "SIZE", "help": "memory for tables of word products (default '64 MiB'; 0: none)"},
    "chunk_sentences": {"type": int, "metavar": "N", "help": "sentences in one task"},
    "text_column": {"metavar": "NAME", "help": "Parquet column or JSON key (default text, or the only text column)"},
}  # fmt: skip
NOT_USED = {
    **{f"--{name}": reason for name, reason in REFUSED.items()},
    "-v": "the version is that of mgpu-ngram --version",
}


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "inputs", nargs="*", metavar="MODEL|TEXT", help="models: files that end with .npz; texts: files, globs, URLs, -"
    )
    parser.set_defaults(many="inputs")
    parser.add_argument("-o", "--output", metavar="FILE", help="text file to write instead of standard output")
    add_overwrite(parser)
    parser.add_argument("-c", "--config", metavar="FILE", help="config file of Amun; flags override its options")
    parser.add_argument("--weights", nargs="+", type=float, metavar="W", help="weights of the models (default 1 each)")
    for option, spec in AMUN_FLAGS.items():
        how = dict(spec)
        names = [how.pop("short"), f"--{option}"] if "short" in how else [f"--{option}"]
        if how.get("type") == "bool":
            how["type"] = _truth
        parser.add_argument(*names, dest=option.replace("-", "_"), default=None, **how)
    for setting, how in OUR_FLAGS.items():
        parser.add_argument("--" + setting.replace("_", "-"), dest=setting, **how)
    for option in IGNORED_OPTIONS:
        parser.add_argument(f"--{option}", type=int, help=argparse.SUPPRESS)
    for flag in NOT_USED:
        parser.add_argument(flag, nargs="?", action=_Refused, help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """A flag of Amun that has no use here: the error says why."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> NoReturn:
        parser.error(f"{option} is not used: {NOT_USED[str(option)]}; leave it out")


def _truth(text: str) -> bool:
    """Return the value of a flag that Amun reads as a boolean."""
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() in ("true", "1", "yes", "on")
