"""Time to a held-out perplexity on the cores of this host, beside tomotopy, scikit-learn and WarpLDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.lda import peers as lda_peers
from mgpu_ngram.benchmarks.lda.quality import Split, perplexity, perplexity_of_phi
from mgpu_ngram.benchmarks.lda.sweeps import SEED, LdaBench, open_sampler, timed_sweeps
from mgpu_ngram.cluster.devices import cpu_cores

TOPICS = 256
STEP = 5  # sweeps between looks at the perplexity, which take no time of any program
MAX_SWEEPS = {"ours": 150, "tomotopy": 150, "WarpLDA": 400}  # sweeps
GOALS = {"kos": 1640.0}  # held-out perplexity of exact sampling after 100 sweeps
GOAL_SWEEPS = 50  # of a corpus without a goal: the perplexity of ours after them
Step = tuple[int, "Clock", float]  # sweeps so far, their seconds, held-out perplexity
OURS = "lda/cpu"


@dataclass
class Clock:
    """Seconds by the clock, and of the processor: all threads of this process together, which other work slows less."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def run(self, fn: Callable[[], object]) -> None:
        """Call fn and count its time."""
        begin, cpu_begin = time.perf_counter(), time.process_time()
        fn()
        self.seconds += time.perf_counter() - begin
        self.cpu_seconds += time.process_time() - cpu_begin


def cpu(bench: LdaBench) -> None:
    """Rows: time to the goal of each program."""
    suite, split = bench.suite, Split.of(bench)
    open_sampler(split.train.slice(0, 1), TOPICS, "cpu")  # compiles
    goal = GOALS.get(split.name)
    if goal is None:
        goal = next(found for sweeps, _, found in ours(split, bench.folder) if sweeps >= GOAL_SWEEPS)
    programs: dict[str, Callable[[Split, Path], Iterator[Step]]] = {
        "tomotopy": tomotopy, "scikit-learn": sklearn, "WarpLDA": warplda, "ours": ours
    }  # fmt: skip
    best: tuple[str, float] | None = None
    for name, program in programs.items():
        is_ours = name == "ours"
        if not is_ours and not lda_peers.is_there(name):
            suite.say(f"{name} is not here, so its row is left out")
            continue
        suite.say(f"{name} to a held-out perplexity of {goal:.0f}")
        sweeps, clock, found = _to_goal(program(split, bench.folder), goal)
        seconds = clock.seconds
        kernel = OURS if is_ours else f"{OURS} {name}"
        reached = f"perplexity {found:.1f} after {sweeps} sweeps, {cpu_cores()} cores"
        reached += f", {clock.cpu_seconds:.3g} s of the processor" if clock.cpu_seconds else ""
        if found > goal:
            suite.add_note(kernel, split.sizes(TOPICS), f"does not reach {goal:.0f}: {reached}, {seconds:.3g} s")
            continue
        suite.add(
            kernel, f"{split.sizes(TOPICS)} perplexity={goal:.0f}", [seconds], items=split.train.tokens * sweeps,
            unit=TOKENS_PER_SECOND, baseline=best[0] if best and is_ours else "",
            baseline_seconds=best[1] if best and is_ours else None, notes=reached,
        )  # fmt: skip
        if best is None or seconds < best[1]:
            best = kernel, seconds


def _to_goal(steps: Iterator[Step], goal: float) -> Step:
    """Return the first step at the goal, or the last one."""
    last: Step = 0, Clock(), float("inf")
    for last in steps:
        if last[2] <= goal:
            break
    return last


def ours(split: Split, folder: Path) -> Iterator[Step]:
    """Yield steps of this engine on all cores."""
    sampler, clock = open_sampler(split.train, TOPICS, "cpu"), Clock()
    for sweeps in range(STEP, MAX_SWEEPS["ours"] + 1, STEP):
        clock.run(lambda: timed_sweeps(sampler, STEP))
        yield sweeps, clock, perplexity(sampler.counts_VZ, split.held_out)


def tomotopy(split: Split, folder: Path) -> Iterator[Step]:
    """Yield steps of tomotopy's collapsed Gibbs sampling."""
    model, clock = lda_peers.tomotopy_model(split.train, TOPICS, SEED), Clock()
    for sweeps in range(STEP, MAX_SWEEPS["tomotopy"] + 1, STEP):
        clock.run(lambda: model.train(STEP, workers=cpu_cores()))
        phi_VZ = lda_peers.phi_of_tomotopy(model, split.train.num_words)
        yield sweeps, clock, perplexity_of_phi(phi_VZ, split.held_out)


def sklearn(split: Split, folder: Path) -> Iterator[Step]:
    """Yield one step of scikit-learn's batch variational Bayes; without seconds of the processor, as others work."""
    begin = time.perf_counter()
    phi_VZ = lda_peers.sklearn_phi(split.train, TOPICS, SEED)
    seconds = time.perf_counter() - begin
    yield lda_peers.SKLEARN_PASSES, Clock(seconds), perplexity_of_phi(phi_VZ, split.held_out)


def warplda(split: Split, folder: Path) -> Iterator[Step]:
    """Yield steps of WarpLDA, each a run of its own from the start."""
    place = folder / "warplda"
    lda_peers.warplda_texts(split.train, place)
    for sweeps in (100, 200, 300, MAX_SWEEPS["WarpLDA"]):
        counts_VZ, seconds = lda_peers.warplda_counts(split.train.num_words, TOPICS, sweeps, place)
        yield sweeps, Clock(seconds), perplexity(counts_VZ, split.held_out)
