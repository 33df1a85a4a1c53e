"""The trie of a model: by hand, compared with a dictionary of n-grams, and with invalid input."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import CODED, FILLED, TRIE_ARRAYS, Ngrams, node_dtype
from mgpu_ngram.engine.trie import build as trie_module
from mgpu_ngram.engine.trie.build import BadNgram, build_trie, edges_of, index_of, values_of, with_fanout
from mgpu_ngram.engine.trie.quantize import bin_centers, nearest_codes, quantize
from mgpu_ngram.kernels.dispatch import on_gpu, to_host
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_tokens import score_tokens
from tests.support.slow_cases import first_fast


@pytest.fixture(scope="session")
def build(to_device):
    """Return a function: {n-gram: (prob, backoff)} -> Trie, rows in the given order."""

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
    """Return {n-gram: (prob, backoff)} of every node, and {n-gram: n-gram of its suffix link}, from the arrays."""
    word, prob, backoff, first, suffix = (
        to_host(a).tolist() for a in (trie.word_G, trie.prob_G, trie.backoff_M, trie.first_child_M, trie.suffixes())
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


def filled_in(trie):
    """Return the filled n-grams, in the order of their nodes."""
    if trie.filled_F is None:
        return []
    nodes, ngrams = to_host(trie.filled_F), list(contents(trie)[0])  # by node
    assert nodes.dtype == trie.first_child_M.dtype and (np.diff(nodes.astype(np.int64)) > 0).all()
    return [ngrams[node] for node in nodes]


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
    assert to_host(trie.suffixes()).tolist() == [8, 8, 8, 8, 3, 2, 3] and len(trie.suffix_L) == 0
    assert trie.first_child_M.dtype == trie.suffix_L.dtype == trie.suffixes().dtype == np.uint32


def test_suffixes_by_hand(build):
    """Only suffixes of orders 3 to N - 1 are stored."""
    grams = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 1), (0, 1, 0), (0, 0, 1, 0)]  # nodes 0 to 7
    trie = build({g: (-1, 0) for g in grams})
    assert to_host(trie.suffix_L).tolist() == [3, 4]
    assert to_host(trie.suffixes()).tolist() == [8, 8, 0, 1, 0, 3, 4]


def test_a_probability_of_1_is_minus_0(build):
    """With either sign in the file."""
    trie = build({(0,): (0.0, 0), (1,): (-0.0, 0), (0, 0): (0.0, 0)})
    assert np.signbit(to_host(trie.prob_G)).all()


def test_a_missing_suffix_is_filled_in_by_hand(build):
    """As in KenLM: 1 2 3 0 needs 2 3 0 and 3 0, which get their backoff probabilities."""
    ngrams = {
        (0,): (-1, -0.125), (1,): (-2, -0.25), (2,): (-3, -0.5), (3,): (-4, -0.75),
        (1, 2): (-5, -1), (2, 3): (-6, -1.5),
        (1, 2, 3): (-7, -2),
        (1, 2, 3, 0): (-8, 0),
    }  # fmt: skip
    trie = build(ngrams)
    found, suffixes = contents(trie)
    assert found == ngrams | {(3, 0): (-1.75, 0), (2, 3, 0): (-3.25, 0)}
    assert suffixes[2, 3, 0] == (3, 0) and suffixes[1, 2, 3] == (2, 3)
    assert to_host(trie.filled_F).tolist() == [6, 8] and filled_in(trie) == [(3, 0), (2, 3, 0)]


def test_filled_nodes_stay_marked(build, device):
    """In every copy of the trie, on any device; and only there."""
    ngrams = {(0,): (-1, 0), (1,): (-2, 0), (0, 1): (-3, 0), (0, 1, 1): (-4, 0)}
    trie, whole = build(ngrams), build(ngrams | {(1, 1): (-5, 0)})
    assert filled_in(trie) == [(1, 1)] and whole.filled_F is None and FILLED not in whole.arrays()
    bare = replace(trie, backoff_M=trie.backoff_M[:0])
    for made in quantize(trie, 8), quantize(trie, 8).decoded(), with_fanout(trie, 5), bare, quantize(bare, 8):
        assert on_gpu(made.filled_F) == (device == "gpu") and to_host(made.filled_F).tolist() == [3]
        there = made.map_arrays(to_host)
        assert isinstance(there.filled_F, np.ndarray) and there.filled_F.tolist() == [3]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([(2, 0), (2, 1), (2, 0), (2, 1)], "row 2 of order 2 occurs twice"),
        ([(2, 0), (1, 2, 2), (0, 1, 1)], "row 0 of order 3 lacks its history, its first 2 words as a 2-gram; add that"),
        ([(2, 0), (2, 0, 1), (2, 0, 1, 0), (0, 0, 1, 1)], "row 1 of order 4 lacks its history, its first 3 words"),
    ],
)
def test_invalid_ngrams(extra, message, to_device):
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
    """Return P of a missing n-gram, by the definition, in float32."""
    if ngram in ngrams:
        return np.float32(ngrams[ngram][0])
    return back_off(ngrams, ngram[1:]) + np.float32(ngrams.get(ngram[:-1], (0, 0))[1])


VALUES = st.floats(-9, 0, width=32, allow_subnormal=False)  # CuPy's sums turn values below 1.2e-38 into 0


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
    trie = build(ngrams, fanout)
    found, suffixes = contents(trie)
    assert found == expected and filled_in(trie) == sorted(expected.keys() - ngrams.keys(), key=lambda g: (len(g), g))
    assert suffixes == {g: g[1:] for g in expected if len(g) < N}


def test_no_ngrams_of_higher_orders(build, to_device):
    nothing = Ngrams(to_device(np.empty((0, 2), np.uint32)), to_device(np.empty(0, np.float32)))
    one = Ngrams(to_device(np.zeros((1, 1), np.uint32)), *(to_device(np.zeros(1, np.float32)),) * 2)
    trie = build_trie([one, nothing])
    assert trie.starts == (0, 1, 1) and to_host(trie.first_child_M).tolist() == [1, 1]
    assert to_host(trie.suffixes()).tolist() == [1]
    alone = build_trie([one])
    assert len(alone.suffixes()) == 0
    assert alone.order == 1 and to_host(alone.first_child_M).tolist() == [1] and len(alone.backoff_M) == 0


def bigrams(build, probs, backoffs, V=16):
    """Return a trie of orders 1 to 3 whose bigrams have these values, in the order of their nodes."""
    grams = {(w,): (-w / 4, -w / 8) for w in range(V)} | {(0, 0, 0): (-3, 0)}
    pairs = [(i // V, i % V) for i in range(len(probs))]
    return build(grams | {g: values for g, *values in zip(pairs, probs, backoffs, strict=True)})


def of_bigrams(trie, array):
    return to_host(array)[trie.starts[1] : trie.starts[2]].tolist()


def test_bins_by_hand(build):
    """Four bins of two probabilities, two of two backoffs; -2 is nearer to the centre of the bin after its own."""
    probs = [-0.5, -16, -2, -1.75, -1.5, -1.25, -1, -0.75]
    backoffs = [0, -4, -1, 0.5, -2, 0, -0.0, 0]
    trie = bigrams(build, probs, backoffs)
    made = quantize(trie, 2)
    centers = to_host(made.centers)
    assert centers.shape == (2, 2, 256) and centers.dtype == np.float32
    assert centers[0, 0, :4].tolist() == [-9, -1.625, -1.125, -0.625]
    assert centers[0, 1, :4].tolist() == [0, 0, -3, -0.25]
    assert made.prob_G.dtype == made.backoff_M.dtype == np.uint8
    assert of_bigrams(made, made.prob_G) == [3, 0, 1, 1, 1, 2, 2, 3]
    assert of_bigrams(made, made.backoff_M) == [0, 2, 3, 3, 2, 0, 0, 0]
    words = [[-w / 4, -w / 8] for w in range(16)]
    assert to_host(made.words_V2).tolist() == words
    found, _ = contents(made.decoded())
    assert [found[0, w][0] for w in range(8)] == [-0.625, -9, -1.625, -1.625, -1.625, -1.125, -1.125, -0.625]
    assert [found[0, w][1] for w in range(8)] == [0, -3, -0.25, -0.25, -3, 0, 0, 0]
    assert [found[w,] for w in range(16)] == [tuple(values) for values in words]
    assert found[0, 0, 0] == (-3, 0)


def test_a_value_between_two_centres(build):
    """Ties go to the higher centre."""
    probs = [-9, -7.5, -6.875, -4.125, -3, -1, -0.5, -0.25]  # -6.875 lies between -8.25 and -5.5
    found, _ = contents(quantize(bigrams(build, probs, [0] * 8), 2).decoded())
    assert [found[0, w][0] for w in range(8)] == [-8.25, -8.25, -5.5, -5.5, -2, -0.375, -0.375, -0.375]


def test_as_many_codes_as_values(build):
    """Each value has its own bin, so no value changes."""
    probs, backoffs = [-4, -3, -2, -1], [-2, 0, 0, -1]
    found, _ = contents(quantize(bigrams(build, probs, backoffs), 2).decoded())
    assert [found[0, w] for w in range(4)] == list(zip(probs, backoffs, strict=True))


VALUE_LISTS = st.integers(1, 240).flatmap(
    lambda n: st.lists(st.integers(-8000, 0).map(lambda x: x / 1024), min_size=n, max_size=n)
)


def plain_bins(values, bins):
    """Return centres by their definition; all sums are exact."""
    ordered, B = sorted(values), len(values)
    parts = [ordered[B * b // bins : B * (b + 1) // bins] for b in range(bins)]
    return [f32(sum(part) / len(part)) for part in parts if part]


def nearest(value, centers):
    return max(centers, key=lambda c: (-abs(np.float32(value) - np.float32(c)), c))


@settings(max_examples=60)
@given(probs=VALUE_LISTS, bits=st.integers(2, 16), seed=st.integers(0, 10**6))
def test_any_values(build, probs, bits, seed):
    rng = np.random.default_rng(seed)
    backoffs = np.where(rng.random(len(probs)) < 0.3, 0, rng.integers(-3000, 500, len(probs)) / 1024).tolist()
    trie = bigrams(build, probs, backoffs)
    made = quantize(trie, bits)
    assert made.prob_G.dtype == made.backoff_M.dtype == (np.uint8 if bits <= 8 else np.uint16)
    back = made.decoded()
    assert back.words_V2 is back.centers is None and back.decoded() is back
    found_probs, found_backoffs = of_bigrams(back, back.prob_G), of_bigrams(back, back.backoff_M)
    centers = plain_bins(probs, 2**bits)
    assert found_probs == [nearest(p, centers) for p in probs]
    assert len(set(found_probs)) <= 2**bits
    if len(probs) <= 2**bits:
        assert found_probs == probs
    by_value = [p for _, p in sorted(zip(probs, found_probs, strict=True))]
    assert by_value == sorted(by_value)
    there = [b for b in backoffs if b]
    centers = plain_bins(there, 2**bits - 2) if there else []
    assert found_backoffs == [nearest(b, centers) if b else 0 for b in backoffs]
    for name in set(TRIE_ARRAYS) - {"prob_G", "backoff_M"}:
        assert getattr(made, name) is getattr(trie, name)


def model_of_text(build, order, seed, words=6):
    """Return all n-grams of a random text with random values; no suffix is missing."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, words, 400).tolist()
    there = {tuple(text[i : i + n]) for n in range(1, order + 1) for i in range(400 - n)} | {(w,) for w in range(words)}
    return build({g: tuple((-rng.random(2, np.float32)).tolist()) for g in sorted(there)}), rng


def scores(trie, codes_T, edges):
    if edges:
        table = edges_of(trie)
        found = score_by_edges(table, trie.order, 1, 2, codes_T)
    else:
        found = score_tokens(index_of(trie), values_of(trie), trie.order, 1, 2, codes_T)
    return [to_host(a).tolist() for a in found]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("bits", first_fast([11, 8, 2]))
def test_a_quantised_trie_scores_like_its_decoded_values(build, to_device, order, bits):
    trie, rng = model_of_text(build, order, order)
    made = quantize(trie, bits)
    codes_T = to_device(rng.integers(0, 7, 500).astype(np.uint32))
    expected = scores(made.decoded(), codes_T, edges=False)
    assert scores(made, codes_T, edges=False) == scores(made, codes_T, edges=True) == expected
    most = max([0, *np.diff(trie.starts[1:]).tolist()])  # values of an order, all different
    assert (expected == scores(trie, codes_T, edges=False)) == (most <= 2**bits - 2)


def test_a_trie_moves_with_its_codes(build, device):
    made = quantize(model_of_text(build, 3, 0)[0], 4)
    assert set(made.arrays()) == {*TRIE_ARRAYS, *CODED}
    there = made.map_arrays(to_host)
    assert all(isinstance(a, np.ndarray) for a in there.arrays().values()) and there.quantized
    assert all(on_gpu(a) == (device == "gpu") for a in made.arrays().values())


@pytest.mark.parametrize("fanout", [4, 5, 128])
def test_another_fanout(build, fanout):
    trie, _ = model_of_text(build, 4, 1)
    other, expected = with_fanout(trie, fanout), model_of_text(lambda g: build(g, fanout), 4, 1)[0]
    assert other.fanout == fanout and (other is trie) == (fanout == trie.fanout)
    assert all(np.array_equal(to_host(a), to_host(getattr(expected, n))) for n, a in other.arrays().items())


def test_without_backoffs(build):
    trie, _ = model_of_text(build, 3, 2)
    for made in trie, quantize(trie, 8):
        bare = replace(made, backoff_M=made.backoff_M[:0])
        assert made.has_backoffs and not bare.has_backoffs and len(bare.first_child_M) == trie.histories + 1
        with pytest.raises(ValueError, match=f"has 0 backoffs for {trie.histories} histories"):
            edges_of(bare)
    made = quantize(replace(trie, backoff_M=trie.backoff_M[:0]), 8)
    assert len(made.backoff_M) == 0 and not to_host(made.words_V2)[:, 1].any() and len(made.decoded().backoff_M) == 0
    assert np.array_equal(to_host(made.prob_G), to_host(quantize(trie, 8).prob_G))


def test_nodes_take_32_bits_while_they_fit():
    assert node_dtype(1) == node_dtype(2**31) == node_dtype(2**32 - 1) == np.uint32
    assert node_dtype(2**32) == node_dtype(2**40) == np.int64


@pytest.mark.parametrize("parents", [2**31 + 1, 2**32, 2**33])
def test_keys_of_many_nodes(parents, to_device):
    """Parents beyond 32 bits stay whole, and keys compare like (parent, word)."""
    words = 2 ** (64 - (parents - 1).bit_length())
    parents_R = [0, 0, 1, 2**31 - 1, 2**31, parents - 1, parents - 1]
    words_R = [0, words - 1, 0, 5, 4, words - 2, words - 1]
    parent_R, word_R = to_device(np.array(parents_R)), to_device(np.array(words_R, np.uint32))
    key_R, bits, used = trie_module._keys(parent_R, word_R, parents, words)
    keys = to_host(key_R).tolist()
    assert used == 64 and keys == sorted(set(keys))
    assert keys == [p << bits | w for p, w in zip(parents_R, words_R, strict=True)]
    back = [to_host(a) for a in trie_module._unpacked(key_R, bits, used)]
    assert [a.dtype for a in back] == [np.int64, np.uint32] and [a.tolist() for a in back] == [parents_R, words_R]
    with pytest.raises(OverflowError, match=f"{parents:,} nodes by {words + 1:,} words exceed 64 bits"):
        trie_module._keys(parent_R, word_R, parents, words + 1)


def test_short_keys_fill_the_upper_bits(to_device):
    key_R, bits, used = trie_module._keys(to_device(np.array([0, 5])), to_device(np.array([2, 3], np.uint32)), 6, 4)
    assert (bits, used) == (2, 5) and to_host(key_R).tolist() == [2 << 59, (5 << 2 | 3) << 59]
    assert [to_host(a).tolist() for a in trie_module._unpacked(key_R, bits, used)] == [[0, 5], [2, 3]]


@pytest.mark.slow
def test_a_trie_of_64_bit_nodes(build, to_device, monkeypatch):
    """As with 2**32 nodes or more."""
    expected, _ = model_of_text(build, 4, 3)
    monkeypatch.setattr(trie_module, "node_dtype", lambda nodes: np.dtype(np.int64))
    trie, rng = model_of_text(build, 4, 3)
    assert trie.first_child_M.dtype == trie.suffix_L.dtype == trie.suffixes().dtype == np.int64
    assert contents(trie) == contents(expected)
    codes_T = to_device(rng.integers(0, 7, 300).astype(np.uint32))
    for a, b in (trie, expected), (quantize(trie, 8), quantize(expected, 8)):
        assert scores(a, codes_T, edges=False) == scores(b, codes_T, edges=False) == scores(a, codes_T, edges=True)


def test_a_model_too_large_for_an_edge_table(monkeypatch):
    """Keys of 65 bits need billions of nodes."""

    def too_large(*_):
        raise OverflowError("9 histories by 9 words need keys of 65 bits, and an edge table holds 64")

    made = build_trie([Ngrams(np.arange(3, dtype=np.uint32)[:, None], np.zeros(3, np.float32))])
    monkeypatch.setattr(trie_module, "make_edges", too_large)
    message = r"^the model has 9 histories .* holds 64; use the index btree \(--index btree\)$"
    with pytest.raises(InputError, match=message):
        edges_of(made)


def test_centres_and_codes_by_hand(to_device):
    """As lm/quantize.cc and lm/quantize.hh of KenLM: an empty bin repeats the one before it; ties go up."""
    centers = lambda values, bins: bin_centers(to_device(np.array(values, np.float32)), bins).tolist()  # noqa: E731
    assert centers([4, 9, 1, 3, 2], 2) == [1.5, np.float32(16 / 3)]
    assert centers([-2], 4) == [-np.inf, -np.inf, -np.inf, -2]
    assert centers([-2, -4, -6], 4) == [-np.inf, -6, -4, -2]
    assert centers([], 2) == [-np.inf, -np.inf]
    values = to_device(np.array([0, 2, 3, 4, 5, 9, 1], np.float32))
    codes = nearest_codes(values, to_device(np.array([1, 3, 3, 7], np.float32)))
    assert codes.tolist() == [0, 1, 1, 2, 3, 3, 0]
    assert nearest_codes(values[-1:], to_device(np.ones(4, np.float32))).tolist() == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zeros = to_device(np.array([-np.inf, -3, -2], np.float32))  # probabilities of 0 and more
        assert nearest_codes(zeros, to_device(np.array([-np.inf, -np.inf, -2], np.float32))).tolist() == [0, 2, 2]
