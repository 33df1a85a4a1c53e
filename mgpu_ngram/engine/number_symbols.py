"""Between the two passes: give every symbol of the merged vocabulary its global id."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.shards import deal_words, num_shards, split_words
from mgpu_ngram.core.vocabulary import (
    SPECIALS,
    HashCollision,
    LocalVocabulary,
    SpecialInText,
    Vocabulary,
    words_from_arrow,
)
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.lexicon import Lexicon
from mgpu_ngram.engine.vocabulary import LmplzText, merge_vocabularies, move_vocabulary, rows_at_once, special_hashes
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.compile import njit
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.count.word_keys import word_keys
from mgpu_ngram.kernels.dispatch import array_module, to_host

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

RADIX_BYTES = 64  # bytes by which radix sort orders words of equal count; longer ties are few
UNKNOWN_ID = 0  # of <unk>
NOWHERE = (1 << 31) - 1  # first source of a word that no text has, behind those of all others
DECIMALS = 10  # digits of a token id, at most
MAX_RANGES = 1 << 16  # of words that are sorted one after another
SAMPLED = 64  # words for each range, from which its limits are taken
KEYS_AT_ONCE = 1 << 16  # words whose ranges are found at once


def number_symbols(
    merged: LocalVocabulary,
    unit: str,
    sentence_markers: bool,
    seed: int,
    device: str,
    lmplz: LmplzText | None = None,
) -> tuple[Lexicon, Vocabulary]:
    """Give every symbol of the corpus its id: see `Vocabulary` for the order.

    merged  every symbol of the corpus once; it is moved to `device`, where the work runs
    lmplz   set if the text was read as lmplz reads it; None: as a count reads it

    Returns (the lexicon for counting, on the device; the vocabulary for writing, in host memory). Raises
    HashCollision if a word has the hash of a special, SpecialInText if `lmplz` refuses a word, and RunError if
    there are more symbols than ids.
    """
    ids_as_words = unit == "id" and lmplz is not None
    merged, inside_V = move_vocabulary(merged, device), None
    if lmplz is not None and lmplz.inside is not None:
        merged, inside_V = _join_vocabulary(merged, lmplz.inside, seed)
    order = _rows_in_order(merged, unit, ids_as_words)
    ordered = _ordered_symbols(merged, order, inside_V, unit, ids_as_words, sentence_markers, seed, lmplz)
    del order
    lexicon = _lexicon_of(ordered, unit, lmplz)
    return lexicon, _vocabulary_of(ordered, "word" if ids_as_words else unit, ids_as_words)


class _OrderedSymbols(NamedTuple):
    """The symbols of a corpus: ids 0 to K - 1 are the specials, the next ones rows of `merged`.

    rows_I    rows by id - K
    unknown   rows of words that have the id of <unk>
    counts_V  (V,) int64, by id
    tokens    symbols in the corpus, including sentence markers
    """

    merged: LocalVocabulary
    specials: _Specials
    rows_I: Any
    unknown: Any
    counts_V: Any
    tokens: int


def _ordered_symbols(
    merged: LocalVocabulary, rows_I: Any, inside_V: Any, unit: str, ids_as_words: bool, sentence_markers: bool,
    seed: int, lmplz: LmplzText | None,
) -> _OrderedSymbols:  # fmt: skip
    """Return the symbols in the order of their ids.

    rows_I    the rows of `merged` in order
    inside_V  (V,) bool, words of a given vocabulary; None: all
    """
    specials = _find_specials(merged, unit, seed) if unit == "word" or ids_as_words else NO_SPECIALS
    if lmplz is not None and not lmplz.skip_symbols:
        _refuse_specials(specials, lmplz.refused)
    for row in specials.rows.values():
        rows_I = rows_I[rows_I != row]
    unknown = rows_I[:0]
    if inside_V is not None:
        unknown, rows_I = rows_I[~inside_V[rows_I]], rows_I[inside_V[rows_I]]
        specials.places_K3[UNKNOWN_ID, 0] += int(merged.counts_V[unknown].sum())
    tokens = merged.tokens
    if sentence_markers:
        specials.places_K3[1:, 0] += merged.lines, merged.lines - merged.unfinished_lines
        tokens += 2 * merged.lines - merged.unfinished_lines
    V = len(specials.hash_K) + len(rows_I)
    if V >= 2**31 - 1:
        raise RunError(f"the corpus has {V:,} distinct symbols but ids hold {2**31 - 2:,}; lowercase it or cut it")
    counts_V = _after(specials.places_K3[:, 0], merged.counts_V, rows_I)
    return _OrderedSymbols(merged, specials, rows_I, unknown, counts_V, tokens)


def _lexicon_of(ordered: _OrderedSymbols, unit: str, lmplz: LmplzText | None) -> Lexicon:
    """Return the ids by hash, and the shards of words, on the device."""
    merged, specials, rows_I, unknown, counts_V, tokens = ordered
    xp, K, V = array_module(counts_V), len(specials.hash_K), len(counts_V)
    ids_R = xp.empty(len(merged.hash_V), np.int32)  # by row
    ids_R[rows_I] = xp.arange(K, V, dtype=np.int32)
    if len(unknown):
        ids_R[unknown] = UNKNOWN_ID
    for k, row in specials.rows.items():
        ids_R[row] = k
    hash_H, ids_H = _by_hash(merged.hash_V, ids_R)
    del ids_R
    absent = sorted((int(h), k) for k, h in enumerate(specials.hash_K) if k not in specials.rows)
    hash_A = np.array([h for h, _ in absent], np.uint64)
    at_A = to_host(xp.searchsorted(hash_H, xp.asarray(hash_A))).tolist()
    hash_H = _with_inserted(hash_H, at_A, hash_A)
    ids_H = _with_inserted(ids_H, at_A, np.array([k for _, k in absent], np.int32))
    S = num_shards(tokens, unit) if lmplz is None else lmplz.num_shards(tokens)
    split = () if lmplz is None else split_words(counts_V, S)
    falls = unit == "word" or lmplz is not None  # see `Vocabulary`: the counts behind the specials
    shard_V = deal_words(counts_V, S, K + len(split) if falls else None, split)
    return Lexicon(unit, V, tokens, hash_H, ids_H, S, shard_V, split)


def _by_hash(hash_R: Any, ids_R: Any) -> tuple[Any, Any]:
    """Return the hashes, rising, and their ids. Merged vocabularies are in this order; that of one chunk is not."""
    xp = array_module(hash_R)
    if bool((hash_R[1:] > hash_R[:-1]).all()):
        return hash_R, ids_R
    hash_H, ids_H = radix_sort(xp.stack([hash_R, ids_R.astype(np.uint64)]), 64)
    return hash_H, ids_H.astype(np.int32)


def _with_inserted(array: Any, at_A: Sequence[int], values_A: np.ndarray) -> Any:
    """Return a copy of an array with values inserted before some places, which rise."""
    xp = array_module(array)
    cuts = [0, *at_A, len(array)]
    pieces = [array[a:b] for a, b in itertools.pairwise(cuts)]
    inserted = [xp.asarray(values_A[i : i + 1]) for i in range(len(at_A))]
    return xp.concatenate([*itertools.chain.from_iterable(zip(pieces, inserted, strict=False)), pieces[-1]])


def _vocabulary_of(ordered: _OrderedSymbols, unit: str, ids_as_words: bool) -> Vocabulary:
    """Return the vocabulary, in host memory."""
    merged, specials, rows_I, _, counts_V, _ = ordered
    words = SPECIALS[: len(specials.hash_K)]
    if ids_as_words or len(rows_I) > rows_at_once(rows_I):
        offsets_V, data = _words_in_pieces(merged, rows_I, words, ids_as_words)
    else:
        offsets_V, data = _words_at_once(merged, rows_I, words)
    places = (
        to_host(_after(specials.places_K3[:, i], first_V, rows_I))
        for i, first_V in ((1, merged.first_source_V), (2, merged.first_offset_V))
    )
    return Vocabulary(unit, offsets_V, data, to_host(counts_V), *places)


def _words_at_once(merged: LocalVocabulary, rows_I: Any, words: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and bytes of `words` and of some rows, in host memory. Their device joins them: new host
    memory is slow to write.
    """
    offsets_R, data_R = take_words(merged.offsets_V, merged.data, rows_I)
    xp, ends = array_module(data_R), np.cumsum([0, *map(len, words)])
    offsets_V = xp.concatenate([xp.asarray(ends[:-1]), offsets_R + ends[-1]])
    data = xp.concatenate([xp.asarray(np.frombuffer(b"".join(words), np.uint8)), data_R])
    return to_host(offsets_V), to_host(data)


def _words_in_pieces(
    merged: LocalVocabulary, rows_I: Any, words: Sequence[bytes], are_ids: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, with little memory beside the result. Token ids become decimals."""
    head = np.frombuffer(b"".join(words), np.uint8)
    symbol_bytes = DECIMALS * len(rows_I) if are_ids else len(merged.data)
    offsets_V = np.zeros(len(words) + len(rows_I) + 1, np.int64)
    data = np.empty(len(head) + symbol_bytes, np.uint8)  # unused memory is free
    row, end = len(words), len(head)
    offsets_V[1 : row + 1], data[:end] = np.cumsum([len(word) for word in words]), head
    step = rows_at_once(rows_I)
    for first in range(0, len(rows_I), step):
        found = take_words(merged.offsets_V, merged.data, rows_I[first : first + step])
        offsets_R, data_R = (to_host(a) for a in found)
        if are_ids:
            decimals = pa.array(data_R.view("<u4")).cast(pa.large_string()).cast(pa.large_binary())
            offsets_R, data_R = words_from_arrow(decimals)
        last, stop = row + len(offsets_R) - 1, end + len(data_R)
        offsets_V[row + 1 : last + 1], data[end:stop] = offsets_R[1:] + end, data_R
        row, end = last, stop
    return offsets_V, data[:end]


def _join_vocabulary(merged: LocalVocabulary, inside: Words, seed: int) -> tuple[LocalVocabulary, Any]:
    """Return (the symbols of a text and of a given vocabulary, (V,) bool: those of the vocabulary)."""
    xp = array_module(merged.hash_V)
    words = [word for word in map(inside.symbol, range(len(inside))) if word not in SPECIALS]
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1].astype(np.uint32)
    text = xp.asarray(np.frombuffer(bytearray(b" ".join(words)), np.uint8))
    V = len(words)
    given = LocalVocabulary(
        hash_words(text, xp.asarray(starts), seed), xp.asarray(np.cumsum([0, *map(len, words)])),
        xp.asarray(np.frombuffer(bytearray(b"".join(words)), np.uint8)), xp.zeros(V, np.int64),
        xp.full(V, NOWHERE, np.int32), xp.zeros(V, np.int64),
    )  # fmt: skip
    merged = merge_vocabularies(merged, given)
    unseen_V = merged.first_source_V == NOWHERE
    merged.first_source_V[unseen_V] = merged.first_offset_V[unseen_V] = -1
    inside_V = inside.ids(to_host(merged.offsets_V), to_host(merged.data)) > 0
    return merged, xp.asarray(inside_V)


class _Specials(NamedTuple):
    """The K specials of a vocabulary, 0 or 3; a text may hold them as words, too.

    hash_K     (K,) uint64, in host memory
    places_K3  (K, 3) int64, in host memory: count, first source and first offset of each as a word of the text; 0, -1,
               -1 if the text does not contain it
    rows       number of a special -> its row in the merged vocabulary, (1,); of those that the text contains
    """

    hash_K: np.ndarray
    places_K3: np.ndarray
    rows: dict[int, Any]


NO_SPECIALS = _Specials(np.empty(0, np.uint64), np.empty((0, 3), np.int64), {})


def _find_specials(merged: LocalVocabulary, unit: str, seed: int) -> _Specials:
    """Find <unk>, <s> and </s> among the words of a text. Raises HashCollision if another word has a hash of theirs."""
    xp = array_module(merged.hash_V)
    found = _Specials(special_hashes(unit, seed, xp), np.array([(0, -1, -1)] * len(SPECIALS), np.int64), {})
    for k, h in enumerate(found.hash_K):
        row = xp.flatnonzero(merged.hash_V == h)  # one at most
        if not len(row):
            continue
        if unit == "word" and to_host(take_words(merged.offsets_V, merged.data, row)[1]).tobytes() != SPECIALS[k]:
            raise HashCollision(seed)
        places = merged.counts_V, merged.first_source_V, merged.first_offset_V
        found.places_K3[k] = [int(array[row][0]) for array in places]
        found.rows[k] = row
    return found


def _refuse_specials(specials: _Specials, refused: Sequence[bytes]) -> None:
    """Raise SpecialInText for the first of the refused specials that the text contains."""
    found = [(*place, word) for (_, *place), word in zip(specials.places_K3.tolist(), SPECIALS, strict=False)]
    if first := min((f for f in found if f[0] >= 0 and f[-1] in refused), default=None):
        raise SpecialInText(*first)


def _after(head: np.ndarray, array: Any, rows_I: Any) -> Any:
    """Return `head`, in host memory, followed by some rows of an array, on its device and with its dtype."""
    xp, K = array_module(array), len(head)
    joined = xp.empty(K + len(rows_I), array.dtype)
    joined[:K] = xp.asarray(head, array.dtype)
    step = rows_at_once(rows_I)
    for first in range(0, len(rows_I), step):  # without a whole copy beside the result
        joined[K + first : K + first + step] = array[rows_I[first : first + step]]
    return joined


def _rows_in_order(merged: LocalVocabulary, unit: str, ids_as_words: bool) -> Any:
    """Return row numbers. Words: by falling count, then by bytes. Token ids as words: by falling count, then by value.
    Bytes and other token ids: by value.
    """
    xp, V = array_module(merged.hash_V), len(merged.counts_V)
    if unit != "word":
        rows_V = xp.argsort(merged.data if unit == "byte" else merged.data.view("<u4"))
        return rows_V[xp.argsort(-merged.counts_V[rows_V], kind="stable")] if ids_as_words else rows_V
    ranges = -(-V // rows_at_once(merged.hash_V))
    if ranges <= 1:
        return _sorted_words(merged, xp.arange(V))
    range_V = _word_ranges(merged, min(ranges, MAX_RANGES))
    rows_V, at = np.empty(V, np.int64), 0
    for r in range(int(range_V.max()) + 1):
        rows_R = np.flatnonzero(range_V == r)
        rows_V[at : at + len(rows_R)] = _sorted_words(merged, rows_R)
        at += len(rows_R)
    return rows_V


def _word_ranges(merged: LocalVocabulary, ranges: int) -> np.ndarray:
    """Return (V,) uint16: the range of each word in the order of `_sorted_words`. Ranges are about equally large.

    A sample gives the limits of ranges. They compare counts and the first 16 bytes, so equal ones share a range.
    """
    V = len(merged.counts_V)
    sample_S = np.linspace(0, V - 1, min(V, SAMPLED * ranges)).astype(np.int64)
    keys_S = _first_keys(merged, sample_S)
    keys_S = keys_S[:, np.lexsort(keys_S[::-1])]
    limits = keys_S[:, np.arange(1, ranges) * len(sample_S) // ranges]
    range_V = np.empty(V, np.uint16)
    for first in range(0, V, KEYS_AT_ONCE):
        rows_K = np.arange(first, min(first + KEYS_AT_ONCE, V))
        _find_ranges(_first_keys(merged, rows_K), limits, range_V[first : first + KEYS_AT_ONCE])
    return range_V


def _first_keys(merged: LocalVocabulary, rows_K: np.ndarray) -> np.ndarray:
    """Return (3, K) uint64 that sort words by falling count, then by their first 16 bytes."""
    counts_K = ~merged.counts_V[rows_K].view(np.uint64)
    return np.concatenate([counts_K[None], word_keys(merged.offsets_V, merged.data, rows_K, 0)])


@njit(nogil=True, cache=True)
def _find_ranges(keys, limits, range_K):
    """Set the number of limits (3, L), rising, that are not above each key (3, K)."""
    for k in range(keys.shape[1]):
        low, high = 0, limits.shape[1]
        while low < high:
            middle = (low + high) // 2
            c = 0
            while c < 2 and keys[c, k] == limits[c, middle]:
                c += 1
            if limits[c, middle] <= keys[c, k]:
                low = middle + 1
            else:
                high = middle
        range_K[k] = low


def _sorted_words(merged: LocalVocabulary, rows_V: Any) -> Any:
    """Return row numbers by the falling counts of their words, then by bytes. Overwrites `rows_V`."""
    xp = array_module(rows_V)
    # Positions in rows_V whose order is not final, and the number of the group of each: words that tie so far.
    at_K, group_K = xp.arange(len(rows_V)), ~merged.counts_V[rows_V].view(np.uint64)
    for first_byte in range(0, RADIX_BYTES, 16):
        rows_K = rows_V[at_K]
        keys = word_keys(merged.offsets_V, merged.data, rows_K, first_byte)
        columns = radix_sort(xp.concatenate([group_K[None], keys, rows_K.view(np.uint64)[None]]), 3 * 64)
        rows_V[at_K] = columns[3].view(np.int64)
        new_K = xp.ones(len(at_K), bool)
        new_K[1:] = (columns[:3, 1:] != columns[:3, :-1]).any(axis=0)
        tied_K = ~new_K
        tied_K[:-1] |= ~new_K[1:]
        at_K, group_K = at_K[tied_K], xp.cumsum(new_K)[tied_K].astype(np.uint64)
        if not len(at_K):
            return rows_V
    offsets_K, data = (to_host(a) for a in take_words(merged.offsets_V, merged.data, rows_V[at_K]))
    groups = to_host(group_K).tolist()
    words = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets_K.tolist())]
    by_word = sorted(range(len(words)), key=lambda k: (groups[k], words[k]))
    rows_V[at_K] = rows_V[at_K][xp.asarray(by_word)]
    return rows_V
