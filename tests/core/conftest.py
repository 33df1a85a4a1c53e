"""Fixtures of tests that read text: a folder of files, all text of a corpus, and reads in small steps."""

import pickle

import numpy as np
import pytest

from mgpu_ngram.core.inputs import byte_ranges, decompress, streams
from mgpu_ngram.core.inputs import read_text as reading
from mgpu_ngram.core.inputs.read_text import BlockChecksums, read_blocks
from mgpu_ngram.core.inputs.sources import CUTTABLE
from mgpu_ngram.core.storage.crc import combine_crc32


@pytest.fixture
def tree(tmp_path):
    """A folder of two-line files: visible, hidden, and in subfolders."""
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", "sub/.git/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"of the\nin the\n")
    return tmp_path


@pytest.fixture(scope="session")
def owned_text():
    """Read all, check the contract of every block, and return {source: owned bytes} and {source: CRC}."""

    def read(corpus, chunk_bytes, block_bytes, halo=0, **options):
        found = {index: bytearray() for index in range(len(corpus.sources))}
        checksums, by_block = [], []
        itemsize = max((source.itemsize for source in corpus.sources), default=1)
        last, done = 0, set()  # `done`: sources whose unterminated last line has been read
        for chunk in pickle.loads(pickle.dumps(corpus.chunks(chunk_bytes))):
            for block in read_blocks(chunk, corpus.unit, block_bytes, halo, checksums=checksums, **options):
                by_block += BlockChecksums.of(block, block.data, chunk).rows()
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
                    lacks = corpus.unit == "word" and owned < length  # a newline was added
                    assert source not in done
                    done |= {source} if lacks else set()
                    assert 0 < owned <= length <= owned + (1 if lacks else halo * itemsize)
                    if corpus.sources[source].format != "parquet":
                        assert offset == len(found[source])
                    if corpus.unit == "word":
                        assert text.endswith(b"\n") and not (lacks and text[:owned].endswith(b"\n"))
                        assert owned <= max(block_bytes, 2 * max(len(line) + 1 for line in text.split(b"\n")))
                    found[source] += text[:owned]
        crcs = {s: combine_crc32([part for part in checksums if part[0] == s]) for s in found}
        for s in found:
            mine = [part for part in by_block if part[0] == s]
            assert combine_crc32(mine) == crcs[s] if corpus.sources[s].format in CUTTABLE else not mine
        return {source: bytes(text) for source, text in found.items()}, crcs

    return read


@pytest.fixture
def read_in_steps(monkeypatch):
    """Return read_in_steps(strip_bytes, probe_bytes), which sets the size of each read in all modules that read."""

    def set_steps(strip_bytes, probe_bytes=byte_ranges.PROBE_BYTES):
        for page in (decompress, reading, streams):
            monkeypatch.setattr(page, "STRIP_BYTES", strip_bytes)
            monkeypatch.setattr(page, "PROBE_BYTES", probe_bytes)

    return set_steps
