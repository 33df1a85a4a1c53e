"""A suite: the device, its measured ceilings, and the rows so far, for all parts of a bench."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np

from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.origin import origin, processor
from mgpu_ngram.benchmarks.harness.rows import Row, one_line, write_rows
from mgpu_ngram.benchmarks.harness.timing import measure
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory_config import AUTO_DEVICE_SHARE, AUTO_HOST_SHARE
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.device import free_bytes, synchronize
from mgpu_ngram.engine.memory.out_of_memory import out_of_memory

DOES_NOT_FIT = "does not fit"
CEILING_BYTES = {"gpu": 1 << 30, "cpu": 1 << 28}
SORTED_KEYS = {"gpu": 1 << 27, "cpu": 1 << 22}


class WrongResult(RunError):
    """A kernel disagrees with its oracle, so it is not timed."""


class Suite:
    """Collect rows.

    device    "cpu" or "gpu"
    csv_path  where `save` puts the rows; nowhere when None
    command   that repeats the bench, for the rows
    xp        NumPy or CuPy, by device
    """

    def __init__(self, device: str, csv_path: Path | None = None, command: str = ""):
        self.device, self.csv_path = device, csv_path
        self.name, self.version, self.xp = _describe(device)
        self.origin: dict[str, Any] = {**origin(), "command": command}
        self.rows: list[Row] = []
        self._shown = 0  # rows that have been printed
        self.ceilings: dict[str, float] = {}  # bytes per second

    def say(self, what: str) -> None:
        """Print what is measured next to stderr, after the rows so far, which are saved: a bench may be ended early."""
        self._show_rows()
        print(f"bench: {what}", file=sys.stderr, flush=True)

    def run(
        self,
        kernel: str,
        sizes: str,
        call: Callable[..., Any],
        *,
        check: Callable[[Any], None] | None = None,
        setup: Callable[[], Any] | None = None,
        runs: int | None = None,
        **how: Any,
    ) -> Row:
        """Check what `call` returns, then time it and add a row. Running out of memory gives a row that says so.

        how  as for `add`
        """
        try:
            if check:
                check(call() if setup is None else call(setup()))
                self.release()
            seconds = measure(call, self.device, setup, runs, warm_up=check is None or self.device == "gpu")
            return self.add(kernel, sizes, seconds, **how)
        except Exception as error:
            if not out_of_memory(error) and not (isinstance(error, RunError) and "memory while" in str(error)):
                raise
            self.release()
            return self.add_note(kernel, sizes, f"{DOES_NOT_FIT}: {' '.join(str(error).split())}")

    def add(
        self,
        kernel: str,
        sizes: str,
        seconds: Sequence[float],
        *,
        items: float,
        unit: str,
        bytes_moved: int | None = None,
        ceiling: str = "",
        target: float | None = None,
        baseline: str = "",
        baseline_seconds: float | None = None,
        notes: str = "",
    ) -> Row:
        """Add a row for runs that took `seconds` each, of `items` items each; `unit` is a rate, such as "tokens/s"."""
        median = statistics.median(seconds)
        row = self._row(kernel, sizes, notes)
        row.runs, row.median_seconds, row.min_seconds, row.max_seconds = (
            len(seconds),
            median,
            min(seconds),
            max(seconds),
        )
        row.rate, row.rate_unit, row.target = items / median, unit, target
        if bytes_moved is not None:
            row.bytes_moved, row.bytes_per_second = bytes_moved, bytes_moved / median
        if bytes_moved is not None and ceiling in self.ceilings:
            row.ceiling, row.ceiling_bytes_per_second = ceiling, self.ceilings[ceiling]
            row.floor_seconds = bytes_moved / row.ceiling_bytes_per_second
            row.share_of_ceiling = row.floor_seconds / median
        if baseline_seconds is not None:
            row.baseline, row.speedup = baseline, baseline_seconds / median
        self.rows.append(row)
        return row

    def add_note(self, kernel: str, sizes: str, notes: str) -> Row:
        """Add a row without a time, which says why."""
        self.rows.append(self._row(kernel, sizes, notes))
        return self.rows[-1]

    def _row(self, kernel: str, sizes: str, notes: str) -> Row:
        return Row(kernel, sizes, self.name, self.version, notes=notes, **self.origin)

    def release(self) -> None:
        """Give cached device memory back, so that each measurement finds the same memory."""
        if self.device == "gpu":
            synchronize(self.device)
            self.xp.get_default_memory_pool().free_all_blocks()

    def save(self) -> None:
        """Put the rows so far into the CSV file."""
        if self.csv_path is not None:
            write_rows(self.rows, self.csv_path)

    def measure_part(self, part: Callable[..., None], *arguments: Any) -> None:
        """Run a part of a bench; print its rows to stderr and save them."""
        part(*arguments)
        self.release()
        self._show_rows()

    def _show_rows(self) -> None:
        """Print the rows that have not been printed, and save all."""
        for row in self.rows[self._shown :]:
            print(f"bench: {one_line(row)}", file=sys.stderr, flush=True)
        if self.rows:
            self._shown = len(self.rows)
            self.save()

    def free_bytes(self) -> int:
        """Return the memory that the next measurement may use."""
        self.release()
        return free_bytes(self.device)

    def budget(self) -> Budget:
        """Return the budget of the engine, as in a run."""
        device_bytes = int(AUTO_DEVICE_SHARE * free_bytes("gpu")) if self.device == "gpu" else 0
        return Budget(self.device, device_bytes, int(AUTO_HOST_SHARE * free_bytes("cpu")))

    def measure_ceilings(self) -> None:
        """Measure the best rates of this machine, which bound all other rows."""
        self.say("ceilings")
        xp, n = self.xp, CEILING_BYTES[self.device] // 8
        rng = np.random.default_rng(0)
        source = xp.asarray(rng.integers(0, 2**63, n // 8, dtype=np.uint64).repeat(8))
        target = xp.empty_like(source)
        self._ceiling("copy", partial(xp.copyto, target, source), 16 * n, "read and write counted")
        self._ceiling("read", source.sum, 8 * n, "a sum")
        if self.device == "gpu":
            import cupyx

            pinned = cupyx.empty_pinned(n, np.uint64)
            pinned[:] = rng.integers(0, 2**63)
            self._ceiling("pinned host to device", partial(target.set, pinned), 8 * n)
        keys = xp.asarray(rng.integers(0, 2**63, SORTED_KEYS[self.device], dtype=np.uint64))
        sizes = f"{len(keys)} uint64 keys"
        self.run(f"ceiling/{xp.__name__}.sort", sizes, partial(xp.sort, keys), items=len(keys), unit="keys/s")

    def _ceiling(self, name: str, call: Callable[[], Any], size_bytes: int, notes: str = "") -> None:
        row = self.run(f"ceiling/{name}", f"{size_bytes} bytes", call, items=size_bytes, unit="B/s", notes=notes)
        if row.rate:
            self.ceilings[name] = row.rate


def open_suite(name: str, options: BenchOptions) -> Suite:
    """Return the suite of `bench NAME`, which saves NAME.csv. Raises InputError without matplotlib, for pictures."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(f"the figures need matplotlib ({error}); pip install 'mgpu-ngram[bench]'") from None
    suite = Suite(options.device, Path(options.results) / f"{name}.csv", options.command(name))
    suite.say(f"{suite.name}; {suite.version}")
    return suite


def _describe(device: str) -> tuple[str, str, Any]:
    """(name of the device, versions, array module)."""
    if device == "gpu":
        import cupy

        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        cuda = cupy.cuda.runtime.runtimeGetVersion()
        return name, f"mgpu-ngram {VERSION}, cupy {cupy.__version__}, CUDA {cuda // 1000}.{cuda % 1000 // 10}", cupy
    cores = len(os.sched_getaffinity(0))
    version = f"mgpu-ngram {VERSION}, numpy {np.__version__}, numba {numba.__version__}"
    return f"{processor()}, {cores} cores", version, np
