"""A GPU for tests on machines without one. Arrays lie in files that another process may read while the owner lives.

Workers load this file with --preload; tests import it by the same name.
"""

import itertools
import os
import sys
import time
import types
from pathlib import Path

import numpy as np

from mgpu_ngram.cluster import lent_arrays, transport, worker

FOLDER = Path(os.environ.get("FAKE_GPU_FOLDER", "."))
numbers = itertools.count()
# Kept in a folder, because a preloaded file is imported more than once.
# imports: records of arrays that this process read from others. If the other files have any content:
# broken, the device no longer works; refuse, memory of peers cannot be opened; full, no memory is left
# slow, two paths and seconds: a copy creates the first file when it begins, then waits so long for the second
state = lent_arrays.__dict__.setdefault(
    "fake", types.SimpleNamespace(imports=[], broken=[], refuse=[], full=[], slow=[])
)


class FakeArray:
    """The part of cupy.ndarray that the cluster uses."""

    def __init__(self, data):
        self.data = data
        self.shape, self.dtype, self.nbytes, self.flags = data.shape, data.dtype, data.nbytes, data.flags

    def __reduce__(self):
        raise AssertionError("an array of a device was pickled")


def lend(arrays):
    records = []
    for array in arrays:
        path = FOLDER / f"{os.getpid()}-{next(numbers)}"
        path.write_bytes(array.data.tobytes())
        records.append({"shape": array.shape, "dtype": array.dtype.str, "handle": str(path)})
    return lent_arrays.Loan(records, [FakeArray(a.data.copy()) for a in arrays])


def import_arrays(records, on_host=False):
    if state.full and not on_host:
        raise MemoryError("no memory is left")
    if state.slow:
        begun, go_on, seconds = Path(state.slow[0]), Path(state.slow[1]), state.slow[2]
        begun.touch()
        deadline = time.monotonic() + seconds
        while not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        begun.with_suffix(".late" if time.monotonic() > deadline else ".done").touch()
    arrays = []
    for record in records:
        if state.refuse:
            raise RuntimeError("invalid handle")
        data = np.frombuffer(Path(record["handle"]).read_bytes(), record["dtype"]).reshape(record["shape"])
        arrays.append(data if on_host else FakeArray(data))
    state.imports.extend(records)
    return arrays


def install():
    lent_arrays.is_array = lambda value: type(value).__name__ == "FakeArray"
    lent_arrays.as_contiguous = lambda a: a if a.flags.c_contiguous else FakeArray(np.ascontiguousarray(a.data))
    lent_arrays.lend, lent_arrays.import_arrays = lend, import_arrays
    lent_arrays.copy_to_host, lent_arrays.copy_from_host = lambda a: a.data, FakeArray
    lent_arrays.wait_for_device = lambda: None
    lent_arrays.why_lost = lambda: "cudaErrorIllegalAddress: an illegal memory access" if state.broken else ""
    worker.resolve_device = lambda wanted: "cpu" if wanted == "cpu" else "gpu"
    worker.gpu_identity = lambda: f"GPU {os.getpid()}"
    sys.modules["cupy"] = types.SimpleNamespace(__version__="14.0.0")


def dask_setup(worker):
    install()
    if worker.name == 2:
        transport.host_identity = lambda: "another host"
