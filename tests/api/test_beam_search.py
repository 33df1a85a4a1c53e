"""`ng.BeamSearch` for a user: all sequences by enumeration, states of any tree, PyTorch, and refusals."""

import functools
import itertools
import math
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.engine.torch.arrays import as_array, as_tensor
from mgpu_ngram.kernels.dispatch import to_host
from tests.support.slow_cases import first_fast

V, LENGTH = 4, 3
WORDS = ("</s>", "a", "b", "zz")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@functools.cache
def logits_after(prefix):
    """Return logits (V,) that depend on all tokens before."""
    return np.random.default_rng([7, *prefix]).normal(size=V) * 2


class History(NamedTuple):
    """A part of a state: the tokens before, -1 where there are none."""

    tokens: Any
    again: Any


def state_of(sentences, to=np.array):
    """Return a state of several leaves; each row starts with the number of its sentence."""
    numbers = np.arange(len(sentences)) if isinstance(sentences, range) else np.array(sentences)
    empty = np.full((len(numbers), LENGTH + 1), -1)
    return {"of": [to(numbers + 10)], "deep": ({"h": History(to(empty), to(empty + 0.0))}, None)}


def step(tokens, state):
    """Append a token to each row's history. All leaves of a row must belong together."""
    xp = np if isinstance(tokens, np.ndarray) else __import__("cupy")
    history, sentence = to_host(state["deep"][0]["h"].tokens).copy(), to_host(state["of"][0])
    assert np.array_equal(history, to_host(state["deep"][0]["h"].again))
    lengths = (history >= 0).sum(axis=1)
    history[np.arange(len(history)), lengths] = to_host(tokens)
    rows = [logits_after((s, *row[row >= 0])) for s, row in zip(sentence, history, strict=True)]
    new = {"of": state["of"], "deep": ({"h": History(xp.array(history), xp.array(history + 0.0))}, None)}
    return xp.array(np.reshape(rows, (-1, V)), np.float32), new


def log_softmax(x):
    return x - np.log(np.exp(x).sum())


def all_sequences(sentence, end=0):
    """Return {tokens: log-probability} of all results of a sentence, by enumeration; there are 40."""
    found = {}
    for length in range(1, LENGTH + 1):
        for body in itertools.product(range(1, V), repeat=length - 1):
            for last in [end] if length < LENGTH else range(V):
                tokens, total = (*body, last), 0.0
                for i, token in enumerate(tokens):
                    total += log_softmax(logits_after((sentence + 10, end, *tokens[:i])))[token]
                found[tokens] = total
    return found


@pytest.mark.parametrize("with_lm", first_fast([True, False]))
@pytest.mark.parametrize(("length_penalty", "word_penalty"), first_fast([(0.7, -0.4), (0.0, 0.0), (1.0, 0.0)]))
def test_a_wide_beam_finds_the_best_of_all_sequences(arpa, with_lm, length_penalty, word_penalty):
    lm = ng.Model.load(arpa, "cpu") if with_lm else None
    search = ng.BeamSearch(
        step, V, 64, n_best=12, length_penalty=length_penalty, word_penalty=word_penalty, max_length=LENGTH, lm=lm,
        lm_weight=0.6, words=WORDS if with_lm else None,
    )  # fmt: skip
    for s, found in enumerate(search.run(state_of(range(3)))):
        costs = all_sequences(s)
        for ends in (True, False) if with_lm else ():
            those = [tokens for tokens in costs if (tokens[-1] == 0) == ends]
            lines = [" ".join(WORDS[t] for t in tokens[: len(tokens) - ends]) for tokens in those]
            for tokens, score in zip(those, lm.score(lines, eos=ends), strict=True):
                costs[tokens] += 0.6 * math.log(10) * score
        scores = {t: (cost - word_penalty * len(t)) / len(t) ** length_penalty for t, cost in costs.items()}
        expected = sorted(scores, key=lambda t: -scores[t])[:12]
        assert [best.words for best in found] == expected
        for best in found:
            assert best.score == pytest.approx(scores[best.words], abs=1e-5)
            assert best.cost == pytest.approx(costs[best.words], abs=1e-5)
            assert sum(best.word_scores) == pytest.approx(best.cost, abs=1e-5)


@pytest.mark.parametrize("settings", [{}, {"sample": True, "seed": 3}, {"early_stopping": "bound"}])
def test_batches_do_not_change_results(settings):
    search = ng.BeamSearch(step, V, 3, n_best=2, max_length=LENGTH, **settings)
    together = search.run(state_of(range(9)))
    for batch, refill in ((1, True), (4, True), (4, False), (9, False)):
        assert search.run(state_of(range(9)), batch, refill=refill) == together
    if settings.get("sample"):
        other = ng.BeamSearch(step, V, 3, n_best=2, max_length=LENGTH, sample=True, seed=4)
        assert other.run(state_of(range(9))) != together
    else:
        order = [4, 0, 8]
        assert search.run(state_of(order)) == [together[i] for i in order]


def test_no_sentences():
    search = ng.BeamSearch(step, V)
    assert search.run(state_of(range(0))) == [] and search.score(state_of(range(0)), []) == []


def test_forced_tokens():
    search = ng.BeamSearch(step, V, 3, n_best=3, max_length=LENGTH)
    prefixes = [[2], [], [3, 1]]
    found = search.run(state_of(range(3)), prefixes=prefixes)
    for results, prefix in zip(found, prefixes, strict=True):
        assert results and all(list(best.words[: len(prefix)]) == prefix for best in results)
    assert found[1] == search.run(state_of(range(3)))[1]
    targets = [[2], [], [3, 1]]
    for s, (best, target) in enumerate(zip(search.score(state_of(range(3)), targets), targets, strict=True)):
        assert best.words == (*target, 0) and best.cost == pytest.approx(all_sequences(s)[best.words], abs=1e-5)


def test_forbidden_tokens_and_the_token_before_the_first():
    """A token of -inf has probability 0; `unk` is never chosen; `bos` is the first token that step gets."""
    table = np.log(np.array([[0.1, 0.2, 0.3, 0.4]] * 3 + [[0.4, 0.6, 1e-3, 1e-3]]))
    table[3, 2:] = -np.inf
    kept = table.copy()
    search = ng.BeamSearch(lambda tokens, state: (table[tokens], state), V, 64, bos=3, n_best=64, max_length=1)
    (found,) = search.run(np.zeros(1))
    assert [best.words for best in found] == [(1,), (0,)] and np.exp(found[0].cost) == pytest.approx(0.6)
    search = ng.BeamSearch(lambda tokens, state: (table[tokens], state), V, 4, bos=3, unk=1, max_length=1)
    assert search.run(np.zeros(2))[1][0].words == (0,)
    impossible = search.score(np.zeros(1), [[2]])[0]
    assert impossible.words == (2, 0) and impossible.score == impossible.cost == -math.inf
    assert impossible.word_scores == (-math.inf, -math.inf)
    assert np.array_equal(table, kept)  # what step returns is left alone


def test_states_that_grow():
    """Rows of a cache become longer with each step; then a batch must end before the next one begins."""

    def growing(tokens, state):
        cache = np.concatenate([state["cache"], tokens[:, None]], axis=1)
        rows = [logits_after((s, *row)) for s, row in zip(state["of"], cache, strict=True)]
        return np.array(rows), {"cache": cache, "of": state["of"]}

    search = ng.BeamSearch(growing, V, 3, max_length=LENGTH)
    start = {"cache": np.zeros((5, 0), int), "of": np.arange(5) + 10}
    expected = ng.BeamSearch(step, V, 3, max_length=LENGTH).run(state_of(range(5)))
    assert search.run(start) == search.run(start, 2, refill=False) == expected

    def uneven(tokens, state):
        """End sentences with even numbers at once."""
        logits, new = growing(tokens, state)
        logits[new["of"] % 2 == 0, 0] = 99
        return logits, new

    search, prefixes = ng.BeamSearch(uneven, V, 1, max_length=LENGTH), [[], [1]] + [[]] * 3
    with pytest.raises(ng.InputError, match=r"a row of state\['cache'\] has shape \(1,\) after .* give refill=False"):
        search.run(start, 2, prefixes=prefixes)
    found = search.run(start, 2, prefixes=prefixes, refill=False)
    assert found == search.run(start, prefixes=prefixes) and [best.words[0] for (best,) in found[:3]] == [0, 1, 0]


@pytest.mark.gpu
def test_a_state_on_a_gpu():
    import cupy

    search = ng.BeamSearch(step, V, 3, n_best=3, max_length=LENGTH)
    expected = search.run(state_of(range(5)))
    for found, best in zip(search.run(state_of(range(5), cupy.array), 2), expected, strict=True):
        assert [h.words for h in found] == [h.words for h in best]
        assert [h.score for h in found] == pytest.approx([h.score for h in best], abs=1e-5)


def recurrent(library, tensors):
    """Return the step of a small recurrent network, in the operations that NumPy and PyTorch share."""
    E, U, W = tensors

    def run(tokens, state):
        h = library.tanh(E[tokens] + state["h"] @ U)
        return h @ W, {"h": h}

    return run


def test_a_step_of_pytorch_is_that_of_numpy(torch):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((11, 8), (8, 8), (8, 11))]
    start = rng.normal(size=(6, 8)).astype(np.float32)
    settings = {"beam_size": 4, "n_best": 4, "max_length": 6, "length_penalty": 1.0}
    expected = ng.BeamSearch(recurrent(np, arrays), 11, **settings).run({"h": start})
    weights = [torch.from_numpy(array).requires_grad_() for array in arrays]
    search = ng.BeamSearch(recurrent(torch, weights), 11, **settings)
    found = search.run({"h": torch.from_numpy(start).requires_grad_()}, batch=4)
    for a, b in zip(found, expected, strict=True):
        assert [best.words for best in a] == [best.words for best in b]
        assert [best.score for best in a] == pytest.approx([best.score for best in b], abs=1e-5)
    low = [tensor.detach().bfloat16() for tensor in weights]
    found = ng.BeamSearch(recurrent(torch, low), 11, **settings).run({"h": torch.from_numpy(start).bfloat16()})
    for a, b in zip(found, expected, strict=True):
        assert a[0].score == pytest.approx(b[0].score, abs=0.1)


@pytest.mark.gpu
def test_a_step_of_pytorch_on_a_gpu(torch):
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((11, 8), (8, 8), (8, 11))]
    start = rng.normal(size=(6, 8)).astype(np.float32)
    expected = ng.BeamSearch(recurrent(np, arrays), 11, 4, max_length=6).run({"h": start})
    search = ng.BeamSearch(recurrent(torch, [torch.from_numpy(array).cuda() for array in arrays]), 11, 4, max_length=6)
    found = search.run({"h": torch.from_numpy(start).cuda()})
    assert [[best.words for best in results] for results in found] == [[b.words for b in r] for r in expected]


def test_tensors_share_memory_with_arrays(torch):
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    array = as_array(tensor)
    assert isinstance(array, np.ndarray) and array.ctypes.data == tensor.data_ptr()
    back = as_tensor(array, tensor)
    assert back.data_ptr() == tensor.data_ptr()
    halves = as_array(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert halves.dtype == np.uint16 and halves.tolist() == [0x3FC0, 0xC000]  # the upper halves of float32
    assert as_array(array) is array


def test_nan_names_the_sentence():
    def broken(tokens, state):
        logits, new = step(tokens, state)
        logits[new["of"][0] == 12, 1] = np.nan
        return logits, new

    with pytest.raises(ng.RunError, match="logits of sentence 2 are NaN, "):
        ng.BeamSearch(broken, V, 2, max_length=LENGTH).run(state_of(range(4)))


@pytest.mark.parametrize("logit", [2.0**21 + 1, -(2.0**21), -np.inf])
def test_logits_beyond_the_limits_name_the_sentence(logit):
    """The first logit that is too great; and all that are too small."""

    def beyond(tokens, state):
        logits, new = step(tokens, state)
        logits[new["of"][0] == 12] = logit
        return logits, new

    with pytest.raises(ng.RunError, match="logits of sentence 2 are NaN, above 2,097,152, or none above -2,097,152; "):
        ng.BeamSearch(beyond, V, 2, max_length=LENGTH).run(state_of(range(4)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"step": 3}, "step is 3"),
        ({"eos": 4}, "eos is 4 but must be a token, 0 to 3"),
        ({"bos": -1}, "bos is -1"),
        ({"unk": 1.5}, "unk is 1.5"),
        ({"beam_size": 0}, "beam size is 0"),
        ({"n_best": 9}, "n_best is 9"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": 2**20 + 1}, "max_length is 1048577 but must be 1 to 1,048,576"),
        ({"lm_weight": "x"}, "lm_weight is 'x' but must be a number"),
        ({"early_stopping": True}, "early_stopping is True"),
        ({"sample": True, "top_p": 0}, "top_p is 0"),
        ({"top_k": 5}, "top_k is 5 but is for samples; add sample=True"),
        ({"sample": True, "seed": -1}, "the seed is -1"),
        ({"beam_size": 2.5}, "beam_size is 2.5 but must be of type int"),
        ({"length_penalty": "x"}, "length_penalty is 'x' but must be of type float"),
        ({"word_penalty": None}, "word_penalty is None but must be of type float"),
        ({"lm": "model.arpa"}, "lm is 'model.arpa'"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(ng.InputError, match=re.escape(message)) as error:
        ng.BeamSearch(**{"step": step, "vocab_size": V, **settings})
    assert "\n" not in str(error.value)


def test_the_end_of_a_sentence_is_that_of_the_ngram_model(arpa):
    """Whatever `words` call it."""
    lm, found = ng.Model.load(arpa, "cpu"), []
    for end in ("</s>", "end", "a"):
        search = ng.BeamSearch(step, V, 4, n_best=4, max_length=LENGTH, lm=lm, lm_weight=2, words=(end, *WORDS[1:]))
        found.append(search.run(state_of(range(3))))
    assert found[0] == found[1] == found[2]


def test_wrong_words_of_an_ngram_model(arpa):
    lm = ng.Model.load(arpa, "cpu")
    with pytest.raises(ng.InputError, match="there are 4 words but vocab_size is 5"):
        ng.BeamSearch(step, 5, lm=lm, words=WORDS)
    with pytest.raises(ng.InputError, match="knows none of the tokens, such as '3'"):
        ng.BeamSearch(step, V, lm=lm)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "initial_state has no array"),
        ({"a": np.zeros(2), "b": [np.zeros((3, 1))]}, "initial_state['b'][0] has shape (3, 1) but must have 2 rows"),
        ((np.zeros(2), 5), "initial_state[1] is int"),
        ([[1, 2]], "initial_state[0][0] is int"),
        (np.float32(3), "initial_state is numpy.float32"),
        (np.array(3), "initial_state has shape () but must have 1 rows"),
    ],
)
def test_wrong_states_are_one_line(state, message):
    with pytest.raises(ng.InputError, match=re.escape(message)) as error:
        ng.BeamSearch(step, V).run(state)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda tokens, state: np.zeros((len(tokens), V)), "step returns numpy.ndarray but must return two values"),
        (lambda tokens, state: (np.zeros((len(tokens), 3)), state), "logits of shape (2, 3) for 2 tokens and 4 words"),
        (lambda tokens, state: ([[0.0] * V] * 2, state), "logits of list"),
        (lambda tokens, state: (np.zeros((2, V), complex), state), "dtype complex128 but they must be numbers"),
        (lambda tokens, state: (np.zeros((2, V), "U1"), state), "logits of dtype <U1"),
        (lambda tokens, state: (np.zeros((2, V)), state[:1]), "state that step returns has shape (1,)"),
    ],
)
def test_wrong_steps_are_one_line(made, message):
    with pytest.raises(ng.InputError, match=re.escape(message)) as error:
        ng.BeamSearch(made, V).run(np.zeros(2))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"prefixes": [[1]]}, {"prefixes": [[1], [9]]}, {"prefixes": 5}, {"prefixes": [[1], "a"]}, {"batch": 0},
        {"batch": "x"}, {"batch": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_runs_are_one_line(given):
    with pytest.raises(ng.InputError) as error:
        ng.BeamSearch(step, V).run(state_of(range(2)), **given)
    assert "\n" not in str(error.value)


def test_targets_that_are_no_lists_of_tokens():
    with pytest.raises(ng.InputError, match=r"targets\[0\] is None but must be a list of tokens"):
        ng.BeamSearch(step, V).score(state_of(range(2)), None)


def test_numbers_of_numpy_are_settings():
    settings = {"length_penalty": 0.5, "beam_size": 3, "max_length": LENGTH}
    expected = ng.BeamSearch(step, V, **settings).run(state_of(range(2)))
    numbers = {"length_penalty": np.float32(0.5), "beam_size": np.int32(3), "max_length": np.int64(LENGTH)}
    search = ng.BeamSearch(step, V, **numbers)
    assert search.run(state_of(range(2)), np.int64(2)) == expected
