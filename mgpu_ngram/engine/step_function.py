"""What a search needs of a model: a step function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class StepScores(NamedTuple):
    """What a step returns.

    log_probs_RV    logarithms of the probabilities of the next words; of several models, their weighted sum
    parts           those of each model of an ensemble
    attention_RT    weights of the source positions, or None
    """

    log_probs_RV: Any
    parts: tuple[Any, ...] = ()
    attention_RT: Any = None


class StepFunction(Protocol):
    """What a search needs of a model.

    start_word  word before the first one; -1 for none
    unk         -1 for none
    """

    vocab_size: int
    eos: int
    unk: int
    start_word: int

    def start(self, state: Any, sources: Sequence[Any]) -> Any:
        """Return the state (None: no rows) with a row for each new source after its rows."""

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after one word for each row."""
