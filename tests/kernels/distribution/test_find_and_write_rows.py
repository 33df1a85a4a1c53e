"""Rows of histories found in one kernel: by hand, and word by word from a dict of n-grams."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution import row_launch as module
from mgpu_ngram.kernels.distribution.find_and_write_rows import find_and_write_rows
from mgpu_ngram.kernels.distribution.find_histories import Positions
from mgpu_ngram.kernels.distribution.row_launch import RowKind, WordValues
from mgpu_ngram.kernels.trie.find_children import TrieIndex

STORED_AS = {"float32": np.float32, "float16": np.float16}


def rows(trie_of, to_device, ngrams, codes, positions, begin, orders, multiply, nothing, fanout=32, dtype=np.uint32,
         stored_as="float32", padding=0):  # fmt: skip
    """Return the rows of a model {n-gram: (value, backoff)}, (H, orders, V); the padding must stay unchanged."""
    trie = trie_of(ngrams, fanout, dtype).map_arrays(to_device)
    V, value_G = trie.symbols, abs(trie.prob_G) if multiply else trie.prob_G  # a trie has logarithms
    memory = to_device(np.full((len(positions), len(orders), V + padding), 77, STORED_AS[stored_as]))
    where = Positions(to_device(np.array(codes, np.uint32)), to_device(np.array(positions, np.int64)), begin)
    values = WordValues(trie.word_G, value_G, value_G[:V])
    kind = RowKind(multiply, nothing)
    find_and_write_rows(memory[:, :, :V], orders, index_of(trie), trie.order, where, trie.backoff_M, values, kind)
    written = to_host(memory)
    assert (written[:, :, V:] == 77).all()
    return written[:, :, :V]


def plain_rows(ngrams, codes, positions, begin, orders, multiply, nothing):
    """By the definition: an n-gram's own value, or the value of the order below with the history's backoff."""
    V = sum(len(g) == 1 for g in ngrams)
    made = []
    for t in positions:
        history = []
        while t > 0 and codes[t - 1]:
            t -= 1
            history.insert(0, codes[t] - 1)
        if begin >= 0:
            history.insert(0, begin)
        of_order = {1: [ngrams[w,][0] for w in range(V)]}
        for n in range(2, max(orders) + 1):
            last = tuple(history[1 - n :]) if len(history) >= n - 1 else None
            backoff = ngrams[last][1] if last in ngrams else 1 if multiply else 0
            below = [v * backoff if multiply else v + backoff for v in of_order[n - 1]]
            others = below if nothing is None else [nothing] * V
            of_order[n] = [ngrams[*last, w][0] if last and (*last, w) in ngrams else others[w] for w in range(V)]
        made.append([of_order[n] for n in orders])
    return np.array(made, np.float32).reshape(len(positions), len(orders), V)


BIGRAMS = {(0,): (0.5, 1), (1,): (0.25, 0.5), (2,): (0.25, 2), (1, 0): (0.75, 1), (1, 2): (0.125, 1)}


def test_by_hand(trie_of, to_device):
    """The text 1 2 | 1: after 1, after 1 2 (2 has no children), at the beginning, after the last 1."""
    found = rows(trie_of, to_device, BIGRAMS, [2, 3, 0, 2], [1, 2, 3, 4], -1, (1, 2), True, None)
    u, after_1, after_2 = [0.5, 0.25, 0.25], [0.75, 0.125, 0.125], [1.0, 0.5, 0.5]
    assert found.tolist() == [[u, after_1], [u, after_2], [u, u], [u, after_1]]
    found = rows(trie_of, to_device, BIGRAMS, [2, 3, 0, 2], [1, 2, 3, 4], 1, (2,), True, 0.0)
    stored = [0.75, 0.0, 0.125]
    assert found.tolist() == [[stored], [[0.0] * 3], [stored], [stored]]


def random_ngrams(rng, V, order, size, multiply):
    """Return n-grams with all their parts, and values that can be added or multiplied without rounding."""
    text = np.minimum(rng.zipf(1.4, size + order) - 1, V - 1).tolist()
    longest = [tuple(text[i : i + order]) for i in range(size)]
    inside = {g[a:b] for g in longest for a in range(order) for b in range(a + 1, order + 1)}
    numbers = rng.integers(1, 9, (len(inside) + V, 2)).astype(float)
    values = 2.0**-numbers if multiply else -numbers / 64
    return dict(zip(sorted(inside | {(w,) for w in range(V)}), values.tolist(), strict=False))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6), V=st.integers(1, 60), order=st.integers(1, 6), size=st.integers(1, 80),
    fanout=st.sampled_from([2, 3, 8, 32]), dtype=st.sampled_from([np.uint32, np.int64]),
    codes=st.lists(st.integers(0, 60), max_size=30), data=st.data(), multiply=st.booleans(),
    nothing=st.sampled_from([None, 0.0, -math.inf]), padding=st.integers(0, 9),
)  # fmt: skip
def test_any_model(
    trie_of, to_device, seed, V, order, size, fanout, dtype, codes, data, multiply, nothing, padding
):  # fmt: skip
    """Sentences of any length, the empty text, unknown words (0), positions in any order, rows anywhere in memory."""
    ngrams = random_ngrams(np.random.default_rng(seed), V, order, size, multiply)
    codes = [min(code, V) for code in codes]
    positions = data.draw(st.lists(st.integers(0, len(codes)), max_size=20))
    begin = data.draw(st.integers(-1, V - 1))
    orders = tuple(sorted(data.draw(st.sets(st.integers(1, order), min_size=1))))
    asked = ngrams, codes, positions, begin, orders, multiply, nothing
    found = rows(trie_of, to_device, *asked, fanout, dtype, padding=padding)
    assert found.tolist() == plain_rows(*asked).tolist()


MANY = {"FEW_WORDS": (0, 0), "SHORT_WORDS": (0, 0)}
LIMITS = [{}, {"FEWEST_WORDS": 0, "MAX_GRID_Y": 5}, {"FEW_WORDS": (0, 0)}, MANY]


@pytest.mark.parametrize("V", [100, 129, 512, 513, 2049, 5000])
@pytest.mark.parametrize("stored_as", [*STORED_AS])
@pytest.mark.parametrize("limits", LIMITS)
def test_rows_of_several_tiles(V, stored_as, limits, device, trie_of, to_device, monkeypatch):
    """One or several blocks per history, small and large tiles, few and many words."""
    if device == "cpu" and limits:
        pytest.skip("a CPU has no tiles")
    for name, limit in limits.items():
        monkeypatch.setattr(module, name, limit)
    rng = np.random.default_rng(V)
    ngrams = random_ngrams(rng, V, 5, 2000, True)
    codes = np.minimum(rng.zipf(1.4, 60), V)
    codes[rng.random(60) < 0.1] = 0
    for orders, nothing, dtype, padding in ((1, 2, 3, 4, 5), None, np.uint32, -V % 32), ((2, 5), 0.0, np.int64, 3):
        asked = ngrams, codes.tolist(), list(range(0, 61, 3)), 0, orders, True, nothing
        found = rows(trie_of, to_device, *asked, dtype=dtype, stored_as=stored_as, padding=padding)
        assert found.tolist() == plain_rows(*asked).astype(STORED_AS[stored_as]).tolist()


def test_33_orders(trie_of, to_device):
    """A history of as many words as a warp has lanes."""
    ngrams = {(0,) * n: (-n / 64, -2) for n in range(1, 34)} | {(1,): (-0.5, -1)}
    asked = ngrams, [1] * 40 + [0, 1], [0, 1, 31, 32, 33, 40, 41, 42], -1, (1, 17, 33), False, None
    assert rows(trie_of, to_device, *asked).tolist() == plain_rows(*asked).tolist()


def test_what_does_not_fit(trie_of, to_device):
    with pytest.raises(ValueError, match=r"orders are \(3,\) but must rise from 1 to 2 at most"):
        rows(trie_of, to_device, BIGRAMS, [2, 3, 0, 2], [1], -1, (3,), True, None)
    with pytest.raises(ValueError, match=r"orders are \(\) but must rise from 1 to 2 at most"):
        rows(trie_of, to_device, BIGRAMS, [2, 3, 0, 2], [1], -1, (), True, None)


def test_a_room_of_another_shape():
    words, floats = np.zeros(3, np.uint32), np.zeros(3, np.float32)
    index = TrieIndex(words, np.zeros(4, np.uint32), np.zeros(0, np.uint32), np.zeros(1, np.int64), 32)
    where = Positions(np.zeros(0, np.uint32), np.zeros(2, np.int64), -1)
    with pytest.raises(ValueError, match=r"out_HNV has shape \(1, 2, 3\) but the rows need \(2, 2, 3\)"):
        find_and_write_rows(
            np.zeros((1, 2, 3), np.float32), (1, 2), index, 2, where, floats, WordValues(words, floats, floats),
            RowKind(True),
        )  # fmt: skip
