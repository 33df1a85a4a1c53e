"""The communicator of GPUs without GPUs: a pretended NCCL, whose ranks are threads, hangs as the real one does."""

import sys
import threading
import types
from concurrent.futures import Future
from typing import ClassVar

import numpy as np
import pytest

from mgpu_ngram.cluster import gang_nccl
from mgpu_ngram.cluster.gang import GangError
from mgpu_ngram.cluster.gang_host import Abort, Hub, ThreadChannel
from mgpu_ngram.cluster.gang_nccl import NcclCommunicator
from mgpu_ngram.core.errors import RunError

pytestmark = pytest.mark.timeout(60)
NUMBERS = {"NCCL_UINT8": 1, "NCCL_INT32": 2, "NCCL_UINT32": 3, "NCCL_INT64": 4, "NCCL_FLOAT64": 8}  # of nccl.h
TYPES = {1: "u1", 2: "<i4", 3: "<u4", 4: "<i8", 8: "<f8"}


class FakeArray:
    """As much of cupy.ndarray as a communicator uses; its address is a number in `memory`."""

    memory: ClassVar = {}

    def __init__(self, host):
        self.host = np.asarray(host)
        self.shape, self.dtype, self.size, self.ndim = host.shape, host.dtype, host.size, host.ndim
        self.nbytes, self.flags = host.nbytes, host.flags
        self.data = types.SimpleNamespace(ptr=len(self.memory))
        self.memory[self.data.ptr] = self.host

    def __len__(self):
        return len(self.host)


class FakeStream:
    def __init__(self, non_blocking=False):
        self.ptr, self.last = self, None

    def record(self, event):
        event.after = self.last

    def wait_event(self, event):
        self.last = event.after or self.last

    def synchronize(self):
        if self.last:
            self.last.result()


class FakeEvent:
    def __init__(self, disable_timing):
        self.after = None

    @property
    def done(self):
        return self.after is None or self.after.done()


class NcclError(Exception):
    pass


class FakeNccl:
    """One group of ranks. `hang` names calls that return only after an abort, and `fail` those that fail."""

    def __init__(self):
        self.hub, self.hang, self.fail, self.comms = None, set(), set(), {}
        self.available, self.NcclError, self.NCCL_SUM = True, NcclError, 0
        self.connecting, self.collective = threading.Event(), threading.Event()  # whether a rank calls it
        self.__dict__ |= NUMBERS

    def get_unique_id(self):
        return bytes(range(64, 192))

    def NcclCommunicator(self, size, unique_id, rank):
        assert unique_id == self.get_unique_id() and type(unique_id) is bytes
        self.hub = self.hub or Hub(size)
        self.comms[rank] = comm = FakeComm(self, rank)
        self.connecting.set()
        comm.call("connect")
        return comm


class FakeComm:
    def __init__(self, nccl, rank):
        self.nccl, self.rank, self.number, self.began = nccl, rank, 0, []
        self.aborted, self.destroyed = threading.Event(), False

    def call(self, name):
        if name in self.nccl.hang:
            self.aborted.wait()
        if name in self.nccl.fail or self.aborted.is_set():
            raise NcclError(f"{name}: remote process exited")

    def begin(self, operation, source, target, shape, dtype, stream):
        self.nccl.collective.set()
        self.call(operation)
        assert not self.destroyed
        self.number += 1
        sent = FakeArray.memory[source].reshape(-1).view(TYPES[dtype])[: int(np.prod(shape))].reshape(shape)
        done = Future()

        def write(total):
            if not done.done():
                total = total.result()
                total = total[self.rank] if operation == "reduceScatter" else total
                FakeArray.memory[target].reshape(-1).view(TYPES[dtype])[:] = total.reshape(-1)
                done.set_result(None)

        operation_of_hub = "all_gather" if operation == "allGather" else "sum"
        self.nccl.hub.put(self.rank, self.number, operation_of_hub, sent.copy()).add_done_callback(write)
        self.began.append(done)
        stream.last = done

    def allReduce(self, source, target, count, dtype, op, stream):
        self.begin("allReduce", source, target, (count,), dtype, stream)

    def reduceScatter(self, source, target, count, dtype, op, stream):
        self.begin("reduceScatter", source, target, (self.nccl.hub.size, count), dtype, stream)

    def allGather(self, source, target, count, dtype, stream):
        self.begin("allGather", source, target, (count,), dtype, stream)

    def check_async_error(self):
        self.call("check_async_error")

    def abort(self):
        if "abort" in self.nccl.hang:
            threading.Event().wait()
        self.aborted.set()
        for done in self.began:
            done.done() or done.set_result(None)

    def destroy(self):
        assert all(done.done() for done in self.began)
        self.destroyed = True


@pytest.fixture
def nccl(monkeypatch):
    made, stream = FakeNccl(), threading.local()
    cuda = types.ModuleType("cupy.cuda")
    cuda.nccl, cuda.Stream, cuda.Event = made, FakeStream, FakeEvent
    cuda.Device = lambda: threading.Lock()  # a context

    def current():
        stream.__dict__.setdefault("it", FakeStream())
        return stream.it

    cuda.get_current_stream = current
    cupy = types.ModuleType("cupy")
    cupy.cuda = cuda
    cupy.zeros = lambda *how: FakeArray(np.zeros(*how))
    cupy.empty = lambda *how: FakeArray(np.empty(*how))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(gang_nccl, "LOST_SECONDS", 0.2)
    monkeypatch.setattr(gang_nccl, "CALL_SECONDS", 0.1)
    monkeypatch.setattr(gang_nccl, "NCCL_ABORT_SECONDS", 0.3)
    made.given_up = []
    return made


def run(nccl, fn, size=2):
    """Return what fn(comm) returned or raised in each rank, and the Abort of each."""
    hub, aborts = Hub(size), [Abort() for _ in range(size)]

    def rank(r, future):
        try:
            future.set_result(in_rank(r))
        except BaseException as error:
            future.set_exception(error)

    def in_rank(r):
        comm = NcclCommunicator(ThreadChannel(hub, r, aborts[r]), r, size, aborts[r], nccl.given_up.append)
        try:
            return fn(comm)
        except Exception as error:
            aborts[r].set(f"rank {r} failed")
            raise error
        finally:
            comm.close()

    futures = [Future() for _ in range(size)]
    for r, future in enumerate(futures):
        threading.Thread(target=rank, args=(r, future), daemon=True).start()
    return futures, aborts


def test_by_hand(nccl):
    def collect(comm):
        mine = FakeArray(np.array([1, 10], np.uint32) * np.uint32(comm.rank + 1))
        everyone = comm.all_gather(mine)
        both = FakeArray(np.array([[1, 2], [3, 4]], np.int64) + comm.rank)
        part = comm.reduce_scatter(both)
        out = FakeArray(np.zeros(2, np.uint32))
        assert comm.all_reduce_async(mine, out).wait() is out
        assert (mine.host.tolist(), out.host.tolist()) == ([comm.rank + 1, 10 * (comm.rank + 1)], [3, 30])
        assert comm.all_reduce(mine) is mine
        comm.barrier()
        assert comm.all_reduce(np.array([comm.rank + 1])).tolist() == [3], "on the host"
        assert comm.all_gather(np.array(comm.rank)).tolist() == [0, 1]
        assert comm.reduce_scatter(np.array([1, 2])) == 2 * (comm.rank + 1)
        return mine.host.tolist(), everyone.host.tolist(), part.host.tolist()

    futures, _ = run(nccl, collect)
    assert [f.result() for f in futures] == [
        ([3, 30], [[1, 10], [2, 20]], [3, 5]),
        ([3, 30], [[1, 10], [2, 20]], [7, 9]),
    ]
    assert all(comm.destroyed and not comm.aborted.is_set() for comm in nccl.comms.values())
    assert not nccl.given_up


def test_a_collective_runs_beside_the_kernels_of_its_caller(nccl):
    late = threading.Event()

    def overlap(comm):
        if comm.rank == 1:
            late.wait()
        pending = comm.all_reduce_async(FakeArray(np.ones(2, np.int32)))
        stream = sys.modules["cupy"].cuda.get_current_stream()
        stream.synchronize()  # returns, although rank 1 is late
        late.set()
        total = pending.hold_stream()
        stream.synchronize()
        return total.host.tolist()

    futures, _ = run(nccl, overlap)
    assert [f.result() for f in futures] == [[2, 2], [2, 2]]


def lonely(do):
    """Rank 1 is there, and never comes to the collective: as if it had been killed."""

    def collective(comm):
        if comm.rank == 0:
            do(comm)
            comm.check()

    return collective


def wait_on_host(comm):
    comm.all_reduce(FakeArray(np.ones(3)))


def wait_on_device(comm):
    comm.all_reduce_async(FakeArray(np.ones(3))).hold_stream()
    sys.modules["cupy"].cuda.get_current_stream().synchronize()  # blocks in CUDA until NCCL's kernel ends


@pytest.mark.parametrize("do", [wait_on_host, wait_on_device, NcclCommunicator.barrier])
def test_an_abort_ends_a_wait(nccl, do):
    futures, aborts = run(nccl, lonely(do))
    nccl.collective.wait()
    futures[1].result()
    assert not futures[0].done()
    aborts[0].set("worker 1 was lost")
    with pytest.raises(GangError, match="^worker 1 was lost$"):
        futures[0].result()
    assert nccl.comms[0].aborted.is_set() and not nccl.given_up


def test_an_abort_ends_a_call_that_hangs(nccl):
    """A first collective connects inside the call, and does not return when the peer has died."""
    nccl.hang = {"allReduce"}
    futures, aborts = run(nccl, lonely(wait_on_host))
    nccl.collective.wait()
    futures[1].result()
    aborts[0].set("worker 1 was lost")
    with pytest.raises(GangError, match="^worker 1 was lost$"):
        futures[0].result()
    assert nccl.comms[0].aborted.is_set() and not nccl.given_up


def test_an_abort_while_nccl_connects(nccl):
    nccl.hang = {"connect"}
    futures, aborts = run(nccl, wait_on_host)
    nccl.connecting.wait()
    for abort in aborts:
        abort.set("worker 1 was lost")
    for future in futures:
        with pytest.raises(GangError, match="^worker 1 was lost$"):
            future.result()
    for comm in nccl.comms.values():
        comm.aborted.set()  # and the threads that connect end


def test_an_abort_when_nccl_has_just_connected(nccl):
    """It may hang, too, so the rank does not wait for it."""
    nccl.hang = {"connect", "abort"}
    futures, aborts = run(nccl, wait_on_host)
    nccl.connecting.wait()
    aborts[0].set("worker 1 was lost")
    nccl.hang = {"abort"}
    with pytest.raises(GangError, match="^worker 1 was lost$"):
        futures[0].result()
    aborts[1].set("worker 1 was lost")


def test_a_gpu_that_nccl_does_not_free_is_given_up(nccl):
    nccl.hang = {"abort"}
    futures, aborts = run(nccl, lonely(wait_on_host))
    nccl.collective.wait()
    futures[1].result()
    aborts[0].set("worker 1 was lost")
    with pytest.raises(GangError):
        futures[0].result()
    assert nccl.given_up == ["NCCL still runs 0.3 s after an abort"]


@pytest.mark.parametrize("call", ["allReduce", "check_async_error"])
def test_an_error_of_nccl(nccl, call):
    """It is the driver's loss of a worker, if that comes soon; else it is told as it is."""
    nccl.fail = {call}
    futures, aborts = run(nccl, lonely(wait_on_host))
    with pytest.raises(RunError, match=f"^NCCL failed .{call}: remote process exited.; run again with NCCL_DEBUG=WARN"):
        futures[0].result()
    assert nccl.comms[0].aborted.is_set()
    futures, aborts = run(nccl, lonely(wait_on_host))
    aborts[0].set("worker 1 was lost")
    with pytest.raises(GangError, match="worker 1 was lost"):
        futures[0].result()


def test_nccl_that_cannot_connect(nccl):
    nccl.fail = {"connect"}
    for future in run(nccl, wait_on_host)[0]:
        with pytest.raises(RunError, match=r"NCCL cannot connect rank \d of 2 .connect: .*; run again with NCCL_DEBUG"):
            future.result()


def test_arrays_live_until_nccl_is_done_with_them(nccl):
    late = threading.Event()

    def drop(comm):
        if comm.rank == 1:
            late.wait()
        comm.all_reduce_async(FakeArray(np.ones(2, np.int32)))
        kept = len(comm._running)
        late.set()
        comm.barrier()
        comm.barrier()
        return kept, len(comm._running)

    futures, _ = run(nccl, drop)
    assert [f.result() for f in futures] == [(1, 1), (1, 1)]


def test_without_nccl(nccl):
    nccl.available = False
    with pytest.raises(RunError, match="NCCL, which CuPy does not find; pip install nvidia-nccl-cu13 .or nvidia-nccl-"):
        NcclCommunicator(None, 0, 2, Abort(), nccl.given_up.append)
