"""Generated corpora of the shapes of real ones: planted topics over a Zipf vocabulary, the same on a CPU and a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.inputs.corpora import splitmix64
from mgpu_ngram.core.bags.bags import Bags, join_bags
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.kernels.common.draws import GAMMA
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.lda.layout import repeat

MAX_PLANTED, MAX_CORE = 256, 3000  # topics, and words that a topic prefers
ZIPF, SHIFT = 1.05, 30.0  # Zipf-Mandelbrot law of words; the shift leaves stop words out
BACKGROUND = 64  # of 256 tokens, those that no topic draws
SPREAD = 0.7  # standard deviation of the logarithm of lengths
SHORTEST, LONGEST = 8, 8192  # tokens of a document
SLOTS = 8  # topics of a document, some of which may be the same
PRIOR_QUANTILES = 1 << 16
BLOCK_TOKENS = {"numpy": 1 << 20, "cupy": 1 << 25}  # generated at once


@dataclass(frozen=True)
class CorpusShape:
    """The size of a corpus: D documents, V words, T tokens."""

    name: str
    documents: int
    words: int
    tokens: int

    def scaled(self, tokens: int) -> CorpusShape:
        """Return a shape of so many tokens at most: documents shrink with the tokens, words with their root."""
        share = min(1.0, tokens / self.tokens)
        if share == 1:
            return self
        documents, words = max(16, int(self.documents * share)), max(64, int(self.words * share**0.5))
        return CorpusShape(self.name, documents, words, max(tokens, 4 * documents))

    def __str__(self) -> str:
        return f"corpus={self.name} T={self.tokens} D={self.documents} V={self.words}"


# The UCI bags of words.
SHAPES = {
    shape.name: shape
    for shape in (
        CorpusShape("NYTimes", 299_752, 101_636, 99_542_125),
        CorpusShape("PubMed", 8_200_000, 141_043, 737_869_083),
        CorpusShape("KOS", 3_430, 6_906, 467_714),
    )
}


@dataclass(frozen=True)
class Language:
    """What tokens are drawn from.

    upper_N  (N,) uint64, ascending: topic << 32 | 32 bits of the probability of its words up to this one
    word_N   (N,) uint32
    topic_Q  (PRIOR_QUANTILES,) uint32: the topic at each quantile of the law of topics
    planted  number of topics; the one of this number is the background
    """

    upper_N: np.ndarray
    word_N: np.ndarray
    topic_Q: np.ndarray
    planted: int


@cache
def language(num_words: int, seed: int) -> Language:
    """Return planted topics: each prefers words drawn by the law of the vocabulary, with random weights."""
    rng = np.random.default_rng(seed)
    planted, core = min(MAX_PLANTED, max(2, num_words // 8)), min(MAX_CORE, max(4, num_words // 4))
    zipf_V = 1 / (np.arange(1, num_words + 1) + SHIFT) ** ZIPF
    zipf_V /= zipf_V.sum()
    through_V, word_V = np.cumsum(zipf_V), rng.permutation(num_words).astype(np.uint32)
    uppers, words = [], []
    for k in range(planted):
        ranks = np.unique(np.searchsorted(through_V[:-1], rng.random(3 * core)))
        ranks = rng.permutation(ranks)[:core]
        uppers.append(_upper(k, zipf_V[ranks] * rng.gamma(0.3, 1.0, len(ranks)) + 1e-12))
        words.append(word_V[ranks])
    prior_Z = 1 / (np.arange(planted) + 3.0) ** 0.5
    topic_Q = np.searchsorted(
        np.cumsum(prior_Z / prior_Z.sum())[:-1], (np.arange(PRIOR_QUANTILES) + 0.5) / PRIOR_QUANTILES
    )
    return Language(
        np.concatenate([*uppers, _upper(planted, zipf_V)]), np.concatenate([*words, word_V]),
        topic_Q.astype(np.uint32), planted,
    )  # fmt: skip


def _upper(topic: int, weights: np.ndarray) -> np.ndarray:
    through = np.cumsum(weights)
    upper = (through / through[-1] * 2.0**32).astype(np.uint64)
    upper[-1] = 1 << 32
    return upper + np.uint64(topic << 32)


@cache
def lengths(shape: CorpusShape, seed: int) -> np.ndarray:
    """Return (D,) int64: lognormal lengths of documents, which sum to T."""
    rng = np.random.default_rng([seed, 1])
    mean = shape.tokens / shape.documents
    length_D = np.clip(rng.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, shape.documents), SHORTEST, LONGEST)
    length_D = np.maximum(1, np.floor(length_D * (shape.tokens / length_D.sum()))).astype(np.int64)
    missing = shape.tokens - int(length_D.sum())
    while missing:
        chosen = rng.permutation(shape.documents)[: abs(missing)]
        chosen = chosen[length_D[chosen] + np.sign(missing) > 0]
        length_D[chosen] += np.sign(missing)
        missing = shape.tokens - int(length_D.sum())
    return length_D


def cut(shape: CorpusShape, parts: int, seed: int = 1) -> list[int]:
    """Return the first documents of so many parts of about as many tokens each, and D."""
    ends_D = np.cumsum(lengths(shape, seed))
    targets = [shape.tokens * i // parts for i in range(1, parts)]
    return [0, *np.searchsorted(ends_D, targets).tolist(), shape.documents]


def generate(shape: CorpusShape, seed: int = 1, xp: Any = np, first: int = 0, last: int | None = None) -> Bags:
    """Return documents first .. last - 1 of a corpus.

    xp  numpy, or cupy to draw on the GPU: the same bags, for draws are of integers; a token is drawn by its number

    A token is of the background, or of one of SLOTS topics of its document. The weights of these are uniform on the
    simplex: the gaps between SLOTS - 1 random thresholds. So every 32 bits select a topic.
    """
    known = language(shape.words, seed)
    upper_N, word_N, topic_Q = (xp.asarray(array) for array in (known.upper_N, known.word_N, known.topic_Q))
    last = shape.documents if last is None else last
    length_D = lengths(shape, seed)
    starts_D1 = np.concatenate([[0], np.cumsum(length_D)])
    blocks, d = [], first
    while d < last:
        end = int(np.searchsorted(starts_D1, starts_D1[d] + BLOCK_TOKENS[xp.__name__], "right")) - 1
        end = min(last, max(d + 1, end))
        length = xp.asarray(length_D[d:end])
        topic_DS, threshold_DS = _documents(d, end, seed, topic_Q)
        document_T = repeat(xp.arange(end - d), length)
        random_T = _random(xp.arange(int(starts_D1[d]), int(starts_D1[end]), dtype=np.uint64), seed, 1)
        topic_T = _slots(random_T >> np.uint64(32), document_T, threshold_DS)
        topic_T = topic_DS.reshape(-1)[document_T * SLOTS + topic_T]
        topic_T = xp.where(
            (random_T & np.uint64(255)) < BACKGROUND, np.uint64(known.planted), topic_T.astype(np.uint64)
        )
        at_T = topic_T << np.uint64(32) | splitmix64(random_T + GAMMA) >> np.uint64(32)
        word_T = word_N[xp.searchsorted(upper_N, at_T, side="right")]
        blocks.append(_bags(document_T, word_T, end - d, shape.words))
        d = end
    return join_bags(blocks)


def _documents(first: int, last: int, seed: int, topic_Q: Any) -> tuple[Any, Any]:
    """Return the topics (D, SLOTS) uint32 of documents, and thresholds (D, SLOTS) uint64 below 2^32, one unused."""
    xp = array_module(topic_Q)
    random = _random(xp.arange(first * SLOTS, last * SLOTS, dtype=np.uint64), seed, 0).reshape(-1, SLOTS)
    return topic_Q[(random & np.uint64(PRIOR_QUANTILES - 1)).astype(np.int64)], random >> np.uint64(32)


def _slots(random_T: Any, document_T: Any, threshold_DS: Any) -> Any:
    """Return the number of thresholds at or below each token's 32 random bits."""
    found_T = document_T * 0
    for s in range(SLOTS - 1):
        found_T += threshold_DS[:, s][document_T] <= random_T
    return found_T


def _random(counters: Any, seed: int, stream: int) -> Any:
    """Return 64 random bits for each counter."""
    key = splitmix64(np.array([2 * seed + stream + 1], np.uint64))[0]
    return splitmix64((counters + np.uint64(1)) * GAMMA ^ key)


def _bags(document_T: Any, word_T: Any, documents: int, num_words: int) -> Bags:
    """Return the bags of the words of `documents` documents; each has one or more."""
    xp = array_module(word_T)
    key_T = document_T.astype(np.uint64) * np.uint64(num_words) + word_T
    key_T.sort()
    new_T = xp.ones(len(key_T), bool)
    new_T[1:] = key_T[1:] != key_T[:-1]
    start_P = xp.flatnonzero(new_T)
    key_P = key_T[start_P]
    counts_P = xp.diff(xp.concatenate([start_P, xp.asarray([len(key_T)])]))
    starts_D1 = xp.searchsorted(key_P, xp.arange(documents + 1, dtype=np.uint64) * np.uint64(num_words))
    words_P, counts_P = (key_P % np.uint64(num_words)).astype(np.uint32), counts_P.astype(np.uint32)
    return Bags(to_host_fast(starts_D1.astype(np.int64)), to_host_fast(words_P), to_host_fast(counts_P), num_words)
