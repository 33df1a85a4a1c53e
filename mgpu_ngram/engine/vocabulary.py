"""Between the two passes: merge the vocabularies of chunks and give every symbol its global id."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mgpu_ngram.core.arrays import load_arrays
from mgpu_ngram.core.checkpoint import save_entry
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.shards import MAX_SHARDS, PartLimits, deal_words, num_shards, split_words
from mgpu_ngram.core.vocabulary import (
    ARRAYS,
    SPECIALS,
    HashCollision,
    LocalVocabulary,
    SpecialInText,
    Vocabulary,
    words_from_arrow,
)
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.budget import Budget, device_alone
from mgpu_ngram.engine.device import on_device_or_host, to_device
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.hash_words import hash_ids, hash_words
from mgpu_ngram.kernels.count.join_words import join_words
from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.count.word_keys import word_keys
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

VOCABULARY = "vocabulary"  # the kind of checkpoint entry is this, _, and the seed of the word hash
LEXICON_SHARE = 0.05  # of a GPU's memory, at most, for a lexicon while chunks are counted
COPIES = 6  # copies of vocabularies in memory during a merge: input, joined, two sorted, output
RADIX_BYTES = 64  # bytes by which radix sort orders words of equal count; longer ties are few
UNKNOWN_ID = 0  # of <unk>
NOWHERE = (1 << 31) - 1  # first source of a word that no text has, behind those of all others
START_CODE, END_CODE = np.uint32(2), np.uint32(3)  # codes of <s> and </s>
UNFINISHED_CODE = np.uint32(0xFFFFFFFF)  # code of the end of a line that gets no </s>


@dataclass(frozen=True)
class LmplzText:
    """How KenLM's lmplz reads text (lm/builder/corpus_count.cc), and into how many shards its n-grams go.

    A line is <s>, its words and </s>. A last line without a newline has no </s>; if it has no words
    either, it is not a line. A text must not contain <unk>, <s> and </s> as words. Token ids are words,
    spelled in decimal, and the separator id is their newline; without a separator a file is one line, with </s>.

    With `srilm`, words are read as SRILM's ngram-count does: <unk> is an unknown word, and a last line without a
    newline has </s>. `inside` has <unk> and the words of a given vocabulary: all have ids, and the other words of the
    text have the id of <unk>.
    """

    skip_symbols: bool  # leave <unk>, <s> and </s> out of the text; else they are refused
    parts: PartLimits  # a part is a shard
    srilm: bool = False
    inside: Words | None = None

    @property
    def refused(self) -> tuple[bytes, ...]:
        """Return the specials that a text must not contain, or that are left out of it."""
        return SPECIALS[1:] if self.srilm and not self.skip_symbols else SPECIALS

    def num_shards(self, tokens: int) -> int:
        return min(self.parts.num_parts(tokens), MAX_SHARDS)


def special_hashes(unit: str, seed: int, xp: Any) -> np.ndarray:
    """Return (3,) uint64, in host memory: the hashes of <unk>, <s> and </s> as words or as token ids; `xp` computes."""
    if unit == "id":
        return hash_ids((1 << 32) + np.arange(3, dtype=np.uint64))  # ids have 32 bits
    starts = np.cumsum([0, *(len(s) + 1 for s in SPECIALS[:-1])]).astype(np.uint32)
    text = xp.asarray(np.frombuffer(bytearray(b" ").join(SPECIALS), np.uint8))
    return to_host(hash_words(text, xp.asarray(starts), seed))


def move_vocabulary(vocabulary: LocalVocabulary, device: str) -> LocalVocabulary:
    """Return the vocabulary with its arrays on the device, or in host memory for "cpu"; copies only what must move."""
    return replace(vocabulary, **{name: _move(getattr(vocabulary, name), device) for name in ARRAYS})


def _move(array: Any, device: str) -> Any:
    return to_host(array) if device == "cpu" else to_device(array, device)


def where_vocabularies_fit(fn: Callable, vocabularies: Sequence[LocalVocabulary], budget: Budget) -> Any:
    """Return fn(*vocabularies) on the budget's device, wherever they are; in host memory when a GPU has no room."""

    def call(device: str) -> Any:
        if device == "cpu":
            return fn(*(move_vocabulary(v, "cpu") for v in vocabularies))
        with device_alone(budget):
            if COPIES * sum(v.nbytes for v in vocabularies) > budget.working_bytes():
                raise MemoryError
            return fn(*(move_vocabulary(v, "gpu") for v in vocabularies))

    return on_device_or_host(call, budget.device)


def merge_vocabularies(*parts: LocalVocabulary) -> LocalVocabulary:
    """Join vocabularies by hash: counts add up, the first position wins. Any order gives the same words.

    parts  one or more, all in host memory or all on one device

    Returns the merged vocabulary, on the same device; of several parts, by rising hash. Raises HashCollision if
    two words have the same hash.
    """
    if len(parts) == 1:
        return parts[0]
    xp = array_module(parts[0].hash_V)
    starts = itertools.accumulate((len(p.data) for p in parts), initial=0)
    offsets_V = xp.concatenate(
        [xp.zeros(1, np.int64), *(p.offsets_V[1:] + at for p, at in zip(parts, starts, strict=False))]
    )
    hash_V, data, counts_V, first_source_V, first_offset_V = (
        xp.concatenate([getattr(p, name) for p in parts]) for name in ARRAYS if name != "offsets_V"
    )
    columns = xp.stack([hash_V, xp.arange(len(hash_V), dtype=np.uint64)])
    hash_R, rows_R = radix_sort(columns, 64)
    rows_U, counts_U, mismatches = join_words(
        hash_R, rows_R.view(np.int64), offsets_V, data, counts_V, first_source_V, first_offset_V
    )
    if mismatches:
        raise HashCollision
    return LocalVocabulary(
        hash_V[rows_U],
        *take_words(offsets_V, data, rows_U),
        counts_U,
        first_source_V[rows_U],
        first_offset_V[rows_U],
        sum(p.tokens for p in parts),
        sum(p.lines for p in parts),
        sum(p.unfinished_lines for p in parts),
        sum(p.size_bytes for p in parts),
        [c for p in parts for c in p.checksums],
        {s: sum(p.seconds.get(s, 0.0) for p in parts) for s in sorted({s for p in parts for s in p.seconds})},
    )


@dataclass(frozen=True)
class Lexicon:
    """The symbols of a corpus, as workers need them to count n-grams; NumPy or CuPy arrays.

    unit        "word", "byte" or "id"
    symbols     V, the number of ids
    tokens      symbols in the corpus, including sentence markers
    hash_H      (H,) uint64, ascending: the symbols; for bytes, their values
    ids_H       (H,) int32
    num_shards  shards of the corpus
    shard_V     (V,) uint16, the shard of n-grams with this last context word
    split       words too heavy for a shard (core.shards.split_words)
    """

    unit: str
    symbols: int
    tokens: int
    hash_H: Any
    ids_H: Any
    num_shards: int
    shard_V: Any
    split: tuple[int, ...] = ()
    _copies: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def place(self, budget: Budget) -> str:
        """Return the device where tokens get their codes: "cpu" when the lexicon would crowd a GPU."""
        crowds = sum(a.nbytes for a in (self.hash_H, self.ids_H, self.shard_V)) > LEXICON_SHARE * budget.device_bytes
        return "cpu" if crowds else budget.device

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_copies": {}}

    def codes(self, hash_V: Any, device: str) -> Any:
        """Return (V + 2,) uint32: 0, the code (id + 1) of each local token, and UNFINISHED_CODE."""
        hash_V = _move(hash_V, device)
        xp = array_module(hash_V)
        codes = xp.zeros(len(hash_V) + 2, np.uint32)
        codes[-1] = UNFINISHED_CODE
        if len(hash_V):
            codes[1:-1] = self._on("ids_H", device)[xp.searchsorted(self._on("hash_H", device), hash_V)] + 1
        return codes

    def byte_codes(self) -> np.ndarray:
        """Return (257,) uint32: the code of byte b at b + 1, and 0 at 0; for unit "byte"."""
        codes = np.zeros(257, np.uint32)
        codes[self._on("hash_H", "cpu").astype(np.int64) + 1] = self._on("ids_H", "cpu") + 1
        return codes

    def shards_on(self, device: str) -> Any:
        """Return shard_V on the device."""
        return self._on("shard_V", device)

    def _on(self, name: str, device: str) -> Any:
        """Return an array on the device, copied there once."""
        array = getattr(self, name)
        if on_gpu(array) == (device == "gpu"):
            return array
        if (name, device) not in self._copies:
            self._copies[name, device] = _move(array, device)
        return self._copies[name, device]


def place_lexicon(lexicon: Lexicon, budget: Budget) -> Lexicon:
    """Return the lexicon; in host memory when it would crowd a GPU, else where it is."""
    if lexicon.place(budget) == "gpu":
        return lexicon
    return replace(lexicon, **{name: _move(getattr(lexicon, name), "cpu") for name in ("hash_H", "ids_H", "shard_V")})


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
    ordered = _ordered_symbols(move_vocabulary(merged, device), unit, ids_as_words, sentence_markers, seed, lmplz)
    vocabulary = _vocabulary_of(ordered, "word" if ids_as_words else unit, ids_as_words)
    return _lexicon_of(ordered, unit, lmplz), vocabulary


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
    merged: LocalVocabulary, unit: str, ids_as_words: bool, sentence_markers: bool, seed: int, lmplz: LmplzText | None
) -> _OrderedSymbols:
    """Return the symbols in the order of their ids."""
    inside = lmplz.inside if lmplz else None
    if inside is not None:
        merged, inside_V = _join_vocabulary(merged, inside, seed)
    rows_I = _rows_in_order(merged, unit, ids_as_words)
    specials = _find_specials(merged, unit, seed) if unit == "word" or ids_as_words else NO_SPECIALS
    if lmplz is not None and not lmplz.skip_symbols:
        _refuse_specials(specials, lmplz.refused)
    for row in specials.rows:
        rows_I = rows_I[rows_I != row]
    unknown = rows_I[:0]
    if inside is not None:
        unknown, rows_I = rows_I[~inside_V[rows_I]], rows_I[inside_V[rows_I]]
        specials.places_K3[UNKNOWN_ID, 0] += int(merged.counts_V[unknown].sum())
    tokens = merged.tokens
    if sentence_markers:
        specials.places_K3[1:, 0] += merged.lines, merged.lines - merged.unfinished_lines
        tokens += 2 * merged.lines - merged.unfinished_lines
    V = len(specials.hash_K) + len(rows_I)
    if V >= 2**31 - 1:
        raise RunError(f"the corpus has {V:,} distinct symbols but ids hold {2**31 - 2:,}; lowercase it or cut it")
    counts_V = _after(specials.places_K3[:, 0], merged.counts_V[rows_I])
    return _OrderedSymbols(merged, specials, rows_I, unknown, counts_V, tokens)


def _lexicon_of(ordered: _OrderedSymbols, unit: str, lmplz: LmplzText | None) -> Lexicon:
    """Return the ids by hash, and the shards of words, on the device."""
    merged, specials, rows_I, unknown, counts_V, tokens = ordered
    xp, V = array_module(counts_V), len(counts_V)
    hash_V = _after(specials.hash_K, merged.hash_V[xp.concatenate([rows_I, unknown])])
    ids_V = xp.concatenate([xp.arange(V, dtype=np.uint64), xp.full(len(unknown), UNKNOWN_ID, np.uint64)])
    hash_H, ids_H = radix_sort(xp.stack([hash_V, ids_V]), 64)
    hash_H = hash_H.copy()  # not a view that keeps both columns alive
    S = num_shards(tokens, unit) if lmplz is None else lmplz.num_shards(tokens)
    split = () if lmplz is None else split_words(counts_V, S)
    shard_V = _deal(counts_V, S, split)
    return Lexicon(unit, V, tokens, hash_H, ids_H.astype(np.int32), S, shard_V, split)


def _vocabulary_of(ordered: _OrderedSymbols, unit: str, ids_as_words: bool) -> Vocabulary:
    """Return the vocabulary, in host memory."""
    merged, specials, rows_I, _, counts_V, _ = ordered
    xp = array_module(merged.hash_V)
    words = SPECIALS[: len(specials.hash_K)]
    offsets_R, data_R = take_words(merged.offsets_V, merged.data, rows_I)
    if ids_as_words:
        decimals = pa.array(to_host(data_R).view("<u4")).cast(pa.large_string()).cast(pa.large_binary())
        offsets_R, data_R = (xp.asarray(a) for a in words_from_arrow(decimals))
    ends = np.cumsum([0, *map(len, words)])
    return Vocabulary(
        unit,
        to_host(_after(ends[:-1], offsets_R + ends[-1])),
        to_host(_after(np.frombuffer(b"".join(words), np.uint8), data_R)),
        to_host(counts_V),
        to_host(_after(specials.places_K3[:, 1], merged.first_source_V[rows_I])),
        to_host(_after(specials.places_K3[:, 2], merged.first_offset_V[rows_I])),
    )


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
    rows       rows in the merged vocabulary of those that the text contains
    """

    hash_K: np.ndarray
    places_K3: np.ndarray
    rows: list[Any]


NO_SPECIALS = _Specials(np.empty(0, np.uint64), np.empty((0, 3), np.int64), [])


def _find_specials(merged: LocalVocabulary, unit: str, seed: int) -> _Specials:
    """Find <unk>, <s> and </s> among the words of a text. Raises HashCollision if another word has a hash of theirs."""
    xp = array_module(merged.hash_V)
    found = _Specials(special_hashes(unit, seed, xp), np.array([(0, -1, -1)] * len(SPECIALS), np.int64), [])
    for k, h in enumerate(found.hash_K):
        row = xp.flatnonzero(merged.hash_V == h)  # one at most
        if not len(row):
            continue
        if unit == "word" and to_host(take_words(merged.offsets_V, merged.data, row)[1]).tobytes() != SPECIALS[k]:
            raise HashCollision(seed)
        places = merged.counts_V, merged.first_source_V, merged.first_offset_V
        found.places_K3[k] = [int(array[row][0]) for array in places]
        found.rows.append(row)
    return found


def _refuse_specials(specials: _Specials, refused: Sequence[bytes]) -> None:
    """Raise SpecialInText for the first of the refused specials that the text contains."""
    found = [(*place, word) for (_, *place), word in zip(specials.places_K3.tolist(), SPECIALS, strict=False)]
    if first := min((f for f in found if f[0] >= 0 and f[-1] in refused), default=None):
        raise SpecialInText(*first)


def _deal(counts_V: Any, shards: int, split: tuple[int, ...]) -> Any:
    """Return (V,) uint16: the shard of each word, dealt by counts; split words have no mass."""
    mass_V = counts_V.copy()
    mass_V[array_module(counts_V).asarray(split, np.int64)] = 0
    return deal_words(mass_V, shards)


def _after(head: np.ndarray, tail: Any) -> Any:
    """Return `head`, in host memory, followed by `tail`, on the device and with the dtype of `tail`."""
    xp = array_module(tail)
    return xp.concatenate([xp.asarray(head, tail.dtype), tail])


def _rows_in_order(merged: LocalVocabulary, unit: str, ids_as_words: bool) -> Any:
    """Return row numbers. Words: by falling count, then by bytes. Token ids as words: by falling count, then by value.
    Bytes and other token ids: by value.
    """
    xp = array_module(merged.hash_V)
    if unit != "word":
        rows_V = xp.argsort(merged.data if unit == "byte" else merged.data.view("<u4"))
        return rows_V[xp.argsort(-merged.counts_V[rows_V], kind="stable")] if ids_as_words else rows_V
    rows_V = xp.arange(len(merged.counts_V))
    # Positions in rows_V whose order is not final, and the number of the group of each: words that tie so far.
    at_K, group_K = xp.arange(len(rows_V)), ~merged.counts_V.view(np.uint64)
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


def store_vocabulary(
    vocabulary: LocalVocabulary, kind: str, items: Sequence[int], folder: str, durable: bool = True
) -> str:
    """Write the vocabulary of some chunks, `items`, to the entries of a checkpoint; return its path."""
    arrays = {name: to_host(getattr(vocabulary, name)) for name in ARRAYS}
    totals = {f.name: getattr(vocabulary, f.name) for f in fields(vocabulary) if f.name not in ARRAYS}
    return save_entry(folder, kind, items, arrays, {"totals": totals}, durable)


def load_vocabulary(path: str) -> LocalVocabulary:
    """Return the vocabulary that `store_vocabulary` wrote, in host memory."""
    arrays, metadata = load_arrays(path, verify=False)
    values: dict[str, Any] = metadata["totals"] | {name: np.array(arrays[name]) for name in ARRAYS}
    values |= {"checksums": [tuple(c) for c in values["checksums"]], "seconds": {}}  # seconds were of another run
    return LocalVocabulary(**values)
