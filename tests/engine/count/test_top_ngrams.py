"""The most frequent n-grams of shards: greatest counts, of equal counts the first."""

import numpy as np
import pytest

from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.engine.count import top_ngrams as heaviest_module
from mgpu_ngram.engine.count.top_ngrams import heaviest, summaries
from mgpu_ngram.kernels.dispatch import to_host


def summaries_of(counts, ends, top, to_device):
    keys = np.arange(1, len(counts) + 1, dtype=np.uint64)[None] << np.uint64(40)
    table = ShardedTable(to_device(keys), to_device(np.array(counts, np.int64)), np.array(ends), 1, 24)
    return summaries(table, top)


def test_of_equal_counts_in_two_chunks_the_first_is_taken(to_device, monkeypatch):
    monkeypatch.setattr(heaviest_module, "CHUNK_ROWS", 16)
    counts = np.ones(7 * 16, np.int64)
    counts[[20, 50, 51, 90]] = 5, 9, 5, 5
    [found] = summaries_of(counts, [len(counts)], 2, to_device)
    assert (found.distinct, found.total) == (112, 112 + 4 + 8 + 4 + 4)
    assert heaviest(found.head, 2)[0].tolist() == [[51], [21]]  # codes are rows + 1


@pytest.mark.parametrize("top", [0, 1, 3, 40])
@pytest.mark.parametrize("most", [2, 1000])
def test_against_sorting(top, most, to_device, monkeypatch):
    monkeypatch.setattr(heaviest_module, "CHUNK_ROWS", 8)
    rng = np.random.default_rng(most + top)
    counts, ends = rng.integers(1, most, 700), [0, 5, 90, 90, 97, 500, 700]
    starts = [0, *ends]
    for found, begin, end in zip(summaries_of(counts, ends, top, to_device), starts, ends, strict=False):
        rows = sorted(range(begin, end), key=lambda row: (-counts[row], row))[:top]
        assert (found.distinct, found.total) == (end - begin, counts[begin:end].sum())
        assert to_host(found.head.counts).tolist() == [counts[row] for row in sorted(rows)]
        codes, most_counts = heaviest(found.head, top)
        assert codes.tolist() == [[row + 1] for row in rows]
        assert most_counts.tolist() == [counts[row] for row in rows]
