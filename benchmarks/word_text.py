"""Words, orders 1 to 5: text to merged tables, tables to Parquet, and the whole beside collections.Counter."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from mgpu_ngram.benchmarks import oracles
from mgpu_ngram.benchmarks.corpora import zipf_text
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.timing import Timing, timing_of
from mgpu_ngram.benchmarks.word_codes import ORACLE_WORDS, ORDER, VOCABULARY
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.corpus import open_corpus
from mgpu_ngram.core.counts import read_counts
from mgpu_ngram.core.shards import words_at
from mgpu_ngram.core.tables import Table
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.engine.count import CountOptions, count_chunk, merge_part, split_chunk, unigram_table
from mgpu_ngram.engine.device import Stopwatch, free_bytes
from mgpu_ngram.engine.plan import choose
from mgpu_ngram.engine.tokenise import TokeniseOptions, tokenise
from mgpu_ngram.engine.vocabulary import Lexicon, merge_vocabularies, number_symbols
from mgpu_ngram.jobs import count as count_job
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.kernels.dispatch import to_host

ROUNDS = {"gpu": 5, "cpu": 3}
STAGES = ("read", "tokenise", "vocabulary", "count")  # "split" follows: cutting the tables into shards
WRITTEN_ROWS = 200_000_000  # as many as are needed to time writing
WORKERS = 2  # of the run beside Counter
COMPARED_ROWS = 100_000  # of each order's output beside Counter
TARGETS = {"text": 3e8, "rows": 2e7}  # tokens/s and rows/s on one H200 with 16 cores
TARGET_OVER_COUNTER = 10  # on 2 cores


@dataclass
class Counted:
    """A corpus counted by the engine in one chunk: what a run holds before it writes."""

    lexicon: Lexicon
    tables: list[Table]  # orders 2 and up; order 1 is the vocabulary's
    shards: dict[tuple[int, int], Table]
    seconds: dict[str, float]


def run(suite: Suite, tokens: int, expected_counts: list[np.ndarray]) -> None:
    """All measurements on one generated text. expected_counts: of its n-grams of each order, ascending."""
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-") as folder:
        path = Path(folder) / "corpus.txt"
        suite.say(f"writing a corpus of {tokens:,} words")
        start = time.perf_counter()
        size = zipf_text(path, tokens, VOCABULARY)
        suite.say(f"wrote {size:,} bytes in {time.perf_counter() - start:.1f} s")
        _check_beginning(suite, path)
        counted = _text_to_tables(suite, path, tokens, size, expected_counts)
        _tables_to_parquet(suite, counted, Path(folder))
        del counted
        suite.release()
        if suite.device == "cpu":
            _beside_counter(suite, path, tokens, Path(folder))


def count_file(path: Path, device: str) -> Counted:
    """Text to the tables of all shards, step by step as jobs.count.run does it, in this process and one chunk."""
    watch = Stopwatch(device)
    corpus = open_corpus([str(path)])
    [chunk] = corpus.chunks(max(1, corpus.size_bytes))
    tokenised = tokenise(chunk, TokeniseOptions("word", ORDER, device=device, read_threads=cpu_cores()))
    watch.lap("tokenise")
    lexicon = number_symbols(merge_vocabularies(tokenised.vocabulary), "word", False, 0, device)
    watch.lap("vocabulary")
    plans = choose(ORDER, len(lexicon.vocabulary), lexicon.tokens, "auto", 1, device, free_bytes(device), "word")
    counted = count_chunk(tokenised, lexicon, CountOptions(tuple(plans[1:]), device=device))
    watch.lap("count")
    shards = merge_part(split_chunk(counted, lexicon, 1), device)
    watch.lap("split")
    read = tokenised.vocabulary.seconds.get("read", 0.0)
    seconds = {"read": read, **watch.seconds, "tokenise": watch.seconds["tokenise"] - read}
    return Counted(lexicon, counted.tables, shards, seconds)


def _text_to_tables(
    suite: Suite, path: Path, tokens: int, size_bytes: int, expected_counts: list[np.ndarray]
) -> Counted:
    suite.say("words: text in the page cache to tables")
    counted = count_file(path, suite.device)
    tables = [unigram_table(counted.lexicon), *counted.tables]
    for n, (table, expected) in enumerate(zip(tables, expected_counts, strict=True), 1):
        _check_counts(to_host(table.counts), expected, f"text, order {n}")
        in_shards = sum(int(t.counts.sum()) for (order, _), t in counted.shards.items() if order == n)
        oracles.check_total(in_shards, int(expected.sum()) if n > 1 else 0, f"text, order {n} in shards")
    rounds = []
    for _ in range(ROUNDS[suite.device]):
        del tables, counted
        counted = count_file(path, suite.device)
        tables = counted.tables
        rounds.append(counted.seconds)
    sizes = f"tokens={tokens} bytes={size_bytes} n=1..{ORDER}"
    row = {"items": tokens, "unit": "tokens/s"}
    suite.add(
        "words/text to tables", sizes, timing_of([sum(s[stage] for stage in STAGES) for s in rounds]), **row,
        bytes_moved=size_bytes, ceiling="pinned host to device" if suite.device == "gpu" else "read",
        target=TARGETS["text"] if suite.device == "gpu" else None, notes="one sorted table per order; page cache to device",
    )  # fmt: skip
    suite.add(
        "words/text to shards",
        sizes,
        timing_of([sum(s.values()) for s in rounds]),
        **row,
        notes="tables cut into shards",
    )
    for stage in (*STAGES, "split"):
        suite.add(f"words/stage {stage}", sizes, timing_of([s[stage] for s in rounds]), **row)
    return counted


def _check_counts(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Ids differ from the generator's codes, so counts are compared in ascending order."""
    if not np.array_equal(np.sort(found), expected):
        raise WrongResult(
            f"{what}: the counts of {len(found):,} n-grams are not those of {len(expected):,} generated; not timed"
        )


def _check_beginning(suite: Suite, path: Path) -> None:
    """The first lines of the text, beside collections.Counter, n-gram by n-gram."""
    with open(path, "rb") as file:
        lines = file.readlines(6 * ORACLE_WORDS)
    head = path.with_name("head.txt")
    head.write_bytes(b"".join(lines))
    counted = count_file(head, suite.device)
    tables = [unigram_table(counted.lexicon), *counted.tables]
    for table, counter in zip(tables, oracles.count_lines(lines, ORDER), strict=True):
        if (
            dict(zip(_ngrams(table, counted.lexicon.vocabulary), to_host(table.counts).tolist(), strict=True))
            != counter
        ):
            raise WrongResult(f"text, order {table.order}: n-grams differ from those of collections.Counter; not timed")


def _ngrams(table: Table, vocabulary: Vocabulary) -> list[tuple[bytes, ...]]:
    words = [vocabulary.symbol(v) for v in range(len(vocabulary))]
    keys = to_host(table.keys)
    columns = [words_at(keys, table.order, table.bits, i).tolist() for i in range(table.order)]
    return [tuple(words[code - 1] for code in codes) for codes in zip(*columns, strict=True)]


def _tables_to_parquet(suite: Suite, counted: Counted, folder: Path) -> None:
    """Write shards as a run does, each order and shard its own file, with all cores."""
    suite.say("words: tables to Parquet")
    out = folder / "parquet"
    for n in range(1, ORDER + 1):
        (out / f"order={n}").mkdir(parents=True)
    shards, rows = {}, 0
    for s in sorted({s for _, s in counted.shards}):
        mine = {key: t for key, t in counted.shards.items() if key[1] == s}
        if not shards or rows + sum(map(len, mine.values())) <= WRITTEN_ROWS:
            shards |= mine
            rows += sum(map(len, mine.values()))
    config, cores = count_job.CountConfig([], ORDER), cpu_cores()
    seconds = []
    for again in range(2):  # the first round compiles
        part = shards if again else {key: _head(t) for key, t in shards.items()}
        start = time.perf_counter()
        count_job._write_part(count_job._Merged(part, {}), counted.lexicon, str(out), config, cores)
        seconds.append(time.perf_counter() - start)
    written = sum(file.stat().st_size for file in out.rglob("*.parquet"))
    _check_parquet(shards, counted.lexicon.vocabulary, out)
    suite.add(
        "words/tables to Parquet", f"rows={rows} n=2..{ORDER}", timing_of(seconds[1:]), items=rows, unit="rows/s",
        bytes_moved=written, target=TARGETS["rows"] if suite.device == "gpu" else None,
        notes=f"{len(shards)} files of {len(counted.shards)}, {cores} cores, page cache; bytes are those of the files",
    )  # fmt: skip


def _head(table: Table) -> Table:
    return Table(table.keys[:, :10], table.counts[:10], table.order, table.bits)


def _check_parquet(shards: dict[tuple[int, int], Table], vocabulary: Vocabulary, out: Path) -> None:
    for (n, shard), table in shards.items():
        path = out / f"order={n}" / f"part-{shard:05d}.parquet"
        oracles.check_total(pq.read_metadata(path).num_rows, len(table), f"rows of {path.name}, order {n}")
        batch = next(pq.ParquetFile(path).iter_batches(1000), None)
        if batch is None:
            continue
        head = Table(table.keys[:, :1000], to_host(table.counts[:1000]), n, table.bits)
        ngrams = [b" ".join(ngram).decode() for ngram in _ngrams(head, vocabulary)]
        if batch["ngram"].to_pylist() != ngrams or batch["count"].to_pylist() != head.counts.tolist():
            raise WrongResult(f"the first rows of {path.name}, order {n}, are not the table's")


class _Phases(Progress):
    """Notes when each phase of a run begins."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    def start(self, phase: str, total: int, unit: str = "") -> None:
        self.began[phase] = time.perf_counter()


def _beside_counter(suite: Suite, path: Path, tokens: int, folder: Path) -> None:
    """A whole run with two workers, Parquet and all, beside collections.Counter in one process."""
    suite.say("words: a whole run beside collections.Counter")
    start = time.perf_counter()
    with open(path, "rb") as file:
        counters = oracles.count_lines(file, ORDER)
    counter_seconds = time.perf_counter() - start
    config, whole, unwritten = count_job.CountConfig([str(path)], ORDER), [], []
    for again in range(1 + ROUNDS[suite.device]):
        phases, executor = _Phases(), LocalExecutor(suite.device, WORKERS)
        start = time.perf_counter()
        result = count_job.run(config, executor, folder / "counts", overwrite=True, progress=phases)
        end = time.perf_counter()
        executor.close()
        if again == 0:
            _check_run(result.path, counters)
        else:
            whole.append(end - start)
            unwritten.append(phases.began["write"] - start)
    sizes = f"tokens={tokens} n=1..{ORDER} workers={WORKERS}"
    row = {"items": tokens, "unit": "tokens/s", "baseline": "collections.Counter", "baseline_seconds": counter_seconds}
    target = f"target {TARGET_OVER_COUNTER}x; "
    suite.add("words/run to Parquet", sizes, timing_of(whole), **row, notes=target + "Counter writes nothing")
    suite.add("words/run without writing", sizes, timing_of(unwritten), **row, notes=target + "up to the merged tables")
    one = Timing(1, counter_seconds, counter_seconds, counter_seconds)
    suite.add("words/peer collections.Counter", f"tokens={tokens} n=1..{ORDER}", one, items=tokens, unit="tokens/s")


def _check_run(path: Path, counters: list[Counter]) -> None:
    """Distinct and total counts of every order, and rows from all over it, are Counter's."""
    counts = read_counts(path)
    for n, counter in enumerate(counters, 1):
        table = counts.order(n).to_arrow()
        oracles.check_total(len(table), len(counter), f"distinct n-grams of a run, order {n}")
        oracles.check_total(int(np.asarray(table["count"]).sum()), counter.total(), f"n-grams of a run, order {n}")
        some = table.take(np.arange(0, len(table), max(1, len(table) // COMPARED_ROWS)))
        for ngram, found in zip(some["ngram"].to_pylist(), some["count"].to_pylist(), strict=True):
            if counter[tuple(ngram.encode().split(b" "))] != found:
                raise WrongResult(f"a run counts {ngram!r} {found} times, collections.Counter does not; not timed")
