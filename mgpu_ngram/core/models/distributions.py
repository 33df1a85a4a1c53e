"""The files of a distribution output. Any process may write them, in any order.

OUT/
  manifest.json        describes the output
  words.safetensors    the words of columns and ids
  rows.npy, rows.zarr  (H, orders, V); with top_k instead ids and values, (H, orders, k) each
  compact-*.safetensors  or a `CompactBlock` for every `part_histories` histories
  part-*.parquet       or a table for every `part_histories` histories
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.models.compact import load_compact
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.output import find_manifest, new_file, write_at
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

FORMAT = "mgpu_ngram distributions"
WORDS_FILE = "words.safetensors"
CHUNK_BYTES = 32 << 20  # bytes of a Zarr chunk, which holds at least one whole row
DIMENSIONS = {"rows": "word", "ids": "rank", "values": "rank"}  # name of each array's last dimension, in Zarr


@dataclass(frozen=True)
class ArrayFile:
    """An array file that is being written or is complete: .npy, or a Zarr v3 array of uncompressed chunks.

    path        ends with .npy (a file) or .zarr (a folder)
    shape       (H, orders, columns)
    dtype       type of the items: float32, float16, int32 or bfloat16 (stored as uint16, the upper half of a float32)
    chunk_rows  rows of a Zarr chunk, and of a Dask chunk when read
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int

    @property
    def stored(self) -> np.dtype:
        return _stored(self.dtype)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.stored.itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of the complete array."""
        if self._header:
            return len(self._header) + self.shape[0] * self.row_bytes
        return -(-self.shape[0] // self.chunk_rows) * self.chunk_rows * self.row_bytes

    def create(self) -> None:
        """Create the file or folder for processes to write to; existing content stays."""
        if self._header:
            self._write_file(self.path, self.size_bytes, self._header, 0)
            return
        os.makedirs(self.path, exist_ok=True)
        last = DIMENSIONS[Path(self.path).stem]
        note = {"dtype": self.dtype, "note": "uint16 is the upper half of a float32"}
        described = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": self.stored.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": (self.chunk_rows, *self.shape[1:])}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "dimension_names": ["history", "order", last],
            "attributes": note if self.dtype == "bfloat16" else {},
        }
        with new_file(f"{self.path}/zarr.json") as sink:
            sink.write(json.dumps(described, indent=2).encode() + b"\n")

    def write(self, first: int, data: np.ndarray) -> None:
        """Write bytes of the array from byte `first` on; the same bytes may be written again.

        Raises RunError when the disk is full.
        """
        while len(data):
            path, size, offset = self._place(first)
            n = min(len(data), size - offset)
            self._write_file(path, size, data[:n], offset)
            first, data = first + n, data[n:]

    def files(self, begin: int, end: int) -> list[str]:
        """Return the files that hold rows `begin` to `end` - 1, at least one row."""
        if self._header:
            return [self.path]
        return [self._chunk(i) for i in range(begin // self.chunk_rows, (end - 1) // self.chunk_rows + 1)]

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return rows `begin` to `end` - 1, if possible as a view of mapped files; bfloat16 becomes float32."""
        parts = [np.empty((0, *self.shape[1:]), self.stored)] if begin == end else []
        try:
            while begin < end:
                path, size, offset = self._place(begin * self.row_bytes)
                n = min(end - begin, (size - offset) // self.row_bytes)
                if os.path.getsize(path) != size:
                    raise InputError(f"{path} has {os.path.getsize(path):,} bytes, not {size:,}; make the output again")
                parts.append(np.memmap(path, self.stored, "r", offset, (n, *self.shape[1:])))
                begin += n
        except OSError as error:
            raise InputError(f"cannot read {error.filename} ({error.strerror}); make the output again") from None
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return (rows.astype(np.uint32) << 16).view(np.float32) if self.dtype == "bfloat16" else rows

    @cached_property
    def _header(self) -> bytes:
        """Return the header of an .npy file; empty for Zarr."""
        if self.path.endswith(".zarr"):
            return b""
        described = {"descr": self.stored.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(header := io.BytesIO(), described)
        return header.getvalue()

    def _chunk(self, i: int) -> str:
        return f"{self.path}/c.{i}.0.0"

    def _place(self, first: int) -> tuple[str, int, int]:
        """Return (file, its size in bytes, offset in it) of a byte of the array."""
        if self._header:
            return self.path, self.size_bytes, len(self._header) + first
        chunk_bytes = self.chunk_rows * self.row_bytes
        i, offset = divmod(first, chunk_bytes)
        return self._chunk(i), chunk_bytes, offset

    def _write_file(self, path: str, size: int, data: Any, offset: int) -> None:
        """Write to a file of `size` bytes and create it if needed; several processes may do so at once."""
        done = 0
        try:
            # Not open for reading: NFS would read a page that hosts share and write all of it back over their bytes.
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                if os.fstat(file).st_size < size:
                    os.ftruncate(file, size)
                while done < len(data):
                    done += write_at(file, data[done:], offset + done)
            finally:
                os.close(file)
        except OSError as error:
            raise RunError(
                f"cannot write {path} after {offset + done:,} bytes: {error.strerror or error}; "
                "free space there or give another output path"
            ) from error


def _stored(dtype: str) -> np.dtype:
    return np.dtype("<u2" if dtype == "bfloat16" else dtype).newbyteorder("<")


def describe_array(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Return the description of an array for manifests."""
    row_bytes = math.prod(shape[1:]) * _stored(dtype).itemsize
    return {"shape": list(shape), "dtype": dtype, "chunk_rows": max(1, min(shape[0], CHUNK_BYTES // row_bytes))}


def array_files(folder: str | Path, format: str, arrays: dict[str, Any]) -> list[ArrayFile]:
    """Return the arrays of an output, described by name."""
    return [
        ArrayFile(f"{folder}/{name}.{format}", tuple(a["shape"]), a["dtype"], a["chunk_rows"])
        for name, a in arrays.items()
    ]


def compact_file(folder: str | Path, part: int) -> str:
    return f"{folder}/compact-{part:06d}.safetensors"


def parquet_path(folder: str | Path, part: int) -> str:
    return f"{folder}/part-{part:06d}.parquet"


def save_words(folder: str | Path, words: Words, prob_V: np.ndarray, begin: int) -> None:
    """Write the words of columns and ids, the log10 probabilities of single words, and the id of <s>."""
    arrays = {"offsets_V": words.offsets_V, "data": words.data, "prob_V": prob_V}
    save_arrays(Path(folder) / WORDS_FILE, arrays, {"begin": begin})


def read_words(path: str | Path) -> tuple[Words, np.ndarray, int]:
    """Return (words, prob_V, id of <s>) of an output. Raises InputError if they are damaged."""
    arrays, metadata = load_arrays(Path(path) / WORDS_FILE)
    return Words(arrays["offsets_V"], arrays["data"]), arrays["prob_V"], metadata["begin"]


def read_distributions(path: str | Path) -> dict[str, Any]:
    """Return the manifest of an output. Raises InputError if there is none."""
    check_path(path, "path")
    manifest = find_manifest(path)
    if manifest is None or manifest["format"] != FORMAT:
        found = "it has no manifest.json that this version reads"
        found = f"it is one of {manifest['format']!r}" if manifest else found
        found = found if os.path.lexists(path) else "there is nothing at that path"
        raise InputError(f"{path} is not an output of distribution: {found}; give the folder that distribution wrote")
    return manifest


class CompactBlocks(Sequence[Any]):
    """The blocks of an output of compact distributions; each is read on demand.

    histories  number of histories in all blocks
    words      words of the model; .word(3), .id("word")
    prob_V     (V,) float32, log10 probability of single words, also in each block
    begin      the id of <s>

    `mgpu_ngram.compact.densify(block)` returns the rows of a block.
    """

    def __init__(self, path: str | Path):
        manifest = read_distributions(path)
        self.path, self.histories = Path(path).absolute(), manifest["histories"]
        self.words, self.prob_V, self.begin = read_words(path)
        self._parts: int = -(-self.histories // manifest["part_histories"])

    def __len__(self) -> int:
        return self._parts

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"block {i} is not one of the {len(self):,} blocks, which are numbered from 0")
        return load_compact(compact_file(self.path, i % len(self)), self.prob_V)
