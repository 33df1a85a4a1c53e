"""Steps of a search on a GPU as CUDA graphs: the host launches one graph in place of a hundred kernels."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mgpu_ngram.engine.device import out_of_memory

SIZES_PER_OCTAVE = 16  # numbers of rows that steps are rounded up to, from one power of two to the next


def rounded_rows(rows: int) -> int:
    """Return the number of rows that a step of so many computes, so that few graphs do for all steps."""
    granule = max(1, 2 ** (rows.bit_length() - 1) // SIZES_PER_OCTAVE)
    return -(-rows // granule) * granule


class StepGraphs:
    """Graphs of steps by their numbers of rows.

    A graph reads and writes the same memory whenever it is launched, so steps must work in place. Temporary arrays lie
    in a pool of their own. All graphs share it, because they run one after the other.
    """

    def __init__(self) -> None:
        import cupy

        self._pool = cupy.cuda.MemoryPool()
        self._seen: set[int] = set()
        self._graphs: dict[int, tuple[Any, Any]] = {}

    def clear(self) -> None:
        """Forget all graphs, because arrays that steps read are others now."""
        self._graphs.clear()

    def run(self, rows: int, step: Callable[[int], Any]) -> Any:
        """Do step(rows) and return its result, which has the same arrays each time.

        The first step of so many rows runs as usual: it compiles kernels, and others may not follow. The second is
        captured. A step must not wait for the device or copy from the host.
        """
        import cupy

        if rows not in self._seen:
            self._seen.add(rows)
            return step(rows)
        if rows not in self._graphs:
            try:
                self._graphs[rows] = self._captured(rows, step)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                cupy.get_default_memory_pool().free_all_blocks()  # steps that ran as usual have left them
                self._graphs[rows] = self._captured(rows, step)
        graph, result = self._graphs[rows]
        graph.launch()
        return result

    def _captured(self, rows: int, step: Callable[[int], Any]) -> tuple[Any, Any]:
        """Return (graph, result) of a step, which does not run."""
        import cupy

        stream = cupy.cuda.get_current_stream()
        with cupy.cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                result = step(rows)
            except BaseException:
                with suppress(Exception):  # that the capture failed
                    stream.end_capture()
                raise
            return stream.end_capture(), result


@contextmanager
def capture_stream() -> Iterator[None]:
    """Work on a stream that can be captured, after what the current one has begun, which then waits for it."""
    import cupy

    before, stream = cupy.cuda.get_current_stream(), _stream(cupy.cuda.Device().id, threading.get_ident())
    stream.wait_event(before.record())
    with stream:
        yield
    before.wait_event(stream.record())


@functools.cache
def _stream(device: int, thread: int) -> Any:
    """Return the stream of a thread. It is kept, because memory that a stream has used is its own."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)
