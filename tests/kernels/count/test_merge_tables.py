"""Merging sorted tables: sums of Counters, in any order and grouping."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.merge_tables import merge_tables
from mgpu_ngram.kernels.dispatch import to_host

ORDER, BITS = 3, 25  # two columns, the last word across both
WIDE = 2**25 - 1
COUNTERS = st.dictionaries(st.tuples(*[st.sampled_from([1, 2, WIDE])] * ORDER), st.integers(1, 2**40), max_size=20).map(
    Counter
)


@pytest.fixture(scope="session")
def to_table(to_device, pack_keys):
    def convert(counter, order=ORDER, bits=BITS):
        ngrams = sorted(counter)
        counts = np.array([counter[g] for g in ngrams], np.int64)
        return to_device(pack_keys(ngrams, order, bits)), to_device(counts)

    return convert


def rows(table):
    keys, counts = table
    assert keys.dtype == np.uint64 and counts.dtype == np.int64
    return to_host(keys).tolist(), to_host(counts).tolist()


def test_by_hand(to_table):
    a, b = Counter({(1, 1, 1): 2, (1, 2, 1): 1}), Counter({(1, 1, 1): 5, (2, 1, 1): 1, (1, 1, WIDE): 3})
    merged = merge_tables([to_table(a), to_table(b)], ORDER, BITS)
    assert rows(merged) == rows(to_table({(1, 1, 1): 7, (1, 1, WIDE): 3, (1, 2, 1): 1, (2, 1, 1): 1}))


@given(st.lists(COUNTERS, min_size=1, max_size=6))
def test_is_the_sum_of_counters(to_table, counters):
    merged = merge_tables([to_table(c) for c in counters], ORDER, BITS)
    assert rows(merged) == rows(to_table(sum(counters, Counter())))


@given(COUNTERS, COUNTERS, COUNTERS)
def test_associative_and_commutative(to_table, a, b, c):
    def merge(*tables):
        return merge_tables(list(tables), ORDER, BITS)

    a, b, c = to_table(a), to_table(b), to_table(c)
    left = rows(merge(merge(a, b), c))
    assert left == rows(merge(a, merge(b, c))) == rows(merge(c, a, b)) == rows(merge(b, a, c))


@given(COUNTERS)
def test_an_empty_table_changes_nothing(to_table, counter):
    table, empty = to_table(counter), to_table(Counter())
    for tables in ([table], [table, empty], [empty, table], [empty, table, empty]):
        assert rows(merge_tables(tables, ORDER, BITS)) == rows(table)
    assert rows(merge_tables([empty, empty], ORDER, BITS)) == rows(empty)


@pytest.mark.parametrize(("order", "bits"), [(1, 1), (1, 25), (2, 32), (5, 19), (12, 25)])
def test_keys_of_many_widths(order, bits, to_table):
    rng = np.random.default_rng(order)
    counters = [
        Counter(map(tuple, rng.integers(1, min(2**bits, 4), (size, order)).tolist())) for size in (300, 0, 150, 1, 77)
    ]
    merged = merge_tables([to_table(c, order, bits) for c in counters], order, bits)
    assert rows(merged) == rows(to_table(sum(counters, Counter()), order, bits))


def test_tables_that_are_slices(to_device, to_table):
    keys, counts = to_table({(1, 1, 1): 2, (1, 2, 1): 1, (2, 1, 1): 4})
    merged = merge_tables([(keys[:, :2], counts[:2]), (keys[:, 1:], counts[1:])], ORDER, BITS)
    assert rows(merged) == rows(to_table({(1, 1, 1): 2, (1, 2, 1): 2, (2, 1, 1): 4}))
