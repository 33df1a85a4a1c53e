"""Named arrays in one file: the safetensors format, with a CRC-32 of each array and of the header.

A file holds 8 bytes (the length of the header), the header (JSON padded with spaces), and the concatenated arrays
(https://github.com/huggingface/safetensors#format). Reading a file executes nothing from it.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.crc import Crc
from mgpu_ngram.core.storage.file_heads import MAX_HEADER_BYTES
from mgpu_ngram.core.storage.output import new_file
from mgpu_ngram.core.storage.shared_maps import map_file
from mgpu_ngram.kernels.dispatch import slice_to_host

FORMAT = "mgpu_ngram arrays"
FORMAT_VERSION = 1
METADATA = "__metadata__"  # the format's name for the strings beside the arrays
SLICE_BYTES = 8 << 20  # bytes of an array that are written or checked at once
SLICE_THREADS = 8
DTYPES = {"BOOL": np.dtype(bool)} | {
    f"{letter}{8 * size}": np.dtype(f"<{kind}{size}")
    for letter, kind, sizes in (("U", "u", (1, 2, 4, 8)), ("I", "i", (1, 2, 4, 8)), ("F", "f", (2, 4, 8)))
    for size in sizes
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def save_arrays(
    path: str | Path,
    arrays: Mapping[str, Any],
    metadata: Mapping[str, Any] | Callable[[dict[str, int]], Mapping[str, Any]],
    durable: bool = True,
) -> int:
    """Write arrays and metadata to one file; return its size in bytes.

    path      appears when the file is complete and on disk; an older file at this path is replaced
    arrays    of any shape, on any device, also strided views: bool, (u)int8 to 64, float16 to 64
    metadata  JSON values; or a function that returns them from the CRC-32 of each array, with the same length of JSON
              for all CRCs
    durable   wait for the disk; if False, a crash of the host may leave a damaged file, which `load_arrays` detects

    Several threads write slices. Arrays of a GPU and strided views are copied slice by slice. Raises RunError when the
    disk is full.
    """
    if METADATA in arrays:
        raise ValueError(f"an array cannot have the name {METADATA}, which the format reserves; rename it")
    for name, array in arrays.items():
        if array.dtype not in DTYPE_NAMES:
            raise ValueError(f"array {name!r} is of {array.dtype} but a file holds {', '.join(DTYPES)}; convert it")
    names = sorted(arrays, key=lambda name: -arrays[name].itemsize)  # each array starts at a multiple of its itemsize
    ordered = [arrays[name] for name in names]

    def header(crcs: Sequence[int]) -> bytes:
        known = metadata(dict(zip(names, crcs, strict=True))) if callable(metadata) else metadata
        return _header(ordered, names, known, crcs)

    place = len(header([0] * len(names)))
    if place - 8 > MAX_HEADER_BYTES:
        raise ValueError(f"the header of {path} has {place - 8:,} bytes but {MAX_HEADER_BYTES:,} at most; shorten it")
    with new_file(path, durable) as sink:

        def write(piece: Any, offset: int) -> int:
            data = _bytes(piece)
            sink.write_at(offset, data)
            return zlib.crc32(data)

        sink.append(header(_crcs(ordered, write, place)))
    return place + sum(int(array.nbytes) for array in ordered)


def _header(arrays: Sequence[Any], names: Sequence[str], metadata: Mapping[str, Any], crcs: Sequence[int]) -> bytes:
    """Return the bytes before the arrays; their length is the same for all CRCs."""
    strings = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "metadata": json.dumps(metadata)}
    by_name = {name: f"{crc:08x}" for name, crc in zip(names, crcs, strict=True)}
    header: dict[str, Any] = {METADATA: {**strings, "crc32": json.dumps(by_name)}}
    end = 0
    for name, array in zip(names, arrays, strict=True):
        offsets = [end, end := end + array.nbytes]
        header[name] = {"dtype": DTYPE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
    header[METADATA]["header_crc32"] = _header_crc32(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def has_format(path: str | Path, format: str) -> bool:
    """Return whether a file holds arrays of a format, such as "mgpu_ngram model", by its header."""
    try:
        return load_arrays(path, verify=False)[1].get("format") == format
    except InputError:
        return False


def load_arrays(path: str | Path, verify: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a file, as read-only views of one memory map, and its metadata.

    verify  compare the CRC-32 of every array, which reads all of them; the header's CRC-32 is always compared

    Raises InputError when the file is missing, damaged, truncated, not ours, or newer than this program.
    """
    try:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            start = 8 + int.from_bytes(file.read(8), "little")
            if not 8 < start <= 8 + MAX_HEADER_BYTES or file.read(1) != b"{":
                raise InputError(
                    f"{path} is not a file of arrays: it has no safetensors header; give a file that mgpu_ngram wrote"
                )
            if size_bytes < start:
                raise _damaged(path, f"its header ends at byte {start:,} but the file at {size_bytes:,}")
            whole = map_file(os.dup(file.fileno()))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path and its permissions") from None
    try:
        header = json.loads(whole[8:start].tobytes())
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is not JSON") from None
    metadata, crcs = _metadata(path, header)
    arrays = {}
    end = start
    for name, dtype, shape, begin, stop in sorted(_fields(path, header), key=lambda field: field[3:]):
        if start + begin != end or stop - begin != math.prod(shape) * dtype.itemsize:
            raise _damaged(path, f"array {name!r} of shape {shape} lies at bytes {begin:,} to {stop:,} of the data")
        end = start + stop
        if end > size_bytes:
            raise _damaged(path, f"array {name!r} ends at byte {end:,} but the file at {size_bytes:,}")
        arrays[name] = whole[start + begin : end].view(dtype).reshape(shape)
    if end != size_bytes:
        raise _damaged(path, f"its arrays end at byte {end:,} but the file at {size_bytes:,}")
    if verify:
        for name, crc in zip(arrays, array_crcs(list(arrays.values())), strict=True):
            if crcs[name] != f"{crc:08x}":
                raise _damaged(path, f"array {name!r} has CRC-32 {crc:08x}, not {crcs[name]}")
    return arrays, metadata


def _metadata(path: str | Path, header: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (metadata, CRC-32 of each array) from a header. Raises InputError unless the header is ours and intact."""
    strings = header.pop(METADATA, None) if isinstance(header, dict) else None
    if not isinstance(strings, dict) or strings.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a file of mgpu_ngram: its header lacks the format {FORMAT!r}; "
            "give a file that mgpu_ngram wrote"
        )
    version = str(strings.get("format_version"))
    if not version.isdecimal():
        raise _damaged(path, f"its format version is {version}")
    if int(version) > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version} but this mgpu_ngram reads up to {FORMAT_VERSION}; upgrade mgpu_ngram"
        )
    stored = strings.pop("header_crc32", None)
    if stored != (crc := _header_crc32({METADATA: strings, **header})):
        raise _damaged(path, f"its header has CRC-32 {crc}, not {stored}")
    return json.loads(strings["metadata"]), json.loads(strings["crc32"])


def _fields(path: str | Path, header: dict[str, Any]) -> Iterator[tuple[str, np.dtype, list[int], int, int]]:
    """Yield (name, dtype, shape, first offset, last offset) of each array; raises InputError unless these are valid."""
    for name, field in header.items():
        try:
            kind, shape, (begin, stop) = field["dtype"], field["shape"], field["data_offsets"]
            sound = type(kind) is str and all(type(n) is int and n >= 0 for n in (*shape, begin, stop))
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise _damaged(path, f"array {name!r} is described by {field}")
        if kind not in DTYPES:
            raise InputError(f"array {name!r} of {path} is of unknown type {kind!r}; upgrade mgpu_ngram")
        yield name, DTYPES[kind], shape, begin, stop


def _header_crc32(header: dict[str, Any]) -> str:
    """Return the CRC-32 of a header without its own CRC-32 entry."""
    return f"{zlib.crc32(json.dumps(header).encode()):08x}"


def _damaged(path: str | Path, what: str) -> InputError:
    return InputError(f"{path} is damaged: {what}; delete it and make it again")


def _slices(array: Any) -> Iterator[Any]:
    """Yield views of about SLICE_BYTES that make up the array in C order."""
    array = array.reshape(1) if array.ndim == 0 else array
    if array.size == 0:
        return
    row_bytes = array[:1].nbytes
    if row_bytes > SLICE_BYTES and array.ndim > 1:
        for row in array:
            yield from _slices(row)
        return
    rows = max(1, SLICE_BYTES // row_bytes)
    for row in range(0, len(array), rows):
        yield array[row : row + rows]


def _bytes(piece: Any) -> memoryview:
    return np.ascontiguousarray(slice_to_host(piece)).reshape(-1).view(np.uint8).data


def array_crcs(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the CRC-32 of each array's bytes, computed by several threads."""
    return _crcs(arrays, lambda piece, _: zlib.crc32(_bytes(piece)))


def _crcs(arrays: Sequence[Any], crc_of: Callable[[Any, int], int], offset: int = 0) -> list[int]:
    """Return the CRC-32 of each array, combined from crc_of(slice, place) of its slices.

    Places of slices are consecutive from `offset` on. Several threads call crc_of.
    """
    totals = [Crc(array.nbytes) for array in arrays]
    pieces = [(total, piece) for total, array in zip(totals, arrays, strict=True) for piece in _slices(array)]
    places = accumulate((piece.nbytes for _, piece in pieces), initial=offset)
    with ThreadPoolExecutor(min(SLICE_THREADS, os.cpu_count() or 1)) as pool:
        crcs = pool.map(crc_of, [piece for _, piece in pieces], places)
        for (total, piece), crc in zip(pieces, crcs, strict=True):
            total.add(crc, piece.nbytes)
    return [total.value for total in totals]
