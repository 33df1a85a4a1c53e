"""Text to measure on: English-like bytes of any size, and a generated corpus with Zipf words and bigram structure."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.common.ascii import NEWLINE
from mgpu_ngram.kernels.common.draws import GAMMA
from mgpu_ngram.kernels.compile_cpu import njit

BLOCK_WORDS = 1 << 20  # words generated in one block; the corpus depends on it, so it is fixed
QUANTILES = 1 << 24  # resolution of the Zipf law; a larger vocabulary has ranks between them, too
SUCCESSORS = 4  # fixed successors of each word
SHORTEST_WORDS, LONGEST_WORDS = 10, 30  # words of a sentence: 20 on average
# Words of 1, 2, ... 11 letters end at these ranks; all others have 12 letters.
LENGTH_ENDS = (3, 33, 183, 883, 3_383, 11_383, 31_383, 71_383, 131_383, 231_383, 381_383)
ENGLISH_FILE = Path(__file__).parent / "english.txt"  # 58 kB of documentation; texts depend on it, so it is fixed
BLOCK_BYTES = 1 << 20  # of English-like text, generated in one block; the text depends on it, so it is fixed


def english_like_text(size_bytes: int, seed: int = 0) -> np.ndarray:
    """Return (size_bytes,) uint8 of text by a fixed model of order 3: each byte follows the three bytes before it as
    it does somewhere in english.txt. The same on every machine, and not a repetition of that file.

    Blocks of BLOCK_BYTES are generated in threads, each from a line of its own.
    """
    source_P, order_P, first_P, size_P = _contexts()
    text_B = np.empty(size_bytes, np.uint8)
    starts = range(0, size_bytes, BLOCK_BYTES)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda at: _walk(source_P, order_P, first_P, size_P, np.uint64(seed), at, text_B), starts))
    if size_bytes:
        text_B[-1] = NEWLINE
    return text_B


def shuffled_lines(size_bytes: int, source_file: str | Path, seed: int = 0) -> np.ndarray:
    """Return (size_bytes,) uint8: the lines of a file, shuffled anew for every pass over it until the size is reached.

    Raises InputError for a file without text.
    """
    text = Path(source_file).read_bytes()
    if not text.strip():
        raise InputError(f"{source_file}: has no text; give a file with lines to draw")
    lines = text.splitlines(keepends=True)
    lines[-1] = lines[-1].rstrip(b"\r\n") + b"\n"
    rng = np.random.default_rng(seed)
    text_B = np.empty(size_bytes, np.uint8)
    at = 0
    while at < size_bytes:
        shuffled = b"".join(map(lines.__getitem__, rng.permutation(len(lines)).tolist()))
        part = np.frombuffer(shuffled, np.uint8)[: size_bytes - at]
        text_B[at : at + len(part)] = part
        at += len(part)
    return text_B


@cache
def _contexts() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the bytes of english.txt, and its places by context: the three bytes up to a place, the file as a ring.

    source_P (P,) uint8; order_P (P,) uint32, places sorted by context; first_P, size_P (P,) uint32, where the places
    with the context of a place begin in order_P, and how many they are
    """
    source_P = np.frombuffer(ENGLISH_FILE.read_bytes(), np.uint8)
    context_P = source_P.astype(np.int64)
    context_P = np.roll(context_P, 2) << 16 | np.roll(context_P, 1) << 8 | context_P
    order_P = np.argsort(context_P, kind="stable")
    sorted_P = context_P[order_P]
    first_P = np.searchsorted(sorted_P, context_P)
    size_P = np.searchsorted(sorted_P, context_P, side="right") - first_P
    return source_P, order_P.astype(np.uint32), first_P.astype(np.uint32), size_P.astype(np.uint32)


def zipf_ids(tokens: int, vocabulary: int = 500_000, seed: int = 0, xp: Any = np) -> Any:
    """Return a stream of `tokens` words as uint32 codes from 1 to `vocabulary`, 0 after each sentence.

    xp  numpy, or cupy to make it on the GPU: the same stream, for all its arithmetic is on integers

    A word is, with probability 1/2, one of four successors fixed by the word before it, else drawn by
    Zipf's law (the word of rank r in proportion to 1 / r); successors follow the same law. A
    sentence has 10 to 30 words.
    """
    rank_Q = xp.asarray(_zipf_ranks(vocabulary))
    blocks = [_block(*span, rank_Q, vocabulary, seed, xp) for span in _spans(tokens)]
    return xp.concatenate(blocks) if blocks else xp.empty(0, np.uint32)


def zipf_text(path: str | Path, tokens: int, vocabulary: int = 500_000, seed: int = 0, order: int = 5) -> list[int]:
    """Write the corpus of `zipf_ids` as text, a sentence a line, with every core.

    Returns how many n-grams it has of each order 1..order.
    """
    rank_Q = _zipf_ranks(vocabulary)
    offsets_V, data = spellings(vocabulary)
    most_letters = int(np.diff(offsets_V).max())
    keys = _stream_key(2 * seed), _stream_key(2 * seed + 1)

    def spell(first: int, words: int) -> tuple[np.ndarray, np.ndarray]:
        text_B, totals_N = np.empty(words * (most_letters + 1), np.uint8), np.zeros(order, np.int64)
        size = _spell(first, words, (rank_Q, vocabulary), keys, offsets_V, data, text_B, totals_N)
        return text_B[:size], totals_N

    totals_N = np.zeros(order, np.int64)
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool, open(path, "wb") as file:
        spans = _spans(tokens)
        waiting: deque[Any] = deque()
        while True:
            waiting.extend(pool.submit(spell, *span) for span in itertools.islice(spans, 2 * cores - len(waiting)))
            if not waiting:
                break
            text_B, block_totals_N = waiting.popleft().result()
            file.write(text_B.data)
            totals_N += block_totals_N
    return totals_N.tolist()


def zipf_texts(
    folder: str | Path, tokens: int, file_tokens: int, vocabulary: int = 500_000, order: int = 5,
    made: Sequence[tuple[Path, list[int]]] = (),
) -> list[tuple[Path, list[int]]]:  # fmt: skip
    """Write files of `zipf_text`, of seeds 0, 1, ..., until there are `tokens`; return each with its totals.

    made  the result of an earlier call with fewer tokens, which filled all its files: these are not written again
    """
    files = list(made)
    for seed in range(len(made), -(-tokens // file_tokens)):
        path, words = Path(folder) / f"zipf-{seed:03d}.txt", min(file_tokens, tokens - seed * file_tokens)
        files.append((path, zipf_text(path, words, vocabulary, seed, order)))
    return files[: -(-tokens // file_tokens)]


def _spans(tokens: int) -> Iterator[tuple[int, int]]:
    """(first word, number of words) of each block."""
    for start in range(0, tokens, BLOCK_WORDS):
        yield start, min(BLOCK_WORDS, tokens - start)


@cache
def _zipf_ranks(vocabulary: int) -> np.ndarray:
    """(QUANTILES,) uint32: the rank, from 0, at each quantile of P(rank < r) = ln(r + 1) / ln(V + 1)."""
    quantile_Q = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return (np.exp(quantile_Q * np.log(vocabulary + 1)).astype(np.uint32) - np.uint32(1)).clip(0, vocabulary - 1)


def splitmix64(x: Any) -> Any:
    """SplitMix64's finaliser (Steele et al., 2014) of an array of uint64: counter in, random bits out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _draw(first: int, n: int, stream: int, xp: Any) -> Any:
    """(n,) uint64 random bits of the counters from `first` on, of one of many streams."""
    return splitmix64(xp.arange(first + 1, first + n + 1, dtype=np.uint64) * GAMMA ^ _stream_key(stream))


def _stream_key(stream: int) -> np.uint64:
    return splitmix64(np.array([stream + 1], np.uint64))[0]


def _ranks(bits_T: Any, rank_Q: Any, vocabulary: int, xp: Any) -> Any:
    """Return the ranks of random bits, as uint32, as `_rank_of` one."""
    quantile_T = (bits_T >> np.uint64(40)).astype(np.int64)
    rank_T = rank_Q[quantile_T]
    if vocabulary <= QUANTILES:
        return rank_T
    next_Q = xp.concatenate([rank_Q[1:], xp.full(1, vocabulary, rank_Q.dtype)])
    between_T = (next_Q[quantile_T] - rank_T).astype(np.uint64) * (bits_T >> np.uint64(24) & np.uint64(0xFFFF))
    return rank_T + (between_T >> np.uint64(16)).astype(np.uint32)


def _block(first: int, words: int, rank_Q: Any, vocabulary: int, seed: int, xp: Any) -> Any:
    """Words first .. first + words - 1 of the stream, with a 0 after each sentence and at the block's end."""
    length_S = _draw(first, words // SHORTEST_WORDS + 1, 2 * seed, xp) % np.uint64(LONGEST_WORDS - SHORTEST_WORDS + 1)
    ends_S = xp.cumsum(length_S.astype(np.int64) + SHORTEST_WORDS)
    starts_T = xp.zeros(words, bool)
    starts_T[0] = True
    starts_T[ends_S[ends_S < words]] = True

    random_T = _draw(first, words, 2 * seed + 1, xp)
    rank_T = _ranks(random_T, rank_Q, vocabulary, xp)
    follows_T = ((random_T & np.uint64(1)) == 1) & ~starts_T
    solved = xp.flatnonzero(~follows_T)
    while len(solved):  # a word that follows another is known once that one is
        after = solved + 1
        after = after[after < words]
        solved = after[follows_T[after]]
        which = (random_T[solved] >> np.uint64(1)) % np.uint64(SUCCESSORS)
        pair = rank_T[solved - 1].astype(np.uint64) * np.uint64(SUCCESSORS) + which
        rank_T[solved] = _ranks(splitmix64(pair + np.uint64(1)), rank_Q, vocabulary, xp)

    before_T = xp.cumsum(starts_T)  # sentences begun; each but the last has put its 0 in
    codes_P = xp.zeros(words + int(before_T[-1]), np.uint32)
    codes_P[xp.arange(words) + before_T - 1] = rank_T + np.uint32(1)
    return codes_P


@cache
def spellings(vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (V + 1,) int64 and letters uint8 of `vocabulary` distinct words, the frequent ones short."""
    ends = np.clip([*LENGTH_ENDS, vocabulary], 0, vocabulary)
    letters_V = 1 + np.searchsorted(ends, np.arange(vocabulary), side="right")
    offsets_V = np.concatenate([[0], np.cumsum(letters_V)])
    data, first = np.empty(offsets_V[-1], np.uint8), 0
    for letters, end in enumerate(ends.tolist(), 1):
        # A step that has no factor in common with 26**letters visits every spelling once, in no visible order.
        _spell_numbers(int(0.618 * 26**letters) // 26 * 26 + 1, letters, data[offsets_V[first] : offsets_V[end]])
        first = end
    return offsets_V, data


@njit(nogil=True, cache=True)
def _spell_numbers(step, letters, data):
    """Write the numbers 0, step, 2 * step, ... modulo 26**letters with that many digits, a to z."""
    number, numbers = 0, 26**letters
    for at in range(0, len(data), letters):
        left = number
        for i in range(letters - 1, -1, -1):
            data[at + i] = 97 + left % 26
            left //= 26
        number = (number + step) % numbers


_mix_one = njit(nogil=True, cache=True)(splitmix64)


@njit(nogil=True, cache=True)
def _rank_of(bits, rank_Q, vocabulary):
    """Return the rank of random bits: of the quantile of the upper 24; of a large vocabulary, the next 16 bits choose
    between it and the next quantile's.
    """
    quantile = np.int64(bits >> np.uint64(40))
    rank = np.uint64(rank_Q[quantile])
    if vocabulary > QUANTILES:
        above = np.uint64(rank_Q[quantile + 1] if quantile + 1 < QUANTILES else vocabulary)
        rank += (above - rank) * (bits >> np.uint64(24) & np.uint64(0xFFFF)) >> np.uint64(16)
    return rank


@njit(nogil=True, cache=True)
def _spell(first, words, law, keys, offsets_V, data, text_B, totals_N):
    """Spell the words of `_block` into text_B, and add its n-grams to the totals of each order; returns its size."""
    lengths_key, words_key = keys
    at, sentences, left, rank = 0, 0, 0, np.uint64(0)
    for t in range(words):
        random = _mix_one(np.uint64(first + t + 1) * GAMMA ^ words_key)
        if left == 0:
            length = _mix_one(np.uint64(first + sentences + 1) * GAMMA ^ lengths_key)
            left = min(SHORTEST_WORDS + int(length % np.uint64(LONGEST_WORDS - SHORTEST_WORDS + 1)), words - t)
            sentences += 1
            for n in range(len(totals_N)):
                totals_N[n] += max(left - n, 0)
            bits = random
        elif random & np.uint64(1):  # it follows the word before
            which = (random >> np.uint64(1)) % np.uint64(SUCCESSORS)
            bits = _mix_one(rank * np.uint64(SUCCESSORS) + which + np.uint64(1))
        else:
            bits = random
        rank = _rank_of(bits, *law)
        for i in range(offsets_V[rank], offsets_V[rank + np.uint64(1)]):
            text_B[at] = data[i]
            at += 1
        left -= 1
        text_B[at] = 32 if left else 10
        at += 1
    return at


@njit(nogil=True, cache=True)
def _walk(source_P, order_P, first_P, size_P, seed, begin, text_B):
    """Write the block of text_B that begins at `begin`: from a random line on, each byte after a random place with the
    context of the place before.
    """
    P = len(source_P)
    key = _mix_one(seed + np.uint64(1))
    place = np.int64(_mix_one(np.uint64(begin) * GAMMA ^ key) % np.uint64(P))
    while source_P[place] != NEWLINE:
        place = (place + 1) % P
    for t in range(begin, min(begin + BLOCK_BYTES, len(text_B))):
        random = _mix_one(np.uint64(t + 1) * GAMMA ^ key) >> np.uint64(32)
        place = order_P[first_P[place] + np.int64(random * np.uint64(size_P[place]) >> np.uint64(32))] + np.int64(1)
        if place == P:
            place = np.int64(0)
        text_B[t] = source_P[place]
