"""Arrays in files: bytes worked by hand, round trips, and every kind of damage."""

import errno
import json
import os
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mgpu_ngram.core.storage.output as output_module
import mgpu_ngram.core.storage.safetensors as arrays_module
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

TYPES = ["bool", *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))]
TYPES += ["float16", "float32", "float64"]


def crafted(fields, data=b"", crcs=None, metadata=None, version="1", kind="mgpu_ngram arrays"):
    """Return the bytes of a file with this header, padded as the format requires; the header may be wrong."""
    strings = {"format": kind, "format_version": version}
    strings |= {"metadata": json.dumps(metadata or {}), "crc32": json.dumps(crcs or dict.fromkeys(fields, "00000000"))}
    header = {"__metadata__": strings, **fields}
    strings["header_crc32"] = f"{zlib.crc32(json.dumps(header).encode()):08x}"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def field(kind, shape, begin, end):
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def test_a_file_by_hand(tmp_path):
    arrays = {"b": np.array([[1, 2, 3]], np.uint8), "a": np.array([-2, 258], np.int16)}
    size_bytes = save_arrays(tmp_path / "file", arrays, {"items": [3]})
    data = b"\xfe\xff\x02\x01" + b"\1\2\3"  # larger items first
    crcs = {"a": f"{zlib.crc32(data[:4]):08x}", "b": f"{zlib.crc32(data[4:]):08x}"}
    fields = {"a": field("I16", [2], 0, 4), "b": field("U8", [1, 3], 4, 7)}
    expected = crafted(fields, data, crcs, {"items": [3]})
    assert (tmp_path / "file").read_bytes() == expected
    assert size_bytes == len(expected)
    (tmp_path / "again").write_bytes(expected)
    back, metadata = load_arrays(tmp_path / "again")
    assert {name: (a.dtype, a.tolist()) for name, a in back.items()} == {
        "a": (np.int16, [-2, 258]),
        "b": (np.uint8, [[1, 2, 3]]),
    }
    assert metadata == {"items": [3]}


def test_a_header_may_list_arrays_in_any_order(tmp_path):
    fields = {"b": field("U8", [1], 1, 2), "none": field("F64", [0, 2], 1, 1), "a": field("U8", [1], 0, 1)}
    (tmp_path / "file").write_bytes(crafted(fields, b"\1\2"))
    back = load_arrays(tmp_path / "file", verify=False)[0]
    assert {name: a.tolist() for name, a in back.items()} == {"a": [1], "b": [2], "none": []}


@st.composite
def some_arrays(draw):
    """Return arrays of all types, of 0 to 3 dimensions, some empty, contiguous or strided."""
    arrays = {}
    for i in range(draw(st.integers(0, 4))):
        shape = draw(st.lists(st.integers(0, 7), max_size=3))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        array = rng.integers(0, 256, [2 * n + 1 for n in shape] + [8], np.uint8)
        array = (array % 2).view(bool) if (kind := draw(st.sampled_from(TYPES))) == "bool" else array.view(kind)
        array = array[..., 0]
        view = draw(st.sampled_from(["copied", "rows cut", "each second", "backwards", "transposed"]))
        cuts = {"rows cut": slice(1, None), "each second": slice(None, None, 2), "backwards": slice(None, None, -1)}
        array = array[(cuts.get(view, slice(None)),) * array.ndim]
        array = array[tuple(slice(n) for n in shape)]
        arrays[f"{i}.é"] = {"copied": array.copy, "transposed": lambda a=array: a.T}.get(view, lambda a=array: a)()
    return arrays


@given(arrays=some_arrays(), slice_bytes=st.sampled_from([1, 7, 64, 8 << 20]))
@settings(max_examples=60)
def test_round_trip(tmp_path_factory, arrays, slice_bytes):
    path = tmp_path_factory.mktemp("arrays") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays_module, "SLICE_BYTES", slice_bytes)
        size_bytes = save_arrays(path, arrays, {"names": list(arrays)})
        back, metadata = load_arrays(path)
    assert set(back) == set(arrays) == set(metadata["names"])
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()
        assert back[name].flags.aligned
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert len(content) == size_bytes and start % 8 == 0
    header = json.loads(content[8:start])
    crcs = json.loads(header.pop("__metadata__")["crc32"])
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert content[start + begin : start + end] == arrays[name].tobytes()
        assert int(crcs[name], 16) == zlib.crc32(arrays[name].tobytes())


def test_the_safetensors_package_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {kind: np.arange(24).astype(kind).reshape(2, 12)[:, 3:] for kind in TYPES}
    arrays |= {"none": np.empty((0, 3)), "one": np.array(7, np.int8)}
    save_arrays(tmp_path / "file", arrays, {"kind": "run"})
    theirs = safetensors.load_file(tmp_path / "file")
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        assert theirs[name].dtype == array.dtype and theirs[name].tolist() == array.tolist()
    safetensors.save_file({"a": np.zeros(3)}, tmp_path / "theirs")
    with pytest.raises(InputError, match="theirs is not a file of mgpu_ngram"):
        load_arrays(tmp_path / "theirs")


def test_arrays_are_read_only_views_of_the_file(tmp_path):
    save_arrays(tmp_path / "file", {"a": np.arange(1000)}, {})
    array = load_arrays(tmp_path / "file")[0]["a"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert not array.flags.owndata
    os.unlink(tmp_path / "file")
    assert array.tolist() == list(range(1000))


def test_strided_views_are_not_copied_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays_module, "SLICE_BYTES", 64 << 10)
    keys = np.arange(1 << 20, dtype=np.uint64).reshape(2, -1)[:, 1:]
    arrays = {"rows": keys, "columns": keys.T}
    tracemalloc.start()
    try:
        save_arrays(tmp_path / "file", arrays, {})
        load_arrays(tmp_path / "file")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < keys.nbytes / 4
    back = load_arrays(tmp_path / "file")[0]
    assert np.array_equal(back["rows"], keys) and np.array_equal(back["columns"], keys.T)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.arange(3).astype(">i4"), np.zeros(2, complex)])
def test_other_types_are_refused(tmp_path, array):
    with pytest.raises(ValueError, match=r"array 'x' is of .*; convert it"):
        save_arrays(tmp_path / "file", {"x": array}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_reserved_name_of_metadata_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rename it"):
        save_arrays(tmp_path / "file", {"__metadata__": np.zeros(1)}, {})


@pytest.fixture
def small(tmp_path):
    """The path of a small file, and its bytes."""
    path = tmp_path / "file"
    arrays = {"keys": np.arange(6, dtype=np.uint64).reshape(2, 3), "counts": np.array([5, 6, 7], np.int8)}
    save_arrays(path, arrays, {"kind": "run", "items": [1, 20]})
    return path, path.read_bytes()


def test_every_flipped_bit_is_found(small):
    path, content = small
    for i in range(len(content)):
        flipped = bytearray(content)
        flipped[i] ^= 1 << i % 8
        path.write_bytes(flipped)
        with pytest.raises(InputError, match=r"file .*; \w+"):
            load_arrays(path)


def test_unverified_data_is_not_read_but_the_header_is(small):
    path, content = small
    path.write_bytes(content[:-1] + b"\0")
    assert load_arrays(path, verify=False)[0]["counts"].tolist() == [5, 6, 0]
    with pytest.raises(InputError, match=r"file is damaged: array 'counts' has CRC-32"):
        load_arrays(path)
    path.write_bytes(content.replace(b"[1, 20]", b"[1, 21]"))
    with pytest.raises(InputError, match=r"file is damaged: its header has CRC-32"):
        load_arrays(path, verify=False)


def test_every_truncation_is_found(small):
    path, content = small
    for size_bytes in range(len(content)):
        path.write_bytes(content[:size_bytes])
        with pytest.raises(InputError):
            load_arrays(path, verify=False)
    path.write_bytes(content[:-2])
    with pytest.raises(InputError, match=rf"'counts' ends at byte {len(content)} but the file at {len(content) - 2}; "):
        load_arrays(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(InputError, match="its arrays end at byte"):
        load_arrays(path)


WRONG = {
    "overlap": ({"a": field("U8", [4], 0, 4), "b": field("U8", [4], 2, 6)}, 6, "array 'b' of shape .* lies at bytes 2"),
    "same place": ({"a": field("U8", [4], 0, 4), "b": field("U8", [4], 0, 4)}, 4, "lies at bytes 0 to 4"),
    "hole": ({"a": field("U8", [4], 0, 4), "b": field("U8", [4], 5, 9)}, 9, "lies at bytes 5 to 9"),
    "outside": ({"a": field("U8", [40], 0, 40)}, 4, "ends at byte .* but the file at"),
    "far outside": ({"a": field("U8", [2**70], 0, 2**70)}, 4, "ends at byte .* but the file at"),
    "backwards": ({"a": field("U8", [0], 0, 0), "b": field("U8", [4], 4, 0)}, 4, "lies at bytes 4 to 0"),
    "wrong size": ({"a": field("I64", [2], 0, 4)}, 4, "array 'a' of shape"),
    "negative offset": ({"a": field("U8", [1], -1, 0)}, 4, "array 'a' is described by"),
    "negative shape": ({"a": field("U8", [-2, -2], 0, 4)}, 4, "array 'a' is described by"),
    "shape of floats": ({"a": field("U8", [4.0], 0, 4)}, 4, "array 'a' is described by"),
    "shape of text": ({"a": field("U8", "4", 0, 4)}, 4, "array 'a' is described by"),
    "three offsets": ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]}}, 4, "array 'a' is described by"),
    "no shape": ({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, 4, "array 'a' is described by"),
    "no field": ({"a": None}, 4, "array 'a' is described by"),
    "unknown type": ({"a": field("BF16", [2], 0, 4)}, 4, "unknown type 'BF16'; upgrade"),
    "unhashable type": ({"a": field(["U8"], [4], 0, 4)}, 4, "array 'a' is described by"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_header_that_does_not_fit_is_refused(tmp_path, name):
    fields, size_bytes, message = WRONG[name]
    (tmp_path / "file").write_bytes(crafted(fields, bytes(size_bytes)))
    with pytest.raises(InputError, match=message):
        load_arrays(tmp_path / "file", verify=False)


FOREIGN = {
    "empty": (b"", "not a file of arrays"),
    "text": (b"It was a dark and stormy night", "not a file of arrays"),
    "long header": ((100_000_001).to_bytes(8, "little") + b"{}", "not a file of arrays"),
    "no JSON": ((8).to_bytes(8, "little") + b"{1: 2}  ", "damaged: its header is not JSON"),
    "no UTF-8": ((8).to_bytes(8, "little") + b'{"\xff":12}', "damaged: its header is not JSON"),
    "deep": ((80_000).to_bytes(8, "little") + b'{"":' * 20_000, "damaged: its header is not JSON"),
    "no metadata": ((8).to_bytes(8, "little") + b"{}      ", "lacks the format 'mgpu_ngram arrays'"),
    "other format": (crafted({}, kind="pt"), "lacks the format 'mgpu_ngram arrays'"),
    "newer": (crafted({}, version="2"), "format version 2 but this mgpu_ngram reads up to 1; upgrade"),
    "odd version": (crafted({}, version="one"), "is damaged: its format version is one; delete it"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_refused(tmp_path, name):
    content, message = FOREIGN[name]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_arrays(tmp_path / "file")


def test_missing_files_are_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=r"cannot read .*; check the path"):
            load_arrays(path)


def test_files_with_short_writes(tmp_path, monkeypatch):
    write_at = output_module.write_at
    monkeypatch.setattr(output_module, "write_at", lambda file, data, offset: write_at(file, data[:7], offset))
    save_arrays(tmp_path / "file", {"a": np.arange(100), "b": np.arange(3, dtype=np.int8)}, {})
    arrays, _ = load_arrays(tmp_path / "file")
    assert arrays["a"].tolist() == [*range(100)] and arrays["b"].tolist() == [0, 1, 2]


def test_all_threads_have_stopped_when_a_file_is_closed(small, full_disk, monkeypatch):
    path, content = small
    monkeypatch.setattr(arrays_module, "SLICE_BYTES", 1 << 10)
    full_disk(100 << 10)
    running, write_at = [], output_module.write_at

    def slowly(*args):
        running.append(args)
        time.sleep(0.01)
        try:
            return write_at(*args)
        finally:
            running.pop()

    monkeypatch.setattr(output_module, "write_at", slowly)
    with pytest.raises(RunError, match="No space left on device"):
        save_arrays(path, {"a": np.zeros(50 << 10)}, {})
    assert not running and path.read_bytes() == content


@pytest.mark.parametrize("room, written", [(0, 0), (1 << 20, 1 << 20), ((1 << 20) + 8, (1 << 20) + 8)])
def test_a_full_disk_keeps_the_older_file(room, written, small, full_disk, monkeypatch):
    """The disk is full at once, after a slice, and before the header."""
    path, content = small
    monkeypatch.setattr(arrays_module, "SLICE_BYTES", 1 << 20)
    monkeypatch.setattr(arrays_module, "SLICE_THREADS", 1)
    full_disk(room)
    with pytest.raises(RunError, match=rf"cannot write .*file after {written:,} bytes: No space left on device; free"):
        save_arrays(path, {"a": np.zeros((1 << 17) + 1)}, {})
    assert path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_file_is_on_disk_before_it_is_renamed(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        events.append(("fsync", os.fstat(descriptor).st_size))
        fsync(descriptor)

    def watched_replace(old, new):
        events.append(("replace", os.stat(old).st_size))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    size_bytes = save_arrays(tmp_path / "file", {"a": np.zeros(3)}, {})
    assert events == [("fsync", size_bytes), ("replace", size_bytes)]
    save_arrays(tmp_path / "file", {"a": np.zeros(3)}, {}, durable=False)
    assert events[2:] == [("replace", size_bytes)]
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(RunError, match="Input/output error"):
        save_arrays(tmp_path / "other", {"a": np.zeros(3)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
