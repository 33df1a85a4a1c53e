"""Gangs in threads of this process and on worker processes: sums, and what ends a gang early."""

import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mgpu_ngram.cluster import gang_driver
from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.dask_executor import DaskExecutor
from mgpu_ngram.cluster.gang import SUMMED, GangError
from mgpu_ngram.cluster.gang_host import run_in_threads
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from tests.support.slow_cases import first_fast

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def cluster():
    made = start_cluster("cpu", 3)
    yield made
    made.close()


@pytest.fixture(params=["threads", "dask"])
def executor(request):
    if request.param == "dask":
        yield request.getfixturevalue("cluster")
        return
    made = LocalExecutor(workers=3)
    yield made
    made.close()


def collect(comm, array):
    """Every collective once."""
    total = comm.all_reduce(array.copy())
    part = comm.reduce_scatter(np.stack([array + r for r in range(comm.size)]))
    everyone = comm.all_gather(array)
    comm.barrier()
    out = np.empty_like(array)
    assert comm.all_reduce_async(array, out).wait() is out
    assert out.tolist() == total.tolist() and (comm.size == 1 or array.tolist() != total.tolist()), "array stays"
    pending = comm.all_reduce_async(array)
    comm.check()
    assert pending.wait() is array and pending.hold_stream() is array
    return comm.rank, comm.size, total, part, everyone, array


def test_by_hand(executor):
    arrays = [np.array([1, 2], np.int64), np.array([10, 20], np.int64), np.array([100, 200], np.int64)]
    results = executor.gather(executor.gang(collect, [[a] for a in arrays], "sums"))
    for rank, (number, size, total, part, everyone, in_place) in enumerate(results):
        assert (number, size) == (rank, 3)
        assert total.tolist() == in_place.tolist() == [111, 222]
        assert part.tolist() == [111 + 3 * rank, 222 + 3 * rank]
        assert everyone.tolist() == [[1, 2], [10, 20], [100, 200]]


def sum_all(comm, arrays):
    return [comm.all_reduce(a.copy()) for a in arrays]


def test_types_and_sizes(executor):
    """Integers wrap around; (0,), a scalar and 2 MiB arrive in one piece."""
    arrays = [np.full(3, 100, t) for t in SUMMED]
    arrays += [np.array([2**32 - 1], np.uint32), np.empty((0, 4), np.int32), np.array(7), np.arange(1 << 18)]
    for sums in executor.gather(executor.gang(sum_all, [[arrays], [arrays]])):
        assert [s.dtype for s in sums] == [a.dtype for a in arrays]
        with np.errstate(over="ignore"):
            assert all(np.array_equal(s, a + a) for s, a in zip(sums, arrays, strict=True))


@given(hnp.arrays(np.uint32, st.tuples(st.integers(1, 5), st.integers(0, 4))))
@settings(max_examples=25)
def test_sums_are_sums(rows):
    for handle in run_in_threads(sum_all, [[[row.copy()]] for row in rows]):
        assert handle.result()[0].tolist() == rows.sum(0, dtype=np.uint32).tolist()


def test_one_rank_exchanges_nothing(executor):
    [handle] = executor.gang(collect, [[np.array([5])]])
    [(rank, size, total, part, everyone, _)] = executor.gather([handle])
    assert (rank, size, total.tolist(), part.tolist(), everyone.tolist()) == (0, 1, [5], [5], [[5]])


def where(comm, value, held):
    comm.barrier()
    return os.getpid(), value, held


def test_ranks_have_processes_of_their_own_near_their_arguments(cluster):
    held = [cluster.call(os.getpid, affinity=i) for i in (2, 0, 1)]
    handles = cluster.gang(where, [[i, [h]] for i, h in enumerate(held)])
    results = cluster.gather(handles)
    assert len({pid for pid, _, _ in results}) == 3
    assert [value for _, value, _ in results] == [0, 1, 2]
    assert all(pid == made for pid, _, [made] in results)
    assert cluster.gather([cluster.call(len, handles[1])]) == [3], "a result is an argument of tasks"


@pytest.mark.parametrize(
    ("array", "call", "message"),
    [
        (np.zeros(3, np.uint8), "all_reduce", "got an array of uint8; convert it to one of int32"),
        (np.zeros((4, 4))[:, 1], "all_reduce", r"strides \(32,\); make it C-contiguous first"),
        (np.zeros(3), "reduce_scatter", r"shape \(3,\); reshape it to \(2, ...\)"),
        (np.array(3), "reduce_scatter", r"shape \(\); reshape it"),
    ],
)
def test_arrays_that_no_collective_takes(array, call, message):
    with pytest.raises(ValueError, match=message):
        run_in_threads(lambda comm: getattr(comm, call)(array), [[], []])


def test_an_array_that_no_sum_fits():
    with pytest.raises(ValueError, match=r"out of int64 and shape \(3,\); give an array of int64 and \(2,\)"):
        run_in_threads(lambda comm: comm.all_reduce_async(np.zeros(2, int), np.zeros(3, int)), [[], []])


def differ(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.barrier()
    else:
        comm.all_reduce(np.zeros(2))


def test_ranks_that_call_different_collectives(executor):
    with pytest.raises(GangError, match=r"rank 0 calls all_reduce of \(2,\) float64 but rank 1 calls barrier"):
        executor.gang(differ, [[], []])


def ends_early(comm):
    if comm.rank == 0:
        comm.barrier()


def test_a_rank_that_ends_before_a_collective(executor):
    with pytest.raises(GangError, match="rank 0 calls barrier of .* but rank 1 calls end"):
        executor.gang(ends_early, [[], []])


@pytest.mark.parametrize("bad", [0, 1])
def test_one_rank_fails(executor, bad, tmp_path):
    """In a collective or at work, the others end soon; the caller gets the error of the one."""
    with pytest.raises(InputError, match="^chunk 7 is no good$"):
        executor.gang(fail_or_wait, [[bad, str(tmp_path)]] * 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"0", "1", "2"} - {str(bad)}), "all have ended"
    assert executor.gather(executor.gang(sum_all, [[[np.array(1)]]] * 3)) == [[3]] * 3, "it still works"


def fail_or_wait(comm, bad, folder):
    comm.barrier()
    if comm.rank == bad:
        raise InputError("chunk 7 is no good")
    try:
        if comm.rank == 2:
            work(comm)
        comm.all_reduce(np.ones(3))
    except GangError:
        open(os.path.join(folder, str(comm.rank)), "w").close()
        raise


def work(comm):
    """For 40 s, without collectives, unless the gang is aborted as it should be."""
    for _ in range(2000):
        time.sleep(0.02)
        comm.check()
    raise AssertionError("the gang was not aborted")


def test_too_large(executor):
    with pytest.raises(GangError, match="^the sweeps: 4 ranks were requested but 3 can run at once; use 1 to 3 ra"):
        executor.gang(work, [[]] * 4, "the sweeps")
    with pytest.raises(GangError, match="^0 ranks were requested but 3 can"):
        executor.gang(work, [])
    assert executor.gang_size() == 3


def test_a_worker_that_left_before_the_start_is_a_loss():
    """The caller then starts a smaller gang."""
    with pytest.raises(GangError, match=r"were lost \(1 of 2 left before the sweeps\); start a new gang") as found:
        gang_driver._check_left(SimpleNamespace(workers=2), 2, 1, "the sweeps")
    assert found.value.lost


def test_a_gpu_of_this_process_has_one_rank():
    executor = LocalExecutor("gpu")
    try:
        assert executor.gang_size(5) == 1
        with pytest.raises(GangError, match="^2 ranks were requested but 1 can run at once"):
            executor.gang(work, [[], []])
    finally:
        executor.close()


def wait_or_work(comm, folder, do):
    open(os.path.join(folder, f"{comm.rank} {os.getpid()}"), "w").close()
    if do == "work" or comm.rank > 0:
        work(comm)
    comm.barrier()


def pids_of_ranks(folder, size):
    """When all ranks have begun."""
    while len(found := sorted(p.name.split() for p in folder.iterdir())) < size:
        time.sleep(0.01)
    return [int(pid) for _, pid in found]


def busy(cluster):
    return {key for keys in cluster.client.processing().values() for key in keys}


@pytest.mark.parametrize("lost", first_fast([0, 1]))
def test_a_killed_worker_ends_the_gang(cluster, lost, tmp_path):
    """Then a gang of the workers that are left works, and one of all of them when the lost one is back."""
    cluster.gang_size(30)

    def kill():
        os.kill(pids_of_ranks(tmp_path, 3)[lost], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        GangError, match=r"^worker \d \(tcp:.*\) was lost, which ended the sweeps on 3 workers; "
    ) as end:
        cluster.gang(wait_or_work, [[str(tmp_path), "wait"]] * 3, "the sweeps")
    killer.join()
    assert len(end.value.lost) == 1 and end.value.lost[0] in "012"
    assert not busy(cluster)
    left = cluster.gang(sum_all, [[[np.array(1)]]] * 2)
    assert cluster.gather(left) == [[2], [2]]
    assert cluster.gang_size(30) == 3
    assert cluster.gather(cluster.gang(sum_all, [[[np.array(1)]]] * 3)) == [[3]] * 3


@pytest.fixture
def no_collections():
    """Python drops an exception, also of Ctrl-C, in a callback of its garbage collector; Hypothesis has one."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("do", ["wait", "work"])
def test_ctrl_c_leaves_no_tasks(executor, do, tmp_path, no_collections):
    size = 3

    def interrupt():
        pids_of_ranks(tmp_path, size)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        executor.gang(wait_or_work, [[str(tmp_path), do]] * size)
    interrupter.join()
    if isinstance(executor, DaskExecutor):
        assert not busy(executor)
        while any(executor.everywhere(running)):
            time.sleep(0.01)
    assert executor.gather(executor.gang(sum_all, [[[np.array(1)]]] * size)) == [[3]] * 3


def test_an_interrupt_between_the_starts_of_ranks_ends_those_that_run(monkeypatch):
    aborted, submit = [], ThreadPoolExecutor.submit

    def start_one(threads, *task):
        submit(threads, *task)
        raise KeyboardInterrupt

    def work_until_aborted(comm):
        try:
            work(comm)
        except GangError:
            aborted.append(comm.rank)
            raise

    monkeypatch.setattr(ThreadPoolExecutor, "submit", start_one)
    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work_until_aborted, [[]] * 3)
    assert aborted == [0]


def running(dask_worker):
    return dask_worker.state.executing_count


def hold(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def test_a_gang_waits_for_free_workers_and_says_so(cluster, monkeypatch, tmp_path):
    said = []

    def say(line, file):
        said.append((line, file))
        (tmp_path / "go").touch()

    monkeypatch.setattr(gang_driver, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(gang_driver, "print", say, raising=False)
    handle = cluster.call(hold, str(tmp_path / "go"))
    cluster._send()
    while not busy(cluster):
        time.sleep(0.01)
    assert cluster.gather(cluster.gang(sum_all, [[[np.array(1)]]] * 3, "the sweeps")) == [[3]] * 3
    assert said == [("mgpu-ngram: waiting for 1 of 3 workers for the sweeps; they run other tasks", sys.stderr)]
    cluster.wait([handle])


def arrive(path):
    open(path, "w").close()


def test_a_gang_that_gets_half_of_its_workers_leaves_them(cluster, monkeypatch, tmp_path):
    """Somebody else's gang holds the others, and waits for the half that we got: nobody would ever go on."""
    first, second, _ = sorted(gang_driver.slots(cluster))
    monkeypatch.setattr(gang_driver, "GANG_START_SECONDS", 0.3)
    find, tried = gang_driver._find_workers, []
    theirs = [cluster.client.submit(hold, str(tmp_path / "partner"), workers=[first], pure=False)]

    def when_they_look_free(*how):
        tried.append(how)
        return find(*how) if len(tried) > 1 else (first, second)

    def submit_the_partner():
        while second not in {a for a, keys in cluster.client.processing().items() if keys}:
            time.sleep(0.01)  # until our rank holds it
        theirs.append(cluster.client.submit(arrive, str(tmp_path / "partner"), workers=[second], pure=False))

    monkeypatch.setattr(gang_driver, "_find_workers", when_they_look_free)
    partner = threading.Thread(target=submit_the_partner)
    partner.start()
    assert cluster.gather(cluster.gang(sum_all, [[[np.array(1)]]] * 2)) == [[2]] * 2
    partner.join()
    assert len(tried) > 1 and cluster.client.gather(theirs) == [None, None]


def test_a_driver_that_is_lost_ends_its_gang(cluster, tmp_path):
    client = Client(cluster.client.scheduler.address, set_as_default=False)

    def run():
        with suppress(Exception):  # of a client that is closed
            DaskExecutor(client).gang(wait_or_work, [[str(tmp_path), "wait"]] * 3)

    # A call that another thread makes while a client closes may wait for ever, so the driver is not joined.
    threading.Thread(target=run, daemon=True).start()
    pids_of_ranks(tmp_path, 3)
    client.close()
    while any(cluster.everywhere(running)):
        time.sleep(0.01)


def test_a_rank_that_dask_runs_again_alone_gives_up(cluster, monkeypatch):
    """Its worker came back at the same address; without the others it would wait for ever."""
    from mgpu_ngram.cluster.gang_worker import Place, run_rank

    address = sorted(gang_driver.slots(cluster))[0]
    place = Place("alone", 0, (address, address), 0.03)
    alone = cluster.client.submit(run_rank, place, "cpu", sum_all, [], workers=[address], pure=False)
    with pytest.raises(GangError, match="rank 0 ran again alone: its worker was lost with its result; start a new"):
        alone.result()


@pytest.mark.slow
def test_a_cluster_with_tls():
    executor = start_cluster("cpu", 2, secure=True)
    try:
        assert executor.gather(executor.gang(sum_all, [[[np.arange(3)]]] * 2))[1][0].tolist() == [0, 2, 4]
    finally:
        executor.close()
