"""Normalise text before a language model scores it, as the corpus of the model was normalised."""

# ruff: noqa: RUF001

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Literal

Normalizer = Literal["none", "ccnet", "nfc", "nfkc"]

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

    "nfc" and "nfkc" are the normal forms of Unicode, in lower case.
    """
    if name == "none":
        return None
    if name == "ccnet":
        return _ccnet
    form: Literal["NFC", "NFKC"] = "NFC" if name == "nfc" else "NFKC"
    return lambda text: unicodedata.normalize(form, text.lower())
