"""Clocks, power and temperature of the current GPU, read by NVML while it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clocks:
    """The state of a GPU at one moment; `limits` holds NVML's bits of why clocks are below the highest."""

    sm_mhz: int
    memory_mhz: int
    watts: float
    celsius: int
    limits: int

    def __str__(self) -> str:
        limits = f", limited by {self.limits:#x}" if self.limits else ""
        return f"SM {self.sm_mhz} MHz, memory {self.memory_mhz} MHz, {self.watts:.0f} W, {self.celsius} C{limits}"


def open_clocks() -> Any | None:
    """Return NVML's handle of the current GPU; None without CuPy, NVML or a GPU."""
    try:
        import cupy
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByPciBusId(cupy.cuda.Device().pci_bus_id)
    except (ImportError, OSError):
        return None
    except pynvml.NVMLError:
        return None


def read_clocks(handle: Any) -> Clocks:
    """Return the state of the GPU with this handle."""
    import pynvml

    return Clocks(
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
