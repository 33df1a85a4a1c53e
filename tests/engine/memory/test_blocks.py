"""The blocks of a chunk reach the device completely and in order."""

import gc
import gzip
import zlib

import numpy as np
import pytest

from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.storage.crc import combine_crc32
from mgpu_ngram.engine.memory import blocks as blocks_module
from mgpu_ngram.engine.memory.blocks import RING_SLOTS, device_blocks
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.dispatch import on_gpu, to_host


@pytest.mark.parametrize("block_bytes", [64, 1000, 1 << 20])
def test_blocks_hold_all_bytes_in_order(device, block_bytes, tmp_path):
    """With more blocks than the ring has slots, no buffer is reused while the device still reads it."""
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
    """Yields blocks in the same way as the ring of a GPU, in host memory."""

    def run(self, read, check):
        for block in read(lambda nbytes: np.empty(nbytes, np.uint8)):
            data = block.data.copy()
            if check:
                check(block, data)
            yield block, data, {"read": 1.0, "copy": 1.0}


@pytest.fixture(params=["cpu", "ring", pytest.param("gpu", marks=pytest.mark.gpu)])
def path(request, monkeypatch):
    """The device of the blocks: "ring" is the GPU's ring, without a GPU."""
    if request.param == "ring":
        monkeypatch.setattr(blocks_module, "_idle_ring", lambda block_bytes: HostRing())
        monkeypatch.setattr(blocks_module, "_idle_rings", [])
    return request.param.replace("ring", "gpu")


@pytest.mark.parametrize(("unit", "halo"), [("word", 0), ("byte", 3), ("id", 2)])
@pytest.mark.parametrize("block_bytes", [62, 1001, 1 << 20])
def test_checksums_are_those_of_the_stored_bytes(path, unit, halo, block_bytes, tmp_path):
    """Checksums do not depend on the device that computes them; the caller may change the bytes that it receives."""
    text = b"".join(b"Line %d of the text\n" % i for i in range(2000))
    texts = [text, b"", text[:-1], b"\n", b"end. "] + [b"of %d " % (i % 3) for i in range(100)]
    texts = [*(t + b"." * (len(t) % 2) for t in texts), gzip.compress(text)]  # ids have two bytes
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
    """Garbage collection frees the objects in any order, perhaps a stream before its blocks."""
    (tmp_path / "text").write_bytes(b"of the\n" * 10)
    (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
    for _ in range(5):
        blocks = device_blocks(chunk, "word", 1 << 10, 0, device, 1, None, Stopwatch(device))
        assert to_host(next(blocks)[1]).tobytes() == b"of the\n" * 10
        cycle = [blocks]
        cycle.append(cycle)  # like the traceback of an error and its frames
        del blocks, cycle
        gc.collect()


@pytest.mark.parametrize("unit", ["word", "byte"])
def test_checksums_of_chunks_on_cpu_and_gpu_join(unit, device, tmp_path):
    """A full GPU leaves chunks to the CPU, and a run may resume on another device: words are cut at line ends."""
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
