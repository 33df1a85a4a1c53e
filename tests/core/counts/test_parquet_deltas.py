"""Columns of differences, read by pyarrow, Polars and DuckDB."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgpu_ngram.core.counts.parquet_deltas as parquet_deltas
from mgpu_ngram.core.counts.parquet_deltas import DeltaWriter, Numbers, Texts
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.storage.output import new_file

ROWS = [1, 2, 32, 33, 34, 128, 129, 130, 161, 257, 5000]
LIMITS = {"int32": 2**31 - 1, "int64": 2**62}


def numbers(values):
    words = np.ascontiguousarray(values, np.int64).view(np.uint64)
    return Numbers(words, words)


def append(writer, columns):
    """Append a row group; return the range of each column."""
    ranges = []

    def pages():
        for page in writer.pages(columns):
            ranges.append(page.found)
            yield page

    writer.write(len(columns[0][0]), pages())
    return ranges


def write(path, columns, groups):
    """Write groups, lists of columns of integers; return the ranges of each group."""
    with new_file(path) as sink, DeltaWriter(sink, columns) as writer:
        return [append(writer, list(map(numbers, group))) for group in groups]


def check(path, columns, groups):
    """The file has these groups, with the checksum of each page and the range of each column."""
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind), False) for name, kind in columns])
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
@pytest.mark.parametrize("kind", LIMITS)
def test_numbers_of_all_sizes(tmp_path, rows, kind):
    """Small ones, large ones, the least and the greatest in turn, one value only, rising and falling ones."""
    rng, limit = np.random.default_rng(rows), LIMITS[kind]
    columns = [
        rng.integers(0, 2, rows), rng.integers(0, limit, rows, endpoint=True), np.resize([0, limit], rows),
        np.full(rows, limit), np.arange(rows) * (limit // rows), limit - np.arange(rows), rng.zipf(1.5, rows) % limit,
    ]  # fmt: skip
    columns = [column.tolist() for column in columns]
    named = [(f"c{i}", kind) for i in range(len(columns))]
    ranges = write(tmp_path / "file", named, [columns])
    assert ranges == [[(min(column), max(column)) for column in columns]]
    check(tmp_path / "file", named, [columns])


@given(st.lists(st.lists(st.integers(-(2**30), 2**30 - 1), min_size=1, max_size=300), min_size=1, max_size=3))
def test_any_numbers_of_32_bits(tmp_path_factory, groups):
    path = tmp_path_factory.mktemp("any") / "file"
    write(path, [("a", "int32")], [[group] for group in groups])
    check(path, [("a", "int32")], [[group] for group in groups])


@pytest.mark.parametrize("columns", [1, 14, 15, 20])
def test_many_columns_and_groups(tmp_path, columns):
    named = [(f"column {i}", ("int32", "int64")[i % 2]) for i in range(columns)]
    groups = [[[(i + 1) * (g + 1) + r for r in range(g + 1)] for i in range(columns)] for g in range(17)]
    write(tmp_path / "file", named, groups)
    check(tmp_path / "file", named, groups)


def test_no_rows(tmp_path):
    write(tmp_path / "file", [("a", "int32"), ("b", "int64")], [])
    check(tmp_path / "file", [("a", "int32"), ("b", "int64")], [])


def test_bits_of_two_words(tmp_path):
    """20 bits of 64, also where the first 5 are the last ones of one word, less 1."""
    values = np.random.default_rng(0).integers(1, 1 << 20, 1000).astype(np.uint64)
    high, low = values >> np.uint64(15) | np.uint64(1 << 40), values << np.uint64(49) | np.uint64(3)
    inside = values << np.uint64(7) | np.uint64((1 << 63) + 5)
    mask = (1 << 20) - 1
    with new_file(tmp_path / "file") as sink, DeltaWriter(sink, [("a", "int32"), ("b", "int32")]) as writer:
        append(writer, [Numbers(high, low, -15, mask, 1), Numbers(inside, inside, 7, mask, 1)])
    wanted = (values - np.uint64(1)).tolist()
    check(tmp_path / "file", [("a", "int32"), ("b", "int32")], [[wanted, wanted]])


def test_other_readers(tmp_path):
    """Each finds the rows, and skips groups by the ranges of a column."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    rng = np.random.default_rng(1)
    groups = [[np.sort(rng.integers(0, 1000, 700)).tolist(), rng.integers(0, 2**40, 700).tolist()] for _ in range(3)]
    path = tmp_path / "file.parquet"
    write(path, [("id1", "int32"), ("count", "int64")], groups)
    rows = [pair for group in groups for pair in zip(*group, strict=True)]
    assert polars.read_parquet(path).rows() == rows
    assert duckdb.sql(f"select * from '{path}'").fetchall() == rows
    some = sorted(pair for pair in rows if pair[0] > 900)
    assert sorted(duckdb.sql(f"select * from '{path}' where id1 > 900").fetchall()) == some
    assert sorted(polars.scan_parquet(path).filter(polars.col("id1") > 900).collect().rows()) == some


def texts(given, share):
    """Return texts as `Texts`: share(the text before, the text) is the length of the prefix."""
    prefixes = [0, *(share(a, b) for a, b in pairwise(given))]
    suffixes = [text[prefix:] for text, prefix in zip(given, prefixes, strict=True)]
    data = np.frombuffer(b"".join(suffixes), np.uint8)
    return Texts(np.array(prefixes, np.int64), np.array(list(map(len, suffixes)), np.int64), data)


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=300), st.booleans(), st.integers(1, 3))
def test_any_texts(tmp_path_factory, strings, is_sorted, parts):
    """With all of the common prefix, a part of it, or none."""
    path = tmp_path_factory.mktemp("texts") / "file"
    given = [text.encode() for text in (sorted(strings) if is_sorted else strings)]
    columns = [("whole", "string"), ("part", "binary"), ("none", "binary"), ("count", "int64")]
    with new_file(path) as sink, DeltaWriter(sink, columns) as writer:
        shares = common, lambda one, other: common(one, other) // parts, lambda one, other: 0
        append(writer, [*(texts(given, share) for share in shares), numbers(np.arange(len(given)))])
    table = pq.read_table(path, page_checksum_verification=True)
    kinds = [pa.string(), pa.binary(), pa.binary(), pa.int64()]
    fields = [pa.field(name, kind, False) for (name, _), kind in zip(columns, kinds, strict=True)]
    assert table.schema.equals(pa.schema(fields), check_metadata=True)
    assert table["whole"].to_pylist() == [text.decode() for text in given]
    assert table["part"].to_pylist() == table["none"].to_pylist() == given
    found = pq.read_metadata(path).row_group(0)
    assert found.column(0).encodings == ("DELTA_BYTE_ARRAY",) and not found.column(0).statistics.has_min_max


def test_other_readers_of_texts(tmp_path):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    rng = np.random.default_rng(2)
    groups = [sorted(b" ".join(b"w%d" % v for v in rng.zipf(1.4, 3) % 500) for _ in range(700)) for _ in range(3)]
    path = tmp_path / "file.parquet"
    with new_file(path) as sink, DeltaWriter(sink, [("ngram", "string"), ("raw", "binary")]) as writer:
        for group in groups:
            append(writer, [texts(group, common), texts(group, common)])
    rows = [(text.decode(), text) for group in groups for text in group]
    assert polars.read_parquet(path).rows() == rows
    assert duckdb.sql(f"select * from '{path}'").fetchall() == rows
    wanted = rows[1000][0]
    times = sum(text == wanted for text, _ in rows)
    assert duckdb.sql(f"select count(*) from '{path}' where ngram = '{wanted}'").fetchall() == [(times,)]
    assert len(polars.scan_parquet(path).filter(polars.col("ngram") == wanted).collect()) == times


def test_a_page_beyond_32_bits_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_deltas, "MAX_PAGE_BYTES", 50)
    with (
        pytest.raises(RunError, match="2 rows of a take 70 bytes but a page holds 50 at most"),
        new_file(tmp_path / "file") as sink,
        DeltaWriter(sink, [("a", "binary")]) as writer,
    ):
        append(writer, [texts([b"x" * 30, b"y" * 20], common)])


def test_no_footer_after_an_error(tmp_path):
    with pytest.raises(KeyError), new_file(tmp_path / "file") as sink, DeltaWriter(sink, [("a", "int32")]) as writer:
        append(writer, [numbers([1, 2])])
        raise KeyError
    assert not list(tmp_path.iterdir())
