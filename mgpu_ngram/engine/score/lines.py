"""Print scores of words as text, in the format of KenLM's query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_ngram.core.decimals import MAX_NUMBER_BYTES, write_float32
from mgpu_ngram.kernels.common.find_tokens import is_space
from mgpu_ngram.kernels.compile_cpu import njit, read_only

_FIELD_BYTES = 1 + 10 + 1 + 3 + 1 + MAX_NUMBER_BYTES + 1  # =ID ORDER PROB and a tab
_TOTAL_BYTES = len("Total:  OOV: \n") + MAX_NUMBER_BYTES + 10
_END = np.frombuffer(b"</s>", np.uint8)


@dataclass(frozen=True)
class TextScores:
    """Lines of text and the scores of their T tokens, in host memory.

    text_B                         (B,) uint8
    positions_T                    uint32, the start of each word, or its newline
    codes_T, order_T, prob_T       as in `engine.score.score_chunk.BlockScores`
    end                            the id of </s> if newlines are scored as </s>; -1 if newlines are not scored
    """

    text_B: np.ndarray
    positions_T: np.ndarray
    codes_T: np.ndarray
    order_T: np.ndarray
    prob_T: np.ndarray
    end: int


def word_lines(text: TextScores, total_S: np.ndarray, oovs_S: np.ndarray) -> bytes:
    """Return a line per sentence, with "word=id order log10" and a tab for each word.

    total_S, oovs_S  if not empty, "Total: T OOV: N" ends each line
    """
    arrays = text.text_B, text.positions_T, text.codes_T, text.order_T, text.prob_T
    totals = read_only(total_S), read_only(oovs_S)
    most = len(text.text_B) + len(text.codes_T) * (_FIELD_BYTES + len(_END)) + len(total_S) * _TOTAL_BYTES
    out = np.empty(most, np.uint8)
    end = _write_lines(*map(read_only, arrays), totals, text.end, out)
    return out[:end].tobytes()


def sentence_lines(total_S: np.ndarray, oovs_S: np.ndarray) -> bytes:
    """Return a line "Total: T OOV: N" per sentence."""
    out = np.empty(len(total_S) * _TOTAL_BYTES, np.uint8)
    end = _write_totals(read_only(total_S), read_only(oovs_S), out)
    return out[:end].tobytes()


def spell_words(text: TextScores) -> tuple[np.ndarray, np.ndarray]:
    """Return end_T (T,) int64 and data uint8: the bytes of all tokens, and the end of each token in them."""
    end_T = np.empty(len(text.positions_T), np.int64)
    end = _END if text.end >= 0 else _END[:0]
    arrays = read_only(text.text_B), read_only(text.positions_T), read_only(end), end_T
    data = np.empty(_spell(*arrays, np.empty(0, np.uint8)), np.uint8)
    _spell(*arrays, data)
    return end_T, data


@njit(nogil=True, cache=True)
def _spell(text_B, positions_T, end, end_T, data):
    """Fill end_T, and data unless it is empty; return the bytes that data needs."""
    at = 0
    for t in range(len(positions_T)):
        i = np.int64(positions_T[t])
        if text_B[i] == 10:
            if len(data):
                for j in range(len(end)):  # Numba takes 2 s to compile a copy of a slice to a slice
                    data[at + j] = end[j]
            at += len(end)
        else:
            while i < len(text_B) and not is_space(text_B[i]):
                if len(data):
                    data[at] = text_B[i]
                at += 1
                i += 1
        end_T[t] = at
    return at


@njit(nogil=True, cache=True)
def _write_lines(text_B, positions_T, codes_T, order_T, prob_T, totals, end, out):
    total_S, oovs_S = totals
    at, s = 0, 0
    for t in range(len(positions_T)):
        i = np.int64(positions_T[t])
        word = np.int64(codes_T[t]) - 1
        if text_B[i] != 10:
            while i < len(text_B) and not is_space(text_B[i]):
                out[at] = text_B[i]
                at += 1
                i += 1
        elif end >= 0:
            out[at], out[at + 1], out[at + 2], out[at + 3] = 60, 47, 115, 62  # </s>
            at += 4
            word = end
        if word >= 0:
            out[at] = 61
            at = _write_number(word, out, at + 1)
            out[at] = 32
            at = _write_number(np.int64(order_T[t]), out, at + 1)
            out[at] = 32
            at = write_float32(prob_T[t], out, at + 1)
            out[at] = 9
            at += 1
        if codes_T[t] == 0:
            if len(total_S):
                at = _write_total(total_S[s], oovs_S[s], out, at)
                s += 1
            else:
                out[at] = 10
                at += 1
    return at


@njit(nogil=True, cache=True)
def _write_totals(total_S, oovs_S, out):
    at = 0
    for s in range(len(total_S)):
        at = _write_total(total_S[s], oovs_S[s], out, at)
    return at


@njit(nogil=True, cache=True)
def _write_total(total, oovs, out, at):
    at = _write_bytes(b"Total: ", out, at)
    at = write_float32(total, out, at)
    at = _write_bytes(b" OOV: ", out, at)
    at = _write_number(np.int64(oovs), out, at)
    out[at] = 10
    return at + 1


@njit(nogil=True, cache=True)
def _write_bytes(text, out, at):
    for c in text:
        out[at] = c
        at += 1
    return at


@njit(nogil=True, cache=True)
def _write_number(value, out, at):
    digits, power = 1, 10
    while power <= value:
        digits, power = digits + 1, power * 10
    for k in range(digits - 1, -1, -1):
        out[at + k] = 48 + value % 10
        value //= 10
    return at + digits
