"""Rescore a chunk of n-best lists: parse lines on the host, score texts on the device, sort and write lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import TextBlock, read_blocks
from mgpu_ngram.core.inputs.streams import place_in
from mgpu_ngram.core.models.arpa_lines import newline
from mgpu_ngram.core.nbest.moses_lines import NUMBER
from mgpu_ngram.core.nbest.nbest import Names, NbestLines, WrongLine, list_ids, list_numbers, parse_nbest, shown_line
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.memory.threads import side_by_side
from mgpu_ngram.engine.rescore.lines import ListsPart, NBestFormat, sort_part
from mgpu_ngram.engine.score.score_chunk import LESS_TO_SCORE, ScoreOptions, replica_of
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.common.powers import LN_10
from mgpu_ngram.kernels.compile_cpu import read_only
from mgpu_ngram.kernels.dispatch import to_host

MIN_PIECE_BYTES = 1 << 20  # bytes of text of a thread: about 5 ms


@dataclass(frozen=True)
class RescoreOptions:
    """How a chunk is rescored. Picklable; the same for every chunk of a run.

    models   replicas to load: path, identity, index, device, threads
    names    names of the models' features
    weights  weights of the total and of the values of the features of the lists, in this order
    model_weights  weights of the models' features
    format   format of the lines that are read and written
    """

    models: tuple[ScoreOptions, ...]
    names: tuple[str, ...]
    weights: dict[str, tuple[float, ...]]
    model_weights: tuple[float, ...]
    format: NBestFormat
    device: str = "cpu"
    block_bytes: int = 64 << 20
    threads: int = 1


@dataclass
class RescoreCounts:
    """Counts of a part of the lists.

    lines  number of hypotheses
    words  number of words of all texts, each with its end
    oovs   (M,) int64, number of unknown words by model
    found  weighted features that occur in a line
    """

    lines: int
    words: int
    oovs: np.ndarray
    found: set[str]

    @classmethod
    def none(cls, models: int) -> RescoreCounts:
        """Return the counts of no lists."""
        return cls(0, 0, np.zeros(models, np.int64), set())

    def plus(self, other: RescoreCounts) -> RescoreCounts:
        """Return the counts of both parts."""
        return RescoreCounts(
            self.lines + other.lines, self.words + other.words, self.oovs + other.oovs, self.found | other.found
        )


@dataclass
class RescoredChunk:
    """The lists of a chunk in parts, in order."""

    parts: list[ListsPart]
    counts: RescoreCounts
    seconds: dict[str, float]


@dataclass
class ScoredLists:
    """N hypotheses of neighbouring lists, in their order.

    ids        ids of the L lists; the first and the last list may continue in neighbouring chunks
    lengths_L  int64, number of hypotheses of each list
    values_NC  float32: the total, the values of weighted features, the scores of the models
    texts      the texts
    """

    ids: list[bytes]
    lengths_L: list[int]
    values_NC: np.ndarray
    texts: list[str]
    counts: RescoreCounts
    seconds: dict[str, float]


@dataclass
class ScoredPiece:
    """N lines of a block and their scores.

    lines      the lines
    score_NM   float32, natural logarithms by M models
    place      place(at, reason) returns the error for the line that contains byte `at` of lines.data
    """

    lines: NbestLines
    score_NM: np.ndarray
    place: Callable[[int, str], InputError]


def rescore_chunk(chunk: Chunk, options: RescoreOptions) -> RescoredChunk:
    """Read a chunk and rescore its lines. Loads the worker's replicas of the models at first use."""
    watch, parts, counts = Stopwatch(options.device), list[ListsPart](), RescoreCounts.none(len(options.models))
    weights = [weight for values in options.weights.values() for weight in values]
    with _guard(chunk, options):
        for pieces, found in _scored_blocks(chunk, options, watch):
            finish = partial(_sorted_piece, options=options, weights=[*weights, *options.model_weights])
            parts += side_by_side(finish, pieces, len(pieces))
            counts = counts.plus(found)
            watch.lap("write")
    return RescoredChunk(parts, counts, watch.seconds)


def score_lists(chunk: Chunk, options: RescoreOptions) -> ScoredLists:
    """Read a chunk and return its lists with the scores of their texts; as `rescore_chunk` loads models."""
    watch, counts = Stopwatch(options.device), RescoreCounts.none(len(options.models))
    ids: list[bytes] = []
    lengths: list[int] = []
    columns = sum(map(len, options.weights.values())) + len(options.models)
    values, texts = [np.zeros((0, columns), np.float32)], list[str]()
    with _guard(chunk, options):
        for pieces, found in _scored_blocks(chunk, options, watch):
            for piece in pieces:
                lines = piece.lines
                _check_finite(piece, np.isfinite(piece.score_NM).all(axis=1))
                firsts = np.flatnonzero(np.diff(list_numbers(lines), prepend=-1))
                add_lists(ids, lengths, list_ids(lines, firsts), np.diff(firsts, append=len(lines.spans_N9)).tolist())
                values.append(np.concatenate([lines.values_NC, piece.score_NM], axis=1))
                texts += lines.text_B.tobytes().decode("utf-8", "replace").split("\n")[:-1]
            counts = counts.plus(found)
            watch.lap("collect")
    return ScoredLists(ids, lengths, np.concatenate(values), texts, counts, watch.seconds)


def add_lists(ids: list[bytes], lengths: list[int], more_ids: Sequence[bytes], more: Sequence[int]) -> None:
    """Append lists to ids and lengths; the first of them may continue the last list."""
    for name, length in zip(more_ids, more, strict=True):
        if ids and ids[-1] == name:
            lengths[-1] += length
        else:
            ids.append(name)
            lengths.append(length)


@contextmanager
def _guard(chunk: Chunk, options: RescoreOptions) -> Iterator[None]:
    way_out = f"use smaller chunks (chunk_bytes), or {LESS_TO_SCORE}"
    try:
        with memory_guard("rescoring", options.device, way_out):
            yield
    except OSError as error:  # so the driver does not mistake it for an output error
        raise RunError(f"rescoring {chunk} failed: {type(error).__name__}: {error}; run again") from error


def _scored_blocks(
    chunk: Chunk, options: RescoreOptions, watch: Stopwatch
) -> Iterator[tuple[list[ScoredPiece], RescoreCounts]]:
    """Yield (lines in pieces, one for each thread; their counts) of each block of a chunk."""
    replicas = [replica_of(model) for model in options.models]
    watch.lap("load")
    sizes = {name: len(weights) for name, weights in list(options.weights.items())[1:]}
    names = Names.of(sizes, options.names)
    for block in read_blocks(chunk, "word", options.block_bytes, threads=options.threads):
        watch.lap("read")
        cuts = _cuts(block.data, options.threads)
        parse = partial(_parsed, chunk, block, names, options.format.json)
        pieces = list(side_by_side(parse, itertools.pairwise(cuts), len(cuts) - 1))
        watch.lap("parse")
        text_B = to_device_fast(np.concatenate([piece.text_B for piece in pieces]), options.device)
        positions_T = find_tokens(text_B, isspace=True)
        ends = np.cumsum([0, *(len(piece.spans_N9) for piece in pieces)])
        score_NM, oovs_M = np.empty((ends[-1], len(replicas)), np.float32), np.zeros(len(replicas), np.int64)
        for m, replica in enumerate(replicas):
            scores, _ = replica.score_text(text_B, positions_T=positions_T)
            with np.errstate(over="ignore"):  # scores that are not finite numbers are refused with their lines
                score_NM[:, m] = to_host(scores.total_S).astype(np.float64) * LN_10
            oovs_M[m] = int(scores.oovs_S.sum())
        found = {name for name in sizes if any(piece.found_W[names.words.id(name)] for piece in pieces)}
        counts = RescoreCounts(int(ends[-1]), len(positions_T), oovs_M, found)
        watch.lap("score")
        places = (partial(_wrong_line, chunk, block, cut) for cut in cuts)
        scored = (score_NM[begin:end] for begin, end in itertools.pairwise(ends))
        yield [ScoredPiece(*piece) for piece in zip(pieces, scored, places, strict=False)], counts


def _parsed(chunk: Chunk, block: TextBlock, names: Names, json: bool, piece: tuple[int, int]) -> NbestLines:
    begin, end = piece
    try:
        return parse_nbest(block.data[begin:end], names, json)
    except WrongLine as error:
        raise _wrong_line(chunk, block, begin, error.at, error.reason) from None


def _sorted_piece(piece: ScoredPiece, options: RescoreOptions, weights: Sequence[float]) -> ListsPart:
    """Return the sorted lists of a piece."""
    lines, score_NM = piece.lines, piece.score_NM
    total_N = weighted_sums([*lines.values_NC.T, *score_NM.T], weights)
    _check_finite(piece, np.isfinite(total_N) & np.isfinite(score_NM).all(axis=1))
    return sort_part(lines, options.names, score_NM, total_N, options.format)


def _check_finite(piece: ScoredPiece, finite_N: np.ndarray) -> None:
    """Raise InputError for the first line that is not finite."""
    if not finite_N.all():
        reason = "gets a total or a score that is not finite; correct its features, the weights or the models"
        raise piece.place(int(piece.lines.spans_N9[finite_N.argmin(), NUMBER]), reason)


def weighted_sums(columns: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return float32 sums over columns of weight times value, in double precision and in the order of the columns."""
    total_N = np.zeros(len(columns[0]))
    with np.errstate(over="ignore", invalid="ignore"):  # callers refuse totals that are not finite numbers
        for values, weight in zip(columns, weights, strict=True):
            if weight:
                total_N += weight * values.astype(np.float64)
        return total_N.astype(np.float32)


def _wrong_line(chunk: Chunk, block: TextBlock, begin: int, at: int, reason: str) -> InputError:
    """Return the error for the line of a block that contains byte `begin` + `at`."""
    start, shown = shown_line(block.data, begin + at)
    return InputError(f"{place_in(*block.place(chunk, start))}: {shown} {reason}")


def _cuts(data: np.ndarray, threads: int) -> list[int]:
    """Return where the pieces of a text begin, one for each thread unless they would be small, and its end."""
    count = max(1, min(threads, len(data) // MIN_PIECE_BYTES))
    bounds = {int(newline(read_only(data), len(data) * k // count)) + 1 for k in range(1, count)}
    return [0, *sorted(bounds - {len(data)}), len(data)]
