"""Code that runs on the workers of a Dask cluster: every task passes through `run_task`."""

from __future__ import annotations

import gc
import logging
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import dask
import distributed
import numba
import numpy
import pyarrow
from distributed import Reschedule, Scheduler, SchedulerPlugin, Worker, WorkerPlugin, get_worker

from mgpu_ngram.cluster import dask_private, lent_arrays, shares, transport
from mgpu_ngram.cluster.devices import allow_open_files, cores, gpu_identity, resolve_device
from mgpu_ngram.cluster.transport import Parcel
from mgpu_ngram.core.errors import InputError, send_warnings
from mgpu_ngram.core.version import VERSION


class Prompt(SchedulerPlugin):
    """Makes the scheduler of a cluster that we started send messages sooner."""

    name = "mgpu-ngram-prompt"

    async def start(self, scheduler: Scheduler) -> None:
        dask_private.send_sooner_from_scheduler(scheduler)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        dask_private.send_sooner_from_scheduler(scheduler, worker)


class Plugin(WorkerPlugin):
    """Sets up a worker; Dask also runs it on workers that restart or join later. Does not use CUDA.

    A worker that joins later and does not fit the run leaves again and logs the reason.

    versions  versions of packages in the driver
    may_lend  `process_identity` of the workers that can read each other's memory
    ours      whether we started the cluster. If so, do not log a traceback when a worker is lost, and send messages
              without delay
    """

    idempotent = True

    def __init__(self, name: str, device: str, versions: dict[str, str], may_lend: Sequence[str], ours: bool):
        self.name, self.device, self.versions, self.may_lend, self.ours = name, device, versions, may_lend, ours

    def setup(self, worker: Worker) -> None:
        if why := self._misfit(worker):
            logging.getLogger("distributed.worker").error("%s; this worker leaves the cluster", why)
            _tasks.are_refused = True
            worker.loop.add_callback(dask_private.leave_cluster, worker, "mgpu-ngram-misfit")
            return
        if self.ours:
            silence()
            if not worker.address.startswith("inproc:"):
                send_warnings(distributed.warn)  # to the driver, which shows equal ones once
            _tasks.may_freeze = True
            dask_private.send_sooner_from_worker(worker)
        allow_open_files()
        transport.announce_offers(
            worker, self.device == "gpu", self.may_lend, lambda why: die(worker, why, "a transfer")
        )
        shares.serve(worker)
        self._end_reaction = dask_private.on_lost_worker(worker, partial(_lost, worker))

    def _misfit(self, worker: Worker) -> str:
        """Return why a run cannot use this worker; "" if it can."""
        try:
            resolve_device(self.device)
        except InputError as error:
            return str(error)
        if self.device == "gpu" and worker.state.nthreads > 1:
            return f"a GPU worker runs {worker.state.nthreads} tasks at once but must run 1; start it with nthreads=1"
        here = versions()
        for package, version in self.versions.items():
            if comparable(package, version) != comparable(package, here[package]):
                return (
                    f"versions of {package} differ: {version} in the run, {here[package]} here; "
                    "install the same version everywhere"
                )
        return ""

    def teardown(self, worker: Worker) -> None:
        if _tasks.are_refused:
            return
        shares.stop_serving(worker)
        transport.stop(worker)
        lent_arrays.close_lasting()
        self._end_reaction()


def _lost(here: Worker, address: str) -> None:
    """Close this worker's connections to a lost worker, and its handles to the lost worker's GPU memory.

    The GPU frees this memory for the worker's successor only when no process has it open.
    """
    shares.forget(address)
    here.loop.call_later(0.3, partial(dask_private.forget_connections, here, address))
    here.loop.run_in_executor(None, lent_arrays.close_lasting)


def silence() -> None:
    """Keep log messages of Dask and its web server off this process's stderr."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def run_task(fn: Callable[..., Any], topic: str, device: str, label: str, *args: Any) -> Parcel:
    """Return fn(*args). First tells the driver, which then knows the running task if the process dies.

    Tasks without a label are short, so the driver is told while they run.
    """
    if _tasks.are_refused:  # the task came before this worker has left
        raise Reschedule
    worker = get_worker()
    key = worker.get_current_task()
    message = {"key": key, "worker": worker.address, "name": str(worker.name)}
    if label:
        tell(worker, topic, message)
    else:
        worker.log_event(topic, message)
    try:
        result = fn(*[_value(worker, a) for a in args])
        if device == "gpu":
            lent_arrays.wait_for_device()  # a reader of the result may use another stream
    except Exception:
        why = lent_arrays.why_lost() if device == "gpu" else ""
        if why and not worker.address.startswith("inproc:"):
            tell(worker, topic, {"key": key, "error": why})
            die(worker, why, label or str(key))
        raise
    _tasks.done()
    return Parcel(result)


class _Tasks:
    """The number of tasks that have run in this process, and whether more are refused because `Plugin` sends it away.

    Each full garbage collection scans all modules for 0.1 s and blocks Dask in this process. So after tasks 1, 2, 4, 8,
    ..., which load modules, the existing objects are excluded from later collections. Only in workers that we started:
    cycles among these objects are never collected.
    """

    def __init__(self) -> None:
        self.run, self.may_freeze, self.are_refused = 0, False, False

    def done(self) -> None:
        self.run += 1
        if self.may_freeze and self.run & (self.run - 1) == 0:
            gc.collect()
            gc.freeze()


_tasks = _Tasks()


def _value(worker: Worker, arg: Any) -> Any:
    """Return what a task receives for an argument, in the form that `DaskExecutor` sends."""
    if isinstance(arg, Parcel):
        return arg.open()
    if not isinstance(arg, list):
        return arg
    if _is_share(arg):
        take, places = arg
        return shares.take_shares(worker, places.open(), take)
    return [value for a in arg for value in (_value(worker, a) if _is_share(a) else [_value(worker, a)])]


def _is_share(arg: Any) -> bool:
    return isinstance(arg, list) and len(arg) > 0 and isinstance(arg[0], shares.Take)


def tell(worker: Worker, topic: str, message: dict[str, Any]) -> None:
    """Log an event of the cluster; return when the scheduler has received it."""
    with suppress(OSError):  # the scheduler is gone, which ends the worker anyway
        dask_private.tell_scheduler(worker, topic, message)


def die(worker: Worker, why: str, during: str) -> None:
    """End this process, whose GPU no longer works. Its nanny restarts it and Dask repeats its work."""
    print(f"mgpu-ngram: worker {worker.name} lost its GPU context ({why}) in {during}; restarting", file=sys.stderr)
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def facts(wanted: str) -> dict[str, Any]:
    """Return the facts about this worker that the driver needs before work starts. Does not use CUDA."""
    device, here = resolve_device(wanted), versions()
    if device == "gpu":
        import cupy

        here["cupy"] = cupy.__version__
    return {
        "device": device,
        "cores": cores(),
        "versions": here,
        "gpu": f"{gpu_identity()} of {socket.gethostname()}" if device == "gpu" else "",
        "host": transport.host_identity(),
        "identity": transport.process_identity(),
        "pid": os.getpid(),
    }


def versions() -> dict[str, str]:
    """Return the versions of packages that must be equal everywhere."""
    found = {"python": platform.python_version(), "mgpu-ngram": VERSION}
    return found | {page.__name__: page.__version__ for page in (numpy, numba, pyarrow, dask, distributed)}


def comparable(package: str, version: str) -> str:
    """Return the significant part of a version: cloudpickle moves functions only within one Python 3.x."""
    return version.rpartition(".")[0] if package == "python" else version


# The test of IPC: every worker lends a small array, and all other workers of its host read it.

_probes: dict[str, Any] = {}


def lend_probe(token: str, number: int) -> dict[str, Any]:
    _probes[token] = loan = lent_arrays.lend([lent_arrays.copy_from_host(numpy.arange(1000) + number)])
    return loan.records[0]


def read_probes(records: Sequence[tuple[int, dict[str, Any]]]) -> bool:
    arrays = lent_arrays.import_arrays([record for _, record in records])
    return all(
        numpy.array_equal(lent_arrays.copy_to_host(array), numpy.arange(1000) + number)
        for (number, _), array in zip(records, arrays, strict=True)
    )


def end_probe(token: str) -> None:
    _probes.pop(token, None)
