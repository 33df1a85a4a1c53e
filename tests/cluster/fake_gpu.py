"""A GPU for tests without one: its arrays lie in files, which another process may read while their owner lives.

Workers load this file with --preload; tests import it by the same name.
"""

import itertools
import os
import sys
import types
from pathlib import Path

import numpy as np

from mgpu_ngram.cluster import gpu, transport, worker

FOLDER = Path(os.environ.get("FAKE_GPU_FOLDER", "."))
numbers = itertools.count()
imports = []  # records that this process read from others
broken = []  # any content: the device does not work any more
refuse = []  # any content: memory of others cannot be opened
full = []  # any content: no memory is left


class FakeArray:
    """As much of cupy.ndarray as the cluster uses."""

    def __init__(self, data):
        self.data = data
        self.shape, self.dtype, self.nbytes, self.flags = data.shape, data.dtype, data.nbytes, data.flags

    def __reduce__(self):
        raise AssertionError("an array of a device was pickled")


def export_array(array):
    assert array.flags.c_contiguous
    path = FOLDER / f"{os.getpid()}-{next(numbers)}"
    path.write_bytes(array.data.tobytes())
    return {"shape": array.shape, "dtype": array.dtype.str, "handle": str(path)}


def import_arrays(records):
    if full:
        raise MemoryError("no memory is left")
    arrays = []
    for record in records:
        if refuse:
            raise RuntimeError("invalid handle")
        data = np.frombuffer(Path(record["handle"]).read_bytes(), record["dtype"]).reshape(record["shape"])
        arrays.append(FakeArray(data))
    imports.extend(records)
    return arrays


def install():
    gpu.is_array = lambda value: isinstance(value, FakeArray)
    gpu.contiguous = lambda a: a if a.flags.c_contiguous else FakeArray(np.ascontiguousarray(a.data))
    gpu.export_array, gpu.import_arrays = export_array, import_arrays
    gpu.to_host, gpu.from_host = lambda a: a.data, FakeArray
    gpu.synchronize = lambda: None
    gpu.why_lost = lambda: "cudaErrorIllegalAddress: an illegal memory access" if broken else ""
    worker.resolve_device = lambda wanted: "cpu" if wanted == "cpu" else "gpu"
    worker.gpu_identity = lambda: f"GPU {os.getpid()}"
    sys.modules["cupy"] = types.SimpleNamespace(__version__="14.0.0")


def dask_setup(worker):
    install()
    if worker.name == 2:
        transport.host_identity = lambda: "another host"
