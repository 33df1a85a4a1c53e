"""Sample words: by the rule in plain Python, and against exact probabilities."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.draw_by_tiles import draw_by_tiles
from mgpu_ngram.kernels.distribution.find_histories import Children
from mgpu_ngram.kernels.distribution.row_launch import WordValues


class Model:
    """One history: values of V words and, shortest history first, (children {word: value}, backoff)."""

    def __init__(self, value_V, *history):
        self.value_V, self.history = np.array(value_V, np.float32), history

    def row(self, left_out=-1):
        """Return float32 probabilities, 0 for left_out."""
        row = self.value_V.copy()
        for children, backoff in self.history:
            row *= np.float32(backoff)
            for word, value in children.items():
                row[word] = value
        if left_out >= 0:
            row[left_out] = 0
        return row.tolist()

    def weights(self, temperature, left_out):
        row, unit = self.row(left_out), 2.0 ** (62 - len(self.value_V).bit_length())
        greatest = max(row)
        if temperature == 1:
            return [int(p * (unit / greatest)) for p in row]
        return [int(unit * (p / greatest) ** (1 / temperature)) for p in row]

    def counting(self, temperature, top_k, top_p, left_out):
        """Return {word: weight} of the words that can be sampled, by rank."""
        row, weights = self.row(left_out), self.weights(temperature, left_out)
        ranked = sorted(range(len(row)), key=lambda w: (-row[w], w))
        before = [0, *accumulate(weights[w] for w in ranked)]
        last = sum(weights) * (top_p if top_p < 1 else 2)
        return {
            w: weights[w] for i, w in enumerate(ranked) if weights[w] and (top_k == 0 or i < top_k) and before[i] < last
        }

    def drawn(self, random_number, seed, number, temperature, top_k, top_p, left_out):
        """Sample by the rule, with Python's integers."""
        row = self.row(left_out)
        if not row or max(row) == 0:
            return -1
        if temperature == 0:
            return row.index(max(row))
        weights, counting = self.weights(temperature, left_out), self.counting(temperature, top_k, top_p, left_out)
        left, draw = range(len(row)), 0
        while True:
            x = sum(weights[w] for w in left) * random_number(seed, number, draw) >> 64
            word = next(w for w, s in zip(left, accumulate(weights[w] for w in left), strict=True) if s > x)
            if word in counting:
                return word
            left = [w for w in left if (row[w], -w) > (row[word], -word)]
            draw += 1

    def arrays(self, H, code=np.uint32):
        """The same history H times."""
        words, values, ends = [7], [9.0], [1]  # the first of no history
        for children, _ in self.history:
            words += sorted(children)
            values += [children[w] for w in sorted(children)]
            ends.append(len(words))
        return {
            "first_HK": np.array([ends[:-1]] * H, code).reshape(H, len(self.history)),
            "end_HK": np.array([ends[1:]] * H, code).reshape(H, len(self.history)),
            "backoff_HK": np.array([[b for _, b in self.history]] * H, np.float32).reshape(H, len(self.history)),
            "word_G": np.array(words, np.uint32),
            "value_G": np.array(values, np.float32),
            "value_V": self.value_V,
        }


def grouped(arrays):
    """Arrays by name, as the kernel takes them."""
    children, values = (cls(*(arrays[name] for name in cls._fields)) for cls in (Children, WordValues))
    rest = {name: array for name, array in arrays.items() if name not in (*Children._fields, *WordValues._fields)}
    return {"children": children, "values": values} | rest


def sample(model, to_device, numbers, seed=0, temperature=1.0, top_k=0, top_p=1.0, left_out=-1, code=np.uint32):
    arrays = model.arrays(len(numbers), code) | {"numbers_H": np.array(numbers, np.int64)}
    arrays = {name: to_device(a) for name, a in arrays.items()}
    words_H = to_host(
        draw_by_tiles(
            **grouped(arrays), seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, left_out=left_out
        )
    )
    assert words_H.dtype == np.int32
    return words_H.tolist()


def random_model(rng, V, K):
    step = rng.choice([3, 10**6])

    def values(count):
        return (rng.integers(0, step + 1, count) / step * rng.choice([1, 0.01])).astype(np.float32).tolist()

    among, history = np.arange(V), []
    for _ in range(K):
        among = among[rng.random(len(among)) < rng.choice([1, 0.5, 0.05])]
        history.append((dict(zip(among.tolist(), values(len(among)), strict=True)), values(1)[0]))
    return Model(values(V), *history)


# Row .125 .25 .0625 .5 .0625 after two words: word 3 is a child of both histories, word 1 of the longer one alone
HAND = Model([0.5, 0.125, 0.25, 0.25, 0.25], ({1: 0.5, 3: 0.125}, 0.5), ({3: 0.5}, 0.5))


def test_the_row_by_hand(to_device):
    assert HAND.row() == [0.125, 0.25, 0.0625, 0.5, 0.0625]
    assert sample(HAND, to_device, [0, 1], temperature=0) == [3, 3]
    assert sample(HAND, to_device, [0, 1], temperature=0, left_out=3) == [1, 1]
    assert set(sample(HAND, to_device, range(200), top_p=0.5)) == {3}
    assert set(sample(HAND, to_device, range(200), top_p=0.51)) == {3, 1}
    assert set(sample(HAND, to_device, range(200), top_p=0.75)) == {3, 1}
    assert set(sample(HAND, to_device, range(200), top_p=0.9)) == {3, 1, 0, 2}  # 2 before 4, which is its equal
    assert set(sample(HAND, to_device, range(200), top_k=4)) == {3, 1, 0, 2}
    assert set(sample(HAND, to_device, range(200))) == {0, 1, 2, 3, 4}


def test_the_first_draws_by_hand(to_device, random_number):
    """Halves, by the first bit of the random number."""
    halves = Model([0.5, 0.5], ({}, 0.25))
    first_bits = [random_number(5, number, 0) >> 63 for number in range(64)]
    assert sample(halves, to_device, range(64), seed=5) == first_bits
    assert 16 < sum(first_bits) < 48


@given(
    st.integers(0),
    st.sampled_from([1, 2, 5, 60, 400]),
    st.integers(0, 4),
    st.sampled_from([1.0, 1.0, 0.0, 0.5, 0.01, 3.0]),
    st.sampled_from([0, 0, 1, 2, 5, 1000]),
    st.sampled_from([1.0, 1.0, 0.001, 0.3, 0.9]),
    st.sampled_from([np.uint32, np.int64]),
)
def test_words_are_those_of_the_rule(to_device, random_number, seed, V, K, temperature, top_k, top_p, code):
    rng = np.random.default_rng(seed)
    model, left_out, seed = random_model(rng, V, K), int(rng.integers(-1, V)), seed % 2**64
    numbers = rng.integers(0, 2**63, 4).tolist()
    expected = [model.drawn(random_number, seed, number, temperature, top_k, top_p, left_out) for number in numbers]
    assert sample(model, to_device, numbers, seed, temperature, top_k, top_p, left_out, code) == expected


@pytest.mark.parametrize("V", [1, 2, 4095, 4096, 4097, 8192, 8193])
@pytest.mark.parametrize("kept", ["none", "all", "every third"])
def test_vocabularies_about_the_size_of_a_tile(to_device, random_number, V, kept):
    rng = np.random.default_rng(V)
    children = {"none": [], "all": range(V), "every third": range(0, V, 3)}[kept]
    values = dict(zip(children, rng.random(len(children), np.float32).tolist(), strict=True))
    model = Model(rng.random(V, np.float32), (values, 0.25), (dict(list(values.items())[-2:]), 0.5))
    for temperature, top_k, top_p in (1, 0, 1), (1, 50, 1), (0.5, 0, 0.7), (0, 0, 1):
        expected = [model.drawn(random_number, 1, number, temperature, top_k, top_p, V - 1) for number in range(3)]
        assert sample(model, to_device, range(3), 1, temperature, top_k, top_p, V - 1) == expected


def test_the_last_word_of_the_last_tile(to_device):
    for V in 1, 4096, 4097, 8192:
        assert sample(Model([0.0] * (V - 1) + [1e-30]), to_device, [3]) == [V - 1]
        assert sample(Model([1.0] * V, ({V - 1: 0.5}, 0.0)), to_device, [3]) == [V - 1]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1, 0, 1), (0.5, 0, 1), (2, 0, 1), (1, 3, 1), (1, 0, 0.8), (2, 4, 0.9)]
)
def test_how_often_words_come(to_device, temperature, top_k, top_p):
    """Pearson's chi-square of 20,000 samples of up to 7 words: above 41 for one in 10^6 seeds."""
    model = Model([0.3, 0.2, 0.05, 0.1, 0.15, 0.1, 0.1, 0.2], ({1: 0.3, 2: 0.06, 7: 0.2}, 0.7), ({2: 0.13}, 0.8))
    draws, left_out = 20_000, 4
    p = np.array(model.row(left_out)) ** (1 / temperature)
    ranked = sorted(range(8), key=lambda w: (-p[w], w))
    above = np.cumsum([0, *p[ranked]])[:-1]
    counts = [w for i, w in enumerate(ranked) if (i < top_k or not top_k) and above[i] < top_p * p.sum() and p[w]]
    expected = draws * p[counts] / p[counts].sum()
    seen = np.bincount(sample(model, to_device, range(draws), 11, temperature, top_k, top_p, left_out), minlength=8)
    assert seen.sum() == seen[counts].sum() == draws
    assert ((seen[counts] - expected) ** 2 / expected).sum() < 41


@pytest.mark.parametrize("seed", range(10))
def test_top_k_and_top_p_give_all_of_their_words_and_no_others(to_device, seed):
    rng = np.random.default_rng(seed)
    children = dict(zip(range(0, 30, 2), (rng.integers(4, 8, 15) / 8).tolist(), strict=True))
    model = Model(rng.integers(4, 8, 30) / 8, (children, 0.75), ({4: 0.875, 8: rng.random()}, 0.5))
    top_k, top_p = int(rng.integers(1, 12)) if seed % 3 else 0, float(rng.random()) if seed % 2 else 1.0
    wanted = set(model.counting(1.0, top_k, top_p, 2))
    assert (len(wanted) < 29) == (top_k > 0 or top_p < 1)
    assert set(sample(model, to_device, range(3000), seed, 1.0, top_k, top_p, 2)) == wanted


def test_the_most_probable_word(to_device):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        model = random_model(rng, 50, 3)
        row = model.row(3)
        best = row.index(max(row)) if max(row) else -1
        assert set(sample(model, to_device, range(20), seed, 1.0, 1, left_out=3)) == {best}
        assert set(sample(model, to_device, range(20), seed, 0.0, left_out=3)) == {best}
        assert set(sample(model, to_device, range(20), seed, 1.0, 0, 1e-9, left_out=3)) == {best}
        assert set(sample(model, to_device, range(20), seed, 1e-300, 1, left_out=3)) == {best}


def test_the_greatest_may_be_subnormal(to_device, random_number):
    model = Model([2.0**-149, 2.0**-140, 0])
    assert sample(model, to_device, [0, 1], temperature=0) == [1, 1]
    assert sample(model, to_device, range(9)) == [model.drawn(random_number, 0, h, 1.0, 0, 1.0, -1) for h in range(9)]


def test_ties_go_to_the_lower_id(to_device):
    even = Model([0.25] * 6, ({0: 0.0, 5: 0.125}, 0.5))
    assert set(sample(even, to_device, range(300), top_k=3, left_out=2)) == {1, 3, 4}
    assert set(sample(even, to_device, range(300), top_k=2)) == {1, 2}
    assert set(sample(even, to_device, range(9), temperature=0)) == {1}


def test_the_word_left_out_never_comes(to_device):
    """For example <s> of lmplz, whose probability is 1: it has no weight either."""
    model = Model([0.001, 1.0, 0.003], ({0: 0.001, 1: 1.0}, 1.0))
    words = sample(model, to_device, range(2000), left_out=1)
    assert set(words) == {0, 2} and 1400 < sum(words) / 2 < 1600
    assert set(sample(model, to_device, range(200), top_p=0.5, left_out=1)) == {2}
    assert set(sample(Model([1.0], ({0: 1.0}, 1.0)), to_device, range(3), left_out=0)) == {-1}


def test_nothing_to_draw(to_device):
    assert sample(Model([0.5, 0.5], ({1: 0.0}, 0.0)), to_device, [0, 1]) == [-1, -1]
    assert sample(Model([0.0, 0.0]), to_device, [0], temperature=0) == [-1]
    assert sample(Model([]), to_device, [0, 1]) == [-1, -1]
    assert sample(HAND, to_device, []) == []


def test_any_cut_into_calls_draws_the_same(to_device):
    whole = sample(HAND, to_device, range(50), 8, top_k=4)
    assert whole == [word for number in range(50) for word in sample(HAND, to_device, [number], 8, top_k=4)]
    assert whole != sample(HAND, to_device, range(50), 9, top_k=4)
    assert whole != sample(HAND, to_device, range(50, 100), 8, top_k=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, r"seed is -1 but must be 0 to 2\^64 - 1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"temperature": -0.5}, "temperature is -0.5 but must be 0 or more, and finite"),
        ({"temperature": np.inf}, "temperature is inf"),
        ({"temperature": np.nan}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1 but must be 1 or more, or 0 for all words"),
        ({"top_p": 0.0}, "top_p is 0.0 but must be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"numbers_H": np.zeros(2, np.int64)}, "got 1 histories and 2 numbers; pass one of each per history"),
        ({"value_V": np.broadcast_to(np.float32(0), 2**26 + 1)}, "got 67108865 words but can sample from 67108864"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        draw_by_tiles(**grouped(HAND.arrays(1) | {"numbers_H": np.zeros(1, np.int64), "seed": 0} | change))


@pytest.mark.parametrize("name", [*HAND.arrays(1), "numbers_H"])
def test_other_dtypes_are_refused(name):
    arrays = HAND.arrays(1) | {"numbers_H": np.zeros(1, np.int64)}
    with pytest.raises(TypeError, match="expected (uint32|float32|int64|uint32 or int64) but got float64"):
        draw_by_tiles(**grouped(arrays | {name: arrays[name].astype(float)}), seed=0)
