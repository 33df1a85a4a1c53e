"""Parts in suffix order, by hand: <s> a b a </s>, <s> b a </s>."""

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.engine.count.suffix_order import tables_of_windows
from mgpu_ngram.engine.estimate.adjusted_counts import last_ngrams, row_of_split
from mgpu_ngram.engine.estimate.part import EstimateOptions, SplitLeft, add_split_left
from mgpu_ngram.engine.estimate.part_of_tables import in_suffix_order, part_of_tables
from mgpu_ngram.kernels.count.select_windows import select_windows
from mgpu_ngram.kernels.dispatch import to_host

S, E, A, B = 2, 3, 4, 5  # codes of <s>, </s>, a, b
TEXT = [S, A, B, A, E, 0, S, B, A, E, 0]
BITS, SYMBOLS = 23, 5
# n-grams of order 3 in suffix order: the last context word, the predicted word, the word before
TRIGRAMS = [(A, E, B), (A, B, S), (B, A, S), (B, A, A)]


def part(to_device, order=3, **more):
    tokens = to_device(np.array(TEXT, np.uint32))
    columns, _ = select_windows(tokens, to_device(np.zeros(SYMBOLS, np.uint16)), (0, len(TEXT)), order, BITS, (0, 1))
    options = EstimateOptions(order, (0,) * order)
    return part_of_tables(tables_of_windows(columns, order, BITS), SYMBOLS, options, **more)


def test_adjusted_counts(to_device, unpack_keys):
    made = part(to_device)
    bigrams, trigrams = made.orders[2], made.orders[3]
    assert unpack_keys(to_host(bigrams.keys), 2, BITS) == [(S, A), (S, B), (A, E), (A, B), (B, A)]
    assert to_host(bigrams.raw_R).tolist() == [1, 1, 2, 1, 2]
    assert to_host(bigrams.suffix_R).tolist() == [code - 1 for code in (A, B, E, B, A)]
    assert to_host(bigrams.count_R).tolist() == [1, 1, 1, 1, 2]  # of <s> a and <s> b in the text; then words before
    assert unpack_keys(to_host(trigrams.keys), 3, BITS) == [(A, E, B), (A, B, S), (B, A, S), (B, A, A)]
    assert to_host(trigrams.suffix_R).tolist() == [2, 3, 4, 4]
    assert to_host(trigrams.count_R).tolist() == [2, 1, 1, 1]
    assert to_host(made.left_V).tolist() == [0, 0, 1, 2, 2]  # <unk>, <s>, </s>, a, b
    assert made.counts_of_counts == {2: [4, 1, 0, 0], 3: [3, 1, 0, 0]} and made.sizes == {2: (5, 5), 3: (4, 4)}


def test_split_bigrams(to_device):
    """a is split: its bigrams have no counts, and the suffixes of trigrams are rows behind all bigrams."""
    made = part(to_device, split=(A - 1,))
    assert [to_host(array).tolist() for array in made.split_left] == [[E - 1, B - 1], [1, 1]]
    assert to_host(made.orders[2].count_R).tolist() == [1, 1, 0, 0, 2]
    assert to_host(made.orders[3].suffix_R).tolist() == [5, 6, 4, 4]
    assert [row_of_split(made, place) for place in (E - 1, B - 1, A - 1, 99)] == [5, 6, None, None]
    made = part(to_device, split=(A - 1,), elsewhere=[A - 1])
    assert len(made.orders[2]) == 3 and to_host(made.orders[3].suffix_R).tolist() == [3, 4, 2, 2]


def test_split_bigrams_of_several_parts_are_added(to_device):
    one, other, nothing = ([2, 4], [1, 1]), ([0, 4], [5, 2]), ([], [])
    parts = [SplitLeft(*(to_device(np.array(array, np.int64)) for array in p)) for p in (one, nothing, other)]
    added = add_split_left(*parts)
    assert [to_host(array).tolist() for array in added] == [[0, 2, 4], [5, 1, 3]]
    assert to_host(added.dense(6)).tolist() == [5, 0, 1, 0, 3, 0]
    assert [len(array) for array in add_split_left(parts[1], parts[1])] == [0, 0]


def test_tables_of_counts_are_sorted_again(to_device, unpack_keys):
    ngrams = [(S, A, B), (S, B, A), (A, B, A), (B, A, E)]
    keys = np.array([[(g[0] << 2 * BITS | g[1] << BITS | g[2]) >> 5 for g in ngrams],
                     [((g[0] << 2 * BITS | g[1] << BITS | g[2]) & 31) << 59 for g in ngrams]], np.uint64)  # fmt: skip
    table = in_suffix_order(Table(to_device(keys), to_device(np.array([5, 6, 7, 8])), 3, BITS))
    assert unpack_keys(to_host(table.keys), 3, BITS) == TRIGRAMS
    assert to_host(table.counts).tolist() == [8, 5, 6, 7]


def test_the_last_ngrams(to_device):
    """a is the last word: of <s> b a and a b a, the one whose first word comes last."""
    made, place_V = part(to_device, 4), np.array([0, 1, 2, 9, 8])
    assert last_ngrams(made, 2, A - 1, place_V) == [(8, B - 1, 2, 2), (9, A - 1, 1, 1)]
    assert last_ngrams(made, 2, A - 1, place_V, split=(B - 1,)) == [(8, B - 1, 2, 2)]
    assert last_ngrams(made, 2, B - 1, place_V) == [(9, A - 1, 1, 1)]  # before a is <s>
