"""A drop-in for the `kenlm` Python module: a program changes only to `from mgpu_ngram import kenlm`.

Names, signatures, types, scores and the equality of states are those of kenlm 0.3.0. Scoring runs in host memory, in
compiled C++ (`mgpu_ngram.native`). Beyond the original, a model may have any order, and may be a file that
`core.models.model_file.save_model` wrote. Settings for loading are accepted and have no effect.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any

from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.models.repeated_ngrams import warn_of_repeated
from mgpu_ngram.core.storage.file_heads import (
    HEAD_BYTES,
    KENLM,
    compression,
    is_safetensors,
    what_begins,
)
from mgpu_ngram.core.storage.model_layout import EDGE_NUMBERS, FORMAT, FORMAT_VERSION
from mgpu_ngram.native import states

_states: Any = states()
FullScoreReturn = _states.FullScoreReturn
State = _states.State

STRIP_BYTES = 1 << 20  # bytes of an ARPA file that are read at once


class LoadMethod:
    LAZY, POPULATE_OR_LAZY, POPULATE_OR_READ, READ, PARALLEL_READ = range(5)


class ARPALoadComplain:
    ALL, EXPENSIVE, NONE = range(3)


class Config:
    """Settings for loading and its messages; they have no effect here."""

    __slots__ = ("arpa_complain", "load_method", "show_progress")

    def __init__(self) -> None:
        self.load_method = LoadMethod.POPULATE_OR_READ
        self.show_progress = True
        self.arpa_complain = ARPALoadComplain.ALL

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("arpa_complain", "load_method"):
            if not isinstance(value, (int, float)):
                raise TypeError("an integer is required")
            value = int(value)
        super().__setattr__(name, bool(value) if name == "show_progress" else value)


class Model(_states.Model):
    """A language model from an ARPA file, plain or compressed, a KenLM binary model or a model file.

    A KenLM binary model and a model file are memory-mapped: do not change them while the model is used. Threads score
    long sentences at the same time.

    path   absolute path, as bytes
    order  words of its longest n-grams
    """

    def __init__(self, path: str | bytes, config: Config | None = None):
        """Load a model. Raises OSError if that fails."""
        if config is not None and not isinstance(config, Config):
            raise TypeError(
                f"Argument 'config' has incorrect type (expected kenlm.Config, got {type(config).__name__})"
            )
        self.path = os.path.abspath(_bytes(path))
        try:
            self._load(os.fsdecode(self.path.partition(b"\0")[0]))  # a path ends at a NUL byte, as in KenLM
        except (InputError, OSError, OverflowError, _states.Refused) as error:
            raise OSError(f"Cannot read model '{path!s}' ({error})") from RuntimeError(str(error))  # KenLM's cause

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity of a sentence, with its </s>."""
        words = len(_bytes(sentence).split()) + 1
        return 10.0 ** (-self.score(sentence) / words)

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """Yield (log10 probability, words of the longest match, whether it is unknown) of each word."""
        yield from self._full_scores(sentence, bos, eos)

    def _load(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                head = file.read(HEAD_BYTES)
                if is_safetensors(head):
                    self._map_arrays(*_arrays_of(file.fileno()))
                elif what_begins(head) == KENLM:
                    if repeated := self._map_kenlm(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)):
                        warn_of_repeated(path, {1: repeated})
                elif self._read_arpa(_packed_parts(path) if compression(head) else _parts(head, file)):
                    warn(f"{path!r} lacks <unk>; its log10 probability is taken to be -100")
        except _states.Refused:
            self._load_slowly(path)

    def _load_slowly(self, path: str) -> None:
        """Load a file that C++ does not read by core's readers, which read more and say what is wrong with a file."""
        from mgpu_ngram.engine.trie.open_model import open_model

        model = open_model(path)
        model.check_scores()
        arrays = model.trie.arrays() | model.words.arrays()
        self._map_arrays(arrays, model.trie.starts, model.trie.fanout, ())

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(self.path)!r}>"

    def __reduce__(self) -> tuple[type[Model], tuple[bytes]]:
        return Model, (self.path,)


class LanguageModel(Model):
    """The old name of Model."""


def _parts(head: bytes, file: Any) -> Iterator[bytes]:
    """Yield a file's bytes."""
    part = head
    while part:
        yield part
        part = file.read(STRIP_BYTES)


def _packed_parts(path: str) -> Iterator[Any]:
    """Yield the bytes in a compressed file."""
    from mgpu_ngram.core.inputs.byte_ranges import reader
    from mgpu_ngram.core.inputs.decompress import decompressed
    from mgpu_ngram.core.inputs.file_sources import file_source

    source = file_source(path, path, "byte", 1, "text")
    with reader(source) as read:
        yield from decompressed(source, read, None)


def _arrays_of(file: int) -> tuple[dict[str, memoryview], tuple[int, ...], int, tuple[int, ...]]:
    """Return the arrays of a model file as views of a memory map, and the numbers of its trie and its edge table.

    Raises Refused for another file. As `core.storage.safetensors.load_arrays`, but imports no NumPy and compares no
    checksums.
    """
    whole = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    start = 8 + int.from_bytes(whole[:8], "little")
    try:
        header = json.loads(bytes(whole[8:start]))
        metadata = json.loads(header.pop("__metadata__")["metadata"])
        spans = {name: field["data_offsets"] for name, field in header.items()}
        size = start + max(end for _, end in spans.values())
        numbers = metadata.get("edges") or {}
        if metadata["format"] != FORMAT or metadata["format_version"] > FORMAT_VERSION or size != len(whole):
            raise _states.Refused("it is not a model file")
        return (
            {name: whole[start + begin : start + end] for name, (begin, end) in spans.items()},
            tuple(metadata["starts"]),
            metadata["fanout"],
            tuple(numbers[name] for name in EDGE_NUMBERS if numbers),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _states.Refused(f"its header is damaged: {error}") from None


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"Cannot convert {type(text)} to string")
