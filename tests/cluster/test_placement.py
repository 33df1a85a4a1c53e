"""When a run opens a GPU or starts Dask by itself."""

import math

import pytest

from mgpu_ngram.cluster import placement
from mgpu_ngram.cluster.placement import (
    CPU_CLUSTER_BYTES,
    GPU_CLUSTER_BYTES,
    GPU_START_SECONDS,
    Work,
    choose_place,
    choose_workers,
)


@pytest.fixture
def host(monkeypatch):
    def has(gpus=0, cores=2):
        monkeypatch.setattr(placement, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(placement, "cpu_cores", lambda: cores)

    return has


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_requested_workers_are_used(device, workers, host):
    host(gpus=4, cores=64)
    assert choose_workers(device, workers, 1 << 50).workers == workers
    assert "asked for" in choose_workers(device, workers, 0).reason


@pytest.mark.parametrize(
    ("device", "gpus", "cores", "size", "workers", "reason"),
    [
        ("gpu", 1, 64, 1 << 50, 0, "in this process: 1 GPU"),
        ("gpu", 4, 64, GPU_CLUSTER_BYTES - 1, 0, "51,539,607,551 bytes of input, Dask pays from 51,539,607,552 on"),
        ("gpu", 4, 64, GPU_CLUSTER_BYTES, 4, "a Dask worker for each of 4 GPUs"),
        ("cpu", 4, 2, 1 << 50, 0, "in this process: 2 cores"),
        ("cpu", 4, 8, 1 << 50, 0, "in this process: 8 cores"),
        ("cpu", 4, 9, CPU_CLUSTER_BYTES - 1, 0, "1,073,741,823 bytes of input"),
        ("cpu", 4, 9, CPU_CLUSTER_BYTES, 9, "a Dask worker for each of 9 cores: 1,073,741,824 bytes"),
    ],
)
def test_dask_starts_for_several_devices_with_much_work(device, gpus, cores, size, workers, reason, host):
    host(gpus, cores)
    placed = choose_workers(device, None, size)
    assert placed.workers == workers and reason in placed.reason


@pytest.mark.parametrize(
    ("wanted", "workers", "seconds", "device"),
    [
        ("auto", None, 0.0, "cpu"),
        ("auto", None, GPU_START_SECONDS, "gpu"),
        ("auto", None, math.inf, "gpu"),
        ("auto", 0, 0.0, "gpu"),
        ("gpu", None, 0.0, "gpu"),
        ("cpu", None, math.inf, "cpu"),
    ],
)
def test_a_gpu_opens_for_work_that_takes_longer(wanted, workers, seconds, device, host, monkeypatch):
    host(gpus=1, cores=2)
    monkeypatch.setattr(placement, "resolve_device", lambda wanted: "gpu" if wanted == "auto" else wanted)
    placed = choose_place(wanted, workers, Work(66, seconds))
    assert (placed.device, placed.workers) == (device, 0)
    assert ("a GPU takes 0.8 s to open" in placed.reason) == (wanted == "auto" and device == "cpu")


def test_small_work_is_no_reason_on_a_host_without_gpu(host, monkeypatch):
    host(gpus=0, cores=2)
    monkeypatch.setattr(placement, "resolve_device", lambda wanted: "cpu")
    assert choose_place("auto", None, Work(66, 0.0)) == (0, "in this process: 2 cores", "cpu")
