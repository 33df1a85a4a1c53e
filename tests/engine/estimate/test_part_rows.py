"""Numbers of the rows of all parts, by hand."""

import numpy as np

from mgpu_ngram.engine.estimate.part_rows import rows_of_parts


def test_suffix_rows():
    """Parts have 2 and 3 rows: row 0 of the second one has number 2, and place 4 of split bigrams has number 5 + 4."""
    suffixes, nodes = [np.array([1, 2 + 7]), np.array([0, 3 + 4])], [np.array([0, 3]), np.array([2, 1])]
    rows = rows_of_parts([{2: 2, 3: 2}, {2: 3, 3: 3}], 5, (3, 4))
    assert rows.suffix_rows(suffixes, nodes, 3).tolist() == [1, 5 + 4, 2, 5 + 7]
    assert rows.suffix_rows([np.array([1]), np.array([2])], [np.array([1]), np.array([0])], 4).tolist() == [2 + 2, 1]
