"""Write a model as a KenLM binary file: probing tables or a trie. KenLM gives it the scores of the ARPA file."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy import int64, uint64

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.kenlm.binary_file import PROBING, REST, SLOT_V, UNIGRAM_V, Header, slots_of
from mgpu_ngram.core.kenlm.probing import combine, table_dtype
from mgpu_ngram.core.kenlm.trie import (
    ARRAY_VERSION,
    BACKOFF_BITS,
    PROB_BITS,
    QUANTIZER_VERSION,
    Entries,
    Packing,
    Pointers,
    table_bytes,
)
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.output import Sink, new_file
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.build import index_of, negative
from mgpu_ngram.engine.trie.quantize import bin_centers, nearest_codes
from mgpu_ngram.engine.trie.signed_backoffs import signed_backoffs
from mgpu_ngram.kernels.common.murmur import murmur_hashes
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import load_u64, store_u64
from mgpu_ngram.kernels.score.score_by_keys import SIGN
from mgpu_ngram.kernels.trie.find_children import find_children
from mgpu_ngram.kernels.trie.find_key_pairs import place_keys

MULTIPLIER = 1.5  # slots per n-gram, KenLM's default
NOT_PACKED = Packing()
ZEROS = np.array([-0.0, 0.0], np.float32)  # the backoffs of the first codes: no history, and a history without mass


@dataclass
class TrieOrder:
    """The n-grams of one order of a trie, in its order.

    first_G    (G,) uint32, the first word
    suffix_G   (G,) int64, the suffix, numbered within the order below
    prob_G     (G,) float32, with a set sign
    backoff_G  (G,) float32, -0 for n-grams that are not a history; None for the highest order
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
    packing: Packing = NOT_PACKED,
    lower: Sequence[BackoffModel] = (),
    unk_added: bool | None = None,
) -> int:
    """Write a KenLM binary model; return its size in bytes.

    multiplier  slots for each n-gram of a probing model, above 1
    with_words  False: store only the hashes of the words
    packing     packing of a trie
    lower       models of orders 1 to N - 1, whose probabilities become the rest costs of a probing model
    unk_added   whether the ARPA file lacks <unk>, which KenLM then does not count in a probing model; None: unknown

    Raises InputError for a model of order 1 or without backoffs and for `lower` models of other orders or words, and
    RunError when the disk is full. KenLM reads orders up to 6 unless it was compiled for more.
    """
    model.check_scores()
    if model.trie.order < 2:
        raise InputError(
            "the model has order 1, but KenLM's binary models have order 2 or more; write an ARPA file instead"
        )
    trie = model.trie.decoded()
    counts = tuple(int(count) for count in np.diff(trie.starts))
    probing, costs = format == "kenlm-probing", RestCosts(model, lower) if lower else None
    kind = packing.kind if not probing else REST if costs else PROBING
    if probing and unk_added:
        counts = (counts[0] - 1, *counts[1:])
    orders = _orders(trie, unk_added)
    with new_file(path) as sink:
        sink.append(Header(kind, counts, multiplier, with_words).pack())
        if probing:
            word_of = _write_probing(sink, orders, counts, model.words, multiplier, costs)
        else:
            word_of = _write_trie(sink, trie, orders, counts, model.words, packing)
        if with_words:
            sink.append(_strings(model.words, word_of))
        return sink.size_bytes


def _orders(trie: Trie, unk_added: bool | None) -> Iterator[TrieOrder]:
    """Yield the orders 1 to N of a trie in host memory."""
    backoff_M, prob_G = signed_backoffs(trie, unk_added), negative(trie.prob_G)
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
        yield TrieOrder(first_G, suffix_G, prob_G[begin:end], backoff_G)


def _write_probing(
    sink: Sink,
    orders: Iterator[TrieOrder],
    counts: tuple[int, ...],
    words: Words,
    multiplier: float,
    costs: RestCosts | None,
) -> np.ndarray:
    """Write the tables of a probing model. Return the word of each of its ids, (V,)."""
    V = len(words)
    hash_V = murmur_hashes(words.offsets_V, words.data)
    table = np.zeros(slots_of(counts[0], multiplier), SLOT_V)
    slots = place_keys(hash_V[1:], len(table))
    table["hash"][slots], table["id"][slots] = hash_V[1:], np.arange(1, V)
    sink.append(struct.pack("<2I", 0, V))
    sink.append(table.view(np.uint8))
    key_G = np.arange(V, dtype=np.uint64)
    order = next(orders)
    for n in range(1, len(counts) + 1):
        after = next(orders, None)
        prob_G = order.prob_G.copy()
        if after:  # a suffix has a cleared sign
            prob_G[after.suffix_G] = np.abs(prob_G[after.suffix_G])
        dtype = table_dtype(n, len(counts), rest=bool(costs))
        if n == 1:
            table, slots = np.zeros(counts[0] + 1, dtype), np.arange(V)
        else:
            key_G = combine(key_G[order.suffix_G], order.first_G)
            table = np.zeros(slots_of(counts[n - 1], multiplier), dtype)
            slots = place_keys(key_G, len(table))
            table["key"][slots] = key_G
        table["prob"][slots] = prob_G
        if order.backoff_G is not None:
            table["backoff"][slots] = order.backoff_G
            if costs:
                table["rest"][slots] = costs.of(order)
        sink.append(table.view(np.uint8))
        if after:
            order = after
    return np.arange(V)


class RestCosts:
    """The log10 probability of each n-gram under the model of its order (Heafield et al. 2012, Language Model Rest
    Costs and Space-Efficient Storage)."""

    def __init__(self, model: BackoffModel, lower: Sequence[BackoffModel]):
        """Look the words up in the lower models. Raises InputError for models of other orders or words."""
        found, asked = [model.trie.order for model in lower], list(range(1, model.trie.order))
        if found != asked:
            raise InputError(
                f"rest costs are given by models of orders {found or 'none'}, but a model of order {model.trie.order} "
                f"needs orders {asked}"
            )
        self._replicas, self._ids = [], []
        for other in lower:
            ids_V = np.array([other.words.id(word) for word in model.words], np.int64)
            if len(unknown := np.flatnonzero(ids_V[1:] == 0)):
                raise InputError(
                    f"the model of order {other.trie.order} lacks the word {model.words.word(unknown[0] + 1)!r}; all "
                    "models of rest costs need the same words"
                )
            self._replicas.append(Replica(other, "cpu", "btree"))
            self._ids.append(ids_V)
        self._words_Gn = np.empty((0, 0), np.uint32)

    def of(self, order: TrieOrder) -> np.ndarray:
        """Return (G,) float32, the rest costs of an order below N. Call it for orders 1, 2, ... in turn."""
        first_G1 = order.first_G[:, None]
        n = self._words_Gn.shape[1] + 1
        self._words_Gn = first_G1 if n == 1 else np.concatenate([first_G1, self._words_Gn[order.suffix_G]], axis=1)
        replica, ids_Gn = self._replicas[n - 1], self._ids[n - 1][self._words_Gn]
        scores = replica.score_ids(ids_Gn.ravel(), np.arange(0, ids_Gn.size + 1, n), bos=False, eos=False)
        cost_G = scores.prob_T.reshape(-1, n + 1)[:, n - 1]
        return cost_G + np.float32(0) if n == 1 else cost_G  # KenLM keeps the 0 of <s>, as in `_orders`


def _write_trie(
    sink: Sink, trie: Trie, orders: Iterator[TrieOrder], counts: tuple[int, ...], words: Words, packing: Packing
) -> np.ndarray:
    """KenLM's ids are ranks of the words' hashes. Its n-grams are sorted by their last word, then the one before."""
    V = counts[0]
    hash_V = murmur_hashes(words.offsets_V, words.data)
    word_of = np.concatenate([[0], 1 + np.argsort(hash_V[1:], kind="stable")])
    id_of = np.empty(V, np.uint64)
    id_of[word_of] = np.arange(V)
    sink.append(struct.pack("<Q", V - 1))
    sink.append(hash_V[word_of[1:]].view(np.uint8))
    sink.append(bytes(8))  # a slot that KenLM keeps for <unk>
    centers = _write_centers(sink, trie, packing) if packing.prob_bits else [None] * len(counts)
    rank_G = id_of  # of the n-grams of an order among KenLM's
    before: Sorted | None = None  # an order waits for the next one, which has its children
    for order, order_centers in zip(orders, centers, strict=True):
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
        word_G, prob_G = id_of[order.first_G[row_G]], order.prob_G[row_G]
        before = Sorted(V, before is None, word_G, prob_G, backoff_G, packing, order_centers)
    if before:
        before.append_to(sink, None)
    return word_of


@dataclass(frozen=True)
class Centers:
    """The values of an order's codes. The first two centers of backoffs are -0 and 0 (lm/quantize.cc, Train).

    prob     (2**prob_bits,) float32
    backoff  (2**backoff_bits,) float32; None for the highest order
    """

    prob: np.ndarray
    backoff: np.ndarray | None


def _write_centers(sink: Sink, trie: Trie, packing: Packing) -> list[Centers | None]:
    """Write the values of codes; return those of each order, None for order 1, which has none."""
    found: list[Centers | None] = [None]
    sink.append(bytes([QUANTIZER_VERSION, packing.prob_bits, packing.backoff_bits]).ljust(8, b"\0"))
    for n, (begin, end) in enumerate(pairwise(trie.starts[1:]), 2):
        prob, backoff = bin_centers(negative(trie.prob_G[begin:end]), 1 << packing.prob_bits), None
        sink.append(prob.view(np.uint8))
        if n < trie.order:
            backoffs = trie.backoff_M[begin:end]
            means = bin_centers(backoffs[backoffs != 0], (1 << packing.backoff_bits) - len(ZEROS))
            backoff = np.concatenate([ZEROS, means])
            sink.append(backoff.view(np.uint8))
        found.append(Centers(prob, backoff))
    return found


@dataclass
class Sorted:
    """An order of KenLM's trie.

    word_G   (G,) uint64, KenLM's ids of the first words
    centers  centers of the codes; None: values are written
    """

    symbols: int
    unigrams: bool
    word_G: np.ndarray
    prob_G: np.ndarray
    backoff_G: np.ndarray | None
    packing: Packing
    centers: Centers | None

    def append_to(self, sink: Sink, next_G: np.ndarray | None) -> None:
        """Write the order; next_G (G + 1,) int64: the first child of each n-gram, and the end of the last one's."""
        count = len(self.word_G)
        if self.unigrams:
            table = np.zeros(count + 2, UNIGRAM_V)
            table["prob"][:count], table["backoff"][:count], table["next"][: count + 1] = (
                self.prob_G, self.backoff_G, next_G
            )  # fmt: skip
            sink.append(table.view(np.uint8))
            return
        fields = [(self.symbols.bit_length(), self.word_G), *self._values()]
        if next_G is not None:
            most = self.packing.pointer_bits
            pointers = Pointers.chopping(count, int(next_G[-1]), most or 0)
            if most is not None:
                _append_table(sink, pointers, most, next_G)
            fields.append((pointers.inline, next_G & ((1 << pointers.inline) - 1)))
        entries = Entries(0, sum(bits for bits, _ in fields), count)
        data, begin = np.zeros(entries.end, np.uint8), 0
        for bits, values in fields:
            _pack(data, begin, entries.bits, values.astype(np.uint64))
            begin += bits
        sink.append(data)

    def _values(self) -> list[tuple[int, np.ndarray]]:
        """Return the bits of the values of an n-gram, as they follow each other, and the values as integers."""
        if not self.centers:
            values = [(PROB_BITS, self.prob_G.view(np.uint32) & ~SIGN)]
            return values if self.backoff_G is None else [*values, (BACKOFF_BITS, self.backoff_G.view(np.uint32))]
        probs = self.packing.prob_bits, nearest_codes(self.prob_G, self.centers.prob)
        if self.backoff_G is None or self.centers.backoff is None:
            return [probs]
        means = self.centers.backoff[len(ZEROS) :]
        codes = np.where(
            self.backoff_G == 0, ~np.signbit(self.backoff_G), len(ZEROS) + nearest_codes(self.backoff_G, means)
        )
        return [(self.packing.backoff_bits, codes), probs]


def _append_table(sink: Sink, pointers: Pointers, most: int, next_G: np.ndarray) -> None:
    """Write where the high bits of pointers grow (lm/bhiksha.hh, WriteNext)."""
    table = np.searchsorted(next_G >> pointers.inline, np.arange(pointers.values)).astype("<u8")
    begin = -sink.size_bytes % 8 + 8
    section = np.zeros(table_bytes(pointers), np.uint8)
    section[:2] = ARRAY_VERSION, most
    section[begin : begin + table.nbytes] = table.view(np.uint8)
    sink.append(section)


def _strings(words: Words, word_of: np.ndarray) -> bytes:
    """Return words in an order, each with a NUL byte after it."""
    return b"".join(words.symbol(v) + b"\0" for v in word_of.tolist())


@njit(nogil=True, cache=True)
def _pack(data, begin, stride, values):
    """Put values[i], of 57 bits at most, into the bits of data from bit begin + i * stride on, which are 0."""
    for i in range(len(values)):
        at = begin + i * stride
        word = load_u64(data, at >> 3) | values[i] << uint64(at & 7)
        store_u64(data, at >> 3, word)
