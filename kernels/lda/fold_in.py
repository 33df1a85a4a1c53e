"""Find the topics of new documents, with the topics of words held fixed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, int64

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .examples import bags, corpus
from .weights import PRIOR_BITS, WordTopics, beta_of

THREADS = 128  # as in fold_in.cu
LANES = 32


class Bag(NamedTuple):
    """Documents as bags of words.

    starts_D1  (D + 1,) int64: document d has pairs starts_D1[d] to starts_D1[d + 1] - 1
    words_P    (P,) uint32
    counts_P   (P,) uint32; 0 is legal
    """

    starts_D1: Any
    words_P: Any
    counts_P: Any


def fold_in(bag: Bag, words: WordTopics, max_iter: int = 100, tol: float = 1e-5) -> Any:
    """Return the expected number of tokens of each topic in each document, plus the topic's prior.

    words     topics of words, and the priors; less_Z is not read
    max_iter  iterations at most, 0 or more
    tol       a document is done when an iteration changes less than this share of its sum

    Returns theta_DZ (D, Z) float32: the fixed point of theta_k = alpha_k + sum over tokens of
    theta_k phi_wk / (sum of theta_j phi_wj) with phi_wk = (n_wk + beta_w) / (n_k + sum of word priors), from theta
    proportional to alpha on: CVB0 with fixed phi (Asuncion et al., "On smoothing and inference", 2009).
    Row d sums to tokens of d + sum of alpha. Each document's result is the same for any other documents in the call.

    A sum over topics is made of LANES partial sums, topic k in number k % LANES, which are then added in pairs. So all
    devices give the same bits.
    """
    check.dtype(bag.starts_D1, np.int64)
    check.dtype(bag.words_P, np.uint32)
    check.dtype(bag.counts_P, np.uint32)
    words.check()
    arrays = bag._asdict() | words._asdict()
    del arrays["beta"]
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    check.contiguous(counts_VZ=words.counts_VZ, beta_KZ=words.beta_KZ)
    prior_Z = words.alpha_Z * float32(1 / (1 << PRIOR_BITS))
    return run(bag, words, prior_Z, max_iter, float32(tol))


def _cpu(bag, words, prior_Z, max_iter, tol):
    return _fold_in(bag, words._replace(beta=float32(words.beta)), prior_Z, max_iter, tol)


@njit(nogil=True, cache=True)
def _fold_in(bag, words, prior_Z, max_iter, tol):
    starts_D1, words_P, counts_P = bag
    counts_VZ, inverse_Z, _, _, beta, seeds_V, beta_KZ = words
    D, Z = len(starts_D1) - 1, len(prior_Z)
    theta_DZ, new_Z = np.empty((D, Z), np.float32), np.empty(Z, np.float32)
    beta_Z, sums_L, changes_L = np.full(Z, beta, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    sums_L[:] = 0
    for k in range(Z):
        sums_L[k % LANES] += prior_Z[k]
    prior = _sum(sums_L)
    for d in range(D):
        theta_Z = theta_DZ[d]
        first, end = starts_D1[d], starts_D1[d + 1]
        tokens = int64(0)
        for p in range(first, end):
            tokens += int64(counts_P[p])
        scale = float32(1) + float32(tokens) / prior
        phi_PZ = np.empty((end - first, Z), np.float32)
        for p in range(first, end):
            w = words_P[p]
            beta_of(w, beta, seeds_V, beta_KZ, beta_Z)
            for k in range(Z):
                phi_PZ[p - first, k] = (float32(counts_VZ[w, k]) + beta_Z[k]) * inverse_Z[k]
        for k in range(Z):
            theta_Z[k] = prior_Z[k] * scale
        for _ in range(max_iter):
            for k in range(Z):
                new_Z[k] = prior_Z[k]
            for p in range(first, end):
                if counts_P[p] == 0:
                    continue
                phi_Z = phi_PZ[p - first]
                sums_L[:] = 0
                for k0 in range(0, Z, LANES):
                    for i in range(min(LANES, Z - k0)):
                        sums_L[i] += phi_Z[k0 + i] * theta_Z[k0 + i]
                share = float32(counts_P[p]) / _sum(sums_L)
                for k in range(Z):
                    new_Z[k] += phi_Z[k] * theta_Z[k] * share
            sums_L[:] = 0
            changes_L[:] = 0
            for k0 in range(0, Z, LANES):
                for i in range(min(LANES, Z - k0)):
                    changes_L[i] += abs(new_Z[k0 + i] - theta_Z[k0 + i])
                    sums_L[i] += new_Z[k0 + i]
            theta_Z[:] = new_Z
            if _sum(changes_L) < tol * _sum(sums_L):
                break
    return theta_DZ


@njit(nogil=True, cache=True)
def _sum(sums_L):
    """Return the sum, added in pairs; overwrites sums_L."""
    half = LANES // 2
    while half:
        for i in range(half):
            sums_L[i] += sums_L[i + half]
        half //= 2
    return sums_L[0]


def _cuda(bag, words, prior_Z, max_iter, tol):
    import cupy

    D, Z = len(bag.starts_D1) - 1, len(prior_Z)
    theta_DZ = cupy.empty((D, Z), np.float32)
    if D:
        blocks = grid_for(D, THREADS // LANES, waves=16)
        scratch = cupy.empty(blocks * THREADS // LANES * Z, np.float32)
        seeds_V = words.seeds_V if len(words.seeds_V) else np.uintp(0)
        args = (
            *bag, D, words.counts_VZ, words.inverse_Z, prior_Z, float32(words.beta), seeds_V, words.beta_KZ, Z,
            max_iter, tol, scratch, theta_DZ,
        )  # fmt: skip
        launch(kernel("lda/fold_in", "fold_in"), blocks, THREADS, args)
    return theta_DZ


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words and the topics of such words."""
    size = min(size, 20_000)
    _, _, words = corpus(rng, size)
    starts_D1, words_P, counts_P, _ = bags(rng, size)
    return {"bag": Bag(starts_D1, words_P, counts_P), "words": words, "max_iter": size % 7, "tol": 1e-3}
