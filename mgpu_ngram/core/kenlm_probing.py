"""The n-grams of KenLM's probing models, which store a hash of each n-gram and not its words.

The key of w1 ... wn is that of its suffix w2 ... wn, combined with w1 (`combine`); the key of a word is its id. KenLM
stores the suffix and the history of every n-gram, so each n-gram is a suffix and a history with the same words between:
w2 ... w(n-1). All such pairs whose key is in the table of order n are its n-grams.

KenLM marks suffixes that extend to the left (a cleared sign of the probability) and histories that extend to the right
(a backoff other than -0), so few n-grams of a pruned model are tried in vain. Where all words are marked, order 2 tries
V**2 pairs. The few n-grams beyond the real ones that have the key of another one are n-grams to KenLM, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mgpu_ngram.core.errors import warn
from mgpu_ngram.core.kenlm_file import REST, KenlmFile, plain_backoffs, slots_of
from mgpu_ngram.core.trie import Ngrams
from mgpu_ngram.kernels.trie.key_pairs import SLOT_BITS, fill_filter, find_pairs

SUFFIX_FACTOR, WORD_FACTOR = 8978948897894561157, 17894857484156487943  # lm/search_hashed.hh, CombineWordHash
FILTER_BITS = 64  # of the filter per n-gram
BLOCK_BITS = 17  # of the filter that a core keeps in its cache: 16 KiB
PAIRS_PER_TASK = 1 << 26
MANY_PAIRS = 10**11  # take minutes: 2 cores test 0.4 billion a second
PROBING_UNIGRAM = np.dtype([("prob", "<f4"), ("backoff", "<f4")])


@dataclass(frozen=True)
class Found:
    """The n-grams of an order, in the order in which they are found.

    key_G      (G,) uint64
    first_G    (G,) uint32, the first word
    last_G     (G,) uint32, the last word
    history_G  (G,) int64, the row of its history in the order before
    suffix_G   (G,) int64, the row of its suffix
    """

    key_G: np.ndarray
    first_G: np.ndarray
    last_G: np.ndarray
    history_G: np.ndarray
    suffix_G: np.ndarray


class KenlmProbing:
    """The sections of a KenLM probing model.

    end  the offset after the n-grams
    """

    def __init__(self, file: KenlmFile, threads: int = 1):
        """Find the sections. Raises InputError if the file is too short for them.

        threads  threads that find n-grams
        """
        self._file, self._threads, counts, at = file, threads, file.header.counts, file.search
        rest = file.header.kind == REST
        self._unigrams = file.array(at, _with_rest(PROBING_UNIGRAM) if rest else PROBING_UNIGRAM, counts[0] + 1)
        at += self._unigrams.nbytes
        self._tables: list[np.ndarray] = []
        for count in counts[1:]:
            dtype = table_dtype(longest=len(self._tables) == len(counts) - 2, rest=rest)
            self._tables.append(file.array(at, dtype, slots_of(count, file.header.multiplier)))
            at += self._tables[-1].nbytes
        self.end = at

    def levels(self) -> Iterator[Ngrams]:
        """Yield the n-grams of orders 1 to N. Raises InputError for a damaged file."""
        V = len(self._file.hash_V)
        level = self._unigrams[:V]
        word_V = np.arange(V, dtype=np.uint32)
        nothing_V = np.zeros(V, np.int64)
        found = Found(word_V.astype(np.uint64), word_V, word_V, nothing_V, nothing_V)
        ids = word_V[:, None]
        yield Ngrams(ids, _negative(level["prob"]), plain_backoffs(level["backoff"]))
        for n, table in enumerate(self._tables, 2):
            keys = np.ascontiguousarray(table["key"])
            stored = np.count_nonzero(keys)
            if stored == len(keys):
                raise self._file.damaged(f"its table of {n}-grams has no empty slot")
            suffixes = np.flatnonzero(~np.signbit(level["prob"]))
            histories = np.flatnonzero((level["backoff"] != 0) | ~np.signbit(level["backoff"]))
            slot_G, found = _join(found, suffixes, histories, keys, self._threads, self._file.name)
            known = np.zeros(len(table), bool)
            known[slot_G] = True
            if missing := stored - np.count_nonzero(known):
                raise self._file.damaged(f"{missing:,} of its {n}-grams are not made of its {n - 1}-grams")
            ids = np.concatenate([ids[found.history_G], found.last_G[:, None]], axis=1)
            level = table[slot_G]
            longest = n == self._file.header.order
            yield Ngrams(ids, _negative(level["prob"]), None if longest else plain_backoffs(level["backoff"]))


def table_dtype(longest: bool, rest: bool = False) -> np.dtype:
    """Return the slots of a table of n-grams, of the highest order or of another one."""
    fields = PROBING_UNIGRAM.descr[: 1 if longest else 2]
    dtype = np.dtype([("key", "<u8"), *fields])
    return _with_rest(dtype) if rest and not longest else dtype


def _with_rest(dtype: np.dtype) -> np.dtype:
    return np.dtype([*dtype.descr, ("rest", "<f4")])


def combine(key: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Return the keys of n-grams from those of their suffixes (uint64) and their first words."""
    return key * np.uint64(SUFFIX_FACTOR) ^ (word + np.uint64(1)) * np.uint64(WORD_FACTOR)


def _negative(prob: np.ndarray) -> np.ndarray:
    return -np.abs(prob)


def _join(
    found: Found, suffixes: np.ndarray, histories: np.ndarray, keys: np.ndarray, threads: int, name: str
) -> tuple[np.ndarray, Found]:
    """Return (slot_G int64, the n-grams) of the next order.

    found      the order before
    suffixes   its rows that may be suffixes
    histories  its rows that may be histories
    keys       the keys of the next order's table, 0 for empty slots
    name       of the file, for a warning
    """
    bits = max(8, (FILTER_BITS * int(np.count_nonzero(keys))).bit_length())
    tile_bits = max(1, bits - BLOCK_BITS)
    filter, table = np.zeros(1 << (bits - 6), np.uint64), np.zeros((1 << (bits - SLOT_BITS), 2), np.uint64)
    fill_filter(keys, tile_bits, bits, filter, table)
    base_S = found.key_G[suffixes] * np.uint64(SUFFIX_FACTOR)
    term_H = (found.first_G[histories] + np.uint64(1)) * np.uint64(WORD_FACTOR)
    tile_S, tile_H = _reversed(base_S, tile_bits), _reversed(term_H, tile_bits)
    by_S = np.lexsort((tile_S, found.history_G[suffixes]))
    by_H = np.lexsort((tile_H, found.suffix_G[histories]))
    suffixes, base_S, tile_S = suffixes[by_S], base_S[by_S], tile_S[by_S]
    histories, term_H, tile_H = histories[by_H], term_H[by_H], tile_H[by_H]
    middle_S, middle_H = found.history_G[suffixes], found.suffix_G[histories]
    begin_S, end_S = (np.searchsorted(middle_H, middle_S, side) for side in ("left", "right"))
    pairs_S = np.cumsum(end_S - begin_S)
    pairs = int(pairs_S[-1]) if len(pairs_S) else 0
    if pairs > MANY_PAIRS:
        warn(f"{name!r} stores no words of n-grams, so {pairs:,} pairs are tested; convert it once to a model file")
    cuts = np.searchsorted(pairs_S, np.arange(PAIRS_PER_TASK, pairs, PAIRS_PER_TASK))
    cuts = np.unique([0, *cuts, len(suffixes)])

    def task(begin: int, end: int) -> np.ndarray:
        return find_pairs(
            begin, end, base_S, tile_S, begin_S, end_S, term_H, tile_H, tile_bits, bits, filter, table
        )  # fmt: skip

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(task, cuts[:-1].tolist(), cuts[1:].tolist()))
    slot_G, s_G, h_G = np.concatenate([np.empty((0, 3), np.int64), *parts]).T
    suffix_G, history_G = suffixes[s_G], histories[h_G]
    made = Found(keys[slot_G], found.first_G[history_G], found.last_G[suffix_G], history_G, suffix_G)
    return slot_G, made


def _reversed(keys: np.ndarray, bits: int) -> np.ndarray:
    """Return the lowest bits of keys as uint32, the lowest bit first. Sorted, keys are grouped by any of these bits."""
    tile = np.zeros(len(keys), np.uint32)
    for bit in range(bits):
        tile |= ((keys >> np.uint64(bit)).astype(np.uint32) & np.uint32(1)) << np.uint32(bits - 1 - bit)
    return tile
