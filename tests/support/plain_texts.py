"""The score of a text under a model of words whose last word is partial, from KenLM's module."""

import math
import re

from mgpu_ngram import kenlm


class PlainTexts:
    """Scores whole texts; `known` are the words of the model as bytes, and `partial` is the look-ahead."""

    def __init__(self, arpa, known, partial):
        self.model, self.known, self.partial, self.scores = kenlm.Model(str(arpa)), set(known), partial, {}

    def step(self, state, word):
        after = kenlm.State()
        return math.log(10) * self.model.BaseScore(
            state, word.decode() if word in self.known else "<unk>", after
        ), after

    def start(self, bos):
        state = kenlm.State()
        (self.model.BeginSentenceWrite if bos else self.model.NullContextWrite)(state)
        return state

    def look_ahead(self, state, partial):
        if self.partial == "none":
            return 0.0
        state = state if self.partial == "sum" else self.start(False)
        words = [word for word in self.known if word.startswith(partial)]
        return math.log(sum(math.exp(self.step(state, word)[0]) for word in [*words, b"<unk>"]))

    def score(self, text, ended):
        """Return ln of a text of bytes: of its whole words, and of its end or the look-ahead."""
        if (text, ended) not in self.scores:
            *words, partial = re.split(b"[ \n\t]+", text)
            words, partial = ([*words, partial], b"") if ended else (words, partial)
            total, state = 0.0, self.start(True)
            for word in filter(None, words):
                score, state = self.step(state, word)
                total += score
            if ended:
                total += math.log(10) * self.model.BaseScore(state, "</s>", kenlm.State())
            self.scores[text, ended] = total + (self.look_ahead(state, partial) if partial else 0.0)
        return self.scores[text, ended]
