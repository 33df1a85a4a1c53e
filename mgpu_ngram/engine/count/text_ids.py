"""Pass 2 of a text: its tokens as codes, from which each worker selects the windows of groups of shards.

Codes take 4 bytes a token, n-grams of orders 2 to 5 over 60. So the codes are read again for each group, and tables of
other shards are neither kept nor merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.engine.count.count_chunk import Codes, CountOptions, count_tables, global_codes, plan_orders
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.token_streams import TokenisedChunk, TokeniseOptions
from mgpu_ngram.engine.count.tokenise import tokenise
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.host_memory_pool import lock_pages
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host, on_device_or_none
from mgpu_ngram.engine.memory.spill import held, in_file, result_to_device, spill, to_file
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.select_windows import SPLIT, select_windows
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

TOKEN_BYTES = 4  # of a token between the passes: its code
JOINED_SHARE = 1 / 16  # of a GPU, for the tokens of a stream: fewer streams take fewer kernels
LOCKED_BYTES = 1 << 20  # smaller arrays are not locked in memory


@dataclass
class TextIds:
    """The tokens of one or more chunks, on a device, in host memory or in files.

    chunks   their numbers
    seconds  by step of the work
    """

    streams: list[Codes]
    chunks: tuple[int, ...]
    seconds: dict[str, float] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name."""
        return {str(i): stream.tokens_T for i, stream in enumerate(self.streams)}

    def with_arrays(self, named: dict[str, Any]) -> TextIds:
        """Return the same tokens in other arrays, such as of another device."""
        streams = [replace(stream, tokens_T=named[str(i)]) for i, stream in enumerate(self.streams)]
        return TextIds(streams, self.chunks, self.seconds)


def text_ids(
    chunk: Chunk, tokenised: TokenisedChunk | None, lexicon: Lexicon, reading: TokeniseOptions, options: CountOptions
) -> TextIds:
    """Return the tokens of a chunk as codes; spill them.

    tokenised  the result of pass 1; if it is None or has no streams, the text is read again
    """
    budget = options.budget
    watch = Stopwatch(budget.device)
    if options.order == 1:  # the vocabulary has counted it
        return TextIds([], (chunk.index,))
    if tokenised is None or tokenised.streams is None:
        tokenised = tokenise(chunk, replace(reading, budget=None))
        watch = Stopwatch(budget.device, tokenised.vocabulary.seconds)
    found = tokenised

    def coded(device: str) -> list[Codes]:
        placed = replace(options, budget=replace(budget, device=device))
        return list(global_codes(found, lexicon, placed))

    with memory_guard("numbering words", budget.device):
        ids = TextIds(on_device_or_host(coded, budget.device), (chunk.index,))
    ids = spill(ids, budget, options.spill_folder)
    watch.lap("count")
    ids.seconds = watch.seconds
    return ids


def bundle_ids(*several: TextIds) -> TextIds:
    """Return the tokens of several chunks as one."""
    streams = [stream for ids in several for stream in ids.streams]
    chunks = tuple(chunk for ids in several for chunk in ids.chunks)
    return held(TextIds(streams, chunks, add_seconds(*(ids.seconds for ids in several))))


def on_device_again(ids: TextIds, budget: Budget) -> TextIds:
    """Return the tokens as each pass reads them.

    They are on the GPU again if they had to leave it and it has room, now that vocabularies of chunks are freed. There,
    short streams are joined. Others are locked in memory.
    """
    away = [array for array in ids.arrays().values() if not on_gpu(array)]
    if away and budget.fits_device(sum(array.nbytes for array in away)):
        ids = on_device_or_host(lambda device: ids if device == "cpu" else result_to_device(ids, device), budget.device)
        away = [array for array in ids.arrays().values() if not on_gpu(array)]
    for array in away:
        if array.nbytes >= LOCKED_BYTES and not in_file(array):
            lock_pages(array)
    most = int(JOINED_SHARE * budget.device_bytes) // TOKEN_BYTES
    joined = None if away else on_device_or_none(lambda _: _joined_up_to(ids.streams, most), budget.device)
    return ids if joined is None else replace(ids, streams=joined)


def _joined_up_to(streams: Sequence[Codes], most: int) -> list[Codes]:
    """Return streams, with neighbours joined up to that number of tokens, where that is possible."""
    groups, tokens = list[list[Codes]](), 0
    for codes in streams:
        tokens += len(codes.tokens_T)
        if not groups or tokens > most:
            groups.append([])
            tokens = len(codes.tokens_T)
        groups[-1].append(codes)
    return [stream for group in groups for stream in _joined(group)]


@dataclass(frozen=True)
class ShardKeys:
    """The windows of some shards of a stream: the result of `select_windows`.

    columns    (C, R) uint64
    starts_S1  (S + 1,) int64, NumPy: the s-th of the shards has rows starts_S1[s] to starts_S1[s + 1] - 1
    """

    columns: Any
    starts_S1: np.ndarray

    def arrays(self) -> dict[str, Any]:
        """Return the keys by name."""
        return {"columns": self.columns}

    def with_arrays(self, named: dict[str, Any]) -> ShardKeys:
        """Return the same windows in another array, such as of a file."""
        return replace(self, columns=named["columns"])

    def of(self, first: int, last: int) -> Any:
        """Return the keys of shards `first` to `last` - 1, counted from the first selected one, as a view."""
        return self.columns[:, self.starts_S1[first] : self.starts_S1[last]]


@dataclass
class WindowKeys:
    """The windows of some shards of some chunks.

    first    the first of the shards
    streams  the windows of each stream
    """

    first: int
    streams: list[ShardKeys]

    def of(self, shards: tuple[int, int]) -> list[Any]:
        """Return the keys of shards[0] to shards[1] - 1 of each stream, as views."""
        first, last = (shard - self.first for shard in shards)
        return [keys.of(first, last) for keys in self.streams]


def select_keys(
    texts: Sequence[TextIds], shards: tuple[int, int], lexicon: Lexicon, order: int, device: str, folder: str = ""
) -> WindowKeys:
    """Return the windows of shards[0] to shards[1] - 1, in host memory if the device is full.

    folder  where the windows wait in files, because memory has no room for them; "": they stay in memory

    One pass over the tokens serves several parts, and a worker sends their windows to the workers that make them.
    """
    bits = check.code_bits(lexicon.symbols)

    def selected(device: str) -> WindowKeys:
        shard_V, streams = lexicon.shards_on(device), list[ShardKeys]()
        if order > 2 and lexicon.split:
            shard_V = shard_V.copy()
            shard_V[array_module(shard_V).asarray(lexicon.split)] += np.uint16(SPLIT)
        for codes in (codes for text in texts for codes in text.streams):
            tokens_T = move_to(codes.tokens_T, device)
            keys = ShardKeys(*select_windows(tokens_T, shard_V, codes.ends(order), order, bits, shards))
            streams.append(to_file(keys, folder) if folder else keys)
        return WindowKeys(shards[0], streams)

    return on_device_or_host(selected, device)


def take_keys(keys: WindowKeys, shards: tuple[int, int]) -> WindowKeys:
    """Return the windows of shards[0] to shards[1] - 1, as views."""
    first, last = (shard - keys.first for shard in shards)
    starts_of = (found.starts_S1[first : last + 1] - found.starts_S1[first] for found in keys.streams)
    found = zip(keys.of(shards), starts_of, strict=True)
    return WindowKeys(shards[0], [ShardKeys(columns, starts_S1) for columns, starts_S1 in found])


def keys_of_shard(pieces: Sequence[WindowKeys], shard: int, lexicon: Lexicon, order: int, device: str) -> Any:
    """Return (C, R) uint64 on the device: the keys of all windows of a shard. A copy."""
    C = check.num_columns(order, check.code_bits(lexicon.symbols))
    found = [to_device(np.empty((C, 0), np.uint64), device)]
    for piece in pieces:
        found += [move_to(columns, device) for columns in piece.of((shard, shard + 1))]
    return array_module(found[0]).concatenate(found, axis=1)


def whole_tables(texts: Sequence[TextIds], lexicon: Lexicon, options: CountOptions) -> dict[int, Table]:
    """Return the tables of orders 2 to N of a text, on the device of the budget."""
    plans = [plan for plan in plan_orders(lexicon, options) if plan.order > 1]
    device, streams = options.budget.device, [stream for ids in texts for stream in ids.streams]
    placed = [replace(codes, tokens_T=move_to(codes.tokens_T, device)) for codes in streams]
    return {table.order: table for table in count_tables(_joined(placed), lexicon, plans, options)}


def _joined(streams: list[Codes]) -> list[Codes]:
    """Return streams as one if each is a whole text, so that one kernel or sort reads them."""
    if len(streams) < 2 or not all(codes.begins and codes.owned == len(codes.tokens_T) for codes in streams):
        return streams
    tokens_T = array_module(streams[0].tokens_T).concatenate([codes.tokens_T for codes in streams])
    return [Codes(tokens_T, len(tokens_T))]
