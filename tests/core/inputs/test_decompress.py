"""Compressed sources: concatenated members, and damage."""

import bz2
import gzip
import lzma
import zlib

import pytest
import zstandard

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus

COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("format", COMPRESS)
def test_concatenated_members(tmp_path, format, owned_text, read_in_steps):
    read_in_steps(70, 7)
    parts = [b"of the\n" * 50, b"", b"in ", b"the"]
    stored = b"".join(COMPRESS[format](part) for part in parts)
    if format in ("gzip", "xz"):
        stored += b"\0" * 8
    if format == "zstd":
        stored = b"\x50\x2a\x4d\x18\x03\0\0\0xyz" + stored
    (tmp_path / "wrong_name.txt").write_bytes(stored)
    texts, crcs = owned_text(open_corpus(tmp_path), 100, 64)
    assert texts == {0: b"of the\n" * 50 + b"in the"}
    assert crcs == {0: zlib.crc32(stored)}


@pytest.mark.parametrize("format", COMPRESS)
def test_damage_is_named(tmp_path, format, owned_text):
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
    if format != "zstd":  # zstd frames have a checksum only on request
        middle = len(stored) // 2
        path.write_bytes(stored[:middle] + bytes(b ^ 255 for b in stored[middle : middle + 50]) + stored[middle + 50 :])
        with pytest.raises(InputError, match=rf"books.txt' is damaged {format} data"):
            owned_text(open_corpus(path), 1 << 20, 1000)


def test_compressed_ids_that_end_inside_an_id(tmp_path, owned_text):
    (tmp_path / "ids").write_bytes(gzip.compress(b"12345"))
    with pytest.raises(InputError, match="ids' holds 5 bytes, no multiple of the 2"):
        owned_text(open_corpus(tmp_path / "ids", unit="id"), 100, 100)
