"""Held-out perplexity after a fixed number of sweeps, beside exact collapsed Gibbs sampling and other programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.lda import peers as lda_peers
from mgpu_ngram.benchmarks.lda.generated_corpus import generate
from mgpu_ngram.benchmarks.lda.sweeps import BETA, LdaBench, check_counts, open_sampler, priors_of, timed_sweeps
from mgpu_ngram.benchmarks.lda.transform import fold
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.engine.bags.open_bags import open_bags
from mgpu_ngram.engine.lda.hold_out import HeldOut, hold_out, keep_training
from mgpu_ngram.engine.lda.metrics import completion
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.lda.plugin_likelihood import UNITS

TOPICS = (64, 256, 1024)
SEEDS = (1, 2, 3, 4)
SWEEPS = 100
TARGET = 1.01  # times the perplexity of exact sampling, at most
HELD_OUT_SHARE = 0.1  # share of the documents that are held out, when no file has them
TOLERANCE = 3e-3  # tolerance of a perplexity beside NumPy's, whose topics are closer to the fixed point
TRAIN, TEST = ".train.", ".test."
EXACT, OURS, INCLUDED = "lda/quality exact", "lda/quality", "lda/quality own count included"


@dataclass(frozen=True)
class Split:
    """Documents to train on, and others to measure the perplexity on."""

    name: str
    train: Bags
    held_out: HeldOut

    @classmethod
    def of(cls, bench: LdaBench) -> Split:
        """Return the split of the files that the user gave, or of a generated corpus of the shape of KOS.

        A file without .train. in its name is split here: each document is held out with probability HELD_OUT_SHARE.
        """
        if bench.data is None:
            shape = bench.shape("KOS")
            bags, first = generate(shape), int(shape.documents * (1 - HELD_OUT_SHARE))
            train, test = bags.slice(0, first), bags.slice(first, shape.documents)
            return cls(f"generated-{shape.name}", train, hold_out(test, first, 1.0, 0))
        bags, name = open_bags(str(bench.data)).read(), bench.data.name
        if TRAIN in name:
            test = open_bags(str(bench.data.with_name(name.replace(TRAIN, TEST)))).read()
            held_out = hold_out(test, bags.documents, 1.0, 0)
        else:
            held_out = hold_out(bags, 0, HELD_OUT_SHARE, 0)
            kept = keep_training(bags, 0, HELD_OUT_SHARE, 0)
            bags = replace(kept, starts_D1=np.unique(kept.starts_D1))  # without the documents that are held out
        return cls(name.removeprefix("docword.").split(".")[0], bags, held_out)

    def sizes(self, topics: int) -> str:
        bags = self.train
        return f"corpus={self.name} T={bags.tokens} D={bags.documents} V={bags.num_words} K={topics}"


def perplexity(counts_VZ: np.ndarray, held_out: HeldOut) -> float:
    """Return the perplexity by document completion, of counts on any device."""
    units, tokens = completion(counts_VZ, priors_of(counts_VZ.shape[1]), held_out)
    return math.exp(-units / UNITS / tokens)


def perplexity_of_phi(phi_VZ: np.ndarray, held_out: HeldOut) -> float:
    """Return the same for any probabilities of words in topics, document by document in float64."""
    seen, target = held_out.observed, held_out.target
    alpha_Z, total = priors_of(phi_VZ.shape[1]).alpha_Z, 0.0
    for d in range(target.documents):
        a, b = (slice(int(bags.starts_D1[d]), int(bags.starts_D1[d + 1])) for bags in (seen, target))
        theta_Z = fold(phi_VZ[seen.words_P[a]], seen.counts_P[a], alpha_Z)
        p_P = phi_VZ[target.words_P[b]] @ (theta_Z / theta_Z.sum())
        total += float((target.counts_P[b] * np.log(p_P)).sum())
    return math.exp(-total / target.tokens)


def phi_of(counts_VZ: np.ndarray) -> np.ndarray:
    return (counts_VZ + BETA) / (counts_VZ.sum(0) + BETA * len(counts_VZ))


def quality(bench: LdaBench) -> None:
    """Rows of each number of topics: exact sampling, ours, and ours as CuLDA_CGS has it."""
    suite, split = bench.suite, Split.of(bench)
    with ThreadPoolExecutor(cpu_cores()) as pool:
        runs = {(Z, seed): pool.submit(exact_counts, split.train, Z, SWEEPS, seed) for Z in TOPICS for seed in SEEDS}
        for Z in TOPICS:
            suite.say(f"exact collapsed Gibbs sampling of K = {Z:,}")
            counts = [runs.pop((Z, seed)).result() for seed in SEEDS]
            found = [perplexity(to_device(counts_VZ, suite.device), split.held_out) for counts_VZ in counts]
            beside = perplexity_of_phi(phi_of(counts[0]), split.held_out)
            if abs(found[0] / beside - 1) > TOLERANCE:
                raise WrongResult(f"a perplexity is {found[0]} but {beside} by NumPy")
            exact = add_row(bench, EXACT, split, Z, found)
            for kernel, exclude_self in ((OURS, True), (INCLUDED, False)):
                found = [ours(bench, split, Z, seed, exclude_self) for seed in SEEDS]
                add_row(bench, kernel, split, Z, found, TARGET * exact if exclude_self else None)
            for name, (phi_of_peer, training) in PEERS.items():
                if not lda_peers.is_there(name):
                    suite.say(f"{name} is not here, so its row is left out")
                    continue
                suite.say(f"{name} of K = {Z:,}")
                found = [perplexity_of_phi(phi_of_peer(split.train, Z, seed), split.held_out) for seed in SEEDS]
                add_row(bench, f"{OURS} {name}", split, Z, found, training=training)


def tomotopy_phi(bags: Bags, topics: int, seed: int) -> np.ndarray:
    """Return the probabilities (V, Z) of words in topics after as many sweeps of tomotopy."""
    model = lda_peers.tomotopy_model(bags, topics, seed)
    model.train(SWEEPS, workers=cpu_cores())
    return lda_peers.phi_of_tomotopy(model, bags.num_words)


PEERS = {  # with their training, if it is not as many sweeps as ours
    "tomotopy": (tomotopy_phi, ""),
    "scikit-learn": (lda_peers.sklearn_phi, f"{lda_peers.SKLEARN_PASSES} passes of batch variational Bayes"),
}


def ours(bench: LdaBench, split: Split, topics: int, seed: int, exclude_self: bool = True) -> float:
    """Train on the device; return the perplexity."""
    sampler = open_sampler(split.train, topics, bench.suite.device, seed=seed)
    timed_sweeps(sampler, SWEEPS, exclude_self=exclude_self, seed=seed)
    check_counts(sampler, split.train)
    return perplexity(sampler.counts_VZ, split.held_out)


def add_row(
    bench: LdaBench, kernel: str, split: Split, topics: int, found: Sequence[float], target: float | None = None,
    training: str = "",
) -> float:  # fmt: skip
    """Add the mean over seeds; return it."""
    mean = sum(found) / len(found)
    seeds = f"after {training or f'{SWEEPS} sweeps'}; seeds {', '.join(f'{one:.1f}' for one in found)}; mean {mean:.1f}"
    notes = seeds if target is None else f"target: at most {target:.1f}, {TARGET} x exact; {seeds}"
    row = bench.suite.add_note(kernel, split.sizes(topics), notes)
    row.rate, row.rate_unit, row.target = mean, "held-out perplexity", target
    return mean


def exact_counts(bags: Bags, topics: int, sweeps: int, seed: int) -> np.ndarray:
    """Return the counts (V, Z) uint32 after sweeps of exact collapsed Gibbs sampling, token by token."""
    document_T = np.repeat(np.arange(bags.documents), bags.lengths_D()).astype(np.int32)
    word_T = np.repeat(bags.words_P, bags.counts_P).astype(np.int32)
    counts_VZ = np.zeros((bags.num_words, topics), np.uint32)
    _collapsed(document_T, word_T, bags.documents, counts_VZ, 50 / topics, BETA, sweeps, seed)
    return counts_VZ


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _collapsed(document_T, word_T, documents, counts_VZ, alpha, beta, sweeps, seed):
    """Griffiths and Steyvers, "Finding scientific topics" (2004), equation 5: each draw sees all draws before it."""
    V, Z = counts_VZ.shape
    np.random.seed(seed)
    counts_DZ = np.zeros((documents, Z), np.uint32)
    totals_Z, p_Z, inverse_Z = np.zeros(Z), np.empty(Z), np.empty(Z)
    topic_T = np.empty(len(word_T), np.int64)
    for t in range(len(word_T)):
        topic_T[t] = np.random.randint(0, Z)
        counts_DZ[document_T[t], topic_T[t]] += 1
        counts_VZ[word_T[t], topic_T[t]] += 1
        totals_Z[topic_T[t]] += 1
    for k in range(Z):
        inverse_Z[k] = 1 / (totals_Z[k] + V * beta)
    for _ in range(sweeps):
        for t in range(len(word_T)):
            count_d, count_w, k = counts_DZ[document_T[t]], counts_VZ[word_T[t]], topic_T[t]
            count_d[k] -= 1
            count_w[k] -= 1
            totals_Z[k] -= 1
            inverse_Z[k] = 1 / (totals_Z[k] + V * beta)
            total = 0.0
            for j in range(Z):
                p_Z[j] = (count_d[j] + alpha) * (count_w[j] + beta) * inverse_Z[j]
                total += p_Z[j]
            x, k = np.random.random() * total, 0
            while k < Z - 1 and x >= p_Z[k]:
                x -= p_Z[k]
                k += 1
            count_d[k] += 1
            count_w[k] += 1
            totals_Z[k] += 1
            inverse_Z[k] = 1 / (totals_Z[k] + V * beta)
            topic_T[t] = k
