"""Host memory with locked pages, and its use for later arrays."""

import ctypes
import gc
import threading

import numpy as np
import pytest

import mgpu_ngram.engine.memory.host_memory_pool as pool_module
from mgpu_ngram.engine.memory.copies import to_device_together
from mgpu_ngram.engine.memory.host_memory_pool import LockedMemory, has_locked_pages, lock_pages
from mgpu_ngram.kernels.dispatch import on_gpu, to_host


@pytest.fixture
def locked(monkeypatch):
    """Return the sizes of slabs that are made; up to 1 MB count as locked. Arrays are not rounded up, and no slab is
    made meanwhile.
    """
    sizes = []
    monkeypatch.setattr(pool_module, "lock_pages", lambda memory: sizes.append(memory.nbytes))
    monkeypatch.setattr(pool_module, "has_locked_pages", lambda memory: memory.nbytes <= 1_000_000)
    monkeypatch.setattr(pool_module, "ALIGNMENT_BYTES", 1)
    monkeypatch.setattr(pool_module, "MIN_SLAB_BYTES", 1)
    monkeypatch.setattr(pool_module, "current_gpu", lambda: 0)
    monkeypatch.setattr(LockedMemory, "_add_another", lambda self, gpu: None)
    return sizes


def test_memory_is_used_again_while_an_array_lives(locked):
    memory = LockedMemory()
    first, second = memory.array(1000), memory.array(3000)
    first[:], second[:] = 1, 2
    assert len(first) == 1000 and len(second) == 3000 and locked == [1000, 3000]
    view = first[100:200].view(np.uint32)
    del first
    gc.collect()
    assert memory.unused_bytes() == 0 and (view == 0x01010101).all(), "a view keeps the whole array in use"
    del view
    gc.collect()
    assert memory.unused_bytes() == 1000
    third = memory.array(900)
    assert len(third) == 900 and memory.unused_bytes() == 100 and len(locked) == 2 and (second == 2).all()
    del second, third
    gc.collect()
    assert memory.unused_bytes() == 0, "all is freed when no array is left"
    memory.array(900)
    assert locked == [1000, 3000, 900]


def test_slabs_grow_with_what_is_in_use(locked, monkeypatch):
    monkeypatch.setattr(pool_module, "MAX_SLAB_BYTES", 1500)
    memory = LockedMemory()
    kept = [memory.array(100) for _ in range(300)]
    assert locked[:6] == [100, 100, 100, 100, 100, 125] and max(locked) == 1500 == locked[-2]
    assert sum(locked) - memory.unused_bytes() == 300 * 100 == sum(map(len, kept))
    del kept[:-1]
    gc.collect()
    memory.free_unused()
    assert memory.unused_bytes() == locked[-1] - 100, "the slab of the last array stays"


def test_the_next_slab_is_made_meanwhile(locked, monkeypatch):
    monkeypatch.setattr(LockedMemory, "_add_another", lambda self, gpu: self._add_slab(0))
    monkeypatch.setattr(pool_module, "MIN_SLAB_BYTES", 250)
    memory = LockedMemory()

    def in_the_end():
        memory._thread.submit(int).result()  # the thread has one task at a time
        return locked

    first = memory.array(240)
    assert in_the_end() == [250, 250] and memory.unused_bytes() == 260
    second = memory.array(250)
    assert in_the_end() == [250, 250], "the first slab that came is used, and no other is needed yet"
    third = memory.array(250)
    assert in_the_end() == [250, 250, 250, 250], "one is made at once, and one meanwhile"
    fourth = memory.array(2000)
    assert in_the_end() == [250, 250, 250, 250, 2000], "a slab of usual size would not do for such arrays"
    assert len(first) + len(second) + len(third) + len(fourth) == 2740


def test_a_slab_that_comes_when_no_array_is_left_is_not_kept(locked, monkeypatch):
    monkeypatch.setattr(LockedMemory, "_add_another", lambda self, gpu: self._add_slab(0))
    begun, goes_on = threading.Event(), threading.Event()

    def lock(pages):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert goes_on.wait(30)

    monkeypatch.setattr(pool_module, "lock_pages", lock)
    monkeypatch.setattr(pool_module, "MIN_SLAB_BYTES", 250)
    memory = LockedMemory()
    array = memory.array(100)
    assert begun.wait(30)
    del array
    gc.collect()
    goes_on.set()
    memory._thread.submit(int).result()
    assert memory._slabs == []


def test_arrays_keep_their_bytes(locked):
    """Arrays of random sizes come and go; each keeps what was written to it, and gaps are joined."""
    living, memory, rng = [], LockedMemory(), np.random.default_rng(0)
    keeper = memory.array(10_000)
    for step in range(2000):
        if living and rng.random() < 0.5:
            del living[int(rng.integers(len(living)))]
        else:
            array = memory.array(int(rng.integers(1, 500)))
            array[:] = step % 251
            living.append((array, step % 251))
        assert all((array == value).all() for array, value in living[:: max(1, len(living) // 10)])
    living.clear()
    del array
    gc.collect()
    assert memory.unused_bytes() == sum(locked) - 10_000, "all bytes but those of the first array are unused"
    largest = max(locked[1:])
    before = len(locked)
    assert len(memory.array(largest)) == largest and len(locked) == before and len(keeper) == 10_000


def test_an_array_that_ends_while_memory_is_searched(locked):
    """Garbage is collected at any allocation, also in the middle of a search: its memory is given back after that."""
    garbage = []

    class Gaps(list):
        def __iter__(self):
            for gap in list(super().__iter__()):
                garbage.clear()
                yield gap

    memory = LockedMemory()
    keeper, whole = memory.array(1), memory.array(1000)
    del whole
    first = memory.array(100)
    garbage.append(memory.array(50))
    memory._slabs[1].gaps = Gaps(memory._slabs[1].gaps)
    second = memory.array(200)
    assert not garbage and memory.unused_bytes() == 1000 - 100 - 200 and len(locked) == 2
    first[:], second[:] = 1, 2
    third = memory.array(50)
    third[:] = 3
    assert (first == 1).all() and (second == 2).all() and len(keeper) == 1


def test_memory_that_cannot_be_locked(locked):
    """CUDA is not asked again for as much before all is freed; what is locked is still used."""
    memory = LockedMemory()
    assert memory.array(1_000_002) is None and memory.array(1_000_003) is None
    kept, freed = memory.array(10), memory.array(1000)
    assert memory.array(2_000_000) is None
    assert locked == [1_000_002, 10, 1000]
    del freed
    gc.collect()
    again = memory.array(1000)
    assert len(again) == 1000 and len(locked) == 3
    del kept, again
    gc.collect()
    assert memory.array(1_000_002) is None and len(memory.array(5)) == 5 and len(locked) == 5
    assert memory.array(1 << 60) is None, "there is no such memory"


@pytest.mark.gpu
def test_arrays_with_locked_pages():
    """A view locks the whole array, once, and while the array lives; views are read as any array."""
    whole = np.random.default_rng(0).integers(0, 1 << 63, (3, 1 << 20), np.uint64)
    views = [whole[1], whole[0, :5000], whole[2, 7:]]
    assert not any(map(has_locked_pages, views))
    for view in views[:2]:
        lock_pages(view)
    assert all(map(has_locked_pages, views))
    found = to_device_together(views, "gpu")
    assert all(on_gpu(copy) and (to_host(copy) == view).all() for copy, view in zip(found, views, strict=True))
    address = whole.ctypes.data
    del whole, views, view
    assert not has_locked_pages(np.ndarray(8, np.uint8, (ctypes.c_uint8 * 8).from_address(address)))


@pytest.mark.gpu
def test_locked_memory_of_a_gpu():
    """New memory is locked, used again with its lock, and unlocked when it is freed."""
    memory = LockedMemory()
    kept, array = memory.array(1 << 20), memory.array(1 << 24)
    address = array.ctypes.data
    del array
    gc.collect()
    again = memory.array((1 << 24) - 5000)
    assert again.ctypes.data == address and has_locked_pages(again) and has_locked_pages(again[77:])
    memory._thread.submit(int).result()  # makes no other slab any more
    del kept, again
    gc.collect()
    assert not has_locked_pages(np.ndarray(8, np.uint8, (ctypes.c_uint8 * 8).from_address(address)))
