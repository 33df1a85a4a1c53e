"""Normalise text before a language model scores it, as the corpus of the model was normalised."""

# ruff: noqa: RUF001

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable
from typing import Literal

from mgpu_ngram.kernels.common.ascii import NEWLINE
from mgpu_ngram.kernels.filter.normalize_text import CODE_POINTS, PAGE, CharacterMap, map_of

Normalizer = Literal["none", "ccnet", "nfc", "nfkc"]
Form = Literal["NFC", "NFKC"]

CAPITAL_SIGMA = "Σ"  # its lower case depends on its neighbours

_PUNCTUATION = {  # of CCNet (Wenzek et al. 2020)
    "，": ",", "。": ".", "、": ",", "„": '"', "”": '"', "“": '"', "«": '"', "»": '"', "」": '"', "「": '"',
    "《": '"', "》": '"', "´": "'", "∶": ":", "：": ":", "？": "?", "！": "!", "（": "(", "）": ")", "；": ";",
    "–": "-", "—": " - ", "．": ". ", "～": "~", "’": "'", "…": "...", "━": "-", "〈": "<", "〉": ">", "【": "[",
    "】": "]", "％": "%", "►": "-",
}  # fmt: skip
_CONTROL = frozenset((*range(0x20), *range(0x7F, 0xA0)))


class _CcnetTable(dict[int, str | int | None]):
    """What CCNet makes of a character, computed at its first use."""

    def __missing__(self, code: int) -> str | int | None:
        character = chr(code)
        found: str | int | None = _PUNCTUATION.get(character, code)
        category = unicodedata.category(character)
        if category == "Mn" or code in _CONTROL:
            found = None
        elif category == "Nd":
            found = "0"
        self[code] = found
        return found


_TABLE = _CcnetTable()


def _ccnet(text: str) -> str:
    """Return the text as CCNet normalises it: no case, no accents, digits are 0, no control characters.

    A newline is a control character: the lines of a text are joined without a space between them.
    """
    lower = text.strip().lower()
    return (lower if lower.isascii() else unicodedata.normalize("NFD", lower)).translate(_TABLE)


def normalizer(name: Normalizer) -> Callable[[str], str] | None:
    """Return the function that normalises a text; None if texts stay as they are.

    "nfc" and "nfkc" are the normal forms of Unicode, in lower case: the normal form of U+2122 is TM, so the text is
    normalised before it is changed to lower case, and again after it.
    """
    if name == "none":
        return None
    if name == "ccnet":
        return _ccnet
    form: Form = "NFC" if name == "nfc" else "NFKC"
    return lambda text: unicodedata.normalize(form, unicodedata.normalize(form, text).lower())


@functools.cache
def character_map(name: Normalizer, by_line: bool) -> CharacterMap:
    """Return the replacement of each character of a sentence, for `normalize_text`; same results as `normalizer(name)`.

    by_line  a sentence is a line; else newlines become spaces, unless the normaliser drops them

    The map marks characters whose replacement depends on neighbours: a capital sigma, whose lower case differs at the
    end of a word, and marks that a normal form may join to the letter before them, or sort.
    """
    found: dict[int, str | None] = {}
    if name == "ccnet":
        found = _changes(_ccnet_character, lambda codes: not any(code in _CONTROL for code in codes))
    elif name != "none":
        form: Form = "NFC" if name == "nfc" else "NFKC"
        joined = _joined_characters()
        found = _changes(
            lambda character: _normal_character(character, form, joined),
            lambda codes: joined.isdisjoint(codes) and all(not unicodedata.combining(chr(code)) for code in codes),
        )
    if not by_line:
        found.setdefault(NEWLINE, " ")
    return map_of(found)


def _changes(change: Callable[[str], str | None], may_stay: Callable[[list[int]], bool]) -> dict[int, str | None]:
    """Return the characters that `change` does not return as they are, by code point.

    may_stay  whether a page stays as it is if no function of Unicode's tables changes it
    """
    found: dict[int, str | None] = {}
    for first in range(0, CODE_POINTS, PAGE):
        codes = [code for code in range(first, first + PAGE) if not 0xD800 <= code < 0xE000]
        text = "".join(map(chr, codes))
        kinds = set(map(unicodedata.category, text))
        if kinds <= {"Cn", "Co"}:
            continue
        stays = kinds.isdisjoint({"Mn", "Mc", "Me", "Nd", "Po", "Pi", "Pf", "Ps", "Pe", "Pd", "So", "Sk", "Sm"})
        if stays and text.lower() == text == unicodedata.normalize("NFKD", text) and may_stay(codes):
            continue
        for code, character in zip(codes, text, strict=True):
            new = change(character)
            if new != character:
                found[code] = new
    return found


def _ccnet_character(character: str) -> str | None:
    lower = unicodedata.normalize("NFD", character.lower())
    sorted_marks = any(unicodedata.combining(c) and unicodedata.category(c) != "Mn" for c in lower)
    return None if character == CAPITAL_SIGMA or sorted_marks else lower.translate(_TABLE)


def _normal_character(character: str, form: Form, joined: frozenset[int]) -> str | None:
    normal = unicodedata.normalize(form, character)
    lower = normal.lower()
    first = unicodedata.normalize("NFD" if form == "NFC" else "NFKD", lower)[0]
    if CAPITAL_SIGMA in normal or unicodedata.combining(first) or ord(first) in joined:
        return None
    return unicodedata.normalize(form, lower)


@functools.cache
def _joined_characters() -> frozenset[int]:
    """Return the characters that a normal form may join to the one before them: in Hangul, and in decompositions."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    for code in range(CODE_POINTS):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found.add(int(parts[1], 16))
    return frozenset(found)
