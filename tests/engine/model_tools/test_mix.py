"""Linear interpolation: against the definition on random models, and against a plain program on real ones."""

import importlib.util
import lzma
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.model_tools import tune_log_linear as tune_module
from mgpu_ngram.engine.model_tools.mix import mix, mix_log_linear, tune_weights
from mgpu_ngram.engine.model_tools.tune_log_linear import TextWords, tune_log_linear
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.dispatch import to_host

ORACLE = Path(__file__).resolve().parents[3].parent / "shared" / "oracles" / "prune_mix_ref.py"
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


@pytest.mark.parametrize("weights", [[1e308, 1e308], [1, 1e308]])
@pytest.mark.filterwarnings("error")
def test_products_beyond_float64(weights, plain_backoff, to_device):
    words = Words.of([*SPECIAL, *"abcd"])
    models = [(plain_backoff.random(seed, order=3).trie(to_device), words) for seed in (1, 2)]
    with pytest.raises(InputError, match="powers .1.* are beyond float64; give smaller weights"):
        mix_log_linear(models, weights)


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


def posterior(probs, priors, history, length, scale):
    """Return the weights of models after a history of words, as the definition has them."""
    used, products = history[-length:], []
    for prob in probs:
        product = 1.0
        for i, word in enumerate(used):
            product *= prob(used[:i], "</s>" if i == 0 and word == "<s>" else word)
        products.append(product**scale)
    weighed = [prior * product for prior, product in zip(priors, products, strict=True)]
    return [weight / sum(weighed) for weight in weighed] if sum(weighed) else priors


@pytest.mark.parametrize(("length", "scale"), [(1, 1.0), (2, 1.0), (2, 0.5), (9, 3.0)])
def test_bayes(length, scale, plain_backoff, to_device):
    """Weights depend on the last words of the history; a model without one of them gets none."""
    weights, models, probs = [0.2, 0.5, 0.3], [], []
    for seed, order in zip([3, 4, 5], [3, 4, 2], strict=True):
        plain = plain_backoff.random(seed, order=order, whole=False)
        words = [*SPECIAL, *"bcde"] if seed % 2 else [*SPECIAL, *"xcab"]
        models.append((plain.trie(to_device), Words.of(words)))
        probs.append(spelled(plain, words))
    trie, words, overfull = mix(models, weights, length, scale)
    made = plain_backoff.of(trie.map_arrays(to_host))
    assert overfull == 0
    for gram, log10 in made.probs.items():
        *history, word = (words.word(w) for w in gram)
        of_models = posterior(probs, weights, tuple(history), length, scale) if history else weights
        expected = sum(w * prob(tuple(history), word) for w, prob in zip(of_models, probs, strict=True))
        assert (10**log10 if log10 > -99 else 0) == pytest.approx(expected, rel=2e-6)
    for history in sorted(h for h in made.probs if len(h) < made.order):
        assert made.row_sum(history) == pytest.approx(1, abs=1e-6)


def test_bayes_by_hand(plain_backoff):
    """After the word 3, the models' unigram probabilities of it, 1/2 and 1/6, weigh equal priors 3 to 1."""
    tables = [
        {(0,): 0.1, (1,): 0, (2,): 0.4, (3,): 0.5, (3, 3): 0.8},
        {(0,): 1 / 6, (1,): 0, (2,): 4 / 6, (3,): 1 / 6, (3, 3): 0.4},
    ]
    logs = [{gram: np.log10(p) if p else -99.0 for gram, p in table.items()} for table in tables]
    models = [(plain_backoff(log, {(3,): -0.1}).trie(), Words.of([*SPECIAL, "a"])) for log in logs]
    made = plain_backoff.of(mix(models, [0.5, 0.5], 1)[0])
    assert 10 ** made.probs[3, 3] == pytest.approx(0.75 * 0.8 + 0.25 * 0.4)
    assert 10 ** made.probs[3,] == pytest.approx(0.5 * (1 / 2 + 1 / 6))


TEXT = [[3, 4, 5], [4, 4, 3, 6], [], [5, 6, 5, 0]]


def test_weights_of_products(plain_backoff, to_device, monkeypatch):
    """The perplexity at the weights is that of whole rows, and no other weights near give a lower one.

    More steps move no weight by 1e-6.
    """
    words = Words.of([*SPECIAL, *"abcd"])
    plains = [plain_backoff.random(seed, order=order, whole=seed < 4) for seed, order in [(1, 3), (3, 4), (6, 2)]]
    lines = [[words.word(w) if w else "q" for w in line] for line in TEXT]
    text_B = to_device(np.frombuffer("".join(" ".join(line) + "\n" for line in lines).encode(), np.uint8).copy())
    sentences = [[(1, *line, 2)[: i + 1] for i in range(1, len(line) + 2)] for line in TEXT]
    tokens = [(tuple(h), w) for sentence in sentences for *h, w in sentence]
    logs = np.log10([[plain.prob(h, w) for h, w in tokens] for plain in plains]).astype(np.float32)
    tune = partial(
        tune_log_linear, [(plain.trie(to_device), words) for plain in plains], to_device(logs),
        TextWords(text_B, find_tokens(text_B, isspace=True)),
    )  # fmt: skip
    tuned = tune()

    def perplexity(weights):
        log = 0.0
        for h, w in tokens:
            row = [
                np.prod([p.prob(h, v) ** x for p, x in zip(plains, weights, strict=True)]) for v in range(7) if v != 1
            ]
            log += np.log(row[w - (w > 1)] / sum(row))
        return np.exp(-log / len(tokens))

    assert tuned.tokens == len(tokens) == 15
    for weights, found in zip(tuned.weights, tuned.perplexities, strict=True):
        assert found == pytest.approx(perplexity(weights), rel=1e-5)
    best = tuned.weights[-1]
    for i in range(3):
        for change in -0.01, 0.01:
            near = [max(0, x + change * (i == j)) for j, x in enumerate(best)]
            assert perplexity(near) >= perplexity(best) * (1 - 1e-9)
    monkeypatch.setattr(tune_module, "NEWTON_PRECISION", 1e-9)
    assert tune().weights[-1] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(("names", "log"), [("ab", "ab.tuned.log"), ("abc", "abc.justtune.log")])
def test_the_weights_that_kenlm_tunes(names, log, shared_data, tmp_path):
    """Its Newton steps end after ten: weights within 1e-3, and its perplexities within 1e-4."""
    golden = shared_data / "golden" / "tools"
    if not golden.is_dir():
        pytest.skip("shared/data beside this checkout has no golden outputs of tools")
    models, logs = [], []
    text_B = np.frombuffer(lzma.decompress((golden / "mix" / "tune.txt.xz").read_bytes()), np.uint8)
    for name in names:
        (tmp_path / name).write_bytes(lzma.decompress((golden / "mix" / f"{name}.arpa.xz").read_bytes()))
        model = open_model(tmp_path / name)
        models.append((model.trie, model.words))
        scores, positions_T = Replica(model, "cpu", "btree").score_text(text_B)
        logs.append(scores.prob_T)
    tuned = tune_log_linear(models, np.stack(logs), TextWords(text_B, positions_T))
    lines = (golden / "interpolate" / log).read_text().split("\n")
    weights = [list(map(float, line.partition("weights = ")[2].split())) for line in lines if "weights = " in line]
    perplexities = [float(line.partition(" = ")[2]) for line in lines if line.startswith("Perplexity")]
    assert tuned.weights[-1] == pytest.approx(weights[-1], abs=1e-3)
    assert tuned.perplexities[0] == pytest.approx(perplexities[0], rel=1e-4)
    assert tuned.perplexities[-1] == pytest.approx(perplexities[-1], rel=1e-4) and len(tuned.weights) < 10


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
    """<s> is not a word that follows others: 0 by lmplz, -99 by SRILM."""
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


def test_a_step_that_leaves_the_range_of_numbers():
    """Far out all values are rounded: the log probability is 0, and so is the next step. There is no maximum there."""

    def at(weights):
        is_near = weights[0] < 10
        return (-1e-4, np.array([1e-4]), np.array([[1e-9]])) if is_near else (0.0, np.zeros(1), np.zeros((1, 1)))

    steps, has_maximum = tune_module._newton(at, np.ones(1))
    assert steps[-1][0] == pytest.approx([100_001]) and steps[-1][1] == 0 and not has_maximum
