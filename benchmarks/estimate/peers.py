"""Text to an ARPA file, by this engine and, where it is on the PATH, by KenLM's lmplz, whose model must be the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from mgpu_ngram.benchmarks.cluster.words import ZipfCorpus
from mgpu_ngram.benchmarks.estimate.ids import ORDER, ROUNDS
from mgpu_ngram.benchmarks.estimate.text import EstimateBench
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.models.arpa import read_arpa
from mgpu_ngram.core.ngrams.trie import Ngrams, Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import build_trie
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import run as estimate_job
from mgpu_ngram.jobs.estimate.config import EstimateConfig

TOKENS = 20_000_000  # at most: lmplz takes seconds for each million
MEMORY = ("50%", "1G")  # lmplz's -S: with little text it is faster with less
PEER, TEXT_TO_ARPA = "estimate/peer lmplz", "estimate/text to ARPA"
AS_COMMAND = "estimate/text to ARPA as a command"
TOLERANCE = 1e-6  # tolerance of a log10


def lmplz(bench: EstimateBench) -> None:
    """Rows: lmplz, and this engine beside it, in this process and as a command."""
    suite, folder = bench.suite, bench.folder / "peer"
    folder.mkdir()
    most = min(bench.tokens, TOKENS)
    path = bench.real or Path(ZipfCorpus.generate(folder, most, most).paths[0])
    program = shutil.which("lmplz")
    suite.say("text to ARPA" if program else "text to ARPA; lmplz is not on the PATH, so its rate is left out")
    seconds: list[float] = []
    as_command: list[float] = []
    by_memory: dict[str, list[float]] = {memory: [] for memory in MEMORY if program}
    _, tokens = _estimate(suite.device, path, folder / "ours.arpa")  # the warm-up
    sizes = f"tokens={tokens} bytes={path.stat().st_size} n=1..{ORDER}" + (f" text={path.name}" if bench.real else "")
    for _ in range(ROUNDS):  # in turn, because other work on the machine varies
        seconds.append(_estimate(suite.device, path, folder / "ours.arpa")[0])
        as_command.append(run_estimate(suite.device, path, folder / "ours.arpa")[0])
        for memory, of_memory in by_memory.items():
            of_memory.append(run_lmplz(str(program), path, folder / "lmplz.arpa", memory))
    if program:
        check_same(folder / "ours.arpa", folder / "lmplz.arpa")
    best = min(by_memory, key=lambda memory: median(by_memory[memory]), default=None)
    if best:
        notes = ", ".join(f"-S {memory} {median(s):.3g} s" for memory, s in by_memory.items())
        suite.add(PEER, sizes, by_memory[best], items=tokens, unit=TOKENS_PER_SECOND, notes=notes)
    for name, ours, how in (
        (TEXT_TO_ARPA, seconds, "in a process that has started"), (AS_COMMAND, as_command, "with the start of Python"),
    ):  # fmt: skip
        suite.add(
            name, sizes, ours, items=tokens, unit=TOKENS_PER_SECOND, baseline=PEER if best else "",
            baseline_seconds=median(by_memory[best]) if best else None, notes=f"{cpu_cores()} cores; {how}",
        )  # fmt: skip


def _estimate(device: str, text: Path, arpa: Path) -> tuple[float, int]:
    """Return the seconds of a whole job, and the words of the text."""
    executor = LocalExecutor(device)
    start = time.perf_counter()
    try:
        config = EstimateConfig([str(text)], order=ORDER, format="arpa", discount_fallback=[])
        tokens = estimate_job.run(config, RunContext(executor, arpa, single_file=True, overwrite=True)).tokens
    finally:
        executor.close()
    return time.perf_counter() - start, tokens


def run_estimate(device: str, text: Path, arpa: Path, *options: str) -> tuple[float, str]:
    """Return the seconds of `mgpu-ngram estimate` in one process, with the start of Python, and its stdout."""
    command = [sys.executable, "-m", "mgpu_ngram", "estimate", str(text), "-o", str(arpa), "--order", str(ORDER)]
    command += ["--discount-fallback", "--device", device, "--workers", "0", "--overwrite", *options]
    return _run(command, "mgpu-ngram", "see why")


def run_lmplz(program: str, text: Path, arpa: Path, memory: str, *options: str) -> float:
    """Return the seconds of lmplz, including its start."""
    command = [program, "-o", str(ORDER), "-S", memory, "-T", str(arpa.parent), "--text", str(text)]
    command += ["--arpa", str(arpa), *options, "--discount_fallback"]  # for discounts that cannot be computed
    return _run(command, program, "take it off the PATH to go on without")[0]


def _run(command: list[str], name: str, way_out: str) -> tuple[float, str]:
    """Return the seconds of a process and its stdout. Raises RunError when it fails."""
    start = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if ended.returncode:
        last = (ended.stderr.strip() or "it says nothing").splitlines()[-1]
        raise RunError(f"{name} ended with status {ended.returncode}: {last}; {way_out}")
    return seconds, ended.stdout


def check_same(ours: Path, theirs: Path) -> None:
    """Raise WrongResult unless two ARPA files have the same n-grams, and values that differ by rounding."""
    words = read_arpa(ours).words
    mine, other = (_trie(path, words) for path in (ours, theirs))
    same = mine.starts == other.starts and np.array_equal(mine.first_child_M, other.first_child_M)
    if not same or not np.array_equal(mine.word_G, other.word_G):
        raise WrongResult(f"lmplz's model has other n-grams, {other.starts} beside {mine.starts}; not timed")
    for name, found, expected in (
        ("probability", mine.prob_G, other.prob_G), ("backoff", mine.backoff_M, other.backoff_M)
    ):  # fmt: skip
        difference = float(np.abs(found.astype(np.float64) - expected).max())
        if difference > TOLERANCE:
            raise WrongResult(f"a log10 {name} differs by {difference:g} from that of lmplz; not timed")


def _trie(path: Path, words: Words) -> Trie:
    """The trie of an ARPA file, with the ids of `words`, which must be its own in some order."""
    arpa = read_arpa(path, cpu_cores())
    id_V = words.ids(arpa.words.offsets_V, arpa.words.data)
    if len(id_V) != len(words) or len(np.unique(id_V)) != len(words):
        raise WrongResult(
            f"lmplz's model has {len(id_V):,} words, of which others are not among {len(words):,} of ours"
        )
    return build_trie(Ngrams(id_V[level.ids], level.prob, level.backoff) for level in arpa.levels())
