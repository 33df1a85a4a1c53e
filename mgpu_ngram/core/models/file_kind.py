"""Describe the format and the contents of a file: `identify_file`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgpu_ngram.core.bags.topic_model import FORMAT as TOPIC_MODEL
from mgpu_ngram.core.bags.topic_model import describe_topic_model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.decompress import first_text
from mgpu_ngram.core.inputs.sources import Source, parquet_file, stored_head
from mgpu_ngram.core.kenlm.binary_file import MODEL_TYPES, read_header
from mgpu_ngram.core.kenlm.intermediate import intermediate_counts, intermediate_files
from mgpu_ngram.core.models.model_file import describe_model
from mgpu_ngram.core.nmt.files import describe_nmt_model, is_nmt_model
from mgpu_ngram.core.storage import file_heads as heads
from mgpu_ngram.core.storage.file_heads import COUNT_LINE, compression, is_safetensors, is_utf8, json_keys, what_begins
from mgpu_ngram.core.storage.model_layout import FORMAT
from mgpu_ngram.core.storage.safetensors import load_arrays

LOOK_BYTES = 1 << 16  # bytes of a file's text that are read; an ARPA header and the comments before it are shorter


def identify_file(path: str | Path) -> dict[str, Any]:
    """Return a description of a local file, by name; reads little of it.

    All files have `format`, such as "ARPA file", `compression` ("gzip", ... or None) and `size_bytes`, as stored. Other
    fields depend on the format. "mgpu_ngram model": the fields of `describe_model`. "mgpu_ngram topic model": those of
    `describe_topic_model`. "translation model": those of `describe_nmt_model`, which reads all of it. ARPA file and
    KenLM binary model: `order`, and `orders`, the number of n-grams of each order. KenLM binary model: also its `type`,
    and whether it holds its `vocabulary`. Parquet: `rows` and `columns`. JSON lines: the `keys` of the first line. A
    file of any other format is "text" if it is UTF-8, else "unknown".

    Raises InputError for a file that cannot be read, or whose header is damaged.
    """
    name, location = str(path), os.path.abspath(path)
    if os.path.lexists(location) and not os.path.isfile(location):
        raise InputError(f"{name!r} is not a regular file; give the path of a file")
    head, size_bytes = stored_head(name, location, LOOK_BYTES)
    if compressed := compression(head):
        head = first_text(Source(name, compressed, size_bytes, location), LOOK_BYTES)
    what = what_begins(head)
    found: dict[str, Any] = {"format": what.removeprefix("a ").removeprefix("an ")}
    if what == heads.ARPA:
        found |= _arpa_header(name, head)
    elif what == heads.INTERMEDIATE and not compressed:
        counts = intermediate_counts(name, head)
        size_bytes += sum(file.stat().st_size for file in intermediate_files(location, head))
        found |= {"order": len(counts), "orders": counts}
    elif what == heads.KENLM:
        header = read_header(name, head)
        orders = {"order": header.order, "orders": list(header.counts)}
        found |= {"type": MODEL_TYPES[header.kind]} | orders | {"vocabulary": header.has_words}
    elif is_safetensors(head) and not compressed:
        metadata = load_arrays(path, verify=False)[1]
        kinds: dict[Any, Callable[[str | Path], dict[str, Any]]] = {
            FORMAT: describe_model,
            TOPIC_MODEL: describe_topic_model,
        }
        describe = kinds.get(metadata.get("format"))
        found = describe(path) if describe else found | {"metadata": metadata}
    elif head.startswith(heads.PARQUET) and not compressed:
        found |= _parquet_schema(Source(name, "parquet", size_bytes, location))
    elif what == heads.ZIP and not compressed and is_nmt_model(location):
        found = describe_nmt_model(location)
    elif what == heads.JSON_LINES:
        found |= {"keys": json_keys(head)}
    elif not what:
        found = {"format": ("text" if is_utf8(head) and b"\0" not in head else "unknown") if head else "empty file"}
    return found | {"compression": compressed or None, "size_bytes": size_bytes}


def _arpa_header(name: str, head: bytes) -> dict[str, Any]:
    orders: list[int] = []
    for line in head[head.index(b"\\data\\") :].splitlines()[1:]:
        match = COUNT_LINE.fullmatch(line)
        if not match or int(match[1]) != len(orders) + 1:
            break
        orders.append(int(match[2]))
    if not orders:
        raise InputError(f"{name!r} is an ARPA file without 'ngram 1=COUNT' in its header; copy it or write it again")
    return {"order": len(orders), "orders": orders}


def _parquet_schema(source: Source) -> dict[str, Any]:
    with parquet_file(source) as file:
        columns = {column.name: str(column.type) for column in file.schema_arrow}
        return {"rows": file.metadata.num_rows, "columns": columns}
