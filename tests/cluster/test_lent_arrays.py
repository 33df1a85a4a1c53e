"""Lent arrays arrive, through the CUDA calls of `cluster.lent_arrays`, with host memory in place of device memory."""

import contextlib
import ctypes
import sys
import types
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.cluster import lent_arrays

ROOM = 4096  # bytes of a lent allocation, and
SLAB = 1 << 16  # of the slab


class Array(np.ndarray):
    """The part of cupy.ndarray that can be lent."""

    data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data))


class Memory:
    def __init__(self, nbytes):
        self.array = np.full(nbytes, 255, np.uint8)
        self.ptr, self.size = self.array.ctypes.data, nbytes


class Stream:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass

    def record(self):
        pass

    def wait_event(self, event):
        pass

    ptr = 0


class Device:
    """Stands in for `cupy`: handles are addresses, and open handles are counted."""

    def __init__(self):
        self.open, self.allocated = [], []

        def allocate(nbytes):
            self.allocated.append(Memory(nbytes))
            return self.allocated[-1]

        def copy(to, source, nbytes, kind, stream):
            ctypes.memmove(to, source, nbytes)

        def open_handle(handle):
            assert handle not in self.open, "a process may not open the same allocation twice"
            self.open.append(handle)
            return int.from_bytes(handle, "little")

        runtime = types.SimpleNamespace(
            ipcGetMemHandle=lambda ptr: ptr.to_bytes(8, "little"),
            ipcOpenMemHandle=open_handle,
            ipcCloseMemHandle=lambda ptr: self.open.remove(ptr.to_bytes(8, "little")),
            memcpyAsync=copy,
            memcpyDeviceToDevice=3,
            memcpyDefault=4,
            CUDARuntimeError=RuntimeError,
        )
        stream = types.SimpleNamespace(null=Stream())
        make_stream = type("Streams", (Stream,), {"null": stream.null, "__init__": lambda self, non_blocking: None})
        memory = types.SimpleNamespace(Memory=allocate)
        self.module = types.ModuleType("cupy")
        self.module.cuda = types.ModuleType("cupy.cuda")
        vars(self.module.cuda).update(runtime=runtime, Stream=make_stream, memory=memory)
        self.module.ndarray = Array
        self.module.empty = lambda shape, dtype: np.empty(shape, dtype).view(Array)
        self.module.ascontiguousarray = lambda array: np.ascontiguousarray(array).view(Array)


@contextlib.contextmanager
def device():
    with pytest.MonkeyPatch.context() as patch:
        made = Device()
        patch.setitem(sys.modules, "cupy", made.module)
        patch.setitem(sys.modules, "cupy.cuda", made.module.cuda)
        patch.setattr(lent_arrays, "LENT_BYTES", ROOM)
        patch.setattr(lent_arrays, "_slab", None)
        patch.setattr(lent_arrays, "_copies", None)
        patch.setattr(lent_arrays, "_lasting", {})
        slab = np.zeros(SLAB, np.uint8)
        handle = slab.ctypes.data.to_bytes(8, "little")
        made.slab, made.whole = slab, lent_arrays._Slab(slab.ctypes.data, SLAB, None, handle)
        yield made


SLICES = st.builds(slice, st.integers(0, 8), st.integers(0, 70), st.sampled_from([1, 1, 1, 2]))
ARRAYS = st.tuples(
    st.sampled_from(["u1", "<i4", "<u8"]), st.sampled_from([(0, 5), (1, 70), (3, 70), (70, 3), (210,), (70, 70)]),
    SLICES, SLICES, st.booleans(),
)  # fmt: skip


def make(dtype, shape, rows, columns, turned, into):
    """An array with a view of part of it, in memory that begins `into` bytes after a boundary."""
    whole = np.frombuffer(into, dtype, int(np.prod(shape))).reshape(shape).view(Array)
    whole[...] = np.arange(whole.size).reshape(shape) % 251
    part = whole[rows] if len(shape) == 1 else whole[rows, columns]
    return part.T if turned else part


@given(plans=st.lists(st.tuples(ARRAYS, st.booleans()), max_size=6), on_host=st.booleans())
def test_views_of_any_kind_arrive(plans, on_host):
    with device() as made:
        lent_arrays._slab = made.whole
        arrays, used = [], 0
        for plan, in_slab in plans:
            size = int(np.prod(plan[1])) * np.dtype(plan[0]).itemsize
            in_slab = in_slab and used + size <= SLAB
            into = made.slab[used : used + size] if in_slab else np.empty(size, np.uint8)
            used += -(-size // 8) * 8 if in_slab else 0
            arrays.append(make(*plan, into))
        loan = lent_arrays.lend(arrays)
        assert all(nbytes > 0 for record in loan.records for _, _, nbytes in record["segments"])
        for _ in range(2):  # lent once, read by two
            there = lent_arrays.import_arrays(loan.records, on_host)
            for array, copy in zip(arrays, there, strict=True):
                assert (copy.shape, copy.dtype, copy.flags.c_contiguous) == (array.shape, array.dtype, True)
                assert np.array_equal(copy, array) and not np.shares_memory(copy, array)
        lasting = any(r["lasting"] and r["segments"] for r in loan.records)
        assert made.open == [made.whole.handle] * lasting, "a loan for one reader is closed"
        assert all(memory.size <= ROOM for memory in made.allocated)
        lent_arrays.close_lasting()
        assert made.open == []


def test_rows_of_the_slab_are_not_copied():
    with device() as made:
        lent_arrays._slab = made.whole
        keys = make("<u8", (3, 70), slice(None), slice(8, 50), False, made.slab)
        [record] = lent_arrays.lend([keys]).records
        assert record["segments"] == [(made.whole.handle, 8 * (70 * c + 8), 8 * 42) for c in range(3)]
        assert made.allocated == []


def test_many_short_rows_are_one_piece():
    with device() as made:
        lent_arrays._slab = made.whole
        [record] = lent_arrays.lend([make("<u8", (70, 3), slice(None), slice(0, 2), False, made.slab)]).records
        assert sum(nbytes for _, _, nbytes in record["segments"]) == 70 * 2 * 8
        assert len(record["segments"]) < lent_arrays.MAX_PIECES


def test_a_copy_in_the_slab_lives_as_long_as_the_loan(monkeypatch):
    with device() as made:
        lent_arrays._slab = made.whole
        copies = []

        def contiguous(array):  # the pool allocates it in the slab
            room = made.slab[: array.nbytes]
            copies.append(weakref.ref(copy := np.frombuffer(room, array.dtype).reshape(array.shape).view(Array)))
            copy[...] = array
            return copy

        monkeypatch.setattr(lent_arrays, "as_contiguous", contiguous)
        array = make("<u8", (70, 3), slice(None), slice(0, 2), False, np.empty(70 * 3 * 8, np.uint8))
        loan = lent_arrays.lend([array])
        assert loan.records[0]["lasting"] and copies[0]() is not None
        assert np.array_equal(lent_arrays.import_arrays(loan.records)[0], array)


def test_rows_outside_fill_allocations():
    with device() as made:
        array = make("<u8", (3, 300), slice(None), slice(0, 290), False, np.empty(3 * 300 * 8, np.uint8))
        loan = lent_arrays.lend([array])
        assert [memory.size for memory in made.allocated] == [ROOM, 3 * -(-290 * 8 // 256) * 256 - ROOM]
        assert np.array_equal(lent_arrays.import_arrays(loan.records)[0], array)
