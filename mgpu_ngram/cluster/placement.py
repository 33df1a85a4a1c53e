"""Choose between this process and a Dask cluster on this host."""

from __future__ import annotations

from typing import NamedTuple

from mgpu_ngram.cluster.devices import cpu_cores, visible_gpus

# A cluster of GPUs takes about 5 s to start, and one H200 counts about 5 GB of text a second: with two GPUs the
# cluster pays from 5 s * 2 * 5 GB/s on.
GPU_CLUSTER_BYTES = 48 << 30
# Threads of one process share one model and compiled code that holds no lock. On 2 cores they score 14.4 M tokens in
# 7.0 s, Dask workers in 14.9 s. Only the Python between kernels waits for the lock, which many cores notice.
THREADED_CORES = 8
CPU_CLUSTER_BYTES = 1 << 30


class Placement(NamedTuple):
    """Where a run's tasks go.

    workers  Dask workers to start; 0: this process
    reason   for people, such as "one GPU"
    """

    workers: int
    reason: str


def choose_workers(device: str, workers: int | None, work_bytes: int) -> Placement:
    """Return the number of Dask workers that pays for an input, and the reason.

    device      "cpu" or "gpu"
    workers     what the user asked for: so many are taken; None: choose
    work_bytes  size of the input, uncompressed where that is known
    """
    if workers is not None:
        return Placement(workers, "as asked for" if workers else "in this process, as asked for")
    if device == "gpu":
        units, name, least = visible_gpus(), "GPU", GPU_CLUSTER_BYTES
        few = units <= 1
    else:
        units, name, least = cpu_cores(), "core", CPU_CLUSTER_BYTES
        few = units <= THREADED_CORES
    many = f"{units} {name}{'s' if units != 1 else ''}"
    if few:
        return Placement(0, f"in this process: {many}")
    if work_bytes < least:
        return Placement(0, f"in this process: {work_bytes:,} bytes of input, Dask pays from {least:,} on")
    return Placement(units, f"a Dask worker for each of {many}: {work_bytes:,} bytes of input")
