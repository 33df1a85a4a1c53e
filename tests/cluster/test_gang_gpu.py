"""Gangs of two GPUs: sums of large arrays, kernels beside a sum, and a worker that dies in the middle of one."""

import os
import signal
import sys
import time

import cloudpickle
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.gang import GangError
from mgpu_ngram.core.errors import InputError

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.multigpu, pytest.mark.timeout(300)]
LARGE = (1 << 30) // 4  # numbers of 4 bytes


@pytest.fixture(scope="module")
def executor():
    made = start_cluster("gpu", 2)
    yield made
    made.close()


def sum_large(comm, dtype):
    import cupy

    array = cupy.arange(LARGE, dtype=dtype)
    array += comm.rank
    assert comm.all_reduce(array) is array
    expected = cupy.arange(LARGE, dtype=dtype)
    expected *= comm.size
    expected += sum(range(comm.size))
    return bool((array == expected).all()), os.getpid()


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_the_sum_of_one_gibibyte(executor, dtype):
    results = executor.gather(executor.gang(sum_large, [[dtype]] * 2))
    assert all(right for right, _ in results) and len({pid for _, pid in results}) == 2


def exchange(comm):
    import cupy

    own = cupy.arange(3, dtype=cupy.int64) + 10 * comm.rank
    part = comm.reduce_scatter(cupy.stack([own + r for r in range(comm.size)]))
    both = comm.all_gather(own.astype(cupy.uint16))
    out = cupy.zeros_like(own)
    assert comm.all_reduce_async(own, out).wait() is out
    assert out.tolist() == [10, 12, 14] and int(own[0]) == 10 * comm.rank
    total = comm.all_reduce(own.astype(cupy.float64))
    comm.barrier()
    return part.tolist(), both.tolist(), total.tolist()


def test_every_collective_by_hand(executor):
    both, total = [[0, 1, 2], [10, 11, 12]], [10.0, 12.0, 14.0]
    results = executor.gather(executor.gang(exchange, [[], []]))
    assert results == [([10, 12, 14], both, total), ([12, 14, 16], both, total)]


def overlap(comm):
    """Rank 1 comes late: rank 0 runs kernels while its sum waits, and further kernels after the sum."""
    import cupy

    array, other = cupy.ones(LARGE, cupy.uint32), cupy.ones(1000, cupy.uint32)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1)
    stream = cupy.cuda.get_current_stream()
    pending = comm.all_reduce_async(array)
    other *= 7
    stream.synchronize()
    was_done = pending.event.done
    pending.hold_stream()
    doubled = array * 2
    return was_done, int(other.sum()), int(doubled.min()), int(doubled.max())


def test_kernels_run_beside_a_sum(executor):
    first, second = executor.gather(executor.gang(overlap, [[], []]))
    assert first == (False, 7000, 4, 4) and second[1:] == (7000, 4, 4)


def die_in_a_sum(comm, how):
    """Rank 1 dies while rank 0 waits for it, on the host or on the device."""
    import cupy

    array = cupy.ones(LARGE, cupy.uint32)
    comm.barrier()
    for sweep in range(1000):
        if comm.rank == 1 and sweep == 20:
            comm.all_reduce_async(array)
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "host":
            comm.all_reduce(array)
        else:
            comm.all_reduce_async(array).hold_stream()
            cupy.cuda.get_current_stream().synchronize()
            comm.check()


@pytest.mark.parametrize("how", ["host", "device"])
def test_a_worker_that_dies_in_a_sum(executor, how):
    executor.gang_size(60)
    before = dict(executor.gather(executor.gang(process, [[], []])))
    with pytest.raises(GangError, match="was lost, which ended the sweeps on 2 workers") as end:
        executor.gang(die_in_a_sum, [[how]] * 2, "the sweeps")
    assert len(end.value.lost) == 1
    [(_, pid)] = executor.gather(executor.gang(process, [[]]))
    assert pid == before[0], "the other process goes on"
    assert executor.gang_size(60) == 2
    assert all(right for right, _ in executor.gather(executor.gang(sum_large, [["uint32"]] * 2)))


def process(comm):
    comm.barrier()
    return comm.rank, os.getpid()


def fail_beside_a_sum(comm):
    import cupy

    comm.barrier()
    if comm.rank == 1:
        raise InputError("chunk 7 is no good")
    comm.all_reduce(cupy.ones(LARGE, cupy.uint32))


def test_a_rank_that_fails(executor):
    pids = dict(executor.gather(executor.gang(process, [[], []])))
    with pytest.raises(InputError, match="^chunk 7 is no good$"):
        executor.gang(fail_beside_a_sum, [[], []])
    assert set(dict(executor.gather(executor.gang(process, [[], []]))).values()) == set(pids.values())
