"""Start a Dask cluster on this host (with dask-cuda on GPUs), or connect to a running one."""

from __future__ import annotations

import gc
import json
import logging
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.security import Security

from mgpu_ngram.cluster.checks import scheduler_info
from mgpu_ngram.cluster.dask_config import apply_settings
from mgpu_ngram.cluster.dask_executor import DaskExecutor
from mgpu_ngram.cluster.dask_private import end_cluster
from mgpu_ngram.cluster.devices import cpu_cores, has_other_users, visible_gpus
from mgpu_ngram.cluster.quiet_logs import leave_out_losses
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.storage.scratch import scratch_folder

CONNECT_SECONDS = 15  # for a scheduler to answer
CLOSE_SECONDS = 15
WORKERS_SECONDS = 60  # for a scheduler file to appear, and for workers to join


def start_cluster(
    device: str,
    workers: int | None,
    settings: dict[str, Any] | None = None,
    protocol: str | None = None,
    secure: bool | None = None,
    lost_seconds: float | None = None,
) -> DaskExecutor:
    """Start a Dask cluster on this host, on loopback only: a worker per GPU, or per core.

    protocol  "tcp" (default) or "ucx"
    secure    whether processes need a certificate, made for this cluster, to connect: other users of the host can reach
              loopback ports, too. None: only if the host has other users now and the protocol is not ucx, which has no
              encryption
    lost_seconds  as in `DaskExecutor`

    Raises InputError for too many workers for the host, and for secure with ucx or without cryptography.
    """
    apply_settings(settings or {})
    leave_out_losses()
    if secure and protocol == "ucx":
        raise InputError("cluster.secure is true but the protocol ucx has no encryption; use tcp, or secure: false")
    if secure is None:
        secure = protocol != "ucx" and has_other_users()
    most = max(64, 8 * cpu_cores())
    if device == "cpu" and workers is not None and workers > most:
        raise InputError(f"{workers:,} workers were requested on {cpu_cores()} cores; use --workers {most} or fewer")
    make, options = _cluster_class(device, workers)
    scratch = scratch_folder()
    options |= {
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "protocol": "tls" if secure else protocol or "tcp",
        "memory_limit": None,
        "local_directory": scratch,
        "dashboard_address": "127.0.0.1:0",
        "silence_logs": logging.CRITICAL + 1,
    }
    if secure:
        options["security"] = _temporary_certificate()
    closing = ExitStack()
    try:
        closing.callback(shutil.rmtree, scratch, ignore_errors=True)
        with _interrupts_held():
            cluster = make(**options)
            closing.callback(end_cluster, cluster, CLOSE_SECONDS)
            client = closing.enter_context(Client(cluster))
        if not gc.get_freeze_count():  # the scheduler is in this process: see worker._Tasks
            gc.collect()
            gc.freeze()
            closing.callback(gc.unfreeze)
        return DaskExecutor(client, device, ours=True, closing=closing, lost_seconds=lost_seconds)
    except BaseException as error:
        closing.close()
        if isinstance(error, RuntimeError | TimeoutError) and not isinstance(error, RunError):
            raise RunError(
                f"the Dask workers did not start ({error}); try fewer --workers, or --workers 0 to run without them"
            ) from None
        raise


def _temporary_certificate() -> Security:
    try:
        security: Security = Security.temporary()
        return security
    except ImportError as error:
        raise InputError(
            f"a secure local cluster needs the package cryptography ({error}); pip install cryptography, or set "
            "cluster.secure to false"
        ) from None


def _cluster_class(device: str, workers: int | None) -> tuple[Callable[..., Any], dict[str, Any]]:
    if device == "cpu":
        return LocalCluster, {"n_workers": workers or cpu_cores(), "processes": True}
    gpus = visible_gpus()
    if workers is not None and workers > gpus:
        raise InputError(f"{workers} workers were requested but {gpus} GPUs are visible; use --workers {gpus} or fewer")
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise InputError(
            f"a cluster of GPUs needs dask-cuda ({error}); pip install -e '.[cuda13]' (or cuda12) in the checkout"
        ) from None
    preload = dask.config.get("distributed.worker.preload")  # dask-cuda replaces them by its own
    preload = [preload] if isinstance(preload, str) else [*preload]
    return LocalCUDACluster, {"n_workers": workers or gpus, "device_memory_limit": None, "preload": preload}


def connect(
    address: str | None,
    scheduler_file: str | None,
    device: str,
    workers: int | None,
    settings: dict[str, Any] | None = None,
    lost_seconds: float | None = None,
) -> DaskExecutor:
    """Connect to a running or starting Dask cluster by the address or the file of its scheduler.

    device    "auto": the device of the workers
    workers   wait for this many; None: at least one
    lost_seconds  as in `DaskExecutor`

    TLS follows Dask's own settings (distributed.comm.tls.*).
    """
    apply_settings(settings or {})
    leave_out_losses()
    deadline = time.monotonic() + WORKERS_SECONDS
    if scheduler_file is not None:
        address = _read_scheduler_file(Path(scheduler_file), deadline)
    address = _full_address(address or "")
    _check_security(address)
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TypeError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address} ({' '.join(str(error).split())}); "
            "check the address and that it runs, and for tls:// the settings distributed.comm.tls"
        ) from None
    closing = ExitStack()
    closing.enter_context(client)
    try:
        _wait_for_workers(client, workers, address, deadline)
        return DaskExecutor(client, device, closing=closing, lost_seconds=lost_seconds)
    except BaseException:
        closing.close()
        raise


def _read_scheduler_file(path: Path, deadline: float) -> str:
    """Return the address in a scheduler file. The file may appear late: a batch job may start both at once."""
    is_told = False
    while True:
        try:
            return str(json.loads(path.read_text())["address"])
        except (OSError, ValueError, KeyError) as error:  # no file yet, or half of it
            if time.monotonic() > deadline:
                raise InputError(
                    f"scheduler file {path} cannot be read ({error.__class__.__name__}) after {WORKERS_SECONDS} s; "
                    "start the scheduler with dask scheduler --scheduler-file, on storage that all hosts share"
                ) from None
        if not is_told:
            # One write: print writes the newline apart, so a line of another thread could come before it.
            sys.stderr.write(f"mgpu-ngram: waiting up to {WORKERS_SECONDS} s for scheduler file {path}\n")
            is_told = True
        time.sleep(0.1)


def _full_address(address: str) -> str:
    if not re.fullmatch(r"((tcp|tls|ucx|ucxx)://)?[^/\s]+:\d+", address):
        raise InputError(f"address is {address!r} but must be tcp://HOST:PORT, tls://HOST:PORT or HOST:PORT")
    if "://" in address:
        return address
    return f"{'tls' if dask.config.get('distributed.comm.tls.client.cert') else 'tcp'}://{address}"


def _check_security(address: str) -> None:
    """Raise InputError for settings that stop a Client half-way, after which the process hangs 30 s at its end."""
    try:
        security = Security().get_connection_args("client")
    except OSError as error:  # the error does not name the file
        raise InputError(
            f"a file of the settings distributed.comm.tls cannot be used ({error}); check ca-file, client.cert "
            "and client.key"
        ) from None
    encrypted = address.startswith("tls://")
    if encrypted and security["ssl_context"] is None:
        raise InputError(
            f"{address} needs a certificate; give the settings distributed.comm.tls.ca-file, "
            "distributed.comm.tls.client.cert and distributed.comm.tls.client.key"
        )
    if security["require_encryption"] and not encrypted:
        raise InputError(
            f"{address} is not encrypted but distributed.comm.require-encryption is set; use tls://, or unset it"
        )


def _wait_for_workers(client: Client, workers: int | None, address: str, deadline: float) -> None:
    while (joined := len(scheduler_info(client)["workers"])) < (workers or 1):
        if time.monotonic() > deadline:
            raise InputError(
                f"{joined} of {workers or 1} workers came to the Dask cluster {address} within {WORKERS_SECONDS} s; "
                "start more, or request fewer with --workers"
            )
        time.sleep(0.1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C from the processes that start here, and delay it in this process.

    A terminal sends Ctrl-C to all its processes. This way workers stop quietly when this process closes the cluster.
    Threads and processes inherit blocked signals, so workers that Dask starts later do not receive it either.
    """
    resource_tracker.ensure_running()  # otherwise the first process starts it, which unblocks the signal
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
