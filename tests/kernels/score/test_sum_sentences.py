"""Sums over sentences, against a loop of plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.sum_sentences import sum_sentences


def sums(codes, probs, ends, to_device):
    arrays = np.array(codes, np.uint32), np.array(probs, np.float32), np.array(ends, np.int64)
    total_S, oovs_S, oov_total_S = map(to_host, sum_sentences(*map(to_device, arrays)))
    assert (total_S.dtype, oovs_S.dtype, oov_total_S.dtype) == (np.float32, np.int32, np.float64)
    return total_S.tolist(), oovs_S.tolist(), oov_total_S.tolist()


def expected(codes, probs, ends):
    rows, start = [], 0
    for end in ends:
        total, oovs, oov_total = np.float32(0), 0, 0.0
        for code, prob in zip(codes[start:end], probs[start:end], strict=True):
            total = np.float32(total + np.float32(prob))
            oovs += code == 1
            oov_total += float(np.float32(prob)) if code == 1 else 0
        rows.append((float(total), oovs, oov_total))
        start = end
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])


def test_by_hand(to_device):
    codes, probs = [5, 1, 1, 7, 1, 1], [-1, -2, -0.5, -0.25, -4, -8]
    assert sums(codes, probs, [3, 3, 5], to_device) == ([-3.5, 0, -4.25], [2, 0, 1], [-2.5, 0, -4])


def test_the_order_and_the_precision_of_sums(to_device):
    """2**24 + 1 is not a float32: whether the 1 is lost depends on the order of the sum."""
    probs = [-(2.0**24), -1, -1, -1, -1, -(2.0**24)]
    totals, oovs, oov_totals = sums([1] * 6, probs, [3, 6], to_device)
    assert totals == [-(2.0**24), -(2.0**24) - 2]
    assert oovs == [3, 3] and oov_totals == [-(2.0**24) - 2] * 2


@pytest.mark.parametrize(("tokens", "ends"), [(0, []), (0, [0]), (0, [0] * 100), (3, []), (3, [0, 0]), (1, [1])])
def test_few_tokens_and_sentences(tokens, ends, to_device):
    codes, probs = [1] * tokens, [-1.5] * tokens
    assert sums(codes, probs, ends, to_device) == expected(codes, probs, ends)


@pytest.mark.parametrize("sentences", [1, 31, 32, 33, 127, 129, 1000])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_sentences_of_one_length(sentences, length, to_device):
    rng = np.random.default_rng(sentences * length)
    tokens = sentences * length
    codes, probs = rng.integers(0, 4, tokens).tolist(), (-rng.random(tokens, np.float32) * 7).tolist()
    ends = list(range(length, tokens + 1, length))
    assert sums(codes, probs, ends, to_device) == expected(codes, probs, ends)


@given(st.lists(st.sampled_from([0, 0, 1, 2, 30, 511, 512, 513, 1500]), max_size=70), st.integers(0, 3), st.integers(0))
def test_sentences_of_very_different_lengths(to_device, lengths, rest, seed):
    rng = np.random.default_rng(seed)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    tokens = sum(lengths) + rest
    codes, probs = rng.integers(0, 4, tokens).tolist(), (-rng.random(tokens, np.float32) * 7).tolist()
    assert sums(codes, probs, ends, to_device) == expected(codes, probs, ends)


def test_each_token_needs_its_probability():
    with pytest.raises(ValueError, match="got 3 codes and 2 probabilities; pass one of each per token"):
        sum_sentences(np.zeros(3, np.uint32), np.zeros(2, np.float32), np.array([2]))


@pytest.mark.parametrize(("codes", "prob", "ends"), [("i4", "f4", "i8"), ("u4", "f8", "i8"), ("u4", "f4", "i4")])
def test_other_dtypes_are_refused(codes, prob, ends):
    with pytest.raises(TypeError, match="expected (uint32|float32|int64) but got (int32|float64)"):
        sum_sentences(np.zeros(1, codes), np.zeros(1, prob), np.zeros(1, ends))
