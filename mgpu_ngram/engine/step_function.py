"""The interface between a search and a model: a step function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class StepScores(NamedTuple):
    """What a step returns.

    logits_RV     float32, float16, or uint16: the bits of bfloat16; float64 is rounded to float32
    attention_RT  weights of the source positions, or None
    bias_V        (V,) float32, added to all logits, or None
    """

    logits_RV: Any
    attention_RT: Any = None
    bias_V: Any = None


class StepFunction(Protocol):
    """What a search needs of a model.

    start_word  word before the first one; -1 for none
    unk         -1 for none
    version     optional: counts how often the arrays that steps read have been replaced, on a GPU. Such steps neither
                wait for the GPU nor copy from the host, so that a search captures them. None or absent: it does not
    prepare     optional: prepare(sources) begins what `start` will do for these sources, which come next, in this order
                and perhaps some at a time. It does not wait
    """

    vocab_size: int
    eos: int
    unk: int
    start_word: int

    def start(self, state: Any, sources: Sequence[Any], slots: Sequence[int]) -> Any:
        """Return the state (None: no rows) with a row for each new source after its rows.

        slots  numbers of all sentences that are searched, those of `sources` last; no two have the same. They are below
               the most sentences that are searched at once
        """

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after one word for each row."""
