"""A kernel that reads invalid memory: the worker's CUDA context is lost, and only that worker restarts."""

import os
import sys

import cloudpickle
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.core.errors import RunError

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]


def touch_what_it_may_not(path):
    """Fail once, in the first process that calls this; always if there is no path."""
    import cupy

    if path:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return int(cupy.arange(10).sum())
    kernel = cupy.RawKernel('extern "C" __global__ void bad(long long at) { *(volatile int*)at = 1; }', "bad")
    kernel((1,), (1,), (0x10,))
    return int(cupy.arange(10).sum())


def exhaust_memory():
    import cupy

    return cupy.empty(1 << 50, cupy.uint8)


@pytest.fixture
def executor():
    made = start_cluster("gpu", 1)
    yield made
    made.close()


def test_an_illegal_access(tmp_path, capfd):
    executor = start_cluster("gpu", 1)  # not a fixture: fixtures start before stderr is captured
    try:
        assert executor.gather([executor.call(touch_what_it_may_not, str(tmp_path / "once"), label="chunk 3")]) == [45]
    finally:
        executor.close()
    err = capfd.readouterr().err
    assert "lost its GPU context (" in err and "in chunk 3; restarting" in err


def test_a_task_that_always_fails_is_named(executor):
    with pytest.raises(RunError, match=r"^chunk 3 killed every worker .* \(4 times\); the GPU failed: .*llegal"):
        executor.wait([executor.call(touch_what_it_may_not, "", label="chunk 3")])


def test_a_full_device_ends_no_worker(executor):
    pids = executor.client.run(os.getpid)
    with pytest.raises(MemoryError):
        executor.wait([executor.call(exhaust_memory)])
    assert executor.client.run(os.getpid) == pids
