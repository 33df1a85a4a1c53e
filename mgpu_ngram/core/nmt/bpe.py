"""Byte pair encoding of words, as subword-nmt applies codes of versions 0.1 and 0.2."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_ngram.core.errors import InputError

WORD_END = "</w>"
SEPARATOR = "@@"  # ends each piece of a word except the last one
NO_RANK = 1 << 62
VERSIONS = {"0.1": False, "0.2": True}  # whether the last letter carries the end of the word from the start


def words_in_line(line: str) -> list[str]:
    """Return the words of a line. As in Amun, only spaces separate words, so U+00A0 is part of a word."""
    return [word for word in line.split(" ") if word]


class Bpe:
    """Splits words by a list of merges.

    lines  merges, most frequent first, perhaps after "#version: 0.2"

    Raises InputError for a line that is not a merge.
    """

    def __init__(self, lines: Iterable[str], name: str = "codes"):
        self._rank: dict[tuple[str, str], int] = {}
        self._known: dict[str, tuple[str, ...]] = {}
        self._joined_end = False
        for number, line in enumerate(lines):
            line = line.strip("\r\n ")
            if number == 0 and line.startswith("#version:"):
                version = line.removeprefix("#version:").strip()
                if version not in VERSIONS:
                    raise InputError(
                        f"{name!r} has BPE codes of version {version!r} but 0.1 and 0.2 are read; "
                        "learn the codes again with subword-nmt"
                    )
                self._joined_end = VERSIONS[version]
            elif line:
                pair = line.split(" ")
                if len(pair) != 2:
                    raise InputError(
                        f"line {number + 1} of {name!r} has {len(pair)} symbols but a merge has 2: {line!r}"
                    )
                self._rank.setdefault((pair[0], pair[1]), number)

    def split(self, word: str) -> tuple[str, ...]:
        """Return the pieces of a word; all but the last end with SEPARATOR."""
        if word not in self._known:
            pieces = self._merge(word)
            self._known[word] = (*(piece + SEPARATOR for piece in pieces[:-1]), pieces[-1])
        return self._known[word]

    def encode(self, line: str) -> str:
        """Return a line with its words split."""
        return " ".join(piece for word in words_in_line(line) for piece in self.split(word))

    def encode_factors(self, line: str) -> str:
        """Return a line of "word|factor" tokens with words split; each piece has the factors of its word."""
        tokens = []
        for token in words_in_line(line):
            word, bar, factors = token.partition("|")
            tokens += [piece + bar + factors for piece in self.split(word)] if word else [token]
        return " ".join(tokens)

    def _merge(self, word: str) -> list[str]:
        """Merge the pair of the lowest rank, everywhere, until no pair has a rank."""
        if len(word) < 2:
            return [word]
        symbols = [*word[:-1], word[-1] + WORD_END] if self._joined_end else [*word, WORD_END]
        while len(symbols) > 1:
            pairs = zip(symbols[:-1], symbols[1:], strict=True)
            rank, best = min((self._rank.get(pair, NO_RANK), pair) for pair in pairs)
            if rank == NO_RANK:
                break
            merged, i = [], 0
            while i < len(symbols):
                if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == best:
                    merged.append(best[0] + best[1])
                    i += 2
                else:
                    merged.append(symbols[i])
                    i += 1
            symbols = merged
        last = symbols[-1].removesuffix(WORD_END)
        return [*symbols[:-1], last] if last else symbols[:-1]


def without_bpe(line: str) -> str:
    """Return a line with split words joined."""
    return f"{line} ".replace(f"{SEPARATOR} ", "").rstrip(" ")
