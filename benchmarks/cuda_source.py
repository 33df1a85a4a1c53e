"""CUDA kernels that only measure, whose sources are in their benches."""

from __future__ import annotations

from functools import cache
from typing import Any

from mgpu_ngram.kernels.launch import FOLDER, OPTIONS


def with_common(source: str) -> str:
    """Return a source after include/common.cuh, as the compiler takes it."""
    return (FOLDER / "include" / "common.cuh").read_text() + source


@cache
def compiled(source: str, name: str) -> Any:
    """Return the kernel of a source."""
    import cupy

    return cupy.RawKernel(with_common(source), name, options=OPTIONS)
