"""Columns of packed differences, read by pyarrow, Polars and DuckDB."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.output import new_file
from mgpu_ngram.core.parquet_deltas import DeltaWriter, Numbers

ROWS = [1, 2, 32, 33, 34, 128, 129, 130, 161, 257, 5000]
LIMITS = {4: 2**31 - 1, 8: 2**62}


def numbers(values):
    words = np.ascontiguousarray(values, np.int64).view(np.uint64)
    return Numbers(words, words)


def write(path, columns, groups):
    """Write groups, lists of columns of integers; return the ranges of each group."""
    with new_file(path) as sink, DeltaWriter(sink, columns) as writer:
        return [writer.write(list(map(numbers, group))) for group in groups]


def check(path, columns, groups):
    """The file has these groups, with the checksum of each page and the range of each column."""
    schema = pa.schema([pa.field(name, {4: pa.int32(), 8: pa.int64()}[b], False) for name, b in columns])
    table = pq.read_table(path, page_checksum_verification=True)
    assert table.schema.equals(schema, check_metadata=True)
    for c, (name, _) in enumerate(columns):
        assert table[name].to_pylist() == [value for group in groups for value in group[c]]
    metadata = pq.read_metadata(path)
    assert metadata.num_rows == sum(len(group[0]) for group in groups) and metadata.num_row_groups == len(groups)
    for g, group in enumerate(groups):
        for c, values in enumerate(group):
            column = metadata.row_group(g).column(c)
            assert (column.statistics.min, column.statistics.max) == (min(values), max(values))
            assert column.statistics.null_count == 0 and column.encodings == ("DELTA_BINARY_PACKED",)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("item_bytes", LIMITS)
def test_numbers_of_all_sizes(tmp_path, rows, item_bytes):
    """Small ones, large ones, the least and the greatest in turn, one value only, rising and falling ones."""
    rng, limit = np.random.default_rng(rows), LIMITS[item_bytes]
    columns = [
        rng.integers(0, 2, rows), rng.integers(0, limit, rows, endpoint=True), np.resize([0, limit], rows),
        np.full(rows, limit), np.arange(rows) * (limit // rows), limit - np.arange(rows), rng.zipf(1.5, rows) % limit,
    ]  # fmt: skip
    columns = [column.tolist() for column in columns]
    named = [(f"c{i}", item_bytes) for i in range(len(columns))]
    ranges = write(tmp_path / "file", named, [columns])
    assert ranges == [[(min(column), max(column)) for column in columns]]
    check(tmp_path / "file", named, [columns])


@given(st.lists(st.lists(st.integers(-(2**30), 2**30 - 1), min_size=1, max_size=300), min_size=1, max_size=3))
def test_any_numbers_of_32_bits(tmp_path_factory, groups):
    path = tmp_path_factory.mktemp("any") / "file"
    write(path, [("a", 4)], [[group] for group in groups])
    check(path, [("a", 4)], [[group] for group in groups])


@pytest.mark.parametrize("columns", [1, 14, 15, 20])
def test_many_columns_and_groups(tmp_path, columns):
    named = [(f"column {i}", 4 + 4 * (i % 2)) for i in range(columns)]
    groups = [[[(i + 1) * (g + 1) + r for r in range(g + 1)] for i in range(columns)] for g in range(17)]
    write(tmp_path / "file", named, groups)
    check(tmp_path / "file", named, groups)


def test_no_rows(tmp_path):
    write(tmp_path / "file", [("a", 4), ("b", 8)], [])
    check(tmp_path / "file", [("a", 4), ("b", 8)], [])


def test_bits_of_two_words(tmp_path):
    """20 bits of 64, also where the first 5 are the last ones of one word, less 1."""
    values = np.random.default_rng(0).integers(1, 1 << 20, 1000).astype(np.uint64)
    high, low = values >> np.uint64(15) | np.uint64(1 << 40), values << np.uint64(49) | np.uint64(3)
    inside = values << np.uint64(7) | np.uint64((1 << 63) + 5)
    mask = (1 << 20) - 1
    with new_file(tmp_path / "file") as sink, DeltaWriter(sink, [("a", 4), ("b", 4)]) as writer:
        writer.write([Numbers(high, low, -15, mask, 1), Numbers(inside, inside, 7, mask, 1)])
    wanted = (values - np.uint64(1)).tolist()
    check(tmp_path / "file", [("a", 4), ("b", 4)], [[wanted, wanted]])


def test_other_readers(tmp_path):
    """Each finds the rows, and skips groups by the ranges of a column."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    rng = np.random.default_rng(1)
    groups = [[np.sort(rng.integers(0, 1000, 700)).tolist(), rng.integers(0, 2**40, 700).tolist()] for _ in range(3)]
    path = tmp_path / "file.parquet"
    write(path, [("id1", 4), ("count", 8)], groups)
    rows = [pair for group in groups for pair in zip(*group, strict=True)]
    assert polars.read_parquet(path).rows() == rows
    assert duckdb.sql(f"select * from '{path}'").fetchall() == rows
    some = sorted(pair for pair in rows if pair[0] > 900)
    assert sorted(duckdb.sql(f"select * from '{path}' where id1 > 900").fetchall()) == some
    assert sorted(polars.scan_parquet(path).filter(polars.col("id1") > 900).collect().rows()) == some


def test_no_footer_after_an_error(tmp_path):
    with pytest.raises(KeyError), new_file(tmp_path / "file") as sink, DeltaWriter(sink, [("a", 4)]) as writer:
        writer.write([numbers([1, 2])])
        raise KeyError
    assert not list(tmp_path.iterdir())
