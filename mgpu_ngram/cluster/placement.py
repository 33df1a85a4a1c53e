"""Choose between the CPU and the GPU, and between this process and a Dask cluster on this host.

Serves `device: auto` and `workers: auto`. `api.open_executor` acts on the choice, or connects to a cluster that runs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mgpu_ngram.cluster.devices import cpu_cores, resolve_device, visible_gpus

# A cluster of GPUs takes about 5 s to start, and one H200 counts about 5 GB of text a second: with two GPUs the
# cluster pays from 5 s * 2 * 5 GB/s on.
GPU_CLUSTER_BYTES = 48 << 30
# Threads of one process share one model and compiled code that holds no lock. On 2 cores they score 14.4 M tokens in
# 7.0 s, Dask workers in 14.9 s. Only the Python between kernels waits for the lock, which many cores notice.
THREADED_CORES = 8
CPU_CLUSTER_BYTES = 1 << 30
# A process imports CuPy in 0.2 s and Numba's CUDA types in 0.2 s, and opens an H200 in 0.4 s. `score` of three lines
# takes 1.37 s with the GPU and 0.57 s on 2 cores.
GPU_START_SECONDS = 0.8


class Work(NamedTuple):
    """The size of a run's work.

    size_bytes   size of the input or the output, uncompressed if known
    cpu_seconds  approximate seconds of 2 cores, without the start of the program; inf: unknown, or long
    """

    size_bytes: int = 0
    cpu_seconds: float = math.inf


class Placement(NamedTuple):
    """The device and the workers of a run.

    workers  number of Dask workers to start; 0: this process
    reason   reason to show, such as "one GPU"
    device   "cpu" or "gpu"
    """

    workers: int
    reason: str
    device: str


def choose_place(device: str, workers: int | None, work: Work) -> Placement:
    """Return the placement of work: the CPU if the user left the choice and opening a GPU takes longer than the work.

    device   the user's setting: "auto", "cpu" or "gpu"
    workers  as in `choose_workers`
    """
    found = resolve_device(device)
    if device == "auto" and workers is None and found == "gpu" and work.cpu_seconds < GPU_START_SECONDS:
        about = f"about {work.cpu_seconds:.1f} s of work for 2 cores, a GPU takes {GPU_START_SECONDS} s to open"
        return Placement(0, f"in this process, on the CPU: {about}", "cpu")
    return choose_workers(found, workers, work.size_bytes)


def choose_workers(device: str, workers: int | None, work_bytes: int) -> Placement:
    """Return the number of Dask workers for an input, and the reason.

    device      "cpu" or "gpu"
    workers     the user's setting, which is returned; None (`workers: auto`): choose
    work_bytes  size of the input, uncompressed if known
    """
    if workers is not None:
        return Placement(workers, "as asked for" if workers else "in this process, as asked for", device)
    if device == "gpu":
        units, name, least = visible_gpus(), "GPU", GPU_CLUSTER_BYTES
        few = units <= 1
    else:
        units, name, least = cpu_cores(), "core", CPU_CLUSTER_BYTES
        few = units <= THREADED_CORES
    many = f"{units} {name}{'s' if units != 1 else ''}"
    if few:
        return Placement(0, f"in this process: {many}", device)
    if work_bytes < least:
        return Placement(0, f"in this process: {work_bytes:,} bytes of input, Dask pays from {least:,} on", device)
    return Placement(units, f"a Dask worker for each of {many}: {work_bytes:,} bytes of input", device)
