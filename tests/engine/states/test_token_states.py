"""States of a model over the tokens of another vocabulary, beside those over its words."""

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.engine.states.token_states import TokenStates
from mgpu_ngram.kernels.dispatch import to_host


@pytest.fixture
def model(arpa, device):
    return ng.Model.load(arpa, device)


def states_of(model, tokens, share=False):
    return TokenStates(model._state_model, model._next_word_model, tokens, share)


def test_tokens_have_the_values_of_their_words(model):
    tokens = ["b", "x", "</s>", "a"]
    ids_V = [model.vocabulary.id(token) for token in tokens]
    starts = model.start(2, bos=False)
    starts[1:] = model.start(1)
    all_BV, states_BV = map(to_host, model.advance(starts, scale="ln"))
    log_BV, next_BV = map(to_host, model.advance_tokens(starts, states_of(model, tokens)))
    assert np.array_equal(log_BV, all_BV[:, ids_V]) and np.array_equal(next_BV, states_BV[:, ids_V])


def test_unknown_tokens_can_share_their_probability(model):
    tokens, start = ["x", "a", "y"], model.start(1)
    whole, shared = (
        to_host(model.advance_tokens(start, states_of(model, tokens, share))[0])[0] for share in (False, True)
    )
    assert shared == pytest.approx(whole - np.log([2, 1, 2]), abs=1e-6)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["x", "y"], "^none of the 2 tokens is a word of the model; check"),
        (["a", "x", "a"], "^tokens 0 and 2 are the same word of the model, 'a'; rename one"),
    ],
)
def test_wrong_tokens(tokens, message, model):
    with pytest.raises(ng.InputError, match=message):
        states_of(model, tokens)
