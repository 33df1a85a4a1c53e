"""As `merge_vocabularies` and `number_symbols` for vocabularies too large for one task: in ranges of hashes and of ids.

Tasks exchange words twice. First, each range gets its hashes from the vocabularies of all chunks. Then each piece gets
its words from all ranges: the words between two limits, which come from a sample of all words. A piece sorts its words
in the order of their ids, and each range gets the ids of its hashes from all pieces. All results are in files, because
other tasks take views of them, and no budget counts the memory of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import SYMBOL_ARRAYS, UNK_ID, LocalVocabulary, Vocabulary
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.merge_vocabularies import (
    concatenated,
    merge_vocabularies,
    move_vocabulary,
    slice_rows,
    take_rows,
)
from mgpu_ngram.engine.count.number_symbols import Ordered, Specials, Totals, find_symbols, ids_by_hash, join_symbols
from mgpu_ngram.engine.count.sentence_markers import LmplzText
from mgpu_ngram.engine.count.word_order import range_limits, rows_in_order, sample_keys, word_ranges
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.spill import new_arrays, to_file


@dataclass(frozen=True)
class Ranges:
    """Options for merging and numbering the words of a corpus; there are as many pieces as ranges.

    sentence_markers, seed, lmplz  as for `number_symbols`
    folder                         folder of spilled results
    """

    ranges: int
    sentence_markers: bool
    seed: int
    lmplz: LmplzText | None
    budget: Budget
    folder: str


@dataclass(frozen=True)
class RangeOfHashes:
    """The hashes of a range, and the places of its words in the pieces.

    hash_R    (n,) uint64, by piece; hashes of specials and of unknown words come last
    rank_R    (n,) int32, the rank of each hash in the range
    ends      number of hashes up to the end of each piece
    specials  their rows are ranks
    """

    hash_R: np.ndarray
    rank_R: np.ndarray
    ends: tuple[int, ...]
    specials: Specials
    totals: Totals
    checksums: list[PartCrc]
    seconds: dict[str, float]


@dataclass
class DealtRange:
    """The words of a range of hashes, by piece, as `RangeOfHashes` orders them."""

    words: LocalVocabulary
    of: RangeOfHashes

    def arrays(self) -> dict[str, Any]:
        """Return its arrays by name."""
        return {**self.words.arrays(), "rank_R": self.of.rank_R}

    def with_arrays(self, named: dict[str, Any]) -> DealtRange:
        """Return the range with other arrays, such as views of a file."""
        words = self.words.with_arrays({name: named[name] for name in SYMBOL_ARRAYS})
        return DealtRange(words, replace(self.of, hash_R=words.hash_V, rank_R=named["rank_R"]))


@dataclass
class NumberedPiece:
    """Words with consecutive ids.

    words    the words in the order of ids, without hashes
    place_N  (N,) int32: the place among `words` of each word from the ranges, range by range
    given    number of words from each range
    """

    words: LocalVocabulary
    place_N: np.ndarray
    given: tuple[int, ...]

    def arrays(self) -> dict[str, Any]:
        """Return its arrays by name."""
        return {**self.words.arrays(), "place_N": self.place_N}

    def with_arrays(self, named: dict[str, Any]) -> NumberedPiece:
        """Return the piece with other arrays, such as views of a file."""
        return replace(
            self, words=self.words.with_arrays({name: named[name] for name in SYMBOL_ARRAYS}), place_N=named["place_N"]
        )


def merge_sorted(how: Ranges, *parts: LocalVocabulary) -> LocalVocabulary:
    """Merge vocabularies, or ranges of their hashes, in host memory; also sort the words of a single one."""
    merged = merge_vocabularies(*(move_vocabulary(p, "cpu") for p in parts), always_sorted=True)
    return to_file(merged, how.folder)


def sample_of(how: Ranges, merged: LocalVocabulary) -> np.ndarray:
    """Return the keys of some words of a range of hashes, see `sample_keys`."""
    return sample_keys(merged, how.ranges)


def limits_of(how: Ranges, *samples: np.ndarray) -> np.ndarray:
    """Return the limits of the pieces."""
    return range_limits(np.concatenate(samples, axis=1), how.ranges)


def deal_range(how: Ranges, merged: LocalVocabulary, r: int, limits: np.ndarray) -> DealtRange:
    """Sort the words of range r by piece. Raises HashCollision as `number_symbols` does."""
    symbols = find_symbols(merged, "word", how.seed, how.lmplz, r, how.ranges)
    merged, pieces = symbols.merged, how.ranges
    piece_V = word_ranges(merged, limits)
    for row in symbols.specials.rows.values():
        piece_V[row] = pieces
    if symbols.unknown_V is not None:
        piece_V[symbols.unknown_V] = pieces
    rank_R = np.argsort(piece_V, kind="stable")
    ends = tuple(np.cumsum(np.bincount(piece_V, minlength=pieces + 1)[:pieces]).tolist())
    words = LocalVocabulary(*take_rows(merged.columns(), rank_R))
    of = RangeOfHashes(
        words.hash_V, rank_R.astype(np.int32), ends, symbols.specials, symbols.totals(), merged.checksums,
        merged.seconds,
    )  # fmt: skip
    return to_file(DealtRange(words, of), how.folder)


def words_of_piece(dealt: DealtRange, p: int) -> LocalVocabulary:
    """Return the words of a range in piece p, as `slice_rows` returns them."""
    first, last = dealt.of.ends[p - 1] if p else 0, dealt.of.ends[p]
    return LocalVocabulary(*slice_rows(dealt.words.columns(), first, last))


def hashes_of(dealt: DealtRange) -> RangeOfHashes:
    """Return a range without its words."""
    return dealt.of


def number_piece(how: Ranges, *parts: LocalVocabulary) -> NumberedPiece:
    """Sort the words that all ranges have in a piece."""
    merged = LocalVocabulary(*concatenated([part.columns() for part in parts]))
    rows_N = rows_in_order(merged)
    place_N = np.empty(len(rows_N), np.int32)
    place_N[rows_N] = np.arange(len(rows_N), dtype=np.int32)
    _, *columns = take_rows(merged.columns(), rows_N)
    words = LocalVocabulary(np.empty(0, np.uint64), *columns)
    return to_file(NumberedPiece(words, place_N, tuple(len(p.counts_V) for p in parts)), how.folder)


def join_pieces(
    how: Ranges, ranges: Sequence[RangeOfHashes], pieces: Sequence[NumberedPiece]
) -> tuple[Lexicon, Vocabulary]:
    """Return what `number_symbols` returns, in host memory or in files."""
    K = len(ranges[0].specials.hash_K)
    firsts = np.cumsum([K, *(len(piece.words.counts_V) for piece in pieces)]).tolist()
    hashes = (_ids_of(range_, r, pieces, firsts) for r, range_ in enumerate(ranges))
    totals = [range_.totals for range_ in ranges]
    ordered = [Ordered(piece.words) for piece in pieces]
    arrays = partial(new_arrays, budget=how.budget, folder=how.folder)
    return join_symbols(totals, hashes, ordered, "word", how.sentence_markers, how.lmplz, arrays)


def _ids_of(
    of: RangeOfHashes, r: int, pieces: Sequence[NumberedPiece], firsts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of range r, rising, and their ids; piece p begins with id firsts[p]."""
    hash_R = np.empty_like(of.hash_R)
    hash_R[of.rank_R] = of.hash_R
    ids_R = np.full(len(hash_R), UNK_ID, np.int32)
    at = 0
    for piece, first in zip(pieces, firsts, strict=False):
        start, n = sum(piece.given[:r]), piece.given[r]
        ids_R[of.rank_R[at : at + n]] = piece.place_N[start : start + n] + np.int32(first)
        at += n
    return ids_by_hash(hash_R, ids_R, of.specials)
