"""Cut sentences into the most probable pieces of a unigram model (Kudo 2018), and look the pieces up.

The search is that of `unigram::Model::EncodeOptimized` of SentencePiece 0.2.3, with its arithmetic and its ties: sums
are float32 from the beginning of a sentence, and a later candidate wins only with a greater sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import float32, uint32, uint64

from mgpu_ngram.kernels.common.find_tokens import is_space
from mgpu_ngram.kernels.common.word_table import find_word, index_words

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .normalize_text import character_size

ENDS = 256  # flag of a unit: a piece ends there
MAX_UNITS = 1 << 23
SPELT = 0  # in code_P: the piece is not a word, and is looked up in the text's own letters
MAX_SUM = 100000.0  # greatest sum; SentencePiece shifts greater ones
OPEN_PAGES = 16  # pages of units that are searched for room
PAIR_BITS = 23  # bits of the hash of two characters; 1 MB, mostly empty for 250,000 pieces


class Pieces(NamedTuple):
    """The pieces of a model.

    units_U        (U,) uint32, a trie of their bytes. A unit is base << 9 | (1 if a piece ends there) << 8 | the byte
                   that leads to it. The child of u by byte c is base ^ c if its byte is c. Unit 0 is the root
    piece_U        (U,) uint32, the piece that ends at each unit, and
    score_U        (U,) float32, its score
    code_P         (P,) uint32, the code of each piece: its word's id + 1, or SPELT
    unknown        the piece of a character without one, and
    unknown_score  its float32 score
    greatest_score the greatest absolute value of a score
    pairs_X        (2**PAIR_BITS / 32,) uint32, a bit for each hash of two adjacent characters of a piece. A sentence is
                   cut between two characters that are not such a pair
    """

    units_U: Any
    piece_U: Any
    score_U: Any
    code_P: Any
    unknown: int
    unknown_score: float
    greatest_score: float
    pairs_X: Any


class WordLookup(NamedTuple):
    """The words of a model, as `find_word` takes them."""

    offsets_V: Any
    data: Any
    slots_C: Any


def best_pieces(text_B: Any, ends_S: Any, failed_S: Any, pieces: Pieces, words: WordLookup) -> tuple[Any, ...]:
    """Return (codes_T, failed_S): the codes of the pieces of all sentences, with a 0 after each sentence.

    text_B    (B,) uint8, from `piece_text`
    ends_S    (S,) int64, where each sentence ends
    failed_S  (S,) bool, sentences to leave out

    codes_T is uint32; adjacent unknown characters are one piece. A piece that is SPELT becomes a code for
    each of its words between white space. The new failed_S also includes sentences whose sum exceeds MAX_SUM. Sentences
    that failed have no codes.
    """
    check.dtype(text_B, np.uint8)
    check.dtype(ends_S, np.int64)
    check.dtype(failed_S, np.bool_)
    check.dtype(pieces.units_U, np.uint32)
    check.dtype(pieces.piece_U, np.uint32)
    check.dtype(pieces.score_U, np.float32)
    check.dtype(pieces.code_P, np.uint32)
    check.dtype(pieces.pairs_X, np.uint32)
    arrays = {
        "text_B": text_B, "ends_S": ends_S, "failed_S": failed_S, "units_U": pieces.units_U,
        "piece_U": pieces.piece_U, "score_U": pieces.score_U, "code_P": pieces.code_P, "pairs_X": pieces.pairs_X,
    }  # fmt: skip
    return pick(cpu=_cpu, cuda=_cuda, **arrays | words._asdict())(text_B, ends_S, failed_S, pieces, words)


def _cpu(text_B, ends_S, failed_S, pieces, words):
    longest = int(np.diff(ends_S, prepend=0).max(initial=0)) + 1
    best_N, piece_N, start_N = np.empty(longest, np.float32), np.empty(longest, np.uint32), np.empty(longest, np.int32)
    failed_S = failed_S.copy()
    codes_T = np.empty(len(text_B) + len(ends_S), np.uint32)  # a code has a byte at least
    pieces = pieces._replace(unknown=uint32(pieces.unknown), unknown_score=float32(pieces.unknown_score))
    used = _search(text_B, ends_S, pieces, words, (best_N, piece_N, start_N), codes_T, failed_S)
    return codes_T[:used], failed_S


@njit(nogil=True, cache=True)
def _search(text_B, ends_S, pieces, words, chains, codes_T, failed_S):
    """Return the number of written codes. The inner loop has unsigned indexes: Numba tests signed ones for below 0."""
    units_U, piece_U, score_U, code_P, unknown, unknown_score, _, _ = pieces
    (offsets_V, data, slots_C), (best_N, piece_N, start_N) = words, chains
    root = uint64(units_U[0] >> uint32(9))
    begin, t = 0, 0
    for s in range(len(ends_S)):
        size = ends_S[s] - begin
        for i in range(size + 1):
            start_N[i] = -1
        best_N[0] = 0.0
        i = 0
        while i < size and not failed_S[s]:
            so_far = best_N[i]
            if abs(so_far) > MAX_SUM:
                failed_S[s] = True
                continue
            width = character_size(text_B[begin + i])
            has_single, base, end = False, root, i
            while end < size:
                c = uint64(text_B[uint64(begin + end)])
                node = base ^ c
                unit = units_U[node]
                if uint64(unit & uint32(255)) != c:
                    break
                end += 1
                base = uint64(unit >> uint32(9))
                if unit & uint32(ENDS):
                    candidate = score_U[node] + so_far
                    n = uint64(end)
                    if start_N[n] < 0 or candidate > best_N[n]:
                        best_N[n], start_N[n], piece_N[n] = candidate, i, piece_U[node]
                    has_single |= end - i == width
            if not has_single:
                n = uint64(i + width)
                candidate = unknown_score + so_far
                if start_N[n] < 0 or candidate > best_N[n]:
                    best_N[n], start_N[n], piece_N[n] = candidate, i, unknown
            i += width
        if failed_S[s]:
            begin = ends_S[s]
            continue
        # The way back, as a chain from the beginning: start_N[i] becomes where the piece that starts at i ends.
        end, after = size, -1
        while end >= 0:
            start = start_N[end] if end else -1
            start_N[end] = after
            after, end = end, start
        i = 0
        while i < size:
            end = start_N[i]
            piece = piece_N[end]
            while piece == unknown and end < size and piece_N[start_N[end]] == unknown:
                end = start_N[end]
            code = code_P[piece]
            if code != uint32(SPELT):
                codes_T[t] = code
                t += 1
            else:
                first, stop = begin + i, begin + end
                while first < stop:
                    last = first
                    while last < stop and not is_space(text_B[last]):
                        last += 1
                    if last > first:
                        codes_T[t] = uint32(find_word(text_B, first, last, offsets_V, data, slots_C)) + uint32(1)
                        t += 1
                    first = last + 1
            i = end
        codes_T[t] = 0
        t += 1
        begin = ends_S[s]
    return t


def _cuda(text_B, ends_S, failed_S, pieces, words):
    import cupy

    B, S = len(text_B), len(ends_S)
    failed_S = failed_S.copy()
    if not S:
        return cupy.empty(0, np.uint32), failed_S
    text_B, slots_C, data = check.aligned(text_B), check.aligned(words.slots_C), check.aligned(words.data)
    starts_B = cupy.empty(B + 1, bool)
    mark_words = kernel("filter/best_pieces", "mark_words")
    launch(mark_words, grid_for(B + 1, 256), 256, (text_B, B, pieces.pairs_X, np.int32(32 - PAIR_BITS), starts_B))
    starts_B[ends_S] = True
    starts_W = cupy.flatnonzero(starts_B)
    W = len(starts_W) - 1
    score_B, safe_B = cupy.empty(B, np.float32), cupy.empty(B, np.float32)
    start_B, node_B = cupy.empty(B, np.int32), cupy.empty(B, np.uint32)
    scores = np.float32(pieces.unknown_score), np.float32(pieces.greatest_score)
    trie, path = (pieces.units_U, pieces.score_U, *scores), (score_B, safe_B, start_B, node_B)
    search_words = kernel("filter/best_pieces", "search_words")
    launch(search_words, grid_for(W, 64), 64, (text_B, starts_W, W, *trie, *path))
    counts_S, blocks = cupy.empty(S, np.int64), grid_for(32 * S, 128)
    spelling = pieces.piece_U, pieces.code_P, np.uint32(pieces.unknown)
    settle_words = kernel("filter/best_pieces", "settle_words")
    launch(settle_words, blocks, 128, (text_B, ends_S, S, starts_B, *trie, *path, *spelling, counts_S, failed_S))
    ends_of_codes_S = cupy.cumsum(counts_S)
    codes_T = cupy.empty(int(ends_of_codes_S[-1]), np.uint32)
    table = slots_C, len(slots_C), words.offsets_V, len(words.offsets_V), data, len(data)
    write = kernel("filter/best_pieces", "write_piece_codes")
    launch(write, blocks, 128, (text_B, B, ends_S, S, *table, node_B, *spelling, counts_S, ends_of_codes_S, codes_T))
    return codes_T, failed_S


def make_pieces(
    pieces: list[bytes],
    score_P: np.ndarray,
    used_P: np.ndarray,
    code_P: np.ndarray,
    unknown: int,
    unknown_score: float,
    move: Callable[[np.ndarray], Any],
) -> Pieces:
    """Return the `Pieces` of a model, with arrays moved by `move`; see there and `index_pieces`."""
    used = [piece for piece, is_used in zip(pieces, used_P.tolist(), strict=True) if is_used]
    greatest = max(np.abs(score_P).max(initial=0.0), abs(unknown_score))
    units_U, piece_U, score_U = map(move, index_pieces(pieces, score_P, used_P))
    scores = unknown_score, float(greatest)
    return Pieces(units_U, piece_U, score_U, move(code_P), unknown, *scores, move(_pairs(used)))


def _pairs(pieces: list[bytes]) -> np.ndarray:
    """Return pairs_X of `Pieces`."""
    joined = b"\0".join(pieces).decode(errors="replace")  # a piece that is not valid UTF-8 is in no valid text
    points = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    hashes = ((points[:-1] * uint32(0x9E3779B1)) ^ points[1:]) * uint32(0x85EBCA77)
    known = np.zeros(1 << PAIR_BITS, bool)
    known[hashes[(points[:-1] != 0) & (points[1:] != 0)] >> uint32(32 - PAIR_BITS)] = True
    return np.packbits(known, bitorder="little").view(np.uint32)


def index_pieces(
    pieces: list[bytes], score_P: np.ndarray, used_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (units_U, piece_U, score_U) of distinct pieces that are not empty and have no NUL.

    score_P  (P,) float32
    used_P   (P,) bool: pieces that may occur in a text
    """
    order = sorted(np.flatnonzero(used_P).tolist(), key=pieces.__getitem__)
    offsets_P = np.cumsum([0, *(len(pieces[p]) for p in order)], dtype=np.int64)
    data = np.frombuffer(b"".join(pieces[p] for p in order), np.uint8)
    room = 1 << 12
    while True:
        units_U, piece_U = np.zeros(room, np.uint32), np.zeros(room, np.uint32)
        used = _build(offsets_P, data, np.array(order, np.uint32), units_U, piece_U)
        if used >= 0:
            piece_U = piece_U[:used].copy()
            return units_U[:used].copy(), piece_U, score_P[piece_U]
        room *= 4
        if room > MAX_UNITS:
            raise ValueError(f"{len(order):,} pieces need more than {MAX_UNITS:,} units; give a smaller model")


@njit(nogil=True, cache=True)
def _build(offsets_P, data, order_P, units_U, piece_U):
    """Fill a trie with sorted pieces; returns the units used, or -1 if there is no room."""
    based = np.zeros(len(units_U), np.bool_)  # bases of units
    taken = np.zeros(len(units_U), np.bool_)
    taken[0] = based[0] = True
    stack = [(0, 0, len(order_P), 0)]  # unit, its first piece and the one after its last, bytes before it
    labels, firsts = np.empty(257, np.int64), np.empty(257, np.int64)
    pages = 1
    while len(stack):
        node, first, last, depth = stack.pop()
        if first < last and offsets_P[first + 1] - offsets_P[first] == depth:
            units_U[node] |= uint32(ENDS)
            piece_U[node] = order_P[first]
            first += 1
        n = 0
        for p in range(first, last):
            label = np.int64(data[offsets_P[p] + depth])
            if n == 0 or labels[n - 1] != label:
                labels[n], firsts[n] = label, p
                n += 1
        if n == 0:
            continue
        firsts[n] = last
        base = -1
        for candidate in range(256 * max(0, pages - OPEN_PAGES), 256 * pages):
            if based[candidate]:
                continue
            free = True
            for k in range(n):
                free &= not taken[candidate ^ labels[k]]
            if free:
                base = candidate
                break
        if base < 0:
            base = 256 * pages
            pages += 1
            if 256 * pages > len(units_U):
                return -1
        based[base] = True
        units_U[node] |= uint32(base) << uint32(9)
        for k in range(n):
            child = base ^ labels[k]
            taken[child] = True
            units_U[child] = uint32(labels[k])
            stack.append((child, firsts[k], firsts[k + 1], depth + 1))
    return 256 * pages


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sentences of few letters, some of them unknown, and pieces of 1 to 4 letters.

    Scores are few, or nearly the same: sums from the beginning of a sentence and of a word differ in their order. A
    sentence with many of a letter fails. In most models no piece crosses a space.
    """
    letters = [*"abcde", "é", "\u2581", " "]
    shares = np.array([8, 8, 8, 8, 8, 8, 12, 1])
    made = {"".join(rng.choice(letters[:7], n)) for n in rng.integers(1, 5, 120)} - {"d", "e", "é"}
    if rng.random() < 0.75:
        made = {piece for piece in made if "\u2581" not in piece.lstrip("\u2581")}
    pieces = ["<unk>", "a", "d", *sorted(made - {"a"})]
    score_P = -(rng.integers(4, 20, len(pieces)) / 2).astype(np.float32)
    score_P += (rng.integers(0, 3, len(pieces)) * rng.choice([0, 1e-4, 1e-3])).astype(np.float32)
    score_P[2] = rng.choice([-7.0, -2000.0, -30_000.0])
    used_P = np.ones(len(pieces), bool)
    used_P[0] = False
    known = [piece.encode() for piece in pieces]
    vocabulary = [b"<unk>", *known[2::2], "é".encode(), b"e"]
    offsets_V = np.cumsum([0, *map(len, vocabulary)], dtype=np.int64)
    data = np.frombuffer(b"".join(vocabulary), np.uint8)
    code_P = np.array([vocabulary.index(p) + 1 if p in vocabulary else 1 for p in known], np.uint32)
    code_P[0] = code_P[rng.integers(len(known))] = SPELT
    parts = ["".join(rng.choice(letters, n, p=shares / shares.sum())).encode() for n in rng.integers(0, 60, size // 40)]
    words = WordLookup(offsets_V, data, index_words(offsets_V, data)[0])
    return {
        "text_B": np.frombuffer(b"".join(parts), np.uint8),
        "ends_S": np.cumsum([len(part) for part in parts], dtype=np.int64),
        "failed_S": rng.random(len(parts)) < 0.1,
        "pieces": make_pieces(known, score_P, used_P, code_P, 0, float(score_P[3:].min()) - 10, lambda array: array),
        "words": words,
    }
