"""Linear interpolation: against the definition on random models, and against a plain program on real ones."""

import importlib.util
import lzma
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.mix import mix, mix_log_linear, tune_weights
from mgpu_ngram.engine.open_model import open_model
from mgpu_ngram.kernels.dispatch import to_host

ORACLE = Path(__file__).resolve().parents[2].parent / "shared" / "oracles" / "prune_mix_ref.py"
SPECIAL = ["<unk>", "<s>", "</s>"]


def spelled(plain, words):
    """Return a function of texts: P(word | history) by the model, 0 for a word that it lacks."""
    ids = {word: i for i, word in enumerate(words)}

    def prob(history, word):
        return plain.prob(tuple(ids.get(w, -1) for w in history), ids[word]) if word in ids else 0.0

    return prob


@pytest.mark.parametrize(("seeds", "whole"), [([1, 2], True), ([3, 4, 5], False)])
def test_random_models(seeds, whole, plain_backoff, to_device):
    """Models of several orders, with words in other places, and with words of their own."""
    weights = [0.3, 0.7] if len(seeds) == 2 else [0.2, 0.5, 0.3]
    models, probs, listed = [], [], set()
    for seed, order in zip(seeds, [3, 4, 2], strict=False):
        plain = plain_backoff.random(seed, order=order, whole=whole)
        words = [*SPECIAL, *"bcde"] if seed % 2 else [*SPECIAL, *"xcab"]
        models.append((plain.trie(to_device), Words.of(words)))
        probs.append(spelled(plain, words))
        listed |= {tuple(words[w] for w in gram) for gram in plain.probs}
    trie, words, overfull = mix(models, weights)
    assert overfull == 0 and list(words)[:3] == SPECIAL and len(set(words)) == len(words) == 9
    made = plain_backoff.of(trie.map_arrays(to_host))
    assert {tuple(words.word(w) for w in gram) for gram in made.probs} == listed
    for gram, log10 in made.probs.items():
        *history, word = (words.word(w) for w in gram)
        expected = sum(weight * prob(tuple(history), word) for weight, prob in zip(weights, probs, strict=True))
        assert (10**log10 if log10 > -99 else 0) == pytest.approx(expected, rel=2e-6)
    for history in sorted(h for h in made.probs if len(h) < made.order):
        assert made.row_sum(history) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("seeds", "whole"), [([1, 2], True), ([3, 5], False)])
def test_products_of_random_models(seeds, whole, plain_backoff, to_device):
    """P(w | h) is the product of powers, divided by its sum over all words."""
    weights, words = [0.4, 0.9], Words.of([*SPECIAL, *"abcd"])
    plains = [plain_backoff.random(seed, order=order, whole=whole) for seed, order in zip(seeds, [3, 4], strict=True)]
    made, same = mix_log_linear([(plain.trie(to_device), words) for plain in plains], weights)
    found = plain_backoff.of(made.map_arrays(to_host))
    assert same == words and set(found.probs) == set(plains[0].probs) | set(plains[1].probs)
    for history in [(), *sorted(h for h in found.probs if len(h) < found.order), (6, 6, 6)]:
        products = [plains[0].prob(history, w) ** 0.4 * plains[1].prob(history, w) ** 0.9 for w in found.words]
        expected = [product / sum(products) for product in products]
        assert [found.prob(history, w) for w in found.words] == pytest.approx(expected, rel=5e-6)


def test_what_kenlm_interpolates(plain_backoff, shared_data, tmp_path):
    """All words and every fifth longer n-gram of KenLM's file, within 1e-6; it has no value of its own for <s>."""
    golden = shared_data / "golden" / "tools"
    if not golden.is_dir():
        pytest.skip("shared/data beside this checkout has no golden outputs of tools")
    models = []
    for name in "a", "b":
        (tmp_path / name).write_bytes(lzma.decompress((golden / "mix" / f"{name}.arpa.xz").read_bytes()))
        model = open_model(tmp_path / name)
        models.append((model.trie, model.words))
    trie, words = mix_log_linear(models, [0.4, 0.6])
    probs, backoffs = named(plain_backoff.of(trie), list(words))
    text = lzma.decompress((golden / "interpolate" / "ab.w0.4_0.6.sample5.arpa.xz").read_bytes()).decode()
    rows = [line.split("\t") for line in text.split("\n") if "\t" in line]
    rows = [(tuple(row[1].split(" ")), *map(float, (row[0], *row[2:]))) for row in rows if row[1] != "<s>"]
    assert len(rows) > 30_000
    assert [probs[len(gram) - 1][gram] for gram, *_ in rows] == pytest.approx([row[1] for row in rows], abs=1e-6)
    rows = [row for row in rows if len(row) > 2]
    assert [backoffs[row[0]] for row in rows] == pytest.approx([row[2] for row in rows], abs=1e-6)


def test_weights_1_and_0(plain_backoff, to_device):
    """The n-grams of the first model keep its probabilities; the others have those of its backing off."""
    first, second = plain_backoff.random(1, order=3), plain_backoff.random(2, order=4, whole=False)
    words = Words.of([*SPECIAL, *"abcd"])
    made = plain_backoff.of(mix([(m.trie(to_device), words) for m in (first, second)], [1, 0])[0].map_arrays(to_host))
    assert set(made.probs) == set(first.probs) | set(second.probs)
    assert {g: made.probs[g] for g in first.probs} == pytest.approx(first.probs, abs=1e-6)
    for history in [(3,), (4, 5), (5, 3, 4)]:
        assert made.prob(history, 6) == pytest.approx(first.prob(history, 6), rel=1e-5)


def test_the_value_of_begin(plain_backoff):
    """<s> is no word that follows others: 0 by lmplz, -99 by SRILM."""
    models = [plain_backoff.random(seed, order=2) for seed in (1, 2)]
    models[1].probs[1,] = 0.0
    words = Words.of([*SPECIAL, *"abcd"])
    assert plain_backoff.of(mix([(m.trie(), words) for m in models], [0.5, 0.5])[0]).probs[1,] == 0
    models[1].probs[1,] = -99.0
    assert plain_backoff.of(mix([(m.trie(), words) for m in models], [0.5, 0.5])[0]).probs[1,] == -99


def test_weights_by_hand(to_device):
    """Tokens of probabilities (1/2, 1/4) and (1/4, 1/2): equal weights are best. A third token adds to the first model;
    a word that a model lacks has probability 0 there; a word that both lack does not count.
    """
    codes, logs = np.array([[5, 6, 1], [5, 6, 1]], np.uint32), np.log10([[0.5, 0.25, 0.1], [0.25, 0.5, 0.1]])
    tuned = tune_weights(to_device(codes), to_device(logs.astype(np.float32)))
    assert tuned.weights[-1] == pytest.approx([0.5, 0.5]) and (tuned.tokens, tuned.skipped) == (2, 1)
    assert tuned.perplexities[-1] == pytest.approx(1 / 0.375)
    codes = np.array([[5, 6, 7], [1, 6, 7]], np.uint32)
    logs = np.log10([[0.5, 0.1, 0.1], [0.9, 0.4, 0.4]]).astype(np.float32)
    tuned = tune_weights(to_device(codes), to_device(logs))
    # w/2 (0.4 - 0.3 w)^2 is greatest where 0.4 - 0.9 w = 0
    assert tuned.weights[-1] == pytest.approx([4 / 9, 5 / 9], abs=1e-5)
    assert all(a >= b - 1e-12 for a, b in zip(tuned.perplexities, tuned.perplexities[1:], strict=False))
    with pytest.raises(InputError, match="no word of the text is in a model"):
        tune_weights(np.ones((2, 3), np.uint32), logs)


def test_real_models(plain_backoff, shared_data, tmp_path):
    """The same n-grams, probabilities and backoffs within 1e-6, as a plain program in float64."""
    if not ORACLE.is_file():
        pytest.skip("the oracle is not beside this checkout")
    spec = importlib.util.spec_from_file_location("prune_mix_ref", ORACLE)
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    models, tables = [], []
    for name in "a", "b":
        golden = shared_data / "golden" / "tools" / "mix" / f"{name}.arpa.xz"
        (tmp_path / name).write_bytes(lzma.decompress(golden.read_bytes()))
        model = open_model(tmp_path / name)
        models.append((model.trie, model.words))
        tables.append(named(plain_backoff.of(model.trie), list(model.words)))
    probs, backoffs = oracle.mix(*tables, 0.3)
    trie, words, _ = mix(models, [0.3, 0.7])
    found, weights = named(plain_backoff.of(trie), list(words))
    for mine, expected in zip(found, probs, strict=True):
        assert mine.keys() == expected.keys()
        assert list(mine.values()) == pytest.approx([expected[g] for g in mine], abs=1e-6)
    assert [b for h, b in weights.items() if h in backoffs] == pytest.approx(
        [backoffs[h] for h in weights if h in backoffs], abs=1e-6
    )


def named(plain, words):
    """Return a model as the oracle has it."""
    probs = [{} for _ in range(plain.order)]
    for gram, log10 in plain.probs.items():
        probs[len(gram) - 1][tuple(words[w] for w in gram)] = log10
    return probs, {tuple(words[w] for w in h): b for h, b in plain.backoffs.items()}
