"""Models of plain counts as SRILM's ngram-count defines them, in plain Python: slow, from the formulas."""

import math
from collections import Counter, defaultdict

LEAST = 3e-6


class PlainSmoothing:
    """A model: probabilities of n-grams (tuples of words), and of contexts the backoff weights and their two masses.

    lines       of words; each is a sentence
    vocabulary  words; others are <unk>. None: the words of the lines
    thresholds  by order: n-grams that occur at most that often are dropped
    values      absolute: discounts; additive: deltas; good-turing: highest discounted counts; by order
    """

    def __init__(self, lines, order, name, vocabulary=None, closed=False, interpolate=False, thresholds=(), values=()):
        self.order, self.name, self.interpolate = order, name, interpolate
        words = {w for line in lines for w in line} if vocabulary is None else set(vocabulary)
        self.events = sorted((words | {"</s>"} | (set() if closed else {"<unk>"})) - ({"<unk>"} if closed else set()))
        self.probs, self.weights, self.masses = {("<s>",): 0.0}, {}, {}
        counts = Counter()
        for line in lines:
            marked = ["<s>", *(w if w in words else "<unk>" for w in line), "</s>"]
            for n in range(1, order + 1):
                counts.update(zip(*(marked[i:] for i in range(n)), strict=False))
        for n in range(1, order + 1):
            threshold = 0 if not thresholds else thresholds[min(n, len(thresholds)) - 1]
            value = values[min(n, len(values)) - 1] if values else None
            self._order(n, {g: c for g, c in counts.items() if len(g) == n}, threshold, value, closed)

    def prob(self, context, word):
        """Return P(word | context) by backing off."""
        gram = (*context, word)
        if gram in self.probs:
            return self.probs[gram]
        return self.weights.get(context, 1.0) * self.prob(context[1:], word) if context else 0.0

    def row_sum(self, context):
        return sum(self.prob(context, word) for word in self.events)

    def _order(self, n, counts, threshold, value, closed):
        seen = Counter(c for g, c in counts.items() if g[-1] in self.events)
        after = defaultdict(dict)
        for gram, count in counts.items():
            if gram[-1] in self.events and not (closed and "<unk>" in gram):
                after[gram[:-1]][gram[-1]] = count
        mass_of, extra, weight, is_exact = self._rule(n, seen, value)
        if threshold:
            is_exact = False
        for context, words in sorted(after.items()):
            self._context(context, words, threshold, mass_of, extra, weight, is_exact)

    def _rule(self, n, seen, value):
        """Return (mass of a count, what T and U add to T, the mass for U words, whether nothing is discounted)."""
        V = len(self.events)
        if self.name == "witten-bell":
            return (lambda c: c), (lambda U: U), 1.0, False
        if self.name == "absolute":
            D = seen[1] / (seen[1] + 2 * seen[2]) if value is None else value
            return (lambda c: c - D), (lambda U: 0), D, D == 0
        if self.name == "additive":
            return (lambda c: c + value), (lambda U: V * value), 0.0, value == 0
        most = value if seen[1] else 0
        while most and not seen[most + 1]:
            most -= 1
        factors = {}
        for c in range(1, most + 1):
            common, factors[c] = (most + 1) * seen[most + 1] / seen[1], 1.0
            if seen[c]:
                ratio = (c + 1) * seen[c + 1] / (c * seen[c])
                if ratio <= 1 and common != 1 and LEAST < (ratio - common) / (1 - common) <= 1:
                    factors[c] = (ratio - common) / (1 - common)
        return (lambda c: c * factors.get(c, 1.0)), (lambda U: 0), 0.0, not factors

    def _context(self, context, words, threshold, mass_of, extra, weight, is_exact):
        T, U, n = sum(words.values()), len(words), len(context) + 1
        kept = {w: mass_of(c) for w, c in words.items() if c > threshold}
        lower = {w: self.prob(context[1:], w) if n > 1 else 1 / len(self.events) for w in kept}
        gamma, more = weight if self.interpolate else 0.0, 0
        while True:
            Z = T + extra(U) + more
            probs = {w: mass / Z + gamma * U / Z * lower[w] for w, mass in kept.items()}
            total = math.fsum(probs.values())
            if is_exact or U >= len(self.events) or total <= 1 - LEAST:
                break
            gamma, more = 0.0, more if gamma else more + 1
        left = max(0.0, 1 - total) if 1 - total >= LEAST else 0.0
        if n == 1:
            unseen = [w for w in self.events if w not in probs] or self.events
            for w in unseen:
                probs[w] = probs.get(w, 0.0) + left / len(unseen)
        else:
            rest = 1 - math.fsum(lower.values())
            self.masses[context] = left, rest
            self.weights[context] = left / rest if rest >= LEAST else 1.0
            if rest < LEAST and left:
                probs = {w: p / total for w, p in probs.items()}
        self.probs |= {(*context, w): p for w, p in probs.items()}
