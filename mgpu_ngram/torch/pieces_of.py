"""The bytes of a tokenizer's tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from mgpu_ngram.core.errors import InputError

Spell = Callable[[str], str | bytes]


def pieces_of(tokenizer: Any) -> list[bytes]:
    """Return the bytes of each token of a fast tokenizer of Transformers, as `LogitsProcessor` takes them.

    White space in the bytes separates words. As in the tokenizer's decoder, GPT-2's "Ġ" and SentencePiece's "▁" become
    a space, and a WordPiece token without "##" begins with a space. A special token is a word of its own. An id without
    a token has no bytes.

    Raises InputError for a tokenizer that is not fast, and for a decoder that it does not know.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"{type(tokenizer).__name__} has no backend_tokenizer; load the fast tokenizer, or give bytes")
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
    spells = [spell for step in _steps(decoder) if (spell := _spell(step)) is not None]
    pieces = []
    for token, name in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        added = tokenizer.added_tokens_decoder.get(token)
        if added is not None:
            name = f" {added.content} " if added.special else added.content
        made: str | bytes = name or ""
        for spell in spells if added is None else []:
            made = spell(made) if isinstance(made, str) else made
        pieces.append(made.encode() if isinstance(made, str) else made)
    return pieces


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a decoder. Without one, tokens are words."""
    if decoder is None:
        return [{"type": "WordPiece", "prefix": None}]
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]


def _spell(step: dict[str, Any]) -> Spell | None:
    """Return what a step of a decoder does to a token; None if it concerns whole texts only."""
    kind, pattern = step["type"], step.get("pattern", {})
    if kind == "ByteLevel":
        return _of_byte_level
    if kind == "ByteFallback":
        return _of_byte
    if kind == "Metaspace":
        return lambda name: name.replace(step["replacement"], " ")
    if kind == "Replace" and "String" in pattern:
        return lambda name: name.replace(pattern["String"], step["content"])
    if kind == "WordPiece":
        prefix = step["prefix"]
        return lambda name: name[len(prefix) :] if prefix and name.startswith(prefix) else f" {name}"
    if kind == "BPEDecoder":
        return lambda name: name.replace(step["suffix"], " ")
    if kind in ("Fuse", "Strip"):  # Strip drops the space before a text
        return None
    raise InputError(f"the tokenizer has the decoder {kind}, which pieces_of does not know; give bytes of your own")


def _of_byte_level(name: str) -> bytes:
    """Return the bytes that GPT-2's characters stand for; other characters as they are."""
    return b"".join(bytes([BYTES[c]]) if c in BYTES else c.encode() for c in name)


def _of_byte(name: str) -> str | bytes:
    return bytes([int(name[3:5], 16)]) if re.fullmatch("<0x[0-9A-F]{2}>", name) else name


def _byte_characters() -> dict[str, int]:
    """Return the byte of each of GPT-2's characters: printable ones stand for themselves, others begin at 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_characters()
