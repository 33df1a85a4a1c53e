"""Further columns of documents: their values, classes and periods."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.core.documents.columns import check_column, classes_of, column_values, periods_of
from mgpu_ngram.core.documents.documents import open_documents
from mgpu_ngram.core.errors import InputError, InputWarning
from mgpu_ngram.core.inputs.files import find_files


def corpus_of(*paths):
    return open_documents(find_files([str(path) for path in paths]))


def test_values_of_parquet_and_json_lines(tmp_path):
    when = pa.array([1, None, 3, 4], pa.timestamp("ns", "UTC"))
    table = pa.table({"text": ["a", "b", "c", None], "n": [1, None, 3, 4], "when": when})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "b.jsonl").write_text('{"text": "a", "n": "x"}\n\n{"text": "b"}\n')
    corpus = corpus_of(tmp_path / "a.parquet", tmp_path / "b.jsonl")
    check_column(corpus, "n")
    for size in (1, 1 << 30):
        assert [v for chunk in corpus.chunks(size) for v in column_values(chunk, "n")] == [1, None, 3, 4, "x", None]
    [chunk] = corpus_of(tmp_path / "a.parquet").chunks(1 << 30)
    assert [v and v.year for v in column_values(chunk, "when")] == [1970, None, 1970, 1970]


def test_classes_of_parquet_that_are_no_utf8(tmp_path):
    """They are read as those of JSON lines are."""
    names = pa.array([b"\xffa", b"b", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, names.buffers())
    for kind in (text, text.dictionary_encode(), names):
        pq.write_table(pa.table({"text": ["a"] * 3, "kind": kind}), tmp_path / "a.parquet")
        [chunk] = corpus_of(tmp_path / "a.parquet").chunks(1 << 30)
        assert column_values(chunk, "kind") == ["\ufffda", "b", None]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.date64(), pa.timestamp("us")])
def test_times_that_are_out_of_range(kind, tmp_path):
    when = pa.array([1, 2**52 if kind == pa.timestamp("s") else 2**62], pa.int64()).cast(kind)
    pq.write_table(pa.table({"text": ["a", "b"], "when": when}), tmp_path / "a.parquet")
    [chunk] = corpus_of(tmp_path / "a.parquet").chunks(1 << 30)
    with pytest.raises(InputError, match="has a time in the column 'when' that is out of range .*; give the years"):
        column_values(chunk, "when")


def test_periods_by_hand():
    day = datetime.date(2019, 3, 9)
    values = [day, datetime.datetime(2019, 3, 9, 23, 59), "2019-03-09T10:00:00Z", "2019-03", "2019", 2019, None, ""]
    assert periods_of(values, "month", "c") == ["2019-03"] * 4 + ["2019-01"] * 2 + ["", ""]
    assert periods_of([day, None], "year", "c") == ["2019", ""]
    assert periods_of([day], "day", "c") == ["2019-03-09"]
    assert periods_of([], "month", "c") == [] and classes_of([1, None, "x", True]) == ["1", "", "x", "True"]


def test_weeks_begin_on_monday():
    days = [datetime.date(1960, 2, 26) + datetime.timedelta(days=n) for n in range(0, 30_000, 11)]
    mondays = [datetime.date.fromisocalendar(*day.isocalendar()[:2], 1).isoformat() for day in days]
    assert periods_of(days, "week", "c") == mondays and periods_of([None], "week", "c") == [""]


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2021/05/18", "2021-05-18"), ("2021.05.18", "2021-05-18"), ("2021_05_18", "2021-05-18"),
        ("2021:05:18 10:00:00", "2021-05-18"), ("2021-05-18 10:00", "2021-05-18"), ("2021/05", "2021-05-01"),
        ("2021-05-18T10:00:00+02:00", "2021-05-18"), ("2021-05-18Z", "2021-05-18"), (" 2021-05-18\n", "2021-05-18"),
        ("2021Q2", "2021-04-01"), ("2021-Q4", "2021-10-01"), ("2021W20", "2021-05-17"), ("2021-W20-3", "2021-05-19"),
        ("2020-W53", "2020-12-28"), (2021.0, "2021-01-01"), (float("nan"), ""),
    ],
)  # fmt: skip
def test_ways_to_write_a_date(value, day):
    assert periods_of([value], "day", "c") == [day]


def test_a_longer_period_counts_at_its_first_day_with_a_warning(recwarn):
    assert periods_of(["2019-03-09", "2019"], "year", "c") == ["2019", "2019"]
    assert periods_of(["2019-03", "2019-03-09"], "month", "c") == ["2019-03"] * 2 and not recwarn.list
    for values, period, longer in [(["2019-03", "2019"], "month", "year"), (["2019Q2"], "month", "quarter")]:
        with pytest.warns(InputWarning, match=f"'c' has values of a whole {longer}; by {period}, they count at"):
            periods_of(values, period, "c")


@pytest.mark.parametrize(
    "value",
    [
        "2021-05/18",
        "2021/22",
        "2021-138",
        "2021Q5",
        "2021W54",
        "2021-05-18 later",
        "2021:05",
        "2021 AD",
        "0000",
        2021.05,
        True,
    ],
)  # fmt: skip
def test_values_that_only_begin_like_a_date(value):
    with pytest.raises(InputError, match="the column 'c' has "):
        periods_of([value], "month", "c")


@pytest.mark.parametrize("value", ["yesterday", "20190309", "9.3.2019", 20190309, "2019-3-9", "2019-13-01", 3.5])
def test_other_values_are_no_dates(value):
    with pytest.raises(InputError, match="the column 'c' has "):
        periods_of([value], "month", "c")


def test_missing_columns_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.jsonl").write_text('{"text": "a", "n": "x"}\n')
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "c.parquet")
    for name, message in [
        ("a.txt", "is plain text, without a column 'z'; give Parquet or JSON lines"),
        ("b.jsonl", "lacks the column 'z'; name one of text, n"),
        ("c.parquet", "lacks the column 'z'; name one of text"),
    ]:
        with pytest.raises(InputError, match=message):
            check_column(corpus_of(tmp_path / name), "z")
    (tmp_path / "b.jsonl").write_text('{"text": "a", "n": "x"}\n[1]\n{"n": 2}\n')
    [chunk] = corpus_of(tmp_path / "b.jsonl").chunks(1 << 30)
    assert column_values(chunk, "n") == ["x"], "read_documents leaves the same lines out"
