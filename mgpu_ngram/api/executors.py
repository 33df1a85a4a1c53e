"""Open executors: on this host, on a cluster that the run starts, or on the cluster of a Dask client.

The module is in `api`, the lowest layer that opens executors and knows the settings of a run file (`ClusterConfig`);
`commands` and the benches import it from there.
"""

from __future__ import annotations

from typing import Any

from mgpu_ngram.cluster.devices import cpu_cores, free_memory, resolve_device
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.cluster.placement import Work, choose_place
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.stages.run_file import ClusterConfig


def open_executor(cluster: ClusterConfig, dask: dict[str, Any] | None = None, work: Work | None = None) -> Executor:
    """Return an executor: of this process, of a new Dask cluster on this host, or of a running cluster.

    work  size of the work, by which device "auto" chooses between CPU and GPU, and workers "auto" between this process
          and a cluster on this host; None: unknown
    """
    if cluster.kind != "local":
        from mgpu_ngram.cluster.dask import connect

        return connect(
            cluster.address, cluster.scheduler_file, device=cluster.device, workers=cluster.workers, settings=dask,
            lost_seconds=cluster.lost_seconds,
        )  # fmt: skip
    workers, _, device = choose_place(cluster.device, cluster.workers, work or Work())
    if workers == 0:
        return LocalExecutor(device)
    from mgpu_ngram.cluster.dask import start_cluster

    return start_cluster(device, workers, dask, cluster.protocol, cluster.secure, cluster.lost_seconds)


def describe_cluster(
    cluster: ClusterConfig, dask: dict[str, Any] | None = None, work: Work | None = None
) -> dict[str, Any]:
    """Return the workers, the device, the free bytes of a GPU or of the host, the transport of arrays, and the reasons.

    Connects to a running cluster, and starts one for two or more GPUs of this host; otherwise starts nothing.
    """
    if cluster.kind == "local":
        workers, reason, device = choose_place(cluster.device, cluster.workers, work or Work())
        if device == "cpu" or workers < 2:
            found = {"device": device, "free_bytes": free_memory(device), "reason": reason}
            if workers:
                return found | {"workers": workers, "transport": "tcp"}
            return found | {"workers": 1 if device == "gpu" else cpu_cores(), "transport": "memory"}
    executor = open_executor(cluster, dask, work)
    try:
        free = executor.gather([executor.call(free_memory, executor.device)])[0]
        found = {"workers": executor.workers, "device": executor.device, "transport": executor.transport}
        return found | {"free_bytes": free, "reason": executor.describe()}
    finally:
        executor.close()


def client_executor(client: Any, device: str = "auto") -> Executor:
    """Return an executor around a user's `distributed.Client`; device "auto" is the device of its workers."""
    from mgpu_ngram.cluster.dask_executor import DaskExecutor

    if not hasattr(client, "submit"):
        raise InputError(f"client is {client!r} but must be a distributed.Client, such as Client({client!r})")
    if client.asynchronous:
        raise InputError("the client is asynchronous; give one made by Client(..., asynchronous=False)")
    return DaskExecutor(client, device)


def executor_of(device: str, client: Any) -> Executor:
    """Return an executor of this process, or around a user's `distributed.Client`."""
    return LocalExecutor(resolve_device(device)) if client is None else client_executor(client, device)
