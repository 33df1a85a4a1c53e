"""Next-word probabilities after histories: a replica of a model finds the histories and makes their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.compact import CompactBlock
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.core.ngrams.trie import Trie, node_dtype
from mgpu_ngram.engine.distribution.histories import Encoder
from mgpu_ngram.engine.distribution.row_maker import MIN_PIECE_HISTORIES, FoundHistories, RowMaker, joined, row_kind_of
from mgpu_ngram.engine.memory.copies import move_to, to_device_fast, to_host_fast
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.engine.trie.replicas import held_replica
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.distribution.find_and_write_rows import find_and_write_rows
from mgpu_ngram.kernels.distribution.find_histories import Children, Positions, find_histories
from mgpu_ngram.kernels.distribution.gather_children import gather_children
from mgpu_ngram.kernels.distribution.row_launch import MAX_BACKOFF_ORDERS


def replica_bytes(trie: Trie) -> int:
    """Return the device bytes of a `NextWordModel`, including its values in one more scale."""
    node = trie.first_child_M.dtype.itemsize
    filled = 0 if trie.filled_F is None else 12 * len(trie) + trie.filled_F.nbytes  # the stored n-grams alone
    return filled + 12 * len(trie) + (8 + node) * trie.histories + trie.samples.nbytes


class NextWordModel(RowMaker):
    """A model on a device that finds histories and makes rows. A quantised model is decoded there.

    For a model of an order above 33, rows raise InputError.

    threads  threads that share histories on a CPU
    """

    def __init__(self, model: BackoffModel, device: str, threads: int = 1):
        without_suffixes = replace(model.trie, suffix_L=model.trie.suffix_L[:0])  # rows do not need suffixes
        trie = without_suffixes.map_arrays(partial(to_device_fast, device=device)).decoded()
        self.begin = model.words.id("<s>")
        super().__init__(
            trie.word_G, trie.prob_G, trie.prob_G[: trie.symbols], left_out=self.begin or -1,
            has_backoffs=model.trie.has_backoffs, threads=threads, backoff_M=trie.backoff_M, filled_F=trie.filled_F,
        )  # fmt: skip
        self.trie, self.words, self.order, self.device = trie, model.words, trie.order, device
        self.encoder = Encoder(model.words, trie.order, device)
        self._synchronize()

    @property
    def symbols(self) -> int:
        """V, the number of words of the vocabulary."""
        return self.trie.symbols

    def check(self, options: RowOptions) -> None:
        """Raise InputError for rows that need backoffs, if the model has none, and for a model of too high an order."""
        self._check_order()
        super().check(options)

    def _check_order(self) -> None:
        if self.order > MAX_BACKOFF_ORDERS + 1:
            raise InputError(
                f"the model has order {self.order} but distributions support orders up to {MAX_BACKOFF_ORDERS + 1}; "
                "make a model of a "
                "lower order"
            )

    def find(self, codes_T: Any, positions_H: Any, bos: bool = False, scale: str = "log10") -> FoundHistories:
        """Find the histories before given positions of a stream of codes.

        bos    whether <s> precedes each sentence
        scale  scale of the backoffs, which is the scale of the rows to make
        """
        self._check_order()
        t, backoff_M = self.trie, self.scaled(scale).backoff_M

        def look_up(begin: int, end: int) -> Children:
            positions = Positions(codes_T, positions_H[begin:end], self._before(bos))
            return find_histories(index_of(t), t.order, positions, backoff_M, 1.0 if scale == "prob" else -0.0)

        first_HK, end_HK, backoff_HK = joined(self._in_pieces(look_up, positions_H, MIN_PIECE_HISTORIES))
        return FoundHistories(first_HK, end_HK, backoff_HK, scale)

    def find_and_make(
        self, codes_T: Any, positions_H: Any, options: RowOptions, bos: bool = False, out: Any = None
    ) -> Any:
        """Return `make` of what `find` finds; for few or short whole rows, a GPU does both in one kernel."""
        if options.top_k or self.device == "cpu" or self.of_mode(options.mode) is not self:
            return self.make(self.find(codes_T, positions_H, bos, options.scale), options, out)
        self.check(options)
        t, scaled = self.trie, self.scaled(options.scale)
        out = self.room(len(positions_H), options) if out is None else out
        find_and_write_rows(
            out, options.orders, index_of(t), t.order, Positions(codes_T, positions_H, self._before(bos)),
            scaled.backoff_M, self._values(scaled), row_kind_of(options),
        )  # fmt: skip
        return out[:, :, : self.symbols]

    def _before(self, bos: bool) -> int:
        """Return the word before every sentence, -1 for none."""
        return self.begin if bos else -1

    def compact(self, found: FoundHistories) -> CompactBlock:
        """Return found histories in log10 as a block to send or store; each range of children is stored once.

        The caller adds `prob_V` if needed.
        """
        xp = array_module(found.first_HK)
        first_Q, end_Q = found.first_HK.reshape(-1), found.end_HK.reshape(-1)
        some_Q = end_Q > first_Q
        first_R, at = xp.unique(first_Q[some_Q], return_index=True)
        end_R = end_Q[some_Q][at]
        offsets, word_C, prob_C = gather_children(first_R, end_R, self.word_G, self.prob_G)
        run_HK = xp.searchsorted(first_R, found.first_HK)
        size_HK = (found.end_HK - found.first_HK).astype(np.int64)
        first_HK = xp.where(size_HK > 0, offsets[run_HK], 0)
        entry = node_dtype(len(word_C))
        ranges = first_HK.astype(entry), (first_HK + size_HK).astype(entry), found.arrays_in("log10")[2]
        first, end, backoff, words, probs = map(to_host_fast, (*ranges, word_C, prob_C))
        block = CompactBlock(first, end, backoff, words, probs, self.has_backoffs)
        if self.filled_F is None:
            return block
        filled_F = to_host_fast(_among(self.filled_F, first_R, end_R, offsets).astype(entry))
        return replace(block, filled_F=filled_F if len(filled_F) else None)


def _among(filled_F: Any, first_R: Any, end_R: Any, offsets: Any) -> Any:
    """Return which entries that `gather_children` copies of these rising, disjoint ranges are filled in."""
    xp = array_module(filled_F)
    begin_R, stop_R = (xp.searchsorted(filled_F, nodes) for nodes in (first_R, end_R))
    upto_R = xp.cumsum(stop_R - begin_R)  # up to and including each range
    i = xp.arange(int((stop_R - begin_R).sum()))
    run = xp.searchsorted(upto_R, i, side="right")
    return filled_F[i + (stop_R - upto_R)[run]] - first_R[run] + offsets[run]


def rows_of(block: CompactBlock, device: str, threads: int = 1) -> tuple[RowMaker, FoundHistories]:
    """Return a row maker and the histories of a block with `prob_V`; rows are those of the replica, bit for bit."""
    move = partial(to_device_fast, device=device)
    found = FoundHistories(*map(move, (block.first_HK, block.end_HK, block.backoff_HK)))
    filled_F = None if block.filled_F is None else move(block.filled_F)
    ngrams = move(block.word_C), move(block.prob_C), move(block.prob_V)
    return RowMaker(*ngrams, -1, block.has_backoffs, threads, None, filled_F), found


def densify_block(
    block: CompactBlock, options: RowOptions, device: str = "cpu", threads: int = 1, out: Any = None
) -> Any:
    """Return the rows of a block with `prob_V`."""
    rows, found = rows_of(block, device, threads)
    return rows.dense(found, options, out)


def next_word_model_of(path: str, identity: str, device: str, threads: int, verify: bool = True) -> NextWordModel:
    """Return this process's replica of a model file, as `held_replica` caches it."""

    def make(model: BackoffModel) -> NextWordModel:
        return NextWordModel(model, device, threads)

    return held_replica("distribution", make, path, identity, device, threads, verify)


def use_block(
    model: tuple[str, str, str, int],
    histories: tuple[np.ndarray, np.ndarray],
    bos: bool,
    options: RowOptions | None,
    fn: Callable[[Any], Any],
) -> Any:
    """Return fn(rows) of histories, computed on the worker of the task; without options, fn(compact block).

    model      arguments of `next_word_model_of`
    histories  (codes_T, positions_H) in host memory
    """
    replica = next_word_model_of(*model)
    with memory_guard("making a block of distributions", replica.device, "give rows, the number of its histories"):
        codes_T, positions_H = (move_to(array, replica.device) for array in histories)
        if options:
            made = replica.find_and_make(codes_T, positions_H, options, bos)
        else:
            made = replica.compact(replica.find(codes_T, positions_H, bos))
    return fn(made)
