"""KenLM's `filter raw`: find the lines of a text whose words allow an n-gram. Words have no ids here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from mgpu_ngram.core.ngrams.phrases import Phrases

SENTENCE_END = b"</s>"


@dataclass(frozen=True)
class LineWords:
    """The words of the lines of a text. A set of lines is a number whose bit k stands for line k.

    lines    number of lines
    words    the set of lines that have each word
    phrases  the phrases of each line, if n-grams must fit into phrases; else None
    """

    lines: int
    words: dict[bytes, int]
    phrases: list[Phrases] | None

    @classmethod
    def of(cls, text: bytes, by_line: bool, phrases: bool = False) -> LineWords:
        """Read a text. As in KenLM, lines without words do not count.

        by_line  False: the whole text is one line
        phrases  a line holds phrases, separated by tabs
        """
        lines = [line for line in text.split(b"\n") if line.split()] if by_line else [text]
        words: dict[bytes, int] = {}
        for k, line in enumerate(lines):
            for word in set(line.split()):
                words[word] = words.get(word, 0) | 1 << k
        found = (
            [Phrases([phrase.split() for phrase in line.split(b"\t")]) for line in lines or [b""]] if phrases else None
        )
        return cls(len(lines), words, found)

    @cached_property
    def every(self) -> int:
        """The set of all lines.

        A text without lines has one line without words, which allows words in angle brackets.
        """
        return (1 << max(1, self.lines)) - 1

    def allowing(self, ngram: bytes) -> int:
        """Return the lines that have all words of an n-gram. Words in angle brackets match all lines.

        Spaces separate the words. With phrases, a first word in angle brackets is ignored, and so are </s> and the
        words after it.
        """
        found, words = self.every, [word for word in ngram.split(b" ") if word]
        if self.phrases is not None:
            words = words[1:] if words and _is_tag(words[0]) else words
            words = words[: words.index(SENTENCE_END)] if SENTENCE_END in words else words
        for word in words:
            if not _is_tag(word):
                found &= self.words.get(word, 0)
        for k, phrases in enumerate(self.phrases or []):
            if found >> k & 1 and not phrases.allow(tuple(words)):
                found ^= 1 << k
        return found


def _is_tag(word: bytes) -> bool:
    return word.startswith(b"<") and word.endswith(b">")


def ngram_of(line: bytes, context: bool) -> bytes:
    """Return the words of a line to look up: the n-gram before the first tab; `context`: without its last word."""
    ngram = line.partition(b"\t")[0]
    return ngram.rpartition(b" ")[0] if context else ngram


def allowed_lines(lines: Iterable[bytes], words: LineWords, context: bool) -> Iterable[tuple[bytes, int]]:
    """Yield (a line of an n-gram, the lines of the text that allow it) for each n-gram that some line allows.

    context  ignore the last word of each n-gram
    """
    for line in lines:
        if found := words.allowing(ngram_of(line, context)):
            yield line, found
