"""Compare the inputs of an output with their description in its manifest."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.byte_ranges import reader
from mgpu_ngram.core.inputs.file_sources import stored_source
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.inputs.streams import footer_crc
from mgpu_ngram.core.storage.crc import PartCrc, combine_crc32
from mgpu_ngram.core.storage.output import find_manifest

STRIP_BYTES = 16 << 20  # bytes of one read of one thread
THREADS = 4  # threads that read a file
IN_MEMORY = ("<lines in memory>", "<ids in memory>")  # names of inputs that cannot be read again


def verify_inputs(manifest: dict[str, Any], folder: str | Path = ".") -> list[str]:
    """Return one line for each input that is missing or differs from `manifest`; [] when all are the same.

    folder  where relative names of inputs start: the working directory of the run

    Compares sizes, and CRC-32 checksums if the manifest has them: of the stored bytes, or for a Parquet file only of
    its metadata. Inputs that were given in memory are skipped.
    """
    return list(_differences(manifest, Path(folder)))


def _differences(manifest: dict[str, Any], folder: Path) -> Iterator[str]:
    for given in manifest.get("inputs", []):
        name = given["name"]
        if name in IN_MEMORY:
            continue
        location = name if "://" in name else os.path.abspath(folder / name)
        try:
            size_bytes, crc32 = _counts(location) or _file(stored_source(name, location))
        except InputError as error:
            yield str(error)
            continue
        if size_bytes != given["size_bytes"]:
            yield f"{name!r} has {size_bytes:,} bytes but had {given['size_bytes']:,}; restore it, or run again"
        elif crc32 != given.get("crc32", crc32):
            yield f"{name!r} has CRC-32 {crc32} but had {given['crc32']}; restore it, or run again"


def _file(source: Source) -> tuple[int, str]:
    """Return (bytes, CRC-32) of a file."""
    if source.format == "parquet":
        return source.size_bytes, f"{footer_crc(source)[1]:08x}"
    with reader(source) as read, ThreadPoolExecutor(THREADS) as pool:

        def crc_of(offset: int) -> PartCrc:
            strip = np.empty(min(STRIP_BYTES, source.size_bytes - offset), np.uint8)
            read(offset, strip)
            return 0, offset, len(strip), zlib.crc32(strip.data)

        return source.size_bytes, f"{combine_crc32(pool.map(crc_of, range(0, source.size_bytes, STRIP_BYTES))):08x}"


def _counts(location: str) -> tuple[int, str] | None:
    """Return (bytes, CRC-32) of counts that a model was made from; None if `location` holds no counts."""
    manifest = find_manifest(location) if os.path.isdir(location) else None
    return None if manifest is None else counts_checksum(manifest)


def counts_checksum(manifest: dict[str, Any]) -> tuple[int, str]:
    """Return (bytes of all files, CRC-32 of the manifest, which holds the CRC of every file) of counts."""
    size_bytes = sum(file["size_bytes"] for file in manifest["files"].values())
    return size_bytes, f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"
