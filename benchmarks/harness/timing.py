"""Time a call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from mgpu_ngram.engine.memory.device import synchronize

MIN_RUNS, MAX_RUNS = 3, 15
BUDGET_SECONDS = {"gpu": 1.0, "cpu": 1.5}  # for one row, without the warm-up; slow calls still get MIN_RUNS


def measure(
    call: Callable[..., Any],
    device: str,
    setup: Callable[[], Any] | None = None,
    runs: int | None = None,
    warm_up: bool = True,
) -> list[float]:
    """Return the seconds of several calls after a warm-up: by CUDA events around each on a GPU, else by the clock.

    setup  makes the argument of each call, untimed: for calls that use up their input
    runs   how many; by default as many as a second or so allows, at least 3

    Python collects no garbage meanwhile, as in its module `timeit`: with peers that are loaded beside, such as PyTorch,
    that takes 0.2 s.
    """
    seconds: list[float] = []
    if warm_up:
        _time_once(call, device, setup)
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        while len(seconds) < (runs or MAX_RUNS):
            if runs is None and len(seconds) >= MIN_RUNS and sum(seconds) > BUDGET_SECONDS[device]:
                break
            seconds.append(_time_once(call, device, setup))
    finally:
        if was_enabled:
            gc.enable()
    return seconds


def _time_once(call: Callable[..., Any], device: str, setup: Callable[[], Any] | None) -> float:
    arguments = () if setup is None else (setup(),)
    if device == "cpu":
        start = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - start
    import cupy

    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    synchronize(device)
    before.record()
    call(*arguments)
    after.record()
    after.synchronize()
    return cupy.cuda.get_elapsed_time(before, after) / 1000
