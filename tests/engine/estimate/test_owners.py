"""Which part has which n-grams, by hand."""

import numpy as np

from mgpu_ngram.engine.estimate.owners import Owners, owners_of


def keys_of(bigrams, bits=4):
    return np.array([[(first + 1) << 60 | (second + 1) << (60 - bits) for first, second in bigrams]], np.uint64)


def test_part_of():
    """Word 3 is split: the word before it selects the part of its trigrams, not of its bigrams."""
    owners = owners_of([np.array([1, 3]), np.array([2])], [{2: 2}, {2: 3}], 5, [3])
    assert owners.part_V.tolist() == [0, 0, 1, 0, 0] and owners.rows == {2: [2, 3]}
    assert owners.part_of(None, np.array([1, 2, 3]), 2, 4).tolist() == [0, 1, 0]
    assert owners.part_of(keys_of([(2, 3), (1, 3), (3, 2)]), np.array([3, 3, 2]), 3, 4).tolist() == [1, 0, 1]


def test_suffix_rows():
    """Parts have 2 and 3 rows: row 0 of the second one has number 2, and place 4 of split bigrams has number 5 + 4."""
    suffixes, nodes = [np.array([1, 2 + 7]), np.array([0, 3 + 4])], [np.array([0, 3]), np.array([2, 1])]
    owners = Owners(np.zeros(5, np.uint16), (3, 4), {2: [2, 3], 3: [2, 3]})
    assert owners.suffix_rows(suffixes, nodes, 3).tolist() == [1, 5 + 4, 2, 5 + 7]
    assert owners.suffix_rows([np.array([1]), np.array([2])], [np.array([1]), np.array([0])], 4).tolist() == [2 + 2, 1]
