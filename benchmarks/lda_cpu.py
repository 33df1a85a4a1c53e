"""Time to a held-out perplexity on the cores of this host, beside tomotopy, scikit-learn and WarpLDA."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mgpu_ngram.benchmarks.lda_quality import Split, perplexity, perplexity_of_phi
from mgpu_ngram.benchmarks.lda_work import BETA, SEED, TOKENS_PER_SECOND, LdaBench, open_sampler, timed_sweeps
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.bags import Bags
from mgpu_ngram.core.errors import RunError

TOPICS = 256
STEP = 5  # sweeps between looks at the perplexity, which take no time of any program
MOST = {"ours": 150, "tomotopy": 150, "scikit-learn": 10, "WarpLDA": 400}  # sweeps, or passes
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
    programs: dict[str, tuple[Callable[[Split, Path], Iterator[Step]], bool]] = {
        "tomotopy": (tomotopy, find_spec("tomotopy") is not None),
        "scikit-learn": (sklearn, find_spec("sklearn") is not None),
        "WarpLDA": (warplda, shutil.which("warplda") is not None and shutil.which("format") is not None),
        "ours": (ours, True),
    }
    best: tuple[str, float] | None = None
    for name, (program, is_there) in programs.items():
        if not is_there:
            suite.say(f"{name} is not here, so its row is left out")
            continue
        suite.say(f"{name} to a held-out perplexity of {goal:.0f}")
        sweeps, clock, found = _to_goal(program(split, bench.folder), goal)
        seconds = clock.seconds
        kernel = OURS if name == "ours" else f"{OURS} {name}"
        reached = f"perplexity {found:.1f} after {sweeps} sweeps, {cpu_cores()} cores"
        reached += f", {clock.cpu_seconds:.3g} s of the processor" if clock.cpu_seconds else ""
        if found > goal:
            suite.add_note(kernel, split.sizes(TOPICS), f"does not reach {goal:.0f}: {reached}, {seconds:.3g} s")
            continue
        is_ours = name == "ours"
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
    for sweeps in range(STEP, MOST["ours"] + 1, STEP):
        clock.run(lambda: timed_sweeps(sampler, STEP))
        yield sweeps, clock, perplexity(sampler.counts_VZ, split.held_out)


def tomotopy(split: Split, folder: Path) -> Iterator[Step]:
    """Yield steps of tomotopy's collapsed Gibbs sampling, with the same priors."""
    import tomotopy

    bags = split.train
    model = tomotopy.LDAModel(k=TOPICS, alpha=50 / TOPICS, eta=BETA, seed=SEED)
    for words in _texts(bags):
        model.add_doc(words)
    model.optim_interval = 0  # priors stay as given
    model.train(0, workers=cpu_cores())
    clock = Clock()
    for sweeps in range(STEP, MOST["tomotopy"] + 1, STEP):
        clock.run(lambda: model.train(STEP, workers=cpu_cores()))
        phi_VZ = np.full((bags.num_words, TOPICS), 1e-12)  # of words that do not occur
        ids = np.array([int(word) for word in model.used_vocabs])
        phi_VZ[ids] = np.stack([model.get_topic_word_dist(k) for k in range(TOPICS)], axis=1)
        yield sweeps, clock, perplexity_of_phi(_smoothed(phi_VZ, ids, model.get_count_by_topics()), split.held_out)


def _smoothed(phi_VZ: np.ndarray, ids: np.ndarray, totals_Z: np.ndarray) -> np.ndarray:
    """Return probabilities in which words that do not occur have the prior, as in ours."""
    V = len(phi_VZ)
    counts_VZ = phi_VZ[ids] * (totals_Z + BETA * len(ids)) - BETA
    full_VZ = np.full(phi_VZ.shape, BETA)
    full_VZ[ids] += np.maximum(counts_VZ, 0)
    return full_VZ / (totals_Z + BETA * V)


def sklearn(split: Split, folder: Path) -> Iterator[Step]:
    """Yield one step of scikit-learn's batch variational Bayes, with the same priors; it works in other processes."""
    from scipy.sparse import csr_matrix
    from sklearn.decomposition import LatentDirichletAllocation

    bags, passes = split.train, MOST["scikit-learn"]
    matrix = csr_matrix((bags.counts_P, bags.words_P, bags.starts_D1), (bags.documents, bags.num_words))
    model = LatentDirichletAllocation(
        TOPICS, doc_topic_prior=50 / TOPICS, topic_word_prior=BETA, learning_method="batch", max_iter=passes,
        n_jobs=cpu_cores(), random_state=SEED,
    )  # fmt: skip
    clock = Clock()
    clock.run(lambda: model.fit(matrix))
    phi_VZ = (model.components_ / model.components_.sum(1, keepdims=True)).T
    yield passes, Clock(clock.seconds), perplexity_of_phi(phi_VZ, split.held_out)


def warplda(split: Split, folder: Path) -> Iterator[Step]:
    """Yield steps of WarpLDA's programs `format` and `warplda`, each a run of its own from the start.

    Its seconds include the likelihood that it computes in each iteration, about a quarter of them.
    """
    place = folder / "warplda"
    place.mkdir(exist_ok=True)
    with open(place / "train.txt", "w") as file:
        file.writelines(f"d{d} d{d} {' '.join(words)}\n" for d, words in enumerate(_texts(split.train)))
    _run(["format", "-input", "train.txt", "-prefix", "train"], place)
    for sweeps in (100, 200, 300, MOST["WarpLDA"]):
        options = ["--k", str(TOPICS), "--niter", str(sweeps), "--alpha", "50", "--beta", str(BETA)]  # alpha's sum
        said = _run(["warplda", "--prefix", "train", *options], place)
        seconds = [float(s) for s in re.findall(r"Iteration \d+, ([0-9.]+) s,", said)]
        if not seconds:
            raise RunError("warplda prints no seconds; take it off the PATH to go on without")
        names = (place / "train.vocab").read_text().split()
        lines = (place / "train.model").read_text().splitlines()[1:]
        counts_VZ = np.zeros((split.train.num_words, TOPICS), np.uint32)
        for name, line in zip(names, lines, strict=False):
            for entry in line.split()[1:]:
                topic, count = entry.split(":")
                counts_VZ[int(name), int(topic)] = int(count)
        yield sweeps, Clock(sum(seconds)), perplexity(counts_VZ, split.held_out)


def _run(command: list[str], folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise RunError(f"{command[0]} ended with status {ended.returncode}; take it off the PATH to go on without")
    return ended.stdout + ended.stderr


def _texts(bags: Bags) -> Iterator[list[str]]:
    """Yield the words of each document, as numbers."""
    for a, b in zip(bags.starts_D1[:-1].tolist(), bags.starts_D1[1:].tolist(), strict=True):
        yield [str(w) for w in np.repeat(bags.words_P[a:b], bags.counts_P[a:b]).tolist()]
