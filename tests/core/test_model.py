"""A model in a file: what was saved is loaded, and whatever is damaged, newer or something else is refused."""

import dataclasses
import os

import numpy as np
import pytest

from mgpu_ngram.core import model as model_module
from mgpu_ngram.core.arrays import load_arrays, save_arrays
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model import Model, is_model_file, load_model, save_model
from mgpu_ngram.core.trie import ARRAYS, Ngrams
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.trie import build_trie


def trie_of(probs=(-1, -2, -3, -4), fanout=2):
    """Four words, three bigrams, two trigrams."""
    orders = [
        ([[0], [1], [2], [3]], probs, (0, -0.5, 0, -0.25)),
        ([[3, 2], [1, 3], [3, 3]], (-0.5, -0.75, -4), (0, -1.5, 0)),
        ([[1, 3, 2], [1, 3, 3]], (-0.125, -0.25), None),
    ]
    return build_trie(
        [
            Ngrams(np.array(i, np.uint32), np.array(p, np.float32), None if b is None else np.array(b, np.float32))
            for i, p, b in orders
        ],
        fanout,
    )


WORDS = ["<unk>", "<s>", "</s>", "the"]


@pytest.fixture
def model():
    return Model.of(trie_of(), Words.of(WORDS))


def same(a, b):
    arrays = all(np.array_equal(getattr(a.trie, n), getattr(b.trie, n)) for n in ARRAYS)
    rest = (a.trie.starts, a.trie.fanout, a.fingerprint) == (b.trie.starts, b.trie.fanout, b.fingerprint)
    return arrays and rest and a.words == b.words


@pytest.mark.parametrize("verify", [True, False])
def test_what_was_saved_is_loaded(model, verify, tmp_path):
    path = tmp_path / "m.safetensors"
    assert save_model(path, model) == path.stat().st_size
    loaded = load_model(path, verify)
    assert same(loaded, model) and loaded.trie.order == 3 and list(loaded.words) == WORDS
    assert isinstance(loaded.trie.word_G.base, np.memmap) or not loaded.trie.word_G.flags.owndata
    assert is_model_file(path)


def test_the_fingerprint_is_that_of_the_contents(model):
    assert Model.of(trie_of(), Words.of(WORDS)).fingerprint == model.fingerprint
    others = [
        Model.of(trie_of(probs=(-1, -2, -3, -5)), Words.of(WORDS)),
        Model.of(trie_of(), Words.of([*WORDS[:3], "thf"])),
        Model.of(trie_of(fanout=3), Words.of(WORDS)),
    ]
    assert len({m.fingerprint for m in [model, *others]}) == 4


def test_another_file_is_refused(tmp_path):
    other = tmp_path / "run.safetensors"
    save_arrays(other, {"a": np.arange(3)}, {"kind": "run"})
    with pytest.raises(InputError, match="run.safetensors holds no model but run; give a file that .* or an ARPA file"):
        load_model(other)
    text = tmp_path / "text.arpa"
    text.write_text("\\data\\\nngram 1=3\n")
    assert not is_model_file(text)
    with pytest.raises(InputError, match="text.arpa is no file of arrays"):
        load_model(text)
    text.write_bytes(b"")
    assert not is_model_file(text)


def test_a_newer_version_is_refused(model, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "FORMAT_VERSION", 2)
        save_model(path, model)
    with pytest.raises(InputError, match="has model version 2 but this mgpu_ngram reads up to 1; upgrade mgpu_ngram"):
        load_model(path)


def test_damage_is_found_and_not_looked_for_when_asked(model, tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(path, model)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(InputError, match="m.safetensors is damaged: array '.*' has CRC-32"):
        load_model(path)
    assert not same(load_model(path, verify=False), model)


def changed(**changes):
    """A saved file whose arrays or metadata are changed, with right checksums."""

    def save(path, model):
        save_model(path, model)
        arrays, metadata = load_arrays(path)
        arrays = {name: np.array(a) for name, a in arrays.items()}
        for name, change in changes.items():
            where = arrays if name in arrays else metadata
            if change is None:
                del where[name]
            else:
                where[name] = change(where[name])
        save_arrays(path, arrays, metadata)

    return save


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (changed(prob_G=None), "it lacks 'prob_G'"),
        (changed(starts=None), "it lacks 'starts'"),
        (changed(prob_G=lambda a: a[:-1]), r"prob_G is float32 of shape \(8,\) but must be float32 of \(9,\)"),
        (changed(word_G=lambda a: a.astype(np.int64)), "word_G is int64"),
        (changed(first_child_M=lambda a: a[::-1]), "children do not follow each other"),
        (changed(first_child_M=lambda a: a + np.uint32(1)), "children do not follow each other"),
        (changed(suffix_M=lambda a: a + np.uint32(5)), "words or suffixes lie outside"),
        (changed(offsets_V=lambda a: a + 1), "its words are 4 of 15 bytes but the trie has 4"),
        (changed(offsets_V=lambda a: np.array([0, 9, 3, 12, a[-1]])), "words or suffixes lie outside"),
        (changed(fanout=lambda a: 3), r"begin at \[0, 5, 8, 10\] but at \[0, 3, 4, 5\] for its fanout"),
        (changed(sample_starts=lambda a: a[::-1]), "is no sound model"),
        (changed(fanout=lambda a: 0), "its fanout is 0"),
        (changed(starts=lambda a: [0, 4, 9]), "backoff_M is float32 of shape"),
        (changed(starts=lambda a: [0, 7, 4, 9]), "is no sound model"),
        (changed(starts=lambda a: "abc"), "is no sound model"),
    ],
)
def test_contradictions_are_refused(save, message, model, tmp_path):
    path = tmp_path / "m.safetensors"
    save(path, model)
    with pytest.raises(InputError, match=message) as error:
        load_model(path)
    assert "\n" not in str(error.value)


def test_a_model_of_single_words(tmp_path):
    orders = [Ngrams(np.arange(3, dtype=np.uint32)[:, None], np.zeros(3, np.float32))]
    model = Model.of(build_trie(orders), Words.of(WORDS[:3]))
    save_model(tmp_path / "m", model)
    assert same(load_model(tmp_path / "m"), model)


def test_fields_are_those_of_a_trie(model):
    assert {f.name for f in dataclasses.fields(model.trie)} == {*ARRAYS, "starts", "fanout"}
