"""Rates of the machine that rows are compared with: copies, writes, and random reads."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.cuda_source import compiled
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.timing import BUDGET_SECONDS, MAX_RUNS, MIN_RUNS, measure
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.models.distributions import CHUNK_BYTES
from mgpu_ngram.core.storage.output import write_at
from mgpu_ngram.kernels.launch import grid_for, launch

PAUSE_CYCLES = 4_000_000  # about 2 ms: the host has queued a call by then
SECTORS, LINES = "random 32-byte sectors", "random 128-byte lines"
READ_BYTES = {SECTORS: 32, LINES: 128}
READS = 1 << 27
THREADS = 256
# Tables hold zeros: nothing is written, and the compiler cannot know. A sector is read by a thread, a line by a warp.
SOURCE = """
extern "C" __global__ void random_sectors(const uint4* table, i64 sectors, i64 reads, u32* out) {
  u32 sum = 0;
  GRID_STRIDE_LOOP(i, reads) sum += table[2 * __umul64hi(mix64(i + 1), sectors)].x;
  if (sum) *out = sum;
}
extern "C" __global__ void random_lines(const u32* table, i64 lines, i64 reads, u32* out) {
  u32 sum = 0;
  GRID_STRIDE_LOOP(i, 32 * reads) sum += table[32 * __umul64hi(mix64(i / 32 + 1), lines) + i % 32];
  if (sum) *out = sum;
}
extern "C" __global__ void pause(i64 cycles) {
  for (const i64 start = clock64(); clock64() - start < cycles;) {}
}
"""
KERNELS = {SECTORS: "random_sectors", LINES: "random_lines"}


def device_seconds(call: Callable[[], Any], device: str) -> list[float]:
    """As `timing.measure`, without what the host takes to start kernels: they queue up while the GPU pauses."""
    if device == "cpu":
        return measure(call, device)
    import cupy

    pause, before, after = compiled(SOURCE, "pause"), cupy.cuda.Event(), cupy.cuda.Event()
    seconds: list[float] = []
    call()
    while len(seconds) < MIN_RUNS or (len(seconds) < MAX_RUNS and sum(seconds) < BUDGET_SECONDS[device]):
        launch(pause, 1, 1, (PAUSE_CYCLES,))
        before.record()
        call()
        after.record()
        after.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(before, after) / 1000)
    return seconds


def write_plainly(folder: Path, size_bytes: int, threads: int, durable: bool = False) -> float:
    """Return the seconds that threads take to write new files of `size_bytes` in total; the folder is deleted.

    durable  until all bytes are on the disk

    Each thread writes its own bytes from memory, because bytes that all share would stay in the cache.
    """
    bytes_C = np.random.default_rng(0).integers(0, 256, min(CHUNK_BYTES, size_bytes), np.uint8)
    data = np.tile(bytes_C, (threads, 1))
    folder.mkdir()

    def write(first: int) -> None:
        with open(folder / f"{first}", "wb") as file:
            done, part = 0, data[first // CHUNK_BYTES % threads][: size_bytes - first]
            while done < len(part):
                done += write_at(file.fileno(), part[done:], done)
            if durable:
                os.fsync(file.fileno())

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(0, size_bytes, len(bytes_C))))
    seconds = time.perf_counter() - start
    found = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    if found != size_bytes:
        raise RunError(f"{folder} has {found:,} bytes, not {size_bytes:,}; nothing else may write there")
    return seconds


def random_reads(suite: Suite, kind: str, table_bytes: int) -> str:
    """Measure independent random reads of a table; return the name under which `suite.ceilings` has bytes a second."""
    import cupy

    name = f"{kind} of {table_bytes / 2**20:,.0f} MiB"
    table, out = cupy.zeros(table_bytes // 128 * 32, np.uint32), cupy.zeros(1, np.uint32)
    rows = table.nbytes // READ_BYTES[kind]
    fn = compiled(SOURCE, KERNELS[kind])
    threads = READS * (32 if kind == LINES else 1)
    call = partial(launch, fn, grid_for(threads, THREADS), THREADS, (table, rows, READS, out))
    row = suite.run(
        f"ceiling/{kind}", f"{table.nbytes} bytes", call, items=READS, unit="reads/s",
        bytes_moved=READS * READ_BYTES[kind],
    )  # fmt: skip
    if row.bytes_per_second:
        suite.ceilings[name] = row.bytes_per_second
    return name
