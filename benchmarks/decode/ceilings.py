"""The bound of the fused pass: a plain read of the same bytes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.cuda_source import compiled
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.kernels.launch import grid_for, launch

READ = "read of the same bytes"
THREADS = 256
WAVES = 4, 8, 16, 32  # of blocks; the best of them is the bound
SOURCE = """
// Nothing is written: arrays hold no such sums, and the compiler cannot know.
extern "C" __global__ void read_16_bytes(const uint4* array, i64 n, u32* out) {
  const i64 stride = (i64)gridDim.x * blockDim.x;
  u32 sum = 0;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * stride) {
    uint4 part[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) part[u] = i + u * stride < n ? array[i + u * stride] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < 4; ++u) sum += part[u].x ^ part[u].y ^ part[u].z ^ part[u].w;
  }
  if (sum == 0x9E3779B9u) *out = sum;
}
"""


def read_rate(suite: Suite, array: Any, sizes: str) -> float:
    """Add a row: reading a contiguous array. Return its bytes a second, which `suite.ceilings` has as READ, too."""
    if suite.device == "gpu":
        seconds = min((device_seconds(partial(_read, array, waves), "gpu") for waves in WAVES), key=min)
    else:
        seconds = device_seconds(array.reshape(-1).view(np.uint64).sum, "cpu")
    row = suite.add(f"ceiling/{READ}", sizes, seconds, items=array.nbytes, unit="B/s")
    suite.ceilings[READ] = row.rate or 0.0
    return suite.ceilings[READ]


def _read(array: Any, waves: int) -> None:
    n = array.nbytes // 16
    launch(compiled(SOURCE, "read_16_bytes"), grid_for(n, THREADS, waves=waves), THREADS, (array, n, _out()))


@cache
def _out() -> Any:
    import cupy

    return cupy.zeros(1, np.uint32)
