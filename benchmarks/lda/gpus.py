"""One corpus on several workers at once, as a gang; and a corpus that streams through one device."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.lda.generated_corpus import CorpusShape, cut, generate
from mgpu_ngram.benchmarks.lda.sweeps import (
    SEED,
    LdaBench,
    check_counts,
    check_same,
    fingerprint,
    nbytes,
    open_sampler,
    timed_sweeps,
)
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.cluster.gang import Communicator
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.lda.blocks import Room
from mgpu_ngram.engine.lda.documents import CorpusPart
from mgpu_ngram.stages.run_file import ClusterConfig

SWEEPS = {"gpu": {"NYTimes": 100, "PubMed": 30}, "cpu": {"NYTimes": 3, "PubMed": 3}}
TOPICS = {"gpu": 1024, "cpu": 64}
TARGET_SPEEDUP = {"NYTimes": {2: 1.8}, "PubMed": {2: 1.9}}  # over one H200
STREAMED_BLOCKS, STREAMED_SWEEPS = 4, 10
STREAMED_TARGET = 0.7  # share of the rate without streaming
GPUS, STREAM = "lda/gpus", "lda/stream"


@dataclass(frozen=True)
class Swept:
    """The sweeps of one rank.

    seconds  of each sweep
    print    of the counts of the whole corpus
    """

    seconds: list[float]
    print: int


@dataclass(frozen=True)
class DocumentShare:
    """The documents of each rank, and how to sweep."""

    shape: CorpusShape
    cuts: list[int]
    topics: int
    sweeps: int
    device: str
    threads: int


def sweep_share(group: Communicator, share: DocumentShare) -> Swept:
    """Generate the documents of this rank, sweep, and check the counts of all ranks."""
    xp: Any = np
    if share.device == "gpu":
        import cupy

        xp = cupy
    first, last = share.cuts[group.rank : group.rank + 2]
    bags = generate(share.shape, SEED, xp, first, last)
    sampler = open_sampler(bags, share.topics, share.device, group, first, threads=share.threads)
    tokens = bags.tokens
    del bags
    if xp is not np:
        xp.get_default_memory_pool().free_all_blocks()
    group.barrier()
    seconds = timed_sweeps(sampler, share.sweeps, group)
    mine, all_ranks = (int(table.sum(dtype=np.int64)) for table in (sampler.local_VZ, sampler.counts_VZ))
    if (mine, all_ranks) != (tokens, share.shape.tokens):
        raise WrongResult(f"rank {group.rank} has {mine:,} of {all_ranks:,} counts but {tokens:,} tokens; not timed")
    return Swept(seconds, fingerprint(sampler))


def gpus(bench: LdaBench) -> None:
    """Rows of each corpus and number of workers: each sweep ends with the counts of all of them."""
    prints: dict[str, list[int]] = {}
    for G in bench.clusters:
        bench.suite.say(f"sweeps of {G} at once")
        executor = open_executor(ClusterConfig(device=bench.suite.device, workers=G))  # type: ignore[arg-type]
        try:
            for name in SWEEPS[bench.suite.device]:
                add_row(bench, executor, name, G, prints.setdefault(name, []))
        finally:
            executor.close()


def add_row(bench: LdaBench, executor: Executor, name: str, ranks: int, prints: list[int]) -> None:
    suite, shape = bench.suite, bench.shape(name)
    swept = gang(executor, shape, ranks, TOPICS[suite.device], SWEEPS[suite.device][name])
    prints += [rank.print for rank in swept]
    check_same(prints, "ranks, or different numbers of workers,")
    sizes, sweeps = f"{shape} K={TOPICS[suite.device]}", len(swept[0].seconds)
    kernel = f"{GPUS} {name}"
    alone = next((r for r in suite.rows if r.kernel == kernel and r.sizes == f"{sizes} workers=1"), None)
    speedup = TARGET_SPEEDUP[name].get(ranks) if bench.is_full(shape) else None
    row = suite.add(
        kernel, f"{sizes} workers={ranks}", [max(sum(rank.seconds) for rank in swept)], items=shape.tokens * sweeps,
        unit=TOKENS_PER_SECOND, target=speedup * alone.rate if speedup and alone and alone.rate else None,
        notes=f"tokens over seconds of sweeps 1 to {sweeps}" + (f"; target {speedup}x over one" if speedup else ""),
    )  # fmt: skip
    if alone and alone.rate and row.rate and row.median_seconds:
        row.baseline, row.speedup = "workers=1", row.rate / alone.rate
        # Without sums of counts and without waits, workers would take the time of one divided by their number.
        row.ceiling, row.share_of_ceiling = f"{ranks} x workers=1", row.speedup / ranks
        row.floor_seconds = row.share_of_ceiling * row.median_seconds


def gang(executor: Executor, shape: CorpusShape, ranks: int, topics: int, sweeps: int) -> list[Swept]:
    """Sweep with a rank on each worker."""
    found = executor.gang_size() // executor.tasks_per_process
    if found < ranks:
        raise RunError(f"{ranks} workers were asked for but {found} can run at once; ask for fewer (--workers)")
    threads = executor.threads * executor.tasks_per_process
    share = DocumentShare(shape, cut(shape, ranks, SEED), topics, sweeps, executor.device, threads)
    return executor.gather(executor.gang(sweep_share, [(share,)] * ranks, label="the sweeps of a bench"))


def stream(bench: LdaBench) -> None:
    """Rows of M = 1 and M = 4: all documents on the device, and a quarter of them at once, copied from the host."""
    suite, shape = bench.suite, bench.shape("PubMed")
    Z = TOPICS[suite.device]
    if suite.device == "cpu":
        suite.add_note(STREAM, f"{shape} K={Z}", "a CPU reads its documents where they are")
        return
    bags, cuts = bench.corpus(shape), cut(shape, STREAMED_BLOCKS, SEED)
    parts = [CorpusPart.of(i, a, bags.slice(a, b)) for i, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False))]
    prints: list[int] = []
    alone: float | None = None
    room: Room | None = None
    for M in (1, STREAMED_BLOCKS):
        suite.say(f"sweeps of M = {M}")
        sampler = open_sampler(parts, Z, suite.device, room=room)
        held = len(list(sampler.blocks.stored()))
        if held != M:
            raise RunError(f"the documents are in {held} blocks but should be in {M}; correct the room of the bench")
        # A block may take a third of the room, and a quarter of the documents is what it should take.
        room = Room(device_bytes=3 * nbytes(sampler)[0] // STREAMED_BLOCKS)
        seconds = timed_sweeps(sampler, STREAMED_SWEEPS)
        prints.append(fingerprint(sampler))
        if M == 1:
            check_counts(sampler, bags)
        copied = sum(a.nbytes for b in sampler.blocks.stored() for a in (*b.documents[:3], *b.pairs)) if M > 1 else 0
        del sampler
        suite.release()
        check_same(prints, "streamed documents")
        target = STREAMED_TARGET * shape.tokens / alone if alone and bench.is_full(shape) else None
        suite.add(
            STREAM, f"{shape} K={Z} M={M}", seconds, items=shape.tokens, unit=TOKENS_PER_SECOND, target=target,
            bytes_moved=copied or None, ceiling="pinned host to device", baseline="M=1" if alone else "",
            baseline_seconds=alone, notes=f"the mean is {mean(seconds):.3g} s a sweep",
        )  # fmt: skip
        alone = alone or sorted(seconds)[len(seconds) // 2]
