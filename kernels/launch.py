"""Compile a .cu file once per process (NVRTC, kept on disk by CuPy) and launch its kernels."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cache_folders import cupy_folder
from .compile_cpu import announce

COMPILING_CUDA = "compiling CUDA kernels, once per machine"
FOLDER = Path(__file__).parent
LANES = 32  # lanes of a warp
OPTIONS = ("-std=c++17",)
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


def source(stem: str, defines: dict[str, Any] | None = None) -> str:
    """Return the text of `kernels/<stem>.cu` with its headers and `defines` inserted.

    Headers are inserted into the text: CuPy keys its cache on disk by the text, so after an edit of a header no stale
    binary is used.
    """
    text = (FOLDER / f"{stem}.cu").read_text()
    text = INCLUDE.sub(lambda m: (FOLDER / "include" / m[1]).read_text(), text)
    head = "".join(f"#define {k} {v}\n" for k, v in (defines or {}).items())
    return head + text


@functools.cache
def announce_compilation() -> None:
    """Announce the compilation if no compiled kernels are kept."""
    folder = cupy_folder()
    if folder.is_dir() and not any(folder.iterdir()):
        announce(COMPILING_CUDA)


@functools.cache
def _module(stem: str, defines: tuple[tuple[str, Any], ...], device: int) -> Any:
    import cupy

    announce_compilation()
    return cupy.RawModule(code=source(stem, dict(defines)), options=OPTIONS)


def kernel(stem: str, name: str, **defines: Any) -> Any:
    """Return the compiled kernel `name` of `kernels/<stem>.cu` for the current device."""
    import cupy

    return _function(stem, name, tuple(sorted(defines.items())), cupy.cuda.runtime.getDevice())


@functools.cache
def _function(stem: str, name: str, defines: tuple[tuple[str, Any], ...], device: int) -> Any:
    return _module(stem, defines, device).get_function(name)


@functools.cache
def device_limits(device: int) -> tuple[int, int]:
    """Return (multiprocessors, bytes of shared memory that one block may request) of a device."""
    import cupy

    p = cupy.cuda.Device(device).attributes
    return p["MultiProcessorCount"], p["MaxSharedMemoryPerBlockOptin"]


def current_limits() -> tuple[int, int]:
    """Return the `device_limits` of the current device."""
    import cupy

    return device_limits(cupy.cuda.runtime.getDevice())


def grid_for(n: int, threads: int, per_thread: int = 1, waves: int = 32) -> int:
    """Return the number of blocks for a grid-stride loop over `n` items: enough to fill the device, at least 1."""
    blocks = -(-n // (threads * per_thread))
    return max(1, min(blocks, current_limits()[0] * waves))


def launch(
    fn: Any, blocks: int | tuple[int, ...], threads: int | tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
) -> None:
    """Launch on the current stream; tuples are grids and blocks of x, y and z. Dynamic shared memory above 48 KiB
    is requested here.

    A launch that the driver refuses raises at once (CUDADriverError); an error inside the kernel
    raises at the next synchronisation.
    """
    if shared_bytes and shared_bytes + fn.shared_size_bytes > 48 * 1024:
        fn.max_dynamic_shared_size_bytes = shared_bytes
    grid = blocks if isinstance(blocks, tuple) else (blocks,)
    block = threads if isinstance(threads, tuple) else (threads,)
    fn(grid, block, tuple(args), shared_mem=shared_bytes)
