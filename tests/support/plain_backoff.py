"""Random backoff models whose rows sum to 1, as dictionaries, and what follows from the definitions."""

import math
import random

import numpy as np

from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.engine.trie.build import build_trie
from mgpu_ngram.engine.trie.levels import levels_of

UNKNOWN, BEGIN, END = 0, 1, 2  # word ids


class PlainBackoff:
    """A model: log10 probabilities of n-grams of word ids (tuples) and log10 backoffs of contexts."""

    def __init__(self, probs, backoffs):
        self.probs, self.backoffs = probs, backoffs
        self.order, self.words = max(map(len, probs)), sorted(g[0] for g in probs if len(g) == 1)

    @classmethod
    def random(cls, seed, order=4, words=7, whole=True):
        """Return a model that lists all suffixes of its n-grams, or not."""
        rng = random.Random(seed)
        weights = [rng.random() if w != BEGIN else 0 for w in range(words)]
        probs = {(w,): _log10(weights[w] / sum(weights)) for w in range(words)}
        grams = {(w,) for w in range(words)}
        for n in range(2, order + 1):
            for history in sorted(g for g in grams if len(g) == n - 1 and g[-1] != END and BEGIN not in g[1:]):
                fitting = [w for w in range(words) if w != BEGIN and (not whole or (*history[1:], w) in grams)]
                if rng.random() < (0.9 if n == 2 else 0.5):
                    grams |= {(*history, w) for w in rng.sample(fitting, min(len(fitting), rng.randint(1, words - 3)))}
        made = cls(probs, {})
        made.order = order
        for n in range(1, order):
            for history in sorted(g for g in grams if len(g) == n):
                listed = [w for w in range(words) if (*history, w) in grams]
                if listed:
                    mass, parts = rng.uniform(0.2, 0.9), [rng.uniform(0.1, 1) for _ in listed]
                    for w, part in zip(listed, parts, strict=True):
                        probs[*history, w] = _log10(mass * part / sum(parts))
                    made.backoffs[history] = float(np.float32(math.log10(made.weight(history))))
        return made

    @classmethod
    def of(cls, trie):
        """Return the model of a trie on the host."""
        probs, backoffs = {}, {}
        for n, level in enumerate(levels_of(trie), 1):
            grams = list(map(tuple, level.ids[0 : len(level)].tolist()))
            probs |= dict(zip(grams, level.prob.tolist(), strict=True))
            if n < trie.order:
                backoffs |= dict(zip(grams, level.backoff.tolist(), strict=True))
        return cls(probs, backoffs)

    def trie(self, to_device=np.asarray):
        levels = []
        for n in range(1, self.order + 1):
            grams = sorted(g for g in self.probs if len(g) == n)
            ids = np.array(grams, np.uint32).reshape(-1, n)
            prob = np.array([self.probs[g] for g in grams], np.float32)
            backoff = np.array([self.backoffs.get(g, 0) for g in grams], np.float32)
            levels.append(Ngrams(to_device(ids), to_device(prob), to_device(backoff) if n < self.order else None))
        return build_trie(levels)

    def prob(self, history, word):
        """Return P(word | history)."""
        for k in range(len(history) + 1):
            if (*history[k:], word) in self.probs:
                listed = self.probs[*history[k:], word]
                logs = [self.backoffs.get(history[j:], 0) for j in range(k)]
                return 0.0 if listed <= -99 else 10 ** (listed + sum(logs))
        return 0.0

    def listed_after(self, history):
        return [w for w in self.words if (*history, w) in self.probs]

    def weight(self, history, without=None):
        """Return the backoff weight by its definition, optionally as if one word after the history were not listed."""
        listed = [w for w in self.listed_after(history) if w != without]
        mass = 1 - sum(10 ** self.probs[*history, w] for w in listed)
        return mass / (1 - sum(self.prob(history[1:], w) for w in listed))

    def row_sum(self, history):
        return sum(self.prob(history, w) for w in self.words)

    def history_prob(self, history):
        """Return the product of its words' probabilities, with that of </s> for <s>."""
        first = END if history[0] == BEGIN else history[0]
        return math.prod([self.prob((), first), *(self.prob(history[:i], history[i]) for i in range(1, len(history)))])

    def change(self, ngram):
        """Return the relative change of the perplexity without an n-gram, exp(P(h) D(p || p')) - 1, from all words."""
        history, gone = ngram[:-1], ngram[-1]
        weight, divergence = self.weight(history, without=gone), 0.0
        for w in self.words:
            p = self.prob(history, w)
            kept = w != gone and (*history, w) in self.probs
            if p:
                divergence += p * math.log(p / (p if kept else weight * self.prob(history[1:], w)))
        return math.expm1(self.history_prob(history) * divergence)

    def histories(self):
        return {g[:-1] for g in self.probs if len(g) > 1}


def _log10(value):
    return float(np.float32(math.log10(value))) if value else -99.0
