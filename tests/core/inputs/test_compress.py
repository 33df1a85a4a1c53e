"""Compression in threads: the same bytes for any threads and writes, which all readers of the formats read whole."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pytest
import zstandard

from mgpu_ngram.core.inputs import compress
from mgpu_ngram.core.inputs.compress import compressing_in_threads
from mgpu_ngram.core.storage.output import new_file
from tests.support.slow_cases import first_fast

READERS = {
    "plain": bytes,
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(),  # ends at the first frame
}


def compressed(path, format, threads, parts):
    with new_file(path) as sink, compressing_in_threads(sink, format, threads) as file:
        for part in parts:
            file.write(part)
    return path.read_bytes()


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize("size", first_fast([0, 1, 1000, 1001, 2_000_000], 4))
def test_any_threads_write_the_same_bytes(format, size, tmp_path, monkeypatch):
    monkeypatch.setattr(compress, "MEMBER_BYTES", 1000 if size < 9999 else 300_000)
    data = np.random.default_rng(0).integers(97, 104, size, np.uint8).tobytes()
    one = compressed(tmp_path / "one", format, 1, [data])
    assert READERS[format](one) == data
    several = compressed(
        tmp_path / "several", format, 3, [np.frombuffer(data[i : i + 777], np.uint8) for i in range(0, size, 777)]
    )
    assert several == one
    if format == "gzip" and size > 1000:
        assert one.count(b"\x1f\x8b\x08") >= -(-size // compress.MEMBER_BYTES)


def test_an_error_of_a_thread_is_raised(tmp_path, monkeypatch):
    def fail(data):
        raise ValueError("damaged")

    monkeypatch.setattr(compress.bz2, "compress", fail)
    with pytest.raises(ValueError, match="damaged"):
        compressed(tmp_path / "x", "bz2", 2, [b"a"])
