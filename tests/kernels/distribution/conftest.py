"""Fixtures of tests of sampling: a row as a mixture of levels, and the rules of drawing in plain Python."""

from itertools import accumulate

import numpy as np
import pytest

from mgpu_ngram.kernels.distribution.draw_words import Siblings
from mgpu_ngram.kernels.distribution.find_histories import Children
from mgpu_ngram.kernels.distribution.sum_children import sum_children

SIXTY_FOUR = 2**64 - 1


def mix(x):
    """The finaliser of MurmurHash3."""
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & SIXTY_FOUR
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & SIXTY_FOUR
    return x ^ x >> 33


def bits(seed, number, draw):
    golden, x = 0x9E3779B97F4A7C15, 0
    for part in seed, number, draw:
        x = mix(x + part + golden & SIXTY_FOUR)
    return x


def uniform(seed, number, draw):
    return (bits(seed, number, draw) >> 11) / 2**53


class Mixture:
    """One history: log10 of V words and, shortest history first, (children {word: log10}, log10 backoff)."""

    def __init__(self, log10_V, *history):
        self.levels = [dict(enumerate(log10_V)), *(dict(sorted(children.items())) for children, _ in history)]
        self.levels = [{w: float(np.float32(x)) for w, x in level.items()} for level in self.levels]
        self.backoffs = [float(np.float32(backoff)) for _, backoff in history]

    def factors(self):
        """Return log10 of the backoffs of each level, added from the longest history on."""
        found = [0.0]
        for backoff in reversed(self.backoffs):
            found.insert(0, found[0] + backoff)
        return found

    def values(self, left_out=-1):
        """Return {word: log10} of the row."""
        row = {}
        for level, factor in zip(self.levels, self.factors(), strict=True):
            row |= {word: x + factor for word, x in level.items()}
        row.pop(left_out, None)
        return row

    def weights(self, inverse=1.0, left_out=-1):
        return {word: 10.0 ** (inverse * x) if x > -45 else 0.0 for word, x in self.values(left_out).items()}

    def allowed(self, inverse=1.0, top_k=0, top_p=1.0, left_out=-1):
        """Return the weights of the words that can be drawn, by rank."""
        values, weights = self.values(left_out), self.weights(inverse, left_out)
        ranked = sorted(values, key=lambda w: (-values[w], w))
        before = [0, *accumulate(weights[w] for w in ranked)]
        last = top_p * sum(weights.values()) if top_p < 1 else np.inf
        return {
            w: weights[w]
            for i, w in enumerate(ranked)
            if weights[w] and (top_k == 0 or i < top_k) and (i == 0 or before[i] < last)
        }

    def tries(self, seed, number, inverse, left_out, most):
        """Yield the words of tries; None: a longer history has the word, too."""
        sums = []
        for level in self.levels:
            weights = (10.0 ** (inverse * x) if x > -45 and w != left_out else 0.0 for w, x in level.items())
            sums.append(list(accumulate(weights)))
        masses = [s[-1] * 10.0 ** (inverse * f) if s else 0.0 for s, f in zip(sums, self.factors(), strict=True)]
        upto = list(accumulate(reversed(masses)))
        for t in range(most):
            x = uniform(seed, number, 2 * t) * upto[-1]
            m = len(upto) - 1 - next(i for i, u in enumerate(upto) if u > x)
            y = uniform(seed, number, 2 * t + 1) * sums[m][-1]
            word = list(self.levels[m])[next(i for i, s in enumerate(sums[m]) if s > y)]
            yield None if m + 1 < len(self.levels) and word in self.levels[m + 1] else word

    def drawn(self, seed, number, inverse=1.0, top_k=0, top_p=1.0, left_out=-1, most=1000):
        """Draw by the rule, with Python's numbers."""
        allowed = self.allowed(inverse, top_k, top_p, left_out)
        if not allowed:
            return -1
        return next((w for w in self.tries(seed, number, inverse, left_out, most) if w in allowed), -2)

    def arrays(self, to_device, numbers, inverse=1.0, left_out=-1, code=np.uint32):
        """Return the arguments that `draw_words` and `draw_ranked` share, for the same history with these numbers."""
        H, K = len(numbers), len(self.backoffs)
        words = [word for level in self.levels for word in level]
        logs = np.array([x for level in self.levels for x in level.values()], np.float32)
        ends = np.cumsum([len(level) for level in self.levels]).astype(code)
        children = Children(
            np.tile(ends[:-1], (H, 1)),
            np.tile(ends[1:], (H, 1)),
            np.tile(np.float32(self.backoffs), (H, 1)).reshape(H, K),
        )
        word_G, prob_G = to_device(np.array(words, np.uint32)), to_device(logs)
        sums_G = sum_children(prob_G, word_G, to_device(np.unique(ends)), inverse, left_out)
        return {
            "children": Children(*map(to_device, children)),
            "siblings": Siblings(word_G, sums_G, len(self.levels[0])),
            "numbers_H": to_device(np.array(numbers, np.int64)),
            "inverse": inverse,
        }, prob_G


@pytest.fixture(scope="session")
def mixture():
    """Return the class `Mixture`."""
    return Mixture


@pytest.fixture(scope="session")
def random_mixture():
    """Return a function of (rng, V, K) that makes a `Mixture`: nested children, many ties, some words of no weight."""

    def make(rng, V, K):
        def values(count):
            step = rng.choice([4, 10**6])
            made = -rng.integers(0, step + 1, count) / step * rng.choice([1, 8])
            return np.where(rng.random(count) < 0.03, -99, made).tolist()

        among, history = np.arange(V), []
        for _ in range(K):
            among = among[rng.random(len(among)) < rng.choice([1, 0.5, 0.05])]
            history.append((dict(zip(among.tolist(), values(len(among)), strict=True)), values(1)[0] / 4))
        return Mixture(values(V), *history)

    return make


@pytest.fixture(scope="session")
def random_number():
    """Return a function of (seed, number, draw): that random number, of 64 bits, in plain Python."""
    return bits


@pytest.fixture(scope="session")
def first_bits():
    """Return a function of (seed, number, draw): the first bit of that random number."""
    return lambda seed, number, draw: bits(seed, number, draw) >> 63


@pytest.fixture(scope="session")
def chi_square():
    """Return chi_square(words, {word: weight}): Pearson's statistic. No other word may come."""

    def compare(words, weights):
        seen = [words.count(w) for w in weights]
        expected = [len(words) * weight / sum(weights.values()) for weight in weights.values()]
        assert sum(seen) == len(words) and min(expected) > 5
        return sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))

    return compare
