"""Ensembles of many models and of several kinds, beside plain NumPy: weighted sums of log-probabilities."""

import itertools

import numpy as np
import pytest

from mgpu_ngram.benchmarks.decode_oracle import PlainSearch
from mgpu_ngram.core.nmt_files import load_nmt_model
from mgpu_ngram.engine.decode_batch import decode
from mgpu_ngram.engine.search_options import SearchOptions

SOURCE = np.array([2, 5, 7, 0])


@pytest.mark.parametrize("models", [33, 70])
def test_more_than_32_models(models, random_tensors, save_model, placed):
    """The best of all sequences of two words; those that end after the first word are shorter."""
    tensors = [random_tensors(seed) for seed in range(models)]
    weights = np.random.default_rng(0).random(models).tolist()
    plain = [PlainSearch(own) for own in tensors]
    allowed = [0, *range(2, 7)]  # all but <unk>
    sequences = [(0,), *itertools.product(allowed[1:], allowed)]
    parts = {words: [one.cost(SOURCE, words) for one in plain] for words in sequences}
    expected = max(sequences, key=lambda words: np.dot(weights, parts[words]))
    opened = [placed(load_nmt_model(save_model(own, f"m{i}"))) for i, own in enumerate(tensors)]
    ((best,),) = decode(opened, [SOURCE], SearchOptions(8, max_steps=2, breakdown=True), weights=weights)
    assert best.words == expected
    assert best.parts == pytest.approx(parts[expected], rel=1e-4, abs=1e-4)
    assert best.cost == pytest.approx(np.dot(weights, parts[expected]), rel=1e-4)
