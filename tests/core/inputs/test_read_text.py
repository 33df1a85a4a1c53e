"""Reading: for every format, cut and block size, the same text arrives once and in order."""

import bz2
import gzip
import lzma
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs import read_text as reading
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.core.inputs.read_text import BlockChecksums, read_blocks
from tests.support.slow_cases import first_fast

COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}
TEXTS = [
    b"",
    b"\n",
    b"a",
    b"of the\nin the\n",
    b"of the\r\n\r\n\n\nin\0the \xff\xfe\nlast line",
    b"a line that is longer than the blocks are\nb\n" * 3,
]


@pytest.mark.parametrize("chunk_bytes", first_fast([3, 1, 1000]))
@pytest.mark.parametrize("threads", [1, 2])
def test_words_at_every_block_size(tmp_path, chunk_bytes, threads, owned_text, read_in_steps):
    read_in_steps(5, 3)
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_bytes(text)
    corpus = open_corpus(tmp_path)
    for block_bytes in [*range(1, 60), 1000]:
        texts, crcs = owned_text(corpus, chunk_bytes, block_bytes, threads=threads)
        assert texts == dict(enumerate(TEXTS))
        assert crcs == {i: zlib.crc32(text) for i, text in enumerate(TEXTS)}


@pytest.mark.parametrize("chunk_bytes", first_fast([7, 1, 1000]))
def test_bytes_at_every_block_size(tmp_path, chunk_bytes, owned_text, read_in_steps):
    read_in_steps(5)
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
def test_no_cut_changes_the_text(tmp_path_factory, owned_text, texts, chunk_bytes, block_bytes, halo):
    folder = tmp_path_factory.mktemp("corpus")
    paths = [folder / str(i) for i in range(len(texts))]
    for i, (path, text) in enumerate(zip(paths, texts, strict=True)):
        make = [bytes, *COMPRESS.values()][i % 5]
        path.write_bytes(make(text))
    crcs = {i: zlib.crc32(path.read_bytes()) for i, path in enumerate(paths)}
    assert owned_text(open_corpus(paths), chunk_bytes, block_bytes) == (dict(enumerate(texts)), crcs)
    assert owned_text(open_corpus(paths, unit="byte"), chunk_bytes, block_bytes, halo) == (dict(enumerate(texts)), crcs)
    everything = b"".join(text if text.endswith(b"\n") or not text else text + b"\n" for text in texts)
    memory = open_corpus(Lines(everything.split(b"\n")[:-1]))
    assert owned_text(memory, chunk_bytes, block_bytes) == ({0: everything}, {0: zlib.crc32(everything)})


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("where", ["file", "memory", "gzip"])
def test_windows_are_counted_once_and_whole(tmp_path, dtype, where):
    """Definition: the windows that start in owned tokens are the windows of the corpus, file by file."""
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


def test_a_line_of_100_megabytes(tmp_path):
    path = tmp_path / "a.txt"
    with open(path, "wb") as file:
        file.write(b"first\n")
        file.truncate(100_000_000)  # NULs up to this point; the sparse file takes no space
        file.seek(0, 2)
        file.write(b"end\nlast")
    sizes = []
    for chunk in open_corpus(path).chunks(64 << 20):
        for block in read_blocks(chunk, "word", 16 << 20, threads=2):
            sizes.append(len(block.data))
            tail = block.data[-5:].tobytes()
    assert sum(sizes) == 100_000_009 and max(sizes) >= 99_999_990 and tail == b"last\n"


def test_many_tiny_files(tmp_path, owned_text):
    for i in range(500):
        (tmp_path / f"{i:03}").write_bytes(b"file %d" % i if i % 3 else b"")
    corpus = open_corpus(tmp_path)
    blocks = [block for chunk in corpus.chunks(1 << 20) for block in read_blocks(chunk, "word", 1 << 20)]
    assert len(blocks) == 1 and len(blocks[0].sources_S) == 333
    assert blocks[0].data.tobytes() == b"".join(b"file %d\n" % i for i in range(500) if i % 3)
    assert owned_text(corpus, 100, 50)[0][499] == b"file 499"


def test_checksums_of_blocks_by_hand(tmp_path):
    """A line belongs to the piece that it starts in. Added newlines are not stored; a halo is part of another block."""
    for name, text in [("a", b"of the\nin"), ("b", b""), ("c", gzip.compress(b"the\n")), ("d", b"\n")]:
        (tmp_path / name).write_bytes(text)

    def found(unit, chunk_bytes, block_bytes, halo=0):
        checksums, by_block = [], []
        for chunk in open_corpus(tmp_path, unit).chunks(chunk_bytes):
            for block in read_blocks(chunk, unit, block_bytes, halo, checksums=checksums, plain_crcs=False):
                by_block += BlockChecksums.of(block, block.data, chunk).rows()
        stored = (tmp_path / "c").read_bytes()
        # Host reading gives the CRC of the compressed file.
        assert checksums == [(2, 0, len(stored), zlib.crc32(stored))]
        return by_block

    def parts(*texts):
        return [(source, offset, len(text), zlib.crc32(text)) for source, offset, text in texts]

    assert found("word", 1000, 1000) == parts((0, 0, b"of the\nin"), (3, 0, b"\n"))
    assert found("word", 3, 7) == parts((0, 0, b"of the\n"), (0, 7, b"in"), (3, 0, b"\n"))
    assert found("byte", 1000, 4, halo=2) == parts((0, 0, b"of t"), (0, 4, b"he\nin"), (3, 0, b"\n"))


def test_a_line_that_is_too_long(tmp_path, monkeypatch):
    """A line of 9 bytes with its newline just fits."""
    message = "text': the line at byte 2 is longer than 9 bytes; break it into lines"
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 9)
    path = tmp_path / "text"
    for text, refused in (b"a\n12345678\nb\n", False), (b"a\n12345678", False), (b"a\n123456789\nb\n", True):
        path.write_bytes(text)
        (chunk,) = open_corpus(str(path), "word").chunks(1 << 20)
        blocks = read_blocks(chunk, "word", 3)
        if refused:
            with pytest.raises(InputError, match=message):
                list(blocks)
        else:
            assert b"".join(block.data.tobytes() for block in blocks) == text.removesuffix(b"\n") + b"\n"


def test_the_caller_may_reuse_its_buffer(tmp_path, owned_text):
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
        assert list(buffers) == [500 + halo]  # one size fits all


def test_block_bytes_has_a_least_value():
    with pytest.raises(InputError, match="block_bytes is 0"):
        next(read_blocks(open_corpus([b"a"]).chunks(1)[0], "word", 0))
