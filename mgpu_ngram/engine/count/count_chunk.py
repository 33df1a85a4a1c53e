"""Pass 2: turn the token streams of a chunk into sorted tables of n-gram counts, one per order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.shards import sort_bytes_per_token
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.sentence_markers import mark_sentences
from mgpu_ngram.engine.count.sorted_runs import SortedRun, map_table, spill_run, where_it_fits
from mgpu_ngram.engine.count.strategy import (
    MAX_SORT_TOKENS,
    MEMORY_SHARE,
    OrderPlan,
    TextFacts,
    choose,
    dense_bytes,
    hash_bytes_per_token,
)
from mgpu_ngram.engine.count.token_streams import TokenisedChunk, TokeniseOptions
from mgpu_ngram.engine.count.tokenise import tokenise
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to, to_host_fast
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host, out_of_memory
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.count.cut_shards import cut_shards
from mgpu_ngram.kernels.count.hash_count import hash_count
from mgpu_ngram.kernels.count.histogram_global import histogram_global
from mgpu_ngram.kernels.count.histogram_private import histogram_private
from mgpu_ngram.kernels.count.merge_tables import merge_tables
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

MIN_PART_TOKENS = 1 << 16
SYMBOLS_AT_ONCE = 1 << 20  # symbols of a vocabulary whose counts become a table at once
BINS_AT_ONCE = 1 << 28  # bins of a dense histogram read at once; finding used bins takes up to 9 bytes per bin


@dataclass(frozen=True)
class CountOptions:
    """How chunks are counted. Picklable; the same for every chunk of a run."""

    budget: Budget
    order: int = 5
    strategy: str = "auto"
    histograms: int = 1
    sentence_markers: bool = False
    streams: int = 1  # approximate number of token streams in the corpus; each is counted separately
    chunks: int = 1  # chunks per worker
    spill_folder: str = ""  # folder for sorted runs that do not fit in memory


@dataclass(frozen=True)
class Codes:
    """A stream in global codes.

    tokens_T  (T,) uint32 codes; 0 ends every window. Or (T,) uint8 raw bytes
    owned     windows start in the first `owned` tokens; the tokens after them belong to the next chunk
    lut       (256,) uint16, the code of each byte, for raw bytes
    begins    whether no tokens of an earlier chunk precede
    """

    tokens_T: Any
    owned: int
    lut: np.ndarray | None = None
    begins: bool = True

    def ends(self, order: int) -> tuple[int, int]:
        """Return (first, past the last) position where a window of up to `order` words ends.

        The chunk before has the windows that end in the first `order` - 1 tokens, which it read past its end.
        """
        return 0 if self.begins else order - 1, min(len(self.tokens_T), self.owned + order - 1)


def plan_orders(lexicon: Lexicon, options: CountOptions) -> list[OrderPlan]:
    """Return the strategy of each order; the same on every worker."""
    budget = options.budget
    memory_bytes = budget.device_bytes if budget.device == "gpu" else budget.host_bytes // budget.tasks
    tokens = -(-lexicon.tokens // options.streams)
    text = TextFacts(lexicon.unit, lexicon.symbols, tokens)
    return choose(options.order, text, options.strategy, options.histograms, budget.device, memory_bytes)


def counted_orders(lexicon: Lexicon, options: CountOptions) -> list[OrderPlan]:
    """Return the orders that chunks count: under strategy auto the vocabulary has counted order 1."""
    return [p for p in plan_orders(lexicon, options) if options.strategy != "auto" or p.order > 1]


def dense_orders(lexicon: Lexicon, options: CountOptions) -> list[int]:
    """Return the orders that stay dense histograms until all chunks are summed; the same on every worker.

    They stay dense only if the histograms of all chunks of a worker fit beside all other data.
    """
    dense = [p.order for p in counted_orders(lexicon, options) if p.strategy in ("global", "private")]
    need = options.chunks * sum(dense_bytes(n, lexicon.symbols, 2) for n in dense)  # 2: 64-bit counts at worst
    return dense if need <= options.budget.block_bytes() // 4 else []


def count_chunk(
    chunk: Chunk, tokenised: TokenisedChunk | None, lexicon: Lexicon, reading: TokeniseOptions, options: CountOptions
) -> SortedRun:
    """Count the n-grams of every order in a chunk, and cut the tables into shards.

    Omits order 1 under strategy auto, because the vocabulary has counted it.

    tokenised  the result of pass 1; if it is None or has no streams, the text is read again

    The result depends only on the chunk and the lexicon. Counts parts of the chunk that fit in memory, and merges
    them. If memory still runs out, halves the parts. If even small parts fail on a GPU (fragmentation), counts the
    chunk on the host.
    """
    device = options.budget.device
    watch = Stopwatch(device)
    plans = counted_orders(lexicon, options)
    run = SortedRun({}, chunks=(chunk.index,))
    if plans:
        if tokenised is None or tokenised.streams is None:
            tokenised = tokenise(chunk, replace(reading, budget=None))
            watch = Stopwatch(device, tokenised.vocabulary.seconds)
        dense = dense_orders(lexicon, options)

        def count(device: str) -> tuple[dict[int, list[ShardedTable]], dict[int, Any]]:
            placed = replace(options, budget=replace(options.budget, device=device))
            return _count(tokenised, lexicon, plans, dense, placed, watch)

        with memory_guard("counting n-grams", device):
            run.tables, run.bins = on_device_or_host(count, device)
        run = spill_run(run, options.budget, options.spill_folder)
        watch.lap("reduce")
    run.seconds = watch.seconds
    return run


def _count(
    tokenised: TokenisedChunk, lexicon: Lexicon, plans: Sequence[OrderPlan], dense: Sequence[int],
    options: CountOptions, watch: Stopwatch,
) -> tuple[dict[int, list[ShardedTable]], dict[int, Any]]:  # fmt: skip
    """Return (tables cut into shards, histograms of the `dense` orders) of one chunk, by order."""
    streams = global_codes(tokenised, lexicon, options)
    tables, bins = count_streams(streams, lexicon, plans, options)
    del streams
    stay = {n: bins.pop(n) for n in dense}
    tables += _tables_of_bins(bins, lexicon)
    watch.lap("count")
    cut = dict[int, list[ShardedTable]]()
    while tables:  # frees each table once it is cut; moves to the host at once if the run will not stay on the device
        table = _cut(tables.pop(0), lexicon, cut)
        if options.budget.spills and options.budget.place(table.nbytes) != "device":
            table = map_table(table, to_host_fast)
        cut[table.order] = [table]
        del table  # now only `cut` refers to it and can move it off the device
    return cut, stay


def _tables_of_bins(bins: dict[int, Any], lexicon: Lexicon) -> list[Table]:
    return [bins_to_table(b, n, lexicon.symbols, check.code_bits(lexicon.symbols)) for n, b in bins.items()]


def count_tables(
    streams: Sequence[Codes], lexicon: Lexicon, plans: Sequence[OrderPlan], options: CountOptions
) -> list[Table]:
    """Return a table for each planned order, by rising order."""
    tables, bins = count_streams(streams, lexicon, plans, options)
    return sorted(tables + _tables_of_bins(bins, lexicon), key=lambda table: table.order)


def _cut(table: Table, lexicon: Lexicon, before: dict[int, list[ShardedTable]]) -> ShardedTable:
    """Return the table cut into shards, on its device.

    If the device is full, tables cut earlier (`before`) move to the host first. Cutting in host memory is the last
    resort: it takes ten times as long.
    """

    def make_room() -> None:
        before.update({order: [map_table(t, to_host_fast) for t in tables] for order, tables in before.items()})

    return where_it_fits(partial(split, lexicon=lexicon), table, make_room=make_room)


def global_codes(tokenised: TokenisedChunk, lexicon: Lexicon, options: CountOptions) -> list[Codes]:
    """Translate a chunk's streams to global codes, insert sentence markers, and join streams if possible."""
    device = options.budget.device
    if lexicon.unit == "byte":  # byte + 1, and 0 where a file ends
        codes = lexicon.byte_codes()
    else:
        codes = to_device(lexicon.codes(tokenised.vocabulary.hash_V, lexicon.place(options.budget)), device)
    done, whole = [], []
    for stream in tokenised.streams or ():
        tokens_T = move_to(stream.tokens_T, device)
        if tokens_T.dtype == np.uint8:
            done.append(Codes(tokens_T, stream.owned, codes[1:].astype(np.uint16)))
            continue
        codes_T = to_device(codes, device)[tokens_T]
        if options.sentence_markers:
            codes_T = mark_sentences(codes_T)
        if lexicon.unit == "word":
            whole.append(codes_T)
        else:
            done.append(Codes(codes_T, min(stream.owned, len(codes_T)), begins=stream.begins))
    if whole:
        codes_T = array_module(whole[0]).concatenate(whole) if len(whole) > 1 else whole[0]
        done.append(Codes(codes_T, len(codes_T)))
    return done


def count_streams(
    streams: Sequence[Codes], lexicon: Lexicon, plans: Sequence[OrderPlan], options: CountOptions
) -> tuple[list[Table], dict[int, Any]]:
    """Return (tables of sorted or hashed orders, in host memory if the device is full; bins of dense orders)."""
    device, bits = options.budget.device, check.code_bits(lexicon.symbols)
    like = to_device(np.empty(0, np.uint64), device)
    sparse = [p for p in plans if p.strategy in ("sort", "hash")]
    pieces = {p.order: [empty_table(p.order, bits, like)] for p in sparse}
    wide = np.uint32 if lexicon.tokens < 1 << 32 else np.uint64
    dense_plans = {p.order: p for p in plans if p not in sparse}
    bins = {n: array_module(like).zeros(lexicon.symbols**n, wide) for n in dense_plans}
    most = MAX_SORT_TOKENS  # tokens of a part; halved when memory runs out
    for stream in streams:
        start = 0
        while start < stream.owned:
            limit = min(most, _part_tokens(bits, sparse, options), stream.owned - start)
            part = _part(stream, start, limit, options.order)
            try:
                tables = _sparse(part, bits, sparse)
                dense = {n: _dense(part, p, lexicon.symbols, options.histograms) for n, p in dense_plans.items()}
            except Exception as error:
                if not out_of_memory(error):
                    raise
                if not any(len(t) and on_gpu(t.counts) for p in pieces.values() for t in p):  # none to move
                    most = limit // 2
                    if most < MIN_PART_TOKENS:
                        raise
                tables = []
                pieces = {n: [map_table(t, to_host_fast) for t in p] for n, p in pieces.items()}  # frees device memory
                continue
            while tables:  # the last reference is in `pieces`, whose tables may have to leave the device
                pieces[tables[0].order].append(tables.pop(0))
            for n in dense_plans:
                bins[n] += dense.pop(n)
            start += limit
    return [where_it_fits(_sum, *(p if len(p) == 1 else p[1:])) for p in pieces.values()], bins


def _part_tokens(bits: int, sparse: Sequence[OrderPlan], options: CountOptions) -> int:
    """Return how many tokens can be counted at once in the memory that is free now."""
    order = max([p.order for p in sparse if p.strategy == "sort"], default=1)
    needs = [sort_bytes_per_token(order, bits) if p.strategy == "sort" else hash_bytes_per_token(p.order, bits)
             for p in sparse]  # fmt: skip
    budget = int(options.budget.working_bytes() * MEMORY_SHARE)
    return max(MIN_PART_TOKENS, min(MAX_SORT_TOKENS, budget // max(needs, default=1)))


def _part(stream: Codes, start: int, owned: int, order: int) -> Codes:
    """Return the part of a stream whose windows start at start .. start + owned - 1, with their words after it."""
    return Codes(stream.tokens_T[start : start + owned + order - 1], owned, stream.lut)


def _sparse(part: Codes, bits: int, plans: Sequence[OrderPlan]) -> list[Table]:
    by_sort = [p.order for p in plans if p.strategy == "sort"]
    tables = _by_sort(part, by_sort, bits) if by_sort else []
    return tables + [_by_hash(_window(part, p.order), p.order, bits) for p in plans if p.strategy == "hash"]


def _dense(part: Codes, plan: OrderPlan, symbols: int, histograms: int) -> Any:
    """Return (symbols**n,) uint32, the count of each n-gram; the first symbol is the most significant."""
    window = _window(part, plan.order)
    if plan.strategy == "global":
        return histogram_global(window.tokens_T, plan.order, symbols, window.lut)
    return histogram_private(window.tokens_T, plan.order, symbols, window.lut, histograms)


def _window(part: Codes, order: int) -> Codes:
    return Codes(part.tokens_T[: part.owned + order - 1], part.owned, part.lut)


def _by_sort(part: Codes, orders: list[int], bits: int) -> list[Table]:
    """Count by one sort of the keys of the highest order; lower orders are prefixes of the sorted keys."""
    order = orders[-1]
    columns = ngram_keys(part.tokens_T, order, bits, part.lut, None, part.owned)
    columns = radix_sort(columns, order * bits)
    tables = count_prefixes(columns, bits, orders[0], order)
    return [Table(*tables[n - orders[0]], n, bits) for n in orders]


def _by_hash(part: Codes, order: int, bits: int) -> Table:
    positions_G, counts_G = hash_count(part.tokens_T, order, part.lut)
    xp = array_module(positions_G)
    keys = ngram_keys(part.tokens_T, order, bits, part.lut, positions_G)
    columns = xp.concatenate([keys, counts_G.view(np.uint64)[None]])
    columns = radix_sort(columns, order * bits)
    return Table(columns[:-1], columns[-1].view(np.int64), order, bits)


def bins_to_table(bins: Any, order: int, symbols: int, bits: int) -> Table:
    """Return the n-grams with counts above 0 of a dense histogram, as a sorted table."""
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
    """Return keys (C, G) of n-grams from one (G,) array of codes for each word."""
    xp = array_module(codes[0])
    windows = xp.stack(codes, axis=1).reshape(-1)
    G, order = len(codes[0]), len(codes)
    return ngram_keys(windows, order, bits, None, xp.arange(G, dtype=np.int64) * order)


def empty_table(order: int, bits: int, like: Any) -> Table:
    """Return a table without n-grams, on the device of `like`."""
    xp = array_module(like)
    return Table(xp.empty((check.num_columns(order, bits), 0), np.uint64), xp.empty(0, np.int64), order, bits)


def _sum(*tables: Table) -> Table:
    """Sum tables of one order. Any order of merging gives the same table."""
    first = tables[0]
    keys, counts, _ = merge_tables([(t.keys, t.counts, np.array([len(t)])) for t in tables])
    return Table(keys, counts, first.order, first.bits)


def shard_bins(run: SortedRun, lexicon: Lexicon) -> SortedRun:
    """Convert the dense histograms of a run to tables cut into shards."""
    tables = {}
    for n, bins in run.bins.items():
        table = bins_to_table(bins, n, lexicon.symbols, check.code_bits(lexicon.symbols))
        tables[n] = [where_it_fits(partial(split, lexicon=lexicon), table)]
    return SortedRun(tables, chunks=run.chunks)


def split(table: Table, lexicon: Lexicon) -> ShardedTable:
    """Cut a table into the corpus's shards, each sorted. Order 1 is in shard 0."""
    S = lexicon.num_shards
    if S == 1 or table.order == 1:
        return ShardedTable(table.keys, table.counts, np.full(S, len(table)), table.order, table.bits)
    shard_V = lexicon.shards_on("gpu" if on_gpu(table.keys) else "cpu")
    cut = cut_shards(table.keys, table.counts, table.order, table.bits, shard_V, lexicon.split, S)
    return ShardedTable(*cut, table.order, table.bits)


def unigram_tables(vocabulary: Vocabulary) -> Iterator[Table]:
    """Yield order 1 from the vocabulary's counts, in consecutive tables: the symbols that occur."""
    V = len(vocabulary)
    bits = check.code_bits(V)
    for first in range(0, V, SYMBOLS_AT_ONCE):
        counts_R = vocabulary.counts_V[first : first + SYMBOLS_AT_ONCE]
        used = np.flatnonzero(counts_R)
        yield Table((used + first + 1).astype(np.uint64)[None] << np.uint64(64 - bits), counts_R[used], 1, bits)
