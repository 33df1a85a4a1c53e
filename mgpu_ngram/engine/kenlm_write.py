"""Write a model as KenLM's binary files: probing tables, or a trie. KenLM scores them as it scores the ARPA file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy import int64, uint64

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.kenlm_file import PROBING, SLOT_V, TRIE, UNIGRAM, Header, slots_of
from mgpu_ngram.core.kenlm_probing import PROBING_UNIGRAM, combine, table_dtype
from mgpu_ngram.core.kenlm_trie import BACKOFF_BITS, PROB_BITS, SIGN, Entries, Pointers
from mgpu_ngram.core.model_file import BackoffModel
from mgpu_ngram.core.output import Sink, new_file
from mgpu_ngram.core.trie import Trie
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.states import signed_backoffs
from mgpu_ngram.engine.trie import index_of, negative
from mgpu_ngram.kernels.common.murmur import murmur_hashes
from mgpu_ngram.kernels.compile import njit
from mgpu_ngram.kernels.intrinsics import load_u64, store_u64
from mgpu_ngram.kernels.trie.find_children import find_children
from mgpu_ngram.kernels.trie.find_key_pairs import place_keys

MULTIPLIER = 1.5  # slots per n-gram, KenLM's default


@dataclass
class Order:
    """The n-grams of one order of a trie, in its order.

    first_G    (G,) uint32, the first word
    suffix_G   (G,) int64, the suffix, counted within the order before
    prob_G     (G,) float32, with a set sign
    backoff_G  (G,) float32, -0 for n-grams that are no history; None for the highest order
    """

    first_G: np.ndarray
    suffix_G: np.ndarray
    prob_G: np.ndarray
    backoff_G: np.ndarray | None


def write_kenlm(
    path: str | Path,
    model: BackoffModel,
    format: Literal["kenlm-probing", "kenlm-trie"],
    multiplier: float = MULTIPLIER,
    with_words: bool = True,
) -> int:
    """Write a KenLM binary model; return its size in bytes.

    multiplier  slots for each n-gram of a probing model, over 1
    with_words  False: it holds the hashes of its words alone

    Raises InputError for a model of order 1 or without backoffs, and RunError when the disk is full. KenLM reads orders
    up to 6 unless it was compiled for more.
    """
    model.check_scores()
    if model.trie.order < 2:
        raise InputError("the model has order 1, but KenLM's binary models have order 2 or more; write an ARPA file")
    trie = model.trie.decoded()
    counts = tuple(int(count) for count in np.diff(trie.starts))
    probing = format == "kenlm-probing"
    with new_file(path) as sink:
        sink.append(Header(PROBING if probing else TRIE, counts, multiplier, with_words).pack())
        if probing:
            word_of = _write_probing(sink, trie, counts, model.words, multiplier)
        else:
            word_of = _write_trie(sink, trie, counts, model.words)
        if with_words:
            sink.append(_strings(model.words, word_of))
        return sink.size_bytes


def _orders(trie: Trie) -> Iterator[Order]:
    """Yield the orders 1 to N of a trie in host memory."""
    backoff_M, prob_G = signed_backoffs(trie), negative(trie.prob_G)
    words = np.arange(trie.symbols)
    first_G, suffix_G = words.astype(np.uint32), np.zeros(len(words), np.int64)
    index = index_of(trie)
    for n in range(1, trie.order + 1):
        begin, end = trie.starts[n - 1 : n + 1]
        if n > 1:
            before = trie.starts[n - 2]
            parent_G = np.repeat(
                np.arange(begin - before), np.diff(trie.first_child_M[before : begin + 1].astype(int64))
            )
            word_G = np.ascontiguousarray(trie.word_G[begin:end])
            first_G = first_G[parent_G]
            if n == 2:
                suffix_G = word_G.astype(np.int64)
            else:  # the child of the history's suffix
                suffix_G = find_children(*index, suffix_G[parent_G] + trie.starts[n - 3], word_G) - before
        else:  # KenLM keeps the 0 of <s> that lmplz writes, without a sign
            prob_G[:end] += np.float32(0)
        backoff_G = backoff_M[begin:end] if n < trie.order else None
        yield Order(first_G, suffix_G, prob_G[begin:end], backoff_G)


def _write_probing(sink: Sink, trie: Trie, counts: tuple[int, ...], words: Words, multiplier: float) -> np.ndarray:
    """Return the word of each id, here and below."""
    V = counts[0]
    hash_V = murmur_hashes(words.offsets_V, words.data)
    table = np.zeros(slots_of(V, multiplier), SLOT_V)
    slots = place_keys(hash_V[1:], len(table))
    table["hash"][slots], table["id"][slots] = hash_V[1:], np.arange(1, V)
    sink.append(struct.pack("<2I", 0, V))
    sink.append(table.view(np.uint8))
    key_G = np.arange(V, dtype=np.uint64)
    orders = _orders(trie)
    order = next(orders)
    for n in range(1, len(counts) + 1):
        after = next(orders, None)
        prob_G = order.prob_G.copy()
        if after:  # a suffix has a cleared sign
            prob_G[after.suffix_G] = np.abs(prob_G[after.suffix_G])
        if n == 1:
            table, slots = np.zeros(V + 1, PROBING_UNIGRAM), np.arange(V)
        else:
            key_G = combine(key_G[order.suffix_G], order.first_G)
            table = np.zeros(slots_of(counts[n - 1], multiplier), table_dtype(longest=after is None))
            slots = place_keys(key_G, len(table))
            table["key"][slots] = key_G
        table["prob"][slots] = prob_G
        if order.backoff_G is not None:
            table["backoff"][slots] = order.backoff_G
        sink.append(table.view(np.uint8))
        if after:
            order = after
    return np.arange(V)


def _write_trie(sink: Sink, trie: Trie, counts: tuple[int, ...], words: Words) -> np.ndarray:
    """KenLM's ids are ranks of the words' hashes. Its n-grams are sorted by their last word, then the one before."""
    V = counts[0]
    hash_V = murmur_hashes(words.offsets_V, words.data)
    word_of = np.concatenate([[0], 1 + np.argsort(hash_V[1:], kind="stable")])
    id_of = np.empty(V, np.uint64)
    id_of[word_of] = np.arange(V)
    sink.append(struct.pack("<Q", V - 1))
    sink.append(hash_V[word_of[1:]].view(np.uint8))
    sink.append(bytes(8))  # a slot that KenLM keeps for <unk>
    rank_G = id_of  # of the n-grams of an order among KenLM's
    before: Sorted | None = None  # an order waits for the next one, which has its children
    for order in _orders(trie):
        if before is None:
            row_G = word_of
        else:
            parent_G = rank_G[order.suffix_G]
            row_G = np.argsort(parent_G << np.uint64(V.bit_length()) | id_of[order.first_G])
            before.append_to(
                sink, np.concatenate([[0], np.cumsum(np.bincount(parent_G.view(int64), minlength=len(rank_G)))])
            )
            rank_G = np.empty(len(row_G), np.uint64)
            rank_G[row_G] = np.arange(len(row_G))
        backoff_G = None if order.backoff_G is None else order.backoff_G[row_G]
        before = Sorted(V, before is None, id_of[order.first_G[row_G]], order.prob_G[row_G], backoff_G)
    if before:
        before.append_to(sink, None)
    return word_of


@dataclass
class Sorted:
    """An order of KenLM's trie.

    word_G  (G,) uint64, KenLM's ids of the first words
    """

    symbols: int
    unigrams: bool
    word_G: np.ndarray
    prob_G: np.ndarray
    backoff_G: np.ndarray | None

    def append_to(self, sink: Sink, next_G: np.ndarray | None) -> None:
        """Write the order; next_G (G + 1,) int64: the first child of each n-gram, and the end of the last one's."""
        count, word_bits = len(self.word_G), self.symbols.bit_length()
        if self.unigrams:
            table = np.zeros(count + 2, UNIGRAM)
            table["prob"][:count], table["backoff"][:count], table["next"][: count + 1] = (
                self.prob_G, self.backoff_G, next_G
            )  # fmt: skip
            sink.append(table.view(np.uint8))
            return
        fields = [(word_bits, self.word_G), (PROB_BITS, self.prob_G.view(np.uint32) & ~SIGN)]
        if self.backoff_G is not None and next_G is not None:
            fields.append((BACKOFF_BITS, self.backoff_G.view(np.uint32)))
            fields.append((Pointers(count, int(next_G[-1])).inline, next_G))
        entries = Entries(0, sum(bits for bits, _ in fields), count)
        data, begin = np.zeros(entries.end, np.uint8), 0
        for bits, values in fields:
            _pack(data, begin, entries.bits, values.astype(np.uint64))
            begin += bits
        sink.append(data)


def _strings(words: Words, word_of: np.ndarray) -> bytes:
    """Return words in an order, each with a NUL byte after it."""
    return b"".join(words.symbol(v) + b"\0" for v in word_of.tolist())


@njit(nogil=True, cache=True)
def _pack(data, begin, stride, values):
    """Put values[i], of 57 bits at most, into the bits of data from bit begin + i * stride on, which are 0."""
    for i in range(len(values)):
        at = begin + i * stride
        word = load_u64(data, at >> 3) | values[i] << uint64(at & 7)  # type: ignore[call-arg]
        store_u64(data, at >> 3, word)  # type: ignore[call-arg]
