"""Call a task for each chunk of text, and cut chunks that are too large for one task, such as compressed files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mgpu_ngram.cluster.executor import Executor, Handle, in_order
from mgpu_ngram.core.inputs.corpus import MEMORY_CHUNK_BYTES, Chunk, Piece
from mgpu_ngram.core.inputs.read_text import read_lines
from mgpu_ngram.core.inputs.sources import Source

MAX_WHOLE = 4  # times the text of a chunk: the most of a source that cannot be cut, such as a compressed file


def in_parts(
    chunks: list[Chunk], chunk_bytes: int, report: Callable[[str], None] | None = None
) -> Iterator[tuple[Chunk, int]]:
    """Yield (chunk or part, number of chunks that it completes). Too large chunks are read here and yielded in parts.

    An example is a large compressed file, whose results would fill the memory of a worker and then of the driver.

    report  of damaged files, as in `read_lines`
    """
    for chunk in chunks:
        if chunk.size_bytes <= MAX_WHOLE * chunk_bytes:
            yield chunk, 1
            continue
        at, first = 0, chunk.pieces[0].source
        for block in read_lines(chunk, min(chunk_bytes, MEMORY_CHUNK_BYTES), report):
            end, data = at + len(block.data), b"\n" + block.data.tobytes()
            source = Source(first.name, "memory", end, column=first.column, data=data, data_start=at - 1)
            yield Chunk(chunk.index, (Piece(0, source, at, end, end - at),), end - at), 0
            at = end
        yield replace(chunk, pieces=()), 1


def results_of(
    executor: Executor, chunks: list[Chunk], chunk_bytes: int, ahead: int, doing: str, task: Callable[..., Any],
    *arguments: Any,
) -> Iterator[tuple[Any, int]]:  # fmt: skip
    """Yield (result of the task of a chunk or of a part, number of chunks that it completes), in order.

    ahead  greatest number of calls in flight or buffered
    doing  activity of a task for messages, such as "scoring"
    """
    counts: deque[int] = deque()

    def calls() -> Iterator[Handle]:
        for chunk, chunks_done in in_parts(chunks, chunk_bytes):
            counts.append(chunks_done)
            yield executor.call(task, chunk, *arguments, label=f"{doing} {chunk}")

    for found in in_order(executor, calls(), ahead):
        yield found, counts.popleft()
