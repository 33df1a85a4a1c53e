"""`ng.Translator` for a user: goldens, all results by enumeration, ensembles worked by hand, clusters, and refusals."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

import mgpu_ngram as ng
from mgpu_ngram.engine.decode.nmt_weights import MAX_TABLE_BYTES
from mgpu_ngram.jobs.decode.config import DecodeConfig

G2P = Path(__file__).parents[2] / "examples" / "g2p"
SOURCE, TARGET = ("eos", "UNK", "a", "b", "c", "d", "e", "f", "g"), ("eos", "UNK", "a", "b", "x@@", "y", "z")


@pytest.fixture
def vocabularies(tmp_path):
    """Return the vocabularies of the random models, as arguments of a translator on the CPU."""
    paths = tmp_path / "src.json", tmp_path / "trg.json"
    for path, words in zip(paths, (SOURCE, TARGET), strict=True):
        path.write_text(json.dumps({word: i for i, word in enumerate(words)}))
    return {"source_vocab": paths[0], "target_vocab": str(paths[1]), "device": "cpu"}


@pytest.fixture
def translator(random_tensors, save_model, vocabularies):
    """Return translator(seed, ...): a translator with a random model."""

    def make(*seeds, **options):
        models = [save_model(random_tensors(seed, scale=0.6), f"m{seed}") for seed in seeds]
        return ng.Translator(models, **{**vocabularies, **options})

    return make


@pytest.fixture
def fixed(random_tensors, save_model, vocabularies):
    """Return fixed(probabilities, ...): models that give each word the same probability at each step."""

    def make(*models, **options):
        paths = []
        for i, probabilities in enumerate(models):
            tensors = {name: np.zeros_like(array) for name, array in random_tensors().items()}
            tensors["ff_logit_b"] = np.log(np.array(probabilities, np.float32))
            paths.append(save_model(tensors, f"fixed{i}"))
        return ng.Translator(paths, **{**vocabularies, **options})

    return make


@pytest.mark.parametrize("name", ["gru.b5n", "gru.nbest12", "gru.nbestalign", "ens2.b5n", "gru_ln_amun.b1"])
def test_outputs_of_amun(shared_data, name):
    folder = shared_data / "nmt" / "cmudict-g2p"
    models = ["gru.npz", "gru2.npz"] if name.startswith("ens2") else [f"{name.split('.')[0]}.npz"]
    vocabularies = {"source_vocab": folder / "vocab.src.json", "target_vocab": folder / "vocab.trg.json"}
    translator = ng.Translator([folder / f"model.{model}" for model in models], **vocabularies, device="cpu")
    beam = int(re.findall(r"-b (\d+)", (folder / "golden" / f"{name}.cmd").read_text())[0])
    lines = (folder / "test.src").read_text().splitlines()[:40]
    golden = (folder / "golden" / f"{name}.out").read_text().splitlines()
    lists = "nbest" in name
    settings = {"beam_size": beam, "n_best": beam if lists else 1, "length_penalty": float("12" not in name)}
    found = translator.translate(lines, alignments="align" in name, **settings)
    for i, results in enumerate(found):
        if not lists:
            assert results[0].text == golden[i]
            continue
        expected = [line.split(" ||| ") for line in golden if line.startswith(f"{i} ||| ")]
        assert [best.text for best in results] == [fields[1] for fields in expected]
        for best, fields in zip(results, expected, strict=True):
            assert best.score == pytest.approx(float(fields[-1]), abs=1.5e-3)
            if "align" in name:
                pairs = [f"{t}-{row.argmax()}" for t, row in enumerate(best.alignment[: len(best.tokens)])]
                assert " ".join(pairs) == fields[2]


@pytest.mark.parametrize("with_lm", [False, True])
@pytest.mark.parametrize(("length_penalty", "word_penalty"), [(0.0, 0.0), (1.0, -0.2)])
def test_the_best_of_all_results(
    random_tensors, save_model, vocabularies, arpa, with_lm, length_penalty, word_penalty
):  # fmt: skip
    """All 40 results of up to 3 words, scored by the model as given translations, and by the n-gram model."""
    tensors = random_tensors(scale=0.6)
    for name in ("Wemb_dec", "ff_logit_W", "ff_logit_b"):
        tensors[name] = tensors[name][..., :4] if name != "Wemb_dec" else tensors[name][:4]
    path, lm = save_model(tensors), ng.Model.load(arpa, "cpu")
    alone = ng.Translator(path, **vocabularies)
    system = ng.Translator(path, **vocabularies, lm=lm, lm_weight=0.4) if with_lm else alone
    targets = [" ".join(words) for n in range(4) for words in itertools.product(("<unk>", "a", "b"), repeat=n)]
    scores = {}
    for result in alone.score(["d e"] * len(targets), targets):
        length, ends = len(result.tokens) + 1, len(result.tokens) < 3  # a result of 3 words stops without its end
        total = result.log_prob if ends else sum(result.token_log_probs[:3])
        if with_lm:
            total += 0.4 * math.log(10) * lm.score(result.text, eos=ends)
        length = min(length, 3)
        scores[result.tokens] = (total - word_penalty * length) / length**length_penalty
    penalties = {"length_penalty": length_penalty, "word_penalty": word_penalty}
    found = system.translate("d e", beam_size=64, n_best=64, max_steps=3, allow_unk=True, **penalties)
    assert [best.tokens for best in found] == sorted(scores, key=lambda tokens: -scores[tokens])
    assert [best.score for best in found] == pytest.approx([scores[best.tokens] for best in found], abs=1e-4)
    for best in found:
        assert sum(best.token_log_probs) == pytest.approx(best.log_prob, abs=1e-4)


def test_the_winner_of_an_ensemble_is_known(fixed):
    """The end of the sentence wins in one model, word `a` in the other; their weighted product decides."""
    p = [0.5, 0.1, 0.2, 0.05, 0.05, 0.05, 0.05], [0.2, 0.1, 0.5, 0.05, 0.05, 0.05, 0.05]
    for weights, text in (([1, 0.5], ""), ([0.5, 1], "a"), (None, "")):  # equal sums: the lower id
        translator = fixed(*p, weights=weights)
        (best,) = translator.translate("a b", max_steps=1)
        i = 0 if text == "" else 2
        parts = [math.log(model[i]) for model in p]
        assert best.text == text and best.model_log_probs == pytest.approx(parts)
        w = weights or [1, 1]
        assert best.log_prob == pytest.approx(w[0] * parts[0] + w[1] * parts[1])
    (scored,) = fixed(p[0]).score(["a"], ["b a"])
    assert scored.token_log_probs == pytest.approx([math.log(x) for x in (0.05, 0.2, 0.5)])
    assert scored.log_prob == scored.score and scored.tokens == ("b", "a") and scored.model_log_probs == ()


def test_results_of_one_string_and_of_an_empty_sentence(translator):
    system = translator(0)
    found = system.translate(["a b", "", "c\n"], beam_size=3, n_best=2, alignments=True)
    alone = system.translate("a b", beam_size=3, n_best=2)
    assert [best.text for best in found[0]] == [best.text for best in alone] and len(alone) == 2
    assert found[1] == [("", (), 0.0, 0.0, (), None, ())]
    assert found[2][0].alignment.shape == (len(found[2][0].token_log_probs), 2)  # the newline is not a word
    np.testing.assert_allclose(found[0][0].alignment.sum(axis=1), 1, rtol=1e-5)
    assert system.translate([]) == [] and system.score([], []) == []
    assert system.score("a b", "x@@ y").text == "x@@ y" and "1 models" in repr(system)


def test_forced_first_words(translator):
    system = translator(0)
    found = system.translate(["a b", "c d"], prefixes=["z y", ""], beam_size=3, n_best=3)
    assert all(best.tokens[:2] == ("z", "y") for best in found[0])
    assert [best.text for best in found[1]] == [best.text for best in system.translate("c d", beam_size=3, n_best=3)]
    assert system.translate("a b", prefixes="z")[0].tokens[0] == "z"


def test_tables_take_the_memory_that_they_may(translator):
    """By hand: the random models have 7 target and 9 source words, E = 5, H = 4, in float32."""
    texts = ["x y z", "y", "z z x x"]
    target, source = (7 + 1) * (3 * 4 + 5) * 4, 2 * 9 * 3 * 4 * 4
    found = []
    for size in (0, target - 1, target, target + source - 1, target + source, DecodeConfig.table_bytes):
        system = translator(0, table_bytes=size)
        [model] = system._translation.models
        has_target, has_source = model.word_inputs is not None, bool(model.source_inputs)
        assert (has_target, has_source) == (size >= target, size >= target + source)
        found.append(system.translate(texts, beam_size=3, n_best=3))
    assert all(one == found[0] for one in found)
    assert DecodeConfig.table_bytes == MAX_TABLE_BYTES


def test_samples_are_fixed_by_the_seed(translator):
    system, lines = translator(0), ["a b c d", "e f", "g a"]
    draws = {"sample": True, "beam_size": 4, "n_best": 4}
    found = [system.translate(lines, **draws, seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert system.translate(lines, **draws, seed=1, mini_batch=1) != found[2]
    assert len({best.text for best in found[0][0]}) > 1


def test_lines_of_many_tasks_have_their_own_numbers(translator):
    """A task has 64 sentences: equal sentences have other samples, and an error names the line."""
    system, lines = translator(0), ["a b c d e f"] * 130
    found = system.translate(lines, sample=True, beam_size=16, n_best=16, seed=1)
    assert len({tuple(best.text for best in results) for results in found}) == 130
    with pytest.raises(ng.InputError, match="line 101 of the text: a line has 2 columns"):
        system.translate([*lines[:100], "a\tb", *lines[100:]])


def test_split_words_are_joined(fixed, tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\na b</w>\n")
    p = [0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    (best,) = fixed(p, bpe=codes).translate("ab", prefixes="x@@ y")
    assert (best.text, best.tokens) == ("xy", ("x@@", "y"))
    (best,) = fixed(p, bpe=codes, debpe=False).translate("ab", prefixes="x@@ y")
    assert best.text == "x@@ y"


@pytest.mark.parametrize("batching", ["refill", "drain", "naive"])
def test_batches_and_order_change_no_bit(batching):
    system = ng.Translator(*(G2P / name for name in ("model.npz", "letters.json", "phonemes.json")), device="cpu")
    lines = (G2P / "words.txt").read_text().splitlines()
    settings = {"beam_size": 4, "n_best": 2, "length_penalty": 1.0}
    expected = system.translate(lines, **settings)
    order = np.random.default_rng(0).permutation(len(lines)).tolist()
    for size in (1, 7):
        shuffled = system.translate([lines[i] for i in order], **settings, batching=batching, mini_batch=size)
        for i, found in zip(order, shuffled, strict=True):
            assert [(best.text, best.score) for best in found] == [(best.text, best.score) for best in expected[i]]


def test_a_shortlist(fixed, tmp_path):
    lex = tmp_path / "lex"
    lex.write_text("y a 1\n")
    system = fixed([0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.1], softmax_filter=str(lex), first_words=0)
    (best,) = system.translate("a", prefixes="y", max_steps=1)
    assert best.token_log_probs == pytest.approx([math.log(1 / 3)] * 2)  # of </s>, <unk> and y
    assert system.score(["a"], ["b"])[0].log_prob == -math.inf


@pytest.mark.slow
def test_a_cluster(translator, arpa):
    lines = [" ".join(SOURCE[2 + (i * 7 + j) % 7] for j in range(i % 6)) for i in range(300)]
    targets = [" ".join(TARGET[2 + (i + j) % 5] for j in range(i % 4)) for i in range(300)]
    system = translator(0, 1, lm=ng.Model.load(arpa, "cpu"), dtype="bfloat16")
    settings = {"beam_size": 3, "n_best": 2, "length_penalty": 1.0}
    here, scored = system.translate(lines, **settings), system.score(lines, targets)
    one_thread, runs = {"threads_per_worker": 1, "processes": False, "dashboard_address": None}, []
    for workers in (1, 2):
        with LocalCluster(workers, **one_thread) as cluster, Client(cluster) as client:
            runs.append(
                (system.translate(lines, client=client, **settings), system.score(lines, targets, client=client))
            )
    assert runs[0] == runs[1]
    for found, expected in zip(runs[0][0], here, strict=True):
        assert [best.text for best in found] == [best.text for best in expected]
        assert [best.score for best in found] == pytest.approx([best.score for best in expected], abs=1e-4)
    assert [best.log_prob for best in runs[0][1]] == pytest.approx([best.log_prob for best in scored], abs=1e-4)


def test_an_ngram_model_in_memory(translator, arpa):
    text = ["a b a", "b a b", "a a b"] * 5
    lm = ng.estimate(iter(text), 2, discount_fallback=[], device="cpu")
    system = translator(0, lm=lm)
    (best,) = system.translate("a b")
    assert best.log_prob == pytest.approx(best.model_log_probs[0] + 0.2 * best.model_log_probs[1], abs=1e-5)
    with pytest.raises(ng.InputError, match="give lm=PATH"):
        system.translate("a b", client=object())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "Translator.dtype is 'int8'"),
        ({"weights": [1, 2]}, "there are 1 models but 2 weights"),
        ({"weights": np.ones(2)}, "there are 1 models but 2 weights"),
        ({"weights": -0.5}, "the weight of a model is -0.5"),
        ({"lm_weight": 0.9}, "lm_weight is 0.9 but there is no n-gram model"),
        ({"length_penalty": 1}, "unknown argument 'length_penalty'"),
        ({"source_vocab": 5}, "5 is not a path"),
        ({"target_vocab": "nothing.json"}, "nothing.json"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_wrong_settings_are_one_line(translator, options, message):
    with pytest.raises(ng.InputError, match=re.escape(message)) as error:
        translator(0, **options)
    assert "\n" not in str(error.value)


def test_vocabularies_of_another_model_are_one_line(translator, tmp_path):
    for size, name in ((3, "source_vocab"), (2, "target_vocab")):
        path = tmp_path / "other.json"
        path.write_text(json.dumps({f"w{i}": i for i in range(size)}))
        with pytest.raises(ng.InputError, match=f"has {size} words but .* has {9 if size == 3 else 7}"):
            translator(0, **{name: path})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.translate(["a", 5]), "sentences[1] is 5"),
        (lambda t: t.translate(5), "sentences is 5"),
        (lambda t: t.translate(["a"], prefixes=["a", "b"]), "1 sentences but 2 prefixes"),
        (lambda t: t.score(["a"], "b"), "targets is 'b'"),
        (lambda t: t.score(["a"], []), "1 sentences but 0 targets"),
        (lambda t: t.translate("a", num_beams=3), "unknown argument 'num_beams'"),
        (lambda t: t.translate("a", beam_size=65), "beam size is 65"),
        (lambda t: t.translate("a", n_best=2), "n_best is 2"),
        (lambda t: t.translate("a", n_best=0), "n_best is 0"),
        (lambda t: t.translate("a", early_stopping=True), "early_stopping is True"),
        (lambda t: t.translate("a", seed=3), "seed is for samples"),
        (lambda t: t.translate("a\tb"), "line 1 of the text: a line has 2 columns"),
        (lambda t: t.translate("a", client=5), "client is 5"),
    ],
)
def test_wrong_calls_are_one_line(translator, call, message):
    with pytest.raises(ng.InputError, match=re.escape(message)) as error:
        call(translator(0))
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_names_the_sentence(vocabularies, random_tensors, save_model):
    """The word `d` has a layer whose mean is infinite."""
    tensors = random_tensors(norm="marian")
    tensors["Wemb"][5], tensors["encoder_W"] = 3e38, np.full_like(tensors["encoder_W"], 10)
    system = ng.Translator(save_model(tensors), **vocabularies)
    with pytest.raises(ng.RunError, match="logits of sentence 1 are NaN, "):
        system.translate(["a b", "d", "c"])
