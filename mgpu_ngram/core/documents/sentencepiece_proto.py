"""Read a SentencePiece model: its pieces, and how it normalises. The format is sentencepiece_model.proto."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces
UNIGRAM_KIND = 1  # kind of model

PIECES_FIELD, TRAINER_FIELD, NORMALIZER_FIELD = 1, 2, 3  # fields of ModelProto
TEXT_FIELD, SCORE_FIELD, KIND_FIELD = 1, 2, 3  # fields of a piece
MODEL_KIND_FIELD, SPACE_BEHIND_FIELD, BYTE_FALLBACK_FIELD = 3, 24, 35  # fields of TrainerSpec
CHARSMAP, DUMMY_PREFIX, SINGLE_SPACES, ESCAPE = 2, 3, 4, 5  # fields of NormalizerSpec


@dataclass
class SentencePieceModel:
    """The contents of a model file. The defaults are those of sentencepiece_model.proto.

    charsmap  rules of the normaliser: bytes of a double array (uint32), the double array, and texts
    """

    pieces: list[bytes] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_kind: int = UNIGRAM_KIND
    space_behind: bool = False
    byte_fallback: bool = False
    charsmap: bytes = b""
    dummy_prefix: bool = True
    single_spaces: bool = True
    escape_spaces: bool = True


def read_model(data: bytes) -> SentencePieceModel:
    """Return the model of a file that the library sentencepiece can load. Raises ValueError for other data."""
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == PIECES_FIELD and isinstance(value, bytes):
            piece = dict(_fields(value))
            model.pieces.append(_as_bytes(piece.get(TEXT_FIELD, b"")))
            model.scores.append(struct.unpack("<f", _as_bytes(piece.get(SCORE_FIELD, bytes(4))))[0])
            model.kinds.append(int(piece.get(KIND_FIELD, NORMAL)))
        elif number == TRAINER_FIELD and isinstance(value, bytes):
            found = dict(_fields(value))
            model.model_kind = int(found.get(MODEL_KIND_FIELD, UNIGRAM_KIND))
            model.space_behind = bool(found.get(SPACE_BEHIND_FIELD, 0))
            model.byte_fallback = bool(found.get(BYTE_FALLBACK_FIELD, 0))
        elif number == NORMALIZER_FIELD and isinstance(value, bytes):
            found = dict(_fields(value))
            model.charsmap = _as_bytes(found.get(CHARSMAP, b""))
            model.dummy_prefix = bool(found.get(DUMMY_PREFIX, 1))
            model.single_spaces = bool(found.get(SINGLE_SPACES, 1))
            model.escape_spaces = bool(found.get(ESCAPE, 1))
    return model


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number is in place of bytes")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a message: an int for a varint, else its bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has kind {kind}, which protobuf does not use any more")
        if at + size > len(data):
            raise ValueError("a field ends after the data")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
        shift += 7
    raise ValueError("a number has no end")
