"""Read a counts file of SRILM's ngram-count into tables of n-grams and a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from mgpu_ngram.core.counts.shards import PartLimits, deal_words, words_at
from mgpu_ngram.core.counts.srilm_counts import NgramLines, read_srilm_counts
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import END_ID, SPECIALS, START_ID, UNK_ID, Vocabulary
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.count.cut_shards import cut_shards
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from mgpu_ngram.kernels.estimate.find_ngrams import find_ngrams

ALL_ORDERS = "a model needs the counts of all orders: ngram-count -order N -write"


@dataclass
class SrilmTables:
    """The n-grams of a counts file.

    tables  {order: its n-grams}, orders 2 to N, in shards by the word before the last
    """

    vocabulary: Vocabulary
    tables: dict[int, ShardedTable]

    def part(self, p: int) -> dict[int, ShardedTable]:
        """Return the n-grams of one shard, by order."""
        return {n: table.part(p, p + 1) for n, table in self.tables.items()}


def read_srilm(path: str, order: int, inside: Words | None, limits: PartLimits, is_whole: bool = False) -> SrilmTables:
    """Return the n-grams of a counts file, up to an order.

    inside    <unk> and the words of a given vocabulary; other words count as <unk>. None: the words of the 1-grams
    limits    limits of the size of a shard
    is_whole  whether each n-gram must be the end of a longer one, up to the order, as in the counts of all n-grams

    N-grams with <s> after the first word, or with </s> before the last one, are left out. Raises InputError for wrong
    lines, and if the file lacks the history or the suffix of an n-gram, or gives one of them a smaller count.
    """
    lines = read_srilm_counts(path)
    if order > lines.max_order:
        raise InputError(f"order is {order} but {path} has orders up to {lines.max_order}; lower it")
    vocabulary, words = _vocabulary_of(lines, inside)
    tables: dict[int, Table] = {}
    for n in range(2, order + 1):
        tables[n] = _table_of(lines, n, words, inside is None)
        _check_parts(tables, n, vocabulary, lines.name)
        if is_whole:
            _check_ends(tables, n, vocabulary, lines.name)
    shards = limits.num_parts(int(vocabulary.counts_V.sum()), len(vocabulary))
    shard_V = deal_words(vocabulary.counts_V, shards)
    return SrilmTables(vocabulary, {n: _in_shards(table, shard_V, shards) for n, table in tables.items()})


def _vocabulary_of(lines: NgramLines, inside: Words | None) -> tuple[Vocabulary, Words]:
    """Return (the vocabulary in the order that `Vocabulary` describes, the same words)."""
    found = lines.single_words()
    if not sum(count for word, count in found.items() if word != SPECIALS[START_ID]):
        raise InputError(f"{lines.name!r} has no 1-grams; {ALL_ORDERS}")
    counts = {word: found.pop(word, 0) for word in SPECIALS}
    if inside is not None:
        given = {inside.symbol(v) for v in range(len(inside))} - {*SPECIALS}
        counts[SPECIALS[UNK_ID]] += sum(count for word, count in found.items() if word not in given)
        found = {word: found.get(word, 0) for word in given}
    counts |= sorted(sorted(found.items()), key=itemgetter(1), reverse=True)
    words = Words.of(list(counts))
    nowhere_V = np.full(len(words), -1)
    counts_V = np.array(list(counts.values()), np.int64)
    places = nowhere_V.astype(np.int32), nowhere_V
    return Vocabulary("word", np.array(words.offsets_V), np.array(words.data), counts_V, *places), words


def _table_of(lines: NgramLines, n: int, words: Words, is_complete: bool) -> Table:
    """Return the n-grams of one order, sorted; equal ones are added up.

    is_complete  whether an unknown word is an error
    """
    rows, bits = lines.of_order(n), check.code_bits(len(words))
    ids = lines.ids(rows, n, words.table)
    if is_complete:
        for row in rows[(ids == UNK_ID).any(axis=1)]:
            strange = [word for word in lines.ngram(row).split(" ") if word != "<unk>" and not words.id(word)]
            if strange:
                raise lines.wrong(row, f"has the word {strange[0]!r}, which is not among the 1-grams; {ALL_ORDERS}")
    inner = (ids[:, 1:] == START_ID).any(axis=1) | (ids[:, :-1] == END_ID).any(axis=1)
    ids, counts = ids[~inner], lines.counts_L[rows[~inner]]
    keys = ngram_keys((ids + 1).reshape(-1), n, bits, None, np.arange(len(ids)) * n)
    columns = radix_sort(np.concatenate([keys, np.arange(len(ids), dtype=np.uint64)[None]]), n * bits)
    order = columns[-1].view(np.int64)
    [(keys, counts)] = count_prefixes(np.ascontiguousarray(columns[:-1]), bits, n, n, counts[order])
    return Table(keys, counts, n, bits)


def _check_parts(tables: dict[int, Table], n: int, vocabulary: Vocabulary, name: str) -> None:
    """Raise InputError if an n-gram's first or last n - 1 words are missing, or occur less often than the n-gram."""
    table = tables[n]
    for first in 0, 1:
        if n == 2:
            codes_G = words_at(table.keys, n, table.bits, first)
            counts_G = vocabulary.counts_V[codes_G.astype(np.int64) - 1]
            counts_G = np.where(codes_G == START_ID + 1, table.counts, counts_G)  # <s> may lack a 1-gram
        else:
            rows = find_ngrams(tables[n - 1].keys, n - 1, table.bits, table.keys, first)
            counts_G = np.where(rows < 0, 0, np.append(tables[n - 1].counts, 0)[rows])
        wrong = np.flatnonzero(counts_G < table.counts)
        if len(wrong):
            row = int(wrong[0])
            ngram = _words_at(table, row, vocabulary)
            part = " ".join(ngram[first : n - 1 + first])
            raise InputError(
                f"{name!r} says that {' '.join(ngram)!r} occurs {table.counts[row]:,} times and {part!r} "
                f"{counts_G[row]:,} times, so these are not the counts of a text; {ALL_ORDERS}"
            )


def _check_ends(tables: dict[int, Table], n: int, vocabulary: Vocabulary, name: str) -> None:
    """Raise InputError if an (n - 1)-gram without <s> at its start is not the end of an n-gram."""
    table = tables[n]
    if n == 2:
        counts_V = vocabulary.counts_V.copy()
        counts_V[START_ID] = 0
        counts_V[words_at(table.keys, n, table.bits, 1).astype(np.int64) - 1] = 0
        missing = np.flatnonzero(counts_V)
        ngrams = ([vocabulary.symbol(v).decode("utf-8", "backslashreplace")] for v in missing.tolist())
    else:
        below = tables[n - 1]
        is_alone = words_at(below.keys, n - 1, below.bits, 0) != START_ID + 1
        is_alone[find_ngrams(below.keys, n - 1, table.bits, table.keys, 1)] = False
        missing = np.flatnonzero(is_alone)
        ngrams = (_words_at(below, row, vocabulary) for row in missing.tolist())
    if len(missing):
        raise InputError(
            f"{name!r} has {' '.join(next(ngrams))!r} but no {n}-gram that ends with it, so counts were cut off (as "
            "with -gt3min 2) or lack <s>; Kneser-Ney smoothing needs the counts of all n-grams: write them, or give "
            "another --smoothing"
        )


def _words_at(table: Table, row: int, vocabulary: Vocabulary) -> list[str]:
    """Return the words of one n-gram."""
    key = table.keys[:, row : row + 1]
    ids = [int(words_at(key, table.order, table.bits, i)[0]) - 1 for i in range(table.order)]
    return [vocabulary.symbol(v).decode("utf-8", "backslashreplace") for v in ids]


def _in_shards(table: Table, shard_V: np.ndarray, shards: int) -> ShardedTable:
    """Return the rows by shard, and by key within a shard."""
    cut = cut_shards(table.keys, table.counts, table.order, table.bits, shard_V, (), shards)
    return ShardedTable(*cut, table.order, table.bits)
