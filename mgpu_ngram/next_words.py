"""What a model says of the next word: distributions, their greatest words, and words drawn from them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.api import client_executor
from mgpu_ngram.cluster.devices import cpu_cores, free_memory
from mgpu_ngram.cluster.executor import Handle, in_order
from mgpu_ngram.core.compact import CompactBlock
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import BackoffModel
from mgpu_ngram.core.words import line_of
from mgpu_ngram.engine.buffers import writable
from mgpu_ngram.engine.device import free_bytes, memory_guard, to_device, to_host_fast
from mgpu_ngram.engine.histories import Encoder, batches, several, shortened
from mgpu_ngram.engine.next_word import Found, NextWordModel, replica_bytes, rows_of, use_block
from mgpu_ngram.engine.row_options import RowOptions, block_rows

SENT_ROWS = 4096  # histories of a compact block, or of the greatest words of rows
MAX_CALLED = 1 << 16  # of a block that workers make: they go through the scheduler, some 20 bytes each
AHEAD = 2  # blocks per worker that are under way or wait for the caller
SMALLER = "use iter_distributions, which makes them block by block, fewer orders, or top_k"
MAX_SEED = (1 << 64) - 1


class NextWords:
    """The part of `Model` that knows distributions.

    A history is a string of words, a list of words or an array of ids; several are a list of these, or a matrix of ids,
    a row each (NumPy or CuPy). Words that the model does not know are <unk>; of a long history the last order - 1 words
    count; a string of no words is the empty history.
    """

    arrays: BackoffModel
    device: str
    path: Path | None
    identity: str
    _loading: threading.Lock
    _held: NextWordModel | None = None

    def distribution(
        self,
        histories: Any,
        orders: str | int | Iterable[int] = "all",
        mode: str = "smoothed",
        top_k: int | None = None,
        dtype: str = "float32",
        scale: str = "prob",
        bos: bool = False,
        out: Any = None,
    ) -> Any:
        """P(X | history) for every word X of the vocabulary, for each history and each order: (H, orders, V).

        histories  as said above; one string is one history
        orders     "all", "max", or some: the row of order n knows the last n - 1 words of the history
        mode       "smoothed": with backoff, as `score` has it; a history with fewer words than n - 1 has the row of all
                   of its words. "stored": 0 (-inf in logarithms) but for words whose n-gram is stored
        top_k      (ids (H, orders, k) int32, values (H, orders, k) float32) in place of that: the words of each row
                   with the greatest values, ties by lower id, without <s>; -1 where a stored row has fewer. 1,024 at
                   most
        dtype      "float32", "float16" or "bfloat16"; that is uint16, the upper half of a float32, for NumPy and CuPy
                   have none
        scale      "prob", "log10" (as KenLM computes it, to the bit) or "ln"
        bos        <s> stands before each history
        out        where to write: (H, orders, V) of that dtype, an array or whatever has the CUDA array interface or
                   DLPack, such as a PyTorch tensor (of bfloat16, too); returned

        A smoothed row of a normalised model sums to 1 without <s>, to which lmplz gives a probability of 1. The array
        is on the device of the model; its rows may lie apart, so that each begins at a multiple of 128 bytes. Raises
        InputError for what cannot be used and RunError when the memory is too small.
        """
        options = RowOptions.of(self.arrays.trie.order, orders, mode, scale, dtype, top_k)
        if top_k is not None and out is not None:
            raise InputError("out is for whole rows but top_k is given; leave one of them out")
        codes_T, positions_H = self._codes(several(histories))
        shape = len(positions_H), len(options.orders), len(self.arrays.words)
        target = None if out is None else writable(out, shape, dtype, self.device)
        with memory_guard(f"making rows of shape {shape}", self.device, SMALLER):
            made = self._next_word_model.find_and_make(codes_T, positions_H, options, bos, target)
        return made if out is None else out

    def iter_distributions(
        self,
        histories: Iterable[Any],
        orders: str | int | Iterable[int] = "all",
        mode: str = "smoothed",
        top_k: int | None = None,
        dtype: str = "float32",
        scale: str = "prob",
        bos: bool = False,
        rows: int | None = None,
        client: Any = None,
        compact: bool | None = None,
    ) -> Iterator[Any]:
        """What `distribution` gives, block by block, in order, for any number of histories.

        rows     histories of a block; None: as many as a part of the free memory holds
        client   a `distributed.Client`: its workers load the file of this model and find; blocks come straight from
                 them, a few ahead of the caller, and rows are made here, on the device of this model
        compact  `CompactBlock`s in place of rows, of all orders (`mgpu_ngram.compact.densify` makes the rows); None:
                 with a client, unless top_k is given

        A generator: nothing is done before the first block is asked for, and closing it ends the work.
        """
        options = RowOptions.of(self.arrays.trie.order, orders, mode, scale, dtype, top_k)
        _check_rows(rows)
        if compact and top_k is not None:
            raise InputError("compact blocks hold all words but top_k is given; leave one of them out")
        compact = client is not None and top_k is None if compact is None else compact
        if client is None:
            yield from self._blocks_here(histories, options, bos, rows, compact)
            return
        sent = None if top_k is None else options
        for block in self._from_workers(histories, bos, sent, _on_host, rows or SENT_ROWS, client):
            if isinstance(block, tuple):
                yield block
                continue
            block = block.with_words(self._prob_V)
            if compact:
                yield block
                continue
            made, found = rows_of(block, self.device, cpu_cores())
            step = rows or self._rows(options)
            for i in range(0, len(block), step):
                some = found.part(i, i + step)
                yield self._made(len(some.first_HK), partial(made.make, some, options))

    def map_distributions(
        self,
        fn: Callable[[Any], Any],
        histories: Iterable[Any],
        orders: str | int | Iterable[int] = "all",
        mode: str = "smoothed",
        top_k: int | None = None,
        dtype: str = "float32",
        scale: str = "prob",
        bos: bool = False,
        rows: int | None = None,
        client: Any = None,
    ) -> Iterator[Any]:
        """fn(block) for each block of what `distribution` gives, where it was made; yields what fn returns, in order.

        fn      takes an array on a device, or (ids, values) with top_k; with a client it runs on the workers, so what
                it returns should be small, and it must not keep the block
        client  a `distributed.Client`, whose workers load the file of this model; None: this process

        The other arguments are those of `iter_distributions`.
        """
        options = RowOptions.of(self.arrays.trie.order, orders, mode, scale, dtype, top_k)
        _check_rows(rows)
        if not callable(fn):
            raise InputError(f"fn is {fn!r} but must be a function of a block; give it before the histories")
        if client is None:
            yield from map(fn, self._blocks_here(histories, options, bos, rows, False))
        else:
            yield from self._from_workers(histories, bos, options, fn, rows, client)

    def sample(
        self,
        histories: Any,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        bos: bool = False,
    ) -> Any:
        """Draw a next word after each history: (H,) int32 ids, on the device of the model.

        temperature  words are drawn by P ** (1 / temperature); 0: always the most probable
        top_k        from the k most probable words alone, and
        top_p        from the fewest of the most probable ones whose probabilities add up to that share

        The same histories, settings and seed give the same words on any device. <s> is never drawn; -1 where no other
        word has a probability above 0.
        """
        return self._draw(self._find(several(histories), bos, "prob"), 0, seed, temperature, top_k, top_p)

    def generate(
        self,
        prompt: str = "",
        max_words: int = 50,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
    ) -> str:
        """Words that go on from the beginning of a sentence, drawn one by one, until it ends or there are max_words."""
        if isinstance(max_words, bool) or not (isinstance(max_words, (int, np.integer)) and max_words >= 0):
            raise InputError(f"max_words is {max_words!r} but must be a number, 0 or more")
        history: list[str | bytes] = list(line_of(prompt, "prompt").split())
        end = self.arrays.words.id("</s>")
        made: list[str] = []
        for number in range(max_words):
            history = history[max(0, len(history) - self.arrays.trie.order + 1) :]
            word = int(self._draw(self._find([history], True, "prob"), number, seed, temperature, top_k, top_p)[0])
            if word in (end, -1):  # -1: no word has a probability above 0
                break
            made.append(self.arrays.words.word(word))
            history.append(made[-1])
        return " ".join(made)

    @property
    def _next_word_model(self) -> NextWordModel:
        """Made when it is first asked for; threads that ask at once get one."""
        with self._loading:
            if self._held is None:
                way_out = "use a quantised model (mgpu-ngram trie --quantize 8)"
                with memory_guard("loading a model", self.device, way_out):
                    self._held = NextWordModel(self.arrays, self.device, cpu_cores())
            return self._held

    @cached_property
    def _prob_V(self) -> np.ndarray:
        """(V,) float32, log10, on the host."""
        trie = self.arrays.trie
        return trie.words_V2[:, 0].copy() if trie.quantized else trie.prob_G[: trie.symbols]

    def _codes(self, histories: Any) -> tuple[Any, Any]:
        """(codes_T, positions_H) on the device."""
        replica = self._next_word_model
        with memory_guard(*self._finding):
            codes_T, positions_H = replica.encoder.histories(histories)
        if not len(positions_H):
            raise InputError("there are no histories; give one at least")
        return codes_T, positions_H

    def _find(self, histories: Any, bos: bool, scale: str) -> Found:
        codes = self._codes(histories)
        with memory_guard(*self._finding):
            return self._next_word_model.find(*codes, bos, scale)

    @property
    def _finding(self) -> tuple[str, str, str]:
        return "finding histories", self.device, "give fewer at once"

    def _made(self, histories: int, make: Callable[[], Any]) -> Any:
        """A block; no variable of whoever asks keeps it while the next one is made."""
        what = f"making a block of {histories:,} histories' rows"
        with memory_guard(what, self.device, "give rows, the number of these"):
            return make()

    def _draw(self, found: Found, number: int, seed: int, temperature: float, top_k: int | None, top_p: float) -> Any:
        """`number` is that of the first history, by which, with the seed, words are drawn."""
        if not (isinstance(temperature, (int, float, np.floating)) and 0 <= temperature < math.inf):
            raise InputError(f"temperature is {temperature!r} but must be 0 or more")
        if not (isinstance(top_p, (int, float, np.floating)) and 0 < top_p <= 1):
            raise InputError(f"top_p is {top_p!r} but must be above 0 and at most 1")
        if top_k is not None and not (isinstance(top_k, (int, np.integer)) and top_k >= 1):
            raise InputError(f"top_k is {top_k!r} but must be 1 or more; leave it out for all words")
        if not (isinstance(seed, (int, np.integer)) and 0 <= seed <= MAX_SEED):
            raise InputError(f"seed is {seed!r} but must be 0 to 2^64 - 1")
        numbers_H = to_device(np.arange(number, number + len(found.first_HK), dtype=np.int64), self.device)
        return self._next_word_model.sample(found, numbers_H, seed, temperature, top_k or 0, top_p)

    def _rows(self, options: RowOptions) -> int:
        """Histories of a block of rows that is made here."""
        return block_rows(options, len(self.arrays.words), self.device, free_bytes(self.device))

    def _blocks_here(
        self, histories: Iterable[Any], options: RowOptions, bos: bool, rows: int | None, compact: bool
    ) -> Iterator[Any]:
        replica = self._next_word_model
        if not compact:
            # before the free memory is asked for, of which these take some; the first has the backoffs
            for rows_of_mode in replica, replica.of_mode(options.mode):
                rows_of_mode.scaled(options.scale)
        for some in batches(histories, rows or (SENT_ROWS if compact else self._rows(options))):
            if compact:
                yield replica.compact(self._find(some, bos, "log10")).with_words(self._prob_V)
            else:
                codes_T, positions_H = self._codes(some)
                make = partial(replica.find_and_make, codes_T, positions_H, options, bos)
                yield self._made(len(positions_H), make)

    def _from_workers(
        self,
        histories: Iterable[Any],
        bos: bool,
        options: RowOptions | None,
        fn: Callable[[Any], Any],
        rows: int | None,
        client: Any,
    ) -> Iterator[Any]:
        """What `use_block` returns for each block, in order."""
        if self.path is None:
            raise InputError("workers load a model from its file, but this one was not loaded; use Model.load")
        executor = client_executor(client)
        try:
            if rows is None and options is not None:
                tasks_per_host = executor.tasks_per_host if executor.device == "cpu" else executor.tasks_per_process
                free = min(executor.everywhere(free_memory, executor.device)) // tasks_per_host
                if executor.device == "gpu":  # where the model goes, too
                    free = max(0, free - replica_bytes(self.arrays.trie))
                rows = min(MAX_CALLED, block_rows(options, len(self.arrays.words), executor.device, free))
            there = str(self.path), self.identity, executor.device, executor.threads
            order = self.arrays.trie.order
            encoder = Encoder(self.arrays.words, order, "cpu")

            def calls() -> Iterator[Handle]:
                for i, some in enumerate(batches(histories, rows or SENT_ROWS)):
                    codes = shortened(*encoder.histories(some), order - 1)  # they go through the scheduler
                    yield executor.call(use_block, there, codes, bos, options, fn, label=f"block {i} of distributions")

            yield from in_order(executor, calls(), AHEAD * executor.workers)
        finally:
            executor.close()


def _on_host(made: Any) -> Any:
    """What a worker sends: compact blocks are there already."""
    return made if isinstance(made, CompactBlock) else tuple(map(to_host_fast, made))


def _check_rows(rows: Any) -> None:
    if rows is not None and not (isinstance(rows, (int, np.integer)) and rows >= 1):
        raise InputError(f"rows is {rows!r} but must be 1 or more; leave it out for as many as fit")
