"""Rows of all words: by hand, and by the definition, word by word."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution import row_launch as shared
from mgpu_ngram.kernels.distribution import write_rows as module
from mgpu_ngram.kernels.distribution.find_histories import Children
from mgpu_ngram.kernels.distribution.row_launch import RowKind, WordValues
from mgpu_ngram.kernels.distribution.write_rows import write_rows
from tests.support.slow_cases import first_fast

STORED_AS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def arrays_of(histories, unigrams, dtype=np.uint32, gap=0):
    """Return arguments of `write_rows` for histories given as lists, by order, of (backoff, {word: value}). Between the
    children of two histories, `gap` nodes belong to no history.
    """
    H, K = len(histories), len(histories[0]) if histories else 0
    first_HK, end_HK, backoff_HK = np.zeros((H, K), dtype), np.zeros((H, K), dtype), np.ones((H, K), np.float32)
    nodes = []
    for h, history in enumerate(histories):
        for k, (backoff, children) in enumerate(history):
            backoff_HK[h, k] = backoff
            if children is not None:  # else no node
                nodes += [(0, 99.0)] * gap
                first_HK[h, k] = len(nodes)
                nodes += sorted(children.items())
                end_HK[h, k] = len(nodes)
    word_G, value_G = np.array([w for w, _ in nodes], np.uint32), np.array([v for _, v in nodes], np.float32)
    return first_HK, end_HK, backoff_HK, word_G, value_G, np.array(unigrams, np.float32)


def write(out_HNV, orders, arrays, *kind):
    """Call `write_rows` with `arrays_of` histories."""
    arrays = tuple(arrays)
    write_rows(out_HNV, orders, Children(*arrays[:3]), WordValues(*arrays[3:]), RowKind(*kind))


def rows(to_device, orders, arrays, multiply, nothing=None, stored_as="float32", padding=0, shift=0):
    """Return the rows of write_rows, (H, orders, V). Rows are `padding` values apart and start at `shift` in memory;
    all other memory must stay unchanged.
    """
    dtype, (H, V) = STORED_AS[stored_as], (len(arrays[0]), len(arrays[5]))
    memory = np.full(H * len(orders) * (V + padding) + shift, 77, dtype)
    memory_on_device = to_device(memory)
    out_HNV = memory_on_device[shift:].reshape(H, len(orders), V + padding)[:, :, :V]
    write(out_HNV, orders, map(to_device, arrays), multiply, nothing, stored_as == "bfloat16")
    written = to_host(memory_on_device)
    assert (written[:shift] == 77).all()
    written = written[shift:].reshape(H, len(orders), V + padding)
    assert (written[:, :, V:] == 77).all()
    return written[:, :, :V]


def bfloat16_of(value):
    """Return the upper half of a float32, rounded to the nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    if math.isinf(value):
        return bits
    below, above = (struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in (bits, bits + 1))
    if math.isinf(above):
        above = math.copysign(2.0**128, value)
    down, up = abs(value - below), abs(above - value)
    return bits if down < up or (down == up and bits % 2 == 0) else bits + 1


def float16_of(value):
    try:
        packed = struct.pack("<e", value)
    except OverflowError:
        packed = struct.pack("<e", math.copysign(math.inf, value))
    return struct.unpack("<H", packed)[0]


def bits_of(value, stored_as):
    if stored_as == "float32":
        return struct.unpack("<I", struct.pack("<f", value))[0]
    return float16_of(value) if stored_as == "float16" else bfloat16_of(value)


def plain_rows(histories, unigrams, orders, multiply, nothing, stored_as):
    """Return the bits of every value, by the definition."""
    result = []
    for history in histories:
        made = [[np.float32(u) for u in unigrams]]
        for backoff, children in history:
            row, b = [], np.float32(backoff)
            for word, shorter in enumerate(made[-1]):
                value = (shorter * b if multiply else shorter + b) if nothing is None else nothing
                row.append(np.float32((children or {}).get(word, value)))
            made.append(row)
        result.append([[bits_of(float(v), stored_as) for v in made[n - 1]] for n in orders])
    return result


def check(to_device, histories, unigrams, orders, multiply, nothing=None, stored_as="float32", dtype=np.uint32, gap=0,
          padding=0, shift=0):  # fmt: skip
    arrays = arrays_of(histories, unigrams, dtype, gap)
    found = rows(to_device, orders, arrays, multiply, nothing, stored_as, padding, shift)
    bits = found.view(np.uint32 if stored_as == "float32" else np.uint16)
    assert bits.tolist() == plain_rows(histories, unigrams, orders, multiply, nothing, stored_as)


PROB = [0.5, 0.25, 0.125, 0.125]
HISTORIES = [
    [(0.5, {1: 0.75, 3: 0.0625}), (2, {3: 0.875})],
    [(0.25, {0: 0.5}), (1, None)],  # the model lacks the longer history
    [(0.5, {}), (0.25, {})],  # nodes without children
]


def test_probabilities_by_hand(to_device):
    found = rows(to_device, (1, 2, 3), arrays_of(HISTORIES, PROB), multiply=True)
    assert found.tolist() == [
        [PROB, [0.25, 0.75, 0.0625, 0.0625], [0.5, 1.5, 0.125, 0.875]],
        [PROB, [0.5, 0.0625, 0.03125, 0.03125], [0.5, 0.0625, 0.03125, 0.03125]],
        [PROB, [0.25, 0.125, 0.0625, 0.0625], [0.0625, 0.03125, 0.015625, 0.015625]],
    ]


def test_logarithms_by_hand(to_device):
    histories = [[(-0.5, {1: -0.25}), (-8, {1: -4})], [(-0.5, {2: -0.25}), (0, None)]]
    found = rows(to_device, (1, 2, 3), arrays_of(histories, [-1, -2, -math.inf]), multiply=False)
    assert found.tolist() == [
        [[-1, -2, -math.inf], [-1.5, -0.25, -math.inf], [-9.5, -4, -math.inf]],
        [[-1, -2, -math.inf], [-1.5, -2.5, -0.25], [-1.5, -2.5, -0.25]],
    ]


@pytest.mark.parametrize("nothing", [0.0, -math.inf])
def test_stored_by_hand(nothing, to_device):
    found = rows(to_device, (1, 2, 3), arrays_of(HISTORIES, PROB), multiply=nothing == 0, nothing=nothing)
    o = nothing
    assert found.tolist() == [
        [PROB, [o, 0.75, o, 0.0625], [o, o, o, 0.875]],
        [PROB, [0.5, o, o, o], [o, o, o, o]],
        [PROB, [o, o, o, o], [o, o, o, o]],
    ]


def test_stored_children_that_shorter_histories_lack(to_device):
    """As after filling in n-grams of shorter histories."""
    histories = [[(0.5, {0: 0.25}), (2, {1: 0.5, 3: 0.75}), (1, {2: 0.125})]]
    found = rows(to_device, (1, 2, 3, 4), arrays_of(histories, PROB), True, 0.0)
    assert found.tolist() == [[PROB, [0.25, 0, 0, 0], [0, 0.5, 0, 0.75], [0, 0, 0.125, 0]]]


@pytest.mark.parametrize("orders", [(1,), (2,), (3,), (1, 3), (2, 3)])
@pytest.mark.parametrize("nothing", [None, 0.0])
def test_some_orders(orders, nothing, to_device):
    all_of_them = rows(to_device, (1, 2, 3), arrays_of(HISTORIES, PROB), True, nothing)
    found = rows(to_device, orders, arrays_of(HISTORIES, PROB), True, nothing)
    assert found.tolist() == all_of_them[:, [n - 1 for n in orders]].tolist()


def test_products_and_sums_are_rounded_order_by_order(to_device):
    """Each step rounds to float32: neither the product of the backoffs nor more digits in between give these values."""
    x, b, big = np.float32(0.7), np.float32(0.6), 2.0**24
    product = np.float32(np.float32(x * b) * b)
    assert product not in (np.float32(x * np.float32(b * b)), np.float32(float(x) * float(b) * float(b)))
    found = rows(to_device, (3,), arrays_of([[(b, None), (b, None)]], [x]), multiply=True)
    assert found.tolist() == [[[product]]]
    found = rows(to_device, (3,), arrays_of([[(1, None), (1, None)]], [big]), multiply=False)
    assert found.tolist() == [[[big]]] and big + 2 == np.float32(big + 2)


def test_zeros_keep_their_signs(to_device):
    found = rows(to_device, (2,), arrays_of([[(-1, None)]], [0.0, -0.0]), multiply=True)
    assert np.signbit(found).tolist() == [[[True, False]]]
    found = rows(to_device, (2,), arrays_of([[(-0.0, None)]], [0.0, -0.0]), multiply=False)
    assert np.signbit(found).tolist() == [[[False, True]]]


def nested(rng, words, K, share):
    """Return children of K orders, each among the children of the order before."""
    history = []
    for _ in range(K):
        words = [w for w in words if rng.random() < share]
        there = rng.random() < 0.9
        words = words if there else []
        children = {int(w): float(rng.random(dtype=np.float32) - 0.5) for w in words}
        history.append((float(rng.random(dtype=np.float32) * 2 - 1), children if there else None))
    return history


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6), V=st.integers(1, 70), H=st.integers(0, 9), K=st.integers(0, 5), data=st.data(),
    multiply=st.booleans(), nothing=st.sampled_from([None, 0.0, -math.inf]), stored_as=st.sampled_from([*STORED_AS]),
    dtype=st.sampled_from([np.uint32, np.int64]), gap=st.integers(0, 2), padding=st.integers(0, 9),
    shift=st.integers(0, 9),
)  # fmt: skip
def test_any_histories(to_device, seed, V, H, K, data, multiply, nothing, stored_as, dtype, gap, padding, shift):
    rng = np.random.default_rng(seed)
    histories = [nested(rng, range(V), K, rng.choice([0.1, 0.5, 0.9])) for _ in range(H)]
    K = K if H else 0
    orders = tuple(sorted(data.draw(st.sets(st.integers(1, K + 1), min_size=1))))
    unigrams = (rng.random(V, np.float32) - 0.5).tolist()
    check(to_device, histories, unigrams, orders, multiply, nothing, stored_as, dtype, gap, padding, shift)


EDGES = [0, 1, 31, 32, 127, 128, 255, 256, 511, 512, 513, 1023, 1024, 2047, 2048, 4095, 4096]


@pytest.mark.parametrize("V", [1, 7, 8, 511, 512, 513, 4095, 4096, 4097])
@pytest.mark.parametrize("stored_as", [*STORED_AS])
@pytest.mark.parametrize("padding", [0, 15])
def test_children_at_the_edges_of_tiles(V, stored_as, padding, device, to_device, monkeypatch):
    rng = np.random.default_rng(V)
    edges = sorted({w for w in (*EDGES, V - 1) if w < V})
    histories = [
        [(0.5, dict.fromkeys(edges, 3.0)), (0.75, {edges[-1]: 5.0})],
        [(0.5, {edges[-1]: 3.0}), (0.75, None)],
        [(0.5, {edges[0]: 3.0}), (0.75, {edges[0]: 5.0})],
        [(0.5, {w: 3.0 + w for w in range(V)}), (0.75, dict.fromkeys(edges, 5.0))],
        nested(rng, range(V), 2, 0.4),
    ]
    unigrams = rng.random(V, np.float32).tolist()
    check(to_device, histories, unigrams, (1, 2, 3), True, None, stored_as, padding=-V % 16 if padding else 0)
    if device == "gpu":  # as more words have them, and many
        for limits in {"FEWEST_WORDS": 0}, {"FEW_WORDS": (0, 0), "SHORT_WORDS": (0, 0)}:
            for name, limit in limits.items():
                monkeypatch.setattr(shared, name, limit)
            check(to_device, histories, unigrams, (1, 2, 3), True, None, stored_as, padding=-V % 16 if padding else 0)


@pytest.mark.parametrize("multiply", [True, False])
def test_every_word_is_a_child_of_every_history(multiply, to_device):
    V, K = 1500, 4
    history = [(0.5, {w: float(100 * k + w) for w in range(V)}) for k in range(K)]
    check(to_device, [history] * 3, [1.0] * V, tuple(range(1, K + 2)), multiply)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize("padding", first_fast([12, 0]))
@pytest.mark.parametrize("K", [0, 1, 4, 17])
@pytest.mark.parametrize("ahead", first_fast([1, 0, 2], 2))
def test_large_work(K, dtype, padding, ahead, to_device, monkeypatch):
    """Many histories: tile starts come first, tiles are large, histories exceed a layer of the grid, and children are
    prefetched.
    """
    V, H, N = 2100, 7, min(2, K + 1)
    for name, limit in {"FEW_WORDS": (0, 0), "SHORT_WORDS": (0, 0), "MAX_GRID_Y": 3}.items():
        monkeypatch.setattr(shared, name, limit)
    monkeypatch.setattr(module, "MAX_GRID_Y", 3)
    monkeypatch.setattr(module, "LONG_BYTES", 0 if ahead else 1e9)
    monkeypatch.setattr(module, "TOGETHER_BYTES", ahead * N * V * 4)
    rng = np.random.default_rng(K)
    histories = [nested(rng, range(V), K, 0.6) for _ in range(H)]
    orders = tuple(range(K + 2 - N, K + 2))
    check(to_device, histories, rng.random(V, np.float32).tolist(), orders, True, dtype=dtype, padding=padding)


def test_products_and_sums_may_be_subnormal(to_device):
    least = 2.0**-149
    found = rows(to_device, (2,), arrays_of([[(0.25, None)]], [2.0**-126, 3 * least, least]), multiply=True)
    assert found.tolist() == [[[2.0**-128, least, 0]]]
    found = rows(to_device, (2,), arrays_of([[(-least, None)]], [-least, -0.0, -(2.0**-126)]), multiply=False)
    assert found.tolist() == [[[-2 * least, -least, -(2.0**-126) - least]]]


def test_many_histories(to_device):
    """More histories than a block of threads takes at once, each with its own children."""
    rng = np.random.default_rng(0)
    histories = [nested(rng, range(11), 2, 0.4) for _ in range(700)]
    check(to_device, histories, rng.random(11, np.float32).tolist(), (1, 3), multiply=True)


def test_histories_share_children(to_device):
    arrays = list(arrays_of([HISTORIES[0]] * 5, PROB))
    arrays[0][:], arrays[1][:] = arrays[0][0], arrays[1][0]
    found = rows(to_device, (2,), arrays, multiply=True)
    assert found.tolist() == [[[0.25, 0.75, 0.0625, 0.0625]]] * 5


def test_32_orders(to_device):
    history = [(0.5, {k % 3: float(k)}) for k in range(32)]
    check(to_device, [history], [1.0, 2.0, 4.0], tuple(range(1, 34)), multiply=True)
    check(to_device, [history], [1.0, 2.0, 4.0], (33,), multiply=True, nothing=0.0)


def test_a_history_may_stand_between_others(to_device):
    """Any strides: every second order of a larger array, for every third history."""
    histories = [nested(np.random.default_rng(h), range(40), 1, 0.3) for h in range(4)]
    arrays = arrays_of(histories, [0.5] * 40)
    memory = to_device(np.full((12, 4, 48), 77, np.float32))
    write(memory[::3, ::2, 4:44], (1, 2), map(to_device, arrays), True)
    written = to_host(memory)
    expected = np.full((12, 4, 48), 77, np.float32)
    expected[::3, ::2, 4:44] = rows(to_device, (1, 2), arrays, multiply=True)
    assert written.tolist() == expected.tolist() and (written == 77).sum() == 12 * 4 * 48 - 4 * 2 * 40


HARD = [
    0.0, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0000002, 2.0**-26, 3 * 2.0**-25, 5 * 2.0**-25, 2.0**-14, 2.0**-14 - 2.0**-25,
    2.0**-14 - 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-23, 2047.5, 2048.5, 65504.0, 65519.99,
    65520.0, 65536.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 2.0**-126, 2.0**-133, 2.0**-134, 2.0**-149,
    3.4028234663852886e38, 3.3895313892515355e38, 3.39e38, 3.3961775292304601e38, math.inf,
]  # fmt: skip


@pytest.mark.parametrize("stored_as", ["float16", "bfloat16"])
@pytest.mark.parametrize("V", [2000, 2001])
def test_values_are_rounded_to_the_nearest(stored_as, V, to_device):
    """Values of any bits, and values on the limits."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, V, np.uint32).view(np.float32)
    values[1000:] = rng.choice([-1, 1], V - 1000) * 2.0 ** rng.uniform(-27, 17, V - 1000)
    values[: 2 * len(HARD)] = [*HARD, *(-x for x in HARD)]
    values[np.isnan(values)] = 0
    found = rows(to_device, (1,), arrays_of([[]], values), True, stored_as=stored_as)
    assert found.view(np.uint16).tolist() == [[[bits_of(float(v), stored_as) for v in values]]]


def test_what_other_tools_round_alike():
    with np.errstate(over="ignore"):
        assert [float16_of(v) for v in HARD] == np.array(HARD).astype(np.float16).view(np.uint16).tolist()
    assert [bfloat16_of(v) for v in (1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4028234663852886e38)] == [
        0x3F80, 0x3F80, 0x3F82, 0x7F80
    ]  # fmt: skip


@pytest.mark.parametrize(("H", "V"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_write(H, V, to_device):
    arrays = arrays_of([[(0.5, {})]] * H, [0.5] * V)
    found = rows(to_device, (1,), arrays, multiply=True)
    assert found.shape == (H, 1, V)


def test_what_does_not_fit_together():
    arrays = arrays_of(HISTORIES, PROB)
    out = np.zeros((3, 2, 4), np.float32)
    for orders in (), (0, 1), (2, 2), (3, 2), (3, 4):
        with pytest.raises(ValueError, match="must rise from 1 to 3 at most"):
            write(out, orders, arrays, True)
    with pytest.raises(ValueError, match=r"shape \(3, 2, 4\) but the rows need \(3, 3, 4\)"):
        write(out, (1, 2, 3), arrays, True)
    with pytest.raises(ValueError, match=r"end_HK \(3, 1\)"):
        write(out, (1, 2), (arrays[0], arrays[1][:, :1], *arrays[2:]), True)
    with pytest.raises(ValueError, match="strides .* its last axis must be contiguous"):
        write(np.zeros((4, 2, 3), np.float32).T, (1, 2), arrays, True)
    with pytest.raises(ValueError, match="strides .* not negative; pass another array"):
        write(out[::-1], (1, 2), arrays, True)
    many = np.zeros((3, 33), np.uint32)
    with pytest.raises(ValueError, match="children of 33 orders but the kernels take at most 32"):
        write(out, (1, 2), (many, many, many.astype(np.float32), *arrays[3:]), True)


def test_other_dtypes_are_refused():
    arrays = arrays_of(HISTORIES, PROB)
    for dtype, bfloat16 in (np.float64, False), (np.uint16, False), (np.float16, True):
        with pytest.raises(TypeError, match="expected (float32 or float16|uint16) but got"):
            write(np.zeros((3, 2, 4), dtype), (1, 2), arrays, True, None, bfloat16)
    for i, dtype in enumerate((np.uint64, np.int64, np.float64, np.int32, np.float64, np.float64)):
        with pytest.raises(TypeError, match="expected .* but got"):
            write(
                np.zeros((3, 2, 4), np.float32), (1, 2), (*arrays[:i], arrays[i].astype(dtype), *arrays[i + 1 :]), True
            )


@pytest.mark.parametrize("H", [1, 65535, 65536, 131071, 780_335, 10**7])
def test_a_grid_for_any_number_of_histories(H):
    """A layer has no more histories than a GPU allows, and the layers have few idle places."""
    y, z = shared.layers_of(H)
    assert y <= 65535 and H <= y * z < H + z
