"""Find where words and lines begin and end in raw text."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

SEGMENT = 4096  # bytes that one warp scans; as in find_tokens.cu
DELIMITERS = b"\x00\t\n\r "  # KenLM's lmplz splits words here
SPACES = b"\t\n\v\f\r "  # KenLM's query and Python module split words here
VARIANTS = ({"ISSPACE": 0}, {"ISSPACE": 1})

_ENDS_WORD = np.array([[c in ends for c in range(256)] for ends in (DELIMITERS, SPACES)])


def find_tokens(text_B: Any, isspace: bool = False) -> Any:
    """Return the position of every word start and every newline, in text order.

    text_B   (B,) uint8, B < 2**32
    isspace  if true, words end at the white space of C's isspace (TAB, LF, VT, FF, CR, space), as in KenLM's query;
             else at NUL, TAB, LF, CR or space, as in KenLM's lmplz

    Returns positions_T (T,) uint32. No word starts with a newline, so text_B[position] == 10 tells
    newlines from words.
    """
    check.dtype(text_B, np.uint8)
    if len(text_B) >= 2**32:
        raise ValueError(f"a block of {len(text_B)} bytes exceeds the limit of {2**32 - 1} bytes; use smaller blocks")
    return pick(cpu=_cpu, cuda=_cuda, text_B=text_B)(text_B, isspace)


@njit(nogil=True, cache=True)
def is_delimiter(c: int) -> bool:
    """Return whether c is NUL, TAB, LF, CR or space."""
    return c == 32 or c == 10 or c == 9 or c == 13 or c == 0


@njit(nogil=True, cache=True)
def is_space(c: int) -> bool:
    """Return whether c is TAB, LF, VT, FF, CR or space."""
    return c == 32 or 9 <= c <= 13


@njit(nogil=True, cache=True)
def _cpu(text_B, isspace):
    ends_word = _ENDS_WORD[1 if isspace else 0]
    T = 0
    gap = True
    for c in text_B:
        delimiter = ends_word[c]
        T += (gap & (not delimiter)) | (c == 10)
        gap = delimiter
    positions_T = np.empty(T + 1, np.uint32)  # no branches: write every position, advance t only for tokens
    t = 0
    gap = True
    for b in range(len(text_B)):
        delimiter = ends_word[text_B[b]]
        positions_T[t] = b
        t += (gap & (not delimiter)) | (text_B[b] == 10)
        gap = delimiter
    return positions_T[:T]


def _cuda(text_B, isspace):
    import cupy

    text_B = check.aligned(text_B)
    B = len(text_B)
    if B == 0:
        return cupy.empty(0, np.uint32)
    W = -(-B // SEGMENT)
    counts_W = cupy.empty(W, np.int64)
    fn, blocks = kernel("common/find_tokens", "find_tokens", ISSPACE=int(isspace)), grid_for(W, 8)
    launch(fn, blocks, 256, (text_B, B, counts_W, 0, 0))
    ends_W = cupy.cumsum(counts_W)
    positions_T = cupy.empty(int(ends_W[-1]), np.uint32)
    launch(fn, blocks, 256, (text_B, B, counts_W, ends_W - counts_W, positions_T))
    return positions_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return English-like text: words of 1 to 9 letters and a few rare delimiters."""
    return {"text_B": random_text(rng, size)}


def random_text(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return (size,) uint8 of Zipf-distributed words, spaces and newlines."""
    words = [bytes(rng.integers(97, 123, rng.integers(1, 10), np.uint8)) for _ in range(500)]
    ranks = np.minimum(rng.zipf(1.3, size // 4 + 1), len(words)) - 1
    gaps = rng.choice(
        [b" ", b"\n", b"  ", b"\t", b"\r\n", b"\x00", b"\xff"],
        size // 4 + 1,
        p=[0.8, 0.1, 0.04, 0.02, 0.02, 0.01, 0.01],
    )
    text = b"".join(words[r] + g for r, g in zip(ranks, gaps, strict=True))
    return np.frombuffer(text[:size].ljust(size), np.uint8).copy()
