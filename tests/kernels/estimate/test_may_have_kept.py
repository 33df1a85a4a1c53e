"""N-grams whose contexts have n-grams that are not pruned."""

import numpy as np

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.may_have_kept import NO_CONTEXT, may_have_kept


def test_contexts_by_hand(to_device):
    """Contexts (1, 7) and (2, 7) have n-grams that stay; (1, 8) has none, and one suffix has no context."""
    first_R = to_device(np.array([1, 2, 1, 1, 2, 1], np.uint64))
    suffix_R = to_device(np.array([0, 0, 1, 2, 3, 3], np.uint32))
    context_M = to_device(np.array([7, 8, 7, NO_CONTEXT], np.uint32))
    marked_R = to_device(np.array([1, 0, 1, 0, 1, 1], bool))
    found_R = to_host(may_have_kept(first_R, suffix_R, context_M, marked_R)).tolist()
    assert found_R == [True, True, False, True, False, False]


def test_few_others(to_device):
    """All contexts with kept n-grams are found, and about one of 16 of the others at most."""
    rng = np.random.default_rng(1)
    R, contexts = 200_000, 100_000
    first_R, context_M = rng.integers(1, 50, R).astype(np.uint64), np.arange(contexts, dtype=np.uint32)
    suffix_R = np.sort(rng.integers(0, contexts, R)).astype(np.uint32)
    marked_R = rng.random(R) < 0.95
    arrays = map(to_device, (first_R, suffix_R, context_M, marked_R))
    found_R = to_host(may_have_kept(*arrays))
    pairs = first_R << np.uint64(32) | suffix_R
    expected_R = np.isin(pairs, pairs[~marked_R])
    assert found_R[expected_R].all() and expected_R.any()
    assert 0 < found_R[~expected_R].mean() < 1 / 12
