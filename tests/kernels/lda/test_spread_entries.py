"""The order of a word's topics, compared with sorting in plain Python."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.spread_entries import example, spread_entries


def spread_by_hand(entries):
    """Return the entries of a word: heads by their order, then the others by (rank in their bank, bank)."""
    heads, others, ranks = [], [], []
    for entry in entries:
        if len(heads) < 32 and sum(head % 32 == entry % 32 for head in heads) < 3:
            heads.append(entry)
        else:
            ranks.append((sum(other % 32 == entry % 32 for other in others), entry % 32))
            others.append(entry)
    return heads + [others[i] for i in sorted(range(len(others)), key=ranks.__getitem__)]


def test_by_hand(to_device):
    """Word 0 has six topics of bank 1 and one of bank 0; word 1 has none; word 2 has 40 topics of different banks."""
    first, last = [1, 33, 65, 97, 129, 161, 32], [*range(64, 96), *range(8)]
    starts_V1 = np.array([0, 7, 7, 47])
    found = to_host(spread_entries(to_device(starts_V1), to_device(np.array(first + last, np.uint32))))
    assert found.tolist() == [1, 33, 65, 32, 97, 129, 161, *last]


@pytest.mark.parametrize("size", [300, 301])
def test_words_of_many_topics(size, to_device):
    given = example(np.random.default_rng(size), size)
    found = to_host(spread_entries(**{name: to_device(array) for name, array in given.items()})).tolist()
    starts, entries = given["starts_V1"].tolist(), given["entries_N"].tolist()
    assert max(np.diff(starts)) > 100
    for a, b in zip(starts, starts[1:], strict=False):
        assert found[a:b] == spread_by_hand(entries[a:b])
