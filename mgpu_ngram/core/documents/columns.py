"""Read another column of documents, such as their class or date, from Parquet files and JSON lines."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from mgpu_ngram.core.documents.documents import parquet_batches
from mgpu_ngram.core.errors import DamagedInput, InputError, warn
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, Piece
from mgpu_ngram.core.inputs.file_sources import head_text
from mgpu_ngram.core.inputs.in_memory import is_text
from mgpu_ngram.core.inputs.json_column import read_record
from mgpu_ngram.core.inputs.read_text import read_lines
from mgpu_ngram.core.inputs.sources import Source, parquet_file
from mgpu_ngram.core.missing import is_missing
from mgpu_ngram.core.storage.file_heads import json_keys

Period = Literal["year", "month", "week", "day"]
PERIOD_UNITS = {"year": "Y", "month": "M", "week": "D", "day": "D"}  # units of NumPy; NumPy's weeks begin on Thursday
MONDAY = 3  # days from the last Monday before 1970 to the first day of 1970
BLOCK_BYTES = 8 << 20
# YYYY, YYYY-MM or YYYY-MM-DD, also with another separator; a time may follow a day. Exif dates are 2019:03:09.
DATE = re.compile(r"(\d{4})(?:([-/._])(\d\d)(?:\2(\d\d))?|:(\d\d):(\d\d))?(Z|[+-]\d\d:?\d\d|[Tt ]\d\d(?:\W?\d\d.*)?)?")
QUARTER = re.compile(r"(\d{4})[-/ ]?[Qq]([1-4])")
WEEK = re.compile(r"(\d{4})-?[Ww](\d\d)(?:-?([1-7]))?")  # ISO 8601
PERIODS = ("year", "quarter", "month", "week", "day")  # from the coarsest


def check_column(corpus: Corpus, column: str) -> None:
    """Raise InputError unless all files of `open_documents` have this column.

    Reads only the beginnings of the files.
    """
    for source in corpus.sources:
        if source.damage or (source.format != "parquet" and not head_text(source, of_damaged=True)):
            continue
        if source.format != "parquet" and not source.column:
            raise InputError(f"{source.name!r} is plain text, without a column {column!r}; give Parquet or JSON lines")
        check_column_of(source, column)


def check_column_of(source: Source, column: str) -> None:
    """Raise InputError for Parquet and for JSON lines without this column; a long first line is not looked at."""
    if source.format == "parquet":
        with parquet_file(source) as file:
            names = file.schema_arrow.names
    else:
        names = json_keys(head_text(source, of_damaged=True)) or [column]
    if column not in names:
        raise InputError(f"{source.name!r} lacks the column {column!r}; name one of {', '.join(names)}")


def column_values(chunk: Chunk, column: str) -> list[Any]:
    """Return the value of a column for each document that `read_documents` reads with `report`, in this order."""
    return [value for piece in chunk.pieces for value in _values(chunk, piece, column)]


def _values(chunk: Chunk, piece: Piece, column: str) -> Iterator[Any]:
    if piece.source.damage:
        return
    if piece.source.format == "parquet":
        yield from _parquet_values(piece, column)
        return
    alone = Chunk(chunk.index, (piece,), piece.size_bytes)
    for block in read_lines(alone, BLOCK_BYTES, _ignore):
        for line in block.data.tobytes().split(b"\n"):
            try:
                if line.strip():
                    yield read_record(line, piece.source.column, True, "", "replace").get(column)
            except DamagedInput:
                pass  # `read_documents` reports it


def _ignore(reason: str) -> None:
    pass


def _parquet_values(piece: Piece, column: str) -> Iterator[Any]:
    import pyarrow as pa

    for values in parquet_batches(piece, column, BLOCK_BYTES, _ignore):
        if is_text(values.type):  # it may hold bytes that are not UTF-8
            found = values.cast(pa.large_binary()).to_pylist()
            yield from (text if text is None else text.decode("utf-8", "replace") for text in found)
            continue
        if pa.types.is_timestamp(values.type) and values.type.unit == "ns":  # Python's datetime has none
            values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
        try:
            yield from values.to_pylist()
        except OverflowError as error:
            raise InputError(
                f"{piece.source.name!r} has a time in the column {column!r} that is out of range ({error}); "
                "give the years 1 to 9999"
            ) from None


def classes_of(values: Sequence[Any]) -> list[str]:
    """Return the name of each value's class; "" for a missing one."""
    return ["" if is_missing(value) else str(value) for value in values]


def periods_of(values: Sequence[Any], period: Period, column: str) -> list[str]:
    """Return the period of each date, such as "2019-03"; "" for a missing one. A week has the date of its Monday.

    values  dates, times, years as numbers, or text: YYYY, YYYY-MM, YYYY-MM-DD, with a time or without, also with
            "/", "." or "_" in place of "-"; quarters such as 2019Q1, and weeks of ISO 8601 such as 2019-W10

    A value of a longer period, such as a year by month, counts at its first day, with a warning. Raises InputError,
    which names the column, for other values. Time zones are not converted.
    """
    dates, coarsest = [], "day"
    for value in values:
        found, precision = (None, "day") if is_missing(value) or value == "" else _first_day(value, column)
        dates.append(np.datetime64(found or "NaT", "D"))
        coarsest = min(coarsest, precision, key=PERIODS.index)
    if PERIODS.index(coarsest) < PERIODS.index(period):
        warn(f"the column {column!r} has values of a whole {coarsest}; by {period}, they count at its first day")
    cut = np.array(dates, "datetime64[D]").astype(f"datetime64[{PERIOD_UNITS[period]}]")
    if period == "week":
        cut = cut - ((cut.astype(np.int64) + MONDAY) % 7).astype("timedelta64[D]")
    return ["" if name == "NaT" else name for name in map(str, cut)]


def _first_day(value: Any, column: str) -> tuple[datetime.date, str]:
    """Return the first day of a date, and the period that it names, such as "month"."""
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value).strip()
    try:
        if (found := DATE.fullmatch(text)) and not (isinstance(value, float) and found[2]):  # 2021.05
            year, _, month, day, exif_month, exif_day, time = found.groups()
            month, day = month or exif_month, day or exif_day
            if day or not time:
                date = datetime.date(int(year), int(month or 1), int(day or 1))
                return date, "day" if day else "month" if month else "year"
        if found := QUARTER.fullmatch(text):
            return datetime.date(int(found[1]), 3 * int(found[2]) - 2, 1), "quarter"
        if found := WEEK.fullmatch(text):
            day = int(found[3] or 1)
            return datetime.date.fromisocalendar(int(found[1]), int(found[2]), day), "day" if found[3] else "week"
    except ValueError:
        raise InputError(f"the column {column!r} has {value!r}, which is not a date; correct it") from None
    raise InputError(f"the column {column!r} has {value!r}; give dates such as 2019-03-01, 2019-03 or 2019")
