"""The most frequent n-grams of tables, for reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.shards import words_at
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.dispatch import array_module, to_host

CHUNK_ROWS = 512  # rows of a chunk: only chunks with the greatest maxima are searched row by row


class Summary(NamedTuple):
    """The facts about a shard that a report shows.

    distinct  n-grams before min_count
    total     sum of their counts
    head      the rows with the greatest counts (ties: the first rows), by rising row; in host memory
    """

    distinct: int
    total: int
    head: Table


def heaviest(table: Table, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (K, order) and counts (K,) of the k most frequent n-grams of a table in host memory, ties by key."""
    rows_K = heaviest_rows(table.counts, min(k, len(table)))
    keys = table.keys[:, rows_K]
    codes = [words_at(keys, table.order, table.bits, i).astype(np.int64) for i in range(table.order)]
    return np.stack(codes, axis=1), table.counts[rows_K]


@njit(nogil=True, cache=True)
def heaviest_rows(counts, k):
    """Return the rows of the k greatest counts, greatest first, ties by row. Most counts are small: one test each."""
    rows_K = np.empty(k, np.int64)
    found, least = 0, np.int64(-1)
    for row in range(len(counts) if k else 0):
        if found == k and counts[row] <= least:
            continue
        at = found if found < k else k - 1
        while at > 0 and counts[rows_K[at - 1]] < counts[row]:
            rows_K[at] = rows_K[at - 1]
            at -= 1
        rows_K[at] = row
        found = min(found + 1, k)
        least = counts[rows_K[found - 1]]
    return rows_K


def summaries(table: ShardedTable, top: int) -> list[Summary]:
    """Return a summary of each shard, with `top` rows.

    The rows with the greatest counts are in the chunks with the greatest counts, so only these and the ends of the
    shards go to the host.
    """
    xp, C = array_module(table.counts), len(table) // CHUNK_ROWS
    distinct_S = np.diff(table.ends_S, prepend=0).tolist()
    total_S = np.diff(to_host(sums_before(table.counts)[xp.asarray(table.ends_S)]), prepend=0).tolist()
    most_C = to_host(table.counts[: C * CHUNK_ROWS].reshape(C, CHUNK_ROWS).max(1)) if C else np.empty(0, np.int64)
    rows, ends_S = _candidates(most_C, CHUNK_ROWS, table.ends_S, top)
    rows, ends_S = _heads(to_host(table.counts[xp.asarray(rows)]), rows, ends_S, top)
    taken = xp.asarray(rows)
    heads = ShardedTable(to_host(table.keys[:, taken]), to_host(table.counts[taken]), ends_S, table.order, table.bits)
    return [Summary(distinct_S[s], total_S[s], heads.shard(s)) for s in range(len(ends_S))]


# These functions keep the interpreter lock: beside writing threads, getting it back takes longer than the work. They
# have loops, because slices, lists and `np.sort` take Numba ten times as long to compile.
@njit(cache=True)
def _candidates(most_C, chunk_rows, ends_S, k):
    """Return rows that include the k with the greatest counts of each shard, and where the rows of each shard end.

    most_C  the greatest count of each chunk
    """
    rows, found_S = np.empty(ends_S[-1], np.int64), np.empty(len(ends_S), np.int64)
    at = first = 0
    for s in range(len(ends_S)):
        end = ends_S[s]
        c, after = (first + chunk_rows - 1) // chunk_rows, end // chunk_rows  # chunks within the shard
        if after - c <= k:
            at = _append(rows, at, first, end)
        else:
            at = _append(rows, at, first, c * chunk_rows)
            best = heaviest_rows(most_C[c:after], k)
            _sort(best)
            for chunk in best:
                at = _append(rows, at, (c + chunk) * chunk_rows, (c + chunk + 1) * chunk_rows)
            at = _append(rows, at, after * chunk_rows, end)
        found_S[s], first = at, end
    return rows[:at].copy(), found_S


@njit(cache=True)
def _heads(counts_N, rows_N, ends_S, k):
    """Return the k rows of each shard with the greatest counts, by rising row, and where the rows of each shard end.

    Of equal counts, the first rows are returned.
    """
    rows, found_S = np.empty(len(ends_S) * k, np.int64), np.empty(len(ends_S), np.int64)
    at = first = 0
    for s in range(len(ends_S)):
        best = heaviest_rows(counts_N[first : ends_S[s]], min(k, ends_S[s] - first))
        _sort(best)
        for row in best:
            rows[at] = rows_N[first + row]
            at += 1
        found_S[s], first = at, ends_S[s]
    return rows[:at].copy(), found_S


@njit(cache=True)
def _append(rows, at, begin, end):
    """Write the rows from begin to end at a place; return the place after them."""
    for row in range(begin, end):
        rows[at] = row
        at += 1
    return at


@njit(cache=True)
def _sort(rows_K):
    """Sort a few rows in place."""
    for i in range(1, len(rows_K)):
        row, at = rows_K[i], i
        while at > 0 and rows_K[at - 1] > row:
            rows_K[at] = rows_K[at - 1]
            at -= 1
        rows_K[at] = row


def sums_before(values_R: Any) -> Any:
    """Return the sum of the values before each row, and of all."""
    xp = array_module(values_R)
    sums_R1 = xp.zeros(len(values_R) + 1, np.int64)
    xp.cumsum(values_R, out=sums_R1[1:], dtype=np.int64)
    return sums_R1
