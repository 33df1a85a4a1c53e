"""Topics of new documents, with the topics of words held fixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.lda_work import LdaBench, open_sampler, priors_of, timed_sweeps
from mgpu_ngram.benchmarks.suite import WrongResult
from mgpu_ngram.benchmarks.units import TOKENS_PER_SECOND
from mgpu_ngram.core.bags import Bags
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.lda import word_topics
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.fold_in import Bag, fixed_topics, fold_in
from mgpu_ngram.kernels.lda.weights import PRIOR_BITS, WordTopics

DOCUMENTS = {"gpu": 100_000, "cpu": 200}
TOPICS = {"gpu": 1024, "cpu": 64}
TRAINING_SWEEPS = 100
TARGET = 1e9  # tokens/s on one H200
CHECKED = 20  # documents that NumPy transforms, too
TOLERANCE = 0.1  # share of a document with other topics: it ends when an iteration moves 1e-3 tokens a topic, or 1 %
LATE = 1000, 1e-6  # most iterations, and the tolerance of a late end
LATE_TOLERANCE = 0.01  # share of a document with other topics then, because shares are rounded


def transform(bench: LdaBench) -> None:
    """Row: the last documents of the NYTimes shape, by topics trained on the others."""
    suite, shape = bench.suite, bench.shape("NYTimes")
    bags, Z = bench.corpus(shape), TOPICS[suite.device]
    first = max(shape.documents // 2, shape.documents - DOCUMENTS[suite.device])
    sampler = open_sampler(bags.slice(0, first), Z, suite.device)
    timed_sweeps(sampler, TRAINING_SWEEPS)
    words, new = word_topics(sampler.counts_VZ, priors_of(Z)), bags.slice(first, shape.documents)
    topics = fixed_topics(words)
    bag = Bag(*(to_device(np.asarray(a), suite.device) for a in (new.starts_D1, new.words_P, new.counts_P)))
    few = min(CHECKED, new.documents)
    late_DZ = fold_in(bag._replace(starts_D1=bag.starts_D1[: few + 1]), topics, *LATE)
    check_topics(to_host(late_DZ), new.slice(0, few), words, LATE_TOLERANCE)
    suite.run(
        "lda/transform",
        f"{shape} K={Z} documents={new.documents} tokens={new.tokens} sweeps={TRAINING_SWEEPS}",
        lambda: fold_in(bag, topics),
        check=lambda theta_DZ: check_topics(to_host(theta_DZ), new, words), items=new.tokens, unit=TOKENS_PER_SECOND,
        target=TARGET if bench.is_full(shape) else None, notes="to the topics of documents on the device",
    )  # fmt: skip


def check_topics(theta_DZ: np.ndarray, bags: Bags, words: WordTopics, tolerance: float = TOLERANCE) -> None:
    """Raise WrongResult unless rows sum to tokens and priors, and some documents have the topics that NumPy finds."""
    alpha_Z = to_host(words.alpha_Z).astype(np.float64) / (1 << PRIOR_BITS)
    sums_D = bags.lengths_D() + alpha_Z.sum()
    if not np.allclose(theta_DZ.sum(1, dtype=np.float64), sums_D, rtol=1e-5):
        raise WrongResult("topics of documents do not sum to their tokens and priors; not timed")
    for d in range(min(CHECKED, bags.documents)):
        pairs = slice(int(bags.starts_D1[d]), int(bags.starts_D1[d + 1]))
        phi_PZ = (to_host(words.counts_VZ[_like(words, bags.words_P[pairs])]) + words.beta) * to_host(words.inverse_Z)
        expected_Z = fold(phi_PZ, bags.counts_P[pairs], alpha_Z)
        difference = float(np.abs(theta_DZ[d] - expected_Z).sum() / sums_D[d])
        if difference > tolerance:
            raise WrongResult(f"{difference:.2g} of document {d} have other topics than by NumPy; not timed")


def _like(words: WordTopics, word_P: np.ndarray) -> Any:
    return to_device(word_P.astype(np.int64), "cpu" if isinstance(words.counts_VZ, np.ndarray) else "gpu")


def fold(phi_PZ: np.ndarray, counts_P: np.ndarray, alpha_Z: np.ndarray, iterations: int = 1000) -> np.ndarray:
    """Return theta_Z in float64: about the fixed point that `fold_in` describes, by plain iterations."""
    theta_Z = alpha_Z * (1 + counts_P.sum() / alpha_Z.sum())
    for _ in range(iterations):
        before_Z, weight_PZ = theta_Z, phi_PZ * theta_Z
        theta_Z = alpha_Z + (weight_PZ * (counts_P / weight_PZ.sum(1))[:, None]).sum(0)
        if np.abs(theta_Z - before_Z).sum() < 1e-5 * theta_Z.sum():
            break
    return theta_Z
