"""Next words from a model: distributions, their most probable words, and sampled words.

The methods repeat their options in their signatures: `help` and the reference show them.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.api.executors import client_executor
from mgpu_ngram.cluster.devices import cpu_cores, free_memory
from mgpu_ngram.cluster.executor import Handle, in_order
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.compact import CompactBlock
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.row_options import RowOptions, block_rows, check_flag
from mgpu_ngram.core.ngrams.words import line_of
from mgpu_ngram.engine.decode.best_words import MAX_SEED
from mgpu_ngram.engine.distribution.histories import Encoder, batches, several, shortened
from mgpu_ngram.engine.distribution.next_word import NextWordModel, replica_bytes, rows_of, use_block
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.engine.distribution.sample_words import WordSampler
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.memory.device import free_bytes
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.torch.arrays import on_stream_of, operator, tensors_like
from mgpu_ngram.engine.torch.out_arrays import writable

SENT_ROWS = 4096  # histories per compact block, or per block of greatest words
MAX_CALLED_HISTORIES = 1 << 16  # per block that workers make; they pass through the scheduler, about 20 bytes each
AHEAD = 2  # blocks per worker in flight or buffered
SMALLER = "use iter_distributions, which makes rows block by block, fewer orders, or top_k"


class NextWords:
    """The methods of `Model` for next-word distributions.

    A history is a string of words, a list of words or an array of ids. Several histories are a list of these, or a
    matrix of ids with a row per history (NumPy, CuPy or PyTorch). Unknown words are <unk>. Only the last order - 1
    words of a history count. A string without words is the empty history.

    From a PyTorch tensor of ids, `distribution` and `sample` make tensors; if it is on a GPU, they work on PyTorch's
    current stream.
    """

    device: str
    path: Path | None
    identity: str
    _loading: threading.Lock
    _held: NextWordModel | None = None

    @property
    def arrays(self) -> BackoffModel:
        """The trie and the words of the model, in host memory."""
        raise NotImplementedError  # each class of models has its own

    @operator()
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
        """Return P(X | history) for every word X of the vocabulary, each history and each order: (H, orders, V).

        histories  see the class; one string is one history
        orders     "all", "max", or some orders: the row of order n uses the last n - 1 words of the history
        mode       "smoothed": with backoff, as in `score`; a history with fewer than n - 1 words has the row of all
                   its words. "stored": only stored n-grams; other words have 0 (-inf in logarithms)
        top_k      return (ids (H, orders, k) int32, values (H, orders, k) float32) instead: the words with the greatest
                   values of each row, ties by lower id, without <s>. If a stored row has fewer words, ids are -1. At
                   most 1,024
        dtype      "float32", "float16" or "bfloat16"; bfloat16 is uint16, the upper half of a float32, because NumPy
                   and CuPy lack the type
        scale      "prob", "log10" (with the same bits as KenLM) or "ln"
        bos        whether <s> precedes each history
        out        array to fill and return: (H, orders, V) of the dtype; an array, or an object with the CUDA array
                   interface or DLPack, such as a PyTorch tensor (also of bfloat16), which uses PyTorch's current stream

        A smoothed row of a normalised model sums to 1 without <s>, to which lmplz gives a probability of 1. The array
        is on the device of the model. Its rows may be padded so that each starts at a multiple of 128 bytes. Raises
        InputError for invalid arguments and RunError if the memory is too small.
        """
        check_flag("bos", bos)
        options = RowOptions.of(self.arrays.trie.order, orders, mode, scale, dtype, top_k)
        if top_k is not None and out is not None:
            raise InputError("out is for whole rows but top_k is given; leave one of them out")
        with on_stream_of(out, histories):
            codes_T, positions_H = self._codes(several(histories))
            shape = len(positions_H), len(options.orders), len(self.arrays.words)
            target = None if out is None else writable(out, shape, dtype, self.device)
            with memory_guard(f"making rows of shape {shape}", self.device, SMALLER):
                made = self._next_word_model.find_and_make(codes_T, positions_H, options, bos, target)
            if out is not None:
                return out
            tensors = tensors_like(histories, *(made if options.top_k else (made,)))
            return tensors if options.top_k else tensors[0]

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
        """Yield the result of `distribution`, block by block, in order, for any number of histories.

        rows     number of histories per block; None: as many as fit a share of the free memory
        client   a `distributed.Client`: its workers load this model's file and find the histories. Blocks come directly
                 from the workers, and a few are prefetched; rows are made in this process, on the device of this model
        compact  yield `CompactBlock`s of all orders instead of rows (`mgpu_ngram.compact.densify` makes the rows);
                 None: only with a client and without top_k

        A generator: work starts when the caller asks for the first block, and ends when the generator is closed.
        """
        check_flag("bos", bos)
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
                piece = found.part(i, i + step)
                yield self._make_block(len(piece.first_HK), partial(made.make, piece, options))

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
        """Yield fn(block) for each block of the result of `distribution`, in order; fn runs on the worker of the block.

        fn      takes an array on a device, or (ids, values) with top_k. With a client it runs on the workers, so its
                result should be small. It must not keep the block
        client  a `distributed.Client` whose workers load this model's file; None: this process

        The other arguments are those of `iter_distributions`.
        """
        check_flag("bos", bos)
        options = RowOptions.of(self.arrays.trie.order, orders, mode, scale, dtype, top_k)
        _check_rows(rows)
        if not callable(fn):
            raise InputError(f"fn is {fn!r:.60} but must be a function of a block; give it before the histories")
        if client is None:
            yield from map(fn, self._blocks_here(histories, options, bos, rows, False))
        else:
            yield from self._from_workers(histories, bos, options, fn, rows, client)

    @operator()
    def sample(
        self,
        histories: Any,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        bos: bool = False,
    ) -> Any:
        """Sample a next word after each history: (H,) int32 ids, on the device of the model.

        temperature  words have probability proportional to P ** (1 / temperature); 0: always the most probable word
        top_k        sample only from the k most probable words
        top_p        sample from the fewest most probable words whose probabilities sum to this share of all words

        The same histories, settings and seed give the same words on any device (below temperature 0.15, all but one of
        10^9). <s> is never sampled; -1 means that no other word has a probability above 0.

        The first call with a temperature sums the weights of all n-grams, which takes 8 bytes each on the device. The
        sums of the last temperature are kept. top_k up to 1,024 without top_p needs no sums. Raises RunError if the
        memory is too small.
        """
        check_flag("bos", bos)
        with on_stream_of(histories):
            drawn_H = self._draw(self._find(several(histories), bos), 0, seed, temperature, top_k, top_p)
            return tensors_like(histories, drawn_H)[0]

    def generate(
        self,
        prompt: str = "",
        max_words: int = 50,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
    ) -> str:
        """Return sampled words that continue a sentence, until its end or up to max_words words."""
        if isinstance(max_words, bool) or not (isinstance(max_words, (int, np.integer)) and max_words >= 0):
            raise InputError(f"max_words is {max_words!r:.60} but must be a number, 0 or more")
        history: list[str | bytes] = list(line_of(prompt, "prompt").split())
        end = self.arrays.words.id("</s>")
        made: list[str] = []
        for number in range(max_words):
            history = history[max(0, len(history) - self.arrays.trie.order + 1) :]
            word = int(self._draw(self._find([history], True), number, seed, temperature, top_k, top_p)[0])
            if word in (end, -1):  # -1: no word has a probability above 0
                break
            made.append(self.arrays.words.word(word))
            history.append(made[-1])
        return " ".join(made)

    @property
    def _next_word_model(self) -> NextWordModel:
        """Created on first use; threads that ask at once share one."""
        with self._loading:
            if self._held is None:
                way_out = "use a quantised model (mgpu-ngram convert --quantize 8)"
                with memory_guard("loading a model", self.device, way_out):
                    self._held = NextWordModel(self.arrays, self.device, cpu_cores())
            return self._held

    @cached_property
    def _sampler(self) -> WordSampler:
        return WordSampler(self._next_word_model)

    @cached_property
    def _prob_V(self) -> np.ndarray:
        """(V,) float32, log10, on the host."""
        trie = self.arrays.trie
        return trie.words_V2[:, 0].copy() if trie.quantized else trie.prob_G[: trie.symbols]

    def _codes(self, histories: Any) -> tuple[Any, Any]:
        """Return (codes_T, positions_H) on the device."""
        replica = self._next_word_model
        with memory_guard(*self._finding):
            codes_T, positions_H = replica.encoder.histories(histories)
        if not len(positions_H):
            raise InputError("histories is empty; give at least one")
        return codes_T, positions_H

    def _find(self, histories: Any, bos: bool) -> FoundHistories:
        """Return found histories in log10."""
        codes = self._codes(histories)
        with memory_guard(*self._finding):
            return self._next_word_model.find(*codes, bos)

    @property
    def _finding(self) -> tuple[str, str, str]:
        return "finding histories", self.device, "give fewer at once"

    def _make_block(self, histories: int, make: Callable[[], Any]) -> Any:
        """Return a block from `make`. The generator holds no reference to it while it makes the next one."""
        what = f"making the rows of a block of {histories:,} histories"
        with memory_guard(what, self.device, "give rows, the number of histories per block"):
            return make()

    def _draw(
        self, found: FoundHistories, number: int, seed: int, temperature: float, top_k: int | None, top_p: float
    ) -> Any:
        """Sample; `number` is that of the first history, which with the seed selects the random numbers."""
        if not (_is_finite(temperature) and temperature >= 0):
            raise InputError(f"temperature is {temperature!r:.60} but must be a finite number, 0 or more")
        if not (isinstance(top_p, (int, float, np.floating)) and 0 < top_p <= 1):
            raise InputError(f"top_p is {top_p!r:.60} but must be above 0 and at most 1")
        if top_k is not None and not (isinstance(top_k, (int, np.integer)) and top_k >= 1 and top_k is not True):
            raise InputError(f"top_k is {top_k!r:.60} but must be 1 or more; leave it out for all words")
        if not (isinstance(seed, (int, np.integer)) and 0 <= seed <= MAX_SEED):
            raise InputError(f"seed is {seed!r:.60} but must be 0 to 2^64 - 1")
        with memory_guard("sampling words", self.device, "give fewer histories at once"):
            return self._sampler.sample(found, number, seed, float(temperature), top_k or 0, top_p)

    def _rows(self, options: RowOptions) -> int:
        """Return the histories per block of rows that is made here."""
        return block_rows(options, len(self.arrays.words), self.device, free_bytes(self.device))

    def _blocks_here(
        self, histories: Iterable[Any], options: RowOptions, bos: bool, rows: int | None, compact: bool
    ) -> Iterator[Any]:
        replica = self._next_word_model
        if not compact:
            # These take memory, so they come before free memory is measured; the first one holds the backoffs.
            for rows_of_mode in replica, replica.of_mode(options.mode):
                rows_of_mode.scaled(options.scale)
        for batch in batches(histories, rows or (SENT_ROWS if compact else self._rows(options))):
            if compact:
                yield replica.compact(self._find(batch, bos)).with_words(self._prob_V)
            else:
                codes_T, positions_H = self._codes(batch)
                make = partial(replica.find_and_make, codes_T, positions_H, options, bos)
                yield self._make_block(len(positions_H), make)

    def _from_workers(
        self,
        histories: Iterable[Any],
        bos: bool,
        options: RowOptions | None,
        fn: Callable[[Any], Any],
        rows: int | None,
        client: Any,
    ) -> Iterator[Any]:
        """Yield what `use_block` returns for each block, in order."""
        if self.path is None:
            raise InputError("workers load a model from its file, but this one was not loaded; use Model.load")
        executor = client_executor(client)
        try:
            if rows is None and options is not None:
                tasks_per_host = executor.tasks_per_host if executor.device == "cpu" else executor.tasks_per_process
                free = min(executor.everywhere(free_memory, executor.device)) // tasks_per_host
                if executor.device == "gpu":  # where the model goes, too
                    free = max(0, free - replica_bytes(self.arrays.trie))
                rows = min(MAX_CALLED_HISTORIES, block_rows(options, len(self.arrays.words), executor.device, free))
            model = str(self.path), self.identity, executor.device, executor.threads
            order = self.arrays.trie.order
            encoder = Encoder(self.arrays.words, order, "cpu")

            def calls() -> Iterator[Handle]:
                for i, batch in enumerate(batches(histories, rows or SENT_ROWS)):
                    codes = shortened(*encoder.histories(batch), order - 1)  # they pass through the scheduler
                    yield executor.call(use_block, model, codes, bos, options, fn, label=f"block {i} of distributions")

            yield from in_order(executor, calls(), AHEAD * executor.workers)
        finally:
            executor.close()


def _on_host(made: Any) -> Any:
    """Return what a worker sends; compact blocks are in host memory already."""
    return made if isinstance(made, CompactBlock) else tuple(map(to_host_fast, made))


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    try:
        return isinstance(value, (int, float, np.floating)) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _check_rows(rows: Any) -> None:
    if rows is not None and not (isinstance(rows, (int, np.integer)) and 1 <= rows <= sys.maxsize):
        raise InputError(f"rows is {rows!r:.60} but must be 1 or more; leave it out to fill the memory")
