"""Rows of next-word probabilities from the children and backoffs of histories that a model has found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import ROW_ALIGNMENT_BYTES, ROW_DTYPES, RowOptions
from mgpu_ngram.core.ngrams.trie import Trie, without_filled
from mgpu_ngram.engine.memory.device import refuse_capture, synchronize
from mgpu_ngram.engine.memory.threads import in_pieces
from mgpu_ngram.kernels.dispatch import array_module, on_gpu
from mgpu_ngram.kernels.distribution.find_histories import Children
from mgpu_ngram.kernels.distribution.row_launch import RowKind, WordValues
from mgpu_ngram.kernels.distribution.scale_values import scale_values
from mgpu_ngram.kernels.distribution.top_words import top_words
from mgpu_ngram.kernels.distribution.write_rows import write_rows

MIN_PIECE_ROWS, MIN_PIECE_HISTORIES = 4, 4096  # least rows to make, or histories to find, per thread


class FoundHistories(NamedTuple):
    """The children and backoffs of H histories, on the device, from which rows can be made.

    first_HK, end_HK  (H, K): nodes first to end - 1 are the children of the last k + 1 words
    backoff_HK        (H, K) float32, the backoff weight of these words, in `scale`; the neutral value (-0, or the
                      probability 1) if the model lacks the words
    """

    first_HK: Any
    end_HK: Any
    backoff_HK: Any
    scale: str = "log10"

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        return self[:3]

    def part(self, begin: int, end: int) -> FoundHistories:
        first_HK, end_HK, backoff_HK = (array[begin:end] for array in self.arrays)
        return FoundHistories(first_HK, end_HK, backoff_HK, self.scale)

    def arrays_in(self, scale: str) -> Children:
        """Return the arrays with backoffs in a scale. The backoffs must be in this scale, or in log10."""
        if self.scale == scale:
            return Children(*self.arrays)
        if self.scale != "log10":
            raise ValueError(f"backoffs are in {self.scale} but {scale} is requested; find histories in that scale")
        backoff_HK = scale_values(self.backoff_HK.reshape(-1), scale).reshape(self.backoff_HK.shape)
        return Children(self.first_HK, self.end_HK, backoff_HK)


class Scaled(NamedTuple):
    """Values in one scale, with the backoffs of a model; None if only rows are made."""

    scale: str
    value_G: Any
    value_V: Any
    backoff_M: Any


class RowMaker:
    """Makes rows of found histories, from n-grams (word_G, prob_G) and single words (prob_V), all on one device.

    backoff_M     log10 backoffs of the model that finds histories, which are also converted to the scale of the rows
    left_out      a word that is neither ranked nor sampled (<s>, which has probability 1 in lmplz); -1: no word
    has_backoffs  whether the model has backoffs, which smoothed rows need
    threads       threads that share histories on a CPU
    filled_F      rising: n-grams that count only in smoothed rows, because the model does not store them
    """

    def __init__(
        self,
        word_G: Any,
        prob_G: Any,
        prob_V: Any,
        left_out: int,
        has_backoffs: bool,
        threads: int = 1,
        backoff_M: Any = None,
        filled_F: Any = None,
    ):
        self.word_G, self.prob_G, self.prob_V, self.backoff_M = word_G, prob_G, prob_V, backoff_M
        self.filled_F = filled_F
        self.left_out, self.has_backoffs, self.threads = left_out, has_backoffs, threads
        self._stored: RowMaker | None = None
        self._scaled: dict[str, Scaled] = {}
        self._last_ranks: tuple[str, Any] | None = None
        self._scaling = threading.Lock()

    def dense(self, found: FoundHistories, options: RowOptions, out: Any = None) -> Any:
        """Return (H, orders, V) of the dtype: the values of all words. bfloat16 is uint16, the upper half of a float32.

        out  array to fill, on the same device. Its rows may be longer than V values; the values after them become
             undefined. None: a new array, padded so that each row starts at a multiple of 128 bytes
        """
        self.check(options)
        if (rows := self.of_mode(options.mode)) is not self:
            return rows.dense(self._without_filled(found), options, out)
        out = self.room(len(found.first_HK), options) if out is None else out
        scaled = self.scaled(options.scale)

        def write(begin: int, end: int) -> None:
            piece = found.part(begin, end).arrays_in(options.scale)
            write_rows(out[begin:end], options.orders, piece, self._values(scaled), row_kind_of(options))

        self._in_pieces(write, found.first_HK, MIN_PIECE_ROWS)
        return out[:, :, : len(self.prob_V)]

    def room(self, histories: int, options: RowOptions) -> Any:
        dtype = ROW_DTYPES[options.dtype]
        whole = ROW_ALIGNMENT_BYTES // dtype.itemsize
        width = -(-len(self.prob_V) // whole) * whole
        return array_module(self.prob_V).empty((histories, len(options.orders), width), dtype)

    def top(self, found: FoundHistories, options: RowOptions) -> tuple[Any, Any]:
        """Return (ids (H, orders, k) int32, values (H, orders, k) float32), the greatest of each row, ties by lower id.

        The id is -1 where a stored row has fewer words.
        """
        self.check(options)
        if (rows := self.of_mode(options.mode)) is not self:
            return rows.top(self._without_filled(found), options)
        scaled = self.scaled(options.scale)
        ranked_V = self.ranked(options.scale)

        def choose(begin: int, end: int) -> tuple[Any, Any]:
            piece = found.part(begin, end).arrays_in(options.scale)
            return top_words(
                options.top_k or 0, options.orders, piece, self._values(scaled), ranked_V, options.scale == "prob",
                options.nothing, self.left_out,
            )  # fmt: skip

        ids, values = joined(self._in_pieces(choose, found.first_HK, MIN_PIECE_ROWS))
        return ids, values

    def make(self, found: FoundHistories, options: RowOptions, out: Any = None) -> Any:
        """Return `dense`, or `top` if the options ask for it."""
        return self.top(found, options) if options.top_k else self.dense(found, options, out)

    def _in_pieces(self, fn: Callable[[int, int], Any], of_H: Any, least: int) -> list[Any]:
        """Return fn(begin, end) for all histories of an array; on a CPU threads share them, at least `least` each."""
        return in_pieces(fn, len(of_H), self.threads if array_module(of_H) is np else 1, least)

    def values(self, scale: str) -> WordValues:
        """Return the words and values of n-grams in a scale. Raises InputError for a model without backoffs."""
        self.check(RowOptions((1,)))
        return self._values(self.scaled(scale))

    def _values(self, scaled: Scaled) -> WordValues:
        return WordValues(self.word_G, scaled.value_G, scaled.value_V)

    def check(self, options: RowOptions) -> None:
        """Raise InputError for rows that need backoffs, if the model has none."""
        if options.mode == "smoothed" and not self.has_backoffs:
            raise InputError(
                "the model has no backoffs, which smoothed rows need; make it again without --no-backoff, or ask for "
                "mode stored"
            )

    def of_mode(self, mode: str) -> RowMaker:
        """Return the row maker of a mode: for "stored" with filled-in n-grams, a cached one without them; else self."""
        if mode == "smoothed" or self.filled_F is None:
            return self
        with self._scaling:
            if self._stored is None:
                xp = array_module(self.word_G)
                word_S, prob_S = (xp.delete(array, self.filled_F) for array in (self.word_G, self.prob_G))
                self._synchronize()
                self._stored = RowMaker(word_S, prob_S, self.prob_V, self.left_out, self.has_backoffs, self.threads)
            return self._stored

    def _without_filled(self, found: FoundHistories) -> FoundHistories:
        """Return found histories with ranges of the n-grams that are not filled in."""
        first_HK, end_HK = (without_filled(self.filled_F, nodes) for nodes in (found.first_HK, found.end_HK))
        return found._replace(first_HK=first_HK, end_HK=end_HK)

    def scaled(self, scale: str) -> Scaled:
        """Return the values in a scale.

        They are never freed, because other streams and CUDA graphs may read them later.
        """
        if scale == "log10":  # in which the model has them
            return Scaled(scale, self.prob_G, self.prob_V, self.backoff_M)
        with self._scaling:
            if scale not in self._scaled:
                refuse_capture(f"values in the scale {scale}", "gpu" if on_gpu(self.prob_V) else "cpu")
                values = self.prob_G, self.prob_V, self.backoff_M
                made = Scaled(scale, *(None if v is None else scale_values(v, scale) for v in values))
                self._synchronize()
                self._scaled[scale] = made
            return self._scaled[scale]

    def ranked(self, scale: str) -> Any:
        """Return (V,) uint32: single words by their values in a scale, greatest first, ties by id.

        Caches the last result.
        """
        value_V = self.scaled(scale).value_V
        with self._scaling:
            if self._last_ranks is None or self._last_ranks[0] != scale:
                ranked_V = (-value_V).argsort(kind="stable").astype(np.uint32)
                self._synchronize()
                self._last_ranks = scale, ranked_V
            return self._last_ranks[1]

    def _synchronize(self) -> None:
        """Wait for arrays that are kept, because the next call may use another stream."""
        synchronize("gpu" if on_gpu(self.prob_V) else "cpu")


def row_kind_of(options: RowOptions) -> RowKind:
    """Return the kind of rows as `write_rows` takes it."""
    return RowKind(options.scale == "prob", options.nothing, options.dtype == "bfloat16")


def joined(pieces: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the concatenated arrays of `RowMaker._in_pieces`."""
    return pieces[0] if len(pieces) == 1 else tuple(map(np.concatenate, zip(*pieces, strict=True)))


def children_among(trie: Trie, token_of: Any, tokens: int) -> tuple[Any, Any, Any]:
    """Return (first_M, nodes_C, words_C): the children of each history that are tokens, by rising token.

    token_of  (V,) the token of each word of the trie, or -1

    The children of node m are entries first_M[m] to first_M[m + 1] - 1: its nodes, and their tokens.
    """
    xp, V = array_module(trie.word_G), trie.symbols
    token_C = token_of[trie.word_G[V:]]
    at_C = xp.flatnonzero(token_C >= 0)
    first_M = trie.first_child_M.astype(np.int64)
    parent_C = xp.searchsorted(first_M, at_C + V, side="right") - 1
    order_C = xp.argsort(parent_C * tokens + token_C[at_C])
    at_C, parent_C = at_C[order_C], parent_C[order_C]
    starts_M = xp.searchsorted(parent_C, xp.arange(len(first_M)))
    return starts_M.astype(trie.first_child_M.dtype), at_C + V, token_C[at_C].astype(np.uint32)
