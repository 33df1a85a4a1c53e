"""Merge sorted tables segment by segment: sums of Counters, in any order and grouping."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.merge_tables import ITEMS, THREADS, _merge_two, merge_tables
from mgpu_ngram.kernels.dispatch import to_host

TILE_ROWS = THREADS * ITEMS  # the most merged rows of one block of the CUDA kernel
LARGEST = 2**64 - 1


def table_of(segments, columns, to_device):
    """Return a table of one Counter per segment; keys are tuples of `columns` numbers."""
    rows = [(key, counter[key]) for counter in segments for key in sorted(counter)]
    keys = np.array([key for key, _ in rows], np.uint64).reshape(len(rows), columns).T
    counts = np.array([count for _, count in rows], np.int64)
    ends_S = np.cumsum([len(counter) for counter in segments])
    return to_device(np.ascontiguousarray(keys)), to_device(counts), ends_S


def segments_of(table):
    """Return the rows of each segment as (key, count), in order."""
    keys, counts, ends_S = table
    assert keys.dtype == np.uint64 and counts.dtype == ends_S.dtype == np.int64
    assert isinstance(ends_S, np.ndarray) and ends_S[-1] == keys.shape[1] == len(counts)
    rows = list(zip(zip(*to_host(keys).tolist(), strict=True), to_host(counts).tolist(), strict=True))
    return [rows[a:b] for a, b in zip([0, *ends_S[:-1]], ends_S, strict=True)]


def sums_of(tables):
    """Return the sorted sums of tables, each given as one Counter per segment."""
    return [sorted(sum(segment, Counter()).items()) for segment in zip(*tables, strict=True)]


@st.composite
def tables_of_counters(draw, most=5):
    """Draw (columns, up to `most` tables of the same 1 to 4 segments, with keys of few distinct numbers)."""
    columns, segments = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    numbers = st.sampled_from([0, 1, 2**63 - 1, 2**63, LARGEST])
    counter = st.dictionaries(st.tuples(*[numbers] * columns), st.integers(1, 2**40), max_size=12).map(Counter)
    return columns, draw(st.lists(st.tuples(*[counter] * segments), min_size=1, max_size=most))


def test_by_hand(to_device):
    a = (to_device(np.array([[1, 4, 2, 9], [7, 0, 2, 3]], np.uint64)), to_device(np.array([2, 1, 5, 1])))
    b = (to_device(np.array([[1, 1, 2], [7, 8, 1]], np.uint64)), to_device(np.array([5, 1, 3])))
    keys, counts, ends_S = merge_tables([(*a, np.array([2, 2, 4])), (*b, np.array([2, 2, 3]))])
    assert to_host(keys).tolist() == [[1, 1, 4, 2, 2, 9], [7, 8, 0, 1, 2, 3]]
    assert to_host(counts).tolist() == [7, 1, 1, 3, 5, 1]
    assert ends_S.tolist() == [3, 3, 6]


def test_keys_of_other_segments_stay_apart(to_device):
    a = table_of([Counter({(5,): 1}), Counter({(5,): 2})], 1, to_device)
    b = table_of([Counter(), Counter({(5,): 4, (3,): 1})], 1, to_device)
    assert segments_of(merge_tables([a, b])) == [[((5,), 1)], [((3,), 1), ((5,), 6)]]


@given(tables_of_counters())
def test_is_the_sum_of_counters(to_device, case):
    columns, tables = case
    assert segments_of(merge_tables([table_of(t, columns, to_device) for t in tables])) == sums_of(tables)


@given(tables_of_counters(3))
def test_associative_and_commutative(to_device, case):
    def merge(*tables):
        return merge_tables(list(tables))

    columns, tables = case
    a, b, c = (table_of(t, columns, to_device) for t in (tables * 3)[:3])
    left = segments_of(merge(merge(a, b), c))
    assert left == segments_of(merge(a, merge(b, c)))
    assert left == segments_of(merge(c, a, b)) == segments_of(merge(b, a, c))


@given(tables_of_counters(1))
def test_an_empty_table_changes_nothing(to_device, case):
    columns, [counters] = case
    table = table_of(counters, columns, to_device)
    empty = table_of([Counter()] * len(counters), columns, to_device)
    for tables in ([table], [table, empty], [empty, table], [empty, table, empty]):
        assert segments_of(merge_tables(tables)) == sums_of([counters])
    assert segments_of(merge_tables([empty, empty])) == [[]] * len(counters)


def test_a_lone_table_comes_back_as_it_is(to_device):
    table = table_of([Counter({(1,): 2})], 1, to_device)
    assert all(got is given for got, given in zip(merge_tables([table]), table, strict=True))


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 40])
def test_keys_that_differ_in_any_column(columns, to_device):
    """For each column, a key that differs from the others only there."""
    base = (7,) * columns
    keys = [base, *[(*base[:c], value, *base[c + 1 :]) for c in range(columns) for value in (1, LARGEST)]]
    tables = [[Counter({key: i + 1 for i, key in enumerate(keys) if i % 3 != skip})] for skip in (0, 1)]
    assert segments_of(merge_tables([table_of(t, columns, to_device) for t in tables])) == sums_of(tables)


def test_tables_that_are_slices(to_device):
    tables = [[Counter({(i, i): 1 for i in range(first, 60, 2)}), Counter({(first, 9): 3})] for first in (0, 10, 1)]
    arrays = []
    for segments in tables:
        keys, counts, ends_S = table_of([Counter({(3, 3): 8}), *segments, Counter({(0, 0): 8})], 2, to_device)
        arrays.append((keys[:, 1:-1], counts[1:-1], ends_S[1:-1] - 1))
    assert segments_of(merge_tables(arrays)) == sums_of(tables)


def test_keys_whose_columns_lie_side_by_side(to_device):
    keys = to_device(np.array([[1, 8], [2, 7], [3, 6]], np.uint64)).T
    table = keys, to_device(np.array([1, 2, 3])), np.array([3])
    merged = merge_tables([table, table])
    assert segments_of(merged) == [[((1, 8), 2), ((2, 7), 4), ((3, 6), 6)]]


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("rows", [TILE_ROWS // 2, TILE_ROWS - 1, 2 * TILE_ROWS, 5 * TILE_ROWS])
def test_pairs_at_the_borders_of_tiles(rows, first, to_device):
    """Keys in both tables, but for one row before them in one table: tile borders fall on every place of a pair."""
    keys_a, keys_b = np.arange(first, rows), np.arange(1, rows)
    arrays = [(k.astype(np.uint64)[None], counts) for k, counts in ((keys_a, keys_a + 1), (keys_b, 10 * keys_b))]
    keys, counts, ends_S = merge_tables([(to_device(k), to_device(c), np.array([len(c)])) for k, c in arrays])
    expected = np.arange(min(first, 1), rows)
    assert to_host(keys)[0].tolist() == expected.tolist() and ends_S.tolist() == [len(expected)]
    assert (to_host(counts) == np.where(expected >= first, expected + 1, 0) + 10 * expected).all()


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("columns", [1, 2, 4])
def test_against_lexsort(columns, shared, to_device):
    check_against_lexsort(20_000, columns, 7, shared, to_device)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_million_rows_in_300_segments(columns, shared):
    import cupy

    check_against_lexsort(1_000_000, columns, 300, shared, cupy.array)


def check_against_lexsort(rows, columns, segments, shared, to_device):
    """Three tables; a share `shared` of their rows is drawn from the same keys."""
    rng = np.random.default_rng(rows + columns)

    def draw(size):
        drawn = rng.integers(0, 2**64, (columns + 1, size), np.uint64)
        drawn[1:-1] %= np.uint64(3)  # the columns before the last have few values
        drawn[0] = np.minimum(drawn[0] % np.uint64(segments), drawn[0] >> np.uint64(56))  # segments of many sizes
        return drawn

    def summed(drawn, counts):
        """Distinct rows, sorted, with their counts summed."""
        order = np.lexsort(drawn[::-1])
        drawn, counts = drawn[:, order], counts[order]
        heads = np.flatnonzero(np.append(True, (drawn[:, 1:] != drawn[:, :-1]).any(axis=0)))
        return np.ascontiguousarray(drawn[:, heads]), np.add.reduceat(counts, heads)

    pool, tables = draw(rows), []
    for _ in range(3):
        part = pool[:, rng.random(rows) < shared]
        drawn = np.concatenate([part, draw(rows - part.shape[1])], axis=1)
        tables.append(summed(drawn, rng.integers(1, 2**40, rows)))
    ends = [np.searchsorted(t[0], np.arange(segments, dtype=np.uint64), side="right") for t, _ in tables]
    on_device = [(to_device(t[1:]), to_device(c), e) for (t, c), e in zip(tables, ends, strict=True)]
    keys, counts, ends_S = merge_tables(on_device)
    expected, expected_counts = summed(*(np.concatenate(part, axis=-1) for part in zip(*tables, strict=True)))
    assert (to_host(keys) == expected[1:]).all() and (to_host(counts) == expected_counts).all()
    assert (ends_S == np.searchsorted(expected[0], np.arange(segments, dtype=np.uint64), side="right")).all()


def test_a_table_of_much_room_is_copied(to_device):
    """Equal tables leave half of the allocation unused; a slice would keep all of it alive."""
    table = table_of([Counter({(i,): 1 for i in range(1000)})], 1, to_device)
    keys, counts, _ = merge_tables([table, table])
    assert keys.base is None and counts.base is None


@pytest.mark.parametrize(
    ("keys", "counts", "ends", "message"),
    [
        ((1, 2), 2, [1, 2], "table 1 has 1 columns, 2 segments and, in keys, counts and ends_S, 2, 2 and 2 rows"),
        ((2, 2), 2, [2], "table 1 has 2 columns, 1 segments"),
        ((2, 2), 3, [1, 2], "2, 3 and 2 rows; give every table 2 columns and 2 segments, as table 0"),
        ((2, 2), 2, [1, 3], "2, 2 and 3 rows"),
    ],
)
def test_tables_that_do_not_match_are_refused(keys, counts, ends, message):
    first = np.zeros((2, 1), np.uint64), np.ones(1, np.int64), np.array([0, 1])
    other = np.zeros(keys, np.uint64), np.ones(counts, np.int64), np.array(ends)
    with pytest.raises(ValueError, match=message):
        merge_tables([first, other])


def test_other_dtypes_are_refused():
    keys, counts, ends_S = np.zeros((1, 1), np.uint64), np.ones(1, np.int64), np.array([1])
    for wrong in (
        (keys.view(np.int64), counts, ends_S),
        (keys, counts.view(np.uint64), ends_S),
        (keys, counts, ends_S.view(np.uint64)),
    ):
        with pytest.raises(TypeError, match="expected u?int64 but got u?int64"):
            merge_tables([wrong])


def test_tables_that_cannot_be_written_are_not_compiled_for_again():
    table = table_of([Counter({(1, 2): 3})], 2, np.array)
    expected = segments_of(merge_tables([table, table]))
    compiled = len(_merge_two.signatures)
    for array in table:
        array.flags.writeable = False
    assert segments_of(merge_tables([table, table])) == expected and len(_merge_two.signatures) == compiled
