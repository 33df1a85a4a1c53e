"""Options and results of a beam search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.decode.best_words import STEP_BITS, Sampling
from mgpu_ngram.kernels.decode.advance_beams import STOP_RULES
from mgpu_ngram.kernels.decode.best_words import MAX_K

MAX_SAMPLES = 1 << 12
MAX_STEPS = 1 << STEP_BITS  # the counters of samples have no more bits
MAX_LENGTH_PENALTY = 10.0  # lengths to a greater power overflow


@dataclass(frozen=True)
class SearchOptions:
    """Options of a beam search. The defaults are Amun's.

    beam_size            number of hypotheses (at most 64) or samples of each sentence; finished ones keep a place
    n_best               number of results of each sentence, at most beam_size
    length_penalty       exponent a of score = (cost - word_penalty * length) / length^a; 1 is Amun's --normalize
    word_penalty         penalty of each word, including the end of the sentence
    max_length_multiple  greatest length of a result divided by the length of the source, including their ends
    max_steps            greatest number of words of a result; 0: no limit
    allow_unk            whether <unk> may be chosen
    early_stopping       "amun": stop when no place is left or the sentence has its greatest length; "first": when
                         one hypothesis is finished; "bound": when no other hypothesis can be among the n best
    sampling             options for drawing words; None: choose the best words
    alignments           whether to keep attention weights
    breakdown            whether to keep the sums of each model
    """

    beam_size: int = 1
    n_best: int = 1
    length_penalty: float = 0.0
    word_penalty: float = 0.0
    max_length_multiple: float = 2.0
    max_steps: int = 0
    allow_unk: bool = False
    early_stopping: str = "amun"
    sampling: Sampling | None = None
    alignments: bool = False
    breakdown: bool = False

    def __post_init__(self) -> None:
        most, what = (MAX_K, "beam size") if self.sampling is None else (MAX_SAMPLES, "number of samples")
        if not 1 <= self.beam_size <= most:
            raise InputError(f"the {what} is {self.beam_size} but must be 1 to {most:,}")
        if not 1 <= self.n_best <= self.beam_size:
            raise InputError(f"n_best is {self.n_best} but must be 1 to the beam size, {self.beam_size}")
        if not -MAX_LENGTH_PENALTY <= self.length_penalty <= MAX_LENGTH_PENALTY:
            raise InputError(
                f"length_penalty is {self.length_penalty} but must be {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}"
            )
        if not math.isfinite(self.word_penalty):
            raise InputError(f"word_penalty is {self.word_penalty} but must be a finite number")
        if not (self.max_length_multiple > 0 and math.isfinite(self.max_length_multiple)):
            raise InputError(f"max_length_multiple is {self.max_length_multiple} but must be above 0")
        if self.max_steps < 0:
            raise InputError(f"max_steps is {self.max_steps} but must be 0 (no limit) or more")
        if self.early_stopping not in STOP_RULES:
            raise InputError(f"early_stopping is {self.early_stopping!r} but must be one of {', '.join(STOP_RULES)}")

    def for_targets(self) -> SearchOptions:
        """Return the options for scoring given results."""
        return replace(self, beam_size=1, n_best=1, allow_unk=True, sampling=None)


class Request(NamedTuple):
    """A sentence to search for.

    number   number of the sentence; number and seed determine the samples
    length   length of the source, including its end
    prefix   first words of all results
    whole    whether the prefix is the whole result, including its end
    """

    number: int
    length: int
    prefix: tuple[int, ...] = ()
    whole: bool = False

    def limits(self, options: SearchOptions) -> tuple[int, int]:
        """Return (the greatest length of a result, the number of steps).

        The step after the greatest length, if there is one, only lets hypotheses end, as in Amun. Raises InputError for
        more than MAX_STEPS steps.
        """
        most = min(options.max_length_multiple * self.length, 2.0 * MAX_STEPS)
        steps = math.ceil(most)
        longest = max(1, int(most))
        if options.max_steps:
            longest, steps = min(longest, options.max_steps), min(steps, options.max_steps)
        if steps > MAX_STEPS:
            raise InputError(
                f"max_length_multiple is {options.max_length_multiple:g}, so results of sentence {self.number} may "
                f"have more than {MAX_STEPS:,} words; lower it, or give max_steps"
            )
        least = len(self.prefix) + (not self.whole)
        return (len(self.prefix),) * 2 if self.whole else (max(longest, least), max(steps, least, 1))


class Hypothesis(NamedTuple):
    """One result.

    words         ids; the last one is the end of the sentence, unless the result has its greatest length
    score         the score that ranks the results
    cost          sum of the logarithms of the probabilities
    word_scores   contribution of each word to the cost
    alignment_LT  attention weights of the source positions for each word, or None
    parts         sum of the scores of each model of an ensemble, or ()
    """

    words: tuple[int, ...]
    score: float
    cost: float
    word_scores: tuple[float, ...]
    alignment_LT: Any = None
    parts: tuple[float, ...] = ()

    @classmethod
    def impossible(cls, words: Sequence[int], models: int = 0) -> Hypothesis:
        """Return the result for given words, one of which has probability 0."""
        return cls(tuple(words), -math.inf, -math.inf, (-math.inf,) * len(words), None, (-math.inf,) * models)


class NBestList(NamedTuple):
    """The results of a sentence, best first."""

    number: int
    hypotheses: list[Hypothesis]
