"""Streams: Parquet values as lines, and the reach of a halo."""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.read_text import read_blocks


@pytest.fixture
def parquet(tmp_path):
    lines = [f"line {i} of the text" if i % 7 else None for i in range(100)] + ["", "two\nlines", "cr\r"]
    path = tmp_path / "books.bin"
    pq.write_table(pa.table({"n": range(103), "text": lines}), path, row_group_size=30, write_page_checksum=True)
    groups = [b"".join((line or "").encode() + b"\n" for line in lines[g : g + 30]) for g in range(0, 103, 30)]
    return path, groups


@pytest.mark.parametrize("block_bytes", [1, 50, 777, 1 << 20])
@pytest.mark.parametrize("chunk_bytes", [1, 500, 1 << 20])
def test_parquet_values_are_lines(parquet, chunk_bytes, block_bytes, owned_text):
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


def test_an_empty_parquet_file(tmp_path, owned_text):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a")
    for unit in ("word", "byte"):
        assert owned_text(open_corpus(tmp_path / "a", unit), 10, 10)[0] == {0: b""}


def test_corrupt_parquet_pages_are_named(parquet, owned_text):
    path, _ = parquet
    corpus = open_corpus(path)
    column = pq.ParquetFile(path).metadata.row_group(2).column(1)
    stored = bytearray(path.read_bytes())
    at = column.dictionary_page_offset + column.total_compressed_size // 2
    stored[at : at + 20] = b"\xff" * 20
    path.write_bytes(stored)
    with pytest.raises(InputError, match="books.bin' is damaged Parquet in row group 2 after 0 bytes of text"):
        owned_text(corpus, 1 << 20, 1 << 20)


def test_a_halo_longer_than_an_in_memory_chunk_carries(owned_text):
    corpus = open_corpus(np.arange(200_000) % 1000, unit="id")
    with pytest.raises(InputError, match="halo of 40000 tokens is over the 32768"):
        owned_text(corpus, 100_000, 1000, halo=40_000)
    assert owned_text(corpus, 1 << 20, 1000, halo=40_000)[0][0] == corpus.sources[0].data
