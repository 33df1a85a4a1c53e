"""The greatest values of rows, against sorted whole rows in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.find_histories import Children
from mgpu_ngram.kernels.distribution.row_launch import WordValues
from mgpu_ngram.kernels.distribution.top_words import MAX_TOP_K, top_words

LOG, PROB = False, True


class Rows:
    """Histories in plain Python: for each, shortest history first, its children {word: value} and its backoff."""

    def __init__(self, value_V, histories, multiply):
        self.value_V, self.histories, self.multiply = np.array(value_V, np.float32).tolist(), histories, multiply

    def row(self, h, n, stored):
        """Return {word: value}, each step in float32."""
        row = dict(enumerate(self.value_V))
        for children, backoff in self.histories[h][: n - 1]:
            if stored:
                row = {}
            for word, value in row.items():
                value, backoff = np.float32(value), np.float32(backoff)
                row[word] = float(value * backoff if self.multiply else value + backoff)
            row |= {word: float(np.float32(value)) for word, value in children.items()}
        return row

    def best(self, k, orders, nothing, left_out):
        """Return (ids, values), lists of lists of lists."""
        empty = nothing if nothing is not None else 0 if self.multiply else -np.inf
        ids, values = [], []
        for h in range(len(self.histories)):
            rows = [self.row(h, n, nothing is not None) for n in orders]
            tops = [sorted((-v, w) for w, v in row.items() if w != left_out)[:k] for row in rows]
            ids.append([[w for _, w in top] + [-1] * (k - len(top)) for top in tops])
            values.append([[-v for v, _ in top] + [empty] * (k - len(top)) for top in tops])
        return ids, values

    def arrays(self, code=np.uint32):
        H, K = len(self.histories), len(self.histories[0]) if self.histories else 0
        first_HK, end_HK, backoff_HK = (np.zeros((H, K), d) for d in (code, code, np.float32))
        words, values = [7, 7], [9.0, 9.0]  # of no history
        for h, history in enumerate(self.histories):
            for k, (children, backoff) in enumerate(history):
                backoff_HK[h, k] = backoff
                if children:
                    first_HK[h, k], end_HK[h, k] = len(words), len(words) + len(children)
                    words += sorted(children)
                    values += [children[w] for w in sorted(children)]
        value_V = np.array(self.value_V, np.float32)
        return {
            "first_HK": first_HK, "end_HK": end_HK, "backoff_HK": backoff_HK, "word_G": np.array(words, np.uint32),
            "value_G": np.array(values, np.float32), "value_V": value_V,
            "ranked_V": np.argsort(-value_V, kind="stable").astype(np.uint32),
        }  # fmt: skip


def grouped(arrays):
    """Arrays by name, as the kernel takes them."""
    children, values = (cls(*(arrays[name] for name in cls._fields)) for cls in (Children, WordValues))
    rest = {name: array for name, array in arrays.items() if name not in (*Children._fields, *WordValues._fields)}
    return {"children": children, "values": values} | rest


def top(rows, to_device, k, orders, nothing=None, left_out=-1, code=np.uint32):
    arrays = {name: to_device(a) for name, a in rows.arrays(code).items()}
    made = top_words(k, tuple(orders), **grouped(arrays), multiply=rows.multiply, nothing=nothing, left_out=left_out)
    ids, values = map(to_host, made)
    assert ids.dtype == np.int32 and values.dtype == np.float32
    assert ids.shape == values.shape == (len(rows.histories), len(orders), k)
    return ids.tolist(), values.tolist()


def check(rows, to_device, k, orders, nothing=None, left_out=-1, code=np.uint32):
    assert top(rows, to_device, k, orders, nothing, left_out, code) == rows.best(k, orders, nothing, left_out)


def random_rows(rng, V, histories, K, multiply, kept=(1, 0.9, 0.5, 0.1, 0.01), steps=(2, 30, 10**6)):
    """Nested children, each a share of the ones before; values in few steps (with ties) or in many."""
    step = rng.choice(steps)

    def values(count):
        return (rng.integers(0, step + 1, count) / step * (1 if multiply else -8)).astype(np.float32).tolist()

    made = []
    for _ in range(histories):
        among, history = np.arange(V), []
        for k in range(K):
            among = among[rng.random(len(among)) < rng.choice(kept)] if k < rng.integers(1, K + 1) else among[:0]
            history.append((dict(zip(among.tolist(), values(len(among)), strict=True)), values(1)[0]))
        made.append(history)
    return Rows(values(V), made, multiply)


HAND = Rows([0.5, 0.25, 0.125, 0.0625], [[({1: 0.75, 3: 0.125}, 0.5), ({3: 0.375}, 0.25)]], PROB)


def test_smoothed_by_hand(to_device):
    """Rows 1: .5 .25 .125 .0625; 2: .25 .75 .0625 .125; 3: .0625 .1875 .015625 .375."""
    ids, values = top(HAND, to_device, 2, (1, 2, 3))
    assert ids == [[[0, 1], [1, 0], [3, 1]]]
    assert values == [[[0.5, 0.25], [0.75, 0.25], [0.375, 0.1875]]]
    assert top(HAND, to_device, 1, (3,), left_out=3) == ([[[1]]], [[[0.1875]]])
    assert top(HAND, to_device, 6, (2,))[0] == [[[1, 0, 3, 2, -1, -1]]]
    assert top(HAND, to_device, 6, (2,))[1] == [[[0.75, 0.25, 0.125, 0.0625, 0, 0]]]


def test_stored_by_hand(to_device):
    ids, values = top(HAND, to_device, 2, (1, 2, 3), nothing=0.0)
    assert ids == [[[0, 1], [1, 3], [3, -1]]]
    assert values == [[[0.5, 0.25], [0.75, 0.125], [0.375, 0]]]
    assert top(HAND, to_device, 2, (2,), nothing=0.0, left_out=1) == ([[[3, -1]]], [[[0.125, 0]]])


def test_stored_children_that_shorter_histories_lack(to_device):
    """As after filling in n-grams of shorter histories."""
    rows = Rows([0.5, 0.25, 0.125, 0.0625], [[({0: 0.25}, 0.5), ({1: 0.5, 3: 0.75}, 2), ({2: 0.125}, 1)]], PROB)
    ids, values = top(rows, to_device, 2, (2, 3, 4), nothing=0.0)
    assert (ids, values) == ([[[0, -1], [3, 1], [2, -1]]], [[[0.25, 0], [0.75, 0.5], [0.125, 0]]])


def test_logarithms_by_hand(to_device):
    """Row 2: -3 - .5, -1, -2.5 - .5."""
    rows = Rows([-3, -0.25, -2.5], [[({1: -1}, -0.5)]], LOG)
    assert top(rows, to_device, 4, (2,)) == ([[[1, 2, 0, -1]]], [[[-1, -3, -3.5, -np.inf]]])
    assert top(rows, to_device, 2, (2,), nothing=-np.inf) == ([[[1, -1]]], [[[-1, -np.inf]]])


@given(
    st.integers(0),
    st.sampled_from([1, 2, 30, 257, 700]),
    st.integers(0, 4),
    st.sampled_from([1, 2, 10, 33, 100, MAX_TOP_K]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.uint32, np.int64]),
)
def test_random_rows(to_device, seed, V, K, k, multiply, stored, code):
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, V, 2, K, multiply)
    orders = [n for n in range(1, K + 2) if rng.random() < 0.7] or [K + 1]
    nothing = None if not stored else 0.0 if multiply else -np.inf
    check(rows, to_device, k, orders, nothing, int(rng.integers(-1, V)), code)


@pytest.mark.parametrize("k", [1, 100, 512, 513, MAX_TOP_K])
@pytest.mark.parametrize("kept", [(1,), (0.9,), (0.02,), (0,)])
def test_more_words_than_a_block_keeps(to_device, k, kept):
    rng = np.random.default_rng(k)
    check(random_rows(rng, 5000, 2, 2, PROB, kept), to_device, k, (1, 2, 3), left_out=0)


def test_a_long_history_of_one_child_each(to_device):
    rng = np.random.default_rng(0)
    children = [({7: 0.5}, float(b)) for b in rng.random(40, np.float32)]
    check(Rows(rng.random(50, np.float32), [children], PROB), to_device, 5, (1, 2, 20, 41))


@pytest.mark.parametrize("falling", [False, True])
def test_all_words_alike_or_the_greatest_last(to_device, falling):
    """Ties go to the lowest ids, in any order of candidates; the worst case is a child that beats all before."""
    V = 6000
    child = {w: w / V if falling else 0.5 for w in range(V)}
    rows = Rows([0.25] * V, [[(child, 0.5)], [({}, 0.5)]], PROB)
    ids, _ = top(rows, to_device, 100, (2,), left_out=3)
    low = [w for w in range(101) if w != 3]
    assert ids == [[list(range(V - 1, V - 101, -1)) if falling else low], [low]]


def test_backing_off_makes_values_equal(to_device):
    """A quarter of 1, 3 and 2 times the least float32 is 0, 1 and 0 times it: then the lower id comes first."""
    least = 2.0**-149
    rows = Rows([least, 3 * least, 2 * least], [[({}, 0.25)]], PROB)
    assert top(rows, to_device, 1, (1,))[0] == [[[1]]]
    assert top(rows, to_device, 3, (2,)) == ([[[1, 0, 2]]], [[[least, 0, 0]]])
    many = Rows([1.0] * 2500 + [1 + 2**-23] * 2500, [[({}, 2.0**-140)]], PROB)
    assert top(many, to_device, 3, (1, 2))[0] == [[[2500, 2501, 2502], [0, 1, 2]]]


def test_zeros_of_both_signs_are_equal(to_device):
    rows = Rows([-0.0, -1, 0.0, -0.0], [[({3: 0.0}, -0.0)]], LOG)
    ids, values = top(rows, to_device, 3, (1, 2))
    assert ids == [[[0, 2, 3], [0, 2, 3]]]
    assert not np.signbit(values).any()


def test_infinity_is_a_value(to_device):
    rows = Rows([-np.inf, -1, -np.inf], [[({2: -np.inf}, -1), ({2: -0.5}, -np.inf)]], LOG)
    assert top(rows, to_device, 4, (2, 3))[0] == [[[1, 0, 2, -1], [2, 0, 1, -1]]]
    assert top(rows, to_device, 2, (2,), nothing=-np.inf)[0] == [[[2, -1]]]


def test_a_longer_history_lowers_what_a_shorter_one_has_high(to_device):
    """Overridden words must not take the place of words that count: 3,000 are high in order 2 and low in order 3."""
    high = {w: 0.5 + w / 2**14 for w in range(3500)}
    low = {w: w / 2**20 for w in range(500, 3500)}
    check(Rows([0.25] * 3600, [[(high, 0.5), (low, 1.0)]], PROB), to_device, 600, (2, 3))


@pytest.mark.parametrize("histories", [0, 3])
def test_no_histories_and_no_lengths(to_device, histories):
    rows = Rows([0.125, 0.5, 0.5, 0.25], [[] for _ in range(histories)], PROB)
    assert top(rows, to_device, 3, (1,))[0] == [[[1, 2, 3]]] * histories


def test_no_words(to_device):
    assert top(Rows([], [[({}, 1)]], PROB), to_device, 2, (1, 2)) == ([[[-1, -1]] * 2], [[[0, 0]] * 2])
    assert top(Rows([1], [[({0: 1}, 1)]], PROB), to_device, 1, (1, 2), left_out=0)[0] == [[[-1], [-1]]]


def test_no_orders(to_device):
    assert top(HAND, to_device, 2, ()) == ([[]], [[]])


@pytest.mark.parametrize("k", [0, 1025])
def test_other_numbers_of_words_are_refused(k):
    with pytest.raises(ValueError, match=f"k is {k} but must be 1 to 1024; sort whole rows for more"):
        top(HAND, np.array, k, (1,))


@pytest.mark.parametrize("orders", [(0,), (1, 1), (2, 1), (4,)])
def test_other_orders_are_refused(orders):
    with pytest.raises(ValueError, match=r"orders are \(.*\) but must rise within 1 to 3"):
        top(HAND, np.array, 1, orders)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranked_V": np.zeros(3, np.uint32)}, "got 4 words and 3 ranks; pass one of each per word"),
        ({"value_G": np.zeros(3, np.float32)}, "got 5 words and 3 values of n-grams"),
        ({"end_HK": np.zeros((1, 3), np.uint32)}, r"have shapes \(1, 2\), \(1, 3\) and \(1, 2\)"),
    ],
)
def test_other_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        top_words(1, (1,), **grouped(HAND.arrays() | change), multiply=PROB)


@pytest.mark.parametrize("name", list(HAND.arrays()))
def test_other_dtypes_are_refused(name):
    arrays = HAND.arrays()
    with pytest.raises(TypeError, match="expected (uint32|float32|uint32 or int64) but got float64"):
        top_words(1, (1,), **grouped(arrays | {name: arrays[name].astype(float)}), multiply=PROB)
