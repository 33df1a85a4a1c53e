"""The n-grams of KenLM's probing models, which store a hash of each n-gram and not its words.

The key of w1 ... wn is the key of its suffix w2 ... wn combined with w1 (`combine`); the key of a word is its id. KenLM
stores the suffix and the history of every n-gram, so each n-gram is a history and a suffix that share the words
w2 ... w(n-1). The n-grams of order n are all such pairs whose key is in the table of order n.

KenLM marks suffixes that extend to the left (a cleared sign of the probability) and histories that extend to the right
(a backoff other than -0), so few n-grams of a pruned model are tried in vain. Where all words are marked, order 2 tries
V**2 pairs. If a pair has the key of an n-gram by chance, it is an n-gram here, as it is in KenLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.kenlm.binary_file import REST, KenlmFile, slots_of
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.score.score_by_keys import SIGN, KeyTables
from mgpu_ngram.kernels.trie.find_key_pairs import find_key_pairs

SUFFIX_FACTOR, WORD_FACTOR = 8978948897894561157, 17894857484156487943  # lm/search_hashed.hh, CombineWordHash
SLOTS_AT_ONCE = 1 << 16  # slots searched at once for an empty slot, which is usually among the first
MANY_PAIRS = 10**11  # pairs that take minutes: 2 cores test 0.4 billion a second


@dataclass(frozen=True)
class ProbedNgrams:
    """The n-grams of an order, in the order in which they are found; NumPy or CuPy.

    key_G      (G,) uint64
    first_G    (G,) uint32, the first word
    last_G     (G,) uint32, the last word
    history_G  (G,) int64, the row of its history in the order before
    suffix_G   (G,) int64, the row of its suffix
    """

    key_G: Any
    first_G: Any
    last_G: Any
    history_G: Any
    suffix_G: Any


class KenlmProbing:
    """The sections of a KenLM probing model.

    end  the offset after the n-grams
    """

    def __init__(self, file: KenlmFile, threads: int = 1, move: Callable[[np.ndarray], Any] = np.asarray):
        """Find the sections. Raises InputError if the file is too short for them.

        threads  threads that find n-grams on a CPU
        move     copies an array to the device that finds them
        """
        self._file, self._threads, self._move = file, threads, move
        at, counts, rest = file.search, file.header.counts, file.header.kind == REST
        self._sections: list[np.ndarray] = []  # (slots, numbers of 4 bytes each)
        for n, count in enumerate(counts, 1):
            numbers = table_dtype(n, len(counts), rest).itemsize // 4
            slots = count + 1 if n == 1 else slots_of(count, file.header.multiplier)
            section = file.array(at, np.dtype(np.uint8), 4 * numbers * slots)
            self._sections.append(section.view("<u4").reshape(slots, numbers))
            at += section.nbytes
        self.end = at

    def tables(self) -> KeyTables:
        """Return the tables of n-grams as stored in the file. Raises InputError for a table without an empty slot."""
        for n, section in enumerate(self._sections[1:], 2):
            parts = (section[at : at + SLOTS_AT_ONCE] for at in range(0, len(section), SLOTS_AT_ONCE))
            if all((part[:, 0] | part[:, 1]).all() for part in parts):
                raise self._no_empty_slot(n)
        numbers = sum(section.size for section in self._sections)
        tables_U = self._file.array(self._file.search, np.dtype(np.uint8), 4 * numbers).view("<u4")
        rest = int(self._file.header.kind == REST)
        return KeyTables(tables_U, np.array([len(section) for section in self._sections]), rest)

    def _no_empty_slot(self, n: int) -> InputError:
        return self._file.damaged(f"its table of {n}-grams has no empty slot")

    def levels(self) -> Iterator[Ngrams]:
        """Yield the n-grams of orders 1 to N, on the device. Raises InputError for a damaged file."""
        V, order = len(self._file.hash_V), self._file.header.order
        values = self._move(self._sections[0])[:V]
        xp = array_module(values)
        word_V, nothing_V = xp.arange(V, dtype=np.uint32), xp.zeros(V, np.int64)
        found = ProbedNgrams(word_V.astype(np.uint64), word_V, word_V, nothing_V, nothing_V)
        ids = word_V[:, None]
        yield Ngrams(ids, _probs(values), _backoffs(values))
        for n, section in enumerate(self._sections[1:], 2):
            table = self._move(section)
            keys = table[:, 0] | table[:, 1].astype(np.uint64) << np.uint64(32)
            stored = count_true(keys != 0)
            if stored == len(keys):
                raise self._no_empty_slot(n)
            suffixes, histories = xp.flatnonzero(values[:, 0] < SIGN), xp.flatnonzero(values[:, 1] != SIGN)
            slot_G, found = self._join(found, suffixes, histories, keys)
            known = xp.zeros(len(table), bool)
            known[slot_G] = True
            if count_true(known) < stored:
                unknown = xp.flatnonzero((keys != 0) & ~known)
                if missing := len(unknown) - count_true(xp.isin(keys[unknown], found.key_G)):
                    raise self._file.damaged(f"{missing:,} of its {n}-grams are not made of its {n - 1}-grams")
                slot_G = xp.asarray(_first_slots(to_host(keys), to_host(slot_G)))
            ids = xp.concatenate([ids[found.history_G], found.last_G[:, None]], axis=1)
            values = table[:, 2:][slot_G]
            yield Ngrams(ids, _probs(values), _backoffs(values) if n < order else None)

    def _join(self, found: ProbedNgrams, suffixes: Any, histories: Any, keys_C: Any) -> tuple[Any, ProbedNgrams]:
        """Return (slot_G int64, the n-grams) of the next order.

        found      the order before
        suffixes   its rows that may be suffixes
        histories  its rows that may be histories
        keys_C     the keys of the next order's table, 0 for empty slots
        """
        xp = array_module(keys_C)
        histories = histories[xp.argsort(found.suffix_G[histories])]
        middle_S, middle_H = found.history_G[suffixes], found.suffix_G[histories]
        begin_S, end_S = xp.searchsorted(middle_H, middle_S), xp.searchsorted(middle_H, middle_S, "right")
        if (pairs := int((end_S - begin_S).sum())) > MANY_PAIRS:
            name = self._file.name
            warn(f"{name!r} stores no words of n-grams, so {pairs:,} pairs are tested; convert it once to a model file")
        base_S = found.key_G[suffixes] * np.uint64(SUFFIX_FACTOR)
        term_H = _word_term(found.first_G[histories])
        slot_G, suffix_G, history_G = find_key_pairs(base_S, begin_S, end_S, term_H, keys_C, self._threads)
        suffix_G, history_G = suffixes[suffix_G], histories[history_G]
        first_G, last_G = found.first_G[history_G], found.last_G[suffix_G]
        return slot_G, ProbedNgrams(keys_C[slot_G], first_G, last_G, history_G, suffix_G)


def _first_slots(keys_C: np.ndarray, slot_G: np.ndarray) -> np.ndarray:
    """Return the slots in which KenLM finds n-grams: of slots with equal keys, the first from key % C on."""
    used = np.flatnonzero(keys_C)
    distance = (used - (keys_C[used] % np.uint64(len(keys_C))).astype(np.int64)) % len(keys_C)
    used = used[np.lexsort((distance, keys_C[used]))]
    first_G: np.ndarray = used[np.searchsorted(keys_C[used], keys_C[slot_G])]
    return first_G


def _probs(values: Any) -> Any:
    """Return the probabilities of slots: their first number, with a set sign."""
    return (values[:, 0] | SIGN).view(np.float32)


def _backoffs(values: Any) -> Any:
    return array_module(values).where(values[:, 1] == SIGN, np.uint32(0), values[:, 1]).view(np.float32)


def table_dtype(n: int, order: int, rest: bool = False) -> np.dtype:
    """Return the dtype of the slots of a table of n-grams, with or without rest costs."""
    values = ["prob"] if n == order else ["prob", "backoff", "rest"] if rest else ["prob", "backoff"]
    return np.dtype([("key", "<u8")] * (n > 1) + [(value, "<f4") for value in values])


def combine(key: Any, word: Any) -> Any:
    """Return the keys of n-grams from those of their suffixes (uint64) and their first words."""
    return key * np.uint64(SUFFIX_FACTOR) ^ _word_term(word)


def _word_term(word: Any) -> Any:
    return (word.astype(np.uint64) + np.uint64(1)) * np.uint64(WORD_FACTOR)
