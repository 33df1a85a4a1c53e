"""`ng.Model` for a user: results worked by hand, compared with the kenlm drop-in, and refusals."""

import copy
import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

import mgpu_ngram as ng
from mgpu_ngram import kenlm
from mgpu_ngram.api import model as models
from mgpu_ngram.core.ngrams import words
from mgpu_ngram.engine.memory.device import to_device as put
from mgpu_ngram.jobs.convert import run as convert
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

SENTENCES = ["a b", "c", "", "b\na <s>", b"a \xff", " a\t\tb\r\n"]


@pytest.fixture(params=["edge", "btree"])
def model(request, arpa, device):
    return ng.Model.load(arpa, device, request.param)


def test_by_hand(model, device):
    assert model.score(["a b", "c", ""]).tolist() == [-1.40625, -3.5, -1.5]
    assert model.score(["a b", "c"], bos=False).tolist() == [-0.75 - 0.375 - 0.03125 - 0.625, -3]
    assert model.score(["a b", "c", ""], eos=False).tolist() == [-0.75, -2.5, 0]
    assert model.score(["a b"], bos=False, eos=False).tolist() == [-1.125]
    assert model.score("a b") == -1.40625
    assert model.full_scores("a b") == [(-0.5, 2, False), (-0.25, 3, False), (-0.65625, 2, False)]
    assert model.full_scores("c", bos=False, eos=False) == [(-2, 1, True)]
    assert model.perplexity(["a b", "c", ""]) == 10 ** (6.40625 / 6)
    assert model.perplexity("c") == 10 ** (3.5 / 2)
    assert model.device == device and model.order == 3
    assert repr(model) == "<Model of order 3, 5 words, 10 n-grams>"


def test_words(model):
    assert "a" in model and "c" not in model and "<unk>" in model and 3 not in model
    words = model.vocabulary
    assert (len(words), list(words)) == (5, ["<unk>", "<s>", "</s>", "a", "b"])
    assert (words.id("b"), words.id("c"), words.word(3)) == (4, 0, "a")


def test_scores_match_kenlm(model, arpa):
    other = kenlm.Model(str(arpa))
    for bos, eos in (True, True), (False, True), (True, False), (False, False):
        scores = model.score(iter(SENTENCES), bos, eos)
        assert scores.dtype == np.float32
        assert scores.tolist() == [other.score(sentence, bos, eos) for sentence in SENTENCES]
        for sentence in SENTENCES:
            assert model.full_scores(sentence, bos, eos) == list(other.full_scores(sentence, bos, eos))
    assert model.perplexity("a b c") == pytest.approx(other.perplexity("a b c"), rel=1e-6)


def test_nul_is_part_of_a_word(model):
    """Of one that the model lacks; for KenLM's module a word ends there."""
    assert model.score("b a\0b") == model.score("b unknown") != model.score("b a")


def test_pickles_and_copies(model):
    assert copy.deepcopy(model) is model
    again = pickle.loads(pickle.dumps(model))
    assert again.score(SENTENCES).tolist() == model.score(SENTENCES).tolist()
    assert (again.device, again.path, again._index) == (model.device, model.path, model._index)


def test_no_sentences(model):
    assert model.score([]).shape == (0,) and model.score([]).dtype == np.float32
    assert np.isnan(model.perplexity([]))
    assert model.score_ids(np.zeros(0, np.int32), [0]).shape == (0,)


def test_more_sentences_than_one_batch(model, monkeypatch):
    expected, perplexity = model.score(SENTENCES * 5).tolist(), model.perplexity(SENTENCES * 5)
    monkeypatch.setattr(models, "TEXT_BYTES", dict.fromkeys(models.TEXT_BYTES, 4))
    assert model.score(SENTENCES * 5).tolist() == expected
    assert model.perplexity(SENTENCES * 5) == pytest.approx(perplexity, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint16])
def test_ids(model, to_device, device, dtype):
    ids, offsets = to_device(np.array([3, 4, 0], dtype)), to_device(np.array([0, 2, 2, 3]))
    scores = model.score_ids(ids, offsets)
    assert on_gpu(scores) == (device == "gpu")
    assert to_host(scores).tolist() == [-1.40625, -1.5, -3.5]
    assert to_host(model.score_ids(ids, offsets, bos=False, eos=False)).tolist() == [-1.125, 0, -2]
    from_lists = model.score_ids(ids.tolist(), offsets.tolist())
    assert isinstance(from_lists, np.ndarray) and from_lists.tolist() == to_host(scores).tolist()


def test_invalid_input(model, arpa):
    with pytest.raises(ng.InputError, match="sentence 1 is 3 but must be a string of words"):
        model.score(["a", 3])
    for call in model.score, model.perplexity:
        with pytest.raises(ng.InputError, match=r"^sentence 1 has '\\ud800' at 2, which UTF-8 cannot write \("):
            call(["a", "b \ud800"])
    for call in model.score, model.perplexity, model.full_scores:
        with pytest.raises(ng.InputError, match=r"^sentence 0 has '\\ud800' at 0, .*; leave it out, or give bytes$"):
            call("\ud800")
    with pytest.raises(ng.InputError, match="ids are 0 to 5 but must be 0 to 4"):
        model.score_ids(np.array([0, 5]), [0, 2])
    with pytest.raises(ng.InputError, match="index is 'hash' but must be edge or btree"):
        ng.Model.load(arpa, index="hash")
    with pytest.raises(ng.InputError, match="path is None but must be a path, as str or pathlib.Path"):
        ng.Model.load(None)
    with pytest.raises(ng.InputError, match="device is 'tpu'"):
        ng.Model.load(arpa, device="tpu")


def test_texts_and_tables(arpa, tmp_path, device):
    result = ng.score(arpa, ng.Lines(["a b", "c", ""]), tmp_path / "x.parquet", device=device)
    assert (result.totals.log10, result.totals.oovs, result.device) == (-6.40625, 1, device)
    assert pq.read_table(result.path)["prob_log10"].to_pylist() == [-1.40625, -3.5, -1.5]
    with pytest.raises(ng.InputError, match="x.parquet exists; add --overwrite"):
        ng.score(arpa, ng.Lines(["a"]), tmp_path / "x.parquet", device=device)
    (tmp_path / "text").write_text("a b\n")
    again = ng.score(str(arpa), tmp_path / "text", tmp_path / "x.parquet", overwrite=True, device=device, level="word")
    assert again.totals.perplexity == 10 ** (1.40625 / 3) and again.totals.tokens == 3
    assert pq.read_table(tmp_path / "x.parquet")["word"].to_pylist() == ["a", "b", "</s>"]
    with pytest.raises(ng.InputError, match="name is for jobs"):
        ng.score(arpa, [], name="x")
    with pytest.raises(ng.InputError, match="levl"):
        ng.score(arpa, [], levl="word")


@pytest.mark.slow
def test_on_a_cluster(arpa, tmp_path):
    (tmp_path / "text").write_text("a b\nc\n\n" * 1000)
    here = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(n_workers=2, **here) as cluster, Client(cluster) as client:
        result = ng.score(arpa, tmp_path / "text", tmp_path / "x.parquet", client=client, chunk_bytes=100)
    assert result.workers == 2 and result.totals.log10 == -6406.25
    assert pq.read_table(result.path)["prob_log10"].to_pylist() == [-1.40625, -3.5, -1.5] * 1000


@pytest.mark.gpu
@pytest.mark.parametrize(("place", "device"), [("cpu", "gpu"), ("gpu", "cpu")])
def test_ids_of_another_device(place, device, arpa):
    """Ids are copied to the model's device, and the scores back."""
    model = ng.Model.load(arpa, device)
    ids, offsets = put(np.array([3, 4, 0]), place), np.array([0, 2, 3])
    for there in offsets, put(offsets, "gpu"), offsets.tolist():
        scores = model.score_ids(ids, there)
        assert on_gpu(scores) == (place == "gpu") and to_host(scores).tolist() == [-1.40625, -3.5]


def test_a_sentence_that_is_too_long(model, monkeypatch):
    monkeypatch.setattr(words, "MAX_LINE_BYTES", 3)
    assert model.score(["a b"]).tolist() == [-1.40625]
    with pytest.raises(ng.InputError, match="^sentence 1 has 4 bytes but may have at most 3; split it$"):
        model.score(["a b", "a  b"])


def test_a_load_without_verify(arpa, tmp_path):
    convert.build(convert.ConvertConfig(str(arpa)), tmp_path / "m.safetensors")
    data = bytearray((tmp_path / "m.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "m.safetensors").write_bytes(data)
    for load in (
        lambda **how: ng.Model.load(tmp_path / "m.safetensors", "cpu", **how),
        lambda **how: ng.score(tmp_path / "m.safetensors", ng.Lines(["a"]), device="cpu", **how),
    ):
        load(verify=False)
        with pytest.raises(ng.InputError, match="is damaged: array"):
            load()


def test_a_perplexity_beyond_the_largest_double(arpa):
    arpa.write_text(arpa.read_text().replace("-2\t<unk>", "-2000\t<unk>"))
    assert ng.Model.load(arpa, "cpu").perplexity("c") == np.inf


def test_sentences_are_scored_lazily(model, monkeypatch):
    """The first sentences are scored before the last are requested."""
    monkeypatch.setattr(models, "TEXT_BYTES", dict.fromkeys(models.TEXT_BYTES, 4))
    monkeypatch.setattr(models, "cpu_cores", lambda: 2)
    asked = []
    blocks = model._blocks((asked.append(s) or s for s in ["a b"] * 100), True, True)
    next(blocks)
    assert 1 <= len(asked) <= 6
    assert 1 + sum(1 for _ in blocks) == 100
