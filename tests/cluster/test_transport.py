"""Values that cross between processes, with arrays on a fake GPU: memory that other processes may read."""

import asyncio
import importlib.util
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import dask
import distributed.comm.utils
import distributed.utils
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed import Client, LocalCluster
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol import deserialize, serialize, to_serialize

from mgpu_ngram.cluster import dask_private, lent_arrays, transport
from mgpu_ngram.cluster.dask_config import ENVIRONMENT
from mgpu_ngram.cluster.dask_executor import DaskExecutor
from mgpu_ngram.cluster.transport import FILES, OFFER, Parcel
from mgpu_ngram.cluster.worker import run_task
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays
from mgpu_ngram.core.storage.shared_maps import file_place_of
from tests.support.slowness import scaled

FAKE = Path(__file__).parents[1] / "support" / "fake_gpu.py"
spec = importlib.util.spec_from_file_location("fake_gpu", FAKE)
fake_gpu = importlib.util.module_from_spec(spec)
sys.modules["fake_gpu"] = fake_gpu
spec.loader.exec_module(fake_gpu)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.timeout(120)


@dataclass
class Tables:
    keys: object
    also: dict


def matrix():
    return np.arange(12, dtype=np.int64).reshape(3, 4)


def make():
    """Return every kind of array that a result may hold: one twice, one strided, an empty one, one in host memory."""
    from fake_gpu import FakeArray

    keys = FakeArray(matrix())
    return Tables(
        keys,
        {
            "again": keys,
            "columns": FakeArray(matrix().T),
            "empty": FakeArray(np.empty((0, 2), np.uint8)),
            "host": np.arange(1000, dtype=np.float32),
            "text": "words",
        },
    )


def look(tables):
    """Return (the received value as plain Python; the number of arrays read from another process's memory)."""
    from mgpu_ngram.cluster import lent_arrays

    also = tables.also
    host = also["host"]
    return {
        "kinds": [type(a).__name__ for a in (tables.keys, also["columns"], also["empty"], host)],
        "keys": tables.keys.data.tolist(),
        "columns": also["columns"].data.tolist(),
        "empty": (also["empty"].shape, also["empty"].dtype.str),
        "one": also["again"] is tables.keys,
        "host": (float(host.sum()), host.flags.writeable, also["text"]),
        "read": len(lent_arrays.fake.imports),
        "pid": os.getpid(),
    }


EXPECTED = {
    "kinds": ["FakeArray", "FakeArray", "FakeArray", "ndarray"],
    "keys": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
    "columns": [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]],
    "empty": ((0, 2), "|u1"),
    "one": True,
    "host": (499_500.0, True, "words"),
}


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    """An executor with two workers with fake GPUs on one host; a third, late worker reports another host."""
    folder = tmp_path_factory.mktemp("device")
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None, "silence_logs": 51}
    with (
        dask.config.set({f"{ENVIRONMENT}.FAKE_GPU_FOLDER": str(folder)}),
        LocalCluster(n_workers=2, preload=[str(FAKE)], memory_limit=None, **options) as cluster,
        Client(cluster) as client,
    ):
        made = DaskExecutor(client, "gpu", ours=True)
        yield made
        made.close()


def set_everywhere(executor, name, value):
    def change():
        from mgpu_ngram.cluster import lent_arrays

        getattr(lent_arrays.fake, name)[:] = value

    executor.client.run(change)


def seen(executor, handle, near):
    [outcome] = executor.gather([executor.call(look, handle, affinity=near)])
    return outcome


def test_arrays_are_read_from_the_memory_of_a_peer(executor):
    assert (executor.device, executor.transport, executor.workers) == ("gpu", "ipc", 2)
    set_everywhere(executor, "imports", [])
    made = executor.call(make, affinity=0)
    here, there = (
        seen(executor, made, 0),
        seen(executor, made, 1),
    )  # Dask may drop one of two copies
    assert there.pop("pid") != here.pop("pid")
    assert there.pop("read") == 3, "three arrays, one of them in two places"
    assert here.pop("read") == 0, "an array that stays in its process is not copied"
    assert there == here == EXPECTED


def test_the_driver_gets_numpy(executor):
    [tables] = executor.gather([executor.call(make)])
    assert tables.keys.tolist() == EXPECTED["keys"] and type(tables.keys) is np.ndarray
    assert tables.also["again"] is tables.keys and tables.also["empty"].shape == (0, 2)


def test_a_full_device_receives_into_host_memory(executor):
    made = executor.call(make, affinity=0)
    executor.wait([made])
    set_everywhere(executor, "full", [True])
    try:
        outcome = seen(executor, made, 1)
    finally:
        set_everywhere(executor, "full", [])
    assert {k: outcome[k] for k in EXPECTED} == EXPECTED | {"kinds": ["ndarray"] * 4}


def test_a_worker_serves_peers_while_it_copies(executor, tmp_path):
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    here, there = executor.call(make, affinity=0), executor.call(make, affinity=1)
    executor.wait([here, there])
    set_everywhere(executor, "slow", [str(begun), str(go_on), scaled(10)])
    copying = executor.call(look, here, affinity=1)
    executor.everywhere(os.getpid)  # sends the call: tasks begin when this process waits or asks everywhere
    while not begun.exists():
        time.sleep(0.01)
    set_everywhere(executor, "slow", [])  # for later copies: this copy has read the setting
    executor.wait([executor.call(lambda tables: go_on.touch(), there, affinity=0)])
    assert executor.gather([copying])[0]["keys"] == EXPECTED["keys"]
    assert begun.with_suffix(".done").exists(), "the task got nothing from the worker that copied"


def test_a_late_worker_of_another_host_uses_tcp(executor, wait_for_workers):
    cluster, client = executor.client.cluster, executor.client
    cluster.scale(3)
    wait_for_workers(client, 3)
    made = executor.call(make, affinity=0)
    executor.wait([made])
    late = client.submit(run_task, look, executor._name, "gpu", "", made, workers=[2], pure=False)
    outcome = late.result().open()
    assert outcome.pop("read") == 0
    assert {k: outcome[k] for k in EXPECTED} == EXPECTED
    client.retire_workers(names=[2])


def test_tasks_of_a_killed_sender_run_again(executor):
    handles = [executor.call(make, affinity=0) for _ in range(4)]
    executor.wait(handles)
    before = seen(executor, handles[0], 0)["pid"]
    os.kill(before, signal.SIGKILL)
    outcomes = executor.gather([executor.call(look, h, affinity=1) for h in handles])
    for outcome in outcomes:
        assert {k: outcome[k] for k in EXPECTED} == EXPECTED
        assert outcome["pid"] != before


def test_unreadable_memory_goes_through_the_host(executor, wait_for_workers):
    """The probe passed but a worker fails later: it must not retry forever."""
    wait_for_workers(executor.client, 2)
    made = executor.call(make, affinity=0)
    executor.wait([made])
    set_everywhere(executor, "imports", [])
    set_everywhere(executor, "refuse", [True])
    outcome = seen(executor, made, 1)
    assert outcome["read"] == 0
    assert {k: outcome[k] for k in EXPECTED} == EXPECTED


def in_a_file(path):
    """Return arrays in a file without a name, and a copy of one in memory."""
    numbers = np.arange(300_000, dtype=np.int32).reshape(2, -1)
    save_arrays(path, {"numbers": numbers, "text": np.frombuffer(b"words", np.uint8)}, {})
    arrays = load_arrays(path)[0]
    os.unlink(path)
    return Tables(arrays["numbers"], {"row": arrays["numbers"][1], "text": arrays["text"], "copy": numbers.copy()})


def look_at_file(tables):
    """Return (the sums and bytes of the arrays; the files that they view, the process that has them open)."""
    rows = tables.keys, tables.also["row"], tables.also["copy"]
    places = [file_place_of(array) for array in (*rows, tables.also["text"])]
    inodes = [place and place[0].inode for place in places]
    return [int(a.sum()) for a in rows], tables.also["text"].tobytes(), inodes, places[0] and places[0][0].pid


SUMS = [44_999_850_000, 33_749_925_000, 44_999_850_000]


@pytest.mark.skipif(not transport.host_identity(), reason="needs /proc")
def test_a_file_is_mapped_by_other_processes_of_its_host(executor, tmp_path, wait_for_workers):
    wait_for_workers(executor.client, 2)
    made = executor.call(in_a_file, tmp_path / "file", affinity=0)
    near, far = executor.gather([executor.call(look_at_file, made, affinity=k) for k in (0, 1)])
    assert near[:3] == far[:3] == (SUMS, b"words", [near[2][0], near[2][0], None, near[2][0]]) and near[2][0]
    assert len({near[3], far[3], os.getpid()}) == 3, "each process maps the file itself"
    [here] = executor.gather([made])  # in this process, which offers nothing
    assert look_at_file(here) == (SUMS, b"words", [None] * 4, None)
    assert not (tmp_path / "file").exists()


# In one process


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The fake GPU in this process, with `offer` as the offer of this process."""
    for name in ("is_array", "as_contiguous", "lend", "import_arrays", "copy_to_host", "copy_from_host", "why_lost"):
        monkeypatch.setattr(lent_arrays, name, getattr(lent_arrays, name))
    monkeypatch.setattr(lent_arrays, "wait_for_device", lent_arrays.wait_for_device)
    from mgpu_ngram.cluster import worker

    monkeypatch.setattr(worker, "resolve_device", worker.resolve_device)
    monkeypatch.setattr(worker, "gpu_identity", worker.gpu_identity)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(fake_gpu, "FOLDER", tmp_path)
    fake_gpu.install()
    here = transport._Worker(True, {OFFER: {"host": "a", "pid": os.getpid()}})
    monkeypatch.setattr(transport, "_here", here)
    return here


def cross(value, recipient, before=lambda: None):
    header, frames = serialize(Parcel(value), context={"recipient": recipient})
    before()
    return header, deserialize(header, [bytes(f) for f in frames])


@pytest.mark.parametrize(
    ("recipient", "way"),
    [
        ({OFFER: {"host": "a", "pid": -1}}, "ipc"),
        ({OFFER: {"host": "b", "pid": -1}}, "host"),
        ({OFFER: {"host": "a", "pid": os.getpid()}}, "host"),  # a process cannot open its own memory
        ({}, "host"),
    ],
)
def test_the_transport_depends_on_the_reader(recipient, way, device):
    header, parcel = cross(make(), recipient)
    assert way in header["sub-header"]
    assert look(parcel.open())["keys"] == EXPECTED["keys"]
    assert type(parcel.open().keys).__name__ == "FakeArray"


@pytest.mark.parametrize("recipient", [{OFFER: {"host": "a", "pid": -1}}, {}])
def test_small_device_arrays_are_copied_in_threads(recipient, device, monkeypatch):
    """A copy waits for the device, which would block the event loop."""
    here = []
    for name in ("lend", "import_arrays", "copy_to_host", "copy_from_host"):
        copy = getattr(lent_arrays, name)
        monkeypatch.setattr(
            lent_arrays, name, lambda *a, copy=copy: [here.append(threading.current_thread().name), copy(*a)][1]
        )

    async def send(value):
        """Return the value as received, and the bytes of the message."""
        frames = await to_frames({"data": to_serialize(Parcel(value))}, context={"recipient": recipient})
        message = await from_frames([bytes(f) for f in frames])
        return message["data"].open(), sum(map(len, frames))

    dask_private.messages_in_threads(transport.LONG_MESSAGE_BYTES, transport._threads)
    try:
        value, _ = asyncio.run(send(make()))
        assert look(value)["keys"] == EXPECTED["keys"]
        assert here and all(name.startswith("mgpu-ngram-message") for name in here)
        here.clear()
        assert asyncio.run(send(3))[1] < transport.LONG_MESSAGE_BYTES and not here, "without arrays, nothing waits"
    finally:
        dask_private.messages_as_usual()


def test_a_lent_array_is_copied_once_and_lives_as_long_as_the_value(device):
    parcel = Parcel(make())
    loans = []
    for _ in range(2):
        serialize(parcel, context={"recipient": {OFFER: {"host": "a", "pid": -1}}})
        loans.append(parcel.loan)
    assert loans[0] is loans[1]
    assert EXPECTED["columns"] in [copy.data.tolist() for copy in parcel.loan.memory]


def test_concurrent_readers_share_a_loan(device, monkeypatch):
    """A second loan in place of the first would free the memory that the first peer reads."""
    lend, together, loans = lent_arrays.lend, threading.Barrier(2), []

    def slow(arrays):
        with suppress(threading.BrokenBarrierError):
            together.wait(0.5)  # so that another reader can come in
        loans.append(lend(arrays))
        return loans[-1]

    monkeypatch.setattr(lent_arrays, "lend", slow)
    parcel = Parcel(make())
    peers = [{OFFER: {"host": "a", "pid": -pid}} for pid in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        headers = [h for h, _ in pool.map(lambda peer: serialize(parcel, context={"recipient": peer}), peers)]
    assert len(loans) == 1
    assert [header["sub-header"]["ipc"] for header in headers] == [parcel.loan.records] * 2


@pytest.mark.parametrize("may_lend", [True, False])
def test_a_worker_is_left_unchanged(may_lend, monkeypatch):
    """Message threads exist only for workers that read each other's memory, and only while the executor is open."""
    monkeypatch.setattr(transport, "_here", transport._Worker())
    worker = SimpleNamespace(rpc=SimpleNamespace(connection_args={}))
    settings = lambda: (distributed.comm.utils.OFFLOAD_THRESHOLD, distributed.utils._offload_executor)  # noqa: E731
    before = settings()
    try:
        transport.announce_offers(worker, True, [transport.process_identity()] if may_lend else [], None)
        threshold, threads = settings()
        assert (threshold == transport.LONG_MESSAGE_BYTES, threads is not before[1]) == (may_lend, may_lend)
    finally:
        transport.stop(worker)
    assert settings() == before


def test_a_lost_sender_is_a_network_failure(device, monkeypatch):
    """Dask treats OSError as a network failure: it forgets the peer's copy and recomputes the value."""

    def die():
        monkeypatch.setattr(transport, "is_running", lambda pid: False)
        monkeypatch.setattr(lent_arrays, "import_arrays", lambda *_: 1 / 0)

    with pytest.raises(OSError, match="the sender was lost while its memory was read: division by zero"):
        cross(make(), {OFFER: {"host": "a", "pid": -1}}, die)
    assert device.offer, "other peers still work"


@pytest.mark.parametrize("sender_lives", [True, False])
def test_a_file_that_cannot_be_mapped_is_a_network_failure(sender_lives, device, monkeypatch, tmp_path):
    """The arrays go through host memory from then on, if the sender lives."""
    device.offer[FILES] = {"host": "a", "pid": os.getpid()}
    value, peer = in_a_file(tmp_path / "file"), {FILES: {"host": "a", "pid": -1}}
    _, parcel = cross(value, peer)
    assert look_at_file(parcel.open()) == look_at_file(value)
    del parcel  # or this process would have the file

    def lose():
        value.keys = value.also = None  # the last views of the file
        monkeypatch.setattr(transport, "is_running", lambda pid: sender_lives)

    why = r"files of process \d+ of this host cannot be read" if sender_lives else "the sender was lost while its files"
    with pytest.raises(OSError, match=why):
        cross(value, peer, lose)
    assert OFFER in device.offer and (FILES in device.offer) != sender_lives
    if sender_lives:
        _, parcel = cross(in_a_file(tmp_path / "file"), peer)
        assert look_at_file(parcel.open()) == (SUMS, b"words", [None] * 4, None)


def test_a_failed_copy_to_the_gpu_is_raised_where_the_value_is_opened(device, monkeypatch):
    """The sender is not to blame, so the value must not be computed again."""

    def fail(array):
        raise ValueError("the copy failed")

    monkeypatch.setattr(lent_arrays, "copy_from_host", fail)
    _, parcel = cross(make(), {})
    with pytest.raises(ValueError, match="the copy failed"):
        parcel.open()


def test_a_receiver_without_its_gpu_ends_itself(device, monkeypatch):
    class Ended(BaseException):
        pass

    def end(why):
        raise Ended(why)

    monkeypatch.setattr(device, "die", end)
    monkeypatch.setattr(lent_arrays, "import_arrays", lambda *_: 1 / 0)
    monkeypatch.setattr(lent_arrays, "why_lost", lambda: "cudaErrorIllegalAddress")
    with pytest.raises(Ended, match="cudaErrorIllegalAddress"):
        cross(make(), {OFFER: {"host": "a", "pid": -1}})


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        (np.zeros(1000), 8000),
        ([np.zeros(10), {"a": (np.zeros(5), b"123")}], 123),
        (Tables(np.zeros(3), {"x": np.zeros(4, np.int8)}), 28),
        ((lambda a: [a, a])(np.zeros(10)), 80),  # one array in two places
    ],
)
def test_size(value, size):
    assert sizeof(Parcel(value)) - sizeof(Parcel(None)) == size
