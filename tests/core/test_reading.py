"""Reading: whatever the format, the cut and the block, the same text arrives once and in order."""

import bz2
import gzip
import lzma
import pickle
import zlib

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core import reading
from mgpu_ngram.core.corpus import Lines, open_corpus
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.reading import combine_crc32, read_blocks

COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}
TEXTS = [
    b"",
    b"\n",
    b"a",
    b"of the\nin the\n",
    b"of the\r\n\r\n\n\nin\0the \xff\xfe\nlast line",
    b"a line that is longer than the blocks are\nb\n" * 3,
]


def owned_text(corpus, chunk_bytes, block_bytes, halo=0, **options):
    """Read all, hold every block to its contract, and return {source: owned bytes} and {source: CRC}."""
    found = {index: bytearray() for index in range(len(corpus.sources))}
    checksums = []
    itemsize = max((source.itemsize for source in corpus.sources), default=1)
    last = 0
    for chunk in pickle.loads(pickle.dumps(corpus.chunks(chunk_bytes))):
        for block in read_blocks(chunk, corpus.unit, block_bytes, halo, checksums=checksums, **options):
            assert block.data.dtype == np.uint8 and block.sources_S.dtype == np.int32 and len(block.data)
            ends_S = block.starts_S + block.lengths_S
            assert [*block.starts_S, len(block.data)] == [0, *ends_S]  # segments tile the block
            segments = zip(
                block.sources_S, block.starts_S, block.lengths_S, block.owned_S, block.offsets_S, strict=True
            )
            for source, start, length, owned, offset in segments:
                text = block.data[start : start + length].tobytes()
                assert last <= source
                last = source
                assert 0 < owned <= length <= owned + halo * itemsize
                if corpus.sources[source].format != "parquet":
                    assert offset == len(found[source])
                if corpus.unit == "word":
                    assert owned == length and text.endswith(b"\n")
                    assert length <= max(block_bytes, 2 * max(len(line) + 1 for line in text.split(b"\n")))
                found[source] += text[:owned]
    crcs = {s: combine_crc32([part for part in checksums if part[0] == s]) for s in found}
    return {source: bytes(text) for source, text in found.items()}, crcs


def as_lines(text):
    return text if text.endswith(b"\n") or not text else text + b"\n"


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_words_at_every_block_size(tmp_path, chunk_bytes, threads, monkeypatch):
    monkeypatch.setattr(reading, "STRIP_BYTES", 5)
    monkeypatch.setattr(reading, "PROBE_BYTES", 3)
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_bytes(text)
    corpus = open_corpus(tmp_path)
    for block_bytes in [*range(1, 60), 1000]:
        texts, crcs = owned_text(corpus, chunk_bytes, block_bytes, threads=threads)
        assert texts == {i: as_lines(text) for i, text in enumerate(TEXTS)}
        assert crcs == {i: zlib.crc32(text) for i, text in enumerate(TEXTS)}


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
def test_bytes_at_every_block_size(tmp_path, chunk_bytes, monkeypatch):
    monkeypatch.setattr(reading, "STRIP_BYTES", 5)
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_bytes(text)
    corpus = open_corpus(tmp_path, unit="byte")
    for block_bytes in [*range(1, 12), 60, 1000]:
        for halo in (0, 1, 7):
            texts, crcs = owned_text(corpus, chunk_bytes, block_bytes, halo)
            assert texts == dict(enumerate(TEXTS))
            assert crcs == {i: zlib.crc32(text) for i, text in enumerate(TEXTS)}


text_strategy = st.lists(st.sampled_from([b"a", b"of the", b"\n", b"\r\n", b"\0", b"\xff"]), max_size=40).map(b"".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(text_strategy, min_size=1, max_size=4), st.integers(1, 100), st.integers(1, 100), st.integers(0, 4))
def test_no_cut_changes_the_text(tmp_path_factory, texts, chunk_bytes, block_bytes, halo):
    folder = tmp_path_factory.mktemp("corpus")
    paths = [folder / str(i) for i in range(len(texts))]
    for i, (path, text) in enumerate(zip(paths, texts, strict=True)):
        make = [bytes, *COMPRESS.values()][i % 5]
        path.write_bytes(make(text))
    crcs = {i: zlib.crc32(path.read_bytes()) for i, path in enumerate(paths)}
    lines = {i: as_lines(text) for i, text in enumerate(texts)}
    assert owned_text(open_corpus(paths), chunk_bytes, block_bytes) == (lines, crcs)
    assert owned_text(open_corpus(paths, unit="byte"), chunk_bytes, block_bytes, halo) == (dict(enumerate(texts)), crcs)
    everything = b"".join(lines.values())
    memory = open_corpus(Lines(everything.split(b"\n")[:-1]))
    assert owned_text(memory, chunk_bytes, block_bytes) == ({0: everything}, {0: zlib.crc32(everything)})


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("where", ["file", "memory", "gzip"])
def test_windows_are_counted_once_and_whole(tmp_path, dtype, where):
    """Plain statement: the windows that start in owned tokens are the windows of the corpus, file by file."""
    rng = np.random.default_rng(1)
    unit = "byte" if dtype == "uint8" else "id"
    streams = [rng.integers(0, 200, size).astype(dtype) for size in (0, 1, 2, 57, 3)]
    if where == "memory":
        streams = streams[3:4]
        corpus = open_corpus(streams[0], unit, dtype) if unit == "id" else open_corpus([streams[0].tobytes()], unit)
        if unit == "byte":
            streams = [np.append(streams[0], np.uint8(10))]
    else:
        make = gzip.compress if where == "gzip" else bytes
        for i, stream in enumerate(streams):
            (tmp_path / str(i)).write_bytes(make(stream.tobytes()))
        corpus = open_corpus(tmp_path, unit, dtype)
    for order in (1, 2, 5):
        expected = [tuple(s[t : t + order].tolist()) for s in streams for t in range(len(s) - order + 1)]
        for chunk_bytes, block_bytes in [(1, 1), (10, 3), (10, 100), (1000, 9), (1000, 1000)]:
            windows = []
            for chunk in corpus.chunks(chunk_bytes):
                for block in read_blocks(chunk, unit, block_bytes, halo=order - 1):
                    for start, length, owned in zip(block.starts_S, block.lengths_S, block.owned_S, strict=True):
                        tokens = block.data[start : start + length].view(dtype).tolist()
                        for t in range(min(owned // np.dtype(dtype).itemsize, len(tokens) - order + 1)):
                            windows.append(tuple(tokens[t : t + order]))
            assert windows == expected, (order, chunk_bytes, block_bytes)


@pytest.mark.parametrize("format", COMPRESS)
def test_members_follow_one_another(tmp_path, format, monkeypatch):
    monkeypatch.setattr(reading, "STRIP_BYTES", 70)
    monkeypatch.setattr(reading, "PROBE_BYTES", 7)
    parts = [b"of the\n" * 50, b"", b"in ", b"the"]
    stored = b"".join(COMPRESS[format](part) for part in parts)
    if format in ("gzip", "xz"):
        stored += b"\0" * 8
    if format == "zstd":
        stored = b"\x50\x2a\x4d\x18\x03\0\0\0xyz" + stored
    (tmp_path / "wrong_name.txt").write_bytes(stored)
    texts, crcs = owned_text(open_corpus(tmp_path), 100, 64)
    assert texts == {0: b"of the\n" * 50 + b"in the\n"}
    assert crcs == {0: zlib.crc32(stored)}


@pytest.mark.parametrize("format", COMPRESS)
def test_damage_is_named(tmp_path, format):
    text = b"".join(b"%d of the\n" % i for i in range(20_000))
    stored = COMPRESS[format](text)
    path = tmp_path / "books.txt"
    path.write_bytes(stored[: len(stored) // 2])
    with pytest.raises(
        InputError, match=rf"books.txt' is truncated {format} .* at byte {len(stored) // 2} of .* after \d+ bytes"
    ):
        owned_text(open_corpus(path), 1 << 20, 1000)
    path.write_bytes(stored + b"garbage")
    with pytest.raises(InputError, match="books.txt' is (damaged|truncated)"):
        owned_text(open_corpus(path), 1 << 20, 1000)
    if format != "zstd":  # its frames have a checksum only if asked for
        middle = len(stored) // 2
        path.write_bytes(stored[:middle] + bytes(b ^ 255 for b in stored[middle : middle + 50]) + stored[middle + 50 :])
        with pytest.raises(InputError, match=rf"books.txt' is damaged {format} data"):
            owned_text(open_corpus(path), 1 << 20, 1000)


def test_compressed_ids_that_end_inside_one(tmp_path):
    (tmp_path / "ids").write_bytes(gzip.compress(b"12345"))
    with pytest.raises(InputError, match="ids' holds 5 bytes, no multiple of the 2"):
        owned_text(open_corpus(tmp_path / "ids", unit="id"), 100, 100)


def test_files_that_change_are_noticed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"of the\n" * 100)
    corpus = open_corpus(path)
    path.write_bytes(b"of the\n")
    with pytest.raises(InputError, match="a.txt' ends at byte 7 but had 700"):
        owned_text(corpus, 1000, 1000)
    path.unlink()
    with pytest.raises(InputError, match="a.txt': No such file"):
        owned_text(corpus, 1000, 1000)


@pytest.fixture
def parquet(tmp_path):
    lines = [f"line {i} of the text" if i % 7 else None for i in range(100)] + ["", "two\nlines", "cr\r"]
    path = tmp_path / "books.bin"
    pq.write_table(pa.table({"n": range(103), "text": lines}), path, row_group_size=30, write_page_checksum=True)
    groups = [b"".join((line or "").encode() + b"\n" for line in lines[g : g + 30]) for g in range(0, 103, 30)]
    return path, groups


@pytest.mark.parametrize("block_bytes", [1, 50, 777, 1 << 20])
@pytest.mark.parametrize("chunk_bytes", [1, 500, 1 << 20])
def test_parquet_values_are_lines(parquet, chunk_bytes, block_bytes):
    path, groups = parquet
    corpus = open_corpus(path)
    texts, crcs = owned_text(corpus, chunk_bytes, block_bytes)
    assert texts == {0: b"".join(groups)}
    stored = path.read_bytes()
    footer_bytes = int.from_bytes(stored[-8:-4], "little")
    assert crcs == {0: zlib.crc32(stored[-8 - footer_bytes : -8])}
    for chunk in corpus.chunks(chunk_bytes):
        for block in read_blocks(chunk, "word", block_bytes):
            for start, length, offset in zip(block.starts_S, block.lengths_S, block.offsets_S, strict=True):
                at = offset & ((1 << 40) - 1)
                assert groups[offset >> 40][at : at + length] == block.data[start : start + length].tobytes()
    assert owned_text(open_corpus(path, unit="byte"), chunk_bytes, block_bytes, halo=3)[0] == {0: b"".join(groups)}


def test_an_empty_parquet_file(tmp_path):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a")
    for unit in ("word", "byte"):
        assert owned_text(open_corpus(tmp_path / "a", unit), 10, 10)[0] == {0: b""}


def test_corrupt_parquet_pages_are_named(parquet):
    path, _ = parquet
    corpus = open_corpus(path)
    column = pq.ParquetFile(path).metadata.row_group(2).column(1)
    stored = bytearray(path.read_bytes())
    at = column.dictionary_page_offset + column.total_compressed_size // 2
    stored[at : at + 20] = b"\xff" * 20
    path.write_bytes(stored)
    with pytest.raises(InputError, match="books.bin' is damaged Parquet in row group 2 after 0 bytes of text"):
        owned_text(corpus, 1 << 20, 1 << 20)


def test_a_line_of_100_megabytes(tmp_path):
    path = tmp_path / "a.txt"
    with open(path, "wb") as file:
        file.write(b"first\n")
        file.truncate(100_000_000)  # NULs up to here, without taking room
        file.seek(0, 2)
        file.write(b"end\nlast")
    sizes = []
    for chunk in open_corpus(path).chunks(64 << 20):
        for block in read_blocks(chunk, "word", 16 << 20, threads=2):
            sizes.append(len(block.data))
            tail = block.data[-5:].tobytes()
    assert sum(sizes) == 100_000_009 and max(sizes) >= 99_999_990 and tail == b"last\n"


def test_many_tiny_files(tmp_path):
    for i in range(500):
        (tmp_path / f"{i:03}").write_bytes(b"file %d" % i if i % 3 else b"")
    corpus = open_corpus(tmp_path)
    blocks = [block for chunk in corpus.chunks(1 << 20) for block in read_blocks(chunk, "word", 1 << 20)]
    assert len(blocks) == 1 and len(blocks[0].sources_S) == 333
    assert blocks[0].data.tobytes() == b"".join(b"file %d\n" % i for i in range(500) if i % 3)
    assert owned_text(corpus, 100, 50)[0][499] == b"file 499\n"


def test_the_caller_may_reuse_its_buffer(tmp_path):
    text = b"".join(b"%d of the\n" % i for i in range(1000))
    (tmp_path / "a").write_bytes(text)
    buffers = {}

    def allocate(nbytes):
        buffer = buffers.setdefault(nbytes, np.empty(nbytes, np.uint8))
        buffer[:] = 0
        return buffer

    for unit, halo in (("word", 0), ("byte", 3)):
        buffers.clear()
        assert owned_text(open_corpus(tmp_path, unit), 1 << 20, 500, halo, allocate=allocate)[0] == {0: text}
        assert list(buffers) == [500 + halo]  # one size serves all


def test_urls_are_read_in_ranges():
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/a", b"of the\nin the\nlast")
    memory.pipe("/corpus/b", gzip.compress(b"zipped"))
    try:
        corpus = open_corpus("memory://corpus/*")
        assert owned_text(corpus, 5, 7, threads=2)[0] == {0: b"of the\nin the\nlast\n", 1: b"zipped\n"}
        memory.rm("/corpus/a")
        with pytest.raises(InputError, match="memory://.*corpus/a"):
            owned_text(corpus, 5, 7)
    finally:
        memory.rm("/corpus", recursive=True)


def test_a_halo_longer_than_an_in_memory_chunk_carries():
    corpus = open_corpus(np.arange(200_000) % 1000, unit="id")
    with pytest.raises(InputError, match="halo of 40000 tokens is over the 32768"):
        owned_text(corpus, 100_000, 1000, halo=40_000)
    assert owned_text(corpus, 1 << 20, 1000, halo=40_000)[0][0] == corpus.sources[0].data


def test_block_bytes_has_a_least_value():
    with pytest.raises(InputError, match="block_bytes is 0"):
        next(read_blocks(open_corpus([b"a"]).chunks(1)[0], "word", 0))


@given(st.binary(max_size=500), st.lists(st.integers(0, 500), max_size=8), st.randoms())
def test_crcs_combine(text, cuts, random):
    cuts = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    parts = [(0, a, b - a, zlib.crc32(text[a:b])) for a, b in zip(cuts, cuts[1:], strict=False)]
    random.shuffle(parts)
    assert combine_crc32(parts) == zlib.crc32(text)


def test_a_missing_part_is_noticed():
    with pytest.raises(ValueError, match="start at byte 3 but starts at 5"):
        combine_crc32([(0, 0, 3, 1), (0, 5, 2, 1)])
