"""`mgpu-ngram bench scale`: the time of a token as texts grow beyond the memory of a device, and as memory shrinks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from mgpu_ngram.benchmarks import scale_cores
from mgpu_ngram.benchmarks.cluster.words import ZipfCorpus
from mgpu_ngram.benchmarks.count.tables import count_to_tables
from mgpu_ngram.benchmarks.harness.machine_rates import write_plainly
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult, open_suite
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.corpora import zipf_texts
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.run import EstimateResult

ORDER, VOCABULARY, PRUNE = 5, 8_000_000, [0, 0, 1, 1, 1]
TOKENS = {"gpu": 1_000_000_000, "cpu": 500_000}
MIN_TOKENS = 2_000
FILES = 4  # files of the smallest text
MULTIPLES = (1, 2, 4, 8)  # sizes of the text
TARGETS = {2: 1.3, 4: 1.4, 8: 1.5}  # of a token's time at the smallest size, on an H200 with 1 G tokens
LIMITS: dict[str, dict[int, float | None]] = {  # bytes -> target, of the unlimited time
    "gpu": {20 * 10**9: 1.6, 8 * 10**9: 2.5},
    "cpu": {1 << 28: None},
}
MANY_WORDS = {"gpu": 100_000_000, "cpu": 1_000_000}  # a vocabulary that is many times larger
CARD = 4, 24 * 10**9  # size of the text, as many words as English Wikipedia has, and bytes of a common card
COUNTED_MULTIPLES = (1, 2, 4)  # sizes of the text that is only counted
COUNT_TARGETS = {4: 1.4}  # of a token's time at the smallest size
MIN_COUNT, COUNTED_PER_SECOND = 3, 100e6
ROUNDS, ENOUGH_SECONDS = 3, 45.0  # no further round starts after this time
FLAGS = {"tokens", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "scale/text to model": ("jobs.estimate.run", "jobs.estimate.text_parts"),
    "scale/counts": ("jobs.count.run", "jobs.count.window_files"),
    "scale/text to ARPA": ("jobs.estimate.run",),
    "scale/peer": (),
}
MODEL, WITHIN = "scale/text to model", "scale/text to model within"
OF_MANY_WORDS = "scale/text to model of many words"
TO_FILE, WRITING = "scale/text to model file", "scale/text to model file, writing"
PLAIN_WRITES = "plain writes to the disk"
WRITING_SHARE = 0.9  # of the rate of plain writes
TABLES, FILES_OF_COUNTS = "scale/counts to tables", "scale/counts to Parquet"


@dataclass
class ScaleBench:
    """The rows, the words of the smallest text, a folder for texts, and the files there: {(files of the smallest text,
    vocabulary): files of the greatest text}.
    """

    suite: Suite
    tokens: int
    folder: Path
    written: dict[tuple[int, int], list[tuple[Path, list[int]]]] = field(default_factory=dict)

    def corpus(self, multiple: int, files: int = FILES, vocabulary: int = 0) -> ZipfCorpus:
        """Return the first `multiple` x `tokens` words of one text, in `files` files for each multiple. Writes those
        that are not there.

        vocabulary  most distinct words; 0: VOCABULARY
        """
        tokens, of_file, kind = multiple * self.tokens, -(-self.tokens // files), (files, vocabulary or VOCABULARY)
        self.suite.say(f"a text of {tokens:,} words")
        full = [made for made in self.written.get(kind, []) if made[1][0] == of_file][: tokens // of_file]
        here = zipf_texts(self.folder, tokens, of_file, kind[1], ORDER, full)
        if len(here) > len(full):
            self.written = {kind: here}  # texts of other files have the same names
        return ZipfCorpus(self.folder, here)


def sizes(bench: ScaleBench) -> None:
    """Rows: models of texts of several sizes, without writing them; the time of a token over that of the smallest."""
    smallest = 0.0
    for multiple in MULTIPLES:
        corpus = bench.corpus(multiple)
        rounds, tokens = _rounds(bench.suite, corpus, MemoryConfig(), bench.folder), corpus.totals[0]
        of_token = median(rounds.seconds) / tokens
        smallest = smallest or of_token
        aim = TARGETS.get(multiple) if bench.suite.device == "gpu" else None
        bench.suite.add(
            MODEL, f"{corpus.sizes} V={VOCABULARY}", rounds.seconds, items=tokens, unit=TOKENS_PER_SECOND,
            target=aim and 1 / (aim * smallest),
            notes=f"{of_token / smallest:.2f} x the time of a token of the smallest text; {rounds.notes}",
        )  # fmt: skip


def memory(bench: ScaleBench) -> None:
    """Rows: the model of the smallest text with less memory, beside all memory; on a GPU, a larger one, too."""
    suite, corpus = bench.suite, bench.corpus(1)
    free = _rounds(suite, corpus, MemoryConfig(), bench.folder)
    unlimited = median(free.seconds)
    for limit, aim in LIMITS[suite.device].items():
        suite.say(f"within {limit:,} bytes")
        limits = MemoryConfig(device_bytes=limit) if suite.device == "gpu" else MemoryConfig(host_bytes=limit)
        rounds = _rounds(suite, corpus, limits, bench.folder)
        if rounds.results[0].statistics != free.results[0].statistics:
            raise WrongResult(f"within {limit:,} bytes the model is another one; not timed")
        suite.add(
            WITHIN, f"{corpus.sizes} V={VOCABULARY} {suite.device}_bytes={limit}",
            rounds.seconds, items=corpus.totals[0], unit=TOKENS_PER_SECOND,
            target=aim and corpus.totals[0] / (aim * unlimited), baseline="all memory", baseline_seconds=unlimited,
            notes=rounds.notes,
        )  # fmt: skip
    if suite.device == "gpu":
        multiple, limit = CARD
        corpus = bench.corpus(multiple)
        suite.say(f"within {limit:,} bytes")
        rounds = _rounds(suite, corpus, MemoryConfig(device_bytes=limit), bench.folder)
        suite.add(
            WITHIN, f"{corpus.sizes} V={VOCABULARY} gpu_bytes={limit}", rounds.seconds,
            items=corpus.totals[0], unit=TOKENS_PER_SECOND, notes=rounds.notes,
        )  # fmt: skip


def words(bench: ScaleBench) -> None:
    """Rows: the model of a text of many distinct words, within all memory and each limit."""
    suite, vocabulary = bench.suite, MANY_WORDS[bench.suite.device]
    corpus = bench.corpus(1, vocabulary=vocabulary)
    for limit in (None, *LIMITS[suite.device]):
        suite.say(f"within {limit or 'all'} bytes")
        limits = MemoryConfig(device_bytes=limit) if suite.device == "gpu" else MemoryConfig(host_bytes=limit)
        rounds = _rounds(suite, corpus, limits, bench.folder)
        suite.add(
            OF_MANY_WORDS, f"{corpus.sizes} V={vocabulary} {suite.device}_bytes={limit or 'all'}",
            rounds.seconds, items=corpus.totals[0], unit=TOKENS_PER_SECOND,
            notes=f"{rounds.results[0].types:,} distinct words; {rounds.notes}",
        )  # fmt: skip


def written(bench: ScaleBench) -> None:
    """Rows: the smallest text to a model file, which is on the disk at the end; of this, the writing alone, beside
    plain writes of as many bytes by turns.
    """
    suite, corpus = bench.suite, bench.corpus(1)
    path, results, plain_seconds = bench.folder / "written.safetensors", list[EstimateResult](), list[float]()
    config = EstimateConfig(corpus.paths, order=ORDER, prune=PRUNE, discount_fallback=[])
    executor = LocalExecutor(suite.device)
    try:
        for _ in range(1 + ROUNDS):
            results.append(estimate.run(config, RunContext(executor, path, single_file=True)))
            path.unlink()
            suite.release()
            plain = write_plainly(bench.folder / "plain", results[0].size_bytes, cpu_cores(), durable=True)
            plain_seconds.append(plain)
    finally:
        executor.close()
    del results[0], plain_seconds[0]  # the first round warms up
    size_bytes, ngrams = results[0].size_bytes, sum(results[0].statistics.kept.values())
    suite.ceilings[PLAIN_WRITES] = size_bytes / median(plain_seconds)
    sizes = f"{corpus.sizes} V={VOCABULARY}"
    suite.add(
        TO_FILE, sizes, [result.wall_seconds for result in results], items=corpus.totals[0], unit=TOKENS_PER_SECOND,
        notes=f"pruned {PRUNE}: {ngrams:,} n-grams; a file of {size_bytes:,} bytes",
    )  # fmt: skip
    suite.add(
        WRITING, sizes, [result.seconds["write"] for result in results], items=size_bytes, unit="B/s",
        bytes_moved=size_bytes, ceiling=PLAIN_WRITES,
        target=WRITING_SHARE * suite.ceilings[PLAIN_WRITES] if suite.device == "gpu" else None,
        notes=f"to {bench.folder.parent}; plain writes took {', '.join(f'{s:.2f}' for s in plain_seconds)} s",
    )  # fmt: skip


def tables(bench: ScaleBench) -> None:
    """Rows: counts of texts of several sizes up to their tables; the time of a token over that of the smallest."""
    suite, smallest = bench.suite, 0.0
    for multiple in COUNTED_MULTIPLES:
        corpus = bench.corpus(multiple)
        executor = LocalExecutor(suite.device)
        seconds: list[float] = []
        try:
            while _goes_on(seconds):
                counted = count_to_tables(corpus.paths, executor, bench.folder)
                seconds.append(counted.seconds)
                del counted  # before the next round needs the memory
                suite.release()
        finally:
            executor.close()
        of_token = median(seconds[1:]) / corpus.totals[0]
        smallest = smallest or of_token
        aim = COUNT_TARGETS.get(multiple) if suite.device == "gpu" else None
        suite.add(
            TABLES, f"{corpus.sizes} V={VOCABULARY}", seconds[1:], items=corpus.totals[0], unit=TOKENS_PER_SECOND,
            target=aim and 1 / (aim * smallest),
            notes=f"orders 1 to {ORDER}; {of_token / smallest:.2f} x the time of a token of the smallest text",
        )  # fmt: skip


def files(bench: ScaleBench) -> None:
    """Rows: counts of at least MIN_COUNT to Parquet files of text, for texts of several sizes."""
    suite = bench.suite
    for multiple in COUNTED_MULTIPLES:
        corpus, results = bench.corpus(multiple), list[count.CountResult]()
        executor = LocalExecutor(suite.device)
        config = CountConfig(corpus.paths, order=ORDER, min_count=MIN_COUNT)
        try:
            while len(results) <= ROUNDS and (
                len(results) < 2 or sum(r.wall_seconds for r in results) < ENOUGH_SECONDS
            ):
                results.append(count.run(config, RunContext(executor, bench.folder / "counts", overwrite=True)))
                suite.release()
        finally:
            executor.close()
        found = [results[0].manifest["orders"][str(n)]["total"] for n in range(1, ORDER + 1)]
        if found != list(corpus.totals):
            raise WrongResult(f"the orders have {found} n-grams, not {corpus.totals}; not timed")
        written = sum(file["size_bytes"] for file in results[0].manifest["files"].values())
        suite.add(
            FILES_OF_COUNTS, f"{corpus.sizes} V={VOCABULARY} min_count={MIN_COUNT}",
            [result.wall_seconds for result in results[1:]], items=corpus.totals[0], unit=TOKENS_PER_SECOND,
            target=COUNTED_PER_SECOND if suite.device == "gpu" and multiple == COUNTED_MULTIPLES[-1] else None,
            notes=f"{written:,} bytes of files; at most {results[1].peak_device_bytes / 1e9:.1f} GB of a device, "
            f"{results[1].peak_host_bytes / 1e9:.1f} GB of host memory",
        )  # fmt: skip


def cores(bench: ScaleBench) -> None:
    """Rows of CPU cores alone: text to an ARPA file as a command, within limits of memory, beside lmplz."""
    if bench.suite.device == "gpu":
        bench.suite.say("the part `cores` has no rows of a GPU; give --device cpu")
        return
    corpus = bench.corpus(1, files=1)
    scale_cores.cores(bench.suite, corpus, f"{corpus.sizes} V={VOCABULARY}", PRUNE)


PARTS = {
    "sizes": sizes, "memory": memory, "words": words, "written": written, "tables": tables, "files": files,
    "cores": cores,
}  # fmt: skip


def _goes_on(seconds: Sequence[float]) -> bool:
    """Return whether another round follows those that took `seconds`; the first one warms up."""
    return len(seconds) <= ROUNDS and (len(seconds) < 2 or sum(seconds) < ENOUGH_SECONDS)


class Rounds(NamedTuple):
    """Models of one text, made several times, and the bytes that each round wrote to disks."""

    results: list[EstimateResult]
    written_bytes: int

    @property
    def seconds(self) -> list[float]:
        return [result.wall_seconds for result in self.results]

    @property
    def notes(self) -> str:
        first = self.results[0]
        kept, device, host = sum(first.statistics.kept.values()), first.peak_device_bytes, first.peak_host_bytes
        return (
            f"pruned {PRUNE}: {kept:,} n-grams; at most {device / 1e9:.1f} GB of a device, {host / 1e9:.1f} GB of host "
            f"memory; {self.written_bytes / 1e9:.1f} GB written to files"
        )


def _rounds(suite: Suite, corpus: ZipfCorpus, limits: MemoryConfig, folder: Path) -> Rounds:
    """Make a model several times, after a round that warms up."""
    config = EstimateConfig(corpus.paths, order=ORDER, prune=PRUNE, discount_fallback=[])
    executor = LocalExecutor(suite.device)
    results: list[EstimateResult] = []
    written_bytes: list[int] = []  # by this process, after each round
    try:
        while _goes_on([result.wall_seconds for result in results]):
            source, place = open_corpus(corpus.paths), folder / "model"
            context = RunContext(executor, place, memory=limits, overwrite=True)
            results.append(estimate.estimated(config, source, context, place, lambda model, result: result))
            written_bytes.append(psutil.Process().io_counters().write_bytes)
            suite.release()
    finally:
        executor.close()
    if results[0].tokens != corpus.totals[0]:
        raise WrongResult(f"a model was made of {results[0].tokens:,} words, not {corpus.totals[0]:,}; not timed")
    return Rounds(results[1:], (written_bytes[-1] - written_bytes[0]) // len(results[1:]))


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure how the time of a token grows, write scale.csv to the folder of results, and return the rows.

    tokens  words of the smallest text; the greatest has 8 times as many
    only    parts to measure
    """
    parts: Sequence[str] = options.parts(PARTS)
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    suite = open_suite("scale", options)
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = ScaleBench(suite, tokens, Path(place))
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    return [asdict(row) for row in suite.rows]
