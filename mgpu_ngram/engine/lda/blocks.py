"""The documents of one device in blocks: all on the device, or in host memory or files and copied block by block."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from mgpu_ngram.engine.lda.documents import Block, CorpusPart, arrays_of, make_block
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import pinned_buffer, to_host
from mgpu_ngram.kernels.lda.count_topics import count_topics
from mgpu_ngram.kernels.lda.weights import ALIGN, Documents, Pairs, count_bits

MAX_BLOCK_TOKENS = 3 << 30  # tokens of a block, with the gaps between documents: below 2^32
LAYOUT_BYTES = 80  # most bytes of device memory that `lay_out` takes for each pair
STREAMED = 2  # blocks on the device at the same time when blocks are streamed
DONE = object()  # the event of a copy on a CPU
T = TypeVar("T")


@dataclass(frozen=True)
class Room:
    """The memory that blocks may take.

    device_bytes  bytes of the device; None: all blocks fit
    host_bytes    bytes of the host, for blocks of a CPU, or blocks that do not fit a GPU; None: all blocks fit
    folder        folder for blocks that do not fit the host
    """

    device_bytes: int | None = None
    host_bytes: int | None = None
    folder: Path | None = None


class Blocks(Protocol):
    """The blocks of a device, in order."""

    lengths: list[np.ndarray]  # tokens of the documents of each block, in host memory

    def loaded(self, changes: bool = False) -> Iterator[Block]:
        """Yield each block on the device, with entries that fit its topics.

        changes  whether the caller changes the topics of a block before it takes the next one
        """

    def stored(self) -> Iterator[Block]:
        """Yield each block where it is kept: for `topics` and `set_topics`."""

    def count_topics(self, threads: int) -> None:
        """Bring the entries of blocks that stay on the device up to date with their topics."""


class ResidentBlocks:
    """Blocks that stay on the device. On a CPU, their arrays may be files that are mapped into memory."""

    def __init__(self, blocks: Sequence[Block], num_topics: int):
        self._blocks, self._num_topics = blocks, num_topics
        self.lengths = [to_host(block.documents.lengths_D) for block in blocks]

    def loaded(self, changes: bool = False) -> Iterator[Block]:
        yield from self._blocks

    stored = loaded

    def count_topics(self, threads: int) -> None:
        parts = [part for block in self._blocks for part in _row_parts(block.documents, threads)]
        in_threads(threads, count_topics, [(part, self._num_topics) for part in parts])


class StreamedBlocks:
    """Blocks in host memory, or in files, that are copied to the device one after the other.

    While the device works on a block, the next one is copied there, and the topics of the previous one are copied back.
    While the device works on the last block, the first one is copied for the next time.
    """

    def __init__(self, blocks: Sequence[Block], num_topics: int, device: str):
        self._blocks, self._num_topics, self._device = blocks, num_topics, device
        self.lengths = [block.documents.lengths_D for block in blocks]
        places = max(len(block.documents.topics_T) for block in blocks)
        self._entries = to_device(np.empty(places, blocks[0].documents.entries_T.dtype), device)
        self._slots = [
            [_empty_like(arrays, device) for arrays in zip(*(arrays_of(block) for block in blocks), strict=True)]
            for _ in range(min(STREAMED, len(blocks)))
        ]
        self._streams = _Streams(device)
        self._slot = 0  # of the first block
        self._first_copied: Any = None  # event of its copy, when one is under way or done
        # Wait before the slots are freed: a copy under way would overwrite the arrays that take their memory.
        weakref.finalize(self, self._streams.finish).atexit = False

    def stored(self) -> Iterator[Block]:
        self._first_copied = None  # the caller may change its topics
        yield from self._blocks

    def count_topics(self, threads: int) -> None:
        """Do nothing: entries are counted when a block is loaded."""

    def loaded(self, changes: bool = False) -> Iterator[Block]:
        streams, slots, M = self._streams, self._slots, len(self._blocks)
        free = streams.now()  # the event after which the slot of the next block is free
        slot, copied, self._first_copied = self._slot, self._first_copied, None
        if copied is None:
            copied = streams.copy_in(slots[slot], arrays_of(self._blocks[0]), free)
        for i, block in enumerate(self._blocks):
            arrays, slot, next_copied = slots[slot], (slot + 1) % len(slots), None
            if len(slots) > 1:
                # The first block's topics are in host memory by then: copies to its slot waited for them.
                next_copied = streams.copy_in(slots[slot], arrays_of(self._blocks[(i + 1) % M]), free)
            streams.wait(copied)
            here = self._on_device(block, arrays)
            count_topics(here.documents, self._num_topics)
            yield here
            free = streams.copy_out(here.documents.topics_T, block.documents.topics_T if changes else None)
            copied = next_copied
        streams.finish_out()
        self._slot, self._first_copied = slot, copied

    def _on_device(self, block: Block, slot: Sequence[Any]) -> Block:
        """Return a block whose arrays are the beginnings of a slot's."""
        views = [array[: len(of_block)] for array, of_block in zip(slot, arrays_of(block), strict=True)]
        rows_D2, lengths_D, topics_T, *arrays = views
        documents = Documents(rows_D2, lengths_D, topics_T, self._entries[: len(topics_T)])
        pairs = Pairs(*arrays)
        return replace(block, documents=documents, pairs=pairs, threads=(pairs,))


class _Streams:
    """Copies beside the work of a GPU; on a CPU, copies at once."""

    def __init__(self, device: str):
        self.cupy: Any = None
        if device == "gpu":
            import cupy

            self.cupy = cupy
            self._in, self._out = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

    def now(self) -> Any:
        """Return the event after the kernels that the current stream has."""
        return self.cupy.cuda.get_current_stream().record() if self.cupy else None

    def copy_in(self, slot: Sequence[Any], arrays: Sequence[np.ndarray], free: Any) -> Any:
        """Copy arrays to the beginnings of a slot's, once it is `free`; return the event of the end."""
        if not self.cupy:
            for target, source in zip(slot, arrays, strict=True):
                target[: len(source)] = source
            return DONE
        self._in.wait_event(free)
        for target, source in zip(slot, arrays, strict=True):
            if len(source):
                target[: len(source)].set(np.ascontiguousarray(source), stream=self._in)
        return self._in.record()

    def copy_out(self, source: Any, target: np.ndarray | None) -> Any:
        """Copy back after the kernels of the current stream; return the event after which the source is free."""
        if not self.cupy:
            if target is not None:
                target[...] = source
            return None
        event = self.now()
        if target is None or not len(target):
            return event
        self._out.wait_event(event)
        source.get(stream=self._out, out=target, blocking=False)
        return self._out.record()

    def wait(self, event: Any) -> None:
        """Let later kernels of the current stream wait for an event."""
        if self.cupy:
            self.cupy.cuda.get_current_stream().wait_event(event)

    def finish_out(self) -> None:
        """Wait for the copies to the host."""
        if self.cupy:
            self._out.synchronize()

    def finish(self) -> None:
        """Wait for all copies."""
        self.finish_out()
        if self.cupy:
            self._in.synchronize()


def _empty_like(arrays: Sequence[np.ndarray], device: str) -> Any:
    """Return an array on the device that holds any one of these."""
    return to_device(np.empty_like(max(arrays, key=len)), device)


def make_blocks(
    parts: Sequence[CorpusPart], num_topics: int, device: str, threads: int, room: Room | None = None
) -> Blocks:
    """Return the blocks of consecutive parts of the corpus. All tokens have topic 0."""
    room = room or Room()
    size_bytes = sum(_device_bytes(part, num_topics) for part in parts)
    layout_bytes = max((LAYOUT_BYTES * part.pairs for part in parts), default=0)
    limit = room.host_bytes if device == "cpu" else room.device_bytes
    if limit is None or size_bytes + layout_bytes <= limit:
        pairs = None if limit is None else (limit - size_bytes) // LAYOUT_BYTES
        made = [make_block(group, num_topics, device, threads) for group in _groups(parts, MAX_BLOCK_TOKENS, pairs)]
        return ResidentBlocks(made, num_topics)
    in_host = room.host_bytes is None or size_bytes <= room.host_bytes
    tokens = sum(part.tokens for part in parts)
    most = min(MAX_BLOCK_TOKENS, max(1, int(tokens * limit / size_bytes) // (STREAMED + 1)))
    groups = _groups(parts, most, limit // LAYOUT_BYTES)
    folders = [None if in_host or not room.folder else room.folder / f"block-{i:06}" for i in range(len(groups))]
    stored = [
        _stored(make_block(group, num_topics, device, threads), folder, device)
        for group, folder in zip(groups, folders, strict=True)
    ]
    return ResidentBlocks(stored, num_topics) if device == "cpu" else StreamedBlocks(stored, num_topics, device)


def _device_bytes(part: CorpusPart, num_topics: int) -> int:
    """Return the bytes of the device that a part of the corpus takes, about."""
    places = part.tokens + ALIGN // 2 * part.documents
    return places * (2 + count_bits(num_topics)[0].itemsize) + 9 * part.pairs + 12 * part.documents


def _stored(block: Block, folder: Path | None, device: str) -> Block:
    """Return the block in host memory, from where a GPU copies fast; or in files of a folder.

    A GPU has the entries of one block, so that a block of its own lacks them.
    """
    rows_D2, lengths_D, topics_T, *pairs = (_host_copy(a, i, folder, device) for i, a in enumerate(arrays_of(block)))
    entries_T = block.documents.entries_T
    entries_T = to_host(entries_T[:0]) if device == "gpu" else _host_copy(entries_T, len(pairs) + 3, folder, device)
    copy = replace(block, documents=Documents(rows_D2, lengths_D, topics_T, entries_T), pairs=Pairs(*pairs))
    threads = tuple(copy.pairs._replace(slots_S3=to_host(pairs.slots_S3)) for pairs in block.threads)
    return replace(copy, threads=threads)


def _host_copy(array: Any, number: int, folder: Path | None, device: str) -> np.ndarray:
    """Return a copy of an array in pinned memory for a GPU, in plain memory for a CPU, or in a file of the folder."""
    if folder is not None and array.size:
        folder.mkdir(parents=True, exist_ok=True)
        copy = np.asarray(np.memmap(folder / f"{number}.bin", array.dtype, "w+", shape=array.shape))
    elif device == "gpu" and array.size:
        copy = pinned_buffer(array.nbytes).view(array.dtype).reshape(array.shape)
    else:
        copy = np.empty(array.shape, array.dtype)
    copy[...] = to_host(array)
    return copy


def _groups(parts: Sequence[CorpusPart], most: int, most_pairs: int | None) -> list[list[CorpusPart]]:
    """Return the parts in groups of at most `most` tokens and `most_pairs` pairs, if a part alone has not more."""
    groups: list[list[CorpusPart]] = []
    room = room_pairs = 0
    for part in parts:
        tokens, pairs = part.tokens + ALIGN * part.documents, part.pairs
        if not groups or tokens > room or (most_pairs is not None and pairs > room_pairs):
            groups.append([])
            room, room_pairs = most, most_pairs or 0
        groups[-1].append(part)
        room, room_pairs = room - tokens, room_pairs - pairs
    return groups


def in_threads(threads: int, fn: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Call fn with each tuple of arguments, in `threads` threads."""
    if threads == 1 or len(arguments) < 2:
        return [fn(*each) for each in arguments]
    return list(_pool(threads).map(lambda each: fn(*each), arguments))


_pool = cache(ThreadPoolExecutor)  # by number of threads; starting a pool takes longer than sweeping few tokens


def _row_parts(documents: Documents, parts: int) -> list[Documents]:
    """Return the documents in `parts` parts of about equal length."""
    if parts == 1:
        return [documents]
    rows_D2, lengths_D = documents.rows_D2, documents.lengths_D
    ends_D = np.cumsum(lengths_D, dtype=np.int64)
    total = int(ends_D[-1]) if len(ends_D) else 0
    cuts = [0, *np.searchsorted(ends_D, [total * i // parts for i in range(1, parts)]).tolist(), len(rows_D2)]
    return [documents._replace(rows_D2=rows_D2[a:b], lengths_D=lengths_D[a:b]) for a, b in pairwise(cuts)]
