"""The bounds of distributions: the rates at which the device writes and copies; and times without the host's share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.cuda_source import compiled
from mgpu_ngram.benchmarks.harness.timing import measure
from mgpu_ngram.benchmarks.inputs.distribution_cases import WRITES, DistributionBench
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.kernels.launch import grid_for, launch

COPY = "copy"
THREADS = 256
WAVES = 8, 32, 1 << 30  # of blocks: loops of several lengths, and none; the best of them is the ceiling
SOURCE = """
extern "C" __global__ void write_16_bytes(uint4* room, i64 n, u32 value) {
  GRID_STRIDE_LOOP(i, n) room[i] = make_uint4(value, value, value, value);
}
"""


def ceilings(bench: DistributionBench) -> None:
    """Rows: writing the room, and copying half of it to the other half. They are always measured."""
    suite, room = bench.suite, bench.room
    suite.say("ceilings")
    with ThreadPoolExecutor(cpu_cores()) as pool:
        if suite.device == "gpu":
            writes = [partial(_write_16_bytes, room, waves) for waves in WAVES]
        else:
            writes = [partial(_write_in_cores, room, pool)]
        seconds = min((measure(call, suite.device) for call in writes), key=min)
    half = room.nbytes // 2
    copies = measure(partial(suite.xp.copyto, room[half : 2 * half], room[:half]), suite.device)
    for name, taken, notes in ((WRITES[suite.device], seconds, ""), (COPY, copies, "read and write counted")):
        sizes = f"{room.nbytes} bytes"
        row = suite.add(f"ceiling/{name}", sizes, taken, items=room.nbytes, unit="B/s", notes=notes)
        suite.ceilings[name] = row.rate or 0


def _write_16_bytes(room: Any, waves: int) -> None:
    n = room.nbytes // 16
    launch(compiled(SOURCE, "write_16_bytes"), grid_for(n, THREADS, waves=waves), THREADS, (room, n, np.uint32(0)))


def _write_in_cores(room: np.ndarray, pool: ThreadPoolExecutor) -> None:
    list(pool.map(lambda part: np.copyto(part, 0), np.array_split(room, cpu_cores())))
