"""The budget of a run, and executors whose tasks keep to it."""

import sys
import threading
from contextlib import nullcontext
from dataclasses import replace

import cloudpickle
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.memory import budget as engine_budget
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs import budget as jobs_budget
from mgpu_ngram.jobs.budget import LimitedTask, chunks_ahead, limited, limited_to, make_budget, text_within
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.count.plan import MAX_CHUNK_BYTES, chunk_bytes, text_bytes
from mgpu_ngram.stages.registry import STAGES
from tests.support.slowness import scaled

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not find this file


@pytest.fixture(autouse=True)
def shares(monkeypatch):
    """Set shares that are easy to compute by hand."""
    monkeypatch.setattr(engine_budget, "KEPT_SHARE", {"gpu": 0.4, "cpu": 0.25})
    monkeypatch.setattr(engine_budget, "KEPT_BESIDE_SHARE", 0.25)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget("cpu", 0, 160_000), 3000),  # three quarters, at 40 bytes per byte of text
        (Budget("cpu", 0, 160_000, 3), 1000),
        (Budget("gpu", 200_000, 160_000), 3000),  # 0.6 of the GPU
        (Budget("gpu", 200_000, 80_000), 2000),
        (Budget("gpu", 0, 0), 1),
        (Budget("cpu", 0, 1 << 50), 9000),  # the maximum
    ],
)
def test_text_per_task_by_hand(budget, expected):
    assert text_within(budget, 40, 9000) == expected


def test_text_per_counted_chunk_by_hand():
    assert text_bytes(Budget("cpu", 0, 160_000)) == 3000
    assert text_bytes(Budget("gpu", 200_000, 160_000)) == 5000  # 24 bytes per byte of text
    for device in "cpu", "gpu":
        assert text_bytes(Budget(device, 1 << 50, 1 << 50)) == MAX_CHUNK_BYTES[device]


@pytest.mark.parametrize(
    ("unit", "order", "million_bytes", "workers", "chunks"),
    [
        ("word", 3, 9, 1, 1),  # at 24 bytes for each: 216 of 240 million bytes of the GPU
        ("word", 3, 11, 1, 2),  # with the counts of the first chunk on the GPU, 144 are left: 6 of text
        ("word", 3, 13, 1, 3),
        ("word", 3, 19, 2, 2),
        ("word", 3, 21, 2, 4),
        ("word", 5, 8, 1, 1),  # distinct n-grams take 80 bytes for 5.5 bytes of text, and as much while they are made
        ("word", 5, 9, 1, 2),
        ("id", 5, 5.9, 1, 1),  # the limit of a chunk that is not alone
        ("id", 5, 6.1, 1, 2),  # alone: 72 bytes for an id of 2 bytes, twice, so 3.3 million bytes of text
    ],
)
def test_a_gpu_counts_one_chunk_if_it_has_room(unit, order, million_bytes, workers, chunks, tmp_path):
    text = tmp_path / "text"
    with open(text, "wb") as file:
        file.truncate(int(million_bytes * 10**6))
    config, corpus = CountConfig([str(text)], order, unit=unit), open_corpus([str(text)], unit)
    size = chunk_bytes(config, corpus, workers, Budget("gpu", 240 * 10**6, 1 << 40))
    assert -(-corpus.text_bytes // size) == chunks


def test_a_chunk_that_is_alone_has_a_limit(tmp_path):
    text = tmp_path / "text"
    with open(text, "wb") as file:
        file.truncate(MAX_CHUNK_BYTES["gpu"] + 2)
    size = chunk_bytes(CountConfig([str(text)]), open_corpus([str(text)]), 1, Budget("gpu", 1 << 50, 1 << 50))
    assert size == MAX_CHUNK_BYTES["gpu"] // 2 + 1


@pytest.mark.parametrize(
    ("budget", "result_bytes", "expected"),
    [
        (Budget("cpu", 0, 4000), 100, 12),  # the maximum, 4 for each of 3 workers
        (Budget("cpu", 0, 1200), 100, 9),  # 300 bytes may be buffered: three results
        (Budget("cpu", 0, 4800, 4), 100, 9),
        (Budget("gpu", 1, 1200), 100, 9),
        (Budget("cpu", 0, 100), 100, 3),  # at least one
        (Budget("cpu", 0, 100), 0, 12),
    ],
)
def test_chunks_ahead_by_hand(budget, result_bytes, expected):
    assert chunks_ahead(budget, 3, result_bytes, 4) == expected


def test_memory_outside_the_pool_is_taken_off(monkeypatch):
    """Memory of the GPU outside the pool reduces the budget; its size may depend on the budget."""
    executor = LocalExecutor(workers=1)
    executor.device = "gpu"
    monkeypatch.setattr(jobs_budget, "_memory", lambda device: (1000, 8000, 70))
    seen = []
    budget = make_budget(MemoryConfig(), executor, 0, lambda budget: seen.append(budget) or budget.device_bytes // 9)
    expected = Budget("gpu", 900, 4000, before_bytes=70)
    assert seen == [expected] and budget == replace(expected, device_bytes=800)
    assert make_budget(MemoryConfig(), executor, 0, lambda budget: 901).device_bytes == 0
    assert make_budget(MemoryConfig(device_bytes=1 << 28), executor).device_bytes == 1 << 28
    executor.close()


class Pool:
    """A fake of CuPy's pool, with the methods that a scope calls."""

    def __init__(self):
        self.limit, self.free_all_blocks = 0, None

    def get_limit(self):
        return self.limit

    def set_limit(self, size):
        self.limit = size

    def total_bytes(self):
        return 0


def test_every_task_of_a_limited_executor_is_within_the_budget(monkeypatch):
    """Also concurrent, priority and failing tasks; after each task the limit is as before."""
    pool, together = Pool(), threading.Barrier(2)
    monkeypatch.setattr(engine_budget, "_pool", lambda: pool)
    monkeypatch.setattr(engine_budget, "_peak_noted", nullcontext)
    inner = LocalExecutor(workers=2)
    executor = limited(inner, Budget("gpu", 700, 0))

    def look(more=0):
        together.wait(scaled(10))
        return pool.limit + more

    def fail():
        raise ZeroDivisionError

    first = executor.call(look)
    assert executor.gather([first, executor.call(look)]) == [700, 700]
    assert pool.limit == 0
    two = executor.call(look, first), executor.call(look, 2, priority=True)
    assert executor.gather(two) == [1400, 702] and pool.limit == 0
    assert executor.gather(executor.gang(lambda comm, more: look(more), [[0], [1]])) == [700, 701] and pool.limit == 0
    with pytest.raises(ZeroDivisionError):
        executor.gather([executor.call(fail, label="failing")])
    assert pool.limit == 0 and executor.workers == 2 and executor.everywhere(len, "ab") == [2]
    executor.close()
    assert inner.closed


def test_a_limit_of_the_memory_section():
    """Of 2**28 bytes, five are outside the pool; without a limit the executor is unchanged."""
    executor = LocalExecutor(workers=1)
    executor.device = "gpu"
    assert limited_to(executor, MemoryConfig(), 5) is executor
    assert limited_to(executor, MemoryConfig(1 << 28), 5).budget == Budget("gpu", (1 << 28) - 5, 0)
    executor.device = "cpu"
    assert limited_to(executor, MemoryConfig(1 << 28)) is executor
    executor.close()


@pytest.mark.parametrize(
    ("stage", "refused"),
    [
        ("count", []),
        ("estimate", []),
        ("score", ["spill_dir"]),
        ("convert", ["host_bytes", "spill_dir"]),
        ("distribution", ["host_bytes", "spill_dir"]),
    ],
)
def test_limits_without_effect_are_refused(stage, refused):
    for key, value in {"device_bytes": 1 << 28, "host_bytes": 1 << 28, "spill_dir": "/big"}.items():
        if key in refused:
            with pytest.raises(InputError, match=f"memory.{key} is .* has no effect on job 'mine' of stage {stage}"):
                STAGES[stage].check_memory(MemoryConfig(**{key: value}), "mine")
        else:
            STAGES[stage].check_memory(MemoryConfig(**{key: value}), "mine")


def test_a_cpu_has_no_pool_to_limit():
    executor = LocalExecutor(workers=1)
    assert limited(executor, Budget("cpu", 0, 700)) is executor
    executor.close()


def test_a_limited_task_runs_on_a_cluster():
    """It keeps the name of its function, which Dask shows."""
    cluster = start_cluster("cpu", 1)

    def double(x):
        return 2 * x

    task = LimitedTask(double, Budget("cpu", 0, 1))
    try:
        handle = cluster.call(task, 4)
        assert task.__name__ == "double" and str(handle.key).startswith("double_")
        assert cluster.gather([handle, cluster.call(task, handle)]) == [8, 16]
    finally:
        cluster.close()
