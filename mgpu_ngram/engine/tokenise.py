"""Pass 1: from the bytes of a chunk to token streams and the chunk's own vocabulary."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.corpus import Chunk
from mgpu_ngram.core.reading import Block
from mgpu_ngram.core.vocabulary import ARRAYS, HashCollision, LocalVocabulary
from mgpu_ngram.engine.blocks import device_blocks
from mgpu_ngram.engine.device import Stopwatch, memory_guard, out_of_memory, to_device, to_host_fast
from mgpu_ngram.engine.memory import Budget, hold
from mgpu_ngram.engine.vocabulary import END, START, keep_vocabulary, special_hashes
from mgpu_ngram.kernels.count.count_mismatches import count_mismatches
from mgpu_ngram.kernels.count.find_tokens import find_tokens
from mgpu_ngram.kernels.count.gather_words import gather_words
from mgpu_ngram.kernels.count.hash_words import hash_ids, hash_words
from mgpu_ngram.kernels.count.histogram_private import count_bytes, histogram_private
from mgpu_ngram.kernels.count.intern import WordTable, intern
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

SMALL_BYTES = 1 << 20  # whole files below this share one stream of 32-bit tokens


@dataclass(frozen=True)
class TokeniseOptions:
    """How text becomes tokens. Picklable; the same for every chunk of a run."""

    unit: str = "word"
    order: int = 5
    dtype: str = "uint16"
    separator_id: int | None = None
    lowercase: bool = False
    device: str = "cpu"
    block_bytes: int = 64 << 20
    read_threads: int = 1
    budget: Budget | None = None  # that streams and vocabularies must keep to while they wait; None: they stay
    spill_folder: str = ""  # where vocabularies go that do not fit in memory
    seed: int = 0  # of the word hash; another is tried after a collision
    lmplz: bool = False  # read text as `LmplzText` says


@dataclass
class Stream:
    """Tokens in text order: uint8 raw bytes, or uint32 local numbers + 1 with 0 where windows end.

    Of a chunk with V symbols, V + 1 ends a line that gets no </s>, see `LmplzText`. Windows start in the
    first `owned` tokens; those after them are the next chunk's.
    """

    tokens_T: Any
    owned: int


@dataclass
class TokenisedChunk:
    """What pass 1 leaves on a worker: streams, None where memory had no room for them; and the chunk's vocabulary."""

    streams: list[Stream] | None
    vocabulary: LocalVocabulary
    __hash__ = object.__hash__  # by identity: `hold` keeps a set of those that live

    @property
    def host_bytes(self) -> int:
        """Bytes that pass 2 needs of it in host memory. The vocabulary is held by itself, but its hashes outlive it."""
        needed = [*(s.tokens_T for s in self.streams or []), self.vocabulary.hash_V]
        return sum(a.nbytes for a in needed if not on_gpu(a))


def tokenise(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    """Read a chunk, find its tokens, number its distinct symbols in order of appearance, count them.

    Raises HashCollision when two words of the chunk share a 64-bit hash.
    """
    with options.budget.alone() if options.budget else nullcontext():
        with memory_guard("tokenising", options.device):
            tokenised = _where_it_fits(chunk, options)
        return _keep(tokenised, options.budget, options.spill_folder) if options.budget else tokenised


def _where_it_fits(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    """Tokenise on the device; in host memory, which takes longer, when a GPU is full."""
    by_unit = {"word": _words, "byte": _bytes, "id": _ids}[options.unit]
    try:
        return by_unit(chunk, options)
    except Exception as error:
        if options.device == "cpu" or not out_of_memory(error):
            raise
    return by_unit(chunk, replace(options, device="cpu"))  # not above: the error keeps arrays on the GPU


def _keep(tokenised: TokenisedChunk, budget: Budget, folder: str) -> TokenisedChunk:
    """Leave streams and vocabulary on their device while there is room, else on the host; else let streams go."""
    streams = tokenised.streams or []
    nbytes = sum(s.tokens_T.nbytes for s in streams)
    place = budget.place(nbytes)
    if place == "device" and not all(on_gpu(s.tokens_T) for s in streams):  # the device was full
        place = "host" if budget.fits_host(nbytes) else "disk"
    if place == "host":
        tokenised.streams = [Stream(to_host_fast(s.tokens_T), s.owned) for s in streams]
        hold(tokenised)
    elif place == "disk":
        tokenised.streams = None  # reading the text again costs no more than writing streams and reading those
    tokenised.vocabulary = keep_vocabulary(tokenised.vocabulary, budget, folder)
    return tokenised


def without_words(tokenised: TokenisedChunk) -> TokenisedChunk | None:
    """What pass 2 needs of a chunk: its streams and the hashes of its symbols; None where no streams were kept."""
    if tokenised.streams is None:
        return None
    words = tokenised.vocabulary
    nothing = {name: getattr(words, name)[:0].copy() for name in ARRAYS if name != "hash_V"}
    return hold(TokenisedChunk(tokenised.streams, replace(words, **nothing)))


def _blocks(
    chunk: Chunk, options: TokeniseOptions, halo: int, checksums: list, watch: Stopwatch
) -> Iterator[tuple[Block, Any]]:
    return device_blocks(
        chunk, options.unit, options.block_bytes, halo, options.device, options.read_threads, checksums, watch
    )


class _Growing:
    """An array that grows at its end. Its room doubles, so a block costs what it brings, not what is there."""

    def __init__(self, xp: Any, dtype: Any):
        self._xp, self._room, self._size = xp, xp.empty(0, dtype), 0

    @property
    def array(self) -> Any:
        """What it holds, a view."""
        return self._room[: self._size]

    def extend(self, values: Any) -> None:
        size = self._size + len(values)
        if size > len(self._room):
            room = self._xp.empty(max(size, 2 * len(self._room)), self._room.dtype)
            room[: self._size] = self.array
            self._room = room
        self._room[self._size : size] = values
        self._size = size


class _Symbols:
    """The growing vocabulary of a chunk: places on the host, counts and bytes where the tokens are."""

    def __init__(self, device: str):
        xp = array_module(to_device(np.empty(0), device))
        self.xp = xp
        self._offsets, self._data = _Growing(xp, np.int64), _Growing(xp, np.uint8)
        self._offsets.extend(xp.zeros(1, np.int64))
        self.counts_V = xp.zeros(0, np.int64)
        self._first_source, self._first_offset = _Growing(np, np.int32), _Growing(np, np.int64)

    @property
    def offsets_V(self) -> Any:
        return self._offsets.array

    @property
    def data(self) -> Any:
        return self._data.array

    def add_words(self, offsets_N: Any, data: Any) -> None:
        """Append the bytes of new symbols."""
        self._offsets.extend(offsets_N[1:] + len(self.data))
        self._data.extend(data)

    def add_places(self, block: Block, positions_N: np.ndarray) -> None:
        """Note where new symbols stand first: input and byte offset."""
        segment_N = np.searchsorted(block.starts_S, positions_N, side="right") - 1
        self._first_source.extend(block.sources_S[segment_N])
        self._first_offset.extend(block.offsets_S[segment_N] + positions_N - block.starts_S[segment_N])

    def add_specials(self) -> None:
        """Append <unk>, <s> and </s>, which stand nowhere, as token ids."""
        self.add_words(4 * self.xp.arange(4), self.xp.zeros(12, np.uint8))
        self.counts_V = self.xp.zeros(3, np.int64)
        for first in (self._first_source, self._first_offset):
            first.extend(np.full(3, -1))

    def add_counts(self, tokens_T: Any, V: int) -> None:
        """Add a stream's counts; V symbols are known by now."""
        if V:
            counts_V = histogram_private(tokens_T, 1, V).astype(np.int64)
            counts_V[: len(self.counts_V)] += self.counts_V
            self.counts_V = counts_V

    def finish(self, hash_V: Any, **totals: Any) -> LocalVocabulary:
        """The vocabulary, where the tokens are."""
        places = (self.xp.asarray(first.array) for first in (self._first_source, self._first_offset))
        return LocalVocabulary(hash_V, self.offsets_V, self.data, self.counts_V, *places, **totals)


def _words(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    watch = Stopwatch(options.device)
    checksums: list = []
    table = WordTable(to_device(np.empty(0), options.device))
    symbols, streams, size = _Symbols(options.device), _Streams(), 0
    special_hash = special_hashes("word", options.seed, symbols.xp) if options.lmplz else np.empty(0, np.uint64)
    unfinished: list[tuple[Any, Any]] = []  # tokens of a block, and where in them lines end that get no </s>
    for block, text_B in _blocks(chunk, options, 0, checksums, watch):
        if options.lowercase:
            lower_ascii(text_B)
        positions_T = find_tokens(text_B)
        hash_T = hash_words(text_B, positions_T, options.seed)
        tokens_T, new_N = intern(hash_T, table)
        new_positions_N = positions_T[new_N]
        symbols.add_words(*gather_words(text_B, new_positions_N))
        symbols.add_places(block, to_host(new_positions_N).astype(np.int64))
        if count_mismatches(text_B, positions_T, tokens_T, symbols.offsets_V, symbols.data):
            raise HashCollision(options.seed)
        if options.lmplz:
            tokens_T, end_U = _lmplz_lines(block, positions_T, hash_T, tokens_T, special_hash)
            unfinished.append((tokens_T, end_U))
        symbols.add_counts(tokens_T, len(table))
        streams.add(tokens_T, len(tokens_T))
        size += len(block.data)
        watch.lap("tokenise")
    tokens = int(symbols.counts_V.sum())
    found = streams.finish()
    lines = sum(s.owned for s in found) - tokens
    for tokens_T, end_U in unfinished:
        tokens_T[end_U] = len(table) + 1
    vocabulary = symbols.finish(
        table.hash_V, tokens=tokens, lines=lines, unfinished_lines=sum(len(end_U) for _, end_U in unfinished),
        size_bytes=size, checksums=checksums, seconds=watch.seconds,
    )  # fmt: skip
    return TokenisedChunk(found, vocabulary)


def _lmplz_lines(
    block: Block, positions_T: Any, hash_T: Any, tokens_T: Any, special_hash: np.ndarray
) -> tuple[Any, Any]:
    """The tokens of a block as `LmplzText` says, 0 where a line ends; and where in them those end that get no </s>."""
    xp = array_module(tokens_T)
    newline_U = (block.starts_S + block.owned_S)[block.owned_S < block.lengths_S]
    end_U = xp.searchsorted(positions_T, xp.asarray(newline_U.astype(np.uint32)))
    special_D = xp.flatnonzero(functools.reduce(operator.or_, (hash_T == h for h in special_hash)))
    tokens_T = xp.delete(tokens_T, special_D)
    end_U = end_U - xp.searchsorted(special_D, end_U)
    empty_U = tokens_T[end_U - 1] == 0  # before the first token of a block is its last one: 0, too
    tokens_T = xp.delete(tokens_T, end_U[empty_U])
    return tokens_T, (end_U - xp.cumsum(empty_U))[~empty_U]


class _Streams:
    """The streams of a chunk. Blocks that follow each other in one source become one stream."""

    def __init__(self) -> None:
        self._parts: list[list[Any]] = []
        self._owned: list[int] = []
        self._last_owned = 0
        self._next: tuple[int, int] | None = None  # source and offset at which the last stream goes on

    def add(self, tokens_T: Any, owned: int, at: tuple[int, int] | None = None, size_bytes: int = 0) -> None:
        """Add tokens of which `owned` start windows; `at` (source, offset) when they lie in one source."""
        if at is not None and at == self._next:
            self._parts[-1][-1] = self._parts[-1][-1][: self._last_owned]  # what was ahead of it is here again
            self._parts[-1].append(tokens_T)
            self._owned[-1] += owned
        else:
            self._parts.append([tokens_T])
            self._owned.append(owned)
        self._last_owned = owned
        self._next = None if at is None else (at[0], at[1] + size_bytes)

    def finish(self) -> list[Stream]:
        """The streams, each in one array."""
        joined = [p[0] if len(p) == 1 else array_module(p[0]).concatenate(p) for p in self._parts]
        return [Stream(tokens_T, owned) for tokens_T, owned in zip(joined, self._owned, strict=True)]


def lower_ascii(text_B: Any) -> None:
    """Turn A-Z into a-z in place; all other bytes, those of UTF-8 letters too, stay as they are."""
    text_B |= ((text_B - np.uint8(65)) < 26).astype(np.uint8) << np.uint8(5)


def _segments(block: Block, data: Any) -> Iterator[tuple[list[int], Any]]:
    """Neighbouring whole small files together, other segments alone, in text order: (segment numbers, their bytes)."""
    small_S = (block.owned_S == block.lengths_S) & (block.lengths_S < SMALL_BYTES)
    for small, group in itertools.groupby(range(len(small_S)), small_S.__getitem__):
        segments = list(group)
        if small and len(segments) > 1:
            yield segments, data
            continue
        for s in segments:
            yield [s], data[int(block.starts_S[s]) : int(block.starts_S[s] + block.lengths_S[s])]


def _bytes(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    watch = Stopwatch(options.device)
    checksums: list = []
    streams = _Streams()
    counts_A = np.zeros(256, np.int64)
    first: dict[int, tuple[int, int]] = {}
    size = 0
    for block, data in _blocks(chunk, options, options.order - 1, checksums, watch):
        if options.lowercase:
            lower_ascii(data)
        for segments, part_T in _segments(block, data):
            xp = array_module(part_T)
            for s in segments:
                start, owned = int(block.starts_S[s]), int(block.owned_S[s])
                at = int(block.sources_S[s]), int(block.offsets_S[s])
                mine_T = data[start : start + owned]
                mine_A = to_host(count_bytes(mine_T))
                for v, place in _first_places(mine_T, (mine_A > 0) & (counts_A == 0)).items():
                    first[v] = at[0], at[1] + place
                counts_A += mine_A
                size += owned
            if len(segments) == 1:
                streams.add(part_T.copy(), owned, at, owned)  # a copy: the ring is used again
                continue
            end = xp.zeros(1, np.uint32)
            parts = []  # bytes + 1, a 0 after each file
            for s in segments:
                start = int(block.starts_S[s])
                parts += [data[start : start + int(block.lengths_S[s])].astype(np.uint32) + np.uint32(1), end]
            tokens_T = xp.concatenate(parts)
            streams.add(tokens_T, len(tokens_T))
        watch.lap("tokenise")
    used = np.flatnonzero(counts_A)
    vocabulary = LocalVocabulary(
        used.astype(np.uint64),
        np.arange(len(used) + 1, dtype=np.int64),
        used.astype(np.uint8),
        counts_A[used],
        np.array([first[v][0] for v in used.tolist()], np.int32),
        np.array([first[v][1] for v in used.tolist()], np.int64),
        tokens=int(counts_A.sum()),
        size_bytes=size,
        checksums=checksums,
        seconds=watch.seconds,
    )
    return TokenisedChunk(streams.finish(), vocabulary)


def _first_places(data_T: Any, wanted_A: np.ndarray) -> dict[int, int]:
    """Where each wanted byte value stands first: most within the first bytes, the rest by search."""
    if not wanted_A.any():
        return {}
    values, places = np.unique(to_host(data_T[: 1 << 16]), return_index=True)
    first = dict(zip(values.tolist(), places.tolist(), strict=True))
    return {
        v: first[v] if v in first else int((data_T == np.uint8(v)).argmax()) for v in np.flatnonzero(wanted_A).tolist()
    }


def _ids(chunk: Chunk, options: TokeniseOptions) -> TokenisedChunk:
    watch = Stopwatch(options.device)
    checksums: list = []
    table = WordTable(to_device(np.empty(0), options.device))
    symbols, streams, size = _Symbols(options.device), _Streams(), 0
    itemsize, halo = np.dtype(options.dtype).itemsize, options.order - 1
    if options.lmplz:
        halo = max(halo, 1)  # without one a source ends
        intern(symbols.xp.asarray(special_hashes("id", options.seed, symbols.xp)), table)
        symbols.add_specials()
    for block, data in _blocks(chunk, options, halo, checksums, watch):
        for segments, _ in _segments(block, data):
            xp = array_module(data)
            parts, places = [], []
            for s in segments:
                start, length = int(block.starts_S[s]), int(block.lengths_S[s])
                ids_T = data[start : start + length].copy().view(options.dtype).astype(np.uint64)
                hash_T = hash_ids(ids_T)
                if options.separator_id is not None:
                    hash_T[ids_T == options.separator_id] = 0
                end = xp.zeros(1, np.uint64)
                parts += [hash_T, end]
                places.append(start + itemsize * np.arange(length // itemsize + 1, dtype=np.int64))
            hash_T, place_T = xp.concatenate(parts), np.concatenate(places)
            tokens_T, new_N = intern(hash_T, table)
            new_positions_N = place_T[to_host(new_N)]
            raw_N = _ids_at(data, new_positions_N, options.dtype)
            symbols.add_words(4 * xp.arange(len(raw_N) + 1, dtype=np.int64), raw_N.view(np.uint8))
            symbols.add_places(block, new_positions_N)
            owned = len(tokens_T) if len(segments) > 1 else int(block.owned_S[segments[0]]) // itemsize
            if options.lmplz:
                tokens_T, owned = _mark_ids(block, segments, tokens_T, options)
            if len(segments) == 1:
                s = segments[0]
                at, owned_bytes = (int(block.sources_S[s]), int(block.offsets_S[s])), int(block.owned_S[s])
                streams.add(tokens_T, owned, at, owned_bytes)
            else:
                streams.add(tokens_T, owned)
            symbols.add_counts(tokens_T[:owned], len(table))
        size += int(block.owned_S.sum())
        watch.lap("tokenise")
    tokens = int(symbols.counts_V.sum())
    starts, ends = (int(symbols.counts_V[v]) for v in (1, 2)) if options.lmplz else (0, 0)
    vocabulary = symbols.finish(
        table.hash_V, tokens=tokens, lines=starts, unfinished_lines=starts - ends, size_bytes=size,
        checksums=checksums, seconds=watch.seconds,
    )  # fmt: skip
    return TokenisedChunk(streams.finish(), vocabulary)


def _mark_ids(block: Block, segments: list[int], tokens_T: Any, options: TokeniseOptions) -> tuple[Any, int]:
    """The tokens of segments, each followed by a 0, with <s> and </s> as `LmplzText` says; and how many are owned.

    <s> goes before the first token of a source and after every separator that is not its last token, to whose
    owner it belongs: so nobody needs to know what stands before a segment. Without separators </s> goes behind all
    of a segment: where that is not the end of its source, a whole halo keeps it out of windows.
    """
    xp, itemsize = array_module(tokens_T), np.dtype(options.dtype).itemsize
    parts, at = [], 0
    for s in segments:
        length, owned = int(block.lengths_S[s]) // itemsize, int(block.owned_S[s]) // itemsize
        begins, one_line = int(block.offsets_S[s] == 0), int(options.separator_id is None)
        part_T = tokens_T[at : at + length]
        at += length + 1
        ends_T = part_T == 0
        place_T = xp.arange(length) + 2 * (xp.cumsum(ends_T) - ends_T) + begins
        marked = xp.zeros(begins + length + 2 * int(ends_T.sum()) + one_line, np.uint32)
        marked[place_T] = xp.where(ends_T, END, part_T)
        marked[place_T[ends_T] + 2] = START
        if begins:
            marked[0] = START
        if one_line:
            marked[-1] = END
        owned = len(marked) if owned == length else int(place_T[owned])
        if bool(ends_T[-1]):
            marked[-1] = 0  # no <s>
        parts += [marked, xp.zeros(1, np.uint32)]
    tokens_T = xp.concatenate(parts)
    return tokens_T, len(tokens_T) if len(segments) > 1 else owned


def _ids_at(data: Any, positions_N: np.ndarray, dtype: str) -> Any:
    """Token ids at byte positions, as uint32."""
    xp = array_module(data)
    bytes_N = xp.asarray(positions_N)[:, None] + xp.arange(np.dtype(dtype).itemsize)
    return xp.ascontiguousarray(data[bytes_N]).view(dtype)[:, 0].astype(np.uint32)
