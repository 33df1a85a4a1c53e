"""Beam search over any step function, for many sentences that begin and end at different steps.

Each sentence is searched as if it were alone: its beam shrinks as its hypotheses end, and it leaves the batch when it
is finished. The arrays of a search are on the device of its model. On a GPU, the host launches a step before it knows
which hypotheses ended in the previous step. It therefore also computes rows of ended hypotheses and discards them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.decode.best_words import Hypotheses, best_of_sentences, draw_of_sentences
from mgpu_ngram.engine.decode.ensemble import Ensemble
from mgpu_ngram.engine.decode.search_options import NBestList, Request, SearchOptions
from mgpu_ngram.engine.decode.search_results import Traces, read_results
from mgpu_ngram.engine.decode.state_trees import map_state, rows_of_tree, state_module
from mgpu_ngram.engine.decode.word_scores import WordScores
from mgpu_ngram.engine.memory.async_copies import HostCopies
from mgpu_ngram.engine.memory.cuda_graphs import StepGraphs, rounded_up
from mgpu_ngram.kernels.decode.advance_beams import Beams, Ending, Live, Rows, advance_beams
from mgpu_ngram.kernels.decode.best_of_beams import Chosen
from mgpu_ngram.kernels.dispatch import to_host

READ_AT_ONCE = 512  # sentences whose results are read while a GPU does a step
LAG = {"cpu": 0, "gpu": 1}  # steps that the host launches before it reads which hypotheses a step has ended


class _Bound(NamedTuple):
    """Upper bounds of the current numbers of sentences, hypotheses and places of beams."""

    sentences: int = 0
    rows: int = 0
    places: int = 0


class Collected(NamedTuple):
    """Finished sentences: the arrays of `Traces`, and their requests."""

    traces: HostCopies
    requests: list[Request]


@dataclass
class _Counts:
    """The counters of a step.

    copies   counts_4 and done_S of `advance_beams`
    entered  sentences that entered after the step
    """

    copies: HostCopies
    entered: int = 0


class SentenceSearch:
    """A search: `enter` adds sentences, `advance` extends their hypotheses, and `collect` removes the finished ones.

    requests   all sentences that will enter
    sentences  greatest number of sentences that are searched at once
    hold       also compute rows of ended hypotheses, as batches without compaction do; the results are the same
    """

    def __init__(
        self, model: Ensemble, options: SearchOptions, requests: Sequence[Request], sentences: int, hold: bool = False
    ):
        self.model, self.options, self._hold = model, options, hold
        for request in requests:
            if request.prefix:
                self._check_prefix(request)
        self._all = requests
        self._limits: dict[tuple[int, int, bool], tuple[int, int]] = {}  # few differ
        self._most = max((self._limits_of(request)[1] for request in requests), default=1)
        powers = [1.0, *(float(n) ** options.length_penalty for n in range(1, self._most + 1))]
        self._ending = Ending(model.eos, options.early_stopping, options.word_penalty, np.array(powers))
        self._free = list(range(min(sentences, len(requests))))[::-1]  # slots
        self._slots = len(self._free)
        self._requests: dict[int, Request] = {}  # by slot
        self._done: list[int] = []  # slots
        self._counts: deque[_Counts] = deque()  # of steps, the oldest first
        self._bound = _Bound()
        self._state: Any = None
        self._beams: Any = None
        self._live: Live
        self._rows: Rows
        self._now_2: Any  # numbers of sentences and rows that continue, on the device
        self._graphs: StepGraphs | None = None
        self._fixed: tuple[Live, Rows, Any] | None = None  # arrays that graphs work in: sentences, rows and the state
        self._version: Any = None  # of the model, when graphs were made
        self._attention: Any = None  # (N + 1, L, K, T), like the trace of `Beams`
        self._parts: Any = None  # (N + 1, L, K, M)

    @property
    def searched(self) -> int:
        """Number of sentences that have entered and are not known to be finished."""
        return len(self._requests) - len(self._done)

    def close(self) -> None:
        """Free the memory of CUDA graphs. The search cannot be used afterwards."""
        self._now_2 = None  # the result of a graph
        if self._graphs is not None:
            self._graphs.close()

    def prepare(self, sources: Sequence[Any]) -> None:
        """Begin to encode the sentences that enter next, perhaps a few at a time; a GPU does it during the steps."""
        self.model.prepare(sources)

    def enter(self, requests: Sequence[Request], sources: Sequence[Any]) -> None:
        """Add sentences to the search, which must have room for them. Does not wait for a GPU."""
        S, R, places = self._bound
        D, K = len(requests), self.options.beam_size
        state = self._gathered(R)
        slots = [self._free.pop() for _ in requests]
        self._requests |= dict(zip(slots, requests, strict=True))
        self._state = self.model.start(state, sources, list(self._requests))
        if self._beams is None:
            self._allocate(state_module(self._state))
        self._set_slots(slots, requests)
        self._live, self._rows = self._with_new(slots, S, R)
        self._now_2 = self._now_2 + D
        if self._graphs is not None:
            self._fix()
        self._bound = _Bound(S + D, R + D, places + D * K)
        for counts in self._counts:
            counts.entered += D

    def advance(self) -> None:
        """Extend all hypotheses by a word."""
        S, R, places = self._bound
        if R:
            if self._graphs is None:
                done_S, counts_4 = self._extend(S, R)
            else:
                most = self._slots * self.options.beam_size
                done_S, counts_4 = self._graphs.run(min(most, rounded_up(R)), self._extend_in_place)
            self._now_2 = counts_4[:2]
            self._bound = _Bound(S, max(R, places) if self._hold else places, places)
            self._counts.append(_Counts(HostCopies([counts_4, done_S])))
        while len(self._counts) > (self._lag if R else 0):
            self._learn(self._counts.popleft())

    def collect(self) -> list[Collected]:
        """Return the sentences known to be finished, up to READ_AT_ONCE in a part. New sentences may take their places.

        Does not wait for a GPU.
        """
        parts = [self._done[first : first + READ_AT_ONCE] for first in range(0, len(self._done), READ_AT_ONCE)]
        self._free += self._done
        self._done = []
        return [Collected(self._traces(slots), [self._requests.pop(slot) for slot in slots]) for slots in parts]

    def read(self, collected: Collected) -> list[NBestList]:
        """Return the results of finished sentences."""
        traces = Traces(*collected.traces.wait())
        return read_results(traces, collected.requests, self._ending, self.options.n_best)

    def _traces(self, slots: list[int]) -> HostCopies:
        """Begin to copy the arrays of `Traces` of some slots."""
        beams, at = self._beams, self._xp.asarray(np.array(slots))
        kept = beams.words_NLK, beams.before_NLK, beams.costs_NLK, beams.steps_N, beams.longest_N
        return HostCopies([None if array is None else array[at] for array in (*kept, self._attention, self._parts)])

    def _extend(self, S: int, R: int) -> tuple[Any, Any]:
        """Extend R hypotheses of S sentences by a word. Return (done_S, counts_4) of `advance_beams`."""
        live = Live(
            self._live.slots_S[:S], self._live.starts_S1[: S + 1], self._live.sizes_S[:S], self._live.places_R[:R]
        )
        rows = Rows(*(array[:R] for array in self._rows))
        self._state, scores = self.model.step(self._gathered(R), rows.words_R)
        chosen = self._choose(scores, live, rows)
        self._keep_details(chosen, scores, live.slots_S)
        self._live, self._rows, done_S, counts_4 = advance_beams(chosen, live, self._beams, self._device_ending)
        return done_S, counts_4

    def _extend_in_place(self, R: int) -> tuple[Any, Any]:
        """As `_extend`, of all slots, into the arrays that graphs work in."""
        assert self._fixed is not None
        self._live, self._rows, self._state = self._fixed
        found = self._extend(self._slots, R)
        map_state(_write, self._fixed, (self._live, self._rows, self._state))
        self._live, self._rows, self._state = self._fixed
        return found

    def _fix(self) -> None:
        """Copy sentences, rows and the state into the arrays that graphs work in."""
        assert self._graphs is not None
        if self._version != self.model.version:
            self._graphs.clear()
            self._version = self.model.version
        N = self._slots
        if self._fixed is None:
            xp, R = self._xp, N * self.options.beam_size
            live = Live(xp.empty(N, np.int32), xp.empty(N + 1, np.int64), xp.empty(N, np.int32), xp.zeros(R, np.int16))
            rows = Rows(xp.zeros(R, np.int32), xp.zeros(R, np.int32), xp.zeros(R, np.float32))
            state = map_state(lambda array: xp.zeros((R, *array.shape[1:]), array.dtype), self._state)
            self._fixed = live, rows, state
        # Steps also compute the rows after the last hypothesis, so these must hold legal numbers, too.
        map_state(lambda array: array.fill(0), self._fixed)
        live = self._fixed[0]
        live.slots_S.fill(-1)
        live.starts_S1[:] = self._live.starts_S1[-1]
        map_state(_write, self._fixed, (self._live, self._rows, self._state))
        self._live, self._rows, self._state = self._fixed

    def _gathered(self, R: int) -> Any:
        """Return the state of the hypotheses that continue; None if there are none."""
        return rows_of_tree(self._state, self._rows.parents_R[:R]) if R else None

    def _limits_of(self, request: Request) -> tuple[int, int]:
        """Return `request.limits`, which depends on few numbers."""
        key = request.length, len(request.prefix), request.whole
        if key not in self._limits:
            self._limits[key] = request.limits(self.options)
        return self._limits[key]

    def _check_prefix(self, request: Request) -> None:
        words = request.prefix[:-1] if request.whole else request.prefix
        wrong = [word for word in request.prefix if not 0 <= word < self.model.vocab_size]
        if wrong or self.model.eos in words:
            raise InputError(
                f"sentence {request.number} has the forced word {wrong[0] if wrong else self.model.eos} but words are "
                f"0 to {self.model.vocab_size - 1} without the end of the sentence, {self.model.eos}"
            )

    def _allocate(self, xp: Any) -> None:
        """Make the arrays of the search."""
        N, L, K = self._slots, self._most, self.options.beam_size
        self._xp, self._lag = xp, LAG["cpu" if xp is np else "gpu"]
        self._beams = Beams(
            words_NLK=xp.empty((N, L, K), np.int32), before_NLK=xp.empty((N, L, K), np.int16),
            costs_NLK=xp.empty((N, L, K), np.float32), steps_N=xp.zeros(N, np.int32), longest_N=xp.zeros(N, np.int32),
            most_N=xp.zeros(N, np.int32), sizes_N=xp.zeros(N, np.int32),
            finished_NB=xp.zeros((N, self.options.n_best), np.float64),
        )  # fmt: skip
        P = max(len(request.prefix) for request in self._all)
        self._prefix_NP = xp.full((N, P), -1, np.int32) if P else None
        self._number_N = np.zeros(N, np.int64)
        self._device_ending = self._ending._replace(lengths_L1=xp.asarray(self._ending.lengths_L1))
        unk = -1 if self.options.allow_unk else self.model.unk
        self._forbidden_F = None if unk < 0 else xp.asarray(np.array([unk], np.int32))
        self._live = Live(xp.zeros(0, np.int32), xp.zeros(1, np.int64), xp.zeros(0, np.int32), xp.zeros(0, np.int16))
        self._rows = Rows(xp.zeros(0, np.int32), xp.zeros(0, np.int32), xp.zeros(0, np.float32))
        self._now_2 = xp.zeros(2, np.int64)
        options = self.options
        is_plain = options.sampling is None and not (P or options.alignments or options.breakdown)
        if is_plain and self.model.version is not None:
            self._graphs = StepGraphs()

    def _set_slots(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Begin new sentences in slots."""
        xp, beams = self._xp, self._beams
        at = xp.asarray(np.array(slots))
        limits = xp.asarray(np.array([self._limits_of(request) for request in requests], np.int32))
        beams.steps_N[at] = 0
        beams.longest_N[at], beams.most_N[at] = limits[:, 0], limits[:, 1]
        beams.sizes_N[at] = self.options.beam_size
        beams.finished_NB[at] = -np.inf
        self._number_N[slots] = [request.number for request in requests]
        if self._prefix_NP is not None:
            words = np.full((len(slots), self._prefix_NP.shape[1]), -1, np.int32)
            for i, request in enumerate(requests):
                words[i, : len(request.prefix)] = request.prefix
            self._prefix_NP[at] = xp.asarray(words)

    def _with_new(self, slots: Sequence[int], S: int, R: int) -> tuple[Live, Rows]:
        """Return sentences and rows: the `_now_2` that continue, then the new ones. The new state rows begin at R."""
        xp, D = self._xp, len(slots)
        number_S, number_R = xp.arange(S + D + 1) - self._now_2[0], xp.arange(R + D) - self._now_2[1]
        is_new_S, is_new_R = ((n >= 0) & (n < D) for n in (number_S[:-1], number_R))

        def mix(array: Any, is_new: Any, new: Any, fill: int) -> Any:
            """Return an array with new items; `fill` stands after its end."""
            longer = xp.full(len(is_new), fill, array.dtype)
            longer[: len(is_new) - D] = array[: len(is_new) - D]
            return xp.where(is_new, new, longer).astype(array.dtype)

        slot_S = xp.asarray(np.array(slots))[xp.clip(number_S[:-1], 0, D - 1)]
        starts_S1 = xp.concatenate([self._live.starts_S1[: S + 1], xp.zeros(D, np.int64)])
        live = Live(
            mix(self._live.slots_S, is_new_S, slot_S, -1),
            xp.where(number_S < 0, starts_S1, self._now_2[1] + xp.clip(number_S, 0, D)),
            mix(self._live.sizes_S, is_new_S, self.options.beam_size, 0),
            mix(self._live.places_R, is_new_R, 0, 0),
        )
        # The rows of the state are in order already.
        parents_R = xp.where(is_new_R, R + xp.clip(number_R, 0, D - 1), xp.minimum(xp.arange(R + D), max(R - 1, 0)))
        rows = Rows(
            parents_R.astype(np.int32),
            mix(self._rows.words_R, is_new_R, self.model.start_word, 0),
            mix(self._rows.costs_R, is_new_R, 0, 0),
        )
        return live, rows

    def _choose(self, scores: WordScores, live: Live, rows: Rows) -> Chosen:
        """Return (S, K) rows, words and costs of the hypotheses that the step makes."""
        forced_R = None
        if self._prefix_NP is not None:
            step_S = self._xp.minimum(self._beams.steps_N[live.slots_S], self._prefix_NP.shape[1])
            words = self._xp.pad(self._prefix_NP, ((0, 0), (0, 1)), constant_values=-1)
            sentence_R = self._xp.searchsorted(live.starts_S1[1:], self._xp.arange(len(rows.words_R)), side="right")
            forced_S = self._xp.append(words[live.slots_S, step_S], np.int32(-1))  # rows after the last sentence
            forced_R = forced_S[sentence_R]
        hypotheses = Hypotheses(live, rows.costs_R, forced_R, self._forbidden_F)
        if self.options.sampling is None:
            return best_of_sentences(scores, hypotheses, self.options.beam_size)
        slot_S = to_host(live.slots_S)
        step_S, number_S = to_host(self._beams.steps_N)[slot_S], self._number_N[slot_S]
        return draw_of_sentences(scores, hypotheses, self.options.beam_size, number_S, step_S, self.options.sampling)

    def _keep_details(self, chosen: Chosen, scores: WordScores, slots_S: Any) -> None:
        """Keep what results show besides words and costs, before the step is counted."""
        if not (self.options.alignments or self.options.breakdown):
            return
        xp, (rows_SK, words_SK, _) = self._xp, chosen
        N, L, K = self._beams.words_NLK.shape
        row_SK, word_SK = xp.maximum(rows_SK, 0), xp.maximum(words_SK, 0)
        at = xp.where(slots_S < 0, N, slots_S), xp.minimum(self._beams.steps_N[slots_S], L - 1)  # slot N: unused
        if self.options.alignments and scores.attention_RT is not None:
            if self._attention is None:
                T = max(request.length for request in self._all)
                self._attention = xp.zeros((N + 1, L, K, T), scores.attention_RT.dtype)
            T = min(scores.attention_RT.shape[1], self._attention.shape[3])
            self._attention[(*at, slice(None), slice(T))] = scores.attention_RT[row_SK, :T]
        if self.options.breakdown:
            parts_MSK = scores.parts(row_SK.ravel(), word_SK.ravel()).reshape(-1, *row_SK.shape)
            if self._parts is None:
                self._parts = xp.zeros((N + 1, L, K, len(parts_MSK)), np.float64)
            self._parts[at] = xp.moveaxis(parts_MSK, 0, 2)

    def _learn(self, counts: _Counts) -> None:
        """Read the counters of a step: its finished sentences, and how many continue."""
        counts_4, done_S = counts.copies.wait()
        sentences, rows, places, done = counts_4.tolist()
        self._done += done_S[:done].tolist()
        sentences += counts.entered
        places += counts.entered * self.options.beam_size
        rows = places if self._counts else rows + counts.entered
        if not self._hold or sentences == 0:
            self._bound = _Bound(sentences, rows, places)


def _write(target: Any, values: Any) -> None:
    """Write values into the first rows of an array."""
    target[: len(values)] = values
