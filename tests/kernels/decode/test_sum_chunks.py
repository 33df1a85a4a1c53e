"""Sums of chunks and the greatest logits of their parts, against float64 and NumPy's maximum."""

import math

import numpy as np
import pytest

from mgpu_ngram.kernels.decode.exponential_sums import CHUNKS, LOADS, RUN
from mgpu_ngram.kernels.decode.sum_chunks import PARTS, sum_chunks
from mgpu_ngram.kernels.dispatch import to_host

DTYPES = {"float32": 0, "float16": 1}


def values_of(chunks_MRC):
    """Return (sums of exponentials as float64, references) of chunks."""
    sums = chunks_MRC.astype(np.uint32).view(np.float32).astype(np.float64)
    references = (chunks_MRC >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return np.ldexp(sums, references), references


def test_by_hand(to_device):
    """Exponentials 1, 2 and 4: their sum is 7, the greatest is 2^2."""
    logits = np.log(np.array([[[1, 2, 4]]], np.float32))
    chunks, tops = (to_host(a) for a in sum_chunks(to_device(logits)))
    sums, references = values_of(chunks)
    assert references.tolist() == [[[2]]] and math.isclose(sums[0, 0, 0], 7, rel_tol=1e-6)
    assert tops.tolist() == [[logits[0, 0, 2], *[-math.inf] * (PARTS - 1)]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_and_parts(dtype, to_device):
    """Three chunks, the last of 77 words: each sum, and the greatest mix of each part."""
    run, chunk = RUN[DTYPES[dtype]], CHUNKS[DTYPES[dtype]]
    rng = np.random.default_rng(5)
    V, weights = 2 * chunk + 77, (0.5, 2.0)
    logits = rng.integers(-80, 80, (2, 3, V)).astype(np.float32) / 8
    logits[0, 1, 3] = np.nan
    logits[1, 2, :chunk] = -np.inf
    chunks, tops = (to_host(a) for a in sum_chunks(to_device(logits.astype(dtype)), weights))
    exact = np.full((2, 3, 3 * chunk), -np.inf)
    exact[:, :, :V] = logits
    sums, _ = values_of(chunks)
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(sums, np.exp(exact).reshape(2, 3, 3, chunk).sum(axis=3), rtol=3e-6, atol=1e-37)
    mix = np.full((3, 3 * chunk), -np.inf)
    mix[:, :V] = np.tensordot(weights, logits.astype(np.float64), 1)
    groups = np.where(np.isnan(mix), -np.inf, mix).reshape(3, -1, LOADS, 4, run // 4)
    assert tops.tolist() == groups.max(axis=(2, 4)).reshape(3, -1).tolist()


def test_no_rows(to_device):
    chunks, tops = sum_chunks(to_device(np.zeros((1, 0, 9), np.float32)))
    assert chunks.shape == (1, 0, 1) and tops.shape == (0, PARTS)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="weights are .* but must be 2 and 1 finite numbers"):
        sum_chunks(np.zeros((2, 1, 5), np.float32), (1.0,))
    with pytest.raises(TypeError, match="float64"):
        sum_chunks(np.zeros((1, 1, 5)))
