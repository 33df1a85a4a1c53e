"""Find the devices of this host without initialising CUDA in this process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import free_host_bytes
from mgpu_ngram.kernels.cache_folders import cupy_folder

FIRST_USER = 500 if sys.platform == "darwin" else 1000
NOBODY = 65534


def visible_gpus() -> int:
    """Return the number of GPUs that are visible under CUDA_VISIBLE_DEVICES; 0 without driver or NVML."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
        count: int = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    return count if visible is None else min(count, len(visible.split(",")))


def resolve_device(wanted: str) -> str:
    """Return "cpu" or "gpu" for the setting "auto", "cpu" or "gpu". Raises InputError if "gpu" is not possible.

    "auto" is the GPU if one is visible and CuPy is installed.
    """
    if not isinstance(wanted, str) or wanted not in ("auto", "cpu", "gpu"):
        raise InputError(f"device is {wanted!r:.60} but must be auto, cpu or gpu")
    if wanted == "cpu":
        return "cpu"
    gpus, cupy = visible_gpus(), importlib.util.find_spec("cupy") is not None
    if gpus and cupy:
        # CuPy reads both when it is imported. With precompiled headers, a program compiles in 59 instead of 95 ms.
        cupy_folder()
        os.environ.setdefault("CUPY_NVRTC_USE_PCH", "1")
        return "gpu"
    if wanted == "auto":
        return "cpu"
    if not cupy:
        raise InputError(
            "device is gpu but CuPy is not installed; pip install -e '.[cuda13]' (or cuda12) in the "
            "checkout, or use --device cpu"
        )
    if importlib.util.find_spec("pynvml") is None:
        raise InputError("device is gpu but nvidia-ml-py, which finds GPUs, is not installed; pip install nvidia-ml-py")
    import ctypes.util

    driver = "no NVIDIA driver is loaded" if not ctypes.util.find_library("cuda") else "no GPU is visible"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    raise InputError(
        f"device is gpu but {driver} (CUDA_VISIBLE_DEVICES={visible}); check nvidia-smi, or use --device cpu"
    )


def cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))  # macOS


def cpu_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(cores())


def has_other_users() -> bool:
    """Return whether another person has a process on this host, as far as this process can see.

    A person has a user id from FIRST_USER on; system programs have lower ids, or NOBODY.
    """
    import psutil  # when first used: it takes a while to load

    owners = (process.info["uids"] for process in psutil.process_iter(["uids"]))
    people = {uids.real for uids in owners if uids and uids.real >= FIRST_USER}
    return bool(people - {NOBODY, os.getuid()})


def allow_open_files() -> None:
    """Raise this process's limit of open files to the system's maximum, because a merge may read thousands at once."""
    with suppress(ImportError, OSError, ValueError):  # no POSIX; a system that refuses its own hard limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_memory(device: str) -> int:
    """Return the free bytes of the first visible GPU, by NVML, or of the host."""
    if device == "cpu":
        return free_host_bytes()
    with _first_gpu() as (nvml, handle):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)


def gpu_identity() -> str:
    """Return the number and UUID of the first visible GPU, by NVML."""
    with _first_gpu() as (nvml, handle):
        return f"GPU {nvml.nvmlDeviceGetIndex(handle)} ({nvml.nvmlDeviceGetUUID(handle)})"


@contextmanager
def _first_gpu() -> Iterator[tuple[Any, Any]]:
    """Yield (NVML, its handle of the first visible GPU); creates no CUDA context."""
    import pynvml

    pynvml.nvmlInit()
    try:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        yield (
            pynvml,
            pynvml.nvmlDeviceGetHandleByIndex(int(first))
            if first.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(first.encode()),
        )
    finally:
        pynvml.nvmlShutdown()
