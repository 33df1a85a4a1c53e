"""Between the passes: merge the vocabularies of chunks and give every symbol its global id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.shards import deal_words, num_shards
from mgpu_ngram.core.vocabulary import (
    SPECIALS,
    HashCollision,
    LocalVocabulary,
    Vocabulary,
    vocabulary_is_text,
    words_from_arrow,
    words_to_arrow,
)
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.count.radix_sort import radix_sort
from mgpu_ngram.kernels.dispatch import array_module, to_host


def merge_vocabularies(*parts: LocalVocabulary) -> LocalVocabulary:
    """Join vocabularies by hash: counts add up, the first place wins. Any order gives the same words.

    Raises HashCollision when one hash stands for two words.
    """
    if len(parts) == 1:
        return parts[0]
    words = pa.concat_arrays([words_to_arrow(p.offsets_V, p.data) for p in parts])
    hash_V = np.concatenate([p.hash_V for p in parts])
    source_V = np.concatenate([p.first_source_V for p in parts])
    offset_V = np.concatenate([p.first_offset_V for p in parts])
    by_hash = np.lexsort((offset_V, source_V, hash_V))
    hash_V = hash_V[by_hash]
    new_V = np.ones(len(by_hash), bool)
    new_V[1:] = hash_V[1:] != hash_V[:-1]
    first_U = by_hash[new_V]
    same = pc.equal(words.take(by_hash), words.take(np.repeat(first_U, _run_lengths(new_V))))
    if not pc.all(same, min_count=0).as_py():  # true of no words, too
        raise HashCollision
    counts_V = np.concatenate([p.counts_V for p in parts])[by_hash]
    offsets_U, data = words_from_arrow(words.take(first_U))
    return LocalVocabulary(
        hash_V[new_V],
        offsets_U,
        data,
        np.add.reduceat(counts_V, np.flatnonzero(new_V)) if len(counts_V) else counts_V,
        source_V[first_U],
        offset_V[first_U],
        sum(p.tokens for p in parts),
        sum(p.lines for p in parts),
        sum(p.size_bytes for p in parts),
        [c for p in parts for c in p.checksums],
        {s: sum(p.seconds.get(s, 0.0) for p in parts) for s in sorted({s for p in parts for s in p.seconds})},
    )


def _run_lengths(new_V: np.ndarray) -> np.ndarray:
    return np.diff(np.append(np.flatnonzero(new_V), len(new_V)))


@dataclass(frozen=True)
class Lexicon:
    """The vocabulary of a corpus and the way from hash to id.

    hash_H  (H,) uint64, ascending: the symbols that occur
    ids_H   (H,) int32
    tokens  symbols in the corpus, sentence markers among them
    as_text  whether every word is valid UTF-8
    num_shards, shard_V  shards of the corpus, and (V,) uint16 the shard of n-grams with this last context word
    """

    vocabulary: Vocabulary
    hash_H: np.ndarray
    ids_H: np.ndarray
    tokens: int
    as_text: bool
    num_shards: int
    shard_V: np.ndarray

    def codes(self, hash_V: np.ndarray, device: str) -> Any:
        """(V + 1,) uint32: code (id + 1) of each local token (local number + 1), and 0 of 0."""
        hash_V, hash_H, ids_H = (to_device(a, device) for a in (hash_V, self.hash_H, self.ids_H))
        xp = array_module(hash_V)
        codes = xp.zeros(len(hash_V) + 1, np.uint32)
        if len(hash_V):
            codes[1:] = ids_H[xp.searchsorted(hash_H, hash_V)] + 1
        return codes


def number_symbols(merged: LocalVocabulary, unit: str, sentence_markers: bool, seed: int, device: str) -> Lexicon:
    """Give every symbol of the corpus its id: see `Vocabulary` for the order.

    Raises HashCollision when a word has the hash of a special that it is not.
    """
    rows_V = _rows_in_order(merged, unit, device)
    special_hash = np.empty(0, np.uint64)
    if unit == "word":
        special_hash = hash_words(np.frombuffer(b" ".join(SPECIALS), np.uint8), _special_positions(), seed)
        rows_V = rows_V[~np.isin(merged.hash_V[rows_V], special_hash)]
    # Of the specials: count, first source, first offset; they may stand in the text as words, too.
    special = np.array([(0, -1, -1)] * len(special_hash), np.int64).reshape(-1, 3)
    for k, h in enumerate(special_hash):
        for row in np.flatnonzero(merged.hash_V == h):
            if merged.data[merged.offsets_V[row] : merged.offsets_V[row + 1]].tobytes() != SPECIALS[k]:
                raise HashCollision(seed)
            special[k] = merged.counts_V[row], merged.first_source_V[row], merged.first_offset_V[row]
    tokens = merged.tokens
    if sentence_markers:
        special[1:, 0] += merged.lines
        tokens += 2 * merged.lines
    words = pa.concat_arrays(
        [
            pa.array(SPECIALS[: len(special)], pa.large_binary()),
            words_to_arrow(merged.offsets_V, merged.data).take(rows_V),
        ]
    )
    offsets_V, data = words_from_arrow(words)
    hash_V = np.concatenate([special_hash, merged.hash_V[rows_V]])
    vocabulary = Vocabulary(
        unit,
        offsets_V,
        data,
        np.concatenate([special[:, 0], merged.counts_V[rows_V]]),
        np.concatenate([special[:, 1].astype(np.int32), merged.first_source_V[rows_V]]),
        np.concatenate([special[:, 2], merged.first_offset_V[rows_V]]),
    )
    if len(vocabulary) >= 2**31 - 1:
        raise RunError(
            f"the corpus has {len(vocabulary):,} distinct symbols but ids hold {2**31 - 2:,}; lowercase it or cut it"
        )
    by_hash = np.argsort(hash_V)
    S = num_shards(tokens, unit)
    shard_V = deal_words(vocabulary.counts_V, S)
    as_text = vocabulary_is_text(vocabulary)
    return Lexicon(vocabulary, hash_V[by_hash], by_hash.astype(np.int32), tokens, as_text, S, shard_V)


def _special_positions() -> np.ndarray:
    lengths = [len(s) + 1 for s in SPECIALS]
    return np.cumsum([0, *lengths[:-1]]).astype(np.uint32)


def _rows_in_order(merged: LocalVocabulary, unit: str, device: str) -> np.ndarray:
    """Row numbers by falling count, ties by bytes; for bytes and token ids by value."""
    V = len(merged.counts_V)
    if unit == "byte":
        return np.argsort(merged.data, kind="stable")
    if unit == "id":
        return np.argsort(merged.data.view("<u4"), kind="stable")
    columns = np.empty((4, V), np.uint64)
    columns[0] = ~merged.counts_V.astype(np.uint64)
    _leading_bytes(merged.offsets_V, merged.data, columns[1], columns[2])
    columns[3] = np.arange(V)
    columns = to_host(radix_sort(to_device(columns, device), 3 * 64))
    rows_V = columns[3].astype(np.int64)
    # Words that share their count and 16 bytes: rare, so they are put in order one group at a time.
    same = np.flatnonzero((columns[:3, 1:] == columns[:3, :-1]).all(axis=0))
    while len(same):
        first = last = int(same[0])
        while len(same) and same[0] == last:
            last, same = last + 1, same[1:]
        group = rows_V[first : last + 1].tolist()
        word = {v: merged.data[merged.offsets_V[v] : merged.offsets_V[v + 1]].tobytes() for v in group}
        rows_V[first : last + 1] = sorted(group, key=word.__getitem__)
    return rows_V


@njit(nogil=True, cache=True)
def _leading_bytes(offsets_V, data, first_V, second_V):
    """Bytes 0-7 and 8-15 of each word as big-endian numbers; no word holds a NUL, so padding is safe."""
    for v in range(len(first_V)):
        length = offsets_V[v + 1] - offsets_V[v]
        a, b = np.uint64(0), np.uint64(0)
        for i in range(8):
            a = (a << np.uint64(8)) | np.uint64(data[offsets_V[v] + i] if i < length else 0)
            b = (b << np.uint64(8)) | np.uint64(data[offsets_V[v] + 8 + i] if i + 8 < length else 0)
        first_V[v] = a
        second_V[v] = b
