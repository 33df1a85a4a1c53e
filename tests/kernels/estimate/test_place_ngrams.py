"""N-grams of parts among the nodes of an order, and keys of nodes from those of their histories."""

import numpy as np
import pytest

from mgpu_ngram.engine.count.count_chunk import pack_codes
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.extend_keys import TILE, extend_keys
from mgpu_ngram.kernels.estimate.place_ngrams import NgramBlocks, NgramNodes, place_ngrams


def ngrams_of(rng, words, n, size):
    """Distinct n-grams in order; half of them share one history."""
    found = rng.integers(0, words, (size, n))
    found[: size // 2, :-1] = words // 2
    return sorted(set(map(tuple, found.tolist())))


@pytest.mark.parametrize(("row", "node"), [(np.uint32, np.uint32), (np.int64, np.uint32), (np.uint32, np.int64)])
@pytest.mark.parametrize("size", [1, 100, 5 * TILE])
def test_nodes_of_three_parts(size, row, node, to_device):
    """Contexts belong to parts by their last words; nodes are all n-grams in order."""
    rng = np.random.default_rng(size)
    ngrams = ngrams_of(rng, 60, 3, size)
    contexts = sorted({g[:-1] for g in ngrams} | {(99, 99)})  # the last one has no n-grams
    node_of = {g: i for i, g in enumerate(ngrams)}
    first_M1 = np.searchsorted([contexts.index(g[:-1]) for g in ngrams], np.arange(len(contexts) + 1))
    nodes = NgramNodes(to_device(np.zeros(len(ngrams), np.uint32)), to_device(np.zeros(len(ngrams), np.float32)))
    for part in range(3):
        mine = [g for g in ngrams if g[1] % 3 == part]
        here = sorted({g[:-1] for g in mine})
        first_C1 = 7 + np.searchsorted([here.index(g[:-1]) for g in mine], np.arange(len(here) + 1))
        words = np.array([g[-1] for g in mine], np.uint32)
        log10_R = np.array([node_of[g] / 8 for g in mine], np.float32)
        arrays = np.array([contexts.index(c) for c in here], np.int64), first_C1.astype(row), words, log10_R
        with_places = part != 1
        place_R = place_ngrams(
            NgramBlocks(*map(to_device, arrays)), to_device(first_M1.astype(node)), nodes, with_places
        )
        if with_places:
            assert place_R.dtype == node and to_host(place_R).tolist() == [node_of[g] for g in mine]
        else:
            assert place_R is None
    assert to_host(nodes.word_G).tolist() == [g[-1] for g in ngrams]
    assert (to_host(nodes.log10_G) == np.arange(len(ngrams), dtype=np.float32) / 8).all()


@pytest.mark.parametrize("row", [np.uint32, np.int64])
@pytest.mark.parametrize("bits", [16, 17, 21, 32])
@pytest.mark.parametrize("size", [1, 100, 3 * TILE])
def test_keys_of_children(size, bits, row, to_device):
    """Orders 2 to 6: a last word lies in the last column of its history, begins a new one, or lies in both."""
    rng = np.random.default_rng(size)
    for n in range(2, 7):
        ngrams = np.array(ngrams_of(rng, 60, n, size))
        histories = sorted(set(map(tuple, ngrams[:, :-1].tolist())) | {(0,) * (n - 1)})
        numbers = {h: i for i, h in enumerate(histories)}
        history_G = [numbers[tuple(h)] for h in ngrams[:, :-1].tolist()]
        first_M1 = np.searchsorted(history_G, np.arange(len(histories) + 1)).astype(row)

        def keys_of(words):
            return pack_codes([np.ascontiguousarray(w).astype(np.uint32) + np.uint32(1) for w in words.T], bits)

        arrays = keys_of(np.array(histories)), first_M1, ngrams[:, -1].astype(np.uint32)
        found = to_host(extend_keys(*map(to_device, arrays), n, bits))
        assert (found == keys_of(ngrams)).all()
    with pytest.raises(ValueError, match="got keys of 1 columns but 5 words of 32 bits need 3"):
        extend_keys(*map(to_device, (np.zeros((1, 1), np.uint64), first_M1[:2], arrays[2])), 6, 32)
