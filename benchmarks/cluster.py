"""`mgpu-ngram bench cluster`: what several workers gain over one, and what the cluster costs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.api import open_executor
from mgpu_ngram.benchmarks import cluster_arrays, cluster_words
from mgpu_ngram.benchmarks.cluster_words import Corpus
from mgpu_ngram.benchmarks.rows import one_line
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.config import ClusterConfig
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import parse_bytes

PARTS = ("read", "speedup", "overhead", "histogram", "shuffle", "spill")
WITH_TEXT = {"read", "speedup", "overhead", "spill"}
TOKENS = {"gpu": 1_000_000_000, "cpu": 2_000_000}
FILE_TOKENS = {"gpu": 200_000_000, "cpu": 250_000}
TABLE_BYTES = {"gpu": "4 GiB", "cpu": "8 MiB"}  # of each worker, in the shuffle
MIN_TOKENS = 1_000


def bench(
    device: str,
    tokens: int | None,
    size: str | int | None,
    results: str | Path,
    workers: str | None = None,
    only: str | None = None,
    folder: str | None = None,
) -> list[dict[str, Any]]:
    """Measure clusters on this host, write cluster.csv and the figure to the folder `results`, return the rows.

    device   "cpu" or "gpu"
    tokens   words of the generated corpus; by device when None
    size     bytes of table that each worker holds before the shuffle, such as "4 GiB"; by device when None
    workers  numbers of workers, such as "1,2,4"; as many GPUs as there are, or 1 and 2 on a CPU, when None
    only     parts to measure, by name or by number from 1; all when None
    folder   where the corpus is written; a temporary one when None

    Results are checked before they are timed; rows are told and saved part by part.
    """
    try:
        from mgpu_ngram.benchmarks import figures
    except ImportError as error:
        raise InputError(f"the figures need matplotlib ({error}); pip install 'mgpu-ngram[bench]'") from None
    parts, clusters = parts_of(only, PARTS), clusters_of(workers, device)
    tokens = TOKENS[device] if tokens is None else tokens
    if tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens} but must be at least {MIN_TOKENS}")
    table_bytes = parse_bytes(TABLE_BYTES[device] if size is None else size, "size")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; make it, or leave it out")
    suite = Suite(device, Path(results) / "cluster.csv")
    suite.say(f"{suite.name}; {suite.version}")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=folder)))
        corpus = Corpus(place, [])
        if WITH_TEXT & set(parts):
            suite.say(f"writing a corpus of {tokens:,} words")
            corpus = Corpus.generate(place, tokens, FILE_TOKENS[device])
        of_cluster: dict[str, Callable[[Suite, Executor], None]] = {
            "read": lambda suite, executor: cluster_words.read(suite, executor, corpus),
            "speedup": lambda suite, executor: cluster_words.speedup(suite, executor, corpus),
            "histogram": cluster_arrays.histogram,
            "shuffle": lambda suite, executor: cluster_arrays.shuffle(suite, executor, table_bytes),
        }
        for G in clusters:
            mine = [of_cluster[p] for p in parts if p in of_cluster and (p in WITH_TEXT or G > 1)]
            if mine:
                suite.say(f"a cluster of {G}")
                executor = open_executor(ClusterConfig(device=device, workers=G))  # type: ignore[arg-type]
                try:
                    for part in mine:
                        _measure(suite, part, executor)
                finally:
                    executor.close()
        for name, alone in (("overhead", cluster_words.overhead), ("spill", cluster_words.spill)):
            if name in parts:
                _measure(suite, alone, corpus)
    if any(row.kernel == cluster_words.TEXT_TO_SHARDS and row.speedup for row in suite.rows):
        figures.draw_speedup(suite.rows, Path(results))
    return [asdict(row) for row in suite.rows]


def _measure(suite: Suite, part: Callable, of: Any) -> None:
    """Run a part; tell and save its rows."""
    before = len(suite.rows)
    part(suite, of)
    for row in suite.rows[before:]:
        suite.say(one_line(row))
    suite.save()


def parts_of(only: str | None, known: Iterable[str]) -> list[str]:
    """The parts that are asked for, by name or by number from 1; all when None."""
    names = list(known)
    asked = names if only is None else only.split(",")
    parts = [names[int(p) - 1] if p.isdecimal() and 1 <= int(p) <= len(names) else p for p in asked]
    for part in parts:
        if part not in names:
            raise InputError(f"part {part!r} is none of {', '.join(names)}, nor a number from 1 to {len(names)}")
    return parts


def clusters_of(workers: str | None, device: str) -> list[int]:
    """The numbers of workers, rising: speed-ups are over the first."""
    if workers is None:
        return [1, 2] if device == "cpu" else [G for G in (1, 2, 4) if G <= visible_gpus()]
    if not all(w.isdecimal() and int(w) for w in workers.split(",")):
        raise InputError(f"workers is {workers!r} but must be numbers of workers, such as 1,2,4")
    return sorted({int(w) for w in workers.split(",")})
