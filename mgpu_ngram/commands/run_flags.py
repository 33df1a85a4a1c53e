"""Flags that say where and how a run works: its cluster, memory, checkpoints and YAML file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Container

from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS
from mgpu_ngram.stages.run_file import ClusterConfig, RunConfig, load

DEVICES = ["auto", "cpu", "gpu"]


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `load_config` reads."""
    parser.add_argument("config", metavar="CONFIG.yaml", help="YAML file of jobs")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings that replace those of the file"
    )
    add_scheduler_flags(parser)


def load_config(arguments: argparse.Namespace) -> RunConfig:
    """Read the YAML file of a command, with its overrides and the flags of the scheduler."""
    return load(arguments.config, [*scheduler_overrides(arguments), *arguments.overrides])


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for where a command's tasks run."""
    parser.add_argument(
        "--device",
        default="auto",
        choices=DEVICES,
        help="auto (default): a GPU if there is one and the work is large enough to gain",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N",
        help="number of Dask workers; 0: work in this process (default: 0, or for large inputs one per GPU or core)",
    )  # fmt: skip
    parser.add_argument(
        "--lost-seconds", type=float, metavar="S",
        help="go on without a worker, and end without a scheduler, that is silent for S seconds (default 300)",
    )  # fmt: skip
    add_scheduler_flags(parser)


MEMORY_FLAGS = {
    "device_bytes": ("--device-bytes", "SIZE", "memory limit for each GPU (default: nine tenths of the free memory)"),
    "host_bytes": (
        "--host-bytes",
        "SIZE",
        "memory limit for each host, all workers together (default: half of the free memory)",
    ),
    "spill_dir": ("--spill-dir", "FOLDER", "folder for results that do not fit memory (default: beside OUT)"),
}


def add_memory_flags(parser: argparse.ArgumentParser, keys: Container[str]) -> None:
    """Add the flags that set these keys of the `memory` section."""
    for key, (flag, metavar, text) in MEMORY_FLAGS.items():
        if key in keys:
            parser.add_argument(flag, metavar=metavar, help=text)


def add_resume_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of stages that save finished work."""
    parser.add_argument("--resume", action="store_true", help="continue a run that ended early")
    parser.add_argument(
        "--checkpoint-seconds", type=float, metavar="S", default=CHECKPOINT_SECONDS,
        help=f"save finished work every S seconds (default {CHECKPOINT_SECONDS:.0f})",
    )  # fmt: skip


def memory_config(arguments: argparse.Namespace) -> MemoryConfig:
    """Return the memory limits from the flags of `add_memory_flags`."""
    return fill(MemoryConfig, {name: getattr(arguments, name, None) for name in MEMORY_FLAGS}, "memory")


def add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--scheduler", metavar="ADDRESS", help="use the Dask cluster at this address, such as tcp://10.0.0.1:8786"
    )
    which.add_argument("--scheduler-file", metavar="F", help="use the Dask cluster whose scheduler wrote this file")


def cluster_config(arguments: argparse.Namespace) -> ClusterConfig:
    """Return the cluster settings from the flags of `add_cluster_flags`."""
    where = {"address": arguments.scheduler, "scheduler_file": arguments.scheduler_file}
    where = {kind: at for kind, at in where.items() if at}
    settings = {"kind": next(iter(where), "local"), "device": arguments.device, "workers": arguments.workers}
    settings["lost_seconds"] = arguments.lost_seconds
    if getattr(arguments, "devices", None):
        settings |= {"device": "gpu", "workers": use_gpus(arguments.devices)}
    return fill(ClusterConfig, settings | where, "cluster")


def use_gpus(devices: str | list[int]) -> int:
    """Let this process and its workers see some GPUs of this host, "all" or by number; return the workers to start.

    One GPU is used in this process. Call it before CUDA starts.
    """
    count = visible_gpus()
    if isinstance(devices, list):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        wrong = next((number for number in devices if number >= count), None)
        if wrong is not None:
            raise InputError(f"GPU {wrong} was asked for but {count} are visible, numbered from 0; or use --device cpu")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[number] for number in devices)
        count = len(set(devices))
    return count if count > 1 else 0


def scheduler_overrides(arguments: argparse.Namespace) -> list[str]:
    """Return the flags --scheduler and --scheduler-file as settings of a YAML file."""
    if arguments.scheduler:
        return [
            "cluster.kind=address",
            f"cluster.address={json.dumps(arguments.scheduler)}",
            "cluster.scheduler_file=null",
        ]
    if arguments.scheduler_file:
        file = json.dumps(arguments.scheduler_file)
        return ["cluster.kind=scheduler_file", f"cluster.scheduler_file={file}", "cluster.address=null"]
    return []
