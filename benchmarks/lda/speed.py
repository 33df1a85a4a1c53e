"""Sweeps over the NYTimes shape on one device: rates by number of topics and by step, beside what bounds them."""

from __future__ import annotations

import time

import numpy as np

from mgpu_ngram.benchmarks.harness.machine_rates import SECTORS, random_reads
from mgpu_ngram.benchmarks.harness.rows import with_unit
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.lda.generated_corpus import SHAPES, CorpusShape, generate
from mgpu_ngram.benchmarks.lda.sweeps import (
    SEED,
    STEPS,
    SWEEPS,
    LdaBench,
    Staged,
    blocks_of,
    check_counts,
    check_same,
    fingerprint,
    nbytes,
    open_sampler,
    staged_sweeps,
    timed_sweeps,
)
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.engine.lda.sweep import Sampler
from mgpu_ngram.kernels.lda.weights import count_bits

TOPICS = {"gpu": (1024, 4096, 16384), "cpu": (64, 256)}
TARGETS = {1024: 3.2e9, 4096: 1.5e9, 16384: 0.5e9}  # tokens/s on one H200
MAX_BYTES, MEMORY_TOPICS = 20, 1024  # bytes of the device for each token, with this number of topics
SECTOR = 32
CHECKED_TOKENS = 50_000  # tokens of a corpus that a GPU and a CPU both sweep
CHECKED_TOPICS, CHECKED_SWEEPS = 96, 3


def corpus(bench: LdaBench) -> None:
    """Rows: generating corpora."""
    suite = bench.suite
    for name in ("NYTimes", "PubMed"):
        shape = bench.shape(name)
        generate(shape.scaled(CHECKED_TOKENS), SEED, suite.xp)  # compiles
        begin = time.perf_counter()
        bags = generate(shape, SEED, suite.xp)
        seconds = time.perf_counter() - begin
        check_corpus(bags, shape, suite)
        suite.add(
            f"lda/corpus {name}", str(shape), [seconds], items=shape.tokens, unit=TOKENS_PER_SECOND,
            notes=f"to host memory; {bags.pairs:,} pairs",
        )  # fmt: skip
        del bags
        suite.release()


def check_corpus(bags: Bags, shape: CorpusShape, suite: Suite) -> None:
    """Raise WrongResult unless the bags are sound, of the shape, and those that a CPU generates at both ends."""
    bags.check()
    if (bags.documents, bags.num_words, bags.tokens) != (shape.documents, shape.words, shape.tokens):
        raise WrongResult(f"the corpus has {bags!r} but should have {shape}")
    few = max(1, CHECKED_TOKENS * shape.documents // shape.tokens)
    for first, last in ((0, min(few, shape.documents)), (max(0, shape.documents - few), shape.documents)):
        if bags.slice(first, last) != generate(shape, SEED, np, first, last):
            raise WrongResult(f"{suite.name} generates other documents than a CPU; not timed")


def speed(bench: LdaBench) -> None:
    """Rows of each number of topics: the mean of all sweeps, its steps, the memory of a token, and bounds."""
    suite, shape = bench.suite, bench.shape("NYTimes")
    check_devices(suite)
    bags = bench.corpus(shape)
    for Z in TOPICS[suite.device]:
        suite.say(f"sweeps of K = {Z:,}")
        sweeps, sizes = SWEEPS[suite.device], f"{shape} K={Z}"
        sampler = open_sampler(bags, Z, suite.device)
        memory(suite, sampler, shape, sizes)
        seconds = timed_sweeps(sampler, sweeps)
        check_counts(sampler, bags)
        found = fingerprint(sampler)
        del sampler
        suite.release()
        sampler = open_sampler(bags, Z, suite.device)
        staged = staged_sweeps(sampler, sweeps)
        check_same([found, fingerprint(sampler)], "sweeps as a whole and step by step")
        target = TARGETS.get(Z) if bench.is_full(shape) else None
        moved = bytes_moved(sampler, staged, sweeps)
        suite.add(
            "lda/sweep", sizes, [sum(seconds)], items=shape.tokens * sweeps, unit=TOKENS_PER_SECOND, target=target,
            bytes_moved=sum(moved.values()), ceiling="copy",
            notes=f"tokens over seconds of sweeps 1 to {sweeps}; the first {rate(shape, seconds[0])}, "
            f"the last {rate(shape, seconds[-1])}",
        )  # fmt: skip
        for step in STEPS:
            suite.add(
                f"lda/sweep, {step}", sizes, [staged.seconds[step]], items=shape.tokens * sweeps,
                unit=TOKENS_PER_SECOND, bytes_moved=moved[step], ceiling="copy",
            )  # fmt: skip
        bounds(suite, sampler, staged, sweeps, sizes)
        del sampler
        suite.release()


def rate(shape: CorpusShape, seconds: float) -> str:
    return with_unit(shape.tokens / seconds, TOKENS_PER_SECOND)


def memory(suite: Suite, sampler: Sampler, shape: CorpusShape, sizes: str) -> None:
    """Row: bytes that stay on the device for each token."""
    documents_bytes, counts_bytes = (size / shape.tokens for size in nbytes(sampler))
    notes = f"documents {documents_bytes:.3g}, two tables of counts of words {counts_bytes:.3g}"
    if suite.device == "gpu":
        notes += f"; {suite.xp.get_default_memory_pool().total_bytes() / shape.tokens:.3g} while documents are laid out"
    row = suite.add_note("lda/memory", sizes, notes)
    row.rate, row.rate_unit = documents_bytes + counts_bytes, "B/token"
    if sampler.num_topics == MEMORY_TOPICS and shape == SHAPES[shape.name]:
        row.target, row.notes = MAX_BYTES, f"target: at most; {notes}"


def bytes_moved(sampler: Sampler, staged: Staged, sweeps: int) -> dict[str, int]:
    """Return the bytes that each step must read and write, over all sweeps.

    Counts of words: each row once. Of a pair: its arrays, its document's row and entries. Of a token: its topic in and,
    if it changes, out.
    """
    V, Z = sampler.counts_VZ.shape
    entry_bytes, table_bytes = count_bits(Z)[0].itemsize, 4 * V * Z
    blocks = blocks_of(sampler)
    pairs = sum(len(block.pairs.document_P) for block in blocks)
    documents = sum(len(block.documents.rows_D2) for block in blocks)
    written = min(8 * sweeps * table_bytes, 16 * staged.changed)  # of two counts, in and out
    return {
        "weights": sweeps * table_bytes,
        "sample": sweeps * (table_bytes + (9 + 8) * pairs + 2 * sampler.tokens)
        + entry_bytes * staged.read
        + 2 * staged.changed
        + written,
        "sum counts": sweeps * 2 * table_bytes,
        "count topics": sweeps * (2 * sampler.tokens + 16 * documents) + entry_bytes * staged.rows,
    }


def bounds(suite: Suite, sampler: Sampler, staged: Staged, sweeps: int, sizes: str) -> None:
    """Rows: the sampler beside random reads of memory, and the issue slots that it has for a token."""
    blocks, seconds = blocks_of(sampler), staged.seconds["sample"]
    pairs = sum(len(block.pairs.document_P) for block in blocks)
    entry_bytes = count_bits(sampler.num_topics)[0].itemsize
    # Of a pair: its document's row, its topics, its entries; writes of topics that change.
    sectors = sweeps * 3 * pairs + entry_bytes * staged.read // SECTOR + staged.changed
    row = suite.add_note("lda/sample reads", sizes, f"{SECTORS}: what caches serve is counted, too")
    row.rate, row.rate_unit = sectors / (sweeps * sampler.tokens), "sectors/token"
    row = suite.add_note("lda/sample entries", sizes, "of a document, seen by its tokens: K_d")
    row.rate, row.rate_unit = staged.read / (sweeps * pairs), "entries/pair"
    if suite.device == "cpu":
        return
    import cupy

    size_bytes = sum(block.documents.entries_T.nbytes for block in blocks)
    ceiling = random_reads(suite, SECTORS, max(1 << 20, size_bytes // SECTOR * SECTOR))
    suite.add(
        "lda/sample beside random reads", sizes, [seconds], items=sweeps * sampler.tokens, unit=TOKENS_PER_SECOND,
        bytes_moved=SECTOR * sectors, ceiling=ceiling, notes="share of its reads; caches may serve some",
    )  # fmt: skip
    attributes = cupy.cuda.Device().attributes
    slots = 4 * attributes["MultiProcessorCount"] * attributes["ClockRate"] * 1e3 * seconds
    row = suite.add_note(
        "lda/sample issue slots", sizes, "of warp instructions at the highest clock: what a token may take"
    )
    row.rate, row.rate_unit = slots / (sweeps * sampler.tokens), "slots/token"


def check_devices(suite: Suite) -> None:
    """Raise WrongResult unless steps give a sweep's topics, and a GPU a CPU's, on a small corpus."""
    shape = SHAPES["NYTimes"].scaled(CHECKED_TOKENS)
    bags = generate(shape, SEED)
    prints = []
    for device in sorted({"cpu", suite.device}):
        sampler = open_sampler(bags, CHECKED_TOPICS, device)
        timed_sweeps(sampler, CHECKED_SWEEPS)
        check_counts(sampler, bags)
        prints.append(fingerprint(sampler))
        sampler = open_sampler(bags, CHECKED_TOPICS, device)
        staged_sweeps(sampler, CHECKED_SWEEPS)
        prints.append(fingerprint(sampler))
    check_same(prints, "devices, or sweeps as a whole and step by step,")
