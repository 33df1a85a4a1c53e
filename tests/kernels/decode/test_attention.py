"""Attention beside a value worked by hand and the equation in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.attention import Sentences, attention
from mgpu_ngram.kernels.dispatch import to_host


def test_a_row_by_hand(to_device):
    """Energies 0 and ln 3 give weights 1/4 and 3/4; the third position is after the end."""
    memory = np.array([[[0], [np.arctanh(np.log(3) / 2)], [np.nan]]], np.float32)
    context = np.array([[[4, 8], [0, 4], [np.nan, np.nan]]], np.float32)
    sentences = Sentences(*map(to_device, (memory, context, np.array([2]))))
    found = attention(
        to_device(np.zeros((1, 1), np.float32)),
        to_device(np.array([0])),
        sentences,
        to_device(np.array([2], np.float32)),
    )
    np.testing.assert_allclose(to_host(found[0]), [[0.25, 0.75, 0]], rtol=1e-6)
    np.testing.assert_allclose(to_host(found[1]), [[1, 5]], rtol=1e-6)


def plain(query, slot, sentences, energy):
    """Weights and contexts of each row in float64."""
    memory, context, length = sentences
    R, T = len(query), memory.shape[1]
    weights, contexts = np.zeros((R, T)), np.zeros((R, context.shape[2]))
    for r, s in enumerate(slot):
        e = np.tanh(memory[s, : length[s]].astype(np.float64) + query[r]) @ energy
        weights[r, : length[s]] = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        contexts[r] = weights[r, : length[s]] @ context[s, : length[s]]
    return weights, contexts


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 6), st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(1, 200), st.integers(1, 140),
)  # fmt: skip
def test_rows_of_the_equation(seed, R, lengths, A, C):
    rng = np.random.default_rng(seed)
    S, T = len(lengths), max(lengths)
    query, memory, context, energy = (
        rng.normal(size=shape).astype(np.float32) for shape in ((R, A), (S, T, A), (S, T, C), (A,))
    )
    slot, sentences = rng.integers(0, S, R), Sentences(memory, context, np.array(lengths))
    found = attention(query, slot, sentences, energy)
    for a, b in zip(found, plain(query, slot, sentences, energy), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)
    for r in range(R):  # alone, and with less padding, a row has the same bits
        s, n = slot[r], lengths[slot[r]]
        one = Sentences(memory[s : s + 1, :n], context[s : s + 1, :n], np.array([n]))
        weights, contexts = attention(query[r : r + 1], np.array([0]), one, energy)
        np.testing.assert_array_equal(weights[0], found[0][r, :n])
        np.testing.assert_array_equal(contexts[0], found[1][r])


def test_large_energies_do_not_overflow(to_device):
    memory = np.array([[[9], [-9]]], np.float32)
    sentences = Sentences(*map(to_device, (memory, memory, np.array([2]))))
    row = to_device(np.zeros((1, 1), np.float32)), to_device(np.array([0]))
    weights, context = attention(*row, sentences, to_device(np.array([1e6], np.float32)))
    assert to_host(weights).tolist() == [[1, 0]] and to_host(context).tolist() == [[9]]


def test_shapes_are_checked():
    zeros = np.zeros((2, 3, 4), np.float32)
    query, energy, length = zeros[0, :2], zeros[0, 0], np.ones(2, np.int64)
    with pytest.raises(ValueError, match=r"memory_STA has shape \(2, 3, 4\) but .* need \(2, 2, 4\)"):
        attention(query, length, Sentences(zeros, zeros[:, :2], length), energy)
    with pytest.raises(ValueError, match=r"length_S has shape \(1,\)"):
        attention(query, length, Sentences(zeros, zeros, length[:1]), energy)


@pytest.mark.parametrize(("memory", "query"), [(30, -29.75), (-30, 29), (3, 25), (60, -60.5), (-90, 20)])
def test_numbers_whose_exponentials_overflow(memory, query, to_device):
    """Only the middle position, or the first row, is far from 0."""
    rng = np.random.default_rng(1)
    memories, contexts = (rng.normal(size=(1, 3, 9)).astype(np.float32) for _ in range(2))
    queries, energy = rng.normal(size=(2, 9)).astype(np.float32), rng.normal(size=9).astype(np.float32)
    memories[0, 1, 4], queries[0, 4] = memory, query
    sentences, slot = Sentences(memories, contexts, np.array([3])), np.zeros(2, np.int64)
    expected = plain(queries, slot, sentences, energy)
    found = attention(to_device(queries), to_device(slot), Sentences(*map(to_device, sentences)), to_device(energy))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_host(a), b, rtol=0, atol=2e-6)


def test_nan_is_seen(to_device):
    memory = np.zeros((1, 2, 3), np.float32)
    memory[0, 1, 2] = np.nan
    sentences = Sentences(*map(to_device, (memory, np.ones((1, 2, 3), np.float32), np.array([2]))))
    row = to_device(np.zeros((1, 3), np.float32)), to_device(np.array([0]))
    weights, context = attention(*row, sentences, to_device(np.ones(3, np.float32)))
    assert np.isnan(to_host(weights)).all() and np.isnan(to_host(context)).all()
