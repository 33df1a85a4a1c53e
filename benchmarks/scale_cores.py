"""The part `cores` of `bench scale`: text to an ARPA file as a command on CPU cores, with less memory, beside lmplz."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mgpu_ngram.benchmarks.cluster.words import ZipfCorpus
from mgpu_ngram.benchmarks.estimate.ids import ORDER
from mgpu_ngram.benchmarks.estimate.peers import check_same, run_estimate, run_lmplz
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.cluster.devices import cpu_cores

HOST_BYTES = (None, 6 * 10**9, 10**9)  # limits of the command; None: all memory
LMPLZ_MEMORY, LMPLZ_BYTES = "6G", 6 * 10**9  # lmplz's -S, and the limit of the command that is compared with it
HEAD_TOKENS = 200_000  # tokens of a text whose models are compared n-gram by n-gram
ROUNDS, ENOUGH_SECONDS = 3, 45.0  # no further round starts after this time
PEER, AS_COMMAND = "scale/peer lmplz", "scale/text to ARPA as a command"


@dataclass(frozen=True)
class Made:
    """A model that one command made.

    seconds     wall time of the process, with its start
    ngrams      n-grams of orders 1, 2, ...
    digest      SHA-256 of the ARPA file
    peak_bytes  most host memory in use
    """

    seconds: float
    ngrams: list[int]
    digest: str
    size_bytes: int
    peak_bytes: int


def cores(suite: Suite, corpus: ZipfCorpus, sizes: str, prune: Sequence[int]) -> None:
    """Rows: a pruned model and a whole one, within each limit of memory, and lmplz.

    corpus  one file
    sizes   of the corpus, for the rows
    """
    program = shutil.which("lmplz")
    for pruned, options in ((",".join(map(str, prune)), ["--prune", *map(str, prune)]), ("none", [])):
        without = "" if program else "; lmplz is not on the PATH, so its rate is left out"
        suite.say(f"text to ARPA as a command, prune={pruned}{without}")
        _check_head(corpus, program, options)
        _add_rows(suite, corpus, program, f"{sizes} prune={pruned}", options)


def _add_rows(suite: Suite, corpus: ZipfCorpus, program: str | None, sizes: str, options: list[str]) -> None:
    """Add the rows of models with the same options."""
    ours: dict[int | None, list[Made]] = {limit: [] for limit in HOST_BYTES}
    theirs: list[float] = []
    spent = 0.0
    while len(ours[None]) < ROUNDS and spent < ENOUGH_SECONDS:  # in turn, because other work on the machine varies
        for limit, made in ours.items():
            made.append(_estimate(corpus, options, limit))
            spent += made[-1].seconds
            if made[-1].digest != ours[None][0].digest:
                raise WrongResult(f"within {limit or 'all'} bytes of memory the ARPA file is another one; not timed")
        if program:
            theirs.append(_lmplz(corpus, program, options, ours[None][0].ngrams))
            spent += theirs[-1]
    row: dict[str, Any] = {"items": corpus.totals[0], "unit": TOKENS_PER_SECOND}
    if program:
        suite.add(PEER, f"{sizes} memory={LMPLZ_MEMORY}", theirs, notes=f"{cpu_cores()} cores", **row)
    unlimited = median(made.seconds for made in ours[None])
    for limit, rounds in ours.items():
        baseline, baseline_seconds = ("all memory", unlimited) if limit else ("", None)
        if limit == LMPLZ_BYTES:
            baseline, baseline_seconds = (PEER, median(theirs)) if program else ("", None)
        seconds = [made.seconds for made in rounds]
        suite.add(
            AS_COMMAND, f"{sizes} host_bytes={limit or 'auto'}", seconds, baseline=baseline,
            baseline_seconds=baseline_seconds, notes=_notes(rounds[0], median(seconds) / unlimited, program), **row,
        )  # fmt: skip


def _notes(made: Made, of_unlimited: float, program: str | None) -> str:
    notes = (
        f"{of_unlimited:.2f} x the time with all memory; {sum(made.ngrams):,} n-grams in {made.size_bytes:,} bytes; "
        f"{cpu_cores()} cores; at most {made.peak_bytes / 1e9:.1f} GB of host memory"
    )
    return notes if program else f"{notes}; lmplz is not on the PATH"


def _estimate(corpus: ZipfCorpus, options: list[str], limit: int | None) -> Made:
    """Return the model of one command; the ARPA file is deleted, because several would fill a disk."""
    arpa, limits = corpus.folder / "ours.arpa", [] if limit is None else ["--host-bytes", str(limit)]
    seconds, printed = run_estimate("cpu", Path(corpus.paths[0]), arpa, *options, *limits, "--json")
    found = json.loads(printed)
    oracles.check_total(found["tokens"], corpus.totals[0], "words of a model's text")
    with open(arpa, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    arpa.unlink()
    ngrams = [found["statistics"]["kept"][str(n)] for n in range(1, ORDER + 1)]
    return Made(seconds, ngrams, digest, found["size_bytes"], found["peak_host_bytes"])


def _lmplz(corpus: ZipfCorpus, program: str, options: list[str], ngrams: list[int]) -> float:
    """Return the seconds of lmplz. Raises WrongResult unless its model has `ngrams` n-grams of each order."""
    arpa = corpus.folder / "lmplz.arpa"
    seconds = run_lmplz(program, Path(corpus.paths[0]), arpa, LMPLZ_MEMORY, *options)
    with open(arpa, "rb") as file:
        head = list(itertools.islice(file, ORDER + 1))
    arpa.unlink()
    found = [int(line.partition(b"=")[2]) for line in head if line.startswith(b"ngram ")]
    if found != ngrams:
        raise WrongResult(f"lmplz's model has {found} n-grams, not {ngrams}; not timed")
    return seconds


def _check_head(corpus: ZipfCorpus, program: str | None, options: list[str]) -> None:
    """Compare the models of the first lines, which fit memory; the commands warm up."""
    head, ours, theirs = (corpus.folder / name for name in ("head.txt", "ours.arpa", "lmplz.arpa"))
    with open(corpus.paths[0], "rb") as file:
        head.write_bytes(b"".join(file.readlines(6 * HEAD_TOKENS)))
    run_estimate("cpu", head, ours, *options)
    if program:
        run_lmplz(program, head, theirs, LMPLZ_MEMORY, *options)
        check_same(ours, theirs)
        theirs.unlink()
    for path in head, ours:
        path.unlink()
