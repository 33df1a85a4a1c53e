"""A model in a file: its trie and its words, memory-mapped when it is read."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.arrays import load_arrays, save_arrays
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.trie import ARRAYS, Trie, node_dtype
from mgpu_ngram.core.words import Words

FORMAT = "mgpu_ngram model"
FORMAT_VERSION = 1
WORD_ARRAYS = ("offsets_V", "data")


@dataclass(frozen=True)
class Model:
    """A backoff model in host memory.

    trie         NumPy arrays
    words        V words; word v is node v of the trie
    fingerprint  the same for the same model, whatever file it is in
    """

    trie: Trie
    words: Words
    fingerprint: str

    @classmethod
    def of(cls, trie: Trie, words: Words) -> Model:
        """From a trie in host memory and its words."""
        crc = zlib.crc32(json.dumps([trie.starts, trie.fanout]).encode())
        for array in _arrays(trie, words).values():
            crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc)
        return cls(trie, words, f"{len(trie):x}-{crc:08x}")


def save_model(path: str | Path, model: Model) -> int:
    """Write a model to a safetensors file; return its bytes. Raises RunError when the disk is full."""
    trie = model.trie
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "order": trie.order,
        "starts": list(trie.starts),
        "fanout": trie.fanout,
        "fingerprint": model.fingerprint,
    }
    return save_arrays(path, _arrays(trie, model.words), metadata)


def load_model(path: str | Path, verify: bool = True) -> Model:
    """Return the model of a file: views of a memory map.

    verify  compare the checksum of every array, which reads them all

    Raises InputError when the file is missing, damaged, no model, or newer than this program.
    """
    arrays, metadata = load_arrays(path, verify)
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} holds no model but {metadata.get('format') or metadata.get('kind') or 'other arrays'}; "
            "give a file that save_model wrote, or an ARPA file"
        )
    if metadata["format_version"] > FORMAT_VERSION:
        raise InputError(
            f"{path} has model version {metadata['format_version']} but this mgpu_ngram reads up to {FORMAT_VERSION}; "
            "upgrade mgpu_ngram"
        )
    try:
        fields: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
        trie = Trie(starts=tuple(metadata["starts"]), fanout=metadata["fanout"], **fields)
        model = Model(trie, Words(*(arrays[name] for name in WORD_ARRAYS)), metadata["fingerprint"])
        wrong = _contradiction(model, verify)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        wrong = f"it lacks {error}"
    if wrong:
        raise InputError(f"{path} is no sound model: {wrong}; make it again")
    return model


def _contradiction(model: Model, verify: bool) -> str:
    """What would lead a search outside the arrays, if anything; `verify`: of what stands in them, too."""
    trie, words = model.trie, model.words
    if trie.fanout < 2 or list(trie.starts) != sorted(trie.starts) or trie.starts[0] != 0:
        return f"its orders begin at {trie.starts}, its fanout is {trie.fanout}"
    G, M, V = len(trie), trie.starts[-2], trie.symbols
    node, levels = node_dtype(G), len(trie.sample_starts)
    wanted: dict[str, tuple[Any, int]] = {
        "word_G": (np.uint32, G), "prob_G": (np.float32, G), "backoff_M": (np.float32, M),
        "first_child_M": (node, M + 1), "suffix_M": (node, M), "sample_starts": (np.int64, levels),
        "samples": (np.uint32, int(trie.sample_starts[-1])),
    }  # fmt: skip
    for name, (dtype, length) in wanted.items():
        array = getattr(trie, name)
        if array.dtype != dtype or array.shape != (length,):
            return f"{name} is {array.dtype} of shape {array.shape} but must be {np.dtype(dtype)} of ({length},)"
    if words.offsets_V.shape != (V + 1,) or words.offsets_V[0] != 0 or words.offsets_V[-1] != len(words.data):
        return f"its words are {len(words):,} of {len(words.data):,} bytes but the trie has {V:,}"
    starts = np.cumsum([0, *(-(-G // trie.fanout**t) for t in range(1, levels))])
    if not np.array_equal(trie.sample_starts, starts):
        return f"levels of its index begin at {trie.sample_starts.tolist()} but at {starts.tolist()} for its fanout"
    if not verify:
        return ""
    first, ends = trie.first_child_M, words.offsets_V
    if first[-1] != G or first[0] != V * (trie.order > 1) + G * (trie.order == 1) or (first[1:] < first[:-1]).any():
        return "children do not follow each other"
    if (ends[1:] < ends[:-1]).any() or (trie.suffix_M > G).any():
        return "words or suffixes lie outside"
    return ""


def is_model_file(path: str | Path) -> bool:
    """Whether a file begins as a safetensors file does: the length of a JSON header, and its brace."""
    with open(path, "rb") as file:
        head = file.read(9)
        size_bytes = os.fstat(file.fileno()).st_size
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size_bytes


def _arrays(trie: Trie, words: Words) -> dict[str, np.ndarray]:
    return {name: getattr(trie, name) for name in ARRAYS} | {name: getattr(words, name) for name in WORD_ARRAYS}
