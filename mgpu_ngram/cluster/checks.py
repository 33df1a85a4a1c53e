"""Check a Dask cluster before work starts; each problem is reported once, in one line."""

from __future__ import annotations

import os
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from distributed import Client

from mgpu_ngram.cluster import dask_private, worker
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.version import VERSION

# A string, because a worker without this package could not unpickle a function of ours.
FACTS = "__import__('mgpu_ngram.cluster.worker', fromlist=['facts']).facts({!r})"
PROBE_SECONDS = 30


class NoAnswer(RunError):
    """The scheduler does not answer."""


def scheduler_info(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of itself and of all its workers.

    `Client.scheduler_info` returns an attribute that a timer of Dask replaces, and that may lack some workers.
    """
    try:
        return dask_private.describe_scheduler(client)
    except (OSError, AttributeError):  # a client that is closed has no scheduler
        raise NoAnswer(
            f"the Dask scheduler of {client} does not answer any more; check that it runs, then run again"
        ) from None


def check_tasks(client: Client, workers: dict[str, dict[str, Any]], device: str) -> None:
    """Raise InputError if the cluster has no workers, or a GPU worker that runs several tasks at once."""
    if not workers:
        raise InputError(f"the Dask cluster {client} has no workers; start some, then run again")
    most = max(w["nthreads"] for w in workers.values())
    if device == "gpu" and most > 1:
        raise InputError(f"a GPU worker runs {most} tasks at once but must run 1; start workers with nthreads=1")


def check_workers(
    client: Client, workers: dict[str, dict[str, Any]], device: str
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return (device that all workers use, `worker.facts` by address)."""
    facts = client.run(eval, FACTS.format(device), workers=list(workers), on_error="return")
    names = {address: workers[address]["name"] for address in facts}
    for address, answer in facts.items():
        if isinstance(answer, ImportError | AttributeError):
            raise InputError(
                f"worker {names[address]} ({address}) cannot import mgpu_ngram ({answer}); "
                f"install mgpu-ngram {VERSION} there"
            )
        if isinstance(answer, OSError):
            raise InputError(
                f"worker {names[address]} ({address}) does not answer ({answer}); check its network, then run again"
            )
        if isinstance(answer, Exception):
            raise InputError(f"worker {names[address]} ({address}): {answer}")
    devices = {fact["device"] for fact in facts.values()}
    if len(devices) > 1:
        raise InputError(
            "some workers of the cluster see a GPU and some do not; use --device cpu (device='cpu' in Python), "
            "or start all workers on GPUs"
        )
    found = devices.pop()
    check_tasks(client, workers, found)  # "auto" may have become "gpu"
    _check_versions(names, facts)
    if found == "gpu":
        _check_gpus(names, facts)
    return found, facts


def _check_versions(names: dict[str, Any], facts: dict[str, dict[str, Any]]) -> None:
    seen: dict[str, dict[str, str]] = defaultdict(dict)  # by package and version, who has it
    for package, version in worker.versions().items():
        seen[package][version] = "this process"
    for address, fact in facts.items():
        for package, version in fact["versions"].items():
            seen[package].setdefault(version, f"worker {names[address]}")
    for package, versions in seen.items():
        if len({worker.comparable(package, version) for version in versions}) > 1:
            having = ", ".join(f"{version} in {who}" for version, who in versions.items())
            raise InputError(f"versions of {package} differ: {having}; install the same version everywhere")


def _check_gpus(names: dict[str, Any], facts: dict[str, dict[str, Any]]) -> None:
    owner: dict[str, Any] = {}
    for address, fact in facts.items():
        other = owner.setdefault(fact["gpu"], names[address])
        if other != names[address]:
            raise InputError(
                f"workers {other} and {names[address]} share {fact['gpu']}; start them with dask cuda worker, "
                "or with one CUDA_VISIBLE_DEVICES each"
            )


def threads_per_task(tasks: dict[str, int], facts: dict[str, dict[str, Any]]) -> int:
    """Return the threads per task when all tasks run at once; workers with the same cores share them.

    tasks  number of tasks at once, by worker address; dask-cuda binds a worker to the cores beside its GPU
    """
    users: Counter[tuple[str, int]] = Counter()
    for address, number in tasks.items():
        users.update({(facts[address]["host"], core): number for core in facts[address]["cores"]})
    shares = (sum(1 / users[fact["host"], core] for core in fact["cores"]) for fact in map(facts.__getitem__, tasks))
    return max(1, int(min(shares) + 1e-6))  # rounding errors of sums of fractions


def check_folder(client: Client, folder: str) -> None:
    """Raise InputError unless every worker sees a folder that the driver sees."""
    marker = Path(folder).absolute() / f".mgpu-ngram-{uuid.uuid4().hex}"
    try:
        marker.touch()
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); give another folder") from None
    try:
        seen = client.run(os.path.exists, str(marker), on_error="return")
    finally:
        marker.unlink()
    workers = scheduler_info(client)["workers"]
    for address, is_seen in seen.items():
        if is_seen is False:  # a worker that has just died gives an exception instead
            name = workers[address]["name"] if address in workers else "?"
            raise InputError(
                f"worker {name} ({address}) does not see {Path(folder).absolute()}; put the output "
                "(or memory.spill_dir) on storage that all hosts share"
            )


def choose_transport(client: Client, device: str, facts: dict[str, dict[str, Any]]) -> tuple[str, list[str]]:
    """Test the transports; return (transport, identities of the workers that can read each other's memory)."""
    if {fact["pid"] for fact in facts.values()} == {os.getpid()}:
        return "memory", []
    if all(address.startswith(("ucx://", "ucxx://")) for address in facts):
        return "ucx", []
    hosts = defaultdict(list)
    for address, fact in facts.items():
        hosts[fact["host"]].append(address)
    if device == "gpu" and "" not in hosts and len(facts) > len(hosts) and _probe(client, list(hosts.values())):
        return "ipc", sorted({fact["identity"] for fact in facts.values()})
    return "tcp", []


def _probe(client: Client, hosts: list[list[str]]) -> bool:
    """Return whether every worker can read the memory of all other workers of its host."""
    token = uuid.uuid4().hex
    lent = {
        address: (number, client.submit(worker.lend_probe, token, number, workers=[address], pure=False))
        for number, address in enumerate(address for host in hosts for address in host)
    }
    try:
        records = {a: (number, future.result(PROBE_SECONDS)) for a, (number, future) in lent.items()}
        read = [
            client.submit(
                worker.read_probes, [records[b] for b in host if b != a], workers=[a], pure=False
            )
            for host in hosts
            for a in host
        ]  # fmt: skip
        return all(future.result(PROBE_SECONDS) for future in read)
    except Exception:  # on any error, the slower way works
        return False
    finally:
        client.run(worker.end_probe, token)
