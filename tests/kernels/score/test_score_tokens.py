"""Scores of tokens: by hand, and by the definition of a backoff model, n-gram by n-gram."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.score_tokens import TrieValues, score_tokens
from mgpu_ngram.kernels.trie.find_children import TrieIndex, sample_every_fanout
from tests.support.slow_cases import first_fast


def trie_of(ngrams, fanout, dtype=np.uint32):
    """Return arguments of `score_tokens` for {n-gram: (prob, backoff)}; adds all prefixes and suffixes."""
    order = max(map(len, ngrams))
    nodes = sorted(ngrams, key=lambda g: (len(g), g))
    histories = [g for g in nodes if len(g) < order]
    children = [sum(g[:-1] == history for g in nodes) for history in histories]
    word_G = np.array([g[-1] for g in nodes], np.uint32)
    samples, starts = sample_every_fanout(word_G, fanout)
    return {
        "word_G": word_G,
        "first_child_M": (np.cumsum([0, *children]) + sum(len(g) == 1 for g in nodes)).astype(dtype),
        "samples": samples,
        "sample_starts": starts,
        "prob_G": np.array([ngrams[g][0] for g in nodes], np.float32),
        "backoff_M": np.array([ngrams[g][1] for g in histories], np.float32),
    }, {"fanout": fanout, "order": order}


def grouped(arrays, rest):
    """Arrays of `trie_of` or `coded`, and other arguments by name, as `score_tokens` takes them."""
    rest = dict(rest)
    arrays = arrays | {"fanout": rest.pop("fanout")}
    index, values = (cls(**{n: arrays[n] for n in cls._fields if n in arrays}) for cls in (TrieIndex, TrieValues))
    return {"index": index, "values": values} | rest


def coded(arrays, ngrams, code, centers, kinds):
    """Return arrays of `trie_of` with codes: kinds is {n-gram of order 2 or more: (code of prob, code of backoff)}."""
    order = max(map(len, ngrams))
    nodes = sorted(ngrams, key=lambda g: (len(g), g))
    codes = np.array([kinds.get(g, (77, 77)) for g in nodes], code)  # codes of single words have no meaning
    V, M = sum(len(g) == 1 for g in nodes), sum(len(g) < order for g in nodes)
    words_V2 = np.array([ngrams[g] for g in nodes[:V]], np.float32)
    return arrays | {"prob_G": codes[:, 0].copy(), "backoff_M": codes[:M, 1].copy()} | {
        "words_V2": words_V2, "centers": centers
    }  # fmt: skip


def score(ngrams, codes, to_device, fanout=2, dtype=np.uint32, begin=-1, end=-1, quantized=()):
    arrays, rest = trie_of(ngrams, fanout, dtype)
    if quantized:
        arrays = coded(arrays, ngrams, *quantized)
    moved = {name: to_device(a) for name, a in arrays.items()}
    prob_T, order_T = score_tokens(
        **grouped(moved, rest), begin=begin, end=end, codes_T=to_device(np.array(codes, np.uint32))
    )
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
    """0 is word 2 at the end of a sentence and word 1 before the next; histories do not cross sentences."""
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
    """Return n-grams with all their parts."""
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


def test_codes_by_hand(to_device):
    """Single words have exact values; a longer n-gram has the centre of its order and kind that its code selects."""
    centers = np.full((2, 2, 256), 99, np.float32)
    centers[0, 0, [0, 255]], centers[0, 1, [1, 2]], centers[1, 0, 3] = [-0.75, -1.5], [-0.125, -1], -0.0625
    kinds = {(1, 2): (0, 1), (2, 1): (255, 2), (1, 2, 1): (3, 0)}
    ngrams = {(0,): (-4, 0), (1,): (-1, -0.5), (2,): (-2, -0.25)} | dict.fromkeys(kinds, (99, 99))
    codes = [2, 3, 2, 3, 1, 0, 3, 3, 2, 3]  # 1 2 1 2 0 | 2 2 1 2
    probs = [-1, -0.75, -0.0625, -0.75 - 1, -4 - 0.25 - 0.125, 0, -2, -2 - 0.25, -1.5, -0.75 - 1]
    found = score(ngrams, codes, to_device, quantized=(np.uint8, centers, kinds))
    assert found == (probs, [1, 2, 3, 2, 1, 0, 1, 1, 2, 2])


@pytest.mark.slow  # it compiles two more variants
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6), V=st.integers(1, 5), longest=st.integers(1, 6), size=st.integers(0, 600),
    code=st.sampled_from([np.uint8, np.uint16]), dtype=st.sampled_from([np.uint32, np.int64]),
)  # fmt: skip
def test_any_codes(to_device, seed, V, longest, size, code, dtype):
    """Scores equal those of a model with the decoded values."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, V, size + longest).tolist()
    drawn = [tuple(text[i : i + longest]) for i in rng.integers(0, size + 1, 8)]
    there = sorted(closed(drawn) | {(w,) for w in range(V)})
    centers = -rng.random((longest - 1, 2, np.iinfo(code).max + 1), np.float32)
    kinds = {g: rng.integers(0, centers.shape[2], 2).tolist() for g in there if len(g) > 1}
    ngrams = {g: tuple(centers[len(g) - 2, [0, 1], kinds[g]].tolist()) for g in kinds}
    ngrams |= {(w,): tuple(-rng.random(2, np.float32)) for w in range(V)}
    codes = [0 if rng.random() < 0.1 else w + 1 for w in text]
    begin, end = rng.integers(-1, V, 2).tolist()
    found = score(ngrams, codes, to_device, 2, dtype, begin, end, (code, centers, kinds))
    assert found == plain_score(ngrams, longest, codes, begin, end)


def test_what_does_not_fit_together():
    arrays, rest = trie_of({(0,): (-1, -2), (0, 0): (-1, 0)}, 2)
    rest |= {"begin": -1, "end": -1, "codes_T": np.zeros(1, np.uint32)}
    with pytest.raises(ValueError, match="has 0 backoffs for 1 histories, and scores need them; make it again with"):
        score_tokens(**grouped(arrays | {"backoff_M": np.empty(0, np.float32)}, rest))
    eight = coded(arrays, {(0,): (-1, -2), (0, 0): (-1, 0)}, np.uint8, np.zeros((1, 2, 256), np.float32), {})
    score_tokens(**grouped(eight, rest))
    with pytest.raises(ValueError, match=r"shape \(2, 2, 256\) but must have \(1, 2, 256\) for uint8 and order 2"):
        score_tokens(**grouped(eight | {"centers": np.zeros((2, 2, 256), np.float32)}, rest))
    with pytest.raises(ValueError, match=r"must have \(1, 2, 65536\) for uint16"):
        score_tokens(**grouped(eight | {n: eight[n].astype(np.uint16) for n in ("prob_G", "backoff_M")}, rest))
    for change in {"centers": None}, {"backoff_M": np.zeros(1, np.float32)}, {"words_V2": np.zeros((1, 2))}:
        with pytest.raises(TypeError, match="expected"):
            score_tokens(**grouped(eight | change, rest))


@pytest.mark.parametrize("order", first_fast([1, 2, 5, 20], 3))
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
        score_tokens(**grouped(arrays, rest | {"order": 97}), begin=-1, end=-1, codes_T=np.zeros(1, np.uint32))
