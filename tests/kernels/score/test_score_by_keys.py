"""Scores by keys: by hand, and compared with a plain scorer of n-grams in a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.score_by_keys import BATCH, KeyTables, score_by_keys

F = np.float32


def key_of(words):
    key = words[-1]
    for word in reversed(words[:-1]):
        key = (key * 8978948897894561157 ^ (word + 1) * 17894857484156487943) % 2**64
    return key


def tables_of(model, order, to_device, rest=0, load=1.5, alone=None):
    """The tables of {words: (log10 probability, backoff)}, as KenLM fills them; words are 0 to V - 1."""
    suffixes = {words[1:] for words in model} - {alone}
    parts, slots_N = [], []
    for n in range(1, order + 1):
        level = [words for words in model if len(words) == n]
        slots = len(level) + 1 if n == 1 else max(len(level) + 1, int(load * len(level)))
        table = np.zeros((slots, 3 if n == order else 2 * (n > 1) + 2 + rest), np.uint32)
        for words in level:
            prob, backoff = model[words]
            values = [abs(prob) if words in suffixes and n < order else -abs(prob), backoff, -9.0]
            values = np.array(values[: 1 if n == order else 2 + rest], F).view(np.uint32)
            if n == 1:
                table[words[0]] = values
                continue
            key = key_of(words)
            slot = key % slots
            while table[slot, :2].any():
                slot = (slot + 1) % slots
            table[slot] = [key & 0xFFFFFFFF, key >> 32, *values]
        parts.append(table.reshape(-1))
        slots_N.append(slots)
    return KeyTables(to_device(np.concatenate(parts)), to_device(np.array(slots_N)), rest)


def plain_scores(model, order, begin, end, codes):
    """The longest match, and the backoffs of longer histories from the shortest on, in float32."""
    probs, orders, sentence = [], [], [begin] if begin >= 0 else []
    for code in codes:
        word = code - 1 if code else end
        if word < 0:
            prob, matched = F(0), 0
        else:
            history = sentence[-(order - 1) :]
            matched = max(m for m in range(1, len(history) + 2) if (*history[len(history) + 1 - m :], word) in model)
            prob = F(model[(*history[len(history) + 1 - matched :], word)][0])
            for m in range(matched, len(history) + 1):
                if tuple(history[-m:]) in model:
                    prob = F(prob + F(model[tuple(history[-m:])][1]))
        probs.append(prob)
        orders.append(matched)
        sentence = [*sentence, word] if code else [begin] if begin >= 0 else []
    return np.array(probs, F), np.array(orders, np.uint8)


def scored(model, order, begin, end, codes, to_device, **how):
    tables = tables_of(model, order, to_device, **how)
    return [to_host(a) for a in score_by_keys(tables, begin, end, to_device(np.array(codes, np.uint32)))]


A, B, BEGIN, END = 3, 4, 1, 2
BY_HAND = {
    (0,): (-2, 0), (BEGIN,): (-99, -0.5), (END,): (-1.5, 0), (A,): (-0.5, -0.25), (B,): (-0.75, -0.125),
    (BEGIN, A): (-0.25, -0.0625), (A, B): (-0.375, -0.5), (B, A): (-1, 0), (BEGIN, A, B): (-0.125, 0),
}  # fmt: skip


@pytest.mark.parametrize("rest", [0, 1])
def test_by_hand(to_device, rest):
    prob_T, order_T = scored(BY_HAND, 3, BEGIN, END, [A + 1, B + 1, 0, B + 1, 1, A + 1, 0], to_device, rest=rest)
    assert order_T.tolist() == [2, 3, 1, 1, 1, 1, 1]
    assert prob_T.tolist() == [-0.25, -0.125, -1.5 - 0.125 - 0.5, -0.75 - 0.5, -2 - 0.125, -0.5, -1.5 - 0.25]


def random_model(rng, words, order, texts):
    """The n-grams of texts, each with its suffixes and its history."""
    model = {(w,): None for w in range(words)}
    for text in texts:
        for n in range(2, order + 1):
            for i in range(len(text) - n + 1):
                gram = tuple(text[i : i + n])
                if gram[1:] in model and gram[:-1] in model and rng.random() < 0.7:
                    model[gram] = None
    return {gram: (F(-rng.random() * 5), F(-rng.random())) for gram in model}


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    order=st.integers(2, 6),
    words=st.integers(3, 9),
    size=st.sampled_from([0, 1, 2, BATCH - 1, BATCH, BATCH + 1, 300, 700]),
    markers=st.sampled_from([(1, 2), (-1, 2), (1, -1), (-1, -1)]),
    rest=st.integers(0, 1),
)
def test_any_text(to_device, seed, order, words, size, markers, rest):
    rng = np.random.default_rng(seed)
    texts = [[1, *rng.integers(0, words, 20).tolist(), 2] for _ in range(10)]
    model = random_model(rng, words, order, texts)
    codes = rng.integers(1, words + 1, size)
    codes[rng.random(size) < 0.1] = 0
    load = rng.choice([1.0, 1.5])  # with one empty slot, searches are long and wrap
    found = scored(model, order, *markers, codes.tolist(), to_device, rest=rest, load=load)
    expected = plain_scores(model, order, *markers, codes.tolist())
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]


@pytest.mark.parametrize(("alone", "prob", "order"), [((B,), -0.75 - 0.25 - 0.0625, 1), ((A, B), -0.375 - 0.0625, 2)])
def test_a_cleared_sign_alone_lets_a_search_go_on(to_device, alone, prob, order):
    """KenLM does not look for longer n-grams where none ends with the one found."""
    prob_T, order_T = scored(BY_HAND, 3, BEGIN, END, [A + 1, B + 1], to_device, alone=alone)
    assert (prob_T.tolist(), order_T.tolist()) == ([-0.25, prob], [2, order])


def test_wrong_orders():
    for order in (1, 97):
        with pytest.raises(ValueError, match=f"the tables have order {order} but scores by keys need 2 to 96"):
            score_by_keys(KeyTables(np.zeros(8, np.uint32), np.ones(order, np.int64), 0), 1, 2, np.zeros(1, np.uint32))
