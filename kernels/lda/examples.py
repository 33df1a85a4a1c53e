"""Example arguments for the kernels of topic models."""

from __future__ import annotations

import numpy as np

from .count_topics import count_topics
from .layout import lay_out
from .weights import ALIGN, PRIOR_BITS, Documents, Pairs, WordTopics

TOPICS = (3, 64, 2, 300, 4100)  # the last one needs larger entries


def bags(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return (starts_D1, words_P, counts_P, V) of about `size` tokens; some documents are empty, some words heavy."""
    D, V = size // 30 + 1, size // 10 + 2
    document_T = np.sort(np.minimum(rng.geometric(3 / (D + 3), size) - 1, D - 1)) if size else np.zeros(0, np.int64)
    word_T = np.minimum(rng.zipf(1.3, size) - 1, V - 1)
    pair_P, counts_P = np.unique(document_T * V + word_T, return_counts=True)
    starts_D1 = np.searchsorted(pair_P // V, np.arange(D + 1)).astype(np.int64)
    return starts_D1, (pair_P % V).astype(np.uint32), counts_P.astype(np.uint32), V


def corpus(rng: np.random.Generator, size: int) -> tuple[Documents, Pairs, WordTopics]:
    """Return documents with random topics, their pairs and their counts; by size, words have special priors."""
    starts_D1, words_P, counts_P, V = bags(rng, size)
    Z = TOPICS[size % len(TOPICS)]
    documents, pairs = lay_out(starts_D1, words_P, counts_P, Z, max_pairs=50)
    rows_D2, lengths_D, topics_T, _ = documents
    begins_D = ALIGN * rows_D2[:, 0].astype(np.int64)
    tokens = np.concatenate([np.arange(b, b + n) for b, n in zip(begins_D, lengths_D.tolist(), strict=True)])
    tokens = tokens.astype(np.int64)
    topics_T[tokens] = np.minimum(rng.geometric(0.02, len(tokens)) - 1, Z - 1)
    documents = count_topics(documents, Z)
    counts_VZ = np.zeros((V, Z), np.uint32)
    np.add.at(counts_VZ, (np.repeat(words_P, counts_P), topics_T[tokens]), 1)
    beta_KZ = rng.random((2, Z)).astype(np.float32) * (size % 3 > 0)
    beta_KZ = beta_KZ[: 2 * (size % 3 > 0)]
    seeds_V = np.full(V if len(beta_KZ) else 0, -1, np.int32)
    seeds_V[: len(beta_KZ)] = np.arange(len(beta_KZ))
    totals_Z = counts_VZ.sum(0, dtype=np.int64) + 0.1 * (V - len(beta_KZ)) + beta_KZ.sum(0, dtype=np.float64)
    alpha_Z = ((rng.random(Z) + 0.01) * (5 << PRIOR_BITS) / Z).astype(np.float32)
    words = WordTopics(
        counts_VZ, (1 / totals_Z).astype(np.float32), (1 / np.maximum(totals_Z - 1, 0.1)).astype(np.float32), alpha_Z,
        0.1, seeds_V, beta_KZ,
    )  # fmt: skip
    return documents, pairs, words
