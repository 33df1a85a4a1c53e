"""Lexical shortlists: the target words that a translation of a sentence may use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.small_files import read_lines
from mgpu_ngram.core.nmt.bpe import words_in_line
from mgpu_ngram.core.nmt.vocabulary import NmtVocabulary


class Shortlist:
    """The most frequent target words, and translations of each source word.

    first         target words 0 to first - 1 are always allowed
    translations  {source word: ids of target words}
    """

    def __init__(self, first: int, translations: dict[int, np.ndarray]):
        self.first, self.translations = first, translations

    def allowed(self, source_T: np.ndarray, vocab_size: int) -> np.ndarray:
        """Return (V,) bool, whether each target word may translate the words of a sentence."""
        allowed_V = np.zeros(vocab_size, bool)
        allowed_V[: self.first] = True
        for word in set(source_T.tolist()):
            ids = self.translations.get(word)
            if ids is not None:
                allowed_V[ids[ids < vocab_size]] = True
        return allowed_V


def load_shortlist(path: str, source: NmtVocabulary, target: NmtVocabulary, first: int, most: int) -> Shortlist:
    """Return the shortlist in a file of probabilities: "target source p" by spaces, or "source TAB target TAB p".

    first  number of most frequent target words that are always allowed; </s> and <unk> are always allowed, too
    most   number of translations of a source word that are kept: the most probable ones, of equal ones the lowest ids

    Lines with words that are not in the vocabularies are skipped. Raises InputError for a line in another form, and if
    all lines are skipped.
    """
    name, lines = read_lines(path, "shortlist")
    found: dict[int, list[tuple[float, int]]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        line = line.rstrip("\r")
        words = line.split("\t") if "\t" in line else words_in_line(line)
        probability = _probability(words)
        if probability is None:
            raise InputError(
                f"line {number} of shortlist {name!r} is {line!r} but must be 'target source probability' with spaces, "
                "or 'source target probability' with tabs"
            )
        s, t = (words[0], words[1]) if "\t" in line else (words[1], words[0])
        if s in source.ids and t in target.ids:
            found.setdefault(source.ids[s], []).append((-probability, target.ids[t]))
    if not found and any(line.strip() for line in lines):
        raise InputError(
            f"no line of shortlist {name!r} has a source word and a target word of the vocabularies; lines are 'target "
            "source probability' with spaces, or 'source target probability' with tabs"
        )
    least = 1 + max(target.eos, target.unk)
    kept = {word: np.array([t for _, t in sorted(pairs)[:most]], np.int64) for word, pairs in found.items()}
    return Shortlist(max(first, least), kept)


def _probability(words: Sequence[str]) -> float | None:
    """Return the number at the end of three words; None for other words."""
    try:
        value = float(words[2]) if len(words) == 3 else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
