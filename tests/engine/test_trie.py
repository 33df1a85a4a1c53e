"""The trie of a model: by hand, as a dictionary of n-grams has it, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.trie import Ngrams
from mgpu_ngram.engine.trie import BadNgram, build_trie
from mgpu_ngram.kernels.dispatch import to_host


@pytest.fixture(scope="session")
def build(to_device):
    """A function: {n-gram: (prob, backoff)} -> Trie, rows in the order given."""

    def make(ngrams, fanout=4):
        orders = []
        N = max(map(len, ngrams))
        for n in range(1, N + 1):
            rows = [(g, *v) for g, v in ngrams.items() if len(g) == n]
            ids = np.array([g for g, _, _ in rows], np.uint32).reshape(-1, n)
            prob, backoff = (np.array([row[i] for row in rows], np.float32) for i in (1, 2))
            orders.append(Ngrams(to_device(ids), to_device(prob), to_device(backoff) if n < N else None))
        return build_trie(orders, fanout)

    return make


def contents(trie):
    """{n-gram: (prob, backoff)} of every node, and {n-gram: n-gram of its suffix link}, read from the arrays."""
    word, prob, backoff, first, suffix = (
        to_host(a).tolist() for a in (trie.word_G, trie.prob_G, trie.backoff_M, trie.first_child_M, trie.suffix_M)
    )
    ngram = {w: (w,) for w in range(trie.symbols)}
    for node in range(len(first) - 1):
        children = range(first[node], first[node + 1])
        assert [word[c] for c in children] == sorted({word[c] for c in children})
        ngram |= {c: (*ngram[node], word[c]) for c in children}
    assert sorted(ngram) == list(range(len(trie)))
    for n in range(1, trie.order + 1):
        level = [ngram[g] for g in range(trie.starts[n - 1], trie.starts[n])]
        assert level == sorted(level) and {len(g) for g in level} <= {n}
    found = {ngram[g]: (prob[g], backoff[g] if g < len(backoff) else 0.0) for g in ngram}
    return found, {ngram[m]: ngram.get(suffix[m], ()) for m in range(len(suffix))}


def f32(x):
    return float(np.float32(x))


def test_by_hand(build):
    trie = build({
        (0,): (-3, 0), (1,): (-99, -0.5), (2,): (-1, 0), (3,): (-2, -0.25),
        (3, 2): (-0.5, 0), (1, 3): (-0.75, -1.5), (3, 3): (-4, 0),
        (1, 3, 2): (-0.125, 0),
    })  # fmt: skip
    assert trie.starts == (0, 4, 7, 8) and trie.order == 3 and trie.symbols == 4
    assert to_host(trie.word_G).tolist() == [0, 1, 2, 3, 3, 2, 3, 2]
    assert to_host(trie.prob_G).tolist() == [-3, -99, -1, -2, -0.75, -0.5, -4, -0.125]
    assert to_host(trie.backoff_M).tolist() == [0, -0.5, 0, -0.25, -1.5, 0, 0]
    assert to_host(trie.first_child_M).tolist() == [4, 4, 5, 5, 7, 8, 8, 8]
    assert to_host(trie.suffix_M).tolist() == [8, 8, 8, 8, 3, 2, 3]
    assert trie.first_child_M.dtype == trie.suffix_M.dtype == np.uint32


def test_a_missing_suffix_is_filled_in_by_hand(build):
    """As KenLM does: 1 2 3 0 needs 2 3 0 and 3 0; these get what backing off gives them."""
    ngrams = {
        (0,): (-1, -0.125), (1,): (-2, -0.25), (2,): (-3, -0.5), (3,): (-4, -0.75),
        (1, 2): (-5, -1), (2, 3): (-6, -1.5),
        (1, 2, 3): (-7, -2),
        (1, 2, 3, 0): (-8, 0),
    }  # fmt: skip
    found, suffixes = contents(build(ngrams))
    assert found == ngrams | {(3, 0): (-1.75, 0), (2, 3, 0): (-3.25, 0)}
    assert suffixes[2, 3, 0] == (3, 0) and suffixes[1, 2, 3] == (2, 3)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([(2, 0), (2, 1), (2, 0), (2, 1)], "row 2 of order 2 is there twice"),
        ([(2, 0), (1, 2, 2), (0, 1, 1)], "row 0 of order 3 has no history, its first 2 words as a 2-gram: add that"),
        ([(2, 0), (2, 0, 1), (2, 0, 1, 0), (0, 0, 1, 1)], "row 1 of order 4 has no history, its first 3 words"),
    ],
)
def test_what_is_refused(extra, message, to_device):
    unigrams = Ngrams(to_device(np.arange(3, dtype=np.uint32)[:, None]), *(to_device(np.zeros(3, np.float32)),) * 2)
    orders = [unigrams]
    for n in range(2, max(map(len, extra)) + 1):
        ids = np.array([g for g in extra if len(g) == n], np.uint32)
        values = to_device(np.zeros(len(ids), np.float32))
        orders.append(Ngrams(to_device(ids), values, values))
    with pytest.raises(BadNgram, match=message):
        build_trie(orders)


def with_prefixes(ngrams):
    return {g[:k] for g in ngrams for k in range(1, len(g) + 1)}


def back_off(ngrams, ngram):
    """P of an n-gram that is not there, by the definition, in float32."""
    if ngram in ngrams:
        return np.float32(ngrams[ngram][0])
    return back_off(ngrams, ngram[1:]) + np.float32(ngrams.get(ngram[:-1], (0, 0))[1])


VALUES = st.floats(-9, 0, width=32)


@settings(max_examples=60)
@given(data=st.data(), words=st.integers(1, 6), fanout=st.integers(2, 6))
def test_any_model(build, data, words, fanout):
    """Rows in any order; suffixes may be missing."""
    longer = st.lists(st.integers(0, words - 1), min_size=2, max_size=5).map(tuple)
    there = with_prefixes(data.draw(st.sets(longer, max_size=25))) | {(w,) for w in range(words)}
    rows = sorted(w for w in there if len(w) == 1) + data.draw(st.permutations(sorted(g for g in there if len(g) > 1)))
    N = max(map(len, rows))
    ngrams = {g: (data.draw(VALUES), data.draw(VALUES) if len(g) < N else 0.0) for g in rows}
    expected = dict(ngrams)
    for n in range(N, 2, -1):
        for g in [g for g in expected if len(g) == n and g[1:] not in expected]:
            expected[g[1:]] = (f32(back_off(ngrams, g[1:])), 0.0)
    found, suffixes = contents(build(ngrams, fanout))
    assert found == expected
    assert suffixes == {g: g[1:] for g in expected if len(g) < N}


def test_no_ngrams_of_higher_orders(build, to_device):
    nothing = Ngrams(to_device(np.empty((0, 2), np.uint32)), to_device(np.empty(0, np.float32)))
    one = Ngrams(to_device(np.zeros((1, 1), np.uint32)), *(to_device(np.zeros(1, np.float32)),) * 2)
    trie = build_trie([one, nothing])
    assert trie.starts == (0, 1, 1) and to_host(trie.first_child_M).tolist() == [1, 1]
    alone = build_trie([one])
    assert alone.order == 1 and to_host(alone.first_child_M).tolist() == [1] and len(alone.backoff_M) == 0
