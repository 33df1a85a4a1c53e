"""The best words of rows, against float64 and Python's own sort."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.best_words import best_words
from mgpu_ngram.kernels.decode.exponential_sums import CHUNKS
from mgpu_ngram.kernels.decode.logit_rows import NgramChildren
from mgpu_ngram.kernels.dispatch import to_host

SIZES = [1, 2, 3, 63, 64, 65, 511, 513, *(chunk + i for chunk in CHUNKS[:2] for i in (-1, 0, 1, chunk + 5))]
DTYPES = ("float32", "float16", "bfloat16")


def encoded(values, dtype):
    """Return float32 values, which the dtype must be able to hold, as the pair takes them."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def choose(to_device, logits_MRV, k, costs_R=None, weights=(1.0,), bias_MV=None, ngrams=None, g=0.0, forbidden=()):
    """Return the words, scores and sums of `best_words` on the host."""
    costs_R = np.zeros(logits_MRV.shape[1], np.float32) if costs_R is None else costs_R
    forbidden_F = np.array(forbidden, np.int32) if len(forbidden) else None
    arrays = [None if a is None else to_device(a) for a in (logits_MRV, costs_R, bias_MV, forbidden_F)]
    if isinstance(ngrams, NgramChildren):
        ngrams = NgramChildren(*map(to_device, ngrams))
    elif ngrams is not None:
        ngrams = to_device(ngrams)
    found = best_words(arrays[0], k, arrays[1], weights, arrays[2], ngrams, g, arrays[3])
    return [to_host(a) for a in found]


def exact(x_MRV, costs_R, weights, ngram_RV, g):
    """Return (the parts of the scores that depend on the word (R, V), the others (R,), logarithms of sums (M, R))."""
    x_MRV = x_MRV.astype(np.float64)
    top_MR1 = x_MRV.max(axis=2, keepdims=True)
    sums_MR = (top_MR1 + np.log(np.exp(x_MRV - top_MR1).sum(axis=2, keepdims=True)))[:, :, 0]
    weights_M = np.array(weights, np.float32).astype(np.float64)
    mix_RV = np.tensordot(weights_M, x_MRV, 1) + (0 if ngram_RV is None else np.float64(np.float32(g)) * ngram_RV)
    return mix_RV, costs_R - weights_M @ sums_MR, sums_MR


def best_by_sorting(mix_RV, rest_R, k, forbidden=()):
    """Return (words, scores) of each row by falling score, then rising word; -1 and -inf behind."""
    words_RK = np.full((len(mix_RV), k), -1)
    scores_RK = np.full((len(mix_RV), k), -np.inf)
    for r, row in enumerate(mix_RV):
        kept = [v for v in range(len(row)) if v not in forbidden and row[v] > -np.inf]
        best = sorted(kept, key=lambda v, row=row: (-row[v], v))[:k]
        words_RK[r, : len(best)], scores_RK[r, : len(best)] = best, row[best] + rest_R[r]
    return words_RK, scores_RK


def test_by_hand(to_device):
    """Probabilities 1/8, 2/8, 5/8 and 0."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array([[[1, 2, 5, 0]]], np.float32)) + 3
    words, scores, sums = choose(to_device, logits, 4, np.array([-1], np.float32))
    assert words.tolist() == [[2, 1, 0, -1]] and scores[0, 3] == -np.inf
    np.testing.assert_allclose(scores[0, :3], np.log([5 / 8, 2 / 8, 1 / 8]) - 1, rtol=1e-6)
    np.testing.assert_allclose(sums, [[3 + math.log(8)]], rtol=1e-6)
    words, scores, _ = choose(to_device, logits, 2, forbidden=[2])  # others keep their probabilities
    assert words.tolist() == [[1, 0]]
    np.testing.assert_allclose(scores, [np.log([2 / 8, 1 / 8])], rtol=1e-6)


def random_children(rng, R, V, K, code):
    """Return (NgramChildren, rows (R, V) by their definition): eighths; children are any words."""
    rows_RV, words, values = np.zeros((R, V)), [np.zeros(0, np.int64)], [np.zeros(0)]
    first_HK, end_HK = np.zeros((R, K), code), np.zeros((R, K), code)
    value_V, backoff_HK = rng.integers(-80, 1, V) / 8, rng.integers(-9, 1, (R, K)) / 8
    value_V[rng.random(V) < 0.1] = -np.inf
    for r in range(R):
        row = value_V.copy()
        for n in range(K):  # Katz: back off, but for children
            row += backoff_HK[r, n]
            some = np.flatnonzero(rng.random(V) < rng.choice([0, 0.01, 0.3]))
            first_HK[r, n], end_HK[r, n] = sum(map(len, words)), sum(map(len, words)) + len(some)
            words.append(some)
            values.append(rng.integers(-80, 1, len(some)) / 8)
            row[some] = values[-1]
        rows_RV[r] = row
    word_G, value_G = np.concatenate(words).astype(np.uint32), np.concatenate(values).astype(np.float32)
    backoff_HK, value_V = backoff_HK.astype(np.float32), value_V.astype(np.float32)
    return NgramChildren(first_HK, end_HK, backoff_HK, word_G, value_G, value_V), rows_RV


@st.composite
def exact_rows(draw):
    """Arguments whose weighted sums are exact in float32: eighths, and weights of powers of 2."""
    M, R = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    V = draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    width = draw(st.sampled_from([1, 4, 64]))  # few or many ties
    eighths = [rng.integers(-width, width + 1, shape) / np.float32(8) for shape in ((M, R, V), (M, V), (R, V))]
    logits_MRV, bias_MV, ngram_RV = (a.astype(np.float32) for a in eighths)
    if draw(st.booleans()):
        logits_MRV[0, rng.random((R, V)) < 0.7] = -np.inf
        logits_MRV[0, :, 0] = 0
    kind = draw(st.sampled_from(["none", "rows", "children"]))
    ngrams = None if kind == "none" else ngram_RV
    if kind == "children":
        code = draw(st.sampled_from([np.uint32, np.int64]))
        ngrams, ngram_RV = random_children(rng, R, V, draw(st.integers(0, 4)), code)
    return {
        "logits_MRV": logits_MRV,
        "k": draw(st.sampled_from([1, 2, 4, 8, 31, 33, 64])),
        "costs_R": -rng.integers(0, 9, R).astype(np.float32),
        "weights": tuple(draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in range(M)),
        "bias_MV": draw(st.sampled_from([None, bias_MV])),
        "ngrams": ngrams,
        "ngram_RV": None if kind == "none" else ngram_RV,
        "g": 0.5,
        "forbidden": draw(st.sampled_from([(), (1,), (0, 2, V + 5)])),
    }


@given(arguments=exact_rows(), dtype=st.sampled_from(DTYPES))
def test_words_are_those_of_a_sort(arguments, dtype, to_device):
    a = arguments
    x_MRV = a["logits_MRV"] + (0 if a["bias_MV"] is None else a["bias_MV"][:, None])
    *parts, sums_MR = exact(x_MRV, a["costs_R"], a["weights"], a.pop("ngram_RV"), a["g"])
    expected = best_by_sorting(*parts, a["k"], a["forbidden"])
    words, scores, sums = choose(to_device, **a | {"logits_MRV": encoded(a["logits_MRV"], dtype)})
    assert words.tolist() == expected[0].tolist()
    np.testing.assert_allclose(scores, expected[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, sums_MR, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.01, 3, 300, 60_000])
def test_sums_and_scores_are_close(dtype, spread, to_device):
    """Random logits: the best words of an ensemble with n-gram rows, and each score beside float64."""
    rng = np.random.default_rng(7)
    M, R, V, k = 2, 5, 3 * max(CHUNKS) + 77, 8
    limit = 60_000 if dtype == "float16" else np.inf
    logits = encoded(np.clip(spread * rng.standard_normal((M, R, V), np.float32), -limit, limit), dtype)
    plain = logits.astype(np.float32) if dtype != "bfloat16" else (logits.astype(np.uint32) << 16).view(np.float32)
    costs, ngrams = -9 * rng.random(R, np.float32), -10 * rng.random((R, V), np.float32)
    weights, g = (0.7, 0.3), 2.302585
    words, scores, sums = choose(to_device, logits, k, costs, weights, None, ngrams, g, (3, 5))
    mix_RV, rest_R, sums_MR = exact(plain, costs, weights, ngrams, g)
    scores_RV = mix_RV + rest_R[:, None]
    np.testing.assert_allclose(sums, sums_MR, rtol=3e-7, atol=5e-6)
    near = 5e-6 + 3e-7 * np.abs(scores_RV).max() + 2e-7 * np.abs(plain).max()
    np.testing.assert_allclose(scores, np.take_along_axis(scores_RV, words, axis=1), rtol=0, atol=near)
    np.testing.assert_allclose(scores, best_by_sorting(mix_RV, rest_R, k, (3, 5))[1], rtol=0, atol=near)
    assert all(len(set(row)) == k for row in words.tolist())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("M", [33, 70])
def test_more_models_than_lanes(M, dtype, to_device):
    """Weighted eighths, so that sums are exact: on a GPU, sums of so many models do not lie in shared memory."""
    rng = np.random.default_rng(M)
    logits, bias = (rng.integers(-8, 9, shape) / np.float32(8) for shape in ((M, 3, 2100), (M, 2100)))
    weights, costs = tuple(rng.choice([0, 0.5, 1, 2], M)), np.zeros(3, np.float32)
    expected = exact(logits + bias[:, None], costs, weights, None, 0)
    words, scores, sums = choose(to_device, logits.astype(dtype), 9, costs, weights, bias.astype(np.float32))
    wanted = best_by_sorting(*expected[:2], 9)
    assert words.tolist() == wanted[0].tolist()
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-5)
    np.testing.assert_allclose(sums, expected[2], rtol=0, atol=3e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 2.0**22])
def test_rows_without_a_score(wrong, to_device):
    """NaN, infinity and logits that are too great spoil their row and no other; -inf spoils none but a whole row."""
    logits = np.random.default_rng(1).standard_normal((2, 4, 5000), np.float32)
    alone = [choose(to_device, logits[:, r : r + 1], 3, weights=(1.0, 1.0)) for r in range(4)]
    logits[1, 1, 4321] = wrong
    logits[0, 2] = -np.inf
    words, scores, sums = choose(to_device, logits, 3, weights=(1.0, 1.0))
    for r in (0, 3):
        assert [a.tolist() for a in (words[[r]], scores[[r]], sums[:, [r]])] == [a.tolist() for a in alone[r]]
    assert words[1].tolist() == words[2].tolist() == [-1, -1, -1]
    assert np.isnan(scores[1:3]).all()
    assert np.isnan(sums).tolist() == [[False, False, True, False], [False, True, False, False]]


def test_equal_scores_are_in_the_order_of_words(to_device):
    """Sums that differ, but not after a great cost is added: the greatest sums are chosen, then ordered by word."""
    logits = np.array([[[0, 1, 1 + 2**-20, 1 + 2**-19]]], np.float32)
    words, scores, _ = choose(to_device, logits, 2, np.array([-1e6], np.float32))
    assert words.tolist() == [[2, 3]] and scores[0, 0] == scores[0, 1]
    assert choose(to_device, logits, 1, np.array([-1e6], np.float32))[0].tolist() == [[3]]
    zeros = np.where(np.arange(300) % 2, np.float32(0), np.float32(-0.0))[None, None]
    assert choose(to_device, zeros, 40)[0].tolist() == [list(range(40))]  # -0 equals 0


def test_rows_of_longer_rows_give_the_same_bits(to_device):
    """Padded and odd rows, and one row at a time."""
    rng = np.random.default_rng(3)
    padded = rng.standard_normal((1, 6, 4104), np.float32)
    for V in (4104, 4101, 4096):
        found = choose(to_device, np.ascontiguousarray(padded[:, :, :V]), 5)
        parts = best_words(to_device(padded)[:, :, :V], 5, to_device(np.zeros(6, np.float32)))
        assert [to_host(a).tolist() for a in parts] == [a.tolist() for a in found]
        for r in range(6):
            alone = choose(to_device, np.ascontiguousarray(padded[:, r : r + 1, :V]), 5)
            of_batch = found[0][[r]], found[1][[r]], found[2][:, [r]]
            assert [a.tolist() for a in alone] == [a.tolist() for a in of_batch]


def test_no_rows(to_device):
    words, scores, sums = choose(to_device, np.zeros((2, 0, 9), np.float16), 3, weights=(1.0, 2.0))
    assert words.shape == scores.shape == (0, 3) and sums.shape == (2, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": 0}, "k is 0 but must be 1 to 64"),
        ({"k": 65}, "k is 65 but must be 1 to 64"),
        ({"weights": (1.0, 1.0)}, "weights are .* but must be 1 and 1 finite numbers"),
        ({"weights": (-1.0,)}, "at least 0"),
        ({"ngram_weight": math.inf}, "finite numbers"),
        ({"costs_R": np.zeros(3, np.float32)}, r"costs_R has shape \(3,\)"),
        ({"bias_MV": np.zeros((2, 5), np.float32)}, r"bias_MV has shape \(2, 5\)"),
        ({"ngrams": np.zeros((2, 4), np.float32)}, r"ngrams has shape \(2, 4\)"),
        ({"logits_MRV": np.zeros((2, 5), np.float32)}, r"shape \(2, 5\) but needs 1 or more models"),
        ({"logits_MRV": np.zeros((1, 2, 0), np.float32)}, "1 to .* words"),
    ],
)
def test_wrong_arguments_are_refused(changed, message):
    arguments = {"logits_MRV": np.zeros((1, 2, 5), np.float32), "k": 1, "costs_R": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match=message) as error:
        best_words(**arguments | changed)
    assert "\n" not in str(error.value)


def test_wrong_ngrams_are_refused():
    plain = {
        "logits_MRV": np.zeros((1, 2, 5), np.float32),
        "k": 1,
        "costs_R": np.zeros(2, np.float32),
        "ngram_weight": 1,
    }
    many, _ = random_children(np.random.default_rng(0), 2, 5, 33, np.uint32)
    few, _ = random_children(np.random.default_rng(0), 1, 5, 2, np.uint32)
    two, _ = random_children(np.random.default_rng(0), 2, 5, 2, np.uint32)
    for ngrams, message in (
        (many, "of 33 histories for each row but must be of at most 32"),
        (few, r"first_HK has shape \(1, 2\)"),
        (two._replace(value_V=two.value_V[1:]), "value_V has shape"),
        (few._replace(end_HK=few.end_HK[:, 1:]), "have shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            best_words(**plain, ngrams=ngrams)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="expected float32 or float16 or uint16 but got float64"):
        best_words(np.zeros((1, 2, 5)), 1, np.zeros(2, np.float32))
