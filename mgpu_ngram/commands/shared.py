"""What several commands share."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mgpu_ngram.config import ClusterConfig
from mgpu_ngram.core.corpus import Corpus, open_corpus
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.count.run import CHECKPOINT_SECONDS

DEVICES = ["auto", "cpu", "gpu"]


def command(verbs: Any, name: str, help: str, examples: str) -> argparse.ArgumentParser:
    """The parser of a command, with examples under its help, and the flags that every command has."""
    parser = verbs.add_parser(
        name,
        help=help,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say where a command's tasks run."""
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="Dask workers; 0: in this process (default: one per GPU or core)"
    )
    add_scheduler_flags(parser)


def add_memory_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say what a run may take, and what it keeps when it ends early."""
    parser.add_argument("--resume", action="store_true", help="go on with a run that ended early")
    parser.add_argument(
        "--device-bytes", metavar="SIZE", help="of each GPU that the run may take (default: most of it)"
    )
    parser.add_argument("--host-bytes", metavar="SIZE", help="of each host's memory (default: half of what is free)")
    parser.add_argument("--spill-dir", metavar="FOLDER", help="where what does not fit goes (default: beside OUT)")
    parser.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", default=CHECKPOINT_SECONDS,
        help=f"how often finished work is saved (default {CHECKPOINT_SECONDS:.0f})",
    )  # fmt: skip


def memory_config(arguments: argparse.Namespace) -> MemoryConfig:
    """What the flags of `add_memory_flags` say of memory."""
    return fill(MemoryConfig, {k: getattr(arguments, k) for k in ("device_bytes", "host_bytes", "spill_dir")}, "memory")


def add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--scheduler", metavar="ADDRESS", help="use the Dask cluster there, as tcp://10.0.0.1:8786")
    which.add_argument("--scheduler-file", metavar="F", help="use the Dask cluster whose scheduler wrote this file")


def cluster_config(arguments: argparse.Namespace) -> ClusterConfig:
    """What the flags of `add_cluster_flags` say."""
    where = {"address": arguments.scheduler, "scheduler_file": arguments.scheduler_file}
    where = {kind: at for kind, at in where.items() if at}
    settings = {"kind": next(iter(where), "local"), "device": arguments.device, "workers": arguments.workers}
    return fill(ClusterConfig, settings | where, "cluster")


def scheduler_overrides(arguments: argparse.Namespace) -> list[str]:
    """The flags --scheduler and --scheduler-file as settings of a YAML file."""
    if arguments.scheduler:
        return [
            "cluster.kind=address",
            f"cluster.address={json.dumps(arguments.scheduler)}",
            "cluster.scheduler_file=null",
        ]
    if arguments.scheduler_file:
        file = json.dumps(arguments.scheduler_file)
        return ["cluster.kind=scheduler_file", f"cluster.scheduler_file={file}", "cluster.address=null"]
    return []


@contextmanager
def stdout() -> Iterator[None]:
    """Around what prints results: a reader of the pipe that has seen enough is no failure, a full disk is."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its exit
        if not isinstance(error, BrokenPipeError):
            what = f"cannot write to stdout ({error.strerror})"
            raise RunError(f"{what}; free space there or pipe it elsewhere") from None


@contextmanager
def stdin_as_file(
    paths: list[str], folder: Path, unit: str = "word", dtype: str = "uint16", text_column: str = "text"
) -> Iterator[Corpus | None]:
    """The corpus with - kept in a file in `folder`, which workers read in parallel; None where - is not in it."""
    if "-" not in paths:
        yield None
        return
    if sys.stdin is None:
        raise InputError("input '-' is standard input, which is closed; pipe text to it, or name a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=".stdin-")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot keep stdin in {folder} ({error.strerror}); give another output path") from None
    with file:
        try:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
            file.flush()
        except OSError as error:
            raise RunError(f"cannot keep stdin in {folder} ({error.strerror}); free space there") from None
        named = [file.name if path == "-" else path for path in paths]
        corpus = open_corpus(named, unit, dtype, text_column)
        sources = (replace(s, name="-") if s.name == file.name else s for s in corpus.sources)
        yield replace(corpus, sources=tuple(sources))
