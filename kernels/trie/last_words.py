"""Find the last words of texts of tokens in a trie of spellings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..common.find_tokens import is_space
from ..compile_cpu import njit
from ..dispatch import array_module, pick
from ..launch import grid_for, kernel, launch
from .walk_spellings import SpellingTrie, find_byte

THREADS = 64


class TokenPieces(NamedTuple):
    """The bytes of P - 1 tokens, and piece P - 1, which stands for all other tokens.

    offsets_P  (P + 1,) int64
    data       uint8: piece p is data[offsets_P[p]:offsets_P[p + 1]]
    begins_S   (S,) int64, tokens after which a text begins anew
    """

    offsets_P: Any
    data: Any
    begins_S: Any


def last_words(trie: SpellingTrie, pieces: TokenPieces, tokens_BT: Any, lengths_B: Any, words: int) -> Any:
    """Return the nodes of the last words of each text; a text is the joined pieces of its tokens.

    tokens_BT  (B, T) int64
    lengths_B  (B,) int64, 0 to T: text b is the last lengths_B[b] tokens of row b, without tokens up to the last of
               begins_S
    words      number of whole words to find, 0 or more

    White space of C's isspace separates words. The partial word is the last word of a text, if no white space
    follows it. Returns nodes_BK (B, words + 1) int32: the nodes of the last whole words, the last one in column
    words - 1, then the node of the partial word; 0 if the text has no such word, M if the trie lacks the word.
    """
    check.dtype(trie.byte_M, np.uint8)
    check.dtype(trie.first_child_M, np.int32)
    check.dtype(pieces.offsets_P, np.int64)
    check.dtype(pieces.data, np.uint8)
    check.dtype(pieces.begins_S, np.int64)
    check.dtype(tokens_BT, np.int64)
    check.dtype(lengths_B, np.int64)
    arrays = {**trie._asdict(), **pieces._asdict(), "tokens_BT": tokens_BT, "lengths_B": lengths_B}
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(*trie, *pieces, array_module(tokens_BT).ascontiguousarray(tokens_BT), lengths_B, words)


@njit(nogil=True, cache=True)
def _cpu(byte_M, first_child_M, offsets_P, data, begins_S, tokens_BT, lengths_B, words):
    B, K = len(tokens_BT), words + 1
    nodes_BK = np.empty((B, K), np.int32)
    for b in range(B):
        for k in range(K):
            nodes_BK[b, k] = _last_word(
                byte_M, first_child_M, offsets_P, data, begins_S, tokens_BT[b], lengths_B[b], words - k
            )
    return nodes_BK


@njit(nogil=True, cache=True)
def _last_word(byte_M, first_child_M, offsets_P, data, begins_S, tokens_T, length, back):
    """Return the node of the word that `back` words follow. The partial word counts, even if it is empty."""
    M, P, T = len(byte_M), len(offsets_P) - 1, len(tokens_T)
    passed, inside, done = 0, False, False
    first_t, first_i, last_t, last_i = 0, 0, 0, 0
    t = T - 1
    while t >= T - length and not done:
        token = tokens_T[t]
        for begin in begins_S:
            done = done or begin == token
        if done:
            break
        piece = token if 0 <= token < P - 1 else P - 1
        i = offsets_P[piece + 1] - 1
        while i >= offsets_P[piece] and not done:
            if is_space(data[i]):
                if inside and passed == back:
                    done = True
                else:
                    passed += inside or passed == 0
                    inside = False
                    done = passed > back
            else:
                if not inside:
                    last_t, last_i = t, i
                first_t, first_i, inside = t, i, True
            i -= 1
        t -= 1
    node = 0
    if inside and passed == back:
        for t in range(first_t, last_t + 1):
            token = tokens_T[t]
            piece = token if 0 <= token < P - 1 else P - 1
            begin = first_i if t == first_t else offsets_P[piece]
            end = last_i + 1 if t == last_t else offsets_P[piece + 1]
            for i in range(begin, end):
                if node < M:
                    node = find_byte(byte_M, first_child_M, node, data[i])
    return node


def _cuda(byte_M, first_child_M, offsets_P, data, begins_S, tokens_BT, lengths_B, words):
    import cupy

    (B, T), K = tokens_BT.shape, words + 1
    nodes_BK = cupy.empty((B, K), np.int32)
    if B:
        fn = kernel("trie/last_words", "last_words")
        args = (
            byte_M, first_child_M, len(byte_M), offsets_P, data, len(offsets_P) - 1, begins_S, len(begins_S), tokens_BT,
            lengths_B, B, T, K, nodes_BK,
        )  # fmt: skip
        launch(fn, grid_for(B * K, THREADS), THREADS, args)
    return nodes_BK


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return texts of pieces of some letters and spaces, of which few tokens begin a text, and a trie of all words of
    few letters."""
    letters, depth, P, T = 3, 3, 40, 12
    nodes = sum(letters**i for i in range(depth + 1))  # each node above the last level has a child for each letter
    inner = (nodes - 1) // letters
    first_child_M = np.minimum(1 + letters * np.arange(nodes + 1), 1 + letters * inner)
    byte_M = np.append(0, np.tile(ord("a") + np.arange(letters), inner))
    lengths_P = rng.integers(0, 4, P)
    data = rng.choice(np.frombuffer(b"abcd \n", np.uint8), lengths_P.sum(), p=[0.3, 0.2, 0.2, 0.05, 0.2, 0.05])
    return {
        "trie": SpellingTrie(byte_M.astype(np.uint8), first_child_M.astype(np.int32)),
        "pieces": TokenPieces(np.cumsum([0, *lengths_P]), data, np.array([3, P + 1])),
        "tokens_BT": rng.integers(-1, P + 2, (size, T)),
        "lengths_B": rng.integers(0, T + 1, size),
        "words": 3,
    }
