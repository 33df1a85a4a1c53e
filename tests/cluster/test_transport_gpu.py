"""Arrays that cross between real GPUs, by each transport, arrive unchanged."""

import os
import signal
import sys
import time

import cloudpickle
import numpy as np
import pytest

from mgpu_ngram.cluster.dask import start_cluster

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.multigpu, pytest.mark.timeout(300)]
DTYPES = ["u1", "i2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8", "?"]


@pytest.fixture(scope="module")
def executor():
    made = start_cluster("gpu", 2)
    yield made
    made.close()


def expected(dtype):
    return (np.arange(1_000) % 251).astype(dtype)


def make():
    import cupy

    keys = cupy.asarray(expected("<u8")).reshape(10, 100)
    return {
        **{dtype: cupy.asarray(expected(dtype)) for dtype in DTYPES},
        "matrix": keys,
        "again": keys,
        "columns": keys.T,
        "every third": keys[::3, 1::2],
        "rows": keys[:, 3:60],
        "short rows": cupy.asarray(expected("<u8")).reshape(500, 2)[:, :1],
        "no rows": keys[:, 7:7],
        "inside": cupy.arange(1 << 20, dtype=cupy.int64)[12_345:12_400],
        "empty": cupy.empty((0, 3), cupy.float32),
        "scalar": cupy.asarray(7),
        "host": np.arange(5),
    }


def check(arrays):
    """Return the names of arrays that arrived changed."""
    import cupy

    matrix = expected("<u8").reshape(10, 100)
    wanted = {dtype: expected(dtype) for dtype in DTYPES} | {
        "matrix": matrix,
        "again": matrix,
        "columns": matrix.T,
        "every third": matrix[::3, 1::2],
        "rows": matrix[:, 3:60],
        "short rows": expected("<u8").reshape(500, 2)[:, :1],
        "no rows": matrix[:, 7:7],
        "inside": np.arange(12_345, 12_400),
        "empty": np.empty((0, 3), np.float32),
        "scalar": np.asarray(7),
    }
    wrong = [name for name in wanted if type(arrays[name]) is not cupy.ndarray]
    for name, want in wanted.items():
        got = cupy.asnumpy(arrays[name])
        if got.dtype != want.dtype or got.shape != want.shape or not np.array_equal(got, want):
            wrong.append(name)
    if arrays["again"] is not arrays["matrix"]:
        wrong.append("again is a copy")
    if type(arrays["host"]) is not np.ndarray:
        wrong.append("host")
    return wrong, os.getpid()


def test_ipc_is_chosen(executor):
    assert (executor.workers, executor.transport) == (2, "ipc")


def crossed(executor):
    handle = executor.call(make, affinity=0)
    executor.wait([handle])
    [(here, mine), (there, its)] = executor.gather([executor.call(check, handle, affinity=i) for i in range(2)])
    assert mine != its, "the array did not cross"
    assert (here, there) == ([], [])


def test_every_kind_of_array(executor):
    for _ in range(3):
        crossed(executor)


def slab_bytes():
    from mgpu_ngram.cluster import lent_arrays

    return lent_arrays._slab.nbytes if lent_arrays._slab else 0


def test_in_the_slab(executor, wait_for_workers):
    """Peers read arrays in the slab without a copy; a restarted worker has no slab and lends copies."""
    executor.reserve((1 << 30) + 12_345)
    assert executor.everywhere(slab_bytes) == [1 << 30, 1 << 30], "peers open other sizes fifty times slower"
    for _ in range(3):
        crossed(executor)
    [pid] = executor.gather([executor.call(os.getpid, affinity=0)])
    os.kill(pid, signal.SIGKILL)
    while pid in executor.everywhere(os.getpid):
        time.sleep(0.1)
    wait_for_workers(executor.client, 2)
    assert sorted(executor.everywhere(slab_bytes)) == [0, 1 << 30]
    for _ in range(3):
        crossed(executor)


def large(size_bytes):
    import cupy

    return cupy.arange(size_bytes // 8, dtype=cupy.int64)


def check_large(array, size_bytes):
    import cupy

    return bool((array == cupy.arange(size_bytes // 8, dtype=cupy.int64)).all()), os.getpid()


def test_more_than_a_gibibyte(executor):
    size_bytes = (1 << 30) + 8 * 1001
    handle = executor.call(large, size_bytes, affinity=0)
    executor.wait([handle])
    [(same, its), (_, mine)] = executor.gather(
        [executor.call(check_large, handle, size_bytes, affinity=i) for i in (1, 0)]
    )
    assert same and its != mine


def test_the_driver_gets_numpy(executor):
    [arrays] = executor.gather([executor.call(make)])
    assert type(arrays["matrix"]) is np.ndarray and arrays["columns"].shape == (100, 10)


def test_a_sender_that_is_killed(executor, wait_for_workers):
    size_bytes = 1 << 28
    handles = [executor.call(large, size_bytes, affinity=0) for _ in range(4)]
    executor.wait(handles)
    [(_, pid)] = executor.gather([executor.call(check_large, handles[0], size_bytes, affinity=0)])
    checks = [executor.call(check_large, h, size_bytes, affinity=1) for h in handles]
    os.kill(pid, signal.SIGKILL)
    assert [same for same, _ in executor.gather(checks)] == [True] * 4
    wait_for_workers(executor.client, 2)
    crossed(executor)


def test_tcp(monkeypatch):
    monkeypatch.setattr("mgpu_ngram.cluster.checks._probe", lambda *_: False)
    executor = start_cluster("gpu", 2)
    try:
        assert executor.transport == "tcp"
        crossed(executor)
    finally:
        executor.close()


def test_ucx():
    pytest.importorskip("distributed_ucxx", reason="distributed-ucxx is not installed")
    executor = start_cluster("gpu", 2, protocol="ucx")
    try:
        assert executor.transport == "ucx"
        crossed(executor)
    finally:
        executor.close()
