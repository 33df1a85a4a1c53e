"""An in-memory corpus (lines of text, an Arrow array or token ids) as the bytes of an equivalent file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.missing import MISSING_WAY_OUT, is_missing


class Lines:
    """Marks a list as lines of text: `Lines(["of the", "in the"])`. A bare list of str means paths."""

    def __init__(self, lines: Iterable[str | bytes]):
        if isinstance(lines, (str, bytes, bytearray)):
            raise InputError("Lines takes an iterable of lines, not one text; write Lines([text])")
        self.lines = lines


def line_bytes(lines: Any) -> bytes:
    """Return the text of an in-memory corpus: every item becomes a line with a newline."""
    arrow = sys.modules.get("pyarrow")  # if it is not imported, no array is an Arrow array
    if arrow and isinstance(lines, (arrow.Array, arrow.ChunkedArray)):
        if not is_text(lines.type):
            raise InputError(f"the corpus is an Arrow array of {lines.type}; lines are string or binary")
        chunks = lines.chunks if isinstance(lines, arrow.ChunkedArray) else [lines]
        return b"".join(arrow_lines(chunk).tobytes() for chunk in chunks)
    if not isinstance(lines, Iterable):
        raise InputError(f"the corpus is {lines!r}; give paths, or an iterable of str or bytes lines")
    return b"".join(_line(i, line) for i, line in enumerate(lines))


def _line(i: int, line: Any) -> bytes:
    if isinstance(line, str):
        try:
            line = line.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InputError(f"line {i} of the corpus cannot be written as UTF-8: {error.reason}; give bytes") from None
    if is_missing(line):
        raise InputError(f"line {i} of the corpus is {line}, not text; {MISSING_WAY_OUT}")
    if not isinstance(line, bytes):
        raise InputError(f"line {i} of the corpus is of type {type(line).__name__}; lines are str or bytes")
    return line if line.endswith(b"\n") else line + b"\n"


def id_bytes(ids: Any, dtype: str) -> bytes:
    """Return token ids as raw bytes of `dtype`. Raises InputError for ids that do not fit."""
    try:
        ids = np.asarray(ids if hasattr(ids, "__array__") else list(ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the corpus is not an array of token ids: {error}; give paths, or integers") from None
    if ids.size == 0:
        return b""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"token ids are {ids.dtype} with shape {ids.shape}; give integers in one dimension")
    limit = np.iinfo(dtype).max
    for at in (int(ids.argmin()), int(ids.argmax())):
        if not 0 <= ids[at] <= limit:
            way_out = "give dtype uint32" if limit < ids[at] < 2**32 else "map the ids to this range"
            raise InputError(f"token {at} of the corpus is {ids[at]}; ids of {dtype} go from 0 to {limit}; {way_out}")
    text: bytes = ids.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return text


def is_text(arrow_type: Any) -> bool:
    """Return whether an Arrow column of this type holds lines of text."""
    import pyarrow as pa

    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    texts = pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()
    return arrow_type in texts


def arrow_lines(values: Any) -> np.ndarray:
    """Return the values of an Arrow text array, each followed by a newline, as uint8; a null is an empty line."""
    import pyarrow as pa
    import pyarrow.compute as pc

    binary = pa.large_binary()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type in (pa.string_view(), pa.binary_view()):
        values = values.cast(pa.binary())
    values = values.cast(binary).fill_null(pa.scalar(b"", binary))
    lines = pc.binary_join_element_wise(values, pa.scalar(b"", binary), pa.scalar(b"\n", binary))
    if len(lines) == 0:
        return np.empty(0, np.uint8)
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
