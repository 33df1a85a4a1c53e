"""The interface between a search and a model: a step function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class StepScores(NamedTuple):
    """The scores that a step returns.

    logits_RV     float32, float16, or uint16: the bits of bfloat16; float64 is rounded to float32
    attention_RT  weights of the source positions, or None
    bias_V        (V,) float32, added to the logits of each row, or None
    """

    logits_RV: Any
    attention_RT: Any = None
    bias_V: Any = None


class StepFunction(Protocol):
    """The methods and attributes that a search needs of a model.

    start_word  previous word of the first word; -1 for none
    unk         id of unknown words; -1 for none
    version     optional: number of times that the arrays that steps read on a GPU have been replaced. Such steps
                neither wait for the GPU nor copy from the host, so that a search can capture them. None or absent: no
                capture
    prepare     optional: prepare(sources) begins the work of `start` for these sources, which come next, in this order
                and perhaps a few at a time. It does not wait
    """

    vocab_size: int
    eos: int
    unk: int
    start_word: int

    def start(self, state: Any, sources: Sequence[Any], slots: Sequence[int]) -> Any:
        """Return the state (None: no rows) with a row for each new source after its rows.

        slots  distinct numbers of all sentences that are searched, those of `sources` last. They are below
               the greatest number of sentences that are searched at once
        """

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after one word for each row."""
