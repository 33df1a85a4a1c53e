"""Words, orders 1 to 5: text in the page cache to merged tables on the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mgpu_ngram.benchmarks.count.words_codes import ORACLE_WORDS, ORDER
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.engine.count.count_chunk import CountOptions, count_chunk, unigram_tables
from mgpu_ngram.engine.count.merge_vocabularies import merge_vocabularies
from mgpu_ngram.engine.count.number_symbols import number_symbols
from mgpu_ngram.engine.count.sorted_runs import SortedRun
from mgpu_ngram.engine.count.token_streams import TokeniseOptions
from mgpu_ngram.engine.count.tokenise import tokenise
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.kernels.dispatch import array_module, to_host

ROUNDS = {"gpu": 5, "cpu": 3}
STAGES = ("read", "tokenise", "vocabulary", "count")  # up to one table per order; then "split", into shards
TARGET = 3e8  # tokens/s on one H200


@dataclass
class Counted:
    """A corpus counted by the engine in one chunk, before anything is written."""

    vocabulary: Vocabulary
    run: SortedRun  # orders 2 and up; order 1 is the vocabulary's
    num_shards: int
    seconds: dict[str, float]

    @property
    def tables(self) -> list[ShardedTable]:
        """The tables of the run, by order."""
        return [table for _, [table] in sorted(self.run.tables.items())]


def count_file(path: Path, budget: Budget) -> Counted:
    """Text to tables cut into shards, step by step as jobs.count.run does it, in this process and one chunk."""
    device = budget.device
    watch = Stopwatch(device)
    corpus = open_corpus([str(path)])
    [chunk] = corpus.chunks(max(1, corpus.size_bytes))
    reading = TokeniseOptions("word", ORDER, device=device, read_threads=cpu_cores(), budget=budget)
    tokenised = tokenise(chunk, reading)
    watch.lap("tokenise")
    lexicon, vocabulary = number_symbols(merge_vocabularies(tokenised.vocabulary), "word", False, 0, device)
    watch.lap("vocabulary")
    run = count_chunk(chunk, tokenised, lexicon, reading, CountOptions(budget, ORDER))
    seconds = add_seconds(watch.seconds, run.seconds)
    seconds["split"] = seconds.pop("reduce")
    waited = tokenised.vocabulary.seconds  # for the disk and the copy to the device
    seconds["read"] = waited["read"] + waited.get("copy", 0.0)
    seconds["tokenise"] -= seconds["read"]
    return Counted(vocabulary, run, lexicon.num_shards, seconds)


def run(suite: Suite, path: Path, tokens: int, expected_counts: list[np.ndarray]) -> Counted:
    """Measure one text, whose n-grams of each order have `expected_counts`, ascending; return its counts."""
    suite.say("words: text in the page cache to tables")
    _check_beginning(suite, path)
    budget = suite.budget()
    counted = count_file(path, budget)
    _check(counted, expected_counts)
    rounds = []
    for _ in range(ROUNDS[suite.device]):
        del counted
        counted = count_file(path, budget)
        rounds.append(counted.seconds)
    size_bytes = path.stat().st_size
    sizes = f"tokens={tokens} bytes={size_bytes} n=1..{ORDER}"
    suite.add(
        "words/text to tables",
        sizes,
        [sum(seconds[stage] for stage in STAGES) for seconds in rounds],
        items=tokens,
        unit=TOKENS_PER_SECOND,
        bytes_moved=size_bytes,
        ceiling="pinned host to device" if suite.device == "gpu" else "read",
        target=TARGET if suite.device == "gpu" else None,
        notes="from the page cache to a sorted table per order on the device",
    )
    whole = [sum(seconds.values()) for seconds in rounds]
    suite.add(
        "words/text to shards", sizes, whole, items=tokens, unit=TOKENS_PER_SECOND,
        notes="and the tables cut into shards",
    )  # fmt: skip
    for stage in (*STAGES, "split"):
        seconds = [one[stage] for one in rounds]
        suite.add(f"words/stage {stage}", sizes, seconds, items=tokens, unit=TOKENS_PER_SECOND)
    return counted


def _check(counted: Counted, expected_counts: list[np.ndarray]) -> None:
    """Ids are not the generator's codes, so of a large text only counts are compared, in ascending order."""
    tables: list[Table | ShardedTable] = [*unigram_tables(counted.vocabulary), *counted.tables]
    for n, (table, expected) in enumerate(zip(tables, expected_counts, strict=True), 1):
        if not np.array_equal(to_host(array_module(table.counts).sort(table.counts)), expected):
            raise WrongResult(f"text, order {n}: counts differ from those of the generated stream; not timed")
    for table in counted.tables:
        oracles.check_total(int(table.ends_S[-1]), len(table), f"rows of order {table.order} in shards")


def _check_beginning(suite: Suite, path: Path) -> None:
    """The first lines of the text, beside collections.Counter, n-gram by n-gram."""
    with open(path, "rb") as file:
        lines = file.readlines(6 * ORACLE_WORDS)
    head = path.with_name("head.txt")
    head.write_bytes(b"".join(lines))
    counted = count_file(head, suite.budget())
    tables: list[Table | ShardedTable] = [*unigram_tables(counted.vocabulary), *counted.tables]
    for table, counter in zip(tables, oracles.count_lines(lines, ORDER), strict=True):
        ngrams = oracles.table_ngrams(table, counted.vocabulary)
        if dict(zip(ngrams, to_host(table.counts).tolist(), strict=True)) != counter:
            raise WrongResult(f"text, order {table.order}: n-grams differ from those of collections.Counter; not timed")
