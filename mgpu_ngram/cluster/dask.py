"""Tasks on a Dask cluster: one started here (dask-cuda on GPUs), or around a client the user has."""

from __future__ import annotations

import difflib
import importlib.util
import logging
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster, as_completed

from mgpu_ngram.cluster.devices import cpu_cores, visible_gpus
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.scratch import scratch_folder

UNKNOWN = object()
# A task that kills its worker three times is at fault itself; a worker that never comes must not hang a run.
SETTINGS = {
    "distributed.scheduler.allowed-failures": 2,
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.worker-saturation": "inf",
}


class DaskExecutor:
    """An `Executor` around a `distributed.Client`."""

    def __init__(self, client: Client, device: str, cluster: Any = None, scratch: Any = None):
        self.client, self.device, self._cluster, self._scratch = client, device, cluster, scratch
        workers = client.scheduler_info(n_workers=-1)["workers"]
        self.workers = sum(w["nthreads"] for w in workers.values())
        if not self.workers:
            raise InputError(f"the Dask cluster {client} has no workers; start some, then run again")
        most = max(w["nthreads"] for w in workers.values())
        if device == "gpu" and most > 1:
            raise InputError(f"a GPU worker runs {most} tasks at once but must run 1; start workers with nthreads=1")
        tasks_by_host: Counter[str] = Counter()
        for w in workers.values():
            tasks_by_host[w["host"]] += w["nthreads"]
        self.sharers = max(tasks_by_host.values()) if device == "cpu" else 1
        cores = client.run(cpu_cores)
        self.threads = max(1, min(cores[a] // tasks_by_host[w["host"]] for a, w in workers.items() if a in cores))
        self.dashboard = client.dashboard_link if importlib.util.find_spec("bokeh") else None

    def call(self, fn: Callable, *args: Any) -> Future:
        return self.client.submit(fn, *args, key=f"{fn.__name__}-{uuid.uuid4().hex}", pure=False)

    def wait(self, handles: Sequence[Future], done: Callable[[Any], None] | None = None) -> None:
        for handle in as_completed(handles):
            if handle.status == "cancelled":
                raise RunError("the Dask scheduler was lost or the run was cancelled; start again")
            _raise_error_of(handle)
            if done:
                done(handle)

    def gather(self, handles: Sequence[Future]) -> list[Any]:
        self.wait(handles)
        return self.client.gather(list(handles))

    def close(self) -> None:
        if self._cluster is not None:
            self.client.close()
            self._cluster.close()
            shutil.rmtree(self._scratch, ignore_errors=True)


def _raise_error_of(handle: Future) -> None:
    if handle.status != "error":
        return
    error = handle.exception()
    if isinstance(error, KilledWorker):
        raise RunError(
            f"task {handle.key} killed every worker that tried it; most often memory ran out: use smaller chunks "
            "(chunk_bytes) or fewer workers"
        ) from None
    raise error


def _check_settings(settings: dict[str, Any]) -> None:
    """Refuse what Dask would overlook, and mappings, which would replace a whole section of its own settings."""
    for key, value in settings.items():
        if isinstance(value, dict):
            raise InputError(f"dask.{key} is a mapping; write its keys with dots, as distributed.comm.timeouts.connect")
        if key.split(".")[0] not in dask.config.config or dask.config.get(key, default=UNKNOWN) is not UNKNOWN:
            continue
        close = difflib.get_close_matches(key, _dotted(dask.config.config), 1, 0.5)
        way_out = f"did you mean {close[0]!r}?" if close else "see the configuration reference of Dask"
        raise InputError(f"dask: unknown key {key!r}; {way_out}")


def _dotted(settings: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in settings.items():
        keys += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return keys


def start_cluster(device: str, workers: int | None, settings: dict[str, Any] | None = None) -> DaskExecutor:
    """Start a Dask cluster on this host: a worker per GPU, or per core; loopback only."""
    _check_settings(settings or {})
    most = max(64, 8 * cpu_cores())
    if device == "cpu" and workers is not None and workers > most:
        raise InputError(f"{workers:,} workers were asked for on {cpu_cores()} cores; use --workers {most} or fewer")
    dask.config.set({**SETTINGS, **(settings or {})})
    scratch = scratch_folder()
    common = {
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "protocol": "tcp",
        "memory_limit": None,
        "local_directory": scratch,
        "dashboard_address": "127.0.0.1:0",
    }
    if device == "gpu":
        gpus = visible_gpus()
        if workers is not None and workers > gpus:
            raise InputError(
                f"{workers} workers were asked for but {gpus} GPUs are visible; use --workers {gpus} or fewer"
            )
        try:
            from dask_cuda import LocalCUDACluster
        except ImportError as error:
            raise InputError(
                f"a cluster of GPUs needs dask-cuda ({error}); pip install -e '.[cuda13]' (or cuda12) in the checkout"
            ) from None
        make, options = LocalCUDACluster, {"n_workers": workers or gpus, "device_memory_limit": None}
    else:
        options = {"n_workers": workers or cpu_cores(), "processes": True, "silence_logs": logging.CRITICAL + 1}
        make = LocalCluster
    executor = None
    try:
        with _interrupts_held():
            cluster = make(**options, **common)
            executor = DaskExecutor(Client(cluster), device, cluster, scratch)
        return executor
    except BaseException as error:
        if executor:
            executor.close()
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, RuntimeError | TimeoutError) and not isinstance(error, RunError):
            raise RunError(
                f"the Dask workers did not start ({error}); try fewer --workers, or --workers 0 to do without"
            ) from None
        raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: keep it from the ones that start here, and wait with it here.

    Workers then stop quietly, when this process closes the cluster. Blocked signals are inherited by
    threads and processes, so workers that Dask starts later do not hear it either.
    """
    resource_tracker.ensure_running()  # or the first process to start would start it, which unblocks the signal
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
