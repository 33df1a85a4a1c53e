r"""Keep the words of a text, as the pattern \w\w+ of Python's re finds them, and turn all other bytes to spaces."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..filter.normalize_text import CODE_POINTS
from ..launch import grid_for, kernel, launch

PAGE = 256  # code points of a page; as in keep_words.cu
NO_WORD, LONGER = 1 << 24, 1 << 25  # in place of a step to the lowercase letter; as in keep_words.cu
SIGMA = 0x3A3  # a letter whose lowercase depends on the letters around it


class Letters(NamedTuple):
    """The new character of each character.

    page_of_U   (U,) uint16: the page of code point c is page_of_U[c // PAGE]
    steps_P     (P,) int32: steps_P[PAGE * page + c % PAGE] is added to code point c, a letter, digit or underscore.
                NO_WORD: the character is not one of these. LONGER: its lowercase has another number of bytes, or
                depends on others
    """

    page_of_U: Any
    steps_P: Any


def keep_words(text_B: Any, letters: Letters) -> tuple[Any, int]:
    r"""Return the text with spaces for all bytes outside words, and the number of characters that were not lowercased.

    text_B   (B,) uint8, UTF-8; bytes that are not UTF-8 belong to no word. No word contains a newline
    letters  the result of `make_letters`

    Returns kept_B (B,) uint8: newlines, and the runs of two characters or more that are letters, digits or underscores,
    as \w of Python's re defines them, with the letters changed by `letters`; and the number of characters that
    are LONGER, which belong to no word here: if it is not 0, lowercase the text with str.lower.
    """
    check.dtype(text_B, np.uint8)
    arrays = {"page_of_U": letters.page_of_U, "steps_P": letters.steps_P}
    return pick(cpu=_cpu, cuda=_cuda, text_B=text_B, **arrays)(text_B, letters.page_of_U, letters.steps_P)


@functools.cache
def make_letters(lowercase: bool) -> Letters:
    """Return the table for the Unicode version of this Python, in host memory; takes 0.03 s.

    lowercase  change letters to lowercase, as str.lower
    """
    steps = np.full(CODE_POINTS, NO_WORD, np.int32)
    characters = _text(np.arange(CODE_POINTS))
    for match in re.finditer(r"\w+", characters):
        steps[match.start() : match.end()] = 0
    if lowercase:
        for first in range(0, CODE_POINTS, PAGE):
            page = characters[first : first + PAGE]
            if (lowered := page.lower()) == page:
                continue
            # Nearly all lowercase letters are one character, so that places agree.
            lows = [lowered] if len(lowered) == PAGE else map(str.lower, page)
            codes = np.concatenate([_codes(low) if len(low) in (1, PAGE) else [-1] for low in lows])
            for c in (first + np.flatnonzero(codes != np.arange(first, first + PAGE))).tolist():
                low = int(codes[c - first])
                if low < 0 or len(chr(low).encode()) != len(chr(c).encode()) or c == SIGMA:
                    steps[c] = LONGER
                elif steps[low] != NO_WORD:  # a circled letter has a lowercase, but is not a letter
                    steps[c] = low - c
    pages: dict[bytes, int] = {}
    page_of_U = [pages.setdefault(page.tobytes(), len(pages)) for page in steps.reshape(-1, PAGE)]
    return Letters(np.array(page_of_U, np.uint16), np.frombuffer(b"".join(pages), np.int32).copy())


def _text(codes: np.ndarray) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)


@njit(nogil=True, cache=True)
def _size_at(text_B, at):
    """Return the bytes of the UTF-8 character at a byte; 0 if there is none, or an invalid one."""
    first = text_B[at]
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 0
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > len(text_B):
        return 0
    for i in range(1, size):
        if text_B[at + i] & 0xC0 != 0x80:
            return 0
    second = text_B[at + 1]  # no second spelling of a character, no surrogate, none above 0x10FFFF
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return size


@njit(nogil=True, cache=True)
def _cpu(text_B, page_of_U, steps_P):
    B = len(text_B)
    kept_B = np.empty(B, np.uint8)
    longer = 0
    ascii_steps = steps_P[PAGE * page_of_U[0] : PAGE * page_of_U[0] + 128]
    at, characters, start = 0, 0, 0  # of the word that is read: its characters and its first byte
    while at < B:
        first = np.int64(text_B[at])
        if first < 0x80:
            size = 1
            step = ascii_steps[first]
            kept_B[at] = first + step if step < NO_WORD else 32
        else:
            size = _size_at(text_B, at)
            step = NO_WORD
            if size > 0:
                c = first & (0x7F >> size)
                for i in range(1, size):
                    c = c << 6 | (text_B[at + i] & 0x3F)
                step = steps_P[PAGE * page_of_U[c >> 8] + (c & 255)]
                longer += step == LONGER
            else:
                size = 1
            if step < NO_WORD:
                c += step
                for i in range(size - 1, 0, -1):
                    kept_B[at + i] = 0x80 | (c & 0x3F)
                    c >>= 6
                kept_B[at] = c | (0xF00 >> size & 0xFF)
            else:
                kept_B[at : at + size] = 32
        if step < NO_WORD:
            if characters == 0:
                start = at
            characters += 1
        else:
            if characters == 1:
                kept_B[start:at] = 32
            if first == 10:
                kept_B[at] = 10
            characters = 0
        at += size
    if characters == 1:
        kept_B[start:B] = 32
    return kept_B, longer


def _cuda(text_B, page_of_U, steps_P):
    import cupy

    B = len(text_B)
    kept_B, longer = cupy.empty(B, np.uint8), cupy.zeros(1, np.uint64)
    if B:
        fn = kernel("lda/keep_words", "keep_words")
        launch(fn, grid_for(B, 256), 256, (text_B, B, page_of_U, steps_P, kept_B, longer))
    return kept_B, int(longer[0])


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return text of several scripts with some bytes that are not UTF-8, cut anywhere."""
    pieces = [
        *"aZ_9 .\n",
        "the ",
        "ÉÀ",
        "Ä",
        "жШ",
        "Ω ",
        "Σ",
        "漢字",
        "\U0001d400",
        "\U00010400",
        "İ",
        "ﬁ",
        "\u0301",
        "😀",
    ]
    parts = [piece.encode() for piece in pieces] + [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xe0\x80\x80", b"\x80"]
    weights = np.array([6] * 8 + [1] * (len(parts) - 8))
    chosen = rng.choice(len(parts), size, p=weights / weights.sum())
    text_B = np.frombuffer(b"".join(parts[i] for i in chosen)[:size], np.uint8).copy()
    return {"text_B": text_B, "letters": make_letters(True)}
