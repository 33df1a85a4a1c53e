"""Stored bytes are read by several threads of compiled code, or without it by threads of Python."""

import errno
import os

import numpy as np
import pytest

from mgpu_ngram import native
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.read_text import read_blocks

MB = 1 << 20


@pytest.fixture(scope="module")
def stored():
    return np.random.default_rng(7).integers(0, 256, 9 * MB + 11, np.uint8).tobytes()


@pytest.fixture
def file(stored, tmp_path):
    (tmp_path / "stored").write_bytes(stored)
    descriptor = os.open(tmp_path / "stored", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def read_into():
    function = native.read_into()
    assert function, "installing the package compiles it"
    return function


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize(
    ("offset", "size"), [(0, 0), (5, 1), (1, 2 * MB - 1), (3, 2 * MB), (0, 9 * MB + 11), (17, 5 * MB)]
)
def test_every_byte_arrives_at_its_place(read_into, file, stored, offset, size, threads):
    buffer = np.zeros(size + 2, np.uint8)
    assert read_into(file, offset, buffer[1 : size + 1].data, threads) == size
    assert buffer[1 : size + 1].tobytes() == stored[offset : offset + size]
    assert not buffer[0] and not buffer[-1]


@pytest.mark.parametrize("offset", [0, 4 * MB, 9 * MB + 11, 10 * MB])
def test_a_file_that_ends_before(read_into, file, stored, offset):
    buffer = np.zeros(12 * MB, np.uint8)
    n = read_into(file, offset, buffer.data, 4)
    assert n == max(0, len(stored) - offset) and buffer[:n].tobytes() == stored[offset:]


def test_errors_of_the_system(read_into, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError) as raised:
        read_into(folder, 0, bytearray(3 * MB), 4)
    assert raised.value.errno == errno.EISDIR
    os.close(folder)
    with pytest.raises(OSError) as raised:
        read_into(folder, 0, bytearray(8), 4)
    assert raised.value.errno == errno.EBADF
    with pytest.raises(TypeError):
        read_into(0, 0, b"not writable", 4)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("threads", [1, 4])
class TestBlocks:
    @pytest.fixture(autouse=True)
    def _without_compiled_code(self, compiled, monkeypatch):
        if not compiled:
            monkeypatch.setattr(native, "read_into", lambda: None)

    def test_the_text_arrives_in_order(self, stored, threads, tmp_path):
        text = stored.replace(b"\n", b" ") + b"\n"
        text = b"\n".join(text[i : i + 1000] for i in range(0, len(text), 1000)) + b"\n"
        (tmp_path / "text").write_bytes(text)
        (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
        assert b"".join(b.data.tobytes() for b in read_blocks(chunk, "word", 5 * MB, threads=threads)) == text

    def test_a_file_that_shrank(self, threads, tmp_path):
        (tmp_path / "text").write_bytes(b"of the\n" * MB)
        (chunk,) = open_corpus(str(tmp_path / "text")).chunks(1 << 30)
        os.truncate(tmp_path / "text", 3 * MB)
        with pytest.raises(InputError, match=rf"ends at byte {3 * MB} but had {7 * MB} bytes when it was opened"):
            for _ in read_blocks(chunk, "word", 16 * MB, threads=threads):
                pass
