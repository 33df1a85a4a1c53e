"""Build the token streams and the vocabulary of a chunk block by block, for all units."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import LocalVocabulary
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import TextBlock
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.memory.blocks import device_blocks
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.spill import in_file
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.count.histogram_private import histogram_private
from mgpu_ngram.kernels.count.intern import WordTable
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

SMALL_BYTES = 1 << 20  # files below this size share one stream of 32-bit tokens


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
    budget: Budget | None = None  # limits the memory of waiting streams and vocabularies; None: no limit
    spill_folder: str = ""  # folder for vocabularies that do not fit in memory
    seed: int = 0  # of the word hash; changed after a collision
    lmplz: bool = False  # read text as `LmplzText` describes
    ends_lines: bool = False  # words with lmplz: a last line without a newline gets its </s>
    refused: int = 3  # words with lmplz: number of specials, counted from the last, that are left out of the text


@dataclass
class Stream:
    """Tokens in text order: uint8 raw bytes, or uint32 local numbers + 1 with 0 where windows end.

    In a chunk with V symbols, token V + 1 ends a line that gets no </s> (see `LmplzText`). Windows start in the
    first `owned` tokens; the tokens after them belong to the next chunk. `begins` says that no earlier chunk
    has tokens before them.
    """

    tokens_T: Any
    owned: int
    begins: bool = True


@dataclass
class TokenisedChunk:
    """The result of pass 1 on a worker: a chunk's vocabulary, and its streams or None if they did not fit in memory."""

    streams: list[Stream] | None
    vocabulary: LocalVocabulary
    __hash__ = object.__hash__  # by identity: `hold` keeps a set of living objects

    def arrays(self) -> dict[str, Any]:
        """Return the streams by number; the vocabulary has arrays of its own."""
        return {str(i): s.tokens_T for i, s in enumerate(self.streams or [])}

    def with_arrays(self, named: dict[str, Any]) -> TokenisedChunk:
        """Return the chunk with other arrays of its streams, such as of another device."""
        return replace(self, streams=[replace(s, tokens_T=named[str(i)]) for i, s in enumerate(self.streams or [])])

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory of the arrays that pass 2 needs: streams and symbol hashes, without those in files."""
        needed = [*(s.tokens_T for s in self.streams or []), self.vocabulary.hash_V]
        return sum(a.nbytes for a in needed if not on_gpu(a) and not in_file(a))


def blocks_of(
    chunk: Chunk, options: TokeniseOptions, halo: int, checksums: list[PartCrc], watch: Stopwatch
) -> Iterator[tuple[TextBlock, Any]]:
    return device_blocks(
        chunk, options.unit, options.block_bytes, halo, options.device, options.read_threads, checksums, watch
    )


def segments_of(block: TextBlock, data: Any) -> Iterator[tuple[list[int], Any]]:
    """Yield (segment numbers, their bytes) in text order: neighbouring small files together, others one by one."""
    small_S = (block.owned_S == block.lengths_S) & (block.lengths_S < SMALL_BYTES)
    for small, group in itertools.groupby(range(len(small_S)), small_S.__getitem__):
        segments = list(group)
        if small and len(segments) > 1:
            yield segments, data
            continue
        for s in segments:
            yield [s], data[int(block.starts_S[s]) : int(block.starts_S[s] + block.lengths_S[s])]


class _Growing:
    """An array that grows at its end. Its capacity doubles, so the cost of an append depends only on its size."""

    def __init__(self, xp: Any, dtype: Any):
        self._xp, self._room, self._size = xp, xp.empty(0, dtype), 0

    @property
    def array(self) -> Any:
        """Return the content, a view."""
        return self._room[: self._size]

    def extend(self, values: Any) -> None:
        size = self._size + len(values)
        if size > len(self._room):
            room = self._xp.empty(max(size, 2 * len(self._room)), self._room.dtype)
            room[: self._size] = self.array
            self._room = room
        self._room[self._size : size] = values
        self._size = size


class ChunkSymbols:
    """The growing vocabulary of a chunk, on the device of the tokens. `intern` adds the hashes of words to `table`."""

    def __init__(self, device: str):
        like = to_device(np.empty(0), device)
        self.table = WordTable(like)
        self.xp = xp = array_module(like)
        self._offsets, self._data = _Growing(xp, np.int64), _Growing(xp, np.uint8)
        self._offsets.extend(xp.zeros(1, np.int64))
        self.counts_V = xp.zeros(0, np.int64)
        self._first_source, self._first_offset = _Growing(xp, np.int32), _Growing(xp, np.int64)

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

    def add_places(self, block: TextBlock, positions_N: Any) -> None:
        """Record the input and byte offset where each new symbol first occurs.

        positions_N  (N,) integers, places in the block's bytes, on the host or on the device of the tokens
        """
        positions_N = self.xp.asarray(positions_N).astype(np.int64)
        if len(block.starts_S) == 1:  # without copies to a GPU, which would wait for that of the next block
            source, shift = (int(array[0]) for array in (block.sources_S, block.offsets_S - block.starts_S))
            self._first_source.extend(self.xp.full(len(positions_N), source, np.int32))
            self._first_offset.extend(positions_N + shift)
            return
        segments = np.stack([block.starts_S, block.sources_S, block.offsets_S - block.starts_S])
        starts_S, sources_S, shifts_S = self.xp.asarray(segments)  # one copy
        segment_N = self.xp.searchsorted(starts_S, positions_N, side="right") - 1
        self._first_source.extend(sources_S[segment_N])
        self._first_offset.extend(positions_N + shifts_S[segment_N])

    def add_specials(self) -> None:
        """Append <unk>, <s> and </s> as token ids without positions."""
        self.add_words(4 * self.xp.arange(4), self.xp.zeros(12, np.uint8))
        self.counts_V = self.xp.zeros(3, np.int64)
        for first in (self._first_source, self._first_offset):
            first.extend(self.xp.full(3, -1))

    def add_counts(self, tokens_T: Any) -> None:
        """Add the counts of a stream whose words are all in the table."""
        if V := len(self.table):
            counts_V = histogram_private(tokens_T, 1, V).astype(np.int64)
            counts_V[: len(self.counts_V)] += self.counts_V
            self.counts_V = counts_V

    def finish(self, **totals: Any) -> LocalVocabulary:
        """Return the vocabulary, on the device of the tokens."""
        places = self._first_source.array, self._first_offset.array
        return LocalVocabulary(self.table.hash_V, self.offsets_V, self.data, self.counts_V, *places, **totals)


class Streams:
    """The streams of a chunk. Consecutive blocks of one source become one stream."""

    def __init__(self) -> None:
        self._parts: list[list[Any]] = []
        self._owned: list[int] = []
        self._begins: list[bool] = []
        self._last_owned = 0
        self._next: tuple[int, int] | None = None  # source and offset at which the last stream continues

    def add(self, tokens_T: Any, owned: int, at: tuple[int, int] | None = None, size_bytes: int = 0) -> None:
        """Add tokens, of which `owned` start windows; `at` is (source, offset) if all lie in one source."""
        if at is not None and at == self._next:
            self._parts[-1][-1] = self._parts[-1][-1][: self._last_owned]  # the new tokens include its look-ahead
            self._parts[-1].append(tokens_T)
            self._owned[-1] += owned
        else:
            self._parts.append([tokens_T])
            self._owned.append(owned)
            self._begins.append(at is None or at[1] == 0)
        self._last_owned = owned
        self._next = None if at is None else (at[0], at[1] + size_bytes)

    def finish(self) -> list[Stream]:
        """Return the streams, each in one array."""
        joined = [p[0] if len(p) == 1 else array_module(p[0]).concatenate(p) for p in self._parts]
        return [Stream(*stream) for stream in zip(joined, self._owned, self._begins, strict=True)]


def lower_ascii(text_B: Any) -> None:
    """Turn A-Z into a-z in place; other bytes, such as those of UTF-8 letters, stay unchanged."""
    text_B |= ((text_B - np.uint8(65)) < 26).astype(np.uint8) << np.uint8(5)
