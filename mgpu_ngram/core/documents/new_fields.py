"""New fields of documents: a column of values, as JSON and as Arrow arrays."""

# mypy: allow-untyped-defs

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.kernels.common.ascii import COMMA, SPACE
from mgpu_ngram.kernels.compile_cpu import njit, read_only

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")


@dataclass(frozen=True)
class NewField:
    """A field of D documents; `field[d]` is the value of document d, or None.

    values  (D,) numbers; or, with ends_D, (S,) numbers: document d has ends_D[d - 1] to ends_D[d] - 1; or, with names,
            (D,) indexes of names
    has_D   (D,) bool, whether a document has the field
    """

    values: np.ndarray
    has_D: np.ndarray
    ends_D: np.ndarray | None = None
    names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.has_D)

    def __iter__(self) -> Iterator[Any]:
        return (self[d] for d in range(len(self)))

    def __getitem__(self, d: int) -> Any:
        if not self.has_D[d]:
            return None
        if self.ends_D is not None:
            return _finite(self.values[self.ends_D[d - 1] if d else 0 : self.ends_D[d]])
        return self.names[self.values[d]] if self.names else self.values[d].item()

    def arrow(self, kind: Any) -> Any:
        """Return an Arrow array of a type."""
        return pa.array(list(self), kind)

    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (starts_D, stops_D, data uint8): the JSON of each value; a list has no brackets."""
        if self.names:
            parts = [json.dumps(name, ensure_ascii=False).encode("utf-8", "replace") for name in self.names]
            ends = np.cumsum([0, *map(len, parts)])
            return ends[self.values], ends[self.values + 1], np.frombuffer(b"".join(parts), np.uint8)
        data = np.frombuffer(json.dumps(_finite(self.values))[1:-1].encode(), np.uint8)
        starts, stops = _between_commas(data, len(self.values))
        if self.ends_D is None:
            return starts, stops, data
        firsts_D = np.concatenate([[0], self.ends_D[:-1]]).astype(np.int64)
        filled_D = self.ends_D > firsts_D
        starts_D, stops_D = np.zeros(len(filled_D), np.int64), np.zeros(len(filled_D), np.int64)
        starts_D[filled_D], stops_D[filled_D] = starts[firsts_D[filled_D]], stops[self.ends_D[filled_D] - 1]
        return starts_D, stops_D, data


def _finite(values: np.ndarray) -> list[Any]:
    """Return values as Python's; None for infinity and NaN, which JSON lacks."""
    known = np.isfinite(values)
    listed = values.tolist()
    return (
        listed if known.all() else [value if is_known else None for value, is_known in zip(listed, known, strict=True)]
    )


def fields_of(fields: Mapping[str, NewField], d: int) -> dict[str, Any]:
    """Return the new fields of document d by name."""
    values = ((name, field[d]) for name, field in fields.items())
    return {name: value for name, value in values if value is not None}


def json_fields(fields: Mapping[str, NewField], documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets_D1, data): the new fields of each document as `json.dumps` writes them, without braces.

    data[offsets_D1[d]:offsets_D1[d + 1]] belongs to document d; it is empty if the document has no field.
    """
    offsets_D1 = np.zeros(documents + 1, np.int64)
    F = len(fields)
    spans = [field.spans() for field in fields.values()]
    sizes = np.cumsum([0, *(len(data) for _, _, data in spans)])
    starts_FD = np.array([starts + size for (starts, _, _), size in zip(spans, sizes, strict=False)]).reshape(F, -1)
    stops_FD = np.array([stops + size for (_, stops, _), size in zip(spans, sizes, strict=False)]).reshape(F, -1)
    has_FD = np.array([field.has_D for field in fields.values()], bool).reshape(F, -1)
    is_list_F = np.array([field.ends_D is not None for field in fields.values()], bool)
    heads = [json.dumps(name, ensure_ascii=False).encode() + b": " for name in fields]
    head_ends_F = np.cumsum(np.array([len(head) for head in heads], np.int64))
    room = int(np.where(has_FD, stops_FD - starts_FD, 0).sum()) + documents * sum(len(head) + 4 for head in heads)
    out = np.empty(room, np.uint8)
    values = np.concatenate([np.empty(0, np.uint8), *(data for _, _, data in spans)])
    head = np.frombuffer(b"".join(heads), np.uint8)
    heads_F, spans_FD = (read_only(head), head_ends_F), (starts_FD, stops_FD, has_FD)
    used = _join_fields(heads_F, read_only(values), spans_FD, is_list_F, offsets_D1, out)
    return offsets_D1, out[:used]


@njit(nogil=True, cache=True)
def _between_commas(data, n):
    """Return (starts, stops) of n values between ", "."""
    starts, stops = np.zeros(n, np.int64), np.zeros(n, np.int64)
    i = 0
    for at in range(len(data)):
        if data[at] == COMMA:
            stops[i] = at
            i += 1
            starts[i] = at + 2
    if n:
        stops[n - 1] = len(data)
    return starts, stops


@njit(nogil=True, cache=True)
def _join_fields(heads_F, values, spans_FD, is_list_F, offsets_D1, out):
    (heads, head_ends_F), (starts_FD, stops_FD, has_FD) = heads_F, spans_FD
    at = 0
    F, D = has_FD.shape
    for d in range(D):
        empty = True
        for f in range(F):
            if not has_FD[f, d]:
                continue
            if not empty:
                out[at], out[at + 1] = COMMA, SPACE
                at += 2
            empty = False
            for k in range(head_ends_F[f - 1] if f else 0, head_ends_F[f]):
                out[at] = heads[k]
                at += 1
            if is_list_F[f]:
                out[at] = 91
                at += 1
            for k in range(starts_FD[f, d], stops_FD[f, d]):
                out[at] = values[k]
                at += 1
            if is_list_F[f]:
                out[at] = 93
                at += 1
        offsets_D1[d + 1] = at
    return at
