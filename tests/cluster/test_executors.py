"""The same small job without n-grams, in this process and on two worker processes."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from concurrent.futures import CancelledError
from contextlib import closing, suppress

import cloudpickle
import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.comm import connect
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.cluster import dask_executor
from mgpu_ngram.cluster.dask import DaskExecutor, start_cluster
from mgpu_ngram.cluster.executor import ResultLost, in_order, reduce_tasks, windowed
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, RunError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pickled by value: workers need not find this file


THRESHOLDS = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"]


def map_tasks(executor, fn, items, *shared):
    """Call fn(item, *shared) for every item."""
    return [executor.call(fn, item, *shared) for item in items]


@pytest.fixture(scope="module", params=["local 1", "local 3", "dask 2"])
def executor(request):
    kind, workers = request.param.split()
    made = LocalExecutor(workers=int(workers)) if kind == "local" else start_cluster("cpu", int(workers))
    yield made
    made.close()


def square(x, offset=0):
    return x * x + offset


def add(*values):
    return sum(values)


def fail(x):
    if x == 3:
        raise InputError(f"{x} is no good; give 4")
    return x


def late_if_first(x):
    if x == 0:
        time.sleep(0.1)
    return x


def test_facts(executor):
    assert executor.device == "cpu" and executor.workers in (1, 2, 3) and executor.threads >= 1


def test_describe():
    assert LocalExecutor(workers=1).describe() == "this process, 1 thread"
    assert LocalExecutor(workers=2).describe() == "this process, 2 threads"
    assert LocalExecutor("gpu").describe() == "this process, one GPU"


def test_describe_workers(executor):
    if not isinstance(executor, LocalExecutor):
        assert executor.describe() == "2 cpu workers"


def test_a_run_may_state_how_it_resumes(executor):
    assert executor.resume_hint == ""
    executor.resume_hint = "with --resume"
    assert executor.resume_hint == "with --resume"
    executor.resume_hint = ""


@pytest.mark.slow
def test_local_workers_keep_freed_memory_and_import_modules_once(monkeypatch):
    """When the cluster closes, this process gets its former settings back."""
    for name in THRESHOLDS:
        monkeypatch.delenv(name, raising=False)  # another cluster of this process may have set it
    gc.unfreeze()  # as if this process had no other cluster
    executor = start_cluster("cpu", 1)
    try:
        executor.gather([executor.call(square, 1)])
        environment, frozen = executor.everywhere(state_of_a_worker)[0]
        assert environment == [str(64 << 20), str(32 << 20)]
        assert frozen > 10_000 and gc.get_freeze_count() > 10_000
    finally:
        executor.close()
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as tests/conftest.py did


def state_of_a_worker():
    return [os.environ.get(name) for name in THRESHOLDS], gc.get_freeze_count()


def test_map_reduce(executor):
    squares = map_tasks(executor, square, range(20), 1)
    assert executor.gather(squares) == [x * x + 1 for x in range(20)]
    for arity in (2, 8, 100):
        assert executor.gather(reduce_tasks(executor, add, squares, arity)) == [sum(x * x + 1 for x in range(20))]
    assert executor.gather(reduce_tasks(executor, add, squares[4:5])) == [17]


def test_reduce_keeps_the_order(executor):
    letters = map_tasks(executor, chr, range(97, 123))
    joined = reduce_tasks(executor, lambda *parts: "".join(parts), letters, 3)
    assert executor.gather(joined) == ["abcdefghijklmnopqrstuvwxyz"]


@pytest.mark.parametrize("roots, expected", [(1, ["abcdefg"]), (2, ["abcdefg"]), (3, ["abc", "def", "g"])])
def test_reduce_stops_at_so_many_roots(roots, expected, executor):
    letters = map_tasks(executor, chr, range(97, 104))
    joined = reduce_tasks(executor, lambda *parts: "".join(parts), letters, 3, roots, priority=True)
    assert executor.gather(joined) == expected


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_window_of_calls(window, executor):
    """A call is made only when enough earlier calls have finished; `done` receives every handle."""
    made, told = [], []

    def call(x):
        made.append(x)
        assert len(made) - len(told) <= window
        return executor.call(square, x)

    windowed(executor, map(call, range(10)), window, told.append)
    assert made == list(range(10)) and sorted(executor.gather(told)) == [x * x for x in range(10)]
    windowed(executor, [], window, told.append)


def test_further_tasks_do_not_widen_a_window(executor):
    """Each finished call returns a further task.

    `windowed` also waits for these tasks, but they take no place in the window.
    """
    made, finished, followed = [], [], []

    def call(x):
        made.append(x)
        assert len(made) - len(finished) <= 2
        return executor.call(square, x)

    def done(handle):
        [value] = executor.gather([handle])
        if value >= 100:
            followed.append(value)
            return None
        finished.append(value)
        return [executor.call(add, 100, value)]

    windowed(executor, map(call, range(8)), 2, done)
    assert sorted(finished) == [x * x for x in range(8)]
    assert sorted(followed) == [100 + x * x for x in range(8)]


@pytest.mark.parametrize("window", [1, 3, 100])
def test_values_in_order(window, executor):
    """At most `window` calls are made and not yet yielded, and calls are made only when values are requested."""
    made, taken = [], []

    def call(x):
        made.append(x)
        assert len(made) - len(taken) <= window
        return executor.call(late_if_first, x)

    values = in_order(executor, map(call, range(10)), window)
    assert not made
    for value in values:
        taken.append(value)
    assert made == taken == list(range(10))
    assert list(in_order(executor, [], window)) == []


def test_values_in_order_end_with_the_first_error(executor):
    values = in_order(executor, map_tasks(executor, fail, range(6)), 2)
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="3 is no good"):
        next(values)


def test_wait_reports_every_handle(executor):
    handles, told = map_tasks(executor, square, range(10)), []
    executor.wait(handles, told.append)
    assert sorted(executor.gather(told)) == [x * x for x in range(10)]
    executor.wait([])


def test_all_workers_are_known_while_dask_keeps_an_answer_without_them(cluster, monkeypatch):
    monkeypatch.setattr(cluster.client, "scheduler_info", lambda n_workers: {"workers": {}})
    assert len(dask_executor.checks.scheduler_info(cluster.client)["workers"]) == 2
    assert cluster.gang_size() == 2


def test_a_worker_that_ends_is_not_asked(cluster, monkeypatch):
    """Dask would wait for it, even forever: a worker without this package cannot unpickle the call that ends it."""
    known, asked, run = dask_executor.checks.scheduler_info, [], cluster.client.run

    def with_one_more(client):
        info = known(client)
        return info | {"workers": {**info["workers"], "tcp://127.0.0.1:1": {"status": "closing"}}}

    monkeypatch.setattr(dask_executor.checks, "scheduler_info", with_one_more)
    monkeypatch.setattr(cluster.client, "run", lambda *a, **how: asked.append(how["workers"]) or run(*a, **how))
    pids = cluster.everywhere(os.getpid)
    assert len(set(pids)) == 2 == len(asked[0]) and "tcp://127.0.0.1:1" not in asked[0]


def test_everywhere(executor):
    pids = executor.everywhere(os.getpid)
    processes = 1 if isinstance(executor, LocalExecutor) else executor.workers
    assert len(pids) == len(set(pids)) == processes
    assert executor.everywhere(pow, 3, 2) == [9] * processes
    with pytest.raises(InputError, match="^3 is no good; give 4$"):
        executor.everywhere(fail, 3)


def test_calls_are_never_merged(executor):
    """The same call twice runs twice: equal arguments do not make a function pure."""
    first, second = executor.gather([executor.call(os.urandom, 16), executor.call(os.urandom, 16)])
    assert first != second


def test_an_error_keeps_its_type_and_message(executor):
    handles = map_tasks(executor, fail, range(6))
    with pytest.raises(InputError, match="^3 is no good; give 4$"):
        executor.wait(handles)
    with pytest.raises(InputError, match="^3 is no good; give 4$"):
        executor.gather(map_tasks(executor, fail, range(6)))
    assert executor.gather([executor.call(square, 3)]) == [9], "the executor still works"


def test_an_error_reaches_dependent_tasks(executor):
    [total] = reduce_tasks(executor, add, map_tasks(executor, fail, range(20)), 2)
    with pytest.raises(InputError, match="3 is no good"):
        executor.wait([total])


def test_a_chain_longer_than_the_workers_does_not_deadlock(executor):
    handle = executor.call(square, 1)
    for _ in range(20):
        handle = executor.call(add, handle, 1)
    assert executor.gather([handle]) == [21]


@pytest.mark.parametrize("device", ["local", "dask"])
def test_wait_keeps_no_finished_handle(device, cluster):
    """Callers drop handles to free memory while they wait for others: the last one that was reported is kept."""
    executor = LocalExecutor(workers=2) if device == "local" else cluster
    followed, reported = [], []

    def handles():
        for i in range(6):
            handle = executor.call(square, i)
            followed.append(weakref.ref(handle))
            yield handle

    def done(_):
        reported.append(0)
        while sum(ref() is not None for ref in followed) > 7 - len(reported):  # other threads release them
            time.sleep(0.005)
            gc.collect()

    executor.wait(handles(), done)
    assert len(reported) == 6


def test_groups_and_workers_here():
    executor = LocalExecutor(workers=2)
    handles = map_tasks(executor, square, range(3))
    executor.wait(handles)
    assert executor.groups(handles) == [handles] and executor.groups([]) == []
    assert executor.worker_of(handles[0]) == "0" and executor.transport == "memory"


# Priority tasks, in this process


SOON = 300  # seconds; a task that is not done by then is deadlocked


def wait_until(holds):
    while not holds():
        time.sleep(0.005)


def rows(first, path=""):
    """Return (4, 3) int64 with rows `first` to `first` + 3; leave a mark where the value is made."""
    if path:
        with open(f"{path}/made", "ab") as file:
            file.write(b".")
    return np.repeat(np.arange(first, first + 4)[:, None], 3, axis=1)


def columns_of(array, first, last):
    fail(array[0, 0])
    return array[:, first:last]


def plain(shares, *others):
    assert all(share.flags.writeable for share in shares)
    return [share.tolist() for share in shares], others


def in_list(values):
    return [value if isinstance(value, int) else value.tolist() for value in values]


def test_shares(executor):
    """Of values on several workers, in the order of the offer; in a list of arguments, in the place of the share."""
    offer = executor.offer([executor.call(rows, 10 * i, affinity=i) for i in range(5)])
    share = offer.share(columns_of, 1, 3)
    expected = [[[10 * i + row] * 2 for row in range(4)] for i in range(5)]
    assert executor.gather([executor.call(plain, share, 7, affinity=i) for i in range(3)]) == 3 * [(expected, (7,))]
    arguments = [executor.call(square, 3), share, executor.call(square, 4)]
    assert executor.gather([executor.call(in_list, arguments)]) == [[9, *expected, 16]]
    assert executor.gather([executor.call(in_list, [executor.offer([]).share(columns_of, 0, 1)])]) == [[]]


def test_an_error_in_a_share(executor):
    offer = executor.offer([executor.call(rows, i, affinity=i) for i in range(4)])
    for i in range(2):
        with pytest.raises(InputError, match="^3 is no good; give 4$"):
            executor.gather([executor.call(plain, offer.share(columns_of, 0, 1), affinity=i)])


@pytest.fixture
def here():
    """An executor of two threads, and a function that returns a handle: it finishes with 1 when an event is set."""
    executor, events = LocalExecutor(workers=2), []

    def gate():
        events.append(threading.Event())
        return executor.call(lambda event: int(event.wait(SOON)), events[-1]), events[-1]

    yield executor, gate
    for event in events:
        event.set()
    executor.close()


def test_ready_tasks_run_before_waiting_tasks(here):
    executor, gate = here
    (slow, open_slow), (slower, open_slower) = gate(), gate()
    waiting = executor.call(sum, [executor.call(add, 5, priority=True), slower, slow], priority=True)
    chained = executor.call(add, waiting, slow, priority=True)
    done = executor.call(add, executor.call(add, 1, 2, priority=True), 4, priority=True)
    assert done.result(SOON) == 7
    open_slow.set()
    assert slow.result(SOON) == 1 and executor.call(add, slow, priority=True).result(SOON) == 1
    assert not waiting.done() and not chained.done()
    open_slower.set()
    assert chained.result(SOON) == 8


def test_ready_tasks_run_in_call_order(here):
    executor, gate = here
    slow, open_slow = gate()
    order = []
    waiting = [executor.call(lambda i, _: order.append(i), i, slow, priority=True) for i in range(5)]
    executor.call(order.append, 5, priority=True).result(SOON)
    open_slow.set()
    assert [handle.result(SOON) for handle in waiting] == [None] * 5
    assert order == [5, 0, 1, 2, 3, 4]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.lists(st.integers(0, 100), max_size=4)), max_size=30),
    st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_no_mix_of_priorities_deadlocks(tasks, workers):
    """Task i adds 1 to the sum of earlier results, which it takes one by one or as a list."""
    executor, handles, values = LocalExecutor(workers=workers), [], []
    try:
        for first, as_list, before in tasks:
            before = [b % len(handles) for b in before if handles]
            arguments = [handles[b] for b in before]
            arguments = [sum, [1, *arguments]] if as_list else [add, 1, *arguments]
            handles.append(executor.call(*arguments, priority=first))
            values.append(1 + sum(values[b] for b in before))
        assert [h.result(SOON) for h in handles] == values
    finally:
        executor.close()


@pytest.mark.parametrize("as_list", [False, True])
def test_the_outcome_of_an_argument_reaches_a_priority_task(as_list, here):
    executor, gate = here
    slow, open_slow = gate()

    def after(handle):
        return executor.call(sum, [handle], priority=True) if as_list else executor.call(add, handle, priority=True)

    failed = [after(executor.call(fail, 3)), after(executor.call(fail, 3, priority=True))]
    for handle in [*failed, after(failed[0]), executor.call(add, failed[0])]:
        with pytest.raises(InputError, match="^3 is no good; give 4$"):
            handle.result(SOON)
    cancelled = executor.call(add, slow, priority=True)
    then = after(cancelled)
    assert cancelled.cancel()
    with pytest.raises(CancelledError):
        then.result(SOON)
    open_slow.set()
    assert after(slow).result(SOON) == 1 and cancelled.cancelled()


def test_an_error_cancels_waiting_priority_tasks(here):
    executor, gate = here
    slow, open_slow = gate()
    ran = []
    waiting = executor.call(ran.append, slow, priority=True)
    with pytest.raises(InputError, match="3 is no good"):
        executor.wait([waiting, executor.call(fail, 3, priority=True)])
    open_slow.set()
    executor.close()
    assert waiting.cancelled() and ran == []


def test_a_priority_task_keeps_nothing_alive(here):
    executor, gate = here
    slow, open_slow = gate()
    made = executor.call(lambda _: {1, 2}, slow)
    followed = weakref.ref(made)
    size = executor.call(len, made, priority=True)
    del made
    gc.disable()  # before garbage collection
    try:
        open_slow.set()
        assert size.result(SOON) == 2
        wait_until(lambda: followed() is None)
    finally:
        gc.enable()


def test_a_priority_task_with_many_arguments(here):
    """A save may take thousands of runs: all finished already, or all still unfinished."""
    executor, gate = here
    slow, open_slow = gate()
    there = [executor.call(add, i) for i in range(3000)]
    executor.wait(there)
    to_come = [executor.call(add, slow, priority=True) for _ in range(3000)]
    sums = [executor.call(sum, handles, priority=True) for handles in (there, to_come)]
    assert sums[0].result(SOON) == sum(range(3000))
    open_slow.set()
    assert sums[1].result(SOON) == 3000


def test_closing_settles_every_task():
    """Running tasks end; the others are cancelled, or fail because an argument is missing."""
    executor, running = LocalExecutor(workers=1), threading.Barrier(3)
    release, release_first = threading.Event(), threading.Event()

    def hold(event):
        running.wait(SOON)
        event.wait(SOON)
        return threading.current_thread()

    held = [executor.call(hold, release), executor.call(hold, release_first, priority=True)]
    never = executor.call(add, 1)
    others = [executor.call(str, handle, priority=True) for handle in (*held, never, 1)]
    others += [executor.call(str, handle, priority=True) for handle in others]
    running.wait(SOON)
    closing = threading.Thread(target=executor.close)
    closing.start()
    wait_until(never.cancelled)
    release.set()
    wait_until(lambda: executor.closed)
    release_first.set()
    closing.join(SOON)
    assert not closing.is_alive()
    assert not any(handle.result(0).is_alive() for handle in held)
    assert all(handle.cancelled() for handle in others)


def test_a_running_task_gets_its_first_argument_during_close(here):
    executor, gate = here
    slow, open_slow = gate()
    first = executor.call(add, slow, 1, priority=True)
    last = executor.call(add, first, 1)
    wait_until(last.running)
    closing = threading.Thread(target=executor.close)
    closing.start()
    open_slow.set()
    closing.join(SOON)
    assert not closing.is_alive() and last.result(0) == 3


def test_affinity_groups_and_workers(cluster):
    assert cluster.transport == "tcp"
    handles = [cluster.call(os.getpid, affinity=i) for i in range(6)]
    cluster.wait(iter(handles))
    pids = cluster.gather(handles)
    groups = cluster.groups(handles)
    assert sorted(map(len, groups)) == [3, 3]
    assert [[h.key for h in g] for g in groups] == [[h.key for h in g] for g in cluster.groups(handles)]
    for group in groups:
        numbers = [handles.index(h) for h in group]
        assert numbers == sorted(numbers) and len({n % 2 for n in numbers}) == 1
        assert len({pids[n] for n in numbers}) == 1
        assert len({cluster.worker_of(h) for h in group}) == 1
    assert {cluster.worker_of(h) for h in handles} == {"0", "1"}


def put(path, *after):
    path.touch()


def test_dropped_tasks_are_not_started(cluster, tmp_path, monkeypatch):
    """For example after an error, when the next run uses the same executor."""
    monkeypatch.setattr(dask_executor, "CALLED_SECONDS", 60)
    first = cluster.call(put, tmp_path / "first")
    second = cluster.call(put, tmp_path / "second", first)
    kept = cluster.call(put, tmp_path / "kept")
    del first, second
    cluster.wait([cluster.call(square, i) for i in range(2 * cluster.workers)])
    cluster.wait([kept])
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_many_calls_at_once(cluster):
    """More calls than one message holds, each with one dependency."""
    calls = [cluster.call(add, 1)]
    for _ in range(250):
        calls.append(cluster.call(add, 1, calls[-1]))
    assert cluster.gather(calls) == list(range(1, 252))


def test_text_in_memory_does_not_warn(cluster):
    """Dask warns about messages of 10 MB and more."""
    texts = [bytes(12 << 20) + bytes([i]) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cluster.gather([cluster.call(len, text) for text in texts]) == [(12 << 20) + 1] * 3


def test_a_value_that_cannot_be_pickled_ends_the_run(cluster):
    """Dask alone would wait forever."""
    lock = cluster.call(threading.Lock, affinity=0)
    with pytest.raises(RunError, match="result cannot be sent to another process: .*cannot pickle"):
        cluster.wait([cluster.call(str, lock, affinity=1)])


@pytest.fixture
def foreign(cluster):
    """A DaskExecutor around a cluster that it did not start."""
    made = DaskExecutor(cluster.client)
    yield made
    made.close()


def test_shared_folders(foreign, tmp_path):
    foreign.check_folder(str(tmp_path))
    assert not list(tmp_path.iterdir())
    LocalExecutor().check_folder(str(tmp_path))
    with pytest.raises(InputError, match="nowhere: cannot be written .*give another folder"):
        foreign.check_folder(str(tmp_path / "nowhere"))


def test_a_folder_that_a_worker_does_not_see(cluster, foreign, tmp_path, monkeypatch):
    def run(function, path, on_error):  # as if the host of the second worker had other files
        return {address: i == 0 for i, address in enumerate(cluster.client.scheduler_info()["workers"])}

    with monkeypatch.context() as patch:
        patch.setattr(cluster.client, "run", run)
        with pytest.raises(InputError, match=r"worker \d .* does not see .*; put the output .* on storage that all"):
            foreign.check_folder(str(tmp_path))
        cluster.check_folder(str(tmp_path))  # its own workers are all on this host


# A cluster of processes


@pytest.fixture(scope="module")
def cluster():
    made = start_cluster("cpu", 2)
    yield made
    made.close()


def test_worker_processes_listen_on_loopback_only(cluster):
    pids = set(cluster.client.run(os.getpid).values())
    assert len(pids) == cluster.workers == 2 and os.getpid() not in pids
    listening = [
        connection.laddr.ip
        for pid in [os.getpid(), *pids]
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 3 and set(listening) == {"127.0.0.1"}


def kill_worker(_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_task_that_kills_its_workers_fails_the_run():
    executor = start_cluster("cpu", 1)
    try:
        with pytest.raises(
            RunError, match=r"^task kill_worker.* killed every worker that ran it \(4 times\).*chunk_bytes"
        ):
            executor.wait(map_tasks(executor, kill_worker, [1]))
    finally:
        executor.close()


def kill_worker_once(path):
    """Kill the first worker that calls this; the task runs again on the worker that replaces it."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGKILL)


def test_tasks_of_a_lost_worker_run_again(cluster, tmp_path):
    before = map_tasks(cluster, square, range(6))
    cluster.wait(before)
    assert cluster.gather([cluster.call(kill_worker_once, str(tmp_path / "died"))]) == ["done"]
    assert cluster.gather(before) == [0, 1, 4, 9, 16, 25]


def columns_once(array, path):
    """Return the first column, but kill the process if the file is there: the value is lost, and the task waits."""
    with suppress(FileNotFoundError):
        os.unlink(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return array[:, :1]


def test_shares_of_a_lost_worker_are_made_again(cluster, wait_for_workers, tmp_path):
    wait_for_workers(cluster.client, 2)
    offer = cluster.offer([cluster.call(rows, 10 * i, str(tmp_path), affinity=i) for i in range(4)])
    (tmp_path / "bomb").touch()
    share = offer.share(columns_once, str(tmp_path / "bomb"))
    made = [cluster.call(plain, share, i, affinity=i) for i in range(4)]
    expected = [[[10 * i + row] for row in range(4)] for i in range(4)]
    assert cluster.gather(made) == [(expected, (i,)) for i in range(4)]
    assert names_of(tmp_path) == ["made"] and len((tmp_path / "made").read_bytes()) == 6, "two values were lost"


def test_a_result_that_was_made_of_an_ended_offer_is_lost_with_its_worker(cluster, wait_for_workers):
    wait_for_workers(cluster.client, 2)
    offer = cluster.offer([cluster.call(rows, i, affinity=i) for i in range(2)])
    results = [cluster.call(plain, offer.share(columns_of, 0, 1), affinity=i, label=f"task {i}") for i in range(2)]
    assert len(cluster.gather(results)) == 2
    del offer
    wait_until(lambda: not cluster.client.run_on_scheduler(keys_of_rows))
    address = cluster.holder_of(results[1])
    cluster.client.run(end_process, workers=[address])
    wait_until(lambda: address not in cluster.client.scheduler_info(n_workers=-1)["workers"])
    with pytest.raises(ResultLost):
        cluster.gather([cluster.call(add_lengths, results)])
    offer = cluster.offer([cluster.call(rows, 9)])
    assert cluster.gather([cluster.call(plain, offer.share(columns_of, 0, 1))]) == [([[[9], [10], [11], [12]]], ())]


def test_shares_of_a_lost_result_that_cannot_be_made_again(cluster, wait_for_workers):
    """The task that takes them fails, too, and does not wait."""
    wait_for_workers(cluster.client, 2)
    first = cluster.offer([cluster.call(rows, 10 * i, affinity=i) for i in range(2)])
    made = [cluster.call(first_rows, first.share(columns_of, 0, 2), affinity=i, label=f"task {i}") for i in range(2)]
    second = cluster.offer(made)
    del first, made
    wait_until(lambda: not cluster.client.run_on_scheduler(keys_of_rows))
    address = cluster.holder_of(second.handles[1])
    cluster.client.run(end_process, workers=[address])
    wait_until(lambda: address not in cluster.client.scheduler_info(n_workers=-1)["workers"])
    with pytest.raises(ResultLost, match="cannot make again; look at its log, then run again"):
        cluster.gather([cluster.call(plain, second.share(columns_of, 0, 1))])


def first_rows(values):
    return np.concatenate(values)


def test_another_run_that_ends_leaves_shares(cluster, wait_for_workers):
    wait_for_workers(cluster.client, 2)
    offer = cluster.offer([cluster.call(rows, 10 * i, affinity=i) for i in range(2)])
    DaskExecutor(cluster.client).close()
    expected = [[[10 * i + row] for row in range(4)] for i in range(2)]
    made = [cluster.call(plain, offer.share(columns_of, 0, 1), affinity=i) for i in range(2)]
    assert cluster.gather(made) == [(expected, ())] * 2


def keys_of_rows(dask_scheduler):
    return [key for key in dask_scheduler.tasks if key.startswith("rows")]


def end_process():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()


def add_lengths(results):
    return sum(len(shares) for shares, _ in results)


def names_of(folder):
    return sorted(path.name for path in folder.iterdir())


def test_only_the_driver_handles_ctrl_c(spawned, wait_for_workers, tmp_path):
    """A terminal sends SIGINT to every process; a worker that handled it would print its own traceback.

    The worker was restarted.
    """
    with closing(start_cluster("cpu", 1)) as cluster:
        cluster.gather([cluster.call(kill_worker_once, str(tmp_path / "died"))])
        wait_for_workers(cluster.client, 1)
        pids = set(cluster.client.run(os.getpid).values())
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert cluster.gather(map_tasks(cluster, square, range(3))) == [0, 1, 4]
        assert len(pids) == 1 and set(cluster.client.run(os.getpid).values()) == pids
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


HEARS_CTRL_C = """
import signal
from mgpu_ngram.cluster.dask import start_cluster
if __name__ == "__main__":
    executor = start_cluster("cpu", 2)
    masks = executor.client.run(lambda: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    print(sorted(masks.values()), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    executor.close()
"""


@pytest.mark.slow
def test_only_the_driver_handles_ctrl_c_with_its_first_cluster(tmp_path):
    (tmp_path / "script.py").write_text(HEARS_CTRL_C)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[True, True] False\n", "")


def test_closing_leaves_no_process_and_no_folder():
    mine = psutil.Process()
    before = {p.pid for p in mine.children(recursive=True)}
    executor = start_cluster("cpu", 2)
    started = [p for p in mine.children(recursive=True) if p.pid not in before]
    folders = executor.client.run(lambda dask_worker: dask_worker.local_directory).values()
    [scratch] = {os.path.dirname(os.path.dirname(folder)) for folder in folders}
    # Python's own tracker process remains.
    started = [p for p in started if "resource_tracker" not in " ".join(p.cmdline())]
    assert len(started) >= 2 and os.path.isdir(scratch)
    executor.close()
    _, alive = psutil.wait_procs(started, 20)
    assert not alive and not os.path.exists(scratch)


def test_a_client_that_was_given_stays_open():
    here = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**here) as cluster, Client(cluster) as client:
        executor = DaskExecutor(client, "cpu")
        assert executor.workers == 2
        assert executor.gather(map_tasks(executor, square, range(3))) == [0, 1, 4]
        executor.close()
        assert client.submit(square, 5).result() == 25


def test_a_cluster_without_workers_is_refused():
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        pytest.raises(InputError, match="has no workers; start some"),
    ):
        DaskExecutor(client, "cpu")


def test_more_gpu_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("mgpu_ngram.cluster.dask.visible_gpus", lambda: 2)
    with pytest.raises(InputError, match="3 workers were requested but 2 GPUs are visible; use --workers 2"):
        start_cluster("gpu", 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distributed.scheduler.alowed-failures": 3}, "did you mean 'distributed.scheduler.allowed-failures'"),
        (
            {"distributed": {"scheduler": {}}},
            "dask.distributed is a mapping but must be a value; write its keys with dots",
        ),
    ],
)
def test_dask_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        start_cluster("cpu", 1, settings)


@pytest.mark.slow
def test_a_secure_cluster_refuses_clients_without_a_certificate(device):
    pytest.importorskip("cryptography")
    executor = start_cluster(device, 1, secure=True)
    try:
        assert executor.gather([executor.call(square, 3)]) == [9]
        address = executor.client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        for stranger in address, address.replace("tls://", "tcp://"):
            with pytest.raises((OSError, TypeError, RuntimeError)):
                asyncio.run(connect(stranger, timeout=2))
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("secure", "others", "protocol", "scheme"),
    [
        (None, False, None, "tcp"),
        (None, True, None, "tls"),
        (False, True, None, "tcp"),
        (True, False, "tcp", "tls"),
        (None, True, "ucx", "ucx"),
    ],
)
def test_clusters_are_secure_where_the_host_has_other_users(secure, others, protocol, scheme, monkeypatch):
    asked = {}

    def refuse(**options):
        asked.update(options)
        raise RuntimeError("no cluster now")

    monkeypatch.setattr("mgpu_ngram.cluster.dask.has_other_users", lambda: others)
    monkeypatch.setattr("mgpu_ngram.cluster.dask.LocalCluster", refuse)
    with pytest.raises(RunError, match="no cluster now"):
        start_cluster("cpu", 1, protocol=protocol, secure=secure)
    assert asked["protocol"] == scheme and ("security" in asked) == (scheme == "tls")


def test_secure_clusters_that_cannot_start(monkeypatch):
    with pytest.raises(InputError, match="secure is true but the protocol ucx has no encryption; use tcp, or"):
        start_cluster("cpu", 1, protocol="ucx", secure=True)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InputError, match="needs the package cryptography .*; pip install cryptography, or set"):
        start_cluster("cpu", 1, secure=True)


def test_dask_settings_reach_the_scheduler_and_the_workers():
    open_sections = {"distributed.nanny.pre-spawn-environ.MGPU_TEST": "x", "distributed.worker.resources.SEAT": 1}
    limit = {"distributed.scheduler.allowed-failures": 7}
    with dask.config.set(limit):  # later clusters of this process get the limit that there was before
        executor = start_cluster("cpu", 1, {**limit, **open_sections})
        try:
            assert executor.everywhere(os.getenv, "MGPU_TEST") == ["x"]
            assert executor.client.cluster.scheduler.allowed_failures == 7
            seen = executor.client.run(lambda: dask.config.get("distributed.scheduler.allowed-failures"))
            assert set(seen.values()) == {7}
            dask.config.set({"distributed.scheduler.allowed-failures": 2})
        finally:
            executor.close()


@pytest.mark.parametrize(("preload", "given"), [("a.py", ["a.py"]), (["a.py", "b.py"], ["a.py", "b.py"]), ([], [])])
def test_preloads_reach_gpu_workers(preload, given, monkeypatch):
    """dask-cuda sets its own preload and ignores the preloads of Dask's settings."""
    asked = {}

    def refuse(**options):
        asked.update(options)
        raise RuntimeError("no GPU here")

    monkeypatch.setattr("mgpu_ngram.cluster.dask.visible_gpus", lambda: 1)
    monkeypatch.setitem(sys.modules, "dask_cuda", types.SimpleNamespace(LocalCUDACluster=refuse))
    try:
        with pytest.raises(RunError, match="the Dask workers did not start .no GPU here.; try fewer --workers"):
            start_cluster("gpu", 1, {"distributed.worker.preload": preload})
    finally:
        dask.config.set({"distributed.worker.preload": []})
    assert asked["preload"] == given


def test_nothing_of_dask_is_imported_without_a_cluster():
    code = "import sys, mgpu_ngram; print('distributed' in sys.modules, 'cupy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_gpu_workers_run_one_task_at_a_time():
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        with pytest.raises(InputError, match="runs 2 tasks at once but must run 1; start workers with nthreads=1"):
            DaskExecutor(client, "gpu")
        executor = DaskExecutor(client, "cpu")
        assert (executor.workers, executor.tasks_per_host) == (2, 2)


def test_the_gpu_is_opened_before_the_first_task(monkeypatch):
    done = []
    monkeypatch.setattr("mgpu_ngram.cluster.local._open_gpu", lambda: done.append("opened"))
    executor = LocalExecutor("gpu")
    try:
        assert executor.gather([executor.call(lambda: list(done))]) == [["opened"]]
    finally:
        executor.close()


def test_a_gpu_that_cannot_be_opened_fails_in_the_tasks(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    executor = LocalExecutor("gpu")
    try:
        assert executor.gather([executor.call(lambda: 1)]) == [1]
    finally:
        executor.close()
