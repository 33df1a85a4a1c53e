"""A model on a device, which scores blocks of text."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.engine.memory.copies import move_to, to_device_fast
from mgpu_ngram.engine.memory.device import host_flags, work_so_far
from mgpu_ngram.engine.trie.build import edges_of, index_of, values_of
from mgpu_ngram.engine.trie.open_model import KeyedModel
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import array_module, on_gpu
from mgpu_ngram.kernels.score.find_codes import find_codes
from mgpu_ngram.kernels.score.ids_to_codes import ID_TYPES, ids_to_codes
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_by_keys import KeyTables, score_by_keys
from mgpu_ngram.kernels.score.score_tokens import MAX_SCORED_ORDER, score_tokens
from mgpu_ngram.kernels.score.sum_sentences import sum_sentences
from mgpu_ngram.kernels.trie.edges import EdgeTable

PIECE_TOKENS = 1 << 18  # tokens per thread, approximately


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
