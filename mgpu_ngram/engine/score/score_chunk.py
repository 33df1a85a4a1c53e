"""Score text with a model: load a replica on a device, score blocks of text, score a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.engine.memory.blocks import device_blocks
from mgpu_ngram.engine.memory.device import free_bytes
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.score.lines import TextScores, spell_words, word_lines
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.open_model import open_keyed
from mgpu_ngram.engine.trie.replicas import held_object, held_replica
from mgpu_ngram.kernels.dispatch import to_host

BYTES_PER_TEXT_BYTE = 16  # device bytes of scoring: a token has 26 at peak, and may be 2 bytes of text
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 16, 1 << 30  # positions in a block, and its longest line, fit uint32
LESS_TO_SCORE = "use the index btree, a quantised model (mgpu-ngram convert --quantize 8), or fewer workers"


@dataclass(frozen=True)
class ScoreOptions:
    """How a chunk is scored. Picklable; the same for every chunk of a run.

    model     the path of the model's file
    identity  the result of `identify` for that file; the file of a worker must have the same identity
    index     "edge": the edge table, faster; "btree": only the trie, smaller; "keys": a KenLM probing file
    words     "": only sentences; "lines": also all words, as KenLM's query prints them; "columns": as arrays;
              "numbers": as arrays without the words' bytes
    totals    whether a line of words ends with the total of its sentence
    block_bytes  bytes of text on the device at once, fewer if memory is short; `tasks_per_host` tasks share a CPU's
                 memory
    """

    model: str
    identity: str
    index: str = "edge"
    sentence_markers: bool = True
    words: str = ""
    totals: bool = True
    device: str = "cpu"
    block_bytes: int = 64 << 20
    tasks_per_host: int = 1
    read_threads: int = 1
    verify: bool = True


Columns = dict[str, np.ndarray]


@dataclass
class ChunkScores:
    """The scores of a chunk, on the host, by column name.

    sentences  prob_log10 float32, words int32 (with a scored </s>), oovs int32 (unknown words), oov_prob_log10 float64
               (their sum)
    words      if requested: sentence int64 (from 0 in the chunk), id uint32, ngram_length uint8, prob_log10 float32;
               and the words' bytes, unless only numbers are requested: data uint8, with each word's end in end int64
    lines      words as KenLM's query prints them, if requested
    """

    sentences: Columns
    words: Columns = field(default_factory=dict)
    lines: bytes = b""
    seconds: dict[str, float] = field(default_factory=dict)


def score_chunk(chunk: Chunk, options: ScoreOptions) -> ChunkScores:
    """Read a chunk and score its lines. Loads the worker's replica of the model at first use."""
    watch = Stopwatch(options.device)
    try:
        replica = replica_of(options)
        watch.lap("load")
        with memory_guard("scoring", options.device, f"use smaller chunks (chunk_bytes), or {LESS_TO_SCORE}"):
            parts = list(_parts(chunk, options, replica, watch))
    except OSError as error:  # so the driver does not mistake it for an output error
        raise RunError(f"scoring {chunk} failed: {type(error).__name__}: {error}; run again") from error
    sentences, words = _joined([p.sentences for p in parts]), _joined([p.words for p in parts])
    return ChunkScores(sentences, words, b"".join(p.lines for p in parts), watch.seconds)


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _parts(chunk: Chunk, options: ScoreOptions, replica: Replica, watch: Stopwatch) -> Iterator[ChunkScores]:
    """Yield the scores of each block of a chunk."""
    markers, sentences, size = options.sentence_markers, 0, 0
    end = replica.end if markers else -1
    room = free_bytes(options.device) // (options.tasks_per_host if options.device == "cpu" else 1)
    block_bytes = max(MIN_BLOCK_BYTES, min(options.block_bytes, MAX_BLOCK_BYTES, room // BYTES_PER_TEXT_BYTE))
    blocks = device_blocks(chunk, "word", block_bytes, 0, options.device, options.read_threads, None, watch)
    for block, text_B in blocks:
        scores, positions_T = replica.score_text(text_B, markers, markers)
        total_S, oovs_S = to_host(scores.total_S), to_host(scores.oovs_S)
        words_S = np.diff(to_host(scores.ends_S), prepend=0) - (not markers)
        made = ChunkScores(
            {
                "prob_log10": total_S,
                "words": words_S.astype(np.int32),
                "oovs": oovs_S,
                "oov_prob_log10": to_host(scores.oov_total_S),
            }
        )
        watch.lap("score")
        if options.words:
            positions, codes, orders, probs = map(to_host, (positions_T, scores.codes_T, scores.order_T, scores.prob_T))
            text = TextScores(block.data, positions, codes, orders, probs, end)
            if options.words == "lines":
                shown = slice(None if options.totals else 0)
                made.lines = word_lines(text, total_S[shown], oovs_S[shown])
            else:
                made.words = _columns(text, spelled=options.words == "columns")
                made.words["sentence"] += sentences
                if options.words == "columns":
                    made.words["end"] += size
                    size += len(made.words["data"])
            watch.lap("write")
        sentences += len(total_S)
        yield made


def _columns(text: TextScores, spelled: bool) -> Columns:
    """Return the words of a block, as in `ChunkScores`."""
    ends_T = text.codes_T == 0
    columns_T = {
        "sentence": np.cumsum(ends_T) - ends_T,
        "id": np.where(ends_T, np.uint32(max(text.end, 0)), text.codes_T - np.uint32(1)),
        "ngram_length": text.order_T,
        "prob_log10": text.prob_T,
    }
    data = {}
    if spelled:
        columns_T["end"], data["data"] = spell_words(text)
    kept_T = np.ones(len(ends_T), bool) if text.end >= 0 else ~ends_T
    return {name: column[kept_T] for name, column in columns_T.items()} | data


def replica_of(options: ScoreOptions) -> Replica:
    """Return this process's replica of a model."""
    index, device, kind = options.index, options.device, ("score", options.index)
    if index == "keys":
        return held_object(
            kind, lambda head: Replica(open_keyed(head), device), options.model, options.identity, device,
            options.verify, LESS_TO_SCORE,
        )  # fmt: skip
    return held_replica(
        kind, lambda model: Replica(model, device, index), options.model, options.identity, device,
        options.read_threads, options.verify, LESS_TO_SCORE,
    )  # fmt: skip
