"""Compile CUDA kernels of benches; a bench holds the source of its kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

from mgpu_ngram.kernels.launch import FOLDER, OPTIONS


def with_common(source: str) -> str:
    """Return a source with include/grid.cuh and include/integer_hash.cuh in front, ready to compile."""
    return "".join((FOLDER / "include" / f"{name}.cuh").read_text() for name in ("grid", "integer_hash")) + source


@cache
def compiled(source: str, name: str) -> Any:
    """Return the kernel of a source."""
    import cupy

    return cupy.RawKernel(with_common(source), name, options=OPTIONS)
