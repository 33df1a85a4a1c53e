"""Compose word lattices with n-gram models, exactly, and find the best texts of each.

A composed state is a node with a state of each model, which is the part of the words so far that can affect later
scores. Composed arcs are made level by level, for all lattices of a task together: a step of the models is one call on
the device. The best texts follow by A* search over words: a prefix stands for all paths with its words (Mohri and Riley
2002, "An efficient algorithm for the n-best-strings problem"), and the exact score of the rest of each path guides the
search.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.nbest.lattices import Lattice, parse_lattice
from mgpu_ngram.core.utf8 import to_bytes
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.score.score_chunk import LESS_TO_SCORE, ScoreOptions
from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.engine.trie.replicas import held_replica
from mgpu_ngram.engine.trie.signed_backoffs import signed_backoffs
from mgpu_ngram.kernels.common.powers import LN_10
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.step_states import EMPTY, StateTable, make_states, step_states

MAX_ARCS = 50_000_000  # composed arcs of a task, about 2 GB


@dataclass(frozen=True)
class LatticeOptions:
    """How lattices are composed and searched. Picklable; the same for every task of a run.

    models         the replicas to load: path, identity, device, threads
    model_weights  weights of the logarithms of the models' probabilities
    names          names of the lattice's scores
    weights        weight of the sum of these scores, then of each score
    format         "kaldi" or "slf"
    n_best         greatest number of texts of a lattice
    """

    models: tuple[ScoreOptions, ...]
    model_weights: tuple[float, ...]
    names: tuple[str, ...]
    weights: tuple[float, float, float]
    format: str
    n_best: int
    device: str = "cpu"


class SteppedModel:
    """A model on a device whose states advance by words."""

    def __init__(self, model: BackoffModel, device: str):
        replica = Replica(model, device)
        assert replica.edges is not None
        trie = model.trie.decoded().map_arrays(lambda array: to_device_fast(array, device))
        suffix_M = model.trie.suffixes().astype(np.int64)
        suffix_M[: model.trie.symbols] = EMPTY
        self.words, self.order, self.device, self.end = model.words, replica.order, device, replica.end
        self.begin = replica.begin if self.order > 1 else EMPTY
        self._edges = replica.edges
        try:
            self._states: StateTable = make_states(
                index_of(trie), to_device_fast(suffix_M, device), signed_backoffs(trie)
            )
        except OverflowError as error:
            raise InputError(f"the model has too many states: {error}; prune it") from None

    def step(self, states_B: np.ndarray, words_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (float64 natural logarithms of the words' probabilities, int32 next states) in host memory."""
        states, words = (to_device(array, self.device) for array in (states_B, words_B))
        prob_B, next_B = step_states(self._edges, self.order, self._states, states, words)
        return to_host(prob_B).astype(np.float64) * LN_10, to_host(next_B)


def best_texts(
    texts: Sequence[tuple[str, str | None, list[str]]], options: LatticeOptions
) -> tuple[list[tuple[str, str]], bytes, list[str]]:
    """Return (place and id of each lattice, n-best lists as lines: id ||| text ||| features ||| sum of the features,
    what is wrong with the lattices that were left out).

    texts  (place for messages, id if the lattice has none or None, lines) of each lattice

    A list has the texts with the greatest weighted sums of scores, each with the scores of its best path.
    """
    lattices, places, wrong = [], list[str](), list[str]()
    for place, default_id, lines in texts:
        try:
            lattices.append(parse_lattice(lines, options.format, default_id))
            places.append(place)
        except InputError as error:
            wrong.append(f"{place}: {error}")
    if not lattices:
        return [], b"", wrong
    way_out = f"use smaller lattices, or {LESS_TO_SCORE}"
    with memory_guard("composing lattices", options.device, way_out), np.errstate(over="ignore", invalid="ignore"):
        models = [_model_of(model) for model in options.models]
        composed = compose(lattices, models, options)
        search, lines = PathSearch(composed, lattices), []
        for number, lattice in enumerate(lattices):
            for path in itertools.islice(search.best_paths(number), options.n_best):
                named = zip(options.names, path.scores, strict=True)
                features = " ".join(f"{name}= {_shown(score)}" for name, score in named)
                total = _shown(sum(path.scores))
                lines.append(f"{lattice.id} ||| {' '.join(path.words)} ||| {features} ||| {total}\n")
    named_places = [(place, lattice.id) for place, lattice in zip(places, lattices, strict=True)]
    return named_places, to_bytes("".join(lines)), wrong


def _shown(value: float) -> str:
    return np.format_float_positional(np.float32(value), trim="-")


def _model_of(options: ScoreOptions) -> SteppedModel:
    """Return this process's replica of a model whose states advance."""
    device = options.device
    return held_replica(
        "states", lambda model: SteppedModel(model, device), options.model, options.identity, device,
        options.read_threads, options.verify, LESS_TO_SCORE,
    )  # fmt: skip


@dataclass
class Composed:
    """Composed states and arcs of several lattices; arcs lead to greater states.

    first_S1   int64: the arcs of state s are first_S1[s]:first_S1[s + 1]
    target_C   int64, state after each composed arc
    arc_C      int64, its arc among those of all lattices
    score_C    float64, its weighted score
    rest_S     float64, the greatest score from a state to the end of its lattice
    start_L    int64, the first state of each lattice
    end_L      int64, the last state of each lattice
    """

    first_S1: np.ndarray
    target_C: np.ndarray
    arc_C: np.ndarray
    score_C: np.ndarray
    rest_S: np.ndarray
    start_L: np.ndarray
    end_L: np.ndarray


def compose(lattices: Sequence[Lattice], models: Sequence[SteppedModel], options: LatticeOptions) -> Composed:
    """Return the composition of lattices with models. Each text is scored between <s> and </s>."""
    nodes_L = np.array([lattice.nodes for lattice in lattices])
    first_L = np.concatenate([[0], np.cumsum(nodes_L)])
    source_A, target_A = (
        np.concatenate([getattr(x, name) + at for x, at in zip(lattices, first_L[:-1], strict=True)])
        for name in ("source_A", "target_A")
    )
    score_AF = np.concatenate([lattice.score_AF for lattice in lattices])
    base_A = options.weights[0] * score_AF.sum(axis=1) + score_AF @ np.array(options.weights[1:])
    words = [word for lattice in lattices for word in lattice.word_A]
    end_N = np.zeros(first_L[-1], bool)
    end_N[first_L[1:] - 1] = True
    ids = [_ids(words, end_N[target_A], model) for model in models]
    level_N = _levels(source_A, target_A, int(first_L[-1]))
    first_A1 = np.searchsorted(source_A, np.arange(first_L[-1] + 1))
    waiting: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in range(int(level_N.max()) + 1)]
    begins = np.array([[model.begin for model in models]] * len(lattices), np.int32).reshape(len(lattices), len(models))
    waiting[0].append((first_L[:-1], begins, np.full(len(lattices), -1)))
    node_parts, source_parts, arc_parts, score_parts = [], [], [], []  # by level
    states = arcs = 0
    targets: list[tuple[np.ndarray, np.ndarray]] = []  # (composed arcs, their targets)
    for entering in waiting:
        nodes, state_PM, by = (np.concatenate(column) for column in zip(*entering, strict=True))
        unique, inverse = np.unique(np.column_stack([nodes, state_PM]), axis=0, return_inverse=True)
        targets.append((by, states + inverse.reshape(-1)))
        node_parts.append(unique[:, 0])
        counts = first_A1[unique[:, 0] + 1] - first_A1[unique[:, 0]]
        source = np.repeat(np.arange(len(unique)), counts)
        arc = (
            np.arange(len(source))
            - np.repeat(np.cumsum(counts) - counts, counts)
            + np.repeat(first_A1[unique[:, 0]], counts)
        )
        score, after = base_A[arc], unique[source, 1:].astype(np.int32)
        for m, model in enumerate(models):
            word = ids[m][arc]
            spoken = np.flatnonzero(word >= 0)
            prob, following = model.step(np.ascontiguousarray(after[spoken, m]), word[spoken])
            score[spoken] += options.model_weights[m] * prob
            after[spoken, m] = following
        after[end_N[target_A[arc]]] = EMPTY  # no words follow
        levels = level_N[target_A[arc]]
        order = np.argsort(levels, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(levels[order])) + 1) if len(order) else ():
            waiting[levels[part[0]]].append((target_A[arc[part]], after[part], arcs + part))
        source_parts.append(states + source)
        arc_parts.append(arc)
        score_parts.append(score)
        states, arcs = states + len(unique), arcs + len(arc)
        if arcs > MAX_ARCS:
            raise InputError(f"lattices have over {MAX_ARCS:,} arcs with the models; prune them, or use smaller chunks")
    target_C = np.empty(arcs, np.int64)
    for by, target in targets[1:]:
        target_C[by] = target
    source_C, arc_C, score_C = (np.concatenate(parts) for parts in (source_parts, arc_parts, score_parts))
    first_S1 = np.searchsorted(source_C, np.arange(states + 1))
    node_S = np.concatenate(node_parts)
    rest_S = np.where(end_N[node_S], 0.0, -np.inf)
    for part in reversed(source_parts):  # a level; its targets are of higher ones
        if len(part):
            begin, end = first_S1[part[0]], first_S1[part[-1] + 1]
            reached, owners = score_C[begin:end] + rest_S[target_C[begin:end]], np.unique(part)
            rest_S[owners] = np.maximum.reduceat(reached, first_S1[owners] - begin)
    at = np.argsort(node_S, kind="stable")
    start_L, end_L = (at[np.searchsorted(node_S[at], nodes)] for nodes in (first_L[:-1], first_L[1:] - 1))
    return Composed(first_S1, target_C, arc_C, score_C, rest_S, start_L, end_L)


def _ids(words: list[str], ends_A: np.ndarray, model: SteppedModel) -> np.ndarray:
    """Return the id of each arc's word, int64: -1 for an arc without a word, the id of </s> for an arc to the end."""
    known = {word: model.words.id(word) for word in dict.fromkeys(words)} | {"": -1}
    return np.where(ends_A, model.end, np.array([known[word] for word in words], np.int64))


def _levels(source_A: np.ndarray, target_A: np.ndarray, nodes: int) -> np.ndarray:
    """Return (nodes,) int64: the most arcs on a path from a start. Arcs are sorted and lead to greater nodes."""
    level = [0] * nodes
    for source, target in zip(source_A.tolist(), target_A.tolist(), strict=True):
        if level[source] >= level[target]:
            level[target] = level[source] + 1
    return np.array(level)


class Path(NamedTuple):
    """A text, its weighted score, and the sums of the lattice's scores on its best path."""

    score: float
    words: tuple[str, ...]
    scores: tuple[float, float]


_Reached = dict[int, tuple[float, float, float]]  # composed state -> best score so far, sums of the lattice's scores


class PathSearch:
    """Searches composed lattices. Holds their arrays as lists, which Python reads three times as fast."""

    def __init__(self, composed: Composed, lattices: Sequence[Lattice]):
        self._words = [word for lattice in lattices for word in lattice.word_A]
        self._own = np.concatenate([lattice.score_AF for lattice in lattices]).T.tolist()
        self._first, self._rest = composed.first_S1.tolist(), composed.rest_S.tolist()
        arcs = (array.tolist() for array in (composed.target_C, composed.arc_C, composed.score_C))
        self._arcs = list(zip(*arcs, strict=True))
        self._ends = list(zip(composed.start_L.tolist(), composed.end_L.tolist(), strict=True))

    def best_paths(self, number: int) -> Iterator[Path]:
        """Yield the texts of a lattice, the greatest score first, each once."""
        start, end = self._ends[number]
        counter, remaining = itertools.count(), self._rest
        heap: list[tuple[float, int, tuple[str, ...], _Reached | Path]]
        heap = [(-remaining[start], next(counter), (), {start: (0.0, 0.0, 0.0)})]
        while heap:
            _, _, words, found = heapq.heappop(heap)
            if isinstance(found, Path):
                yield found
                continue
            for word, reached in self._advance(found, end).items():
                if word is None:
                    score, *sums = reached[end]
                    heapq.heappush(heap, (-score, next(counter), words, Path(score, words, (sums[0], sums[1]))))
                    continue
                most = max([value[0] + remaining[state] for state, value in reached.items()])
                heapq.heappush(heap, (-most, next(counter), (*words, word), reached))

    def _advance(self, found: _Reached, end: int) -> dict[str | None, _Reached]:
        """Return the states that each next word reaches, with the best scores; for None, the end."""
        after: dict[str | None, _Reached] = {}
        rest, (firsts, seconds) = list(found), self._own
        heapq.heapify(rest)
        while rest:
            state = heapq.heappop(rest)  # arcs without a word lead to greater states
            score, first, second = found[state]
            for target, arc, added in self._arcs[self._first[state] : self._first[state + 1]]:
                word, total = self._words[arc], score + added
                if target == end:
                    reached = after.setdefault(None, {})
                elif word:
                    reached = after.setdefault(word, {})
                else:
                    reached = found
                    if target not in found:
                        heapq.heappush(rest, target)
                if target not in reached or total > reached[target][0]:
                    reached[target] = total, first + firsts[arc], second + seconds[arc]
        return after
