"""Sums over contexts, by hand."""

import numpy as np

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.sum_contexts import sum_contexts


def test_contexts_by_hand(to_device):
    """Four contexts: the second has no n-grams, and the last one only pruned n-grams and one with count 0."""
    context_R = to_device(np.array([0, 0, 0, 0, 2, 3, 3], np.uint32))
    count_R = to_device(np.array([1, 2, 3, 1 << 40, 1, 5, 0]))
    marked_R = to_device(np.array([0, 0, 1, 0, 0, 1, 0], bool))
    total_C, kinds_C3, pruned_C = map(to_host, sum_contexts(context_R, count_R, marked_R, 4))
    assert total_C.tolist() == [6 + (1 << 40), 0, 1, 5] and pruned_C.tolist() == [3, 0, 0, 5]
    assert kinds_C3.tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
    total_C, _, pruned_C = map(to_host, sum_contexts(context_R[4:], count_R[4:], marked_R[4:], 3, 2))
    assert total_C.tolist() == [1, 5, 0] and pruned_C.tolist() == [0, 5, 0]
    total_C, kinds_C3, pruned_C = sum_contexts(context_R, count_R, None, 4)
    total_C, kinds_C3 = to_host(total_C), to_host(kinds_C3)
    assert pruned_C is None and kinds_C3.tolist() == [[1, 1, 2], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
