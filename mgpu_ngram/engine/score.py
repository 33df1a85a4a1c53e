"""Score text with a model: load a replica on a device, score blocks of text, score a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.corpus import Chunk
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.model_file import BackoffModel
from mgpu_ngram.engine.blocks import device_blocks
from mgpu_ngram.engine.device import (
    Stopwatch,
    free_bytes,
    host_flags,
    memory_guard,
    move_to,
    to_device_fast,
    work_so_far,
)
from mgpu_ngram.engine.open_model import KeyedModel, open_keyed
from mgpu_ngram.engine.replicas import held_object, held_replica
from mgpu_ngram.engine.score_lines import TextScores, spell_words, word_lines
from mgpu_ngram.engine.trie import edges_of, index_of, values_of
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host
from mgpu_ngram.kernels.score.find_codes import find_codes
from mgpu_ngram.kernels.score.ids_to_codes import ID_TYPES, ids_to_codes
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_by_keys import KeyTables, score_by_keys
from mgpu_ngram.kernels.score.score_tokens import MAX_SCORED_ORDER, score_tokens
from mgpu_ngram.kernels.score.sum_sentences import sum_sentences
from mgpu_ngram.kernels.trie.edges import EdgeTable

BYTES_PER_TEXT_BYTE = 16  # device bytes of scoring: a token has 26 at peak, and may be 2 bytes of text
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 16, 1 << 30  # positions in a block, and its longest line, fit uint32
PIECE_TOKENS = 1 << 18  # tokens per thread, approximately
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


@dataclass
class BlockScores:
    """The scores of T tokens in S sentences, on the device.

    codes_T      uint32, word id + 1; 0 at the end of a sentence
    prob_T       float32, log10; 0 at a sentence end without </s>
    order_T      uint8, words of the longest match; 0 at a sentence end without </s>
    ends_S       int64, the end of each sentence in T, after its 0
    total_S      float32, sum of prob_T
    oovs_S       int32, number of unknown words
    oov_total_S  float64, sum of prob_T of unknown words
    """

    codes_T: Any
    prob_T: Any
    order_T: Any
    ends_S: Any
    total_S: Any
    oovs_S: Any
    oov_total_S: Any


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


def check_index(index: str) -> None:
    """Raise InputError for an unknown index of a trie."""
    if index not in ("edge", "btree"):
        raise InputError(f"index is {index!r} but must be edge or btree")


class Replica:
    """A model on a device, ready to score. Raises InputError if it has no backoffs or an order above 96.

    model    a KeyedModel is scored by its keys, without an index
    index    "edge" or "btree", as in `ScoreOptions`
    threads  threads that share long streams of codes on a CPU
    edges    the edge table on the device; None without one
    """

    edges: EdgeTable | None = None

    def __init__(self, model: BackoffModel | KeyedModel, device: str, index: str = "edge", threads: int = 1):
        check_index(index)
        if isinstance(model, BackoffModel):
            model.check_scores()
        self.order = model.order
        if self.order > MAX_SCORED_ORDER:
            raise InputError(
                f"the model has order {self.order} but text is scored up to order {MAX_SCORED_ORDER}; "
                "make a model of a lower order, or use mgpu_ngram.kenlm, which scores any order"
            )
        self.words, self.device, self.threads = model.words, device, threads
        move = partial(to_device_fast, device=device)
        with ThreadPoolExecutor(1) as beside:  # a core indexes the words while a GPU makes the edges
            indexed = beside.submit(lambda: (model.words.table, model.words.id("<s>"), model.words.id("</s>")))
            self._score = self._scorer(model, index, move)
            (offsets_V, data, slots_C), self.begin, self.end = indexed.result()
        self._words = [move(array) for array in (slots_C, offsets_V, data)]

    def _scorer(self, model: BackoffModel | KeyedModel, index: str, move: Callable[[Any], Any]) -> Callable[..., Any]:
        if isinstance(model, KeyedModel):
            tables_U, slots_N, rest = model.tables
            return partial(score_by_keys, KeyTables(move(tables_U), move(slots_N), rest))
        if index == "btree":
            trie = model.trie.map_arrays(move)
            return partial(score_tokens, index_of(trie), values_of(trie), self.order)
        self.edges = model.edges.map_arrays(move) if model.edges else edges_of(model.trie.map_arrays(move))
        return partial(score_by_edges, self.edges, self.order)

    def score_codes(self, codes_T: Any, bos: bool = True, eos: bool = True, ends_S: Any = None) -> BlockScores:
        """Score sentences of word codes, each ended by a 0. Codes after the last 0 are ignored.

        bos, eos  whether <s> precedes each sentence, and </s> follows it
        ends_S    (S,) int64, the position after each 0; None: they are searched, and on a GPU the host waits
        """
        if ends_S is None:
            ends_S = array_module(codes_T).flatnonzero(codes_T == 0) + 1
        score = partial(self._score, begin=self.begin if bos else -1, end=self.end if eos else -1)
        if self.device == "gpu" or self.threads == 1:
            prob_T, order_T = score(codes_T=codes_T)
        else:
            after = np.searchsorted(ends_S, np.arange(PIECE_TOKENS, len(codes_T), PIECE_TOKENS))
            pieces = np.split(codes_T, np.unique(ends_S[after[after < len(ends_S)]]))
            with ThreadPoolExecutor(self.threads) as pool:
                scored = list(pool.map(lambda piece: score(codes_T=piece), pieces))
            prob_T, order_T = (np.concatenate(parts) for parts in zip(*scored, strict=True))
        return BlockScores(codes_T, prob_T, order_T, ends_S, *sum_sentences(codes_T, prob_T, ends_S))

    def score_ids(self, ids_T: Any, offsets_S: Any, bos: bool = True, eos: bool = True) -> BlockScores:
        """Score sentences of word ids: sentence s is ids_T[offsets_S[s]:offsets_S[s + 1]]; integers, on any device.

        Raises InputError for ids or offsets that are out of range. Once these are checked, the host does not wait.
        """
        V = len(self.words)
        ids_T, offsets_S = self._integers("ids", ids_T), self._integers("offsets", offsets_S)
        offsets_S = offsets_S.astype(np.int64, copy=False)
        T = len(ids_T)
        if not len(offsets_S):
            raise _wrong_offsets(offsets_S, T)
        if ids_T.dtype not in ID_TYPES:
            ids_T = ids_T.astype(np.int64)
        codes_T, ends_S, wrong_2 = ids_to_codes(ids_T, offsets_S, V, host_flags(2, self.device))
        wait = work_so_far(self.device)
        try:
            scores = self.score_codes(codes_T, bos, eos, ends_S)
        finally:
            wait()  # for the codes and the flags, not for the scores
        if wrong_2[1]:
            raise _wrong_offsets(offsets_S, T)
        if wrong_2[0]:
            raise InputError(f"ids are {int(ids_T.min())} to {int(ids_T.max())} but must be 0 to {V - 1}")
        return scores

    def _integers(self, name: str, values: Any) -> Any:
        """Return ids or offsets on the device. Raises InputError unless they are integers in one dimension."""
        try:
            array = values if on_gpu(values) else np.asarray(values)
        except ValueError:  # NumPy's, of rows of several lengths
            raise InputError(
                f"{name} are rows of several lengths but ids and offsets must be integers in one dimension"
            ) from None
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            raise InputError(
                f"{name} are {array.dtype} of shape {array.shape} but ids and offsets must be integers in one dimension"
            )
        return move_to(array, self.device)

    def score_text(
        self, text_B: Any, bos: bool = True, eos: bool = True, positions_T: Any = None
    ) -> tuple[BlockScores, Any]:
        """Score lines of text; also return positions_T (T,) uint32, where tokens start.

        text_B       (B,) uint8 on the device, words separated by the white space of C's isspace; each line ends with a
                     newline
        positions_T  None: they are searched
        """
        if positions_T is None:
            positions_T = find_tokens(text_B, isspace=True)
        return self.score_codes(find_codes(text_B, positions_T, *self._words), bos, eos), positions_T


def _wrong_offsets(offsets_S: Any, T: int) -> InputError:
    return InputError(f"offsets are {offsets_S} but must rise from 0 to the number of ids, {T:,}")


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
            kind, lambda: Replica(open_keyed(options.model), device), options.model, options.identity, device,
            options.verify, LESS_TO_SCORE,
        )  # fmt: skip
    return held_replica(
        kind, lambda model: Replica(model, device, index), options.model, options.identity, device,
        options.read_threads, options.verify, LESS_TO_SCORE,
    )  # fmt: skip
