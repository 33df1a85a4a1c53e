"""A model file: a trie and its words, memory-mapped for reading."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.compress import without_compression
from mgpu_ngram.core.inputs.decompress import first_text
from mgpu_ngram.core.inputs.sources import Source, stored_head
from mgpu_ngram.core.models.model_checks import contradiction
from mgpu_ngram.core.models.model_head import read_head
from mgpu_ngram.core.ngrams.trie import CODED, FILLED, TRIE_ARRAYS, Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.crc import append_crc32
from mgpu_ngram.core.storage.file_heads import KENLM, KENLM_SUFFIXES, compression
from mgpu_ngram.core.storage.model_layout import EDGE_NUMBERS, FORMAT, FORMAT_VERSION
from mgpu_ngram.core.storage.output import check_free, check_suffix
from mgpu_ngram.core.storage.safetensors import array_crcs, has_format, load_arrays, save_arrays
from mgpu_ngram.kernels.trie.edges import EdgeTable

WORD_ARRAYS = ("offsets_V", "data")
EDGE_ARRAYS = ("slots_E2", "words_V2")


@dataclass(frozen=True)
class BackoffModel:
    """A backoff model in host memory.

    trie         NumPy arrays
    words        V words; word v is node v of the trie
    fingerprint  depends only on the n-grams and values, not on the file or on an edge table
    edges        the edge table, which scorers use if present
    """

    trie: Trie
    words: Words
    fingerprint: str
    edges: EdgeTable | None = None

    @property
    def order(self) -> int:
        return self.trie.order

    @property
    def ngrams(self) -> int:
        return len(self.trie)

    def check_scores(self, path: str | Path = "the model") -> None:
        """Raise InputError if the model lacks backoffs, because scores need them."""
        if not self.trie.has_backoffs:
            raise InputError(f"{path} has no backoffs, which scores need; make it again without --no-backoff")

    @classmethod
    def of(cls, trie: Trie, words: Words, edges: EdgeTable | None = None) -> BackoffModel:
        """Return the model of a trie in host memory, its words and optionally its edge table."""
        arrays = _arrays(trie, words)
        crcs = array_crcs(list(arrays.values()))
        return cls(trie, words, _fingerprint(trie, words, dict(zip(arrays, crcs, strict=True))), edges)


def save_model(path: str | Path, model: BackoffModel) -> int:
    """Write a model to a safetensors file; return its size in bytes.

    Raises InputError for a model that has only hashes of words, and RunError when the disk is full.
    """
    trie, edges = model.trie, model.edges
    _ = model.words.offsets_V  # refuses hashes of words
    metadata, arrays = _metadata(trie, model.fingerprint), _arrays(trie, model.words)
    if edges:
        arrays |= {f"edges.{name}": getattr(edges, name) for name in EDGE_ARRAYS}
        metadata["edges"] = {name: getattr(edges, name) for name in EDGE_NUMBERS}
    return save_arrays(path, arrays, metadata)


def save_trie(path: str | Path, trie: Trie, words: Words) -> int:
    """As `save_model(path, BackoffModel.of(trie, words))`, but computes the fingerprint while it writes.

    trie  on any device
    """
    return save_arrays(path, _arrays(trie, words), lambda crcs: _metadata(trie, _fingerprint(trie, words, crcs)))


def _fingerprint(trie: Trie, words: Words, crcs: dict[str, int]) -> str:
    """Return the fingerprint of a model from the CRC-32 of each of its arrays."""
    crc = zlib.crc32(json.dumps([trie.starts, trie.fanout]).encode())
    for name, array in _arrays(trie, words).items():
        crc = append_crc32(crc, crcs[name], array.nbytes)
    return f"{len(trie):x}-{crc:08x}"


def _metadata(trie: Trie, fingerprint: str) -> dict[str, Any]:
    """Return the metadata of a model file."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "order": trie.order,
        "starts": list(trie.starts),
        "fanout": trie.fanout,
        "fingerprint": fingerprint,
    }


def load_model(path: str | Path, verify: bool = True) -> BackoffModel:
    """Return the model of a file, as views of a memory map.

    verify  compare the checksum of every array, which reads all of them

    Raises InputError when the file is missing, damaged, not a model, or newer than this program.
    """
    arrays, metadata = load_arrays(path, verify)
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} holds {metadata.get('format') or metadata.get('kind') or 'other arrays'}, not a model; "
            "give a model file, an ARPA file or a KenLM binary model"
        )
    if metadata["format_version"] > FORMAT_VERSION:
        raise InputError(
            f"{path} has model version {metadata['format_version']} but this mgpu_ngram reads up to {FORMAT_VERSION}; "
            "upgrade mgpu_ngram"
        )
    try:
        coded = CODED if set(CODED) & set(arrays) else ()
        fields: dict[str, Any] = {name: arrays[name] for name in (*TRIE_ARRAYS, *coded)}
        starts, fanout = tuple(metadata["starts"]), metadata["fanout"]
        trie = Trie(starts=starts, fanout=fanout, **fields, filled_F=arrays.get(FILLED))
        edges = None
        if numbers := metadata.get("edges"):
            of_edges: dict[str, Any] = {name: arrays[f"edges.{name}"] for name in EDGE_ARRAYS}
            edges = EdgeTable(**of_edges, **{name: numbers[name] for name in EDGE_NUMBERS})
        words = Words(*(arrays[name] for name in WORD_ARRAYS))
        wrong = contradiction(trie, words, edges, verify)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        wrong = f"it lacks {error}"
    if wrong:
        raise InputError(f"{path} is damaged: {wrong}; make it again")
    return BackoffModel(trie, words, metadata["fingerprint"], edges)


def describe_model(path: str | Path) -> dict[str, Any]:
    """Return a description of a model file; reads little of it. Raises InputError as `load_model` does."""
    model = load_model(path, verify=False)
    trie, size_bytes = model.trie, os.path.getsize(path)
    return {
        "format": FORMAT,
        "order": trie.order,
        "orders": [end - begin for begin, end in pairwise(trie.starts)],
        "fanout": trie.fanout,
        "quantized": trie.quantized,
        "backoffs": trie.has_backoffs,
        "edge_table": model.edges is not None,
        "size_bytes": size_bytes,
        "bytes_per_ngram": size_bytes / len(trie),
        "fingerprint": model.fingerprint,
    }


def check_free_file(path: str | Path, overwrite: bool, format: str = "safetensors") -> None:
    """Raise InputError unless `path` is local and free, or a file of the same kind that may be replaced.

    format  "safetensors" for a model file, "arpa", "kenlm-probing" or "kenlm-trie"
    """
    if format == "arpa":
        check_free(path, overwrite, "an ARPA file", _is_arpa)
        check_suffix(without_compression(path), "an ARPA file", ".arpa")
    elif format == "safetensors":
        check_free(path, overwrite, "a model file", lambda file: has_format(file, FORMAT))
        check_suffix(path, "a model file", ".safetensors")
    else:
        check_free(path, overwrite, KENLM, lambda file: read_head(file).kind == KENLM)
        if Path(path).suffix.lower() not in KENLM_SUFFIXES:
            check_suffix(path, KENLM, KENLM_SUFFIXES[0])


def _is_arpa(path: str | Path) -> bool:
    try:
        head, size_bytes = stored_head(str(path), os.path.abspath(path))
        if kind := compression(head):
            head = first_text(Source(str(path), kind, size_bytes, os.path.abspath(path)), len(head))
    except InputError:
        return False
    return any(line.startswith(b"\\data\\") for line in head.splitlines())


def _arrays(trie: Trie, words: Words) -> dict[str, Any]:
    return trie.arrays() | words.arrays()
