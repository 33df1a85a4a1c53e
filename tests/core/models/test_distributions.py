"""Files of distributions, written in pieces in any order and read whole, also by NumPy and Zarr."""

import errno
import fcntl
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.models import distributions
from mgpu_ngram.core.models.compact import CompactBlock, save_compact
from mgpu_ngram.core.models.distributions import (
    CompactBlocks,
    array_files,
    describe_array,
    read_distributions,
    read_words,
    save_words,
)
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.output import write_manifest

SHAPES = [(1, 1, 1), (7, 2, 3), (8, 1, 5), (0, 2, 3), (9, 3, 50)]  # rows of the last one are larger than chunks


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(distributions, "CHUNK_BYTES", 60)


def make(path, shape, dtype="float32"):
    [file] = array_files(path.parent, path.suffix[1:], {path.stem: describe_array(shape, dtype)})
    return file


def pieces(rng, size):
    """Return (first, last) bytes of pieces that cover an array, in any order."""
    cuts = np.unique(np.concatenate([[0, size], rng.integers(0, size + 1, 12)])).tolist()
    return rng.permutation(list(zip(cuts, cuts[1:], strict=False))).tolist()


def written(path, shape, dtype="float32"):
    """Return (file, its array) of random bits, written piece by piece, some pieces twice."""
    rng = np.random.default_rng(0)
    file = make(path, shape, dtype)
    array = rng.integers(0, 100, shape).astype(file.stored)
    data = array.reshape(-1).view(np.uint8)
    file.create()
    for first, last in [*pieces(rng, len(data)), *pieces(rng, len(data))]:
        file.write(first, data[first:last])
    return file, array


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", ["npy", "zarr"])
def test_written_arrays_read_back(format, shape, dtype, tmp_path):
    file, array = written(tmp_path / f"rows.{format}", shape, dtype)
    assert np.array_equal(file.read(0, shape[0]), array) and file.read(0, shape[0]).dtype == array.dtype
    for begin in range(shape[0]):
        assert np.array_equal(pickle.loads(pickle.dumps(file)).read(begin, shape[0]), array[begin:])
    found = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "zarr.json"]
    assert sum(path.stat().st_size for path in found) == file.size_bytes
    if shape[0]:
        assert sorted(file.files(0, shape[0])) == sorted(map(str, found))
        assert set(file.files(shape[0] - 1, shape[0])) <= set(map(str, found))


def test_short_writes(tmp_path, monkeypatch):
    real = distributions.write_at
    monkeypatch.setattr(distributions, "write_at", lambda file, data, offset: real(file, data[:7], offset))
    file, array = written(tmp_path / "rows.zarr", (7, 2, 3))
    assert np.array_equal(file.read(0, 7), array)


def test_files_are_not_opened_for_reading(tmp_path, monkeypatch):
    """NFS would read a page that two hosts write to, and write all of it back."""
    real, modes = distributions.write_at, set()

    def write(file, data, offset):
        modes.add(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
        return real(file, data, offset)

    monkeypatch.setattr(distributions, "write_at", write)
    for format in "npy", "zarr":
        written(tmp_path / f"rows.{format}", (7, 2, 3))
    assert modes == {os.O_WRONLY}


@pytest.mark.parametrize("shape", SHAPES)
def test_numpy_reads_it(shape, tmp_path):
    _, array = written(tmp_path / "rows.npy", shape)
    found = np.load(tmp_path / "rows.npy")
    assert np.array_equal(found, array) and found.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_zarr_reads_it(shape, dtype, tmp_path):
    zarr = pytest.importorskip("zarr")
    file, array = written(tmp_path / "values.zarr", shape, dtype)
    found = zarr.open_array(tmp_path / "values.zarr", mode="r")
    assert (
        np.array_equal(found[:], array) and found.dtype == array.dtype and found.chunks == (file.chunk_rows, *shape[1:])
    )
    assert found.metadata.dimension_names == ("history", "order", "rank")
    assert dict(found.attrs).get("dtype") == ("bfloat16" if dtype == "bfloat16" else None)


def test_chunks_have_whole_rows(monkeypatch):
    monkeypatch.setattr(distributions, "CHUNK_BYTES", 32 << 20)
    for columns in 1, 1000, 300_000, 10_000_000:
        file = make(Path("rows.zarr"), (10**9, 5, columns), "float32")
        size = file.chunk_rows * file.row_bytes
        assert 1 << 20 <= size <= 64 << 20 or file.chunk_rows == 1
    assert make(Path("rows.zarr"), (3, 5, 1000), "float32").chunk_rows == 3, "no chunk is larger than the array"


def test_the_last_chunk_is_filled_with_zeros(tmp_path):
    file, array = written(tmp_path / "rows.zarr", (7, 1, 5))
    last = np.fromfile(tmp_path / "rows.zarr" / "c.2.0.0", np.float32).reshape(3, 5)
    assert file.chunk_rows == 3 and np.array_equal(last[:1], array[6]) and not last[1:].any()


@pytest.mark.parametrize("format", ["npy", "zarr"])
def test_bfloat16_is_widened(format, tmp_path):
    file = make(tmp_path / f"rows.{format}", (1, 1, 3), "bfloat16")
    file.create()
    file.write(0, np.array([0x3F80, 0xC000, 0xFF80], np.uint16).view(np.uint8))  # upper halves of float32
    assert file.read(0, 1).tolist() == [[[1.0, -2.0, -np.inf]]] and file.read(0, 1).dtype == np.float32


@pytest.mark.parametrize("format", ["npy", "zarr"])
def test_reopening_keeps_existing_data(format, tmp_path):
    file, array = written(tmp_path / f"rows.{format}", (7, 2, 3))
    file.create()
    assert np.array_equal(file.read(0, 7), array)


@pytest.mark.parametrize("format", ["npy", "zarr"])
def test_a_full_disk(format, tmp_path, monkeypatch):
    file = make(tmp_path / f"rows.{format}", (7, 2, 3), "float32")
    file.create()
    real, room = distributions.write_at, 10

    def write(file, data, offset):
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n = real(file, data[:room], offset)
        room -= n
        return n

    monkeypatch.setattr(distributions, "write_at", write)
    start = 128 if format == "npy" else 0
    with pytest.raises(
        RunError, match=rf"^cannot write .*{format}.* after {start + 14:,} bytes: No space left.*; free"
    ):
        file.write(4, np.ones(20, np.uint8))
    assert file.read(0, 1).tobytes()[4:14] == b"\1" * 10


def test_damage_is_reported(tmp_path):
    file, _ = written(tmp_path / "rows.zarr", (7, 1, 5))
    os.truncate(file.files(3, 4)[0], 59)
    with pytest.raises(InputError, match=r"c\.1\.0\.0 has 59 bytes, not 60; make the output again"):
        file.read(0, 7)
    os.unlink(file.files(3, 4)[0])
    with pytest.raises(InputError, match=r"cannot read .*c\.1\.0\.0 \(No such file or directory\)"):
        file.read(3, 4)
    assert len(file.read(0, 3)) == 3


def test_words(tmp_path):
    save_words(tmp_path, Words.of(["<unk>", "a", b"\xff"]), np.array([-1, -2, -3], np.float32), 1)
    words, prob_V, begin = read_words(tmp_path)
    assert list(words) == ["<unk>", "a", "\udcff"] and prob_V.tolist() == [-1, -2, -3] and begin == 1


def test_compact_blocks(tmp_path):
    manifest = {"histories": 5, "part_histories": 2, "options": {"format": "compact"}}
    write_manifest(tmp_path, manifest, distributions.FORMAT)
    save_words(tmp_path, Words.of(["<unk>", "a"]), np.array([-1, -2], np.float32), 0)
    for part, H in enumerate([2, 2, 1]):
        ends = np.full((H, 1), part, np.uint32)
        block = CompactBlock(
            ends * 0, ends, ends.astype(np.float32), np.zeros(part, np.uint32), np.zeros(part, np.float32)
        )
        save_compact(distributions.compact_file(tmp_path, part), block)
    blocks = CompactBlocks(tmp_path)
    assert [len(block) for block in blocks] == [2, 2, 1] and len(blocks) == 3 and blocks.histories == 5
    assert blocks[-1].end_HK.tolist() == [[2]] and blocks[1].prob_V.tolist() == [-1, -2]
    assert [len(block) for block in blocks[1:]] == [2, 1]
    with pytest.raises(IndexError, match="block 3 is not one of the 3 blocks"):
        blocks[3]


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"missing is not an output of distribution: there is nothing at that path; give"
    ):
        read_distributions(tmp_path / "missing")
    with pytest.raises(InputError, match=r"it has no manifest.json that this version"):
        read_distributions(tmp_path)
    write_manifest(tmp_path, {}, "mgpu_ngram counts")
    with pytest.raises(InputError, match=r"it is one of 'mgpu_ngram counts'"):
        read_distributions(tmp_path)
