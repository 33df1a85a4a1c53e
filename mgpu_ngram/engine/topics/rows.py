"""Rows of word counts of each topic, and the word probabilities that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy import uint32

from mgpu_ngram.core.bags.topic_model import TopicModel
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.compile_cpu import njit, read_only


@dataclass(frozen=True, eq=False)
class TopicRows:
    """Word counts of Z topics, a compressed sparse row matrix, and the prior of words.

    starts_Z1  (Z + 1,) int64: topic z has the entries starts_Z1[z] to starts_Z1[z + 1]
    words_N    (N,) uint32, word ids, ascending within a topic
    counts_N   (N,) uint32, above 0; or float64, to add the pseudo-counts of seed words
    beta_V     (V,) float64, above 0, the Dirichlet prior of each word
    excess_N   (N,) float64, the part of counts_N that is not tokens but a seed word's prior above beta_V; None: 0
    """

    starts_Z1: np.ndarray
    words_N: np.ndarray
    counts_N: np.ndarray
    beta_V: np.ndarray
    excess_N: np.ndarray | None = None

    @classmethod
    def of_words(
        cls,
        word_starts_V1: np.ndarray,
        topics_N: np.ndarray,
        counts_N: np.ndarray,
        num_topics: int,
        beta: float | np.ndarray,
    ) -> TopicRows:
        """Return the rows from counts that are stored by word.

        word_starts_V1  (V + 1,) int64: word v has the entries word_starts_V1[v] to word_starts_V1[v + 1]
        topics_N        (N,) topics below num_topics, in any order within a word
        counts_N        (N,) counts above 0
        beta            one prior for all words, or (V,)
        """
        starts_Z1 = np.zeros(num_topics + 1, np.int64)
        np.cumsum(np.bincount(topics_N, minlength=num_topics), out=starts_Z1[1:])
        words_N, by_topic_N = np.empty(len(topics_N), uint32), np.empty_like(counts_N)
        inputs = map(read_only, (word_starts_V1, topics_N, counts_N))
        _transpose(*inputs, starts_Z1[:-1].copy(), words_N, by_topic_N)
        return cls(starts_Z1, words_N, by_topic_N, _priors(beta, len(word_starts_V1) - 1))

    @classmethod
    def of_model(cls, model: TopicModel) -> TopicRows:
        """Return the rows of a model.

        A seed word has its least prior in beta_V; the excess of its other priors is added to its counts.
        """
        beta_V, seeds = np.full(model.num_words, model.priors.beta), model.priors.seeds
        arrays = model.word_starts_V1, model.topics_N, model.counts_N
        if not seeds:
            return cls.of_words(*arrays, model.num_topics, beta_V)
        words_N = np.repeat(np.arange(model.num_words), np.diff(model.word_starts_V1))
        kept_N = ~np.isin(words_N, [*seeds])
        words, topics, counts = [words_N[kept_N]], [model.topics_N[kept_N]], [model.counts_N[kept_N].astype(np.float64)]
        excesses = [np.zeros(len(words[0]))]
        for word, prior_Z in seeds.items():
            entries = slice(*model.word_starts_V1[word : word + 2].tolist())
            beta_V[word] = prior_Z.min()
            excess_Z = prior_Z.astype(np.float64) - beta_V[word]
            count_Z = excess_Z.copy()
            count_Z[model.topics_N[entries]] += model.counts_N[entries]
            own = np.flatnonzero(count_Z)
            words.append(np.full(len(own), word))
            topics.append(own.astype(np.uint16))
            counts.append(count_Z[own])
            excesses.append(excess_Z[own])
        order = np.argsort(np.concatenate(words), kind="stable")
        starts_V1 = np.searchsorted(np.concatenate(words)[order], np.arange(model.num_words + 1))
        rows, excess = (
            cls.of_words(
                starts_V1, np.concatenate(topics)[order], np.concatenate(values)[order], model.num_topics, beta_V
            )
            for values in (counts, excesses)
        )
        return replace(rows, excess_N=excess.counts_N)

    @property
    def num_topics(self) -> int:
        """Return Z, the number of topics."""
        return len(self.starts_Z1) - 1

    @property
    def num_words(self) -> int:
        """Return V, the number of words of the vocabulary."""
        return len(self.beta_V)

    @cached_property
    def tokens_N(self) -> np.ndarray:
        """Return (N,) the tokens of each entry: counts_N without the priors of seed words."""
        return self.counts_N if self.excess_N is None else np.rint(self.counts_N - self.excess_N)

    @cached_property
    def totals_Z(self) -> np.ndarray:
        """Return (Z,) float64, the tokens of each topic."""
        return self._sums_Z(self.tokens_N)

    @cached_property
    def shares_Z(self) -> np.ndarray:
        """Return (Z,) float64, the share of all tokens that each topic has; equal shares if no token exists."""
        tokens = self.totals_Z.sum()
        return self.totals_Z / tokens if tokens else np.full(self.num_topics, 1 / self.num_topics)

    @cached_property
    def scales_Z(self) -> np.ndarray:
        """Return (Z,) float64, 1 / (n_k + sum of beta): the factor from counts to probabilities."""
        return 1 / (self._sums_Z(self.counts_N) + (self.beta_V.sum() or 1.0))  # without words, anything

    @cached_property
    def word_totals_V(self) -> np.ndarray:
        """Return (V,) float64, the tokens of each word in all topics."""
        return self._word_sums(self.tokens_N, np.ones(self.num_topics))

    def word_sums(self, weight_Z: np.ndarray, squared: bool = False) -> np.ndarray:
        """Return (V,) float64, the sum over topics of weight_Z times the word's counts, or times their squares."""
        return self._word_sums(self.counts_N, weight_Z, squared)

    def _sums_Z(self, values_N: np.ndarray) -> np.ndarray:
        """Return (Z,) float64, the sum of a value of each entry over the entries of each topic."""
        sums_N1 = np.concatenate([[0], np.cumsum(values_N, dtype=np.float64)])
        return np.diff(sums_N1[self.starts_Z1])

    def _word_sums(self, values_N: np.ndarray, weight_Z: np.ndarray, squared: bool = False) -> np.ndarray:
        """As `word_sums`, for any values of the entries in place of counts."""
        sums_V = np.zeros(self.num_words)
        inputs = self.starts_Z1, self.words_N, values_N, np.asarray(weight_Z, np.float64)
        _add_rows(*map(read_only, inputs), squared, sums_V)
        return sums_V

    def entries(self, z: int) -> slice:
        """Return the entries of topic z."""
        return slice(int(self.starts_Z1[z]), int(self.starts_Z1[z + 1]))

    def row(self, z: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of topic z and their counts, as views."""
        entries = self.entries(z)
        return self.words_N[entries], self.counts_N[entries]

    def probabilities(self, z: int) -> np.ndarray:
        """Return (V,) float64, p(word | topic z) = (n_kv + beta_v) / (n_k + sum of beta)."""
        words_R, counts_R = self.row(z)
        weight_V = self.beta_V.copy()
        weight_V[words_R] += counts_R
        return weight_V * self.scales_Z[z]

    def take(self, topics_K: np.ndarray) -> TopicRows:
        """Return some topics, in the given order."""
        sizes_K = np.diff(self.starts_Z1)[topics_K]
        entries = [np.arange(self.starts_Z1[z], self.starts_Z1[z + 1]) for z in np.asarray(topics_K).tolist()]
        entries_N = np.concatenate([np.empty(0, np.int64), *entries])
        starts_K1 = np.concatenate([[0], np.cumsum(sizes_K)])
        excess_N = None if self.excess_N is None else self.excess_N[entries_N]
        return TopicRows(starts_K1, self.words_N[entries_N], self.counts_N[entries_N], self.beta_V, excess_N)


def _priors(beta: float | np.ndarray, num_words: int) -> np.ndarray:
    beta_V = np.broadcast_to(np.asarray(beta, np.float64), num_words).copy()
    if not (beta_V > 0).all():
        raise InputError(f"beta is {beta_V.min():g} for some word but must be above 0")
    return beta_V


@njit(nogil=True, cache=True)
def _transpose(word_starts_V1, topics_N, counts_N, next_Z, words_N, by_topic_N):
    """Write the entries of each topic from position next_Z on. Words ascend because they are read in order."""
    for v in range(len(word_starts_V1) - 1):
        for e in range(word_starts_V1[v], word_starts_V1[v + 1]):
            to = next_Z[topics_N[e]]
            words_N[to], by_topic_N[to] = v, counts_N[e]
            next_Z[topics_N[e]] = to + 1


@njit(nogil=True, cache=True)
def _add_rows(starts_Z1, words_N, counts_N, weight_Z, squared, sums_V):
    for z in range(len(weight_Z)):
        for e in range(starts_Z1[z], starts_Z1[z + 1]):
            count = float(counts_N[e])
            sums_V[words_N[e]] += weight_Z[z] * (count * count if squared else count)
