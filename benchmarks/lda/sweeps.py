"""What the parts of `bench lda` share: a corpus on a device, timed sweeps, and checks of the counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.lda.generated_corpus import SHAPES, CorpusShape, generate
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.topic_model import Priors
from mgpu_ngram.engine.lda.blocks import Room
from mgpu_ngram.engine.lda.documents import Block, CorpusPart
from mgpu_ngram.engine.lda.sweep import Group, Sampler, document_counts, make_sampler, start_topics, sweep, word_topics
from mgpu_ngram.engine.memory.device import synchronize
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.sample_topics import Draw, sample_topics

BETA = 0.01
SEED = 1
SWEEPS = {"gpu": 100, "cpu": 10}
WARM_UP_TOKENS = 2_000
STEPS = ("weights", "sample", "sum counts", "count topics")


@dataclass
class LdaBench:
    """What all parts measure with.

    tokens    of a corpus at most; full corpora have more
    clusters  numbers of workers
    data      a real corpus, see `bench`; None: generated
    folder    for files
    """

    suite: Suite
    tokens: int
    clusters: list[int]
    data: Path | None
    folder: Path
    bags: dict[CorpusShape, Bags] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of the sweeps of a corpus, for several parts

    def shape(self, name: str) -> CorpusShape:
        return SHAPES[name].scaled(self.tokens)

    def is_full(self, shape: CorpusShape) -> bool:
        """Return whether targets hold: for whole corpora on a GPU."""
        return self.suite.device == "gpu" and shape == SHAPES[shape.name]

    def corpus(self, shape: CorpusShape) -> Bags:
        """Return the generated corpus of a shape; the last one is kept."""
        if shape not in self.bags:
            self.bags.clear()
            self.suite.say(f"generating {shape}")
            self.bags[shape] = generate(shape, SEED, self.suite.xp)
            self.suite.release()
        return self.bags[shape]


class Alone:
    """A group of one device."""

    rank, size = 0, 1

    def all_reduce(self, array: Any) -> Any:
        return array

    def all_reduce_async(self, array: Any, out: Any = None) -> Any:
        if out is None:
            return EndedSum(array)
        out[...] = array
        return EndedSum(out)


@dataclass(frozen=True)
class EndedSum:
    """A sum that has ended."""

    array: Any

    def wait(self) -> Any:
        return self.array

    hold_stream = wait


ALONE = Alone()


def priors_of(num_topics: int) -> Priors:
    """Return the priors of the paper: alpha 50 / K, beta 0.01."""
    return Priors(np.full(num_topics, 50 / num_topics), BETA)


def open_sampler(
    bags: Bags | Sequence[CorpusPart], num_topics: int, device: str, group: Group = ALONE, first: int = 0,
    seed: int = SEED, threads: int | None = None, room: Room | None = None,
) -> Sampler:  # fmt: skip
    """Return documents, or some parts of them, on the device, with random topics.

    first    number of document 0 in the corpus
    threads  of a CPU; None: one for each core
    """
    parts = [CorpusPart.of(group.rank, first, bags)] if isinstance(bags, Bags) else bags
    threads = 1 if device == "gpu" else threads or cpu_cores()
    sampler = make_sampler(parts, parts[0].load().num_words, num_topics, device, threads, room)
    start_topics(sampler, group, seed)
    return sampler


def blocks_of(sampler: Sampler) -> list[Block]:
    return list(sampler.blocks.stored())


@cache
def warm_up(num_topics: int, device: str) -> None:
    """Compile the kernels of a sweep."""
    sampler = open_sampler(generate(SHAPES["KOS"].scaled(WARM_UP_TOKENS)), num_topics, device)
    sweep(sampler, ALONE, priors_of(num_topics), SEED)


def timed_sweeps(
    sampler: Sampler, sweeps: int, group: Group = ALONE, exclude_self: bool = True, seed: int = SEED
) -> list[float]:
    """Sweep so often; return the seconds of each sweep, without those of the compiler."""
    warm_up(sampler.num_topics, sampler.device)
    seconds, priors = [], priors_of(sampler.num_topics)
    synchronize(sampler.device)
    for _ in range(sweeps):
        begin = time.perf_counter()
        sweep(sampler, group, priors, seed, exclude_self)
        synchronize(sampler.device)
        seconds.append(time.perf_counter() - begin)
    return seconds


@dataclass
class Staged:
    """Sweeps with the time of each step.

    seconds  of each of STEPS, over all sweeps
    changed  tokens that changed their topic
    read     entries of documents that `sample_topics` read, once for each pair
    rows     entries of all documents
    """

    seconds: dict[str, float] = field(default_factory=dict)
    changed: int = 0
    read: int = 0
    rows: int = 0


def staged_sweeps(sampler: Sampler, sweeps: int, seed: int = SEED) -> Staged:
    """Sweep so often on one device as `engine.lda.sweep.sweep` does, step by step."""
    warm_up(sampler.num_topics, sampler.device)
    priors, done, blocks = priors_of(sampler.num_topics), Staged(), blocks_of(sampler)
    for _ in range(sweeps):
        for block in blocks:
            size_D = block.documents.rows_D2[:, 1]
            done.read += int(size_D[block.pairs.document_P].sum(dtype=np.int64))
            done.rows += int(size_D.sum(dtype=np.int64))
        watch = Stopwatch(sampler.device)
        words = word_topics(sampler.counts_VZ, priors)
        watch.lap("weights")
        changed = []
        for block in blocks:
            draw = Draw(seed, sampler.sweep + 1, block.first, True)
            changed += sampler.each(
                sample_topics, [(block.documents, pairs, words, sampler.local_VZ, draw) for pairs in block.threads]
            )
        watch.lap("sample")
        sampler.counts_VZ[...] = sampler.local_VZ
        watch.lap("sum counts")
        sampler.blocks.count_topics(1 if sampler.device == "gpu" else sampler.threads)
        watch.lap("count topics")
        sampler.sweep += 1
        done.changed += sum(int(number[0]) for number in changed)
        done.seconds = {step: done.seconds.get(step, 0.0) + watch.seconds[step] for step in STEPS}
    return done


def nbytes(sampler: Sampler) -> tuple[int, int]:
    """Return the bytes of the documents on the device, and of the two tables of counts."""
    arrays = [array for block in blocks_of(sampler) for array in (*block.documents, *block.pairs)]
    return sum(array.nbytes for array in arrays), sampler.counts_VZ.nbytes + sampler.local_VZ.nbytes


def check_counts(sampler: Sampler, bags: Bags) -> None:
    """Raise WrongResult unless words and documents have as many tokens as in the corpus, and topics agree with both."""
    word_V = np.bincount(bags.words_P, bags.counts_P, bags.num_words).astype(np.int64)
    _check_equal(to_host(sampler.counts_VZ.sum(1, dtype=np.int64)), word_V, "words")
    lengths, topic_Z, xp = [], np.zeros(sampler.num_topics, np.int64), array_module(sampler.counts_VZ)
    for block in blocks_of(sampler):
        length_D = np.zeros(len(block.documents.rows_D2), np.int64)
        for document_E, topic_E, count_E in document_counts(block, sampler.num_topics):
            length_D += to_host(xp.bincount(document_E, count_E, len(length_D))).astype(np.int64)
            topic_Z += to_host(xp.bincount(topic_E, count_E, sampler.num_topics)).astype(np.int64)
        lengths.append(length_D)
    _check_equal(np.concatenate(lengths), bags.lengths_D(), "documents")
    _check_equal(to_host(sampler.counts_VZ.sum(0, dtype=np.int64)), topic_Z, "topics")


def _check_equal(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    if not np.array_equal(found, expected):
        wrong = int((found != expected).sum()) if found.shape == expected.shape else len(expected)
        raise WrongResult(
            f"{wrong:,} of {len(expected):,} {what} have other counts than tokens, {int(found.sum()):,} beside "
            f"{int(expected.sum()):,}; not timed"
        )


def fingerprint(sampler: Sampler) -> int:
    """Return a number that differs where counts differ, but for chance: the same on all devices."""
    xp = array_module(sampler.counts_VZ)
    weight_Z = xp.arange(1, sampler.num_topics + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    row_V = _row_sums(sampler.counts_VZ, weight_Z)
    weight_V = xp.arange(1, len(row_V) + 1, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    return int((row_V * weight_V).sum())


def _row_sums(counts_VZ: Any, weight_Z: Any, rows: int = 4096) -> Any:
    """Return the weighted sums of rows, some rows at once: a product of uint64 would take twice the table's bytes."""
    xp = array_module(counts_VZ)
    parts = [(counts_VZ[v : v + rows] * weight_Z).sum(1) for v in range(0, len(counts_VZ), rows)]
    return xp.concatenate(parts)


def check_same(values: Sequence[int], what: str) -> None:
    """Raise WrongResult unless all values are equal."""
    if len(set(values)) > 1:
        raise WrongResult(f"{what} have different counts of topics; not timed")
