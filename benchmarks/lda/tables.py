"""The tables and figures of the paper (Xie et al., "CuLDA_CGS", 2018), its own figures in the notes and pictures."""

from __future__ import annotations

import shutil

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.lda import peers as lda_peers
from mgpu_ngram.benchmarks.lda.generated_corpus import CorpusShape
from mgpu_ngram.benchmarks.lda.gpus import gang
from mgpu_ngram.benchmarks.lda.sweeps import (
    ALONE,
    LdaBench,
    check_counts,
    check_same,
    open_sampler,
    priors_of,
    staged_sweeps,
    timed_sweeps,
)
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.engine.lda.metrics import plugin
from mgpu_ngram.engine.lda.sweep import Sampler
from mgpu_ngram.stages.run_file import ClusterConfig

CULDA, WARPLDA = "lda/table4 CuLDA_CGS", "lda/table4 WarpLDA"
WARPLDA_SWEEPS = 10
TOPICS = {"gpu": 1024, "cpu": 64}
SWEEPS = {"gpu": 100, "cpu": 10}
POINTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)  # sweeps that have a row
# As published: operations a byte; tokens/s of a Titan X, a Titan Xp, a V100, and WarpLDA on 28 cores; shares of time.
INTENSITY = {"compute S": 0.33, "compute Q": 0.25, "sample from p1": 0.30, "sample from p2": 0.19}
PUBLISHED = {
    "NYTimes": {"Titan X": 173.6e6, "Titan Xp": 208.0e6, "V100": 633.0e6, "WarpLDA": 108.0e6},
    "PubMed": {"Titan X": 155.6e6, "Titan Xp": 213.0e6, "V100": 686.2e6, "WarpLDA": 93.5e6},
}
SHARES = {
    "sampling": {"Titan X": 87.7, "Titan Xp": 87.9, "V100": 79.4},
    "update theta": {"Titan X": 8.0, "Titan Xp": 9.3, "V100": 10.8},
    "update phi": {"Titan X": 4.3, "Titan Xp": 1.7, "V100": 9.8},
}
CULDA_SPEEDUP = {1: 1.0, 2: 1.93, 4: 2.99}  # by GPUs, PubMed on Titan Xp
# The paper's program on one H200 and on two, NYTimes shape, K = 1,024, as we measured it.
ON_H200 = {1: 1.08e9, 2: 1.52e9}
STEPS = {"sampling": ("sample",), "update theta": ("count topics",), "update phi": ("sum counts", "weights")}
# Operations of our kernels for each byte of device memory, counted in the source; weights of a word stay on the chip.
OURS = {
    "compute S": (4 / 2, "mask, shift, multiply, add of a 2-byte entry"),
    "compute Q": (11 / 12, "of a topic, once for 4,096 pairs of a word"),
    "sample from p1": (5 / 2, "shift, mask, multiply, compare, subtract of a 2-byte entry"),
}


def table1(bench: LdaBench) -> None:
    """Rows: operations a byte of each step."""
    for step, published in INTENSITY.items():
        ours, why = OURS.get(step, (None, "reads no device memory: sums and weights are on the chip"))
        row = bench.suite.add_note(f"lda/table1 {step}", "counted in the source", f"published: {published}; {why}")
        row.rate, row.rate_unit = ours, "operations/B"


def by_sweep(bench: LdaBench, name: str) -> tuple[CorpusShape, list[float]]:
    """Return the seconds of each sweep of a corpus; measured once."""
    suite, shape = bench.suite, bench.shape(name)
    if name not in bench.seconds:
        bags = bench.corpus(shape)
        suite.say(f"sweeps of {shape}")
        sampler = open_sampler(bags, TOPICS[suite.device], suite.device)
        bench.seconds[name] = timed_sweeps(sampler, SWEEPS[suite.device])
        _check(sampler, bags, name)
        del sampler
        suite.release()
    return shape, bench.seconds[name]


def _check(sampler: Sampler, bags: Bags, name: str) -> None:
    """Compare counts with the corpus; of PubMed the sum alone, as more takes 60 bytes of the device for each entry."""
    if name == "NYTimes":
        check_counts(sampler, bags)
    check_same([bags.tokens, int(sampler.counts_VZ.sum(dtype="int64"))], "tokens and counts")


def table4(bench: LdaBench) -> None:
    """Rows: tokens/s of the first 100 sweeps; of WarpLDA and, on a GPU, of the paper's program, where they are."""
    for name, published in PUBLISHED.items():
        shape, seconds = by_sweep(bench, name)
        items = shape.tokens * len(seconds)
        notes = ", ".join(f"{device} {rate / 1e6:.1f} M" for device, rate in published.items())
        bench.suite.add(
            f"lda/table4 {name}", f"{shape} K={TOPICS[bench.suite.device]}", [sum(seconds)], items=items,
            unit=TOKENS_PER_SECOND, baseline="CuLDA_CGS on a V100, as published",
            baseline_seconds=items / published["V100"],
            notes=f"tokens over seconds of sweeps 1 to {len(seconds)}; published: {notes}",
        )  # fmt: skip
    if lda_peers.is_there("WarpLDA"):
        _warplda(bench, bench.shape("NYTimes"))
    if bench.suite.device == "gpu":
        _culda(bench, bench.shape("NYTimes"))


def _warplda(bench: LdaBench, shape: CorpusShape) -> None:
    """A row of WarpLDA on the cores of this host, on the same corpus."""
    suite, Z = bench.suite, TOPICS[bench.suite.device]
    suite.say("WarpLDA reads the corpus")
    folder = bench.folder / "warplda"
    lda_peers.warplda_texts(bench.corpus(shape), folder)
    _, seconds = lda_peers.warplda_counts(shape.words, Z, WARPLDA_SWEEPS, folder)
    suite.add(
        WARPLDA, f"{shape} K={Z}", [seconds], items=shape.tokens * WARPLDA_SWEEPS, unit=TOKENS_PER_SECOND,
        notes=f"{cpu_cores()} cores, sweeps 1 to {WARPLDA_SWEEPS}, its likelihood included",
    )  # fmt: skip


def _culda(bench: LdaBench, shape: CorpusShape) -> None:
    """A row of CuLDA_CGS on the same corpus; a note without its programs."""
    suite, sizes = bench.suite, f"{shape} K={lda_peers.CULDA_TOPICS}"
    missing = [name for name in lda_peers.CULDA_PROGRAMS if shutil.which(name) is None]
    if missing:
        suite.add_note(CULDA, sizes, f"not measured: {' and '.join(missing)} not on the PATH")
        return
    suite.say("CuLDA_CGS reads the corpus")
    rates = lda_peers.culda_rates(bench.corpus(shape), SWEEPS[suite.device], bench.folder)
    suite.add(
        CULDA, sizes, [sum(shape.tokens / rate for rate in rates)], items=shape.tokens * len(rates),
        unit=TOKENS_PER_SECOND, notes=f"as it prints them, sweeps 1 to {len(rates)}",
    )  # fmt: skip


def fig7(bench: LdaBench) -> None:
    """Rows: tokens/s by sweep."""
    for name in PUBLISHED:
        shape, seconds = by_sweep(bench, name)
        _points(bench, f"lda/fig7 {name}", shape, seconds)


def _points(bench: LdaBench, kernel: str, shape: CorpusShape, seconds: list[float], sizes: str = "") -> None:
    for sweep in (n for n in POINTS if n <= len(seconds)):
        bench.suite.add(
            kernel, f"{shape} K={TOPICS[bench.suite.device]}{sizes} sweep={sweep}", [seconds[sweep - 1]],
            items=shape.tokens, unit=TOKENS_PER_SECOND,
        )  # fmt: skip


def table5(bench: LdaBench) -> None:
    """Rows: shares of the time of a sweep."""
    suite, shape = bench.suite, bench.shape("NYTimes")
    bags, Z = bench.corpus(shape), TOPICS[suite.device]
    sampler = open_sampler(bags, Z, suite.device)
    staged = staged_sweeps(sampler, SWEEPS[suite.device])
    check_counts(sampler, bags)
    total = sum(staged.seconds.values())
    for name, steps in STEPS.items():
        seconds = sum(staged.seconds[step] for step in steps)
        published = ", ".join(f"{device} {share} %" for device, share in SHARES[name].items())
        row = suite.add_note(f"lda/table5 {name}", f"{shape} K={Z}", f"{', '.join(steps)}; published: {published}")
        row.rate, row.rate_unit = 100 * seconds / total, "%"
        _set_seconds(row, seconds)


def _set_seconds(row: Row, seconds: float) -> None:
    row.runs, row.median_seconds, row.min_seconds, row.max_seconds = 1, seconds, seconds, seconds


def fig8(bench: LdaBench) -> None:
    """Rows: plug-in log-likelihood of a token by the time of sweeps, by our rule and by the paper's."""
    suite, Z = bench.suite, TOPICS[bench.suite.device]
    for name in PUBLISHED:
        shape = bench.shape(name)
        bags = bench.corpus(shape)
        for exclude_self in (True, False):
            kernel = f"lda/fig8 {name}" + ("" if exclude_self else ", own count included")
            suite.say(f"likelihoods of {kernel.removeprefix('lda/fig8 ')}")
            sampler = open_sampler(bags, Z, suite.device)
            total = 0.0
            for sweep in range(1, SWEEPS[suite.device] + 1):
                total += sum(timed_sweeps(sampler, 1, exclude_self=exclude_self))
                if sweep in POINTS:
                    row = suite.add_note(kernel, f"{shape} K={Z} sweep={sweep}", "seconds of all sweeps so far")
                    row.rate = plugin(sampler, ALONE, priors_of(Z)) / shape.tokens
                    row.rate_unit = "log-likelihood/token"
                    _set_seconds(row, total)
            _check(sampler, bags, name)
            del sampler
            suite.release()


def fig9(bench: LdaBench) -> None:
    """Rows of each number of workers on the PubMed shape: tokens/s by sweep, and of all sweeps."""
    suite, shape = bench.suite, bench.shape("PubMed")
    Z, prints, alone = TOPICS[suite.device], list[int](), None
    for G in bench.clusters:
        executor = open_executor(ClusterConfig(device=suite.device, workers=G))  # type: ignore[arg-type]
        try:
            swept = gang(executor, shape, G, Z, SWEEPS[suite.device])
        finally:
            executor.close()
        prints += [rank.print for rank in swept]
        check_same(prints, "ranks, or different numbers of workers,")
        seconds = [max(each) for each in zip(*(rank.seconds for rank in swept), strict=True)]
        _points(bench, "lda/fig9 by sweep", shape, seconds, f" workers={G}")
        published = f"published: {CULDA_SPEEDUP[G]}x on {G} Titan Xp" if G in CULDA_SPEEDUP else ""
        suite.add(
            "lda/fig9 PubMed", f"{shape} K={Z} workers={G}", [sum(seconds)], items=shape.tokens * len(seconds),
            unit=TOKENS_PER_SECOND, baseline="workers=1" if alone else "", baseline_seconds=alone, notes=published,
        )  # fmt: skip
        alone = alone or (sum(seconds) if G == 1 else None)
