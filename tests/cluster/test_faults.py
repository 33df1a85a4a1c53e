"""Killed workers, broken GPUs and lost schedulers: the right result, or one line that names the cause."""

import asyncio
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import cloudpickle
import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Status

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.dask_executor import DaskExecutor
from mgpu_ngram.cluster.dask_private import MESSAGE_SECONDS
from mgpu_ngram.cluster.executor import reduce_tasks
from mgpu_ngram.cluster.faults import WORKERS_TOPIC, Watch
from mgpu_ngram.core.errors import RunError
from tests.support.slowness import scaled, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster():
    made = start_cluster("cpu", 2)
    yield made
    made.close()


def kill_worker():
    os.kill(os.getpid(), signal.SIGKILL)


def work(i):
    time.sleep(0.05)
    return i * i


def add(*values):
    time.sleep(0.01)
    return sum(values)


def test_only_the_task_that_kills_is_blamed(cluster):
    """Innocent tasks wait on the same workers, and are lost as often."""
    innocent = [cluster.call(work, i, label=f"chunk {i}") for i in range(40)]
    guilty = cluster.call(kill_worker, label="chunk 40: books.txt, bytes 0 to 1,000")
    innocent += [cluster.call(work, i, label=f"chunk {i}") for i in range(41, 60)]
    with pytest.raises(RunError) as error:
        cluster.wait([*innocent, guilty])
    assert str(error.value) == (
        "chunk 40: books.txt, bytes 0 to 1,000 killed every worker that ran it (4 times); "
        "the usual reason is lack of memory: "
        "use smaller chunks (chunk_bytes) or fewer workers"
    )
    with pytest.raises(RunError, match="chunk 40"):
        cluster.call(work, 1)
    assert {cluster._watch._tasks[str(task.key)].deaths for task in innocent} == {0}
    cluster._watch.error = None  # other tests share these workers


class FakeFuture:
    def __init__(self, key):
        self.key = key


@pytest.mark.parametrize("first", ["guilty", "innocent"])
def test_a_task_that_was_only_queued_is_not_blamed(first):
    """Four workers die; each held both tasks, but had started only the guilty one."""

    async def cancel(futures, asynchronous):
        pass

    client = SimpleNamespace(_event_handlers={}, subscribe_topic=lambda *_: None, sync=lambda _: None, cancel=cancel)
    both = sorted(["guilty", "innocent"], key=lambda name: name != first)

    async def events():
        watch = Watch(client, "tcp://scheduler:1", "topic")
        futures = [FakeFuture(name) for name in both]
        for future in futures:
            watch.add(future, f"chunk of {future.key}")
        for _ in range(4):
            assert watch.error is None
            watch._on_task((0.0, {"key": "guilty", "worker": "tcp://w:1", "name": "w"}))
            lost = {"action": "remove-worker", "worker": "tcp://w:1", "expected": False, "processing-tasks": both}
            await watch._on_workers((0.0, lost))
        return watch

    watch = asyncio.run(events())
    assert {name: watch._tasks[name].deaths for name in both} == {"guilty": 4, "innocent": 0}
    assert str(watch.error).startswith("chunk of guilty killed every worker that ran it (4 times)")


@pytest.mark.slow
def test_random_kills_change_nothing(cluster):
    """Each kill follows some progress, with a fixed seed, while tasks run, wait, send and receive."""
    choose, kills = random.Random(3), []

    def maybe_kill(_):
        nannies = [n for n in cluster.client.cluster.workers.values() if n.pid]
        if nannies and choose.random() < 0.2:
            with suppress(ProcessLookupError):
                os.kill(choose.choice(nannies).pid, signal.SIGKILL)
                kills.append(1)

    while len(kills) < 10:
        numbers = [cluster.call(work, i) for i in range(40)]
        [total] = reduce_tasks(cluster, add, numbers, 3)
        cluster.wait([*numbers, total], maybe_kill)
        assert cluster.gather([total]) == [sum(i * i for i in range(40))]


def test_a_recomputed_result_is_no_error(cluster):
    """The worker of a task dies after the task ends and before the driver reads its state."""
    cluster.raise_error_of(SimpleNamespace(status="lost", exception=lambda: None))
    with pytest.raises(ZeroDivisionError):
        cluster.raise_error_of(SimpleNamespace(status="error", exception=ZeroDivisionError))


def test_everywhere_skips_a_worker_that_dies(cluster, tmp_path, wait_for_workers):
    wait_for_workers(cluster.client, 2)
    assert cluster.everywhere(die_first, str(tmp_path / "first")) == ["alive"]
    wait_for_workers(cluster.client, 2)


def test_everywhere_when_all_workers_die():
    """A worker that restarts is called. The scheduler may try to reach the dead one before, by default for 30 s."""
    with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
        executor = start_cluster("cpu", 1)
        try:
            nanny = executor.client.cluster.workers[0]
            pid = nanny.pid
            os.kill(pid, signal.SIGKILL)
            [answer] = executor.everywhere(os.getpid)
            assert answer != pid
        finally:
            executor.close()


def die_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "alive"
    kill_worker()


def message_seconds(client):
    """The seconds between messages of the scheduler, of the workers, and of the client."""
    of_scheduler = client.run_on_scheduler(
        lambda dask_scheduler: {
            stream.interval
            for streams in (dask_scheduler.stream_comms, dask_scheduler.client_comms)
            for stream in streams.values()
        }
    )
    of_workers = client.run(lambda dask_worker: dask_worker.batched_stream.interval, on_error="ignore")
    return of_scheduler, set(of_workers.values()), client.scheduler_comm.interval


def test_messages_wait_less_on_our_own_clusters_only(cluster, tmp_path):
    assert message_seconds(cluster.client) == ({MESSAGE_SECONDS}, {MESSAGE_SECONDS}, MESSAGE_SECONDS)
    workers = set(cluster.client.run(os.getpid).values())
    cluster.everywhere(die_first, str(tmp_path / "died"))
    while True:  # until the replacement is running and set up
        now = set(cluster.client.run(os.getpid, on_error="ignore").values())
        seconds = message_seconds(cluster.client)
        if len(now) == 2 and now != workers and seconds == ({MESSAGE_SECONDS}, {MESSAGE_SECONDS}, MESSAGE_SECONDS):
            break
        time.sleep(0.1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as others,
        Client(others, set_as_default=False) as client,
    ):
        before = message_seconds(client)
        executor = DaskExecutor(client)
        assert executor.gather([executor.call(work, 2)]) == [4]
        assert message_seconds(client) == before != message_seconds(cluster.client)
        executor.close()


def test_a_nanny_that_waits_forever_does_not_block_close():
    """It waits forever if its worker was killed during start and the answer of the next one reached the wrong start."""
    executor = start_cluster("cpu", 1)
    [nanny] = executor.client.cluster.workers.values()
    nanny.process.status = Status.starting
    executor.client.cluster.loop.add_callback(nanny.process.running.clear)
    pid = nanny.pid
    executor.close()
    assert not psutil.pid_exists(pid)


def test_a_worker_that_dask_lost_does_not_block_close(capfd):
    """For example one killed while it registered: Dask saw it leave but never join."""
    executor = start_cluster("cpu", 2)
    cluster = executor.client.cluster
    nannies = list(cluster.workers.values())
    cluster.scheduler_info["workers"].clear()
    os.kill(nannies[0].pid, signal.SIGKILL)
    assert executor.gather([executor.call(work, i) for i in range(4)]) == [0, 1, 4, 9]
    pids = [nanny.pid for nanny in nannies]
    executor.close()
    assert not any(map(psutil.pid_exists, filter(None, pids)))
    assert cluster.status == Status.closed, "Python would close the cluster again at exit"
    assert capfd.readouterr().err == ""


def test_dasks_own_limit_can_be_set():
    limit = {"distributed.scheduler.allowed-failures": 1}
    with dask.config.set(limit):  # later clusters of this process get the limit that there was before
        executor = start_cluster("cpu", 1, limit)
        try:
            with pytest.raises(RunError, match=r"^chunk 3 killed every worker that tried it \(2 times\).*chunk_bytes"):
                executor.wait([executor.call(kill_worker, label="chunk 3")])
        finally:
            executor.close()


def test_no_workers_left():
    """On a foreign cluster, whose workers nobody restarts."""
    here = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None, "silence_logs": 51}
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "2s"}),
        LocalCluster(n_workers=1, **here) as cluster,
        Client(cluster) as client,
    ):
        executor = DaskExecutor(client)
        cluster.scale(0)
        time.sleep(1)
        with pytest.raises(RunError, match=r"all workers of the Dask cluster tcp://.* are gone and none came.* 2 s"):
            executor.wait([executor.call(work, 1)])
        executor.close()


def test_a_worker_that_leaves_during_connect():
    """The message that requests worker events is delayed; workers that left before it are not waited for."""
    here = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None, "silence_logs": 51}
    with LocalCluster(n_workers=2, **here) as cluster, Client(cluster) as client:
        client.scheduler_comm.interval = 0.5
        client.log_event("any", {})
        client.cancel([client.submit(work, 1)])  # a message now, so the next one is delayed
        with ThreadPoolExecutor(1) as pool:
            watch = pool.submit(Watch, client, "address", "topic")
            while WORKERS_TOPIC not in client._event_handlers:
                time.sleep(0.001)
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
            gone = cluster.workers[0].worker_address
            # a busy scheduler sees that a worker left only after it listed the workers
            assert wait_until(lambda: gone not in watch.result(scaled(30))._workers, 30)


# A failing GPU, on a machine without a GPU


def break_gpu(path):
    """The first process that calls this loses its GPU; with no path, every process does."""
    from mgpu_ngram.cluster import lent_arrays

    if path:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return os.getpid()
    lent_arrays.broken.append(True)
    raise RuntimeError("cudaErrorIllegalAddress")


def fail_plainly():
    raise RuntimeError("nothing is wrong with the GPU")


@contextmanager
def gpu_workers(tmp_path):
    """Two workers that use their CPU as a GPU. Not a fixture: fixtures start before a test's stderr is captured."""
    (tmp_path / "pretend.py").write_text(
        "from mgpu_ngram.cluster import lent_arrays, worker\n"
        "def dask_setup(_):\n"
        "    lent_arrays.broken = []\n"
        "    lent_arrays.wait_for_device = lambda: None\n"
        "    lost = 'cudaErrorIllegalAddress: an illegal memory access'\n"
        "    lent_arrays.why_lost = lambda: lost if lent_arrays.broken else ''\n"
    )
    here = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None, "silence_logs": 51}
    with (
        LocalCluster(n_workers=2, preload=[str(tmp_path / "pretend.py")], **here) as cluster,
        Client(cluster) as client,
    ):
        executor = DaskExecutor(client, "cpu", ours=True)
        executor.device = "gpu"
        cluster.scheduler.allowed_failures = 1_000_000
        yield executor
        executor.close()


@pytest.mark.slow
def test_a_worker_that_lost_its_gpu_restarts(spawned, tmp_path, capfd, wait_for_workers):
    with gpu_workers(tmp_path) as executor:
        pids = set(executor.client.run(os.getpid).values())
        redone = executor.call(break_gpu, str(tmp_path / "broken"), label="chunk 3")
        executor.wait([redone])
        wait_for_workers(executor.client, 2)
        assert len(pids & set(executor.client.run(os.getpid).values())) == 1, "one of the two workers is new"
    assert (
        "lost its GPU context (cudaErrorIllegalAddress: an illegal memory access) in chunk 3; restarting"
        in capfd.readouterr().err
    )


@pytest.mark.slow
def test_a_task_that_breaks_every_gpu_is_named_with_the_error(tmp_path):
    message = r"^chunk 3 killed every worker .*; the GPU failed: cudaErrorIllegalAddress: an illegal"
    with gpu_workers(tmp_path) as executor:
        pids = set(executor.client.run(os.getpid).values())
        with pytest.raises(RuntimeError, match="nothing is wrong"):
            executor.wait([executor.call(fail_plainly)])
        assert set(executor.client.run(os.getpid).values()) == pids, "other errors end no worker"
        with pytest.raises(RunError, match=message):
            executor.wait([executor.call(break_gpu, None, label="chunk 3")])
