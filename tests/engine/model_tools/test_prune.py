"""Pruning by relative entropy: against the definition on random models, and against a plain program on real ones."""

import importlib.util
import lzma
import math
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.model_tools.backoff_nodes import nodes_of
from mgpu_ngram.engine.model_tools.prune import prune, thresholds
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.kernels.dispatch import to_host
from tests.support.slow_cases import first_fast

BEGIN, END = 1, 2  # word ids
ORACLE = Path(__file__).resolve().parents[3].parent / "shared" / "oracles" / "prune_mix_ref.py"
MODELS = [(seed, seed % 2 == 0) for seed in range(6)]


def pruned(plain, to_device, **how):
    """Return (the model, the threshold) after pruning on the device."""
    made, overfull, limit = prune(plain.trie(to_device), BEGIN, END, how.get("entropy"), how.get("max_ngrams"))
    assert overfull == 0
    return type(plain).of(made.map_arrays(to_host)), limit


def needed(kept):
    """Return the n-grams that have to stay: contexts of kept ones, and their suffixes."""
    return {h[k:] for h in kept.histories() for k in range(len(h))}


def test_by_hand(to_device, plain_backoff):
    """P(a) = P(</s>) = 1/2; after a, a is listed with 3/4, and 1/4 / (1/2) backs off. Without it: 1/2 ln(3/4 / (1/2))
    3/4 + 1/4 ln(1/4 / (1/2))) = 0.0654 = ln(1.0676).
    """
    half = math.log10(0.5)
    plain = plain_backoff({(0,): -99, (1,): -99, (2,): half, (3,): half, (3, 3): math.log10(0.75)}, {(3,): half})
    model, _ = pruned(plain, to_device, entropy=0.0675)
    assert (3, 3) in model.probs and model.backoffs[3,] == np.float32(half)
    model, _ = pruned(plain, to_device, entropy=0.0677)
    assert set(model.probs) == {(0,), (1,), (2,), (3,)} and model.backoffs[3,] == 0


@pytest.mark.parametrize(("seed", "whole"), MODELS)
def test_changes_are_those_of_the_definition(seed, whole, to_device, plain_backoff):
    """The highest order needs no other n-gram, so its thresholds are its changes."""
    plain = plain_backoff.random(seed, order=2 + seed % 3, whole=whole)
    trie = plain.trie(to_device)
    found = to_host(thresholds(nodes_of(trie), BEGIN, END))[trie.starts[-2] :]
    grams = sorted(g for g in plain.probs if len(g) == plain.order)
    assert found == pytest.approx([plain.change(g) for g in grams], rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(("seed", "whole"), MODELS)
def test_a_threshold(seed, whole, to_device, plain_backoff):
    plain = plain_backoff.random(seed, whole=whole)
    model, limit = pruned(plain, to_device, entropy=0.002)
    assert limit == 0.002
    changes = {g: plain.change(g) for g in plain.probs if len(g) > 1}
    goes = {g for g, change in changes.items() if change < 0.002}
    assert set(plain.probs) - set(model.probs) == goes - needed(model) and goes
    assert all(model.probs[g] == np.float32(plain.probs[g]) for g in model.probs)
    assert model.histories() <= set(model.probs)
    for history in sorted(h for h in model.probs if len(h) < model.order):
        assert model.row_sum(history) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("seed", "whole"), MODELS[:2])
def test_threshold_0_changes_nothing(seed, whole, to_device, plain_backoff):
    plain = plain_backoff.random(seed, whole=whole)
    model, _ = pruned(plain, to_device, entropy=0)
    assert model.probs == {g: np.float32(p) for g, p in plain.probs.items()}
    assert {h: model.backoffs[h] for h in plain.backoffs} == pytest.approx(plain.backoffs, abs=2e-6)


@pytest.mark.parametrize("more", [0, 1, 5, 30, 10_000])
def test_a_size(more, to_device, plain_backoff):
    """As many n-grams stay as fit; the threshold that is found keeps the same ones."""
    plain = plain_backoff.random(3)
    size = len(plain.words) + more
    model, limit = pruned(plain, to_device, max_ngrams=size)
    assert len(model.probs) <= min(size, len(plain.probs)) and (limit == 0) == (more == 10_000)
    assert pruned(plain, to_device, entropy=limit)[0].probs == model.probs
    lower, _ = pruned(plain, to_device, entropy=limit * (1 - 1e-9))
    assert len(lower.probs) > size or limit == 0


def test_a_size_that_all_ngrams_fit(to_device, plain_backoff):
    plain = plain_backoff.random(3)
    model, limit = pruned(plain, to_device, max_ngrams=len(plain.probs))
    assert set(model.probs) == set(plain.probs) and limit == 0


def test_a_size_that_is_too_small(plain_backoff):
    plain = plain_backoff.random(3)
    with pytest.raises(
        InputError, match="max_ngrams is 6 but the model has 7 words, which are never pruned; raise max_ngrams"
    ):
        pruned(plain, np.asarray, max_ngrams=6)


def test_n_grams_that_have_to_stay(plain_backoff):
    """Without a b, b would be impossible after a, because the model gives it no mass alone."""
    half = math.log10(0.5)
    probs = {(0,): -99, (1,): -99, (2,): half, (3,): half, (4,): -99, (3, 4): half}
    plain = plain_backoff(probs, {(3,): half})
    assert (3, 4) in pruned(plain, np.asarray, entropy=100)[0].probs
    with pytest.raises(InputError, match="max_ngrams is 5 but 6 n-grams cannot be pruned; raise it"):
        pruned(plain, np.asarray, max_ngrams=5)


def test_a_model_of_words_alone(to_device, plain_backoff):
    plain = plain_backoff({(0,): -1, (1,): -99, (2,): math.log10(0.9)}, {})
    assert pruned(plain, to_device, entropy=1)[0].probs == {g: np.float32(p) for g, p in plain.probs.items()}


def test_rows_that_list_all_words(to_device, plain_backoff):
    """After a all words are listed, with 0.9 in all: their probabilities are scaled, as SRILM does."""
    half = math.log10(0.5)
    probs = {(0,): -99, (1,): -99, (2,): half, (3,): half, (3, 2): math.log10(0.3), (3, 3): math.log10(0.6)}
    model, _ = pruned(plain_backoff(probs, {}), to_device, entropy=0)
    assert [10 ** model.probs[3, w] for w in (2, 3)] == pytest.approx([1 / 3, 2 / 3])
    assert model.backoffs[3,] == 0


def test_no_ngram_of_a_row_that_lists_all_words_matters(to_device, plain_backoff):
    """The mass of 0.3 that no word has is left out, so without an n-gram its word gets the same probability."""
    logs = [math.log10(p) for p in (0.9, 0.1, 0.1, 0.6)]
    probs = {(0,): -99, (1,): -99, (2,): logs[0], (3,): logs[1], (3, 2): logs[2], (3, 3): logs[3]}
    model, _ = pruned(plain_backoff(probs, {}), to_device, entropy=1e-9)
    assert set(model.probs) == {(0,), (1,), (2,), (3,)}


def test_rows_that_sum_to_more_than_1(to_device, plain_backoff):
    """Such n-grams stay, and nothing backs off."""
    half = math.log10(0.5)
    plain = plain_backoff({(0,): -1, (1,): -99, (2,): half, (3,): half, (3, 2): -0.1, (3, 3): -0.2}, {(3,): -1})
    made, overfull, _ = prune(plain.trie(to_device), BEGIN, END, 1e9, None)
    model = plain_backoff.of(made.map_arrays(to_host))
    assert overfull == 1 and set(model.probs) == set(plain.probs) and model.backoffs[3,] == -99


@pytest.mark.parametrize(
    ("name", "threshold"), first_fast([("tools/mix/a", 1e-6), ("models/small.o5.prune00112", 1e-6)])
)
def test_real_models(name, threshold, shared_data, tmp_path, plain_backoff):
    """The same n-grams, and backoffs within 1e-6, as a plain program in float64."""
    if not ORACLE.is_file():
        pytest.skip("the oracle is not beside this checkout")
    spec = importlib.util.spec_from_file_location("prune_mix_ref", ORACLE)
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    (tmp_path / "model.arpa").write_bytes(lzma.decompress((shared_data / "golden" / f"{name}.arpa.xz").read_bytes()))
    model = open_model(tmp_path / "model.arpa")
    words = list(model.words)
    plain = plain_backoff.of(model.trie)
    spelled = [{tuple(words[w] for w in g): p for g, p in plain.probs.items() if len(g) == n + 1}
               for n in range(model.trie.order)]  # fmt: skip
    backoffs = {tuple(words[w] for w in g): b for g, b in plain.backoffs.items()}
    oracle.prune(spelled, backoffs, threshold)
    made, _, _ = prune(model.trie, model.words.id("<s>"), model.words.id("</s>"), threshold, None)
    found = plain_backoff.of(made)
    assert {tuple(words[w] for w in g) for g in found.probs} == {g for level in spelled for g in level}
    assert len(found.probs) < 0.95 * len(plain.probs)
    names = {h: tuple(words[w] for w in h) for h in found.backoffs}
    expected = [max(backoffs[names[h]], -99) for h in found.backoffs]
    assert list(found.backoffs.values()) == pytest.approx(expected, abs=1e-6)
