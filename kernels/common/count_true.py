"""Count the True of a mask.

CuPy's `any`, `all`, `count_nonzero` and sum of a mask take 3 to 5 s to compile at the first run on a machine: they use
CUB's templates. This kernel takes 0.1 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS, PER_THREAD = 256, 64  # bytes of a thread, about


def count_true(mask: Any) -> int:
    """Return the number of True in a mask, a bool array of any shape."""
    check.dtype(mask, np.bool_)
    return int(pick(cpu=_cpu, cuda=_cuda, mask=mask)(mask))


def _cpu(mask):
    return np.count_nonzero(mask)


def _cuda(mask):
    import cupy

    counted = cupy.zeros(1, np.uint64)
    if N := mask.size:
        args = (cupy.ascontiguousarray(mask), N, counted)
        launch(kernel("common/count_true", "count_true"), grid_for(N, THREADS, PER_THREAD), THREADS, args)
    return counted[0]


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a mask that begins between two vectors of 16 bytes."""
    return {"mask": (rng.random(size + 3) < 0.3)[3:]}
