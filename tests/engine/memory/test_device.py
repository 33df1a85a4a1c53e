"""The device of arrays, stopwatches, and errors that mean out of memory."""

import os
import sys
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import mgpu_ngram.engine.memory.copies as copies_module
import mgpu_ngram.engine.memory.host_memory_pool as pool_module
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.memory.copies import each_slice, to_device_together, to_host_fast, to_host_together
from mgpu_ngram.engine.memory.device import check_gpu, free_bytes, synchronize, to_device
from mgpu_ngram.engine.memory.host_memory_pool import has_locked_pages
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host, out_of_memory
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.kernels.dispatch import on_gpu, to_host


def test_to_device(device):
    array = np.arange(5)
    moved = to_device(array, device)
    assert on_gpu(moved) == (device == "gpu")
    assert to_host(moved).tolist() == [0, 1, 2, 3, 4]
    assert device == "gpu" or moved is array


def test_a_small_copy_to_the_host(to_device):
    for array in (np.arange(6), np.arange(6).reshape(2, 3), np.empty((2, 0))):
        found = to_host_fast(to_device(array))
        assert isinstance(found, np.ndarray) and found.tolist() == array.tolist()
    host = np.arange(5)
    assert to_host_fast(host) is host


@pytest.mark.gpu
@pytest.mark.parametrize("slice_bytes", [8, 1000, 4096])
def test_a_large_copy_to_the_host(slice_bytes, copy_slices):
    """Several threads copy slices of whole arrays, and of views without the first and last columns."""
    import cupy

    copy_slices(slice_bytes)
    for array in (np.arange(5001), np.arange(5001, dtype=np.uint64).reshape(3, 1667)):
        there = cupy.asarray(array)
        for view, expected in [(there, array), (there[..., 7:-9], array[..., 7:-9]), (there[..., :1], array[..., :1])]:
            found = to_host_fast(view)
            assert found.dtype == array.dtype and found.shape == expected.shape and (found == expected).all()


@pytest.mark.gpu
@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize("slice_bytes", [64, 1000, 1 << 20])
def test_many_arrays_copied_together(slice_bytes, is_locked, copy_slices, monkeypatch):
    """Rows, views of rows and empty arrays are copied, with and without locked memory; arrays on the GPU stay
    unchanged.
    """
    import cupy

    monkeypatch.setattr(copies_module, "locked_memory", pool_module.LockedMemory())
    if not is_locked:
        monkeypatch.setattr(pool_module, "lock_pages", lambda array: None)
    copy_slices(slice_bytes)
    base = np.random.default_rng(0).integers(0, 1 << 63, (3, 400), np.uint64)
    there = cupy.arange(7)
    arrays = [base[:2, 5:305], base[0, 7:99].astype(np.int64), there, base[:, :0], base[:1, 3:4].astype(np.uint8), base]
    found = to_device_together(arrays, "gpu")
    assert found[2] is there
    for array, copy in zip(arrays, found, strict=True):
        assert on_gpu(copy) and copy.dtype == array.dtype and copy.shape == array.shape
        assert (to_host(copy) == to_host(array)).all()
    assert to_device_together(arrays[:1], "cpu")[0] is arrays[0]
    gpu_arrays = [cupy.asarray(base)[:2, 5:305], there, base, cupy.asarray(base)[:, :0], cupy.asarray(base[0, :3])]
    back = to_host_together(gpu_arrays)
    assert back[2] is base
    for array, copy in zip(gpu_arrays, back, strict=True):
        assert isinstance(copy, np.ndarray) and copy.dtype == array.dtype and (copy == to_host(array)).all()
        assert copy.shape == array.shape and copy.flags.writeable
        is_large = sum(a.nbytes for a in gpu_arrays if on_gpu(a)) >= slice_bytes
        assert not on_gpu(array) or not copy.nbytes or has_locked_pages(copy) == (is_locked and is_large)
    again = to_device_together(back, "gpu")
    assert all((to_host(copy) == array).all() for copy, array in zip(again, back, strict=True))


@pytest.mark.parametrize("slice_bytes", [2, 1000, 1 << 20])
def test_slices_cover_the_whole_array(slice_bytes, to_device, copy_slices):
    """Each byte arrives once, at its place, from any thread."""
    copy_slices(slice_bytes)
    whole = np.random.default_rng(0).integers(0, 1 << 16, (7, 11, 13), np.uint16)
    for array in (whole, whole[:1], whole[:0]):
        found, times = np.zeros(array.nbytes, np.uint8), np.zeros(array.nbytes, int)

        def take(first, data, found=found, times=times):
            assert isinstance(data, np.ndarray) and 0 < len(data) <= slice_bytes
            found[first : first + len(data)] = data
            times[first : first + len(data)] += 1

        each_slice(to_device(array), take, 3)
        assert found.tobytes() == array.tobytes() and (times == 1).all()


def test_a_slice_that_fails(to_device):
    def fail(first, data):
        raise RunError("no room")

    with pytest.raises(RunError, match="^no room$"):
        each_slice(to_device(np.arange(5)), fail, 2)


def test_free_bytes_is_less_than_the_total(device):
    assert 0 < free_bytes(device) < 1 << 50
    if device == "cpu":
        assert free_bytes(device) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("limit", "expected"), [(0, 1050), (1000, 700), (2000, 1050), (200, 0)])
def test_free_bytes_of_a_pool_with_a_limit(limit, expected, monkeypatch):
    """1,000 bytes are free outside the pool, which uses 300 and caches 50."""
    pool = SimpleNamespace(free_bytes=lambda: 50, used_bytes=lambda: 300, get_limit=lambda: limit)
    runtime = SimpleNamespace(memGetInfo=lambda: (1000, 5000))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert free_bytes("gpu") == expected


def test_arrays_of_two_gpus_are_refused():
    there, here = (SimpleNamespace(__cuda_array_interface__={}, data=SimpleNamespace(device_id=i)) for i in (1, 0))
    with pytest.raises(InputError, match="the array of states is on GPU 1 but must be on GPU 0; move it there"):
        check_gpu("states", there, beside=here)
    check_gpu("states", here, beside=here)
    check_gpu("states", np.zeros(1), beside=here)


def test_stopwatch_charges_each_second_once(device, monkeypatch):
    times = iter([10.0, 12.0, 15.0, 15.5])
    monkeypatch.setattr("mgpu_ngram.engine.memory.stopwatch.time.perf_counter", lambda: next(times))
    watch = Stopwatch(device, _last=next(times))
    for stage in ("read", "count", "read"):
        watch.lap(stage)
    assert watch.seconds == {"read": 2.5, "count": 3.0}
    synchronize(device)


def test_waiting_time_is_divided_like_busy_time(monkeypatch):
    times = iter([10.0, 16.0, 18.0])
    monkeypatch.setattr("mgpu_ngram.engine.memory.stopwatch.time.perf_counter", lambda: next(times))
    watch = Stopwatch("cpu", {"read": 1.0}, _last=next(times))
    watch.lap_shared({"read": 20.0, "copy": 10.0})
    assert watch.seconds == {"read": 5.0, "copy": 2.0}
    watch.lap("count")
    assert watch.seconds == {"read": 5.0, "copy": 2.0, "count": 2.0}


def test_add_seconds():
    assert add_seconds() == {}
    assert add_seconds({"read": 1.0}, {}, {"read": 2.0, "count": 4.0}) == {"read": 3.0, "count": 4.0}


def test_out_of_memory_errors_are_recognised():
    class OutOfMemoryError(MemoryError):
        """Named like CuPy's error."""

    assert out_of_memory(MemoryError()) and out_of_memory(OutOfMemoryError())
    assert out_of_memory(np._core._exceptions._ArrayMemoryError((1 << 60,), np.dtype(np.uint8)))
    assert not out_of_memory(ValueError("memory")) and not out_of_memory(RunError("out of memory"))


@pytest.mark.parametrize(
    ("device", "makes_room", "failures", "tried"),
    [
        ("gpu", False, 0, ["gpu"]),
        ("gpu", False, 1, ["gpu", "cpu"]),
        ("gpu", True, 0, ["gpu"]),
        ("gpu", True, 1, ["gpu", "room", "gpu"]),
        ("gpu", True, 2, ["gpu", "room", "gpu", "cpu"]),
        ("cpu", False, 0, ["cpu"]),
    ],
)
def test_attempts_on_the_device_and_on_the_host(device, makes_room, failures, tried):
    found, errors = [], [MemoryError() for _ in range(failures)]

    def attempt(device):
        found.append(device)
        if errors:
            raise errors.pop()
        return f"made on {device}"

    make_room = (lambda: found.append("room")) if makes_room else None
    assert on_device_or_host(attempt, device, make_room) == f"made on {tried[-1]}"
    assert found == tried


def test_errors_that_are_not_retried():
    tried = []

    def attempt(error, device):
        tried.append(device)
        raise error

    with pytest.raises(ZeroDivisionError):
        on_device_or_host(partial(attempt, ZeroDivisionError()), "gpu", tried.clear)
    with pytest.raises(MemoryError):
        on_device_or_host(partial(attempt, MemoryError()), "cpu", tried.clear)
    assert tried == ["gpu", "cpu"]
    with pytest.raises(MemoryError):
        on_device_or_host(partial(attempt, MemoryError()), "gpu")
    assert tried[2:] == ["gpu", "cpu"]


def test_memory_of_a_failed_attempt_is_freed_before_the_next():
    made = []

    def attempt(device):
        assert [there() for there in made] == [None] * len(made)
        array = np.ones(9)
        made.append(weakref.ref(array))
        if len(made) < 3:
            raise MemoryError
        return array

    assert on_device_or_host(attempt, "gpu", lambda: None).sum() == 9 and len(made) == 3


def test_memory_guard_gives_the_numbers_and_the_way_out(monkeypatch):
    monkeypatch.setattr("mgpu_ngram.engine.memory.out_of_memory.free_bytes", lambda device: 12_345)
    with pytest.raises(RunError) as error, memory_guard("counting n-grams", "cpu"):
        raise MemoryError("cannot allocate\n9 GiB")
    assert str(error.value) == (
        "out of host memory while counting n-grams (cannot allocate 9 GiB; 12,345 bytes are free); "
        "use smaller chunks (chunk_bytes), a lower order or fewer workers"
    )


def test_memory_guard_passes_other_errors():
    with memory_guard("counting n-grams", "cpu"):
        done = True
    with pytest.raises(ZeroDivisionError), memory_guard("counting n-grams", "cpu"):
        raise ZeroDivisionError
    assert done


@pytest.mark.gpu
def test_out_of_memory_of_a_gpu():
    import cupy

    with pytest.raises(RunError, match="out of device memory while counting"), memory_guard("counting", "gpu"):
        cupy.empty(1 << 50, np.uint8)
