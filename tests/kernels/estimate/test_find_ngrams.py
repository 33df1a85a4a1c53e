"""Find rows of n-grams within longer ones, against a dictionary, in any order of queries."""

import numpy as np
import pytest

from mgpu_ngram.engine.count.count_chunk import pack_codes
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.find_ngrams import SAMPLED, TOGETHER, find_ngrams


def keys_of(ngrams, bits):
    codes = np.array(ngrams, np.uint32)
    return pack_codes([np.ascontiguousarray(codes[:, i]) for i in range(codes.shape[1])], bits)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("words", [2, 5, 40])
@pytest.mark.parametrize(("order", "first", "bits"), [(1, 1, 21), (3, 1, 21), (4, 1, 21), (4, 0, 33), (2, 2, 40)])
def test_as_a_dictionary_has_them(order, first, bits, words, in_order, to_device):
    """Tables of up to 4,000 n-grams; a third have the same word, so many rows share their first column."""
    rng = np.random.default_rng(order * words)
    longer = rng.integers(1, words + 1, (6_000, first + order))
    longer[::3, : first + order - 1] = 1
    longer[::3, -1] = rng.integers(1, 10 * SAMPLED, 2_000)
    if in_order:
        longer = longer[np.lexsort(longer.T[::-1])]
    table = sorted({tuple(row[first:]) for row in longer[::2].tolist()})
    rows = {ngram: row for row, ngram in enumerate(table)}
    expected = [rows.get(tuple(row[first:]), -1) for row in longer.tolist()]
    assert -1 in expected
    found = find_ngrams(to_device(keys_of(table, bits)), order, bits, to_device(keys_of(longer, bits)), first)
    assert to_host(found).tolist() == expected


def test_an_empty_table_has_none(to_device):
    queries = to_device(keys_of([(1, 2), (2, 1)], 20))
    table = to_device(np.empty((1, 0), np.uint64))
    assert to_host(find_ngrams(table, 1, 20, queries, 1)).tolist() == [-1, -1]


@pytest.mark.parametrize("queries", [0, 1, TOGETHER - 1, TOGETHER, TOGETHER + 1])
@pytest.mark.parametrize("rows", [1, 2, SAMPLED - 1, SAMPLED, SAMPLED + 1, 3 * SAMPLED])
def test_any_number_of_queries_and_rows(queries, rows, to_device):
    """Rows are the words 5, 15, 25, ...; queries lie before, on, between and after them."""
    table = keys_of([(10 * row + 5,) for row in range(rows)], 20)
    sought = [(1, (7 * q) % (10 * rows + 20)) for q in range(queries)]
    keys = keys_of(sought, 20) if sought else np.empty((1, 0), np.uint64)
    found = to_host(find_ngrams(to_device(table), 1, 20, to_device(keys), 1)).tolist()
    assert found == [word // 10 if word % 10 == 5 and word < 10 * rows else -1 for _, word in sought]
