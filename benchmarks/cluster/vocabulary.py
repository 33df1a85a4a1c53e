"""A vocabulary larger than memory: two workers merge and number it in ranges, through files."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.counts.counts import Counts, read_counts
from mgpu_ngram.core.counts.vocabulary import SPECIALS
from mgpu_ngram.core.memory_config import MIN_BYTES, MemoryConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.stages.run_file import ClusterConfig

WORKERS = 2
HOST_BYTES_PER_WORD = 20  # limit of both workers together
TARGET_BYTES_PER_WORD = 60  # of host memory, on all workers together
DIGITS = 10  # of a word, hexadecimal
LINE_WORDS, LINES_AT_ONCE = 50, 20_000
FACTOR = 0x9E3779B97F4A7C15 % (1 << 4 * DIGITS) | 1  # odd, so words are distinct


def run(suite: Suite, folder: Path, words: int) -> None:
    """One row: seconds of a count of `words` distinct words, each of which occurs once; the notes give the memory."""
    host_bytes = max(HOST_BYTES_PER_WORD * words, MIN_BYTES["host_bytes"])
    suite.say(f"{words:,} distinct words on {WORKERS} workers with {host_bytes:,} bytes of host memory in all")
    text, warm = folder / "distinct.txt", folder / "few.txt"
    total = write_distinct(text, words)
    write_distinct(warm, LINE_WORDS)
    executor = open_executor(ClusterConfig(device="cpu", workers=WORKERS))
    try:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            _count(warm, executor, Path(place), MemoryConfig())
            with _PeakMemory(executor.everywhere(os.getpid)) as memory:
                start = time.perf_counter()
                result = _count(text, executor, Path(place), MemoryConfig(host_bytes=host_bytes, spill_dir=place))
                seconds = time.perf_counter() - start
            _check(result, words, total)
    finally:
        executor.close()
    most = sorted(memory.most.values())
    suite.add(
        "cluster/distinct words",
        f"words={words} bytes={text.stat().st_size} host_bytes={host_bytes} workers={WORKERS}",
        [seconds],
        items=words,
        unit="words/s",
        notes=f"to Parquet, order 2 of ids; the workers take {' and '.join(f'{m:,}' for m in most)} bytes of memory at "
        f"most, {sum(most) / words:.0f} for each word in all; target {TARGET_BYTES_PER_WORD}",
    )
    text.unlink()


def write_distinct(path: Path, words: int) -> int:
    """Write a text of distinct words of DIGITS hexadecimal digits; return the sum of their values, modulo 2**64."""
    total = 0
    with open(path, "wb") as file:
        for first in range(0, words, LINE_WORDS * LINES_AT_ONCE):
            ids_W = np.arange(first, min(first + LINE_WORDS * LINES_AT_ONCE, words), dtype=np.uint64)
            values_W = (ids_W * np.uint64(FACTOR)) & np.uint64((1 << 4 * DIGITS) - 1)
            total += int(values_W.sum(dtype=np.uint64))
            text_WB = np.empty((len(ids_W), DIGITS + 1), np.uint8)
            digits = np.frombuffer(b"0123456789abcdef", np.uint8)
            for d in range(DIGITS):
                text_WB[:, d] = digits[(values_W >> np.uint64(4 * (DIGITS - 1 - d))) & np.uint64(15)]
            text_WB[:, DIGITS] = ord(" ")
            text_WB[LINE_WORDS - 1 :: LINE_WORDS, DIGITS] = text_WB[-1, DIGITS] = ord("\n")
            file.write(text_WB.tobytes())
    return total % (1 << 64)


def _count(text: Path, executor: Executor, place: Path, memory: MemoryConfig) -> Counts:
    config = count_job.CountConfig([str(text)], order=2, columns="ids")
    context = RunContext(executor, place / f"counts-{text.stem}", memory=memory)
    return read_counts(count_job.run(config, context).path)


def _check(counts: Counts, words: int, total: int) -> None:
    """Every word occurs once, and the words' values have the sum of the generated ones."""
    vocabulary, first = counts.vocabulary, len(SPECIALS)
    oracles.check_total(len(vocabulary) - first, words, "distinct words")
    oracles.check_total(int(vocabulary.counts_V[first:].max()), 1, "occurrences of a word")
    oracles.check_total(sum_of_values(vocabulary.data[vocabulary.offsets_V[first] :]), total, "values of the words")


def sum_of_values(text_B: np.ndarray) -> int:
    """Return the sum of the values of words of DIGITS hexadecimal digits one after the other, modulo 2**64."""
    total = 0
    shifts_D = 4 * np.arange(DIGITS, dtype=np.uint64)[::-1]
    for first in range(0, len(text_B), step := DIGITS * LINE_WORDS * LINES_AT_ONCE):
        digits_WD = text_B[first : first + step].reshape(-1, DIGITS)
        digits_WD = np.where(digits_WD >= ord("a"), digits_WD - (ord("a") - 10), digits_WD - ord("0"))
        total += int((digits_WD.astype(np.uint64) << shifts_D).sum(dtype=np.uint64))
    return total % (1 << 64)


class _PeakMemory(threading.Thread):
    """The peak memory of processes beyond their use at the start, without pages of files, which a system may drop."""

    def __init__(self, pids: Sequence[int]):
        super().__init__(daemon=True)
        self._before = {pid: _own_bytes(pid) for pid in pids}
        self.most = dict.fromkeys(pids, 0)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.005):
            for pid, before in self._before.items():
                self.most[pid] = max(self.most[pid], _own_bytes(pid) - before)

    def __enter__(self) -> _PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _own_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))
