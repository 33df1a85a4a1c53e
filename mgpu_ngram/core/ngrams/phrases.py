"""N-grams that can be cut from a concatenation of phrases, as in KenLM's `filter phrase`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Phrases:
    """The phrases of one line, as sequences of words or of ids; the id -1 is any word that the model lacks."""

    def __init__(self, phrases: Sequence[Sequence[Any]]):
        self.wholes = {tuple(phrase) for phrase in phrases if phrase}
        self.heads = {phrase[:end] for phrase in self.wholes for end in range(1, len(phrase) + 1)}
        self.tails = {phrase[begin:] for phrase in self.wholes for begin in range(len(phrase))}
        self.insides = {
            phrase[begin:end]
            for phrase in self.wholes
            for begin in range(len(phrase))
            for end in range(begin + 1, len(phrase) + 1)
        }

    def allow(self, words: tuple[Any, ...]) -> bool:
        """Return whether words are the end of a phrase, whole phrases, and the beginning of a phrase; or lie inside one
        phrase.
        """
        if not words or words in self.insides:
            return True
        ends = {k for k in range(1, len(words)) if words[:k] in self.tails}  # where a phrase may begin
        for begin in range(1, len(words)):
            if begin not in ends:
                continue
            if words[begin:] in self.heads:
                return True
            ends |= {end for end in range(begin + 1, len(words)) if words[begin:end] in self.wholes}
        return False
