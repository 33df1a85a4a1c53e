"""Scores of tokens: by hand, and as the definition of a backoff model gives them, n-gram by n-gram."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.score_tokens import score_tokens
from mgpu_ngram.kernels.trie.find_children import sample_words


def trie_of(ngrams, fanout, dtype=np.uint32):
    """Arguments of `score_tokens` for {n-gram: (prob, backoff)}, with all prefixes and suffixes there."""
    order = max(map(len, ngrams))
    nodes = sorted(ngrams, key=lambda g: (len(g), g))
    histories = [g for g in nodes if len(g) < order]
    children = [sum(g[:-1] == history for g in nodes) for history in histories]
    word_G = np.array([g[-1] for g in nodes], np.uint32)
    samples, starts = sample_words(word_G, fanout)
    return {
        "word_G": word_G,
        "first_child_M": (np.cumsum([0, *children]) + sum(len(g) == 1 for g in nodes)).astype(dtype),
        "samples": samples,
        "sample_starts": starts,
        "prob_G": np.array([ngrams[g][0] for g in nodes], np.float32),
        "backoff_M": np.array([ngrams[g][1] for g in histories], np.float32),
    }, {"fanout": fanout, "order": order}


def score(ngrams, codes, to_device, fanout=2, dtype=np.uint32, begin=-1, end=-1):
    arrays, rest = trie_of(ngrams, fanout, dtype)
    moved = {name: to_device(a) for name, a in arrays.items()}
    prob_T, order_T = score_tokens(**moved, **rest, begin=begin, end=end, codes_T=to_device(np.array(codes, np.uint32)))
    assert (prob_T.dtype, order_T.dtype) == (np.float32, np.uint8)
    return to_host(prob_T).tolist(), to_host(order_T).tolist()


def plain_score(ngrams, order, codes, begin=-1, end=-1):
    """By the definition, with float32 sums from the shortest history on."""
    first = (begin,) if begin >= 0 and order > 1 else ()
    probs, orders, history = [], [], first
    for code in codes:
        word = code - 1 if code else end
        if word < 0:
            probs.append(0.0)
            orders.append(0)
            history = first
            continue
        known = [history[len(history) - m :] for m in range(len(history) + 1)]  # of 0, 1, ... words
        matched = max(m for m, h in enumerate(known) if (*h, word) in ngrams)
        prob = np.float32(ngrams[(*known[matched], word)][0])
        for h in known[matched + 1 :]:
            prob += np.float32(ngrams.get(h, (0, 0))[1])
        probs.append(float(prob))
        orders.append(matched + 1)
        history = (*history, word)[-(order - 1) :] if order > 1 else ()
        if not code:
            history = first
    return probs, orders


def test_by_hand(to_device):
    ngrams = {
        (0,): (-4, 0), (1,): (-1, -0.5), (2,): (-2, -0.25),
        (1, 2): (-0.75, -0.125), (2, 1): (-1.5, -1),
        (1, 2, 1): (-0.0625, 0),
    }  # fmt: skip
    codes = [2, 3, 2, 3, 1, 0, 3, 3, 2, 3]  # 1 2 1 2 0 | 2 2 1 2
    probs = [-1, -0.75, -0.0625, -0.75 - 1, -4 - 0.25 - 0.125, 0, -2, -2 - 0.25, -1.5, -0.75 - 1]
    assert score(ngrams, codes, to_device) == (probs, [1, 2, 3, 2, 1, 0, 1, 1, 2, 2])


def test_begin_and_end_by_hand(to_device):
    """0 is word 2 at the end of a sentence and word 1 before the next; what it ends is no history of what follows."""
    ngrams = {
        (0,): (-4, -8), (1,): (-64, -0.5), (2,): (-2, -16),
        (0, 2): (-0.75, -32), (1, 0): (-1.5, -1), (1, 0, 2): (-0.25, 0), (2, 0): (-128, -128), (0, 2, 0): (-128, 0),
    }  # fmt: skip
    codes = [1, 0, 0, 1, 1]  # <s> 0 </s>, <s> </s>, <s> 0 0
    probs = [-1.5, -0.25, -2 - 0.5, -1.5, -4 - 8 - 1]
    assert score(ngrams, codes, to_device, begin=1, end=2) == (probs, [2, 3, 1, 2, 1])
    assert score(ngrams, codes, to_device, begin=-1, end=2) == ([-4, -0.75, -2, -4, -4 - 8], [1, 2, 1, 1, 1])
    assert score(ngrams, codes, to_device, begin=1, end=-1) == ([-1.5, 0, 0, -1.5, -4 - 8 - 1], [2, 0, 0, 2, 1])


VALUES = st.floats(-9, 0, width=32)


def closed(ngrams):
    """With all that stands inside an n-gram."""
    return {g[a:b] for g in ngrams for a in range(len(g)) for b in range(a + 1, len(g) + 1)}


@settings(max_examples=80)
@given(data=st.data(), V=st.integers(1, 5), fanout=st.integers(2, 5), dtype=st.sampled_from([np.uint32, np.int64]))
def test_any_model(to_device, data, V, fanout, dtype):
    drawn = data.draw(st.sets(st.lists(st.integers(0, V - 1), min_size=1, max_size=6).map(tuple), max_size=12))
    there = sorted(closed(drawn) | {(w,) for w in range(V)})
    ngrams = {g: (data.draw(VALUES), data.draw(VALUES)) for g in there}
    codes = data.draw(st.lists(st.integers(0, V), max_size=40))
    order = max(map(len, there))
    begin, end = data.draw(st.integers(-1, V - 1)), data.draw(st.integers(-1, V - 1))
    expected = plain_score(ngrams, order, codes, begin, end)
    assert score(ngrams, codes, to_device, fanout, dtype, begin, end) == expected


@pytest.mark.parametrize("order", [1, 2, 5, 20])
def test_text_longer_than_a_block(order, to_device):
    """Walks begin before the tokens of a block and end after them."""
    rng = np.random.default_rng(order)
    text = rng.integers(0, 3, 3000)
    drawn = {tuple(text[i : i + order].tolist()) for i in rng.integers(0, 2900, 40)}
    ngrams = {g: tuple(-rng.random(2, np.float32).astype(float)) for g in sorted(closed(drawn) | {(0,), (1,), (2,)})}
    codes = (text + 1).tolist()
    codes[::97] = [0] * len(codes[::97])
    for begin, end in (-1, -1), (0, 2):
        expected = plain_score(ngrams, order, codes, begin, end)
        assert score(ngrams, codes, to_device, begin=begin, end=end) == expected


def test_orders_that_do_not_fit(to_device):
    arrays, rest = trie_of({(0,): (-1, 0)}, 2)
    with pytest.raises(ValueError, match="order is 97 but must be 1 to 96"):
        score_tokens(**arrays, **(rest | {"order": 97}), begin=-1, end=-1, codes_T=np.zeros(1, np.uint32))
