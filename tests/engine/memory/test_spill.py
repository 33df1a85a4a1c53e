"""Where intermediate results are kept, worked by hand: on a fake GPU, in host memory, in a file."""

import errno
import gc
import os
import pickle
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.storage.shared_maps import file_place_of
from mgpu_ngram.engine.memory import budget as budget_module
from mgpu_ngram.engine.memory import spill as spill_module
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.spill import held, leave_device, new_arrays, result_to_device, spill, to_file


class OnGpu(np.ndarray):
    """An array that counts as a GPU array until it is copied."""


@dataclass
class Result:
    """Two arrays and a number."""

    first: np.ndarray
    second: np.ndarray
    more: int = 7

    def arrays(self):
        return {"first": self.first, "second": self.second}

    def with_arrays(self, named):
        return replace(self, **named)

    def plain(self):
        return self.first.tolist(), self.second.tolist(), self.more


def result_of(*on_gpu):
    """Return a result of 40 bytes; `on_gpu` says for each array whether it is on the GPU."""
    arrays = np.arange(3), np.arange(4, dtype=np.int32)
    return Result(*(a.view(OnGpu) if is_on_gpu else a for a, is_on_gpu in zip(arrays, on_gpu, strict=True)))


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """Return a function that sets the used bytes of the fake GPU; results may take a quarter of host memory."""
    used = [0]
    monkeypatch.setattr(spill_module, "on_gpu", lambda array: isinstance(array, OnGpu))
    copied = lambda arrays: [np.array(a, copy=isinstance(a, OnGpu)) for a in arrays]  # noqa: E731
    monkeypatch.setattr(spill_module, "to_host_together", copied)
    monkeypatch.setattr(budget_module, "_held", weakref.WeakSet())
    monkeypatch.setattr(budget_module, "KEPT_SHARE", {"gpu": 0.4, "cpu": 0.25})
    monkeypatch.setattr(budget_module, "KEPT_BESIDE_SHARE", 0.25)
    pool = type("Pool", (), {"used_bytes": lambda self: used[0]})()
    monkeypatch.setattr(budget_module, "_pool", lambda: pool)
    return lambda nbytes: used.__setitem__(0, nbytes)


def test_a_result_stays_on_a_gpu_with_room(gpu, tmp_path):
    there = result_of(True, True)
    gpu(40)  # 0.4 of 100
    assert spill(there, Budget("gpu", 100, 0), str(tmp_path)) is there
    gpu(41)
    moved = spill(there, Budget("gpu", 100, 4 * 40), str(tmp_path))
    assert type(moved.first) is type(moved.second) is np.ndarray and moved.plain() == there.plain()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("on_gpu", [(False, False), (True, False)])
def test_a_result_partly_on_the_host_leaves_the_device(on_gpu, device, tmp_path):
    kept = spill(result_of(*on_gpu), Budget(device, 100, 4 * 40), str(tmp_path))
    assert type(kept.first) is type(kept.second) is np.ndarray and kept.plain() == result_of(*on_gpu).plain()


def test_host_memory_counts_spilled_results_while_they_live(tmp_path):
    budget = Budget("cpu", 0, 4 * 80)
    first, second = (spill(result_of(False, False), budget, str(tmp_path)) for _ in range(2))
    assert not budget.fits_host(1) and list(tmp_path.iterdir()) == []
    third = spill(result_of(False, False), budget, str(tmp_path))
    assert isinstance(third.first.base, np.memmap) or not third.first.flags.owndata
    assert list(tmp_path.iterdir()) == [] and third.plain() == first.plain() == result_of(False, False).plain()
    del first
    gc.collect()
    assert budget.fits_host(40) and not budget.fits_host(41) and second.more == 7


def test_a_result_that_has_left_the_device_stays(tmp_path):
    """It is neither counted nor written again."""
    budget = Budget("cpu", 0, 4 * 80)
    first = leave_device(result_of(False, False), budget, str(tmp_path))
    again = leave_device(first, budget, str(tmp_path))
    assert again is first and budget.fits_host(40) and not budget.fits_host(41)
    in_file = to_file(result_of(False, False), str(tmp_path))
    assert leave_device(in_file, budget, str(tmp_path)) is in_file is spill(in_file, budget, str(tmp_path))


def test_a_result_that_another_process_sends_is_counted_here(tmp_path):
    budget = Budget("cpu", 0, 4 * 80)
    sent = pickle.dumps(spill(result_of(False, False), budget, str(tmp_path)))
    assert budget.fits_host(80)
    received = pickle.loads(sent)
    assert budget.fits_host(40) and not budget.fits_host(41)
    assert spill(received, budget, str(tmp_path)) is received and budget.fits_host(40), "it is counted once"


def test_arrays_in_files_are_not_counted(tmp_path):
    budget = Budget("cpu", 0, 4 * 80)
    result = held(to_file(result_of(False, False), str(tmp_path)))
    assert budget.fits_host(80)
    result.second = result.second.copy()
    assert held(result) is result and budget.fits_host(80 - 16) and not budget.fits_host(80 - 15)


def test_a_result_may_use_its_own_file_format(tmp_path):
    """`store` receives the result on its present device."""
    there, stored = result_of(True, True), []

    def store(result, folder):
        stored.append((result, folder))
        return replace(result, more=8)

    budget = Budget("cpu", 0, 4 * 39)
    assert spill(there, budget, "folder", store).more == 8 and stored == [(there, "folder")]
    assert budget.fits_host(39)


def test_back_to_a_device(monkeypatch):
    monkeypatch.setattr(
        spill_module, "to_device_together", lambda arrays, device: [a.view(OnGpu) for a in arrays] * (device == "gpu")
    )
    there = result_to_device(result_of(False, True), "gpu")
    assert type(there.first) is type(there.second) is OnGpu and there.plain() == result_of(True, True).plain()
    here = result_to_device(there, "cpu")
    assert type(here.first) is type(here.second) is np.ndarray and here.plain() == there.plain()


def test_a_result_in_a_file_stays_there(tmp_path):
    stored = spill(result_of(False, False), Budget("cpu", 0, 0), str(tmp_path))
    assert file_place_of(stored.first) and spill(stored, Budget("cpu", 0, 0), str(tmp_path)) is stored
    stored.second = stored.second.copy()
    assert file_place_of(spill(stored, Budget("cpu", 0, 0), str(tmp_path)).second)


def test_new_arrays_are_in_a_file_without_room_in_memory(tmp_path):
    rows = {"a": (3, np.int64), "none": (0, np.uint8), "b": (5, np.uint8)}
    for budget, in_file in (Budget("cpu", 0, 4 * 128), False), (Budget("cpu", 0, 4 * 128 - 1), True):  # 24 and 5 bytes
        made = new_arrays(rows, budget, str(tmp_path))
        assert [(name, len(array), array.dtype) for name, array in made.items()] == [
            (name, n, dtype) for name, (n, dtype) in rows.items()
        ]
        made["a"][:], made["b"][:] = [1, -1, 1 << 60], [5, 4, 3, 2, 1]
        assert made["a"].tolist() == [1, -1, 1 << 60] and made["b"].tolist() == [5, 4, 3, 2, 1]
        assert [bool(file_place_of(made[name])) for name in "ab"] == [in_file] * 2
        assert list(tmp_path.iterdir()) == []
    assert new_arrays({"a": (0, np.int64)}, Budget("cpu", 0, 0), str(tmp_path))["a"].tolist() == []


def test_new_arrays_that_a_disk_cannot_take(tmp_path, monkeypatch):
    """An error at once: a write to the map of a file on a full disk would end the process."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"cannot write \S+ after 0 bytes: No space left on device"):
        new_arrays({"a": (3, np.int64)}, Budget("cpu", 0, 0), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
