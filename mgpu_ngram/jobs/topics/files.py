"""Files of the topics of documents, which grow chunk by chunk: Parquet, JSON lines, and matrices of NumPy and SciPy."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from mgpu_ngram.core.counts.arrow_numbers import numbers_to_arrow
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.output import COPY_BYTES, SUFFIXES, Sink, new_file
from mgpu_ngram.engine.topics.infer import Inferred

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

GROUP_BYTES = 32 << 20  # approximate bytes of a Parquet row group
TABLE_KINDS = {  # by format: the first bytes of its files, and its name for people
    "parquet": (b"PAR1", "a Parquet file"),
    "jsonl": (b'{"document":', "a file of topics in JSON lines"),
    "npy": (b"\x93NUMPY", "a NumPy file"),
    "npz": (b"PK\x03\x04", "a NumPy archive"),
}
HTML = "an HTML page", b"<!doctype html>"  # as in TABLE_KINDS


@dataclass(frozen=True)
class TableOptions:
    """The contents of a file.

    dense  write all shares of each document; else the shares from the threshold on
    about  model and threshold, for the metadata of Parquet
    """

    format: str
    num_topics: int
    dense: bool = False
    about: dict[str, Any] = field(default_factory=dict)


def format_of(path: str | Path) -> str:
    """Return the format of an output from the suffix of its name; unknown suffixes mean Parquet."""
    suffix = Path(path).suffix.lower()
    if suffix in SUFFIXES and suffix[1:] not in TABLE_KINDS:
        raise InputError(
            f"output {path} ends with {suffix} but must end with .parquet, .jsonl, .npy (dense) or .npz (sparse); "
            "rename it"
        )
    return suffix[1:] if suffix[1:] in TABLE_KINDS else "parquet"


def open_table(path: str | Path, options: TableOptions) -> TopicsFile:
    """Return a new file, as a context manager; it appears when it is complete."""
    kinds: dict[str, type[TopicsFile]] = {"parquet": _Parquet, "jsonl": _JsonLines, "npy": _Dense, "npz": _Sparse}
    return kinds[options.format](path, options)


class TopicsFile:
    """A file of the topics of documents."""

    def __init__(self, path: str | Path, options: TableOptions):
        self.path, self.options = path, options
        self.documents = 0  # written so far

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.sink: Sink = stack.enter_context(new_file(self.path))
            self.begin(stack)
            stack.push(lambda kind, *_: self.finish() if kind is None else None)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def write(self, found: Inferred) -> None:
        """Append documents."""
        self.append(found)
        self.documents += found.documents

    def begin(self, stack: ExitStack) -> None:
        """Open the files that `append` writes."""

    def append(self, found: Inferred) -> None:
        """Write documents; `documents` is the number of the first one."""
        raise NotImplementedError  # each kind of file has its own

    def finish(self) -> None:
        """Write the end of the file, after the last document."""


class _Parquet(TopicsFile):
    """Columns document, tokens, unknown, topics and weights; dense: weights alone, one for each topic."""

    def begin(self, stack: ExitStack) -> None:
        shares = pa.list_(pa.float32(), self.options.num_topics) if self.options.dense else pa.list_(pa.float32())
        fields = [(name, pa.int64()) for name in ("document", "tokens", "unknown")]
        fields += [] if self.options.dense else [("topics", pa.list_(pa.int32()))]
        about = {"mgpu_ngram": json.dumps(self.options.about | {"topics": self.options.num_topics})}
        self.schema = pa.schema([*fields, ("weights", shares)], metadata=about)
        self.file = stack.enter_context(pq.ParquetWriter(self.sink, self.schema))
        self.waiting: list[pa.Table] = []

    def append(self, found: Inferred) -> None:
        numbers = np.arange(self.documents, self.documents + found.documents)
        columns = [numbers_to_arrow(column) for column in (numbers, found.tokens_D, found.unknown_D)]
        if self.options.dense:
            weights = numbers_to_arrow(found.shares_DZ.reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(weights, self.options.num_topics))
        else:
            starts = numbers_to_arrow(found.starts_D1.astype(np.int32))
            columns += [pa.ListArray.from_arrays(starts, numbers_to_arrow(a)) for a in (found.topics_N, found.shares_N)]
        self.waiting.append(pa.Table.from_arrays(columns, schema=self.schema))
        if sum(table.nbytes for table in self.waiting) >= GROUP_BYTES:
            self.finish()

    def finish(self) -> None:
        if self.waiting:
            self.file.write_table(pa.concat_tables(self.waiting).combine_chunks())
        self.waiting = []


class _JsonLines(TopicsFile):
    """An object a line: document, tokens, unknown, topics and weights; dense: weights alone, one for each topic."""

    def append(self, found: Inferred) -> None:
        topics, starts = found.topics_N.tolist(), found.starts_D1.tolist()
        rows = zip(found.tokens_D.tolist(), found.unknown_D.tolist(), strict=True)
        lines = []
        for d, (tokens, unknown) in enumerate(rows):
            line: dict[str, Any] = {"document": self.documents + d, "tokens": tokens, "unknown": unknown}
            entries = slice(starts[d], starts[d + 1])
            if not self.options.dense:
                line["topics"] = topics[entries]
            shares = found.shares_DZ[d] if self.options.dense else found.shares_N[entries]
            line["weights"] = [float(f"{share:.6g}") for share in shares.tolist()]
            lines.append(json.dumps(line) + "\n")
        self.sink.append("".join(lines).encode())


class _Dense(TopicsFile):
    """A NumPy array (D, Z) float32."""

    def begin(self, stack: ExitStack) -> None:
        self.sink.append(_npy_header(np.dtype(np.float32), (0, self.options.num_topics)))

    def append(self, found: Inferred) -> None:
        self.sink.append(np.ascontiguousarray(found.shares_DZ).reshape(-1).view(np.uint8).data)

    def finish(self) -> None:
        self.sink.flush()
        self.sink.write_at(0, _npy_header(np.dtype(np.float32), (self.documents, self.options.num_topics)))


def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of an array; its length is the same for any first dimension."""
    file = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


class _Sparse(TopicsFile):
    """A CSR matrix (D, Z) float32 as `scipy.sparse.save_npz` writes it, without compression."""

    def begin(self, stack: ExitStack) -> None:
        folder = os.path.dirname(os.path.abspath(self.path))
        self.kept: dict[str, IO[bytes]] = {}
        for name in ("indices", "data", "lengths"):
            self.kept[name] = stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
        self.entries = 0

    def append(self, found: Inferred) -> None:
        rows_N = np.repeat(np.arange(found.documents), np.diff(found.starts_D1))
        order = np.lexsort((found.topics_N, rows_N))
        self.kept["indices"].write(found.topics_N[order].tobytes())
        self.kept["data"].write(found.shares_N[order].tobytes())
        self.kept["lengths"].write(np.diff(found.starts_D1).astype(np.int64).tobytes())
        self.entries += len(order)

    def finish(self) -> None:
        with zipfile.ZipFile(_SinkFile(self.sink), "w") as archive:  # type: ignore[call-overload]  # it has what zipfile calls
            shape = np.array([self.documents, self.options.num_topics], np.int64)
            for name, array in (("format", np.array(b"csr")), ("shape", shape)):
                file = io.BytesIO()
                np.lib.format.write_array(file, array)
                archive.writestr(f"{name}.npy", file.getvalue())
            for name, dtype in (("indices", np.int32), ("data", np.float32)):
                self._copy(archive, name, np.dtype(dtype))
            self._copy_starts(archive)

    def _copy(self, archive: zipfile.ZipFile, name: str, dtype: np.dtype) -> None:
        source = self.kept[name]
        source.seek(0)
        with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            file.write(_npy_header(dtype, (self.entries,)))
            while block := source.read(COPY_BYTES):
                file.write(block)

    def _copy_starts(self, archive: zipfile.ZipFile) -> None:
        """Write the row starts, the sums of the lengths: 64 bits where 32 are too few, as SciPy has them."""
        dtype = np.dtype(np.int32 if self.entries < 2**31 else np.int64)
        source, start = self.kept["lengths"], 0
        source.seek(0)
        with archive.open("indptr.npy", "w", force_zip64=True) as file:
            file.write(_npy_header(dtype, (self.documents + 1,)) + np.zeros(1, dtype).tobytes())
            while block := source.read(COPY_BYTES):
                ends = start + np.cumsum(np.frombuffer(block, np.int64))
                file.write(ends.astype(dtype).tobytes())
                start = int(ends[-1])


class _SinkFile:
    """A sink as a file that cannot be sought."""

    def __init__(self, sink: Sink):
        self.sink = sink

    def write(self, data: Any) -> int:
        self.sink.append(data)
        return len(data)

    def flush(self) -> None:
        self.sink.flush()
