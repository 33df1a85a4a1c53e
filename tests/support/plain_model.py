"""Random models, and a plain scorer of their words by KenLM's rules."""

import random

import numpy as np


class PlainModel:
    """A model from random n-grams of words, by the definitions.

    probs     log10 probabilities of n-grams; all of their suffixes have one, too
    backoffs  log10 backoffs that are not 0
    """

    def __init__(self, seed):
        rng = random.Random(seed)
        self.words = ["<s>", "</s>", *"abcd"[: rng.randint(1, 4)]]
        self.lacks_unknown = rng.random() < 0.3
        listed = self.words if self.lacks_unknown else ["<unk>", *self.words]
        rng.shuffle(listed)
        grams, order = {(w,) for w in listed}, rng.randint(2, 5)
        whole = rng.random() < 0.7
        for _ in range(rng.randint(1, 30)):
            gram = tuple(rng.choice(listed) for _ in range(rng.randint(2, order)))
            stops = range(1, len(gram) + 1)
            grams |= {gram[a:b] for b in stops for a in range(b)} if whole else {gram[:b] for b in stops}
        self.order = max(2, *map(len, grams))
        grams |= {(w, listed[0]) for w in listed[:1]}  # KenLM requires bigrams
        zeros = rng.choice([0.2, 0.9])
        self.probs = {g: np.float32(-5 * rng.random() if rng.random() < 0.9 else 0) for g in grams}
        self.backoffs = {g: np.float32(rng.uniform(-2, whole)) for g in grams if len(g) < self.order}
        self.backoffs = {g: b for g, b in self.backoffs.items() if rng.random() > zeros}
        self.text = self._arpa(rng)
        if self.lacks_unknown:
            self.probs["<unk>",] = np.float32(-100)
        given = len(self.probs)
        for gram in sorted(grams, key=len):
            for k in range(len(gram) - 2, 0, -1):
                if gram[k:] not in self.probs:  # its backoff probability
                    self.probs[gram[k:]] = self.probs[gram[k + 1 :]] + self.backoffs.get(gram[k:-1], np.float32(0))
        self.filled = len(self.probs) - given
        self.histories = (
            {g[:-1] for g in self.probs} | set(self.backoffs) | ({("<unk>",)} if self.lacks_unknown else set())
        )

    def _arpa(self, rng):
        lines = ["\\data\\"]
        levels = [[g for g in sorted(self.probs) if len(g) == n + 1] for n in range(self.order)]
        lines += [f"ngram {n}={len(level)}" for n, level in enumerate(levels, 1)]
        for n, level in enumerate(levels, 1):
            lines += ["", f"\\{n}-grams:"]
            rng.shuffle(level)
            for gram in level:
                none = rng.choice(["", "\t0", "\t-0.0"]) if n < self.order else ""
                backoff = f"\t{self.backoffs[gram]}" if gram in self.backoffs else none
                lines.append(f"{self.probs[gram]}\t{' '.join(gram)}{backoff}")
        return "\n".join([*lines, "", "\\end\\", ""])

    def step(self, history, word):
        """Return (log10 probability, length of the longest match, whether unknown, the history that matters next)."""
        unknown = word not in self.words
        gram = (*history, "<unk>" if unknown else word)
        while gram not in self.probs:
            gram = gram[1:]
        prob = self.probs[gram]
        for k in range(len(gram), len(history) + 1):
            prob += self.backoffs.get(history[-k:], np.float32(0))
        length, gram = len(gram), gram[-(self.order - 1) :]
        while gram and gram not in self.histories:
            gram = gram[1:]
        return float(prob), length, unknown, gram
