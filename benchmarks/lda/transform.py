"""Topics of new documents, with the topics of words held fixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.cuda_source import compiled
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.lda.sweeps import LdaBench, open_sampler, priors_of, timed_sweeps
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.engine.lda.sweep import word_topics
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.launch import grid_for, launch
from mgpu_ngram.kernels.lda.fold_in import FIRST, REFRESH, Bag, FixedTopics, fixed_topics, fold_in
from mgpu_ngram.kernels.lda.spread_entries import LANES
from mgpu_ngram.kernels.lda.weights import PRIOR_BITS, WordTopics

DOCUMENTS = {"gpu": 100_000, "cpu": 200}
TOPICS = {"gpu": 1024, "cpu": 64}
TRAINING_SWEEPS = 100
TARGET = 1e9  # tokens/s on one H200
CHECKED = 20  # documents that NumPy transforms, too
TOLERANCE = 0.1  # share of a document with other topics: it ends when an iteration moves 1e-3 tokens a topic, or 1 %
LATE = 1000, 1e-6  # most iterations, and the tolerance of a late end
LATE_TOLERANCE = 0.01  # share of a document with other topics then, because shares are rounded
MAX_ITERATIONS = 100  # the default of `fold_in`
ENTRY_BYTES = 12  # bytes of shared memory for an entry: reads theta, reads and writes the topic's sum
TOPIC_BYTES = 16  # bytes of shared memory for a topic in an iteration: reads and writes theta and the sum
SHARED = "reads of shared memory"
SHARED_READS, SHARED_THREADS = 1 << 14, 1024  # reads of a thread; threads of a block
# Lanes read from different banks. The table holds zeros, which the compiler does not know.
SOURCE = """
extern "C" __global__ void shared_reads(i64 reads, u32* out) {
  __shared__ u32 table[2048];
  for (u32 i = threadIdx.x; i < 2048; i += blockDim.x) table[i] = 0;
  __syncthreads();
  const volatile u32* mine = table + threadIdx.x;
  u32 sum = 0;
#pragma unroll 32
  for (i64 i = 0; i < reads; ++i) sum += mine[32 * (i % 32)];
  if (sum) *out = sum;
}
"""


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
    moved = None
    if suite.device == "gpu":
        suite.say("the iterations of each document")
        shared_reads(suite)
        moved = shared_bytes(bag, topics)
    suite.run(
        "lda/transform",
        f"{shape} K={Z} documents={new.documents} tokens={new.tokens} sweeps={TRAINING_SWEEPS}",
        lambda: fold_in(bag, topics),
        check=lambda theta_DZ: check_topics(to_host(theta_DZ), new, words), items=new.tokens, unit=TOKENS_PER_SECOND,
        bytes_moved=moved, ceiling=SHARED, target=TARGET if bench.is_full(shape) else None,
        notes="to the topics of documents on the device",
    )  # fmt: skip


def shared_reads(suite: Suite) -> None:
    """Measure reads of shared memory without bank conflicts; put their bytes a second into `suite.ceilings`."""
    import cupy

    blocks = grid_for(1 << 30, SHARED_THREADS, waves=2)
    arguments = (SHARED_READS, cupy.zeros(1, np.uint32))
    size_bytes = 4 * blocks * SHARED_THREADS * SHARED_READS
    row = suite.run(
        f"ceiling/{SHARED}", f"{size_bytes} bytes",
        lambda: launch(compiled(SOURCE, "shared_reads"), blocks, SHARED_THREADS, arguments),
        items=size_bytes, unit="B/s",
    )  # fmt: skip
    if row.rate:
        suite.ceilings[SHARED] = row.rate


def shared_bytes(bag: Bag, topics: FixedTopics) -> int:
    """Return the bytes of shared memory that `fold_in` must read and write for entries and topics, over all iterations.

    A document takes part in an iteration if its topics before the iteration differ from its final topics. A document
    that reads all entries in all later iterations is counted like the others.
    """
    theta_DZ, total = fold_in(bag, topics), 0
    xp, num_topics = array_module(theta_DZ), theta_DZ.shape[1]
    size_P = topics.rows_V2[bag.words_P, 1].astype(np.int64)
    all_D, heads_D = (_sums(n_P, bag.starts_D1, xp) for n_P in (size_P, xp.minimum(size_P, LANES)))
    for n in range(MAX_ITERATIONS):
        in_D = (fold_in(bag, topics, n) != theta_DZ).any(1)
        reads_all = n == FIRST or (n and n % REFRESH == 0)
        entries = int((all_D if reads_all else heads_D)[in_D].sum())
        total += ENTRY_BYTES * entries + TOPIC_BYTES * num_topics * int(in_D.sum())
        if not in_D.any():
            break
    return total


def _sums(n_P: Any, starts_D1: Any, xp: Any) -> Any:
    """Return the sum of each document's values."""
    sums_P1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(n_P)])
    return sums_P1[starts_D1[1:]] - sums_P1[starts_D1[:-1]]


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
