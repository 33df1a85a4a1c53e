"""The device of a run, for every state of a machine."""

import importlib.util
import sys
import types

import psutil
import pytest

from mgpu_ngram.cluster import devices
from mgpu_ngram.core.errors import InputError


@pytest.fixture
def machine(monkeypatch):
    """Return a function: machine(gpus=, cupy=, nvml=) sets the state; gpus None is a driver that does not answer."""

    def make(gpus=0, cupy=True, nvml=True, visible=None):
        class NVMLError(Exception):
            pass

        def init():
            if gpus is None:
                raise NVMLError("driver not loaded")

        fake = types.ModuleType("pynvml")
        fake.NVMLError, fake.nvmlInit, fake.nvmlShutdown = NVMLError, init, lambda: None
        fake.nvmlDeviceGetCount = lambda: gpus
        monkeypatch.setitem(sys.modules, "pynvml", fake if nvml else None)
        real, there = importlib.util.find_spec, {"cupy": cupy, "pynvml": nvml}
        found = types.SimpleNamespace()
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: (found if there[name] else None) if name in there else real(name)
        )
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


@pytest.mark.parametrize(
    ("state", "gpus"),
    [
        ({"gpus": 4}, 4),
        ({"gpus": 4, "visible": "0,2"}, 2),
        ({"gpus": 1, "visible": "0,1,2"}, 1),
        ({"gpus": 4, "visible": "GPU-1b2c"}, 1),
        ({"gpus": 4, "visible": ""}, 0),
        ({"gpus": 4, "visible": "-1"}, 0),
        ({"gpus": 0}, 0),
        ({"gpus": None}, 0),
        ({"gpus": 4, "nvml": False}, 0),
    ],
)
def test_visible_gpus(state, gpus, machine):
    machine(**state)
    assert devices.visible_gpus() == gpus
    assert devices.resolve_device("auto") == ("gpu" if gpus else "cpu")
    assert devices.resolve_device("cpu") == "cpu"


def test_auto_needs_cupy_too(machine):
    machine(gpus=2, cupy=False)
    assert devices.resolve_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"gpus": 2, "cupy": False}, r"CuPy is not installed; pip install -e '\.\[cuda13\]'"),
        ({"gpus": 2, "nvml": False}, "nvidia-ml-py, which finds GPUs, is not installed"),
        ({"gpus": 0}, r"CUDA_VISIBLE_DEVICES=unset\); check nvidia-smi, or use --device cpu"),
        ({"gpus": None}, "no (NVIDIA driver is loaded|GPU is visible)"),
        ({"gpus": 2, "visible": "-1"}, r"CUDA_VISIBLE_DEVICES=-1\)"),
    ],
)
def test_gpu_never_falls_back(state, message, machine):
    machine(**state)
    with pytest.raises(InputError, match=f"device is gpu but .*{message}"):
        devices.resolve_device("gpu")


def test_gpu_where_there_is_one(machine):
    machine(gpus=1)
    assert devices.resolve_device("gpu") == "gpu"


def test_unknown_device():
    with pytest.raises(InputError, match="device is 'tpu' but must be auto, cpu or gpu"):
        devices.resolve_device("tpu")


def test_host():
    assert devices.cpu_cores() >= 1
    assert 1 << 20 < devices.free_memory("cpu") < 1 << 50


@pytest.mark.parametrize(
    ("owners", "others"),
    [
        ([0, 33, 1000], False),  # the system, a daemon, and this process
        ([0, 1000, 1001], True),
        ([0, 1000, 65534], False),  # no user
        ([1000, None], False),  # a process that has just ended
    ],
)
def test_other_users_are_people(owners, others, monkeypatch):
    uids = [owner if owner is None else types.SimpleNamespace(real=owner) for owner in owners]
    processes = [types.SimpleNamespace(info={"uids": u}) for u in uids]
    monkeypatch.setattr(psutil, "process_iter", lambda names: processes)
    monkeypatch.setattr(devices.os, "getuid", lambda: 1000)
    assert devices.has_other_users() == others
