"""The communicator of ranks on GPUs: NCCL on its own stream; another thread can abort it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np

from mgpu_ngram.cluster.gang import LOST_SECONDS, Communicator, Pending, check_array, checked_target
from mgpu_ngram.cluster.gang_host import POLL_SECONDS, Abort, Channel, HostCommunicator
from mgpu_ngram.core.errors import RunError

UNIQUE_ID_BYTES = 128  # bytes of NCCL's id of a communicator
CALL_SECONDS = 1.0  # an abort waits so long for a call of NCCL in another thread; a longer call hangs on a dead peer
NCCL_ABORT_SECONDS = 10.0  # the process gives up its GPU if NCCL still occupies it so long after an abort
SPINS = 100  # looks at an event without sleeping, about 0.1 ms
SLEEP_SECONDS = 50e-6
LOOKS_PER_ERROR_CHECK = 200  # looks at an event between checks for errors of NCCL


class NcclCommunicator(Communicator):
    """Sums arrays directly between GPUs.

    Waits do not block in CUDA: they poll an event, so an abort ends them. An abort also ends NCCL's kernels, on
    which other streams may wait.

    give_up  called with the reason if NCCL still occupies the GPU after an abort; must end the process
    """

    def __init__(self, channel: Channel, rank: int, size: int, abort: Abort, give_up: Callable[[str], None]):
        # Multicast (NVLS) is not worth its risk: a process that dies with it can leave the GPUs of a host unusable.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        import cupy
        from cupy.cuda import nccl

        if not nccl.available:
            raise RunError(
                "GPUs exchange arrays through NCCL, which CuPy does not find; pip install nvidia-nccl-cu13 "
                "(or nvidia-nccl-cu12) on all hosts"
            )
        self.rank, self.size, self._abort, self._give_up = rank, size, abort, give_up
        self._cupy, self._nccl, self._host = cupy, nccl, HostCommunicator(channel, rank, size, abort)
        self._calling, self._is_free = threading.Lock(), threading.Event()
        self._running: deque[_Collective] = deque()  # NCCL uses their arrays, although the caller may drop them
        self._stream, self._one = cupy.cuda.Stream(non_blocking=True), cupy.zeros(1, np.int32)
        unique_id = nccl.get_unique_id() if rank == 0 else bytes(UNIQUE_ID_BYTES)
        ids = channel.exchange("all_gather", np.frombuffer(unique_id, np.uint8))
        self._comm = self._connect(ids[0].tobytes())
        self._is_closed = False
        threading.Thread(target=self._guard, name="mgpu-ngram-nccl-guard", daemon=True).start()

    def _connect(self, unique_id: bytes) -> Any:
        """Return NCCL's communicator. It connects in a thread, which is left behind if a peer dies meanwhile."""
        opened: Future[Any] = Future()
        device = self._cupy.cuda.Device()

        def connect() -> None:
            try:
                with device:
                    opened.set_result(self._nccl.NcclCommunicator(self.size, unique_id, self.rank))
            except Exception as error:
                opened.set_exception(error)

        def abort_late() -> None:
            with suppress(Exception):
                opened.result().abort()

        threading.Thread(target=connect, name="mgpu-ngram-nccl-connect", daemon=True).start()
        try:
            return self._abort.wait_for(opened)
        except self._nccl.NcclError as error:
            self._abort.wait(LOST_SECONDS)
            self._abort.check()
            raise RunError(
                f"NCCL cannot connect rank {self.rank} of {self.size} ({error}); "
                "run again with NCCL_DEBUG=WARN to see why"
            ) from None
        except BaseException:
            threading.Thread(target=abort_late, name="mgpu-ngram-nccl-abort", daemon=True).start()
            raise

    def all_reduce_async(self, array: Any, out: Any = None) -> Pending:
        if isinstance(array, np.ndarray):
            return self._host.all_reduce_async(array, out)
        target = checked_target(array, out, self.size)
        return self._begin(self._comm.allReduce, array, target, array.size, self._type(array), self._nccl.NCCL_SUM)

    def reduce_scatter_async(self, array: Any) -> Pending:
        if isinstance(array, np.ndarray):
            return self._host.reduce_scatter_async(array)
        check_array(array, self.size, "reduce_scatter")
        part = self._cupy.empty(array.shape[1:], array.dtype)
        return self._begin(self._comm.reduceScatter, array, part, part.size, self._type(array), self._nccl.NCCL_SUM)

    def all_gather_async(self, array: Any) -> Pending:
        if isinstance(array, np.ndarray):
            return self._host.all_gather_async(array)
        check_array(array, self.size, "all_gather")
        both = self._cupy.empty((self.size, *array.shape), array.dtype)
        return self._begin(self._comm.allGather, array, both, array.nbytes, self._nccl.NCCL_UINT8)

    def barrier(self) -> None:
        self.all_reduce(self._one)

    def check(self) -> None:
        self._abort.check()

    def close(self) -> None:
        """End NCCL in this process; after an abort, return only when the GPU is free, or call `give_up`."""
        self._is_closed = not self._abort.is_set()
        if self._is_closed:
            with self._calling:
                self._comm.destroy()
        elif not self._is_free.wait(NCCL_ABORT_SECONDS):
            self._give_up(f"NCCL still runs {NCCL_ABORT_SECONDS:g} s after an abort")

    def _type(self, array: Any) -> int:
        return int(getattr(self._nccl, f"NCCL_{array.dtype.name.upper()}"))

    def _begin(self, collective: Callable[..., None], array: Any, out: Any, *options: int) -> Pending:
        """Start a collective on NCCL's stream: after the kernels that the current stream already has."""
        while self._running and self._running[0].event.done:
            self._running.popleft()
        before, event = (self._cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._cupy.cuda.get_current_stream().record(before)
        self._stream.wait_event(before)
        self._ask(lambda: collective(array.data.ptr, out.data.ptr, *options, self._stream.ptr))
        self._stream.record(event)
        self._running.append(_Collective(self, event, [array, out]))
        return self._running[-1]

    def _ask(self, call: Callable[[], None]) -> None:
        """Call NCCL, but not while or after it is aborted."""
        try:
            with self._calling:
                self.check()
                call()
        except self._nccl.NcclError as error:
            self._abort.wait(LOST_SECONDS)  # most often a peer was lost; then the driver says so
            self._abort.check()
            raise RunError(f"NCCL failed ({error}); run again with NCCL_DEBUG=WARN to see why") from None

    def _guard(self) -> None:
        """Abort NCCL when the gang is aborted, which ends its kernels. The thread of the rank may hang in CUDA."""
        while not self._abort.wait(POLL_SECONDS):
            if self._is_closed:
                return
        acquired = self._calling.acquire(timeout=CALL_SECONDS)
        try:
            self._comm.abort()
            self._is_free.set()
        finally:
            if acquired:
                self._calling.release()

    def look_for_errors(self) -> None:
        self._ask(self._comm.check_async_error)


class _Collective:
    def __init__(self, comm: NcclCommunicator, event: Any, arrays: list[Any]):
        self._comm, self.event, self._arrays = comm, event, arrays

    def wait(self) -> Any:
        looks = 0
        while not self.event.done:
            self._comm.check()
            looks += 1
            if looks % LOOKS_PER_ERROR_CHECK == 0:
                self._comm.look_for_errors()
            if looks > SPINS:
                time.sleep(SLEEP_SECONDS)
        self._comm.check()  # an abort ends the kernel, too
        return self._arrays[-1]

    def hold_stream(self) -> Any:
        import cupy

        cupy.cuda.get_current_stream().wait_event(self.event)
        return self._arrays[-1]
