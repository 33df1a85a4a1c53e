"""Tables that are encoded at once give the files that a writer makes of their rows."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from mgpu_ngram.core.counts import parquet as parquet_module
from mgpu_ngram.core.counts import parquet_deltas
from mgpu_ngram.core.counts.parquet import PartWriter
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.storage import output
from mgpu_ngram.core.storage.output import write_together
from mgpu_ngram.engine.count import parquet_pages
from mgpu_ngram.engine.count import top_ngrams as heaviest_module
from mgpu_ngram.engine.count.parquet_pages import PageEncoder
from mgpu_ngram.engine.count.top_ngrams import heaviest, summaries
from mgpu_ngram.kernels.dispatch import to_host

V, BITS, TOP = 5_000, 13, 4


@pytest.fixture(scope="module")
def vocabulary():
    rng = np.random.default_rng(3)
    lengths_V = rng.integers(1, 40, V)
    offsets_V = np.concatenate([[0], np.cumsum(lengths_V)]).astype(np.int64)
    data = rng.integers(33, 127, offsets_V[-1]).astype(np.uint8)
    return Vocabulary("word", offsets_V, data, np.ones(V, np.int64), np.zeros(V, np.int32), np.arange(V))


def table_of(order, sizes, seed=1):
    """Return sorted rows of shards, in host memory; codes of few first words, up to V."""
    rng, shards = np.random.default_rng(seed), []
    for size in sizes:
        most = np.array([9, 30, *[V] * (order - 2)])[-order:]
        codes = np.unique(rng.integers(1, most + 1, (size, order)), axis=0)
        keys = np.zeros((-(-order * BITS // 64), len(codes)), np.uint64)
        for n in range(order):
            for bit in range(BITS):
                place = n * BITS + bit
                value = (codes[:, n] >> (BITS - 1 - bit) & 1).astype(np.uint64)
                keys[place // 64] |= value << np.uint64(63 - place % 64)
        shards.append(Table(keys, rng.zipf(1.6, len(codes)).astype(np.int64), order, BITS))
    ends_S = np.cumsum([len(s) for s in shards])
    keys, counts = (np.concatenate([getattr(s, name) for s in shards], axis=-1) for name in ("keys", "counts"))
    return ShardedTable(keys, counts, ends_S, order, BITS)


def on_device(table, to_device):
    return ShardedTable(to_device(table.keys), to_device(table.counts), table.ends_S, table.order, table.bits)


def file_of(path, order, vocabulary, columns, add):
    with PartWriter(path, order, vocabulary, vocabulary.as_text, columns) as writer:
        add(writer)
    return path.read_bytes(), writer.written


@pytest.mark.parametrize("columns", ["text", "ids"])
@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize("order", [1, 2, 5, 6])
def test_files_are_those_of_a_writer(order, min_count, columns, vocabulary, to_device, tmp_path, monkeypatch):
    for name in "GROUP_ROWS", "IDS_GROUP_ROWS":
        monkeypatch.setattr(parquet_module, name, 400)
    monkeypatch.setattr(heaviest_module, "CHUNK_ROWS", 16)
    table = table_of(order, [1_500, 0, 1, 400, 130])
    encoder = PageEncoder(vocabulary, columns, min_count, 1 << 30)
    given = on_device(table, to_device)
    shards = encoder.encode(given, summaries(given, TOP))
    assert len(shards) == 5
    for s, shard in enumerate(shards):
        rows = table.shard(s)
        kept = rows.counts >= min_count
        expected = Table(rows.keys[:, kept], rows.counts[kept], order, BITS)
        found = file_of(tmp_path / "encoded", order, vocabulary, columns, shard.write)
        assert found == file_of(tmp_path / "rows", order, vocabulary, columns, lambda w, rows=expected: w.add(rows))
        assert (shard.summary.distinct, shard.summary.total) == (len(rows), rows.counts.sum())
        assert sum(group.rows for group in shard.groups) == len(expected)
        for found, best in zip(heaviest(shard.summary.head, TOP), heaviest(rows, TOP), strict=True):
            np.testing.assert_array_equal(found, best)
        if s == 0 and min_count == 1 and order > 2:
            assert len(shard.groups) > 1


@pytest.mark.parametrize("top", [0, 1, 5, 60])
def test_summaries_have_the_first_of_equal_counts(top, to_device, monkeypatch):
    monkeypatch.setattr(heaviest_module, "CHUNK_ROWS", 4)
    counts, ends = np.random.default_rng(5).integers(1, 4, 300), [3, 3, 150, 151, 298, 300]
    counts[[148, 297]] = 3  # after the last whole chunk of a shard
    table = ShardedTable(np.arange(300, dtype=np.uint64)[None], counts, np.array(ends), 1, BITS)
    for first, end, found in zip([0, *ends], ends, summaries(on_device(table, to_device), top), strict=False):
        best = sorted(sorted(range(first, end), key=lambda row: (-counts[row], row))[:top])
        assert (found.distinct, found.total) == (end - first, counts[first:end].sum())
        assert found.head.keys.tolist() == [best] and found.head.counts.tolist() == counts[best].tolist()


def test_shards_are_encoded_together_as_far_as_memory_allows(vocabulary):
    ends_S = np.cumsum([10, 10, 10, 0, 10])
    table = ShardedTable(np.zeros((1, 40), np.uint64), np.ones(40, np.int64), ends_S, 2, BITS)
    for rows, parts in {
        40: [(0, 5)], 39: [(0, 4), (4, 5)], 20: [(0, 2), (2, 5)], 19: [(0, 1), (1, 2), (2, 4), (4, 5)],
        1: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
    }.items():  # fmt: skip
        encoder = PageEncoder(vocabulary, "ids", 1, rows * parquet_pages.row_bytes("ids", 2))
        assert list(encoder.parts(table)) == parts
    assert encoder.encode(table, summaries(table, TOP)) is None
    words = vocabulary.offsets_V.nbytes + vocabulary.data.nbytes
    for room, first in {words + 20 * parquet_pages.row_bytes("text", 2): (0, 2), words: (0, 1)}.items():
        assert next(PageEncoder(vocabulary, "text", 1, room).parts(table)) == first


def test_texts_beyond_a_row_group_are_left_to_the_host(vocabulary, to_device, monkeypatch):
    table = on_device(table_of(3, [300]), to_device)
    encoder = PageEncoder(vocabulary, "text", 1, 1 << 30)
    sizes = np.diff(vocabulary.offsets_V)
    codes = [
        to_host(ids)
        for ids in (table.keys[0] >> np.uint64(64 - BITS * (n + 1)) & np.uint64(V | 8191) for n in range(3))
    ]
    whole = int(sum(sizes[c.astype(np.int64) - 1].sum() for c in codes)) + 2 * len(table)
    monkeypatch.setattr(parquet_pages, "GROUP_BYTES", whole)
    assert encoder.encode(table, summaries(table, TOP)) is not None
    monkeypatch.setattr(parquet_pages, "GROUP_BYTES", whole - 1)
    assert encoder.encode(table, summaries(table, TOP)) is None


class CountedCopies:
    """Copies of slices; `sizes` has the bytes of each."""

    def __init__(self):
        self.sizes = []

    @contextmanager
    def copied(self, array, ranges):
        self.sizes.append(sum(end - begin for begin, end in ranges))
        yield [to_host(array)[begin:end].data for begin, end in ranges]


@pytest.mark.parametrize("columns", ["text", "ids"])
@pytest.mark.parametrize(("rows", "together"), [(499, [4, 4, 2]), (200, [2] * 5), (100, [1] * 10)])
def test_pages_are_copied_together_up_to_a_limit(columns, rows, together, vocabulary, to_device, tmp_path, monkeypatch):
    """A large shard is encoded some row groups at once, and only these can be copied together."""
    for name in "GROUP_ROWS", "IDS_GROUP_ROWS":
        monkeypatch.setattr(parquet_module, name, 100)
    table = table_of(3, [1_000])
    expected = file_of(tmp_path / "rows", 3, vocabulary, columns, lambda w: w.add(table.shard(0)))
    words = vocabulary.offsets_V.nbytes + vocabulary.data.nbytes if columns == "text" else 0
    encoder = PageEncoder(vocabulary, columns, 1, words + rows * parquet_pages.row_bytes(columns, 3))
    given = on_device(table, to_device)
    [shard] = encoder.encode(given, summaries(given, TOP))
    encodings = [[group.nbytes for group in same] for _, same in groupby(shard.groups, lambda group: id(group.data))]
    assert [*map(len, encodings)] == together
    for limit in 7, 1_000, 1 << 30:
        monkeypatch.setattr(parquet_deltas, "WRITTEN_BYTES", limit)
        copies, calls = CountedCopies(), []
        monkeypatch.setattr(output, "write_together", lambda *a, c=calls: c.append(a) or write_together(*a))
        shard = replace(shard, copies=copies)
        assert file_of(tmp_path / "encoded", 3, vocabulary, columns, shard.write) == expected
        whole, rests = zip(*(divmod(sum(own), limit) for own in encodings), strict=True)
        sizes = [size for n, rest in zip(whole, rests, strict=True) for size in [*[limit] * n, *[rest] * (rest > 0)]]
        assert [size for size in copies.sizes if size] == sizes
        assert len(calls) == len(copies.sizes)


@pytest.mark.parametrize("columns", ["text", "ids"])
@pytest.mark.parametrize("code", [0, V + 1])
def test_codes_outside_the_vocabulary_are_refused(columns, code, vocabulary, to_device, tmp_path):
    keys = np.array([[code << 64 - BITS]], np.uint64)
    table = ShardedTable(to_device(keys), to_device(np.ones(1, np.int64)), np.array([1]), 1, BITS)
    encoder = PageEncoder(vocabulary, columns, 1, 1 << 30)
    with pytest.raises(ValueError, match=rf"outside 1\.\.{V}"):
        file_of(
            tmp_path / "file",
            1,
            vocabulary,
            columns,
            encoder.encode(table, summaries(table, TOP))[0].write,
        )
    assert not list(tmp_path.iterdir())
