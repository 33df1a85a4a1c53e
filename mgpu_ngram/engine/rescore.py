"""Rescore a chunk of n-best lists: parse lines on the host, score texts on the device, sort and write lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from mgpu_ngram.core.arpa_lines import newline
from mgpu_ngram.core.corpus import Chunk
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.nbest import Names, NbestLines, WrongLine, parse_nbest, shown_line
from mgpu_ngram.core.nbest_moses import NUMBER
from mgpu_ngram.core.read_text import TextBlock, read_blocks
from mgpu_ngram.core.streams import place_in
from mgpu_ngram.engine.device import Stopwatch, memory_guard, to_device_fast
from mgpu_ngram.engine.rescore_lines import LineFormat, Part, sort_part
from mgpu_ngram.engine.score import LESS_TO_SCORE, Replica, ScoreOptions, replica_of
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.compile import read_only
from mgpu_ngram.kernels.dispatch import to_host

MIN_PIECE_BYTES = 1 << 20  # of a thread: about 5 ms
LN_10 = math.log(10)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RescoreOptions:
    """How a chunk is rescored. Picklable; the same for every chunk of a run.

    models   replicas to load: path, identity, index, device, threads
    names    of the models' features
    weights  of the total and of features of the lists, in this order: one for each of their values
    model_weights  of the models' features
    format   how lines are read and written
    """

    models: tuple[ScoreOptions, ...]
    names: tuple[str, ...]
    weights: dict[str, tuple[float, ...]]
    model_weights: tuple[float, ...]
    format: LineFormat
    device: str = "cpu"
    block_bytes: int = 64 << 20
    threads: int = 1


@dataclass
class RescoredChunk:
    """The lists of a chunk in parts, in order.

    lines  hypotheses
    words  of all texts, each with its end
    oovs   unknown words by model
    found  features with weights that a line has
    """

    parts: list[Part] = field(default_factory=list)
    lines: int = 0
    words: int = 0
    oovs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    found: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)


def rescore_chunk(chunk: Chunk, options: RescoreOptions) -> RescoredChunk:
    """Read a chunk and rescore its lines. First loads the worker's replicas of the models if it has none."""
    watch = Stopwatch(options.device)
    made = RescoredChunk(oovs=np.zeros(len(options.models), np.int64))
    try:
        replicas = [replica_of(model) for model in options.models]
        watch.lap("load")
        with memory_guard("rescoring", options.device, f"use smaller chunks (chunk_bytes), or {LESS_TO_SCORE}"):
            for block in read_blocks(chunk, "word", options.block_bytes, threads=options.threads):
                watch.lap("read")
                _rescore_block(chunk, block, options, replicas, made, watch)
    except OSError as error:  # so the driver does not mistake it for an output error
        raise RunError(f"rescoring {chunk} failed: {type(error).__name__}: {error}; run again") from error
    made.seconds = watch.seconds
    return made


def _rescore_block(
    chunk: Chunk,
    block: TextBlock,
    options: RescoreOptions,
    replicas: Sequence[Replica],
    made: RescoredChunk,
    watch: Stopwatch,
) -> None:
    """Rescore the lines of a block and add them to what was made."""
    sizes = {name: len(weights) for name, weights in list(options.weights.items())[1:]}
    names = Names.of(sizes, options.names)
    cuts = _cuts(block.data, options.threads)

    def parse(piece: tuple[int, int]) -> NbestLines:
        begin, end = piece
        try:
            return parse_nbest(block.data[begin:end], names, options.format.json)
        except WrongLine as error:
            raise wrong_line(chunk, block, begin + error.at, error.reason) from None

    pieces = _in_threads(parse, list(zip(cuts, cuts[1:], strict=False)), options.threads)
    watch.lap("parse")
    text_B = to_device_fast(np.concatenate([piece.text_B for piece in pieces]), options.device)
    positions_T = find_tokens(text_B, isspace=True)
    lines = [len(piece.spans_N9) for piece in pieces]
    score_NM = np.empty((sum(lines), len(replicas)), np.float32)
    for m, replica in enumerate(replicas):
        scores, _ = replica.score_text(text_B, positions_T=positions_T)
        score_NM[:, m] = to_host(scores.total_S).astype(np.float64) * LN_10
        made.oovs[m] += int(scores.oovs_S.sum())
    made.words += len(positions_T)
    watch.lap("score")
    weights = [weight for values in options.weights.values() for weight in values]
    ends = np.cumsum([0, *lines])

    def finish(p: int) -> Part:
        piece, score_PM = pieces[p], score_NM[ends[p] : ends[p + 1]]
        total_P = np.zeros(lines[p])
        for values, weight in zip([*piece.values_NC.T, *score_PM.T], [*weights, *options.model_weights], strict=True):
            if weight:
                total_P += weight * values.astype(np.float64)
        with np.errstate(over="ignore"):
            total_P = total_P.astype(np.float32)
        wrong_P = ~(np.isfinite(total_P) & np.isfinite(score_PM).all(axis=1))
        if wrong_P.any():
            at = int(piece.spans_N9[wrong_P.argmax(), NUMBER])
            reason = "gets a total or a score that is no finite number; correct its features, the weights or the models"
            raise wrong_line(chunk, block, cuts[p] + at, reason)
        return sort_part(piece, options.names, score_PM, total_P, options.format)

    made.parts += _in_threads(finish, list(range(len(pieces))), options.threads)
    made.lines += sum(lines)
    made.found.update(name for name in sizes if any(piece.found_W[names.words.id(name)] for piece in pieces))
    watch.lap("write")


def wrong_line(chunk: Chunk, block: TextBlock, at: int, reason: str) -> InputError:
    """Return the error for the line of a block that contains byte `at`."""
    start, shown = shown_line(block.data, at)
    return InputError(f"{place_in(*block.place(chunk, start))}: {shown} {reason}")


def _cuts(data: np.ndarray, threads: int) -> list[int]:
    """Return where the pieces of a text begin, one for each thread unless they would be small, and its end."""
    count = max(1, min(threads, len(data) // MIN_PIECE_BYTES))
    bounds = {int(newline(read_only(data), len(data) * k // count)) + 1 for k in range(1, count)}
    return [0, *sorted(bounds - {len(data)}), len(data)]


def _in_threads(fn: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    if len(items) == 1:
        return [fn(items[0])]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(fn, items))
