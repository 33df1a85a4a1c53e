"""Tokenisers of other libraries: from texts to ids of pieces, and from pieces to the words of an n-gram model."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from mgpu_ngram.core.documents.sentencepiece_proto import (
    NORMAL,
    UNIGRAM_KIND,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    read_model,
)
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.filter.best_pieces import WordLookup, best_pieces, make_pieces
from mgpu_ngram.kernels.filter.piece_text import PieceRules, piece_text, plain_characters

if TYPE_CHECKING:
    from mgpu_ngram.engine.score.replica import Replica

INSTALL = "pip install 'mgpu-ngram[filter]'"
KEPT = 64  # tokenisers that a process keeps
KEPT_SPELLINGS = 1 << 16  # pieces without a text of their own whose codes are kept
SEARCHED = (0, 2, 3)  # the first release of sentencepiece whose search `best_pieces` repeats
UNKNOWN_PENALTY = 10.0  # SentencePiece scores an unknown character this much below the least score of all pieces
VARIES = 0  # in a table of codes: the piece is written in the text's own letters, or is several words


_codes: WeakKeyDictionary[Replica, dict[tuple[str, str], SubwordCodes]] = WeakKeyDictionary()
_making = threading.Lock()


class Subwords(Protocol):
    """A tokeniser.

    pieces   the text of each id; None: the text of an id varies
    unigram  a SentencePiece model that `UnigramCodes` applies as the library does; None for another tokeniser
    """

    pieces: list[str | None]
    unigram: SentencePieceModel | None

    def ids(self, texts: list[str], threads: int) -> list[list[int]]:
        """Return the ids of the pieces of each text."""

    def spell(self, texts: list[str], threads: int) -> list[list[str]]:
        """Return the pieces of each text, one for each id."""


class _SentencePiece:
    def __init__(self, path: str):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise InputError(f"{path}: a SentencePiece model needs the library sentencepiece; {INSTALL}") from None
        try:
            data = Path(path).read_bytes()
            if not data:  # the library accepts an empty file and fails at its first use
                raise RuntimeError
            self._model = SentencePieceProcessor(model_proto=data)
            names = self._model.id_to_piece(list(range(len(self._model))))
        except (OSError, RuntimeError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not a SentencePiece model"
            raise InputError(
                f"{path}: cannot be read ({reason}); give a SentencePiece model or tokenizer.json"
            ) from None
        self.pieces = [None if i == self._model.unk_id() else name for i, name in enumerate(names)]
        self.unigram = _unigram(data)

    def ids(self, texts: list[str], threads: int) -> list[list[int]]:
        return self._model.encode(texts, out_type=int, num_threads=threads)

    def spell(self, texts: list[str], threads: int) -> list[list[str]]:
        return self._model.encode(texts, out_type=str, num_threads=threads)


def _unigram(data: bytes) -> SentencePieceModel | None:
    """Return the model for `UnigramCodes`; None for another kind of model or if the library searches differently."""
    import sentencepiece

    release = tuple(int(part) for part in sentencepiece.__version__.split(".")[:3] if part.isdigit())
    try:
        model = read_model(data)
    except ValueError:
        return None
    taken = (
        release >= SEARCHED and model.model_kind == UNIGRAM_KIND and model.kinds.count(UNKNOWN) == 1
        and USER_DEFINED not in model.kinds and NORMAL in model.kinds
        and not model.byte_fallback and not model.space_behind and not any(b"\0" in piece for piece in model.pieces)
    )  # fmt: skip
    return model if taken else None


class _HuggingFace:
    unigram: SentencePieceModel | None = None

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
        self._path = path
        self._model.no_padding()
        self._model.no_truncation()
        names = {i: name for name, i in self._model.get_vocab(with_added_tokens=True).items()}
        self.pieces = [names.get(i) for i in range(max(names, default=-1) + 1)]

    def ids(self, texts: list[str], threads: int) -> list[list[int]]:
        return [found.ids for found in self._encoded(texts)]

    def spell(self, texts: list[str], threads: int) -> list[list[str]]:
        return [found.tokens for found in self._encoded(texts)]

    def _encoded(self, texts: list[str]) -> Any:
        try:
            return self._model.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"{self._path}: cannot split a text ({error}); correct the tokeniser") from None


@functools.lru_cache(KEPT)
def _opened(path: str, identity: str) -> Subwords:
    return _HuggingFace(path) if path.endswith(".json") else _SentencePiece(path)


def open_subwords(path: str) -> Subwords:
    """Return the tokeniser of a file: a SentencePiece model, or tokenizer.json of Hugging Face by its suffix.

    Raises InputError if the library that reads the file is missing, or for another file.
    """
    return _opened(path, identify_subwords(path))


def replica_codes(replica: Replica, path: str) -> SubwordCodes:
    """Return the `SubwordCodes` of a replica's words and a tokeniser's file; cached as long as the replica."""
    with _making:
        known = _codes.setdefault(replica, {})
        key = path, identify_subwords(path)
        if key not in known:
            known[key] = SubwordCodes(open_subwords(path), replica.words, replica.device)
        return known[key]


def identify_subwords(path: str) -> str:
    """Return the identity of a tokeniser's file: its size and modification time. Raises InputError if it is missing."""
    try:
        found = Path(path).stat()
    except OSError as error:
        reason = error.strerror
        raise InputError(f"{path}: cannot be read ({reason}); give a SentencePiece model or tokenizer.json") from None
    return f"{found.st_size:,} bytes of {found.st_mtime_ns}"


class SubwordCodes:
    """Converts texts to codes of an n-gram model's words: id + 1, 1 for an unknown word, 0 after each text."""

    def __init__(self, subwords: Subwords, words: Words, device: str = "cpu"):
        self._subwords, self._words, self._device = subwords, words, device
        self._tables: WeakKeyDictionary[SubwordCodes, Any] = WeakKeyDictionary()
        self._unigram = UnigramCodes(subwords.unigram, words, device) if subwords.unigram else None
        pieces = [(piece or "").encode() for piece in subwords.pieces]
        offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        is_word = np.array([piece.split() == [piece] for piece in pieces], bool)
        ids_P = words.ids(offsets, np.frombuffer(b"".join(pieces), np.uint8))
        self._code_P = np.where(is_word, ids_P + np.uint32(1), np.uint32(VARIES))
        self._spelt = functools.lru_cache(KEPT_SPELLINGS)(self._spell)

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

    def of_sentences(self, text_B: Any, ends_S: Any, threads: int = 1) -> Any:
        """Return the codes of all sentences, on the device of text_B or in host memory.

        text_B  (B,) uint8, sentences in UTF-8, each with a newline, which ends at ends_S (S,) int64
        """
        if not self._unigram:
            return self(to_host(text_B).tobytes().decode().split("\n")[:-1], threads)
        codes_T, failed_S = self._unigram(text_B, ends_S)
        failed = np.flatnonzero(to_host(failed_S)).tolist()
        if not failed:
            return codes_T
        codes_T, data, ends = to_host(codes_T), to_host(text_B), to_host(ends_S).tolist()
        parts = np.split(codes_T, np.flatnonzero(codes_T == 0) + 1)[:-1]
        for s in failed:
            text = data[ends[s - 1] if s else 0 : ends[s] - 1].tobytes().decode()
            parts.insert(s, self([text], threads))
        return np.concatenate(parts)

    def table_for(self, other: SubwordCodes) -> Any:
        """Return (W + 1,) uint32, on the device: the code in `other` for the text of each code of this model.

        other  codes of another model's words for the same tokeniser

        None if `other` knows a word that is unknown to this model, so that code 1 would need several codes in `other`.
        """
        if other not in self._tables:
            ids_V = self._words.ids(other._words.offsets_V, other._words.data).astype(np.int64)
            table = np.ones(len(self._words) + 1, np.uint32)
            table[0] = 0
            table[ids_V[1:] + 1] = np.arange(2, len(ids_V) + 1)
            self._tables[other] = move_to(table, self._device) if ids_V[1:].all() else None
        return self._tables[other]

    def _spell(self, piece: str) -> tuple[int, ...]:
        """Return the codes of the words that a piece is."""
        return tuple(self._words.id(word) + 1 for word in piece.encode("utf-8", "replace").split())


class UnigramCodes:
    """Converts sentences to the codes of `SubwordCodes` with kernels, for the models of `Subwords.unigram`."""

    def __init__(self, model: SentencePieceModel, words: Words, device: str):
        scores, kinds = np.array(model.scores, np.float32), np.array(model.kinds)
        is_word = np.array([piece.split() == [piece] for piece in model.pieces], bool)
        unknown = model.kinds.index(UNKNOWN)
        is_word[unknown] = False
        offsets = np.cumsum([0, *map(len, model.pieces)], dtype=np.int64)
        ids_P = words.ids(offsets, np.frombuffer(b"".join(model.pieces), np.uint8))
        code_P = np.where(is_word, ids_P + np.uint32(1), np.uint32(VARIES))
        least = scores[kinds == NORMAL].min() - np.float32(UNKNOWN_PENALTY)
        size = int.from_bytes(model.charsmap[:4], "little")
        units_U = np.frombuffer(model.charsmap[4 : 4 + size], np.uint32)
        replacements = np.frombuffer(model.charsmap[4 + size :], np.uint8)
        flags = model.dummy_prefix | model.single_spaces << 1 | model.escape_spaces << 2
        plain_C = plain_characters(units_U)
        move = functools.partial(move_to, device=device)
        self._rules = PieceRules(move(units_U), move(replacements), move(plain_C), flags)
        self._pieces = make_pieces(model.pieces, scores, kinds == NORMAL, code_P, unknown, float(least), move)
        self._words = WordLookup(*(move_to(array, device) for array in words.table))

    def __call__(self, text_B: Any, ends_S: Any) -> tuple[Any, ...]:
        """Return (codes_T, failed_S): as `SubwordCodes`, but for the sentences that failed, which have no codes.

        text_B  (B,) uint8, sentences with a newline after each, which ends at ends_S (S,) int64
        """
        text_B, ends_S, failed_S = piece_text(text_B, ends_S, self._rules)
        return best_pieces(text_B, ends_S, failed_S, self._pieces, self._words)
