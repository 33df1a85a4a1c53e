"""Pass 2: from the token streams of a chunk to sorted tables of n-gram counts, one per order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.shards import shard_of, words_at
from mgpu_ngram.core.tables import Table
from mgpu_ngram.engine.device import Stopwatch, free_bytes, memory_guard, out_of_memory, to_device
from mgpu_ngram.engine.plan import MAX_SORT_TOKENS, MEMORY_SHARE, OrderPlan, hash_bytes_per_token, sort_bytes_per_token
from mgpu_ngram.engine.tokenise import TokenisedChunk
from mgpu_ngram.engine.vocabulary import Lexicon
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count import merge_tables as merge_kernel
from mgpu_ngram.kernels.count.hash_count import hash_count
from mgpu_ngram.kernels.count.histogram_global import histogram_global
from mgpu_ngram.kernels.count.histogram_private import histogram_private
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from mgpu_ngram.kernels.count.prefix_runs import prefix_runs
from mgpu_ngram.kernels.count.radix_sort import radix_sort
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

START, END = 2, 3  # codes of <s> and </s>
MIN_PART_TOKENS = 1 << 16
BINS_AT_ONCE = 1 << 28  # of a dense histogram that is read off; finding those in use takes up to 9 bytes a bin


@dataclass(frozen=True)
class CountOptions:
    """How streams are counted. Picklable; the same for every chunk of a run."""

    plans: tuple[OrderPlan, ...]
    histograms: int = 1
    sentence_markers: bool = False
    device: str = "cpu"
    sharers: int = 1  # tasks that share the memory of the device
    keep_on_device: bool = True


@dataclass
class CountedChunk:
    """The tables of a chunk, by order, and the seconds they took."""

    tables: list[Table]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Codes:
    """A stream in global codes: uint32, or raw bytes with their table of codes."""

    tokens_T: Any
    owned: int
    lut: np.ndarray | None = None


def count_chunk(tokenised: TokenisedChunk, lexicon: Lexicon, options: CountOptions) -> CountedChunk:
    """Count the n-grams of every planned order in a chunk.

    Pure: the same chunk and lexicon give the same tables. Counts each part of the chunk that fits
    in memory and merges; where memory runs out all the same, parts are halved.
    """
    watch = Stopwatch(options.device)
    with memory_guard("counting n-grams", options.device):
        streams = global_codes(tokenised, lexicon, options)
        tables = count_streams(streams, len(lexicon.vocabulary), options)
    if not options.keep_on_device:
        tables = [_moved(t, to_host) for t in tables]
    watch.lap("count")
    return CountedChunk(tables, watch.seconds)


def global_codes(tokenised: TokenisedChunk, lexicon: Lexicon, options: CountOptions) -> list[Codes]:
    """Translate a chunk's streams to global codes; put in sentence markers; join what can be joined."""
    if lexicon.vocabulary.unit == "byte":  # byte + 1, and 0 where a file ends
        codes = np.zeros(257, np.uint32)
        codes[lexicon.vocabulary.data.astype(np.int64) + 1] = np.arange(1, len(lexicon.vocabulary) + 1)
    else:
        codes = lexicon.codes(tokenised.vocabulary.hash_V, options.device)
    done, whole = [], []
    for stream in tokenised.streams:
        tokens_T = to_device(stream.tokens_T, options.device)
        if tokens_T.dtype == np.uint8:
            done.append(Codes(tokens_T, stream.owned, codes[1:].astype(np.uint16)))
            continue
        codes_T = to_device(codes, options.device)[tokens_T]
        if options.sentence_markers:
            codes_T = mark_sentences(codes_T)
        if lexicon.vocabulary.unit == "word":
            whole.append(codes_T)
        else:
            done.append(Codes(codes_T, min(stream.owned, len(codes_T))))
    if whole:
        codes_T = array_module(whole[0]).concatenate(whole) if len(whole) > 1 else whole[0]
        done.append(Codes(codes_T, len(codes_T)))
    return done


def mark_sentences(codes_T: Any) -> Any:
    """Put <s> before and </s> after every line of a stream of whole lines, each ended by a 0."""
    xp = array_module(codes_T)
    ends = codes_T == 0
    lines_before_T = xp.cumsum(ends) - ends
    place_T = xp.arange(len(codes_T)) + 2 * lines_before_T + 1
    marked = xp.empty(len(codes_T) + 2 * int(ends.sum()), np.uint32)
    marked[place_T] = xp.where(ends, np.uint32(END), codes_T)
    end_places = place_T[ends]
    marked[end_places + 1] = 0
    if len(end_places):
        marked[0] = START
        marked[end_places[:-1] + 2] = START
    return marked


def count_streams(streams: Sequence[Codes], symbols: int, options: CountOptions) -> list[Table]:
    """The tables of all planned orders over several streams, merged; in host memory where the device is full."""
    orders = [p.order for p in options.plans]
    if not orders:
        return []
    order, bits = max(orders), check.code_bits(symbols)
    like = to_device(np.empty(0, np.uint64), options.device)
    pieces = {n: [empty_table(n, bits, like)] for n in orders}
    most = MAX_SORT_TOKENS  # tokens of a part; halved when memory runs out all the same
    for stream in streams:
        start = 0
        while start < stream.owned:
            limit = min(most, _part_tokens(order, bits, options), stream.owned - start)
            try:
                tables = _count_part(_part(stream, start, limit, order), symbols, bits, options)
            except Exception as error:
                most = limit // 2
                if not out_of_memory(error) or most < MIN_PART_TOKENS:
                    raise
                pieces = {n: [_moved(t, to_host) for t in p] for n, p in pieces.items()}  # makes room
                continue
            for table in tables:
                pieces[table.order].append(table)
            start += limit
    return [where_it_fits(merge, *(p if len(p) == 1 else p[1:])) for p in pieces.values()]


def where_it_fits(fn: Callable, *tables: Table) -> Any:
    """fn(*tables) where they are; in host memory when some are there already, or the device is full."""
    if len({on_gpu(t.keys) for t in tables}) == 1:
        try:
            return fn(*tables)
        except Exception as error:
            if not out_of_memory(error) or not on_gpu(tables[0].keys):
                raise
    return fn(*[_moved(t, to_host) for t in tables])


def _part_tokens(order: int, bits: int, options: CountOptions) -> int:
    per_token = max(
        [1]
        + [
            sort_bytes_per_token(order, bits) if p.strategy == "sort" else hash_bytes_per_token(p.order, bits)
            for p in options.plans
            if p.strategy in ("sort", "hash")
        ]
    )
    budget = int(free_bytes(options.device) * MEMORY_SHARE) // options.sharers
    return max(MIN_PART_TOKENS, min(MAX_SORT_TOKENS, budget // per_token))


def _part(stream: Codes, start: int, owned: int, order: int) -> Codes:
    """The part of a stream whose windows start at start .. start + owned - 1, with the words they need after it."""
    return Codes(stream.tokens_T[start : start + owned + order - 1], owned, stream.lut)


def _count_part(part: Codes, symbols: int, bits: int, options: CountOptions) -> list[Table]:
    by_sort = [p.order for p in options.plans if p.strategy == "sort"]
    sorted_tables = dict(zip(by_sort, _by_sort(part, by_sort, bits), strict=True)) if by_sort else {}
    tables = []
    for plan in options.plans:
        n = plan.order
        window = Codes(part.tokens_T[: part.owned + n - 1], part.owned, part.lut)
        if plan.strategy == "sort":
            tables.append(sorted_tables[n])
        elif plan.strategy == "hash":
            tables.append(_by_hash(window, n, bits))
        elif plan.strategy == "global":
            bins = histogram_global(window.tokens_T, n, symbols, window.lut)
            tables.append(bins_to_table(bins, n, symbols, bits))
        else:
            bins = histogram_private(window.tokens_T, n, symbols, window.lut, options.histograms)
            tables.append(bins_to_table(bins, n, symbols, bits))
    return tables


def _by_sort(part: Codes, orders: list[int], bits: int) -> list[Table]:
    """Sort the keys of the highest order once; the lower orders are prefixes of the sorted keys."""
    order = orders[-1]
    columns = ngram_keys(part.tokens_T, order, bits, part.lut, None, part.owned)
    columns = radix_sort(columns, order * bits)
    tables = prefix_runs(columns, bits, orders[0], order)
    return [Table(*tables[n - orders[0]], n, bits) for n in orders]


def _by_hash(part: Codes, order: int, bits: int) -> Table:
    positions_G, counts_G = hash_count(part.tokens_T, order, part.lut)
    xp = array_module(positions_G)
    keys = ngram_keys(part.tokens_T, order, bits, part.lut, positions_G)
    columns = xp.concatenate([keys, counts_G.view(np.uint64)[None]])
    columns = radix_sort(columns, order * bits)
    return Table(columns[:-1], columns[-1].view(np.int64), order, bits)


def bins_to_table(bins: Any, order: int, symbols: int, bits: int) -> Table:
    """The n-grams of a dense histogram that occur, as a sorted table."""
    xp = array_module(bins)
    parts = range(0, max(len(bins), 1), BINS_AT_ONCE)
    used_G = xp.concatenate([xp.flatnonzero(bins[i : i + BINS_AT_ONCE]) + i for i in parts])
    counts_G = bins[used_G].astype(np.int64)
    codes = []
    for _ in range(order):
        codes.append((used_G % symbols + 1).astype(np.uint32))
        used_G = used_G // symbols
    return Table(pack_codes(codes[::-1], bits), counts_G, order, bits)


def pack_codes(codes: Sequence[Any], bits: int) -> Any:
    """Keys (C, G) of n-grams given as one (G,) array of codes per word."""
    xp = array_module(codes[0])
    windows = xp.stack(codes, axis=1).reshape(-1)
    G, order = len(codes[0]), len(codes)
    return ngram_keys(windows, order, bits, None, xp.arange(G, dtype=np.int64) * order)


def empty_table(order: int, bits: int, like: Any) -> Table:
    """A table without n-grams, where `like` lives."""
    xp = array_module(like)
    return Table(xp.empty((check.num_columns(order, bits), 0), np.uint64), xp.empty(0, np.int64), order, bits)


def merge(*tables: Table) -> Table:
    """Sum tables of one order. Any order of merging gives the same table."""
    first = tables[0]
    keys, counts = merge_kernel.merge_tables([(t.keys, t.counts) for t in tables], first.order, first.bits)
    return Table(keys, counts, first.order, first.bits)


def split_chunk(counted: CountedChunk, lexicon: Lexicon, parts: int) -> list[dict[tuple[int, int], Table]]:
    """A chunk's tables cut into shards, dealt to `parts`: (order, shard) -> table for each part."""
    pieces: list[dict[tuple[int, int], Table]] = [{} for _ in range(parts)]
    for table in counted.tables:
        cut = partial(split, shard_V=lexicon.shard_V, num_shards=lexicon.num_shards)
        shards = [table] if table.order == 1 else where_it_fits(cut, table)
        for shard, piece in enumerate(shards):
            pieces[shard % parts][table.order, shard] = piece
    return pieces


def split(table: Table, shard_V: np.ndarray, num_shards: int) -> list[Table]:
    """Cut a table of order 2 or more into its shards, each still sorted."""
    if num_shards == 1:
        return [table]
    xp = array_module(table.keys)
    shard_G = shard_of(table, xp.asarray(shard_V))
    bits = (num_shards - 1).bit_length()
    columns = xp.stack([shard_G << np.uint64(64 - bits), xp.arange(len(table), dtype=np.uint64)])
    shard_G, row_G = radix_sort(columns, bits)
    ends = xp.searchsorted(shard_G >> np.uint64(64 - bits), xp.arange(num_shards, dtype=np.uint64), side="right")
    ends = to_host(ends).tolist()
    rows = [row_G[a:b].astype(np.int64) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return [Table(table.keys.take(r, axis=1), table.counts[r], table.order, table.bits) for r in rows]


def merge_part(
    pieces: list[dict[tuple[int, int], Table]], device: str, keep_on_device: bool = True
) -> dict[tuple[int, int], Table]:
    """Sum the pieces that chunks made of the same shards, one shard after the other."""
    merged = {}
    for shard in pieces[0]:
        with memory_guard("merging tables", device):
            try:
                table = merge(*[_moved(p[shard], lambda a: to_device(a, device)) for p in pieces])
            except Exception as error:
                if device == "cpu" or not out_of_memory(error):
                    raise
                table = merge(*[_moved(p[shard], to_host) for p in pieces])
        merged[shard] = table if keep_on_device else _moved(table, to_host)
    return merged


def _moved(table: Table, move: Callable[[Any], Any]) -> Table:
    return replace(table, keys=move(table.keys), counts=move(table.counts))


def unigram_table(lexicon: Lexicon) -> Table:
    """Order 1 straight from the vocabulary's counts: the symbols that occur."""
    counts_V = lexicon.vocabulary.counts_V
    used = np.flatnonzero(counts_V)
    bits = check.code_bits(len(counts_V))
    return Table((used + 1).astype(np.uint64)[None] << np.uint64(64 - bits), counts_V[used], 1, bits)


def heaviest(table: Table, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes (K, order) and counts (K,) of the k n-grams that occur most, ties by key, in host memory."""
    k = min(k, len(table))
    if k == 0:
        return np.empty((0, table.order), np.int64), np.empty(0, np.int64)
    xp = array_module(table.counts)
    least = int(xp.partition(table.counts, len(table) - k)[len(table) - k])
    above = xp.flatnonzero(table.counts > least)
    rows_K = to_host(xp.concatenate([above, xp.flatnonzero(table.counts == least)[: k - len(above)]]))
    counts_K = to_host(table.counts[rows_K])
    by_count = np.lexsort((rows_K, -counts_K))
    keys = to_host(table.keys[:, rows_K[by_count]])
    codes = [words_at(keys, table.order, table.bits, i).astype(np.int64) for i in range(table.order)]
    return np.stack(codes, axis=1), counts_K[by_count]
