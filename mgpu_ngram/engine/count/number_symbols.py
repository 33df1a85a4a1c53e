"""Between the two passes, second: give each symbol of the merged vocabulary its id; make the lexicon for pass 2."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.shards import deal_words, num_shards, split_words
from mgpu_ngram.core.counts.vocabulary import (
    SPECIALS,
    UNK_ID,
    HashCollision,
    LocalVocabulary,
    SpecialInText,
    Vocabulary,
    words_from_arrow,
)
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.merge_vocabularies import hash_range, merge_vocabularies, move_vocabulary, rows_at_once
from mgpu_ngram.engine.count.sentence_markers import LmplzText, special_hashes
from mgpu_ngram.engine.count.word_order import rows_in_order
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

NOWHERE = (1 << 31) - 1  # first source of a word that no text has: sorts after all other sources
NewArrays = Callable[[Mapping[str, tuple[int, Any]]], dict[str, Any]]
ID_DIGITS = 10  # most digits of a token id
SPECIAL_COLUMNS = {"counts_V": np.int64, "first_source_V": np.int32, "first_offset_V": np.int64}  # values of `SPECIALS`


def number_symbols(
    merged: LocalVocabulary,
    unit: str,
    sentence_markers: bool,
    seed: int,
    device: str,
    lmplz: LmplzText | None = None,
    threads: int = 1,
) -> tuple[Lexicon, Vocabulary]:
    """Give every symbol of the corpus its id: see `Vocabulary` for the order.

    merged   every symbol of the corpus once; it is moved to `device`, where the work runs
    lmplz    lmplz's rules, by which the text was read. None: plain counting, without lmplz's rules
    threads  that sort words in host memory

    Returns (the lexicon for counting, on the device; the vocabulary for writing, in host memory). Raises
    HashCollision if a word has the hash of a special, SpecialInText if `lmplz` refuses a word, and RunError if
    there are more symbols than ids.
    """
    symbols = find_symbols(move_vocabulary(merged, device), unit, seed, lmplz)
    merged = symbols.merged
    rows_I = rows_in_order(merged, unit, _are_words(unit, lmplz), threads)
    for row in symbols.specials.rows.values():
        rows_I = rows_I[rows_I != row]
    if symbols.unknown_V is not None:
        rows_I = rows_I[~symbols.unknown_V[rows_I]]
    xp, K = array_module(rows_I), len(symbols.specials.hash_K)
    ids_R = xp.full(len(merged.hash_V), UNK_ID, np.int32)  # by row
    ids_R[rows_I] = xp.arange(K, K + len(rows_I), dtype=np.int32)
    hashes = [ids_by_hash(merged.hash_V, ids_R, symbols.specials)]
    ordered = [Ordered(merged, rows_I)]
    return join_symbols([symbols.totals()], hashes, ordered, unit, sentence_markers, lmplz, partial(_new_arrays, xp))


def _are_words(unit: str, lmplz: LmplzText | None) -> bool:
    """Return whether token ids are words, spelled in decimal."""
    return unit == "id" and lmplz is not None


@dataclass(frozen=True)
class Symbols:
    """The symbols of a corpus, or of one range of hashes (`hash_range`).

    unknown_V  (V,) bool, rows of words that have the id of <unk>; None if no word has this id
    """

    merged: LocalVocabulary
    specials: Specials
    unknown_V: Any = None

    def totals(self) -> Totals:
        merged, unknown_V = self.merged, self.unknown_V
        unknown = 0 if unknown_V is None else int(merged.counts_V[unknown_V].sum())
        hashes = len(merged.hash_V) + len(self.specials.absent)
        return Totals(self.specials, unknown, hashes, merged.tokens, merged.lines, merged.unfinished_lines)


@dataclass(frozen=True)
class Totals:
    """Totals of `Symbols`: unknown words in the text, and hashes, which include the hashes of all special symbols."""

    specials: Specials
    unknown: int
    hashes: int
    tokens: int
    lines: int
    unfinished_lines: int


def find_symbols(
    merged: LocalVocabulary, unit: str, seed: int, lmplz: LmplzText | None, r: int = 0, ranges: int = 1
) -> Symbols:
    """Find the specials and the unknown words among the symbols of a text, or of range r of their hashes.

    Adds the words of a given vocabulary. Raises HashCollision if a word has the hash of a special.
    """
    unknown_V = None
    if lmplz is not None and lmplz.inside is not None:
        merged, unknown_V = _join_vocabulary(merged, lmplz.inside, seed, r, ranges)
    has_specials = unit == "word" or _are_words(unit, lmplz)
    specials = _find_specials(merged, unit, seed, r, ranges) if has_specials else NO_SPECIALS
    if unknown_V is not None:
        for row in specials.rows.values():
            unknown_V[row] = False
    return Symbols(merged, specials, unknown_V)


class Ordered(NamedTuple):
    """Symbols in the order of their ids: rows `rows_I` of a vocabulary; None: all rows as they are."""

    words: LocalVocabulary
    rows_I: Any = None

    def __len__(self) -> int:
        return len(self.words.counts_V if self.rows_I is None else self.rows_I)

    def rows(self) -> Iterator[Any]:
        """Yield indices of consecutive rows, in blocks that are copied at once."""
        step = rows_at_once(self.words.counts_V)
        for first in range(0, len(self), step):
            last = min(first + step, len(self))
            yield slice(first, last) if self.rows_I is None else self.rows_I[first:last]

    def symbols(self) -> Iterator[tuple[Any, Any]]:
        """Yield the offsets, from 0, and bytes of these rows."""
        offsets_V, data = self.words.offsets_V, self.words.data
        for rows in self.rows():
            if isinstance(rows, slice):
                offsets_R = offsets_V[rows.start : rows.stop + 1]
                yield offsets_R - offsets_R[0], data[int(offsets_R[0]) : int(offsets_R[-1])]
            else:
                yield take_words(offsets_V, data, rows)


def _new_arrays(xp: Any, rows: Mapping[str, tuple[int, Any]]) -> dict[str, Any]:
    return {name: xp.empty(n, dtype) for name, (n, dtype) in rows.items()}


def join_symbols(
    totals: Sequence[Totals], hashes: Iterable[tuple[Any, Any]], ordered: Sequence[Ordered], unit: str,
    sentence_markers: bool, lmplz: LmplzText | None, new_arrays: NewArrays,
) -> tuple[Lexicon, Vocabulary]:  # fmt: skip
    """Return the lexicon and the vocabulary of the symbols of all ranges of hashes.

    totals      totals of each range
    hashes      `ids_by_hash` of each range
    ordered     all symbols in the order of their ids, without specials, in one or more pieces
    new_arrays  makes arrays, on the device of the symbols, from the number of elements and the dtype of each name
    """
    specials = _joined_specials([t.specials for t in totals])
    if lmplz is not None and not lmplz.skip_symbols:
        _refuse_specials(specials, lmplz.refused)
    places_K3, tokens = specials.places_K3, sum(t.tokens for t in totals)
    if unknown := sum(t.unknown for t in totals):
        places_K3[UNK_ID, 0] += unknown
    if sentence_markers:
        lines, finished = (sum(t.lines - n * t.unfinished_lines for t in totals) for n in (0, 1))
        places_K3[1:, 0] += lines, finished
        tokens += lines + finished
    K = len(specials.hash_K)
    V = K + sum(map(len, ordered))
    if V >= 2**31 - 1:
        raise RunError(f"the corpus has {V:,} distinct symbols but ids hold {2**31 - 2:,}; lowercase it or cut it")
    made = new_arrays({name: (V, dtype) for name, dtype in SPECIAL_COLUMNS.items()})
    for i, (name, values_V) in enumerate(made.items()):
        values_V[:K] = array_module(values_V).asarray(places_K3[:, i], values_V.dtype)
        at = K
        for piece in ordered:
            for rows in piece.rows():
                values_R = getattr(piece.words, name)[rows]
                values_V[at : at + len(values_R)] = values_R
                at += len(values_R)
    S = num_shards(tokens, unit) if lmplz is None else lmplz.num_shards(tokens, V)
    split = () if lmplz is None else split_words(made["counts_V"], S)
    falls = unit == "word" or lmplz is not None  # see `Vocabulary`: the counts behind the specials
    shard_V = deal_words(made["counts_V"], S, K + len(split) if falls else None, split)
    arrays = _joined_hashes(hashes, totals, V, new_arrays)
    if "shard_V" in arrays:
        arrays["shard_V"][:] = shard_V
    hash_H, ids_H = arrays["hash_H"], arrays["ids_H"]
    lexicon = Lexicon(
        unit=unit,
        symbols=V,
        tokens=tokens,
        hash_H=hash_H,
        ids_H=ids_H,
        num_shards=S,
        shard_V=arrays.get("shard_V", shard_V),
        split=split,
    )
    words, are_ids = SPECIALS[:K], _are_words(unit, lmplz)
    if are_ids or len(ordered) > 1 or V > rows_at_once(ordered[0].words.counts_V):
        in_host = partial(_new_arrays, np) if on_gpu(made["counts_V"]) else new_arrays
        symbols = _symbols_in_pieces(ordered, V, words, are_ids, in_host)
    else:
        symbols = _symbols_at_once(ordered[0], words)
    return lexicon, Vocabulary("word" if are_ids else unit, *symbols, *map(to_host, made.values()))


def _joined_hashes(
    hashes: Iterable[tuple[Any, Any]], ranges: Sequence[Totals], V: int, new_arrays: NewArrays
) -> dict[str, Any]:
    """Return hash_H and ids_H of all ranges; of several ranges also room for shard_V."""
    if len(ranges) == 1:
        [(hash_H, ids_H)] = hashes
        return {"hash_H": hash_H, "ids_H": ids_H}
    H = sum(t.hashes for t in ranges)
    made = new_arrays({"hash_H": (H, np.uint64), "ids_H": (H, np.int32), "shard_V": (V, np.uint16)})
    at = 0
    for hash_R, ids_R in hashes:
        made["hash_H"][at : at + len(hash_R)], made["ids_H"][at : at + len(ids_R)] = hash_R, ids_R
        at += len(hash_R)
    return made


def ids_by_hash(hash_R: Any, ids_R: Any, specials: Specials) -> tuple[Any, Any]:
    """Return the hashes of a range, rising, and their ids; both include all special symbols of the range.

    hash_R  hashes of the rows of `Symbols`; merged vocabularies are in this order, the vocabulary of one chunk is not
    ids_R   ids of the same rows; overwritten. The ids of specials are arbitrary
    """
    xp = array_module(hash_R)
    for k, row in specials.rows.items():
        ids_R[row] = k
    if count_true(hash_R[1:] <= hash_R[:-1]):
        hash_R, ids_R = radix_sort(xp.stack([hash_R, ids_R.astype(np.uint64)]), 64)
        ids_R = ids_R.astype(np.int32)
    absent = sorted((int(specials.hash_K[k]), k) for k in specials.absent)
    hash_A = np.array([h for h, _ in absent], np.uint64)
    at_A = to_host(xp.searchsorted(hash_R, xp.asarray(hash_A))).tolist()
    return _with_inserted(hash_R, at_A, hash_A), _with_inserted(ids_R, at_A, np.array([k for _, k in absent], np.int32))


def _with_inserted(array: Any, at_A: Sequence[int], values_A: np.ndarray) -> Any:
    """Return a copy of an array with values inserted before some places, which rise."""
    xp = array_module(array)
    cuts = [0, *at_A, len(array)]
    pieces = [array[a:b] for a, b in itertools.pairwise(cuts)]
    inserted = [xp.asarray(values_A[i : i + 1]) for i in range(len(at_A))]
    return xp.concatenate([*itertools.chain.from_iterable(zip(pieces, inserted, strict=False)), pieces[-1]])


def _symbols_at_once(ordered: Ordered, words: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and bytes of `words` and of all symbols, in host memory. The device of the symbols joins them,
    because new host memory is slow to write.
    """
    offsets_R, data_R = take_words(ordered.words.offsets_V, ordered.words.data, ordered.rows_I)
    xp, ends = array_module(data_R), np.cumsum([0, *map(len, words)])
    offsets_V = xp.concatenate([xp.asarray(ends[:-1]), offsets_R + ends[-1]])
    data = xp.concatenate([xp.asarray(np.frombuffer(b"".join(words), np.uint8)), data_R])
    return to_host(offsets_V), to_host(data)


def _symbols_in_pieces(
    ordered: Sequence[Ordered], V: int, words: Sequence[bytes], are_ids: bool, new_arrays: NewArrays
) -> tuple[np.ndarray, np.ndarray]:
    """As `_symbols_at_once`, with little temporary memory. `new_arrays` makes arrays in host memory. Token ids become
    decimals."""
    head = np.frombuffer(b"".join(words), np.uint8)
    symbol_bytes = ID_DIGITS * V if are_ids else sum(len(piece.words.data) for piece in ordered)
    made = new_arrays({"offsets_V": (V + 1, np.int64), "data": (len(head) + symbol_bytes, np.uint8)})
    offsets_V, data = made.values()  # pages that are never written take no memory
    row, end = len(words), len(head)
    offsets_V[: row + 1], data[:end] = np.cumsum([0, *map(len, words)]), head
    for offsets_R, data_R in itertools.chain.from_iterable(piece.symbols() for piece in ordered):
        offsets_R, data_R = to_host(offsets_R), to_host(data_R)
        if are_ids:
            decimals = pa.array(data_R.view("<u4")).cast(pa.large_string()).cast(pa.large_binary())
            offsets_R, data_R = words_from_arrow(decimals)
        last, stop = row + len(offsets_R) - 1, end + len(data_R)
        offsets_V[row + 1 : last + 1], data[end:stop] = offsets_R[1:] + end, data_R
        row, end = last, stop
    return offsets_V, data[:end]


def _join_vocabulary(
    merged: LocalVocabulary, inside: Words, seed: int, r: int, ranges: int
) -> tuple[LocalVocabulary, Any]:
    """Return (the symbols of a text and of a given vocabulary, (V,) bool: symbols that the given vocabulary lacks).

    Only symbols whose hashes are in range r.
    """
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
    if ranges > 1:
        given = hash_range(merge_vocabularies(given, always_sorted=True), r, ranges)
    merged = merge_vocabularies(merged, given)
    unseen_V = merged.first_source_V == NOWHERE
    merged.first_source_V[unseen_V] = merged.first_offset_V[unseen_V] = -1
    return merged, xp.asarray(inside.ids(to_host(merged.offsets_V), to_host(merged.data)) == 0)


class Specials(NamedTuple):
    """The K specials of a vocabulary, 0 or 3; they may also occur as words in a text.

    hash_K     (K,) uint64, in host memory
    places_K3  (K, 3) int64, in host memory: count, first source and first offset of each as a word of the text; 0, -1,
               -1 if the text does not contain it
    rows       {number of a special: its row in the merged vocabulary, (1,)}, for specials that the text contains
    absent     numbers of specials that the text does not contain; for a range of hashes, only specials of this range
    """

    hash_K: np.ndarray
    places_K3: np.ndarray
    rows: dict[int, Any]
    absent: tuple[int, ...] = ()


NO_SPECIALS = Specials(np.empty(0, np.uint64), np.empty((0, 3), np.int64), {})


def _find_specials(merged: LocalVocabulary, unit: str, seed: int, r: int, ranges: int) -> Specials:
    """Find <unk>, <s> and </s> among the words of a text whose hashes are in range r. Raises HashCollision if another
    word has the hash of a special.
    """
    xp = array_module(merged.hash_V)
    found = Specials(special_hashes(unit, seed, xp), np.array([(0, -1, -1)] * len(SPECIALS), np.int64), {})
    absent = []
    for k, h in enumerate(found.hash_K):
        row = xp.flatnonzero(merged.hash_V == h)  # one at most
        if not len(row):
            absent += [k] if int(h) * ranges >> 64 == r else []
            continue
        if unit == "word" and to_host(take_words(merged.offsets_V, merged.data, row)[1]).tobytes() != SPECIALS[k]:
            raise HashCollision(seed)
        places = merged.counts_V, merged.first_source_V, merged.first_offset_V
        found.places_K3[k] = [int(array[row][0]) for array in places]
        found.rows[k] = row
    return found._replace(absent=tuple(absent))


def _joined_specials(of_ranges: Sequence[Specials]) -> Specials:
    """Return the specials of all ranges of hashes, without rows."""
    places_K3 = of_ranges[0].places_K3.copy()
    for specials in of_ranges[1:]:
        for k in specials.rows:
            places_K3[k] = specials.places_K3[k]
    return Specials(of_ranges[0].hash_K, places_K3, {})


def _refuse_specials(specials: Specials, refused: Sequence[bytes]) -> None:
    """Raise SpecialInText for the first of the refused specials that the text contains."""
    found = [(*place, word) for (_, *place), word in zip(specials.places_K3.tolist(), SPECIALS, strict=False)]
    if first := min((f for f in found if f[0] >= 0 and f[-1] in refused), default=None):
        raise SpecialInText(*first)
