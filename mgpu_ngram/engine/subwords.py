"""Tokenisers of other libraries: texts to the ids of pieces, and pieces to the words of an n-gram model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.words import Words

INSTALL = "pip install 'mgpu-ngram[filter]'"
KEPT = 64  # tokenisers that a process keeps
SPELT = 1 << 16  # pieces without a text of their own whose codes are kept
VARIES = 0  # in a table of codes: the piece is written in the text's own letters, or is several words


class Subwords(Protocol):
    """A tokeniser.

    pieces   the text of each id; None: it differs from text to text
    """

    pieces: list[str | None]

    def ids(self, texts: list[str], threads: int) -> list[list[int]]:
        """Return the ids of the pieces of each text."""

    def spell(self, texts: list[str], threads: int) -> list[list[str]]:
        """Return the pieces of each text, as many as it has ids."""


class _SentencePiece:
    def __init__(self, path: str):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise InputError(f"{path}: a SentencePiece model needs the library sentencepiece; {INSTALL}") from None
        try:
            self._model = SentencePieceProcessor(model_proto=Path(path).read_bytes())
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or "it is no SentencePiece model"
            raise InputError(
                f"{path}: cannot be read ({reason}); give a SentencePiece model or tokenizer.json"
            ) from None
        names = self._model.id_to_piece(list(range(len(self._model))))
        self.pieces = [None if i == self._model.unk_id() else name for i, name in enumerate(names)]

    def ids(self, texts: list[str], threads: int) -> list[list[int]]:
        return self._model.encode(texts, out_type=int, num_threads=threads)

    def spell(self, texts: list[str], threads: int) -> list[list[str]]:
        return self._model.encode(texts, out_type=str, num_threads=threads)


class _HuggingFace:
    def __init__(self, path: str):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError(f"{path}: tokenizer.json needs the library tokenizers; {INSTALL}") from None
        try:
            self._model: Any = Tokenizer.from_file(path)
        except Exception as error:  # the library raises Exception itself
            raise InputError(
                f"{path}: cannot be read ({error}); give a SentencePiece model or tokenizer.json"
            ) from None
        self._model.no_padding()
        self._model.no_truncation()
        names = {i: name for name, i in self._model.get_vocab(with_added_tokens=True).items()}
        self.pieces = [names.get(i) for i in range(max(names, default=-1) + 1)]

    def ids(self, texts: list[str], threads: int) -> list[list[int]]:
        return [found.ids for found in self._model.encode_batch_fast(texts, add_special_tokens=False)]

    def spell(self, texts: list[str], threads: int) -> list[list[str]]:
        return [found.tokens for found in self._model.encode_batch_fast(texts, add_special_tokens=False)]


@functools.lru_cache(KEPT)
def _opened(path: str, identity: str) -> Subwords:
    return _HuggingFace(path) if path.endswith(".json") else _SentencePiece(path)


def open_subwords(path: str) -> Subwords:
    """Return the tokeniser of a file: a SentencePiece model, or tokenizer.json of Hugging Face by its suffix.

    Raises InputError without the library that reads it, or for another file.
    """
    return _opened(path, identify_subwords(path))


def identify_subwords(path: str) -> str:
    """Return what identifies a tokeniser's file: its size and modification time. Raises InputError without one."""
    try:
        found = Path(path).stat()
    except OSError as error:
        reason = error.strerror
        raise InputError(f"{path}: cannot be read ({reason}); give a SentencePiece model or tokenizer.json") from None
    return f"{found.st_size:,} bytes of {found.st_mtime_ns}"


class SubwordCodes:
    """Texts to codes of an n-gram model's words: id + 1, 1 for an unknown word, 0 after each text."""

    def __init__(self, subwords: Subwords, words: Words):
        self._subwords, self._words = subwords, words
        pieces = [(piece or "").encode() for piece in subwords.pieces]
        offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        is_word = np.array([piece.split() == [piece] for piece in pieces], bool)
        ids_P = words.ids(offsets, np.frombuffer(b"".join(pieces), np.uint8))
        self._code_P = np.where(is_word, ids_P + np.uint32(1), np.uint32(VARIES))
        self._spelt = functools.lru_cache(SPELT)(self._spell)

    def __call__(self, texts: list[str], threads: int = 1) -> np.ndarray:
        """Return the codes of all texts, a sentence each."""
        ids = self._subwords.ids(texts, threads)
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        ends_S = np.cumsum(sizes + 1)
        flat = np.fromiter((i for text in ids for i in text), np.int64, int(sizes.sum()))
        codes_T = np.zeros(len(flat) + len(ids), np.uint32)
        is_word = np.ones(len(codes_T), bool)
        is_word[ends_S - 1] = False
        codes_T[is_word] = self._code_P[flat]
        is_word[codes_T != VARIES] = False
        spelt = np.unique(np.searchsorted(ends_S, np.flatnonzero(is_word), "right")).tolist()
        if not spelt:
            return codes_T
        parts = np.split(codes_T, ends_S[:-1])
        for s, pieces in zip(spelt, self._subwords.spell([texts[s] for s in spelt], threads), strict=True):
            codes = parts[s].tolist()
            for i in np.flatnonzero(parts[s][:-1] == VARIES).tolist()[::-1]:  # later places first: they may move
                codes[i : i + 1] = self._spelt(pieces[i])
            parts[s] = np.array(codes, np.uint32)
        return np.concatenate(parts)

    def _spell(self, piece: str) -> tuple[int, ...]:
        """Return the codes of the words that a piece is."""
        return tuple(self._words.id(word) + 1 for word in piece.encode("utf-8", "replace").split())
