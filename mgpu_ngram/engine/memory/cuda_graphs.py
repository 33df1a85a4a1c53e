"""Steps of a search on a GPU as CUDA graphs: the host launches one graph instead of a hundred kernels."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from mgpu_ngram.engine.memory.out_of_memory import out_of_memory

SIZES_PER_OCTAVE = 16  # numbers of rows that steps are rounded up to, from one power of two to the next

S = TypeVar("S", bound=Hashable)


def rounded_up(number: int, sizes_per_octave: int = SIZES_PER_OCTAVE) -> int:
    """Return a number rounded up, such as the number of rows to compute, so that few graphs serve all numbers."""
    granule = max(1, 2 ** (number.bit_length() - 1) // sizes_per_octave)
    return -(-number // granule) * granule


class StepGraphs:
    """The graphs of a step by size, such as the number of rows.

    A graph reads and writes the same memory whenever it is launched, so steps must work in place. Temporary arrays lie
    in a pool of their own. All graphs share it, because they run one after the other.
    """

    def __init__(self) -> None:
        import cupy

        self._pool = cupy.cuda.MemoryPool()
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, tuple[Any, Any]] = {}

    def clear(self) -> None:
        """Forget all graphs, because arrays that steps read have been replaced."""
        self._graphs.clear()

    def close(self) -> None:
        """Forget all graphs and free their memory; drop their results first.

        CuPy 14 never frees the blocks of a pool that is dropped.
        """
        self._graphs.clear()
        self._pool.free_all_blocks()

    def __del__(self) -> None:
        self.close()

    def run(self, size: S, step: Callable[[S], Any]) -> Any:
        """Run step(size) and return its result, which has the same arrays each time.

        The first step of a size runs without capture, because it compiles kernels, and may be the only one. The second
        one is captured. A step must not wait for the device or copy from the host.
        """
        import cupy

        if size not in self._seen:
            self._seen.add(size)
            return step(size)
        if size not in self._graphs:
            try:
                self._graphs[size] = self._captured(size, step)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                cupy.get_default_memory_pool().free_all_blocks()  # blocks that steps without capture have left
                self._graphs[size] = self._captured(size, step)
        graph, result = self._graphs[size]
        graph.launch()
        return result

    def _captured(self, size: S, step: Callable[[S], Any]) -> tuple[Any, Any]:
        """Return (graph, result) of a step, which does not run."""
        import cupy

        stream = cupy.cuda.get_current_stream()
        with cupy.cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                result = step(size)
            except BaseException:
                with suppress(Exception):  # CuPy also reports that the capture failed
                    stream.end_capture()
                raise
            return stream.end_capture(), result


@contextmanager
def capture_stream() -> Iterator[None]:
    """Work on a stream that can be captured. It waits for the current stream, which then waits for it."""
    import cupy

    before, stream = cupy.cuda.get_current_stream(), _stream("steps", cupy.cuda.Device().id, threading.get_ident())
    stream.wait_event(before.record())
    with stream:
        yield
    before.wait_event(stream.record())


def side_stream() -> Any:
    """Return a stream of this thread for work beside its steps."""
    import cupy

    return _stream("beside", cupy.cuda.Device().id, threading.get_ident())


@functools.cache
def _stream(name: str, device: int, thread: int) -> Any:
    """Return a stream of a thread. It is kept, because CuPy's pool keeps freed memory for the stream that used it."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)
