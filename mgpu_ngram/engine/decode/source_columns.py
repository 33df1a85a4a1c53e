"""Input columns of translation models: words as ids; the models of an ensemble may read different columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.nmt.bpe import Bpe, words_in_line
from mgpu_ngram.core.nmt.vocabulary import NmtVocabulary, encode_factors
from mgpu_ngram.engine.decode.step_function import StepFunction, StepScores


@dataclass(frozen=True)
class SourceColumn:
    """A column of the input.

    vocabularies  vocabulary of each factor of its words
    bpe           splits words; None: words are not split here
    """

    vocabularies: tuple[NmtVocabulary, ...]
    bpe: Bpe | None = None

    def pieces(self, text: str) -> list[str]:
        """Return the words that a model reads."""
        if self.bpe is not None:
            text = self.bpe.encode(text) if len(self.vocabularies) == 1 else self.bpe.encode_factors(text)
        return words_in_line(text)

    def encode(self, pieces: Sequence[str], rows: Sequence[int]) -> np.ndarray:
        """Return the ids of words and of the end of the sentence, (T,) int64, or (T, F) of several factors.

        rows  number of rows of the embeddings of each factor
        """
        if len(self.vocabularies) == 1:
            return self.vocabularies[0].encode_words(pieces, rows[0])
        return encode_factors(self.vocabularies, " ".join(pieces), rows)


class ColumnSources:
    """The source of a sentence for models that read different columns or have different numbers of embeddings.

    Its length is that of the first model's source.
    """

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])


class ColumnSteps:
    """A step function that reads one part of `ColumnSources`."""

    def __init__(self, steps: StepFunction, part: int):
        self._steps, self._part = steps, part
        self.vocab_size, self.eos, self.unk, self.start_word = steps.vocab_size, steps.eos, steps.unk, steps.start_word

    @property
    def version(self) -> int | None:
        """See `StepFunction`."""
        return getattr(self._steps, "version", None)

    def prepare(self, sources: Sequence[ColumnSources]) -> None:
        """See `StepFunction`."""
        if hasattr(self._steps, "prepare"):
            self._steps.prepare([source.parts[self._part] for source in sources])

    def start(self, state: Any, sources: Sequence[ColumnSources], slots: Sequence[int]) -> Any:
        """Return the state with a row for each new source after its rows."""
        return self._steps.start(state, [source.parts[self._part] for source in sources], slots)

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after one word for each row."""
        return self._steps.step(state, words_R)
