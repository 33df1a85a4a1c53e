"""Budgets, worked by hand and with a fake memory pool."""

import gc
import subprocess
import sys
import threading
import weakref
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from mgpu_ngram.engine.memory import budget as memory_module
from mgpu_ngram.engine.memory.budget import (
    Budget,
    device_alone,
    device_limited,
    forget_peak,
    hold,
    peak_device_bytes,
    peak_host_bytes,
)
from tests.support.slowness import scaled


@dataclass(eq=False)
class Result:
    """An object that holds host memory."""

    host_bytes: int


class Pool:
    """A fake of CuPy's pool, with the methods that a budget calls."""

    def __init__(self, used_bytes):
        self._used_bytes, self.limit, self.freed = used_bytes, 0, 0

    def used_bytes(self):
        return self._used_bytes

    def total_bytes(self):
        return self._used_bytes + 5

    def free_all_blocks(self):
        self.freed += 1

    def get_limit(self):
        return self.limit

    def set_limit(self, size):
        self.limit = size


@pytest.fixture(autouse=True)
def shares(monkeypatch):
    """Set shares that are easy to compute by hand, and ignore results that other tests hold."""
    monkeypatch.setattr(memory_module, "KEPT_SHARE", {"gpu": 0.4, "cpu": 0.25})
    monkeypatch.setattr(memory_module, "KEPT_BESIDE_SHARE", 0.25)
    monkeypatch.setattr(memory_module, "_held", weakref.WeakSet())


@pytest.fixture
def gpu(monkeypatch):
    """Return gpu(used_bytes, free_bytes), which sets up a fake GPU and returns its pool."""

    def make(used_bytes, free_bytes=1 << 40):
        pool = Pool(used_bytes)
        monkeypatch.setattr(memory_module, "_pool", lambda: pool)
        monkeypatch.setattr(memory_module, "_peak_noted", nullcontext)
        monkeypatch.setattr(memory_module, "free_bytes", lambda device: free_bytes)
        return pool

    return make


def test_working_memory_by_hand(gpu):
    assert Budget("cpu", 0, 1000).working_bytes() == 750
    assert Budget("cpu", 0, 1000, 3).working_bytes() == 250
    pool = gpu(used_bytes=100, free_bytes=600)
    assert Budget("gpu", 500, 1000).working_bytes() == 400  # held results reduce the budget
    assert Budget("gpu", 5000, 1000).working_bytes() == 600  # other processes use the GPU, too
    assert Budget("gpu", 500, 1000, 3).host_working_bytes() == 250
    assert pool.limit == 0  # reading the budget does not set the limit


def test_arrays_older_than_the_run_take_nothing_of_its_budget(gpu):
    """100 of 140 bytes in use are older."""
    pool = gpu(used_bytes=140)
    budget = Budget("gpu", 500, 1000, before_bytes=100)
    assert budget.working_bytes() == 460 and budget.place(9) == "device"
    assert Budget("gpu", 60, 1000, before_bytes=100).place(9) == "host"  # 40 of at most 36
    with device_limited(budget):
        assert pool.limit == 600
    with device_limited(Budget("gpu", 0, 1000, before_bytes=100)):
        assert pool.limit == 0  # still no limit
    assert pool.limit == 0


def test_a_scope_limits_the_pool_and_restores_the_old_limit(gpu):
    pool = gpu(used_bytes=100)
    pool.limit = 9000  # the user's own limit
    with device_limited(Budget("gpu", 700, 0)):
        assert pool.limit == 700
        # Nested scopes: the lower limit holds.
        with pytest.raises(ZeroDivisionError), device_limited(Budget("gpu", 500, 0)):
            assert pool.limit == 500
            raise ZeroDivisionError
        assert pool.limit == 700
        with device_limited(Budget("gpu", 800, 0)), device_limited(Budget("gpu", 700, 0)):
            assert pool.limit == 700
        assert pool.limit == 700 and pool.freed == 0
    assert pool.limit == 9000
    with device_limited(Budget("cpu", 0, 700)):
        assert pool.limit == 9000
    with device_limited(Budget("gpu", 0, 700)):  # 0 is no limit, as in CuPy
        assert pool.limit == 9000


def test_cached_blocks_beyond_a_limit_are_freed_once(gpu):
    """The pool holds 105 bytes, five of them unused."""
    pool = gpu(used_bytes=100)
    for limit, freed in [(105, 0), (104, 1), (104, 2)]:
        with device_limited(Budget("gpu", limit, 0)):
            assert pool.freed == freed
            pool.set_limit, kept = None, pool.set_limit  # not called again for the same limit
            with device_limited(Budget("gpu", limit, 0)):
                assert pool.freed == freed
            pool.set_limit = kept
        assert pool.limit == 0 and pool.freed == freed


def test_overlapping_scopes_of_threads(gpu):
    """The limit lasts until the last scope ends, in any order."""
    pool, seen = gpu(0), []
    entered, leave = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    def work(i):
        with device_limited(Budget("gpu", [600, 400][i], 0)):
            entered[i].set()
            leave[i].wait(scaled(10))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread, event in zip(threads, entered, strict=True):
        thread.start()
        assert event.wait(scaled(10))
        seen.append(pool.limit)
    for thread, event in zip(threads, leave, strict=True):  # the first scope to begin ends first
        event.set()
        thread.join()
        seen.append(pool.limit)
    assert seen == [600, 400, 400, 0]


def test_the_hook_of_a_thread_is_entered_once(gpu, monkeypatch):
    """CuPy refuses a second hook of the same name in a thread."""
    real, entered = memory_module._peak_noted, []
    pool = gpu(0)

    class Hook:
        def __enter__(self):
            assert entered.count("in") == entered.count("out")
            entered.append("in")
            return self

        def __exit__(self, *error):
            entered.append("out")

    monkeypatch.setattr(memory_module, "_peak_noted", real)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(MemoryHook=Hook)))
    forget_peak("gpu")
    with device_limited(Budget("gpu", 9, 0)):
        with device_alone(Budget("gpu", 9, 0)):
            assert entered == ["in"]
        assert entered == ["in"]
    assert entered == ["in", "out"] and pool.limit == 0
    with device_limited(Budget("gpu", 9, 0)):
        assert entered == ["in", "out", "in"]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget("cpu", 0, 8000), 3000),  # half of three quarters
        (Budget("cpu", 0, 8000, 4), 750),
        (Budget("gpu", 2000, 8000), 600),  # half of 0.6
        (Budget("gpu", 16_000, 8000), 3000),  # copies pass through the host
        (Budget("gpu", 16_000, 8000, 2), 1500),
    ],
)
def test_block_memory_by_hand(budget, expected):
    assert budget.block_bytes() == expected


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_results_go_to_the_host_until_a_quarter_of_it_is_full(device, gpu):
    gpu(used_bytes=41)
    budget = Budget(device, 100, 1000)
    assert budget.place(250) == "host" and budget.place(251) == "disk"
    first, second = hold(Result(100)), hold(Result(50))
    assert budget.place(100) == "host" and budget.place(101) == "disk"
    assert budget.fits_host(100) and not budget.fits_host(101)
    del first
    gc.collect()
    assert budget.place(200) == "host" and budget.place(201) == "disk"
    assert second.host_bytes == 50


def test_results_stay_on_the_device_until_its_share_is_full(gpu):
    for used_bytes, place in [(0, "device"), (40, "device"), (41, "host")]:
        gpu(used_bytes)
        assert Budget("gpu", 100, 1000).place(25) == place
    assert Budget("gpu", 100, 0).place(25) == "disk"


def test_a_device_keeps_few_results_if_they_exceed_it(gpu):
    """A tenth instead of 0.4, which leaves more working memory."""
    for used_bytes, place in [(0, "device"), (10, "device"), (11, "host")]:
        gpu(used_bytes)
        assert Budget("gpu", 100, 1000, spills=True).place(25) == place
    budget = Budget("gpu", 200_000, 1 << 40, spills=True)
    assert budget.task_bytes() == 180_000
    assert budget.block_bytes() == 90_000
    assert budget.part_bytes(50_000) == (200_000 - 90_000 - 20_000) // 2
    assert Budget("cpu", 0, 8000, spills=True).block_bytes() == Budget("cpu", 0, 8000).block_bytes()


def test_tracking_is_by_identity():
    """Two equal results count as two; one result tracked twice counts once and is returned."""
    budget = Budget("cpu", 0, 400)
    a, b = Result(40), Result(40)
    assert hold(a) is a and hold(a) is a
    assert budget.fits_host(60) and not budget.fits_host(61)
    hold(b)
    assert budget.fits_host(20) and not budget.fits_host(21)


def test_memory_of_a_freed_result_is_free_again():
    budget, result = Budget("cpu", 0, 400), hold(Result(100))
    assert not budget.fits_host(1)
    result.host_bytes = 30
    assert budget.fits_host(70) and not budget.fits_host(71)


def test_threads_track_and_ask_concurrently():
    """The tasks of a process are threads: one may track its result while another asks for memory."""
    budget, errors, stop = Budget("cpu", 0, 1 << 30), [], threading.Event()
    kept = [hold(Result(1)) for _ in range(2000)]

    def work(step):
        try:
            while not stop.is_set():
                step()
        except RuntimeError as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=work, args=(step,))
            for step in (lambda: [hold(Result(1)) for _ in range(9)], lambda: budget.place(1))
        ]
        for thread in threads:
            thread.start()
        threads[1].join(1.0)
        stop.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors and len(kept) == 2000


@pytest.mark.parametrize(("device", "at_once"), [("gpu", 1), ("cpu", 2)])
def test_tasks_of_a_gpu_take_turns(device, at_once, gpu):
    gpu(0)
    working, most, together = [], [], threading.Barrier(2)

    def work():
        with device_alone(Budget(device, 1, 1)):
            working.append(1)
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2 if device == "gpu" else scaled(10))
            most.append(len(working))
            working.pop()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == at_once


@pytest.mark.gpu
def test_peak_of_the_device():
    import cupy

    pool = cupy.get_default_memory_pool()
    forget_peak("gpu")
    with device_limited(Budget("gpu", pool.used_bytes() + (1 << 30), 0)):
        before = pool.used_bytes()
        first = cupy.empty(48 << 20, "u1")
        del first
        second = cupy.empty(16 << 20, "u1")
        del second
    peak = peak_device_bytes("gpu")
    assert before + (48 << 20) <= peak < before + (64 << 20) and peak_device_bytes("cpu") == 0
    third = cupy.empty(96 << 20, "u1")  # outside the scope
    del third
    assert peak_device_bytes("gpu") == peak
    forget_peak("gpu")
    assert peak_device_bytes("gpu") < peak


@pytest.mark.gpu
def test_a_real_gpu():
    """The limit determines free memory, and the pool refuses to exceed it; after the scope the pool is as before."""
    import cupy

    pool = cupy.get_default_memory_pool()
    gc.collect()
    pool.free_all_blocks()
    used_bytes, limit = pool.used_bytes(), pool.get_limit()
    budget = Budget("gpu", used_bytes + (64 << 20), 1 << 30)
    with device_limited(budget):
        assert budget.working_bytes() == 64 << 20
        some = cupy.empty(24 << 20, "u1")
        assert budget.working_bytes() == 40 << 20
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(41 << 20, "u1")
        del some
        assert budget.working_bytes() == 64 << 20
    assert pool.get_limit() == limit
    large = cupy.empty(65 << 20, "u1")
    assert large.nbytes == 65 << 20


def test_the_peak_of_the_host_is_this_processs_own():
    """The peak excludes the parent process and includes arrays that are freed already."""
    large = bytearray(b"a") * (600 << 20)
    assert peak_host_bytes() > len(large)
    program = (
        "import numpy, mgpu_ngram.engine.memory.budget as m; numpy.ones(200 << 20, 'u1'); print(m.peak_host_bytes())"
    )
    found = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert 200 << 20 < found < len(large)
