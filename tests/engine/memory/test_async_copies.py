"""Parts of a device's array in host memory, through few buffers. A device without CUDA copies when it is waited for."""

import ctypes
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mgpu_ngram.engine.memory import async_copies
from mgpu_ngram.engine.memory.async_copies import SliceCopies
from tests.support.slowness import scaled

VALUES = np.random.default_rng(7).integers(0, 256, 5_000, np.uint8)
SOME = [(10, 500), (500, 500), (4_000, 5_000)]


class LateStream:
    """A stream whose copies are made when a thread waits for them."""

    def __init__(self, non_blocking):
        assert non_blocking  # or kernels would delay the copies
        self.ptr = self.copies = []

    def synchronize(self):
        while self.copies:
            ctypes.memmove(*self.copies.pop(0))


class DeviceArray:
    """An array of bytes that `on_gpu` takes for one of a GPU."""

    __cuda_array_interface__ = ()

    def __init__(self, values):
        self.values, self.data = values, SimpleNamespace(ptr=values.ctypes.data)
        self.device = SimpleNamespace(use=lambda: None)


@pytest.fixture(params=["late", pytest.param("gpu", marks=pytest.mark.gpu)])
def array(request, monkeypatch):
    """Return VALUES on a device."""
    if request.param == "gpu":
        import cupy

        array = cupy.asarray(VALUES)
        cupy.cuda.get_current_stream().synchronize()
        return array

    def copy(target, source, nbytes, kind, stream):
        stream.append((target, source, nbytes))

    cuda = SimpleNamespace(Stream=LateStream, runtime=SimpleNamespace(memcpyAsync=copy, memcpyDeviceToHost=2))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(async_copies, "pinned_buffer", lambda nbytes: np.full(nbytes, 255, np.uint8))
    return DeviceArray(VALUES)


def listed(parts):
    return [bytes(part) for part in parts]


def expected(ranges):
    return [VALUES[begin:end].tobytes() for begin, end in ranges]


def test_parts_stay_until_their_block_ends(array):
    copies = SliceCopies(2)
    for ranges in SOME, [(1, 2)], [(0, 5_000)], []:
        with copies.copied(array, ranges) as parts, copies.copied(array, [(7, 3_000)]) as others:
            assert listed(parts) == expected(ranges) and listed(others) == expected([(7, 3_000)])


def test_buffers_grow_and_serve_again(array, monkeypatch):
    sizes, pinned = [], async_copies.pinned_buffer
    monkeypatch.setattr(async_copies, "pinned_buffer", lambda nbytes: (sizes.append(nbytes), pinned(nbytes))[1])
    copies = SliceCopies(1)
    for size in 40, 41, 39, 48, 49:
        with copies.copied(array, [(3, 3 + size)]) as parts:
            assert listed(parts) == expected([(3, 3 + size)])
    assert sizes == [40, 48, 56]  # rounded up to quarters of powers of two


def test_parts_of_an_array_in_host_memory():
    with SliceCopies(0).copied(VALUES, SOME) as parts:
        assert listed(parts) == expected(SOME)


def test_a_thread_waits_for_a_buffer(array):
    copies, found, waits = SliceCopies(1), [], threading.Event()

    def copy():
        waits.set()
        with copies.copied(array, SOME) as parts:
            found.append(listed(parts))

    thread = threading.Thread(target=copy, daemon=True)
    with copies.copied(array, [(7, 3_000)]) as parts:
        thread.start()
        assert waits.wait(scaled(10))
        thread.join(0.05)
        assert not found and listed(parts) == expected([(7, 3_000)])
    thread.join(scaled(10))
    assert found == [expected(SOME)]


def test_errors_give_the_buffer_back(array, monkeypatch):
    copies = SliceCopies(1)
    with pytest.raises(KeyError), copies.copied(array, [(0, 8)]):
        raise KeyError

    def full(nbytes):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(async_copies, "pinned_buffer", full)
        with copies.copied(array, SOME):
            raise AssertionError
    assert copies._buffers.qsize() == 1
    with copies.copied(array, SOME) as parts:
        assert listed(parts) == expected(SOME)
