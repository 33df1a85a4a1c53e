"""Where rows come from: commit, date, driver and host."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType

import psutil

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE_PARENT = str(Path(__file__).absolute().parents[3])  # on the PYTHONPATH of commands that run in another folder
COMMIT_VARIABLE = "MGPU_NGRAM_COMMIT"  # the commit of a copy of the checkout without its history


@cache
def origin() -> MappingProxyType[str, str]:
    """Return the columns `commit`, `date`, `driver` and `host` of every row of this process.

    What is not known is empty: the commit of an installed package, the driver of a host without GPUs.
    """
    gpus, driver = _gpus_and_driver()
    host = [*gpus, f"{processor()}, {len(os.sched_getaffinity(0))} cores"]
    host.append(f"{psutil.virtual_memory().total / 2**30:.0f} GiB")
    today = datetime.now(UTC).date().isoformat()
    return MappingProxyType({"commit": commit(), "date": today, "driver": driver, "host": ", ".join(host)})


def commit() -> str:
    """Return the commit of the checkout, with -dirty where tracked files differ from it."""
    described = git("describe", "--always", "--dirty", "--exclude=*", "--abbrev=10").strip()
    return os.environ.get(COMMIT_VARIABLE) or described


def git(*arguments: str) -> str:
    """Return what git prints about the checkout; nothing where there is no git or no history."""
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def processor() -> str:
    """Return the model of the processor, or its architecture where the system does not name it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else os.uname().machine


def _gpus_and_driver() -> tuple[list[str], str]:
    """Return the GPUs of the host by name, such as "4 x NVIDIA H200", and their driver's version."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return [], ""
    except pynvml.NVMLError:
        return [], ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
    return [f"{names.count(name)} x {name}" for name in sorted(set(names))], driver


def _text(value: str | bytes) -> str:
    """Return text that some versions of NVML's module give as bytes."""
    return value.decode() if isinstance(value, bytes) else value
