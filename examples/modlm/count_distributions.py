"""Distributions of n-gram counts, and their features, for a mixture: see train_modlm.py beside this file.

The features and the discounted distributions are those of Neubig and Dyer, "Generalizing and hybridizing count-based
and neural language models", 2016, sections 4.2 and 5.1.
"""

from __future__ import annotations

import numpy as np

import mgpu_ngram as ng

BEGIN, END, UNK, FIRST_WORD = 0, 1, 2, 3  # ids
WORD_BITS = 24
LN_10 = np.log(10)
FEATURES = 4  # of each order
FALLBACK = (0.5, 1, 1.5)  # discounts of orders with too few n-grams


class CountDistributions:
    """N = order + 2 distributions of counted sentences: of each order alone, Kneser-Ney over all orders, and uniform.

    sentences  arrays of word ids, without BEGIN and END
    order      the longest n-grams
    num_words  ids are below it
    """

    def __init__(self, sentences: list[np.ndarray], order: int, num_words: int):
        self.order, self.num_words = order, num_words
        separator = num_words
        marked = [np.concatenate([[BEGIN], sentence, [END, separator]]) for sentence in sentences]
        stream_T = np.concatenate(marked).astype(np.uint32)
        counts = ng.count(stream_T, order, unit="id", separator_id=separator)
        self.levels, below = [], None
        for n in range(1, order + 1):
            rows = counts.order(n).to_arrow()
            ids_GN = rows["ngram"].combine_chunks().flatten().to_numpy().reshape(-1, n).astype(np.int64)
            level = Level(ids_GN, rows["count"].to_numpy().astype(np.float64), below)
            self.levels.append(level)
            below = level
        words = np.concatenate([np.append(sentence, separator) for sentence in sentences]).astype(np.uint32)
        self.model = ng.estimate(
            words, order, unit="id", separator_id=separator, discount_fallback=FALLBACK, device="cpu"
        )  # on the CPU, its states are NumPy arrays
        self.word_V = np.array([self.model.vocabulary.id(str(v)) for v in range(num_words)])

    def of(self, sentences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return ln P of each word and END by each distribution, (T, N), and the features, (T, FEATURES * order).

        The features of an order are: whether the history was not seen; ln of its total count, of its number of
        distinct words, and of the discounted mass. Those of unseen histories are 0.
        """
        targets_T = np.concatenate([np.append(sentence, END) for sentence in sentences])
        words = [np.concatenate([[BEGIN], sentence]) for sentence in sentences]
        log_probs_TN = np.full((len(targets_T), self.order + 2), -np.inf, np.float32)
        features_TF = np.zeros((len(targets_T), FEATURES * self.order), np.float32)
        for n, level in enumerate(self.levels, 1):
            nodes_T = np.zeros(len(targets_T), np.int64)  # histories of no words
            for k in range(1, n):  # the words of a history, the farthest first
                before = [np.concatenate([np.full(min(len(w), n - k - 1), -1), w])[: len(w)] for w in words]
                nodes_T = self.levels[k - 1].find(nodes_T, np.concatenate(before))
            log_probs_TN[:, n - 1], features_TF[:, FEATURES * (n - 1) : FEATURES * n] = level.look_up(
                nodes_T, targets_T
            )
        log_probs_TN[:, self.order] = self._kneser_ney(sentences)
        log_probs_TN[:, self.order + 1] = -np.log(self.num_words - 1)  # all but BEGIN
        return log_probs_TN, features_TF

    def _kneser_ney(self, sentences: list[np.ndarray]) -> np.ndarray:
        """Return ln P of each word and END by the Kneser-Ney model, (T,)."""
        lengths_S = np.array([len(sentence) for sentence in sentences])
        starts_S = np.cumsum(lengths_S + 1) - lengths_S - 1
        log10_T = np.empty(int((lengths_S + 1).sum()))
        live_S = np.arange(len(sentences))
        states_S = self.model.start(len(sentences))
        for i in range(int(lengths_S.max()) + 1):
            ended = lengths_S[live_S] == i
            log10_T[starts_S[live_S[ended]] + i] = self.model.final(states_S[ended])
            live_S, states_S = live_S[~ended], states_S[~ended]
            words_S = self.word_V[[sentences[s][i] for s in live_S]].astype(np.int64)
            log10_T[starts_S[live_S] + i], states_S = self.model.step(states_S, words_S)
        return log10_T * LN_10


class Level:
    """The n-grams of one order as nodes, sorted by the node of their history and their last word.

    ids_GN    (G, n) word ids
    counts_G  (G,)
    below     the level of histories, None for order 1
    """

    def __init__(self, ids_GN: np.ndarray, counts_G: np.ndarray, below: Level | None):
        nodes_G = np.zeros(len(ids_GN), np.int64)
        path = [] if below is None else below.path
        for k, level in enumerate(path):
            nodes_G = level.find(nodes_G, ids_GN[:, k])
        kept = ids_GN[:, -1] != BEGIN  # never predicted, but a history: it is kept with a count of 0
        keys_G = nodes_G << WORD_BITS | ids_GN[:, -1]
        by_key = np.argsort(keys_G)
        self.path = [*path, self]
        self.keys_G, self.counts_G = keys_G[by_key], np.where(kept, counts_G, 0)[by_key]
        of_counts = np.bincount(np.minimum(self.counts_G, 5).astype(np.int64), minlength=6)
        self.discounts = np.array([0, *discounts_of(of_counts[1:5])])
        discount_G = self.discounts[np.minimum(self.counts_G, 3).astype(np.int64)]
        histories = 1 if below is None else len(below.keys_G)
        parents_G = self.keys_G >> WORD_BITS
        self.total_H, self.types_H, self.mass_H = (
            np.bincount(parents_G, weights, histories) for weights in (self.counts_G, self.counts_G > 0, discount_G)
        )

    def find(self, nodes_T: np.ndarray, words_T: np.ndarray) -> np.ndarray:
        """Return the node of each history with a word behind it; -1 where there is none."""
        wanted_T = nodes_T << WORD_BITS | words_T
        at_T = np.minimum(np.searchsorted(self.keys_G, wanted_T), len(self.keys_G) - 1)
        return np.where((nodes_T >= 0) & (words_T >= 0) & (self.keys_G[at_T] == wanted_T), at_T, -1)

    def look_up(self, histories_T: np.ndarray, targets_T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ln of the discounted probability of each target, (T,), and features of its history, (T, FEATURES)."""
        seen_T = (histories_T >= 0) & (self.total_H[histories_T] > 0)
        total_T, types_T, mass_T = (
            np.where(seen_T, a[histories_T], 1) for a in (self.total_H, self.types_H, self.mass_H)
        )
        nodes_T = self.find(np.where(seen_T, histories_T, -1), targets_T)
        count_T = np.where(nodes_T >= 0, self.counts_G[nodes_T], 0)
        discounted_T = count_T - self.discounts[np.minimum(count_T, 3).astype(np.int64)]
        with np.errstate(divide="ignore"):
            log_probs_T = np.log(discounted_T / np.where(seen_T, total_T - mass_T, 1))
        features = [~seen_T, np.log(total_T), np.log(types_T), np.log(mass_T)]
        return log_probs_T, np.stack(features, axis=1)


def discounts_of(of_counts: np.ndarray) -> tuple[float, ...]:
    """Return the discounts of counts 1, 2 and 3 or more; FALLBACK unless each is above 0 and below the count.

    of_counts  the number of n-grams that have each of the counts 1 to 4

    Source: Chen and Goodman, "An empirical study of smoothing techniques for language modeling", 1998, equation 26.
    """
    if not of_counts.all():
        return FALLBACK
    t1, t2, t3, t4 = of_counts.tolist()
    y = t1 / (t1 + 2 * t2)
    discounts = 1 - 2 * y * t2 / t1, 2 - 3 * y * t3 / t2, 3 - 4 * y * t4 / t3
    return discounts if all(0 < d < i for i, d in enumerate(discounts, 1)) else FALLBACK
