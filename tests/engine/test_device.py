"""Where arrays are, how long things took, what an out-of-memory error says."""

import gc
import gzip
import os
import zlib

import numpy as np
import pytest

from mgpu_ngram.core.corpus import open_corpus
from mgpu_ngram.core.crc import combine_crc32
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine import device as device_module
from mgpu_ngram.engine.device import (
    RING_SLOTS,
    Stopwatch,
    add_seconds,
    device_blocks,
    each_slice,
    free_bytes,
    memory_guard,
    out_of_memory,
    synchronize,
    to_device,
    to_device_together,
    to_host_fast,
)
from mgpu_ngram.kernels.dispatch import on_gpu, to_host


def test_to_device(device):
    array = np.arange(5)
    moved = to_device(array, device)
    assert on_gpu(moved) == (device == "gpu")
    assert to_host(moved).tolist() == [0, 1, 2, 3, 4]
    assert device == "gpu" or moved is array


def test_a_small_copy_to_the_host(to_device):
    for array in (np.arange(6), np.arange(6).reshape(2, 3), np.empty((2, 0))):
        found = to_host_fast(to_device(array))
        assert isinstance(found, np.ndarray) and found.tolist() == array.tolist()
    host = np.arange(5)
    assert to_host_fast(host) is host


@pytest.mark.gpu
@pytest.mark.parametrize("slice_bytes", [8, 1000, 4096])
def test_a_large_copy_to_the_host(slice_bytes, monkeypatch):
    """In slices, by several threads: whole arrays, and views that leave out first and last columns."""
    import cupy

    monkeypatch.setattr(device_module, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(device_module, "_pinned_slices", {})  # of this size
    for array in (np.arange(5001), np.arange(5001, dtype=np.uint64).reshape(3, 1667)):
        there = cupy.asarray(array)
        for view, expected in [(there, array), (there[..., 7:-9], array[..., 7:-9]), (there[..., :1], array[..., :1])]:
            found = to_host_fast(view)
            assert found.dtype == array.dtype and found.shape == expected.shape and (found == expected).all()


@pytest.mark.gpu
@pytest.mark.parametrize("slice_bytes", [64, 1000, 1 << 20])
def test_many_arrays_copied_together(slice_bytes, monkeypatch):
    """Rows and views of rows, empty ones too; what is on the GPU stays as it is."""
    import cupy

    monkeypatch.setattr(device_module, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(device_module, "_pinned_slices", {})  # of this size
    base = np.random.default_rng(0).integers(0, 1 << 63, (3, 400), np.uint64)
    there = cupy.arange(7)
    arrays = [base[:2, 5:305], base[0, 7:99].astype(np.int64), there, base[:, :0], base[:1, 3:4].astype(np.uint8), base]
    found = to_device_together(arrays, "gpu")
    assert found[2] is there
    for array, copy in zip(arrays, found, strict=True):
        assert on_gpu(copy) and copy.dtype == array.dtype and copy.shape == array.shape
        assert (to_host(copy) == to_host(array)).all()
    assert to_device_together(arrays[:1], "cpu")[0] is arrays[0]


@pytest.mark.parametrize("slice_bytes", [2, 1000, 1 << 20])
def test_slices_are_the_whole(slice_bytes, to_device, monkeypatch):
    """Each byte comes once, at its place, from whatever thread."""
    monkeypatch.setattr(device_module, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(device_module, "_pinned_slices", {})  # of this size
    whole = np.random.default_rng(0).integers(0, 1 << 16, (7, 11, 13), np.uint16)
    for array in (whole, whole[:1], whole[:0]):
        found, times = np.zeros(array.nbytes, np.uint8), np.zeros(array.nbytes, int)

        def take(first, data, found=found, times=times):
            assert isinstance(data, np.ndarray) and 0 < len(data) <= slice_bytes
            found[first : first + len(data)] = data
            times[first : first + len(data)] += 1

        each_slice(to_device(array), take, 3)
        assert found.tobytes() == array.tobytes() and (times == 1).all()


def test_a_slice_that_fails(to_device):
    def fail(first, data):
        raise RunError("no room")

    with pytest.raises(RunError, match="^no room$"):
        each_slice(to_device(np.arange(5)), fail, 2)


def test_free_bytes_is_less_than_all_there_is(device):
    assert 0 < free_bytes(device) < 1 << 50
    if device == "cpu":
        assert free_bytes(device) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_stopwatch_charges_each_second_once(device, monkeypatch):
    times = iter([10.0, 12.0, 15.0, 15.5])
    monkeypatch.setattr("mgpu_ngram.engine.device.time.perf_counter", lambda: next(times))
    watch = Stopwatch(device, _last=next(times))
    for stage in ("read", "count", "read"):
        watch.lap(stage)
    assert watch.seconds == {"read": 2.5, "count": 3.0}
    synchronize(device)


def test_time_spent_waiting_is_shared_as_the_busy_seconds(monkeypatch):
    times = iter([10.0, 16.0, 18.0])
    monkeypatch.setattr("mgpu_ngram.engine.device.time.perf_counter", lambda: next(times))
    watch = Stopwatch("cpu", {"read": 1.0}, _last=next(times))
    watch.lap_shared({"read": 20.0, "copy": 10.0})
    assert watch.seconds == {"read": 5.0, "copy": 2.0}
    watch.lap("count")
    assert watch.seconds == {"read": 5.0, "copy": 2.0, "count": 2.0}


def test_add_seconds():
    assert add_seconds() == {}
    assert add_seconds({"read": 1.0}, {}, {"read": 2.0, "count": 4.0}) == {"read": 3.0, "count": 4.0}


def test_out_of_memory_is_told_from_other_errors():
    class OutOfMemoryError(MemoryError):
        """As CuPy's."""

    assert out_of_memory(MemoryError()) and out_of_memory(OutOfMemoryError())
    assert out_of_memory(np._core._exceptions._ArrayMemoryError((1 << 60,), np.dtype(np.uint8)))
    assert not out_of_memory(ValueError("memory")) and not out_of_memory(RunError("out of memory"))


def test_memory_guard_gives_the_numbers_and_the_way_out(monkeypatch):
    monkeypatch.setattr("mgpu_ngram.engine.device.free_bytes", lambda device: 12_345)
    with pytest.raises(RunError) as error, memory_guard("counting n-grams", "cpu"):
        raise MemoryError("cannot allocate\n9 GiB")
    assert str(error.value) == (
        "out of host memory while counting n-grams (cannot allocate 9 GiB; 12,345 bytes are free); "
        "use smaller chunks (chunk_bytes), a lower order or fewer workers"
    )


def test_memory_guard_lets_all_else_pass():
    with memory_guard("counting n-grams", "cpu"):
        done = True
    with pytest.raises(ZeroDivisionError), memory_guard("counting n-grams", "cpu"):
        raise ZeroDivisionError
    assert done


@pytest.mark.gpu
def test_out_of_memory_of_a_gpu():
    import cupy

    with pytest.raises(RunError, match="out of device memory while counting"), memory_guard("counting", "gpu"):
        cupy.empty(1 << 50, np.uint8)


@pytest.mark.parametrize("block_bytes", [64, 1000, 1 << 20])
def test_blocks_bring_all_bytes_in_order(device, block_bytes, tmp_path):
    """More blocks than the ring has slots: no buffer is handed over while it is still read."""
    text = b"".join(b"line %d of the text\n" % i for i in range(1000))
    (tmp_path / "text").write_bytes(text)
    (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
    blocks, seen, watch = 0, b"", Stopwatch(device)
    for block, data in device_blocks(chunk, "word", block_bytes, 0, device, 1, None, watch):
        assert on_gpu(data) == (device == "gpu") and len(data) == len(block.data)
        seen += to_host(data).tobytes()
        blocks += 1
    assert seen == text
    assert blocks > RING_SLOTS or block_bytes == 1 << 20
    assert set(watch.seconds) == ({"read", "copy"} if device == "gpu" else {"read"})


class HostRing:
    """Hands blocks over as the ring of a GPU does, in host memory."""

    def run(self, read):
        for block in read(lambda nbytes: np.empty(nbytes, np.uint8)):
            yield block, block.data.copy(), {"read": 1.0, "copy": 1.0}


@pytest.fixture(params=["cpu", "ring", pytest.param("gpu", marks=pytest.mark.gpu)])
def path(request, monkeypatch):
    """The device whose path blocks take: "ring" is a GPU's without a GPU."""
    if request.param == "ring":
        monkeypatch.setattr(device_module, "_idle_ring", lambda block_bytes: HostRing())
        monkeypatch.setattr(device_module, "_idle_rings", [])
    return request.param.replace("ring", "gpu")


@pytest.mark.parametrize(("unit", "halo"), [("word", 0), ("byte", 3), ("id", 2)])
@pytest.mark.parametrize("block_bytes", [62, 1001, 1 << 20])
def test_checksums_are_those_of_the_stored_bytes(path, unit, halo, block_bytes, tmp_path):
    """Wherever they are computed; the caller may change the bytes that it is given."""
    text = b"".join(b"Line %d of the text\n" % i for i in range(2000))
    texts = [text, b"", text[:-1], b"\n", b"end. "] + [b"of %d " % (i % 3) for i in range(100)]
    texts = [*(t + b"." * (len(t) % 2) for t in texts), gzip.compress(text)]  # ids are of two bytes
    for i, stored in enumerate(texts):
        (tmp_path / f"{i:03}").write_bytes(stored)
    checksums = []
    for chunk in open_corpus(str(tmp_path), unit).chunks(30_011):
        for _, data in device_blocks(chunk, unit, block_bytes, halo, path, 2, checksums, Stopwatch(path)):
            data[:] = 0
    for i, stored in enumerate(texts):
        mine = [part for part in checksums if part[0] == i]
        assert sum(length for _, _, length, _ in mine) == len(stored)
        assert combine_crc32(mine) == zlib.crc32(stored)


def test_an_error_while_reading_reaches_the_caller(device, tmp_path):
    (tmp_path / "text").write_bytes(b"of the\n" * 1000)
    (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
    (tmp_path / "text").unlink()
    with pytest.raises(ValueError, match="text"):
        list(device_blocks(chunk, "word", 64, 0, device, 1, None, Stopwatch(device)))


def test_a_caller_may_stop_early(device, tmp_path):
    (tmp_path / "text").write_bytes(b"of the\n" * 1000)
    (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
    for _ in range(3):
        blocks = device_blocks(chunk, "word", 64, 0, device, 1, None, Stopwatch(device))
        assert to_host(next(blocks)[1])[:6].tobytes() == b"of the"
        blocks.close()


def test_blocks_after_a_task_that_failed(device, tmp_path):
    """It is collected in any order, a stream before the blocks that it brought, perhaps."""
    (tmp_path / "text").write_bytes(b"of the\n" * 10)
    (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
    for _ in range(5):
        blocks = device_blocks(chunk, "word", 1 << 10, 0, device, 1, None, Stopwatch(device))
        assert to_host(next(blocks)[1]).tobytes() == b"of the\n" * 10
        cycle = [blocks]
        cycle.append(cycle)  # as the traceback of an error and its frames are
        del blocks, cycle
        gc.collect()


@pytest.mark.parametrize("unit", ["word", "byte"])
def test_checksums_of_chunks_of_a_cpu_join_those_of_a_gpu(unit, device, tmp_path):
    """As where a full GPU leaves some to the host, or a run is resumed elsewhere: words are cut at line ends."""
    text = b"".join(b"%d of the people\n" % i for i in range(5000)) + b"no newline"
    (tmp_path / "text").write_bytes(text)
    chunks = open_corpus([str(tmp_path / "text")], unit).chunks(7001)
    assert len(chunks) > 9
    checksums = []
    for i, chunk in enumerate(chunks):
        where = device if i % 3 else "cpu"
        for _ in device_blocks(chunk, unit, 2000, 0, where, 1, checksums, Stopwatch(where)):
            pass
    assert combine_crc32(checksums) == zlib.crc32(text)
    ends = [offset + length for _, offset, length, _ in checksums]
    assert unit == "byte" or all(text[:end].endswith((b"\n", b"no newline")) for end in ends)
