"""Ensembles of many models and of several kinds, beside plain NumPy: weighted sums of log-probabilities."""

import itertools
import json
import math

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.benchmarks.inputs.plain_beam_search import PlainSearch
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.engine.decode.batch import decode
from mgpu_ngram.engine.decode.open_translation import TranslationFiles, open_translation
from mgpu_ngram.engine.decode.search_options import SearchOptions
from tests.support.slow_cases import first_fast

SOURCE = np.array([2, 5, 7, 0])
WORDS = ("<s>", "a", "b", "c", "d", "e", "f")  # from id 2 on


class PlainGrus:
    """A model without attention for the plain program: two GRUs by the equations of torch.nn.GRU."""

    def __init__(self, tensors, start):
        self.t, self.Edec = {name: array.astype(float) for name, array in tensors.items()}, tensors["dec_emb"]
        self.start = start

    def cell(self, side, x, h):
        t = self.t
        reset, update, new = np.split(x @ t[f"{side}_w_ih"].T + t[f"{side}_b_ih"], 3, axis=1)
        of_reset, of_update, of_new = np.split(h @ t[f"{side}_w_hh"].T + t[f"{side}_b_hh"], 3, axis=1)
        r, z = (1 / (1 + np.exp(-x)) for x in (reset + of_reset, update + of_update))
        return (1 - z) * np.tanh(new + r * of_new) + z * h

    def encode(self, source):
        h = np.zeros((1, 2))
        for word in source:
            h = self.cell("enc", self.t["enc_emb"][[word]], h)
        return h, h, self.Edec[[self.start]]

    def step(self, state):
        _, memory, y = state
        h = self.cell("dec", y, state[0])
        x = h @ self.t["fc_w"].T + self.t["fc_b"]
        return h, memory[[0] * len(h)], np.zeros((len(h), 1)), x - np.log(np.exp(x).sum(axis=1, keepdims=True))


@pytest.fixture
def files(tmp_path, save_model):
    """Return files(tensors...): a system of these models, all of one vocabulary."""
    paths = [str(tmp_path / f"{side}.json") for side in ("source", "target")]

    def make(*members, words=WORDS):
        for path, size in zip(paths, (9, 7), strict=True):
            ids = {"eos": 0, "UNK": 1} | {word: i + 2 for i, word in enumerate(words[: size - 2])}
            (tmp_path / path).write_text(json.dumps(ids))
        models = tuple(save_model(tensors, f"member{i}") for i, tensors in enumerate(members))
        return TranslationFiles(models, ((paths[0],),), paths[1])

    return make


def always(tensors, bias, probabilities):
    """Return the tensors of a model that gives each word the same probability at each step."""
    return {name: np.zeros_like(array) for name, array in tensors.items()} | {bias: np.log(np.float32(probabilities))}


def test_the_winner_of_models_with_and_without_attention_is_known(
    random_tensors, tensors_without_attention, files, mgpu_ngram, tmp_path
):
    """Word 3 wins in the first model, word 4 in the second; their weighted product decides."""
    p = [0.1, 0.1, 0.1, 0.4, 0.2, 0.05, 0.05], [0.1, 0.1, 0.1, 0.2, 0.4, 0.05, 0.05]
    text = tmp_path / "text.txt"
    text.write_text("a b\n")
    members = always(random_tensors(), "ff_logit_b", p[0]), always(tensors_without_attention(), "fc_b", p[1])
    for order in (0, 1), (1, 0):
        at = files(*(members[i] for i in order))
        system = open_translation(at)
        source = system.encode(system.pieces("a b"))
        for weights, winner in (((1.0, 0.5), 3), ((0.5, 1.0), 4), ((1.0, 1.0), 3)):  # equal sums: the lower id
            options = SearchOptions(max_steps=1, breakdown=True, alignments=True)
            ((best,),) = system.decode([source], options, weights=[weights[i] for i in order])
            parts = [math.log(p[i][winner]) for i in order]
            assert best.words == (winner,) and best.parts == pytest.approx(parts)
            np.testing.assert_allclose(best.alignment_LT, np.full((1, 3), 1 / 3), rtol=1e-6)  # of equal energies
        translator = ng.Translator(at.models, at.source_vocabs[0][0], at.target_vocab)
        (best,) = translator.translate("a b", alignments=True)
        assert best.alignment.shape[1] == 3
        vocabularies = "-s", at.source_vocabs[0][0], "-t", at.target_vocab
        status, out, err = mgpu_ngram("decode", *at.models, *vocabularies, "--return-alignment", text)
        assert (status, err) == (0, "") and " ||| 0-" in out


@pytest.mark.parametrize(("id", "start"), [(6, 6), (7, 0)])
def test_a_first_word_that_models_lack(id, start, random_tensors, tensors_without_attention, files, tmp_path):
    """Models of 7 words have no word 7, so they begin with </s>."""
    at = files(random_tensors(), tensors_without_attention())
    (tmp_path / at.target_vocab).write_text(json.dumps(dict(zip("abcd", range(2, 6), strict=True)) | {"<s>": id}))
    assert open_translation(at).models[1].start == start


# Without <s>, models begin with </s>.
@pytest.mark.parametrize("words", first_fast([WORDS, pytest.param((*WORDS[1:], "g"))]))
def test_models_with_and_without_attention_and_other_cells(
    oracle, random_tensors, tensors_without_attention, files, words, device
):  # fmt: skip
    """All results of the plain program's ensemble, with the alignments of its first model."""
    lstm = random_tensors(3, cell="mlstm")  # the plain program has an LSTM before a GRU
    lstm |= {n: a for n, a in random_tensors(4).items() if n.endswith("_nl") or n in ("decoder_Wc", "decoder_Wcx")}
    members = [tensors_without_attention(), random_tensors(1), random_tensors(2, norm="marian"), lstm]
    system = open_translation(files(*members, words=words), device)
    plain = [PlainGrus(members[0], 2 * (words[0] == "<s>")), *(oracle.Model(path) for path in system.files.models[1:])]
    weights = [0.9, 0.7, 1.2, 0.4]
    options = SearchOptions(4, 4, length_penalty=1.0, alignments=True)
    for ids in ([2, 5, 7, 0], [3, 0], [8, 8, 4, 4, 6, 0]):
        (found,) = system.decode([np.array(ids)], options, weights=weights)
        expected = oracle.beam(plain[1:] + plain[:1], weights[1:] + weights[:1], ids, 4, True)[:4]
        assert [best.words for best in found] == [result[2] for result in expected]
        for best, (score, cost, _, attention) in zip(found, expected, strict=True):
            assert (best.score, best.cost) == pytest.approx((score, cost), abs=1e-4)
            np.testing.assert_allclose(best.alignment_LT, attention, rtol=0, atol=1e-4)


@pytest.mark.parametrize("models", first_fast([33, 70]))
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
