"""A model file: a saved model loads unchanged; damaged, newer and foreign files are refused."""

import dataclasses
import json
import os
import zlib

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models import model_file as model_module
from mgpu_ngram.core.models.model_file import (
    BackoffModel,
    check_free_file,
    load_model,
    save_model,
    save_trie,
)
from mgpu_ngram.core.models.model_head import identify, read_head
from mgpu_ngram.core.ngrams.trie import CODED, FILLED, TRIE_ARRAYS, Ngrams
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage import safetensors
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays
from mgpu_ngram.engine.trie.build import build_trie, edges_of, with_fanout
from mgpu_ngram.engine.trie.quantize import quantize


def trie_of(probs=(-1, -2, -3, -4), fanout=2):
    """Return a model of four words, three bigrams, three trigrams and one 4-gram."""
    orders = [
        ([[0], [1], [2], [3]], probs, (0, -0.5, 0, -0.25)),
        ([[3, 2], [1, 3], [3, 3]], (-0.5, -0.75, -4), (0, -1.5, 0)),
        ([[1, 3, 2], [1, 3, 3], [3, 3, 2]], (-0.125, -0.25, -0.5), (0, -2, 0)),
        ([[1, 3, 3, 2]], (-0.0625,), None),
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
    return BackoffModel.of(trie_of(), Words.of(WORDS))


@pytest.fixture
def with_edges(model):
    return BackoffModel.of(model.trie, model.words, edges_of(model.trie))


@pytest.fixture
def quantised(model):
    return BackoffModel.of(quantize(model.trie, 8), model.words)


@pytest.fixture
def filled():
    """Return the same model without 3 2, which 1 3 2 needs."""
    orders = [
        ([[0], [1], [2], [3]], (-1, -2, -3, -4), (0, -0.5, 0, -0.25)),
        ([[1, 3], [3, 3]], (-0.75, -4), (-1.5, 0)),
        ([[1, 3, 2]], (-0.125,), None),
    ]
    ngrams = [Ngrams(np.array(i, np.uint32), *(v and np.array(v, np.float32) for v in rest)) for i, *rest in orders]
    return BackoffModel.of(build_trie(ngrams, 2), Words.of(WORDS))


def same(a, b):
    arrays = a.trie.arrays().keys() == b.trie.arrays().keys()
    arrays &= all(np.array_equal(array, b.trie.arrays()[name]) for name, array in a.trie.arrays().items())
    rest = (a.trie.starts, a.trie.fanout, a.fingerprint) == (b.trie.starts, b.trie.fanout, b.fingerprint)
    return arrays and rest and a.words == b.words


@pytest.mark.parametrize("verify", [True, False])
def test_a_saved_model_loads_unchanged(model, verify, tmp_path):
    path = tmp_path / "m.safetensors"
    assert save_model(path, model) == path.stat().st_size
    loaded = load_model(path, verify)
    assert same(loaded, model) and loaded.trie.order == 4 and list(loaded.words) == WORDS and loaded.edges is None
    assert isinstance(loaded.trie.word_G.base, np.memmap) or not loaded.trie.word_G.flags.owndata
    assert read_head(path).is_model_file


@pytest.mark.parametrize("verify", [True, False])
def test_an_edge_table_is_kept(with_edges, verify, tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(path, with_edges)
    loaded = load_model(path, verify)
    assert same(loaded, with_edges)
    for name, value in with_edges.edges._asdict().items():
        assert np.array_equal(getattr(loaded.edges, name), value)
    assert not loaded.edges.slots_E2.flags.owndata and loaded.edges.slots_E2.flags.aligned


def test_codes_are_kept(quantised, tmp_path):
    save_model(tmp_path / "m", quantised)
    loaded = load_model(tmp_path / "m")
    assert same(loaded, quantised) and loaded.trie.quantized and loaded.trie.prob_G.dtype == np.uint8


def test_filled_nodes_are_kept(filled, tmp_path):
    assert filled.trie.filled_F.tolist() == [5] and filled.trie.filled_F.dtype == np.uint32
    for trie in filled.trie, quantize(filled.trie, 8), with_fanout(filled.trie, 3):
        for edges in None, edges_of(trie):
            save_model(tmp_path / "m", saved := BackoffModel.of(trie, filled.words, edges))
            loaded = load_model(tmp_path / "m")
            assert same(loaded, saved) and loaded.trie.filled_F.tolist() == [5]
            assert loaded.trie.decoded().filled_F.tolist() == [5]
    other = BackoffModel.of(dataclasses.replace(filled.trie, filled_F=None), filled.words)
    assert other.fingerprint != filled.fingerprint


def test_a_file_has_no_more_than_the_model(model, quantised, filled, tmp_path):
    """A model without missing n-grams needs no array of filled nodes, and a file without that array still loads."""
    for saved, more in (model, []), (quantised, CODED), (filled, [FILLED]):
        save_model(tmp_path / "m", saved)
        assert load_arrays(tmp_path / "m")[0].keys() == {*TRIE_ARRAYS, *more, "offsets_V", "data"}
    changed(FILLED, None)(tmp_path / "m", filled)
    assert load_model(tmp_path / "m").trie.filled_F is None


def test_without_backoffs(model, tmp_path):
    model.check_scores()
    bare = BackoffModel.of(dataclasses.replace(model.trie, backoff_M=model.trie.backoff_M[:0]), model.words)
    save_model(tmp_path / "m", bare)
    loaded = load_model(tmp_path / "m")
    assert same(loaded, bare) and len(loaded.trie.first_child_M) == 11 and loaded.fingerprint != model.fingerprint
    with pytest.raises(InputError, match="^m.st has no backoffs, which scores need; make it again without --no-back"):
        loaded.check_scores("m.st")
    with pytest.raises(InputError, match="^the model has no backoffs"):
        loaded.check_scores()


def test_writable_targets(model, tmp_path):
    path = tmp_path / "m.safetensors"
    check_free_file(path, overwrite=False)
    save_model(path, model)
    with pytest.raises(InputError, match=r"m.safetensors exists; add --overwrite \(in Python overwrite=True\) or give"):
        check_free_file(path, overwrite=False)
    check_free_file(path, overwrite=True)
    others = [tmp_path / name for name in ("text", "run", "empty", "folder", "dangling")]
    others[0].write_text("\\data\\\nngram 1=3\n")
    save_arrays(others[1], {"a": np.arange(3)}, {"kind": "run"})
    others[2].touch()
    others[3].mkdir()
    others[4].symlink_to(tmp_path / "nothing")
    for other in others:
        with pytest.raises(InputError, match=f"{other.name} exists and is not a model file; delete it your"):
            check_free_file(other, overwrite=True)
    for nowhere in "", "s3://bucket/m":
        with pytest.raises(InputError, match="is not a local path; give one that is"):
            check_free_file(nowhere, overwrite=True)


def test_the_fingerprint_is_of_the_contents(model, with_edges, quantised):
    assert BackoffModel.of(trie_of(), Words.of(WORDS)).fingerprint == model.fingerprint
    others = [
        BackoffModel.of(trie_of(probs=(-1, -2, -3, -5)), Words.of(WORDS)),
        BackoffModel.of(trie_of(), Words.of([*WORDS[:3], "thf"])),
        BackoffModel.of(trie_of(fanout=3), Words.of(WORDS)),
    ]
    assert len({m.fingerprint for m in [model, *others, quantised]}) == 5
    assert with_edges.fingerprint == model.fingerprint
    trie, words = model.trie, model.words
    arrays = [*trie.arrays().values(), words.offsets_V, words.data]
    contents = [json.dumps([trie.starts, trie.fanout]).encode(), *(array.tobytes() for array in arrays)]
    assert model.fingerprint == f"{len(trie):x}-{zlib.crc32(b''.join(contents)):08x}"


def test_a_new_model_in_a_file_is_the_same_bytes(model, quantised, filled, to_device, tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors, "SLICE_BYTES", 16)
    for saved in model, quantised, filled:
        save_model(tmp_path / "m", saved)
        trie = saved.trie.map_arrays(to_device)
        assert save_trie(tmp_path / "trie", trie, saved.words) == (tmp_path / "m").stat().st_size
        assert (tmp_path / "trie").read_bytes() == (tmp_path / "m").read_bytes()
        assert identify(tmp_path / "trie") == saved.fingerprint


def test_another_file_is_refused(tmp_path):
    other = tmp_path / "run.safetensors"
    save_arrays(other, {"a": np.arange(3)}, {"kind": "run"})
    with pytest.raises(InputError, match="run.safetensors holds run, not a model; give a model file, an ARPA file or "):
        load_model(other)
    text = tmp_path / "text.arpa"
    text.write_text("\\data\\\nngram 1=3\n")
    assert not read_head(text).is_model_file
    with pytest.raises(InputError, match="text.arpa is not a file of arrays"):
        load_model(text)
    text.write_bytes(b"")
    assert not read_head(text).is_model_file


def test_a_newer_version_is_refused(model, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "FORMAT_VERSION", 2)
        save_model(path, model)
    with pytest.raises(InputError, match="has model version 2 but this mgpu_ngram reads up to 1; upgrade mgpu_ngram"):
        load_model(path)


def test_damage_is_found_unless_verify_is_off(model, tmp_path):
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


def changed(name, change):
    """A saved file with one array or number changed or left out, and valid checksums."""

    def save(path, model):
        save_model(path, model)
        arrays, metadata = load_arrays(path)
        arrays = {name: np.array(a) for name, a in arrays.items()}
        where = next(place for place in (arrays, metadata, metadata.get("edges", {})) if name in place)
        if change is None:
            del where[name]
        else:
            where[name] = change(where[name])
        save_arrays(path, arrays, metadata)

    return save


def put(*values):
    """Return a change that writes values at places: (place, value), ..."""

    def change(array):
        for place, value in values:
            array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("prob_G", None, "it lacks 'prob_G'"),
        ("starts", None, "it lacks 'starts'"),
        ("prob_G", lambda a: a[:-1], r"prob_G is float32 of shape \(10,\) but must be float32 of \(11,\)"),
        ("prob_G", lambda a: a.astype(np.uint8), "prob_G is uint8"),
        ("backoff_M", lambda a: a[:-1], r"backoff_M is float32 of shape \(9,\) but must be float32 of \(10,\)"),
        ("word_G", lambda a: a.astype(np.int64), "word_G is int64"),
        ("word_G", put((9, 4)), "words lie outside"),
        ("first_child_M", lambda a: a[::-1], "children do not follow each other"),
        ("first_child_M", lambda a: a + np.uint32(1), "children do not follow each other"),
        ("first_child_M", put((1, 11)), "children do not follow each other"),
        ("suffix_L", lambda a: a[1:], r"suffix_L is uint32 of shape \(2,\) but must be uint32 of \(3,\)"),
        ("suffix_L", put((0, 3)), "suffixes lie outside of the order before"),
        ("suffix_L", put((1, 7)), "suffixes lie outside of the order before"),
        ("offsets_V", lambda a: a + 1, "its words are 4 of 15 bytes but the trie has 4"),
        ("offsets_V", lambda a: np.array([0, 9, 3, 12, a[-1]]), "words lie outside"),
        ("fanout", lambda a: 3, r"begin at \[0, 6, 9, 11\] but at \[0, 4, 6, 7\] for its fanout"),
        ("sample_starts", lambda a: a[::-1], "is damaged"),
        ("fanout", lambda a: 0, "its fanout is 0"),
        ("starts", lambda a: [0, 4, 11], "backoff_M is float32 of shape"),
        ("starts", lambda a: [0, 7, 4, 11], "is damaged"),
        ("starts", lambda a: "abc", "is damaged"),
    ],
)
def test_contradictions_are_refused(name, change, message, model, tmp_path):
    refused(changed(name, change), message, model, tmp_path)


def refused(save, message, model, tmp_path):
    path = tmp_path / "m.safetensors"
    save(path, model)
    with pytest.raises(InputError, match=message) as error:
        load_model(path)
    assert "\n" not in str(error.value)


NODES = np.uint64(15)  # bits of a child in an entry: the trie has 11 nodes


def last_child(node):
    """Return a change that redirects the edge to the last node, 10, to another node."""

    def change(slots_E2):
        entry_E = slots_E2[:, 0]
        entry_E[entry_E & NODES == 10] += np.uint64((node - 10) % 2**64)
        return slots_E2

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("edges.slots_E2", None, "it lacks 'edges.slots_E2'"),
        ("edges.words_V2", None, "it lacks 'edges.words_V2'"),
        ("edges.slots_E2", lambda a: a[:, :1].copy(), r"its edge table has slots of uint64 of shape \(\d+, 1\)"),
        ("edges.slots_E2", lambda a: a[:-1], "its edge table has slots of uint64 of shape"),
        ("edges.slots_E2", lambda a: a.view(np.int64), "its edge table has slots of int64"),
        ("edges.slots_E2", lambda a: a[:0], "its edge table has 0 slots"),
        ("edges.slots_E2", put((-1, 5)), "its edge table has no empty slot at its end"),
        ("edges.slots_E2", put((np.s_[:, 0], 0)), "its edge table leads outside of the trie"),
        ("edges.slots_E2", last_child(11), "its edge table leads outside of the trie"),
        ("edges.slots_E2", last_child(3), "its edge table leads outside of the trie"),
        ("edges.slots_E2", last_child(0), "its edge table leads outside of the trie"),
        ("edges.words_V2", lambda a: a[:-1], r"its edge table has words of uint64 of shape \(3, 2\)"),
        ("edges.words_V2", lambda a: a.view(np.float64), "its edge table has words of float64"),
        ("buckets", lambda a: 0, "0 buckets"),
        ("buckets", lambda a: 10**6, "1,000,000 buckets"),
        ("buckets", lambda a: "many", "is damaged"),
        (
            "edges",
            lambda a: a | {"buckets": 10, "check_bits": 3},
            r"has 1[46] slots, 10 buckets and keys of \(2, 6, 4, 3\)",
        ),
        ("buckets", None, "it lacks 'buckets'"),
        ("word_bits", lambda a: 3, r"keys of \(3, "),
        ("key_bits", lambda a: 64, r", 64, "),
        ("node_bits", lambda a: 5, r", 5, \d\)"),
        ("check_bits", lambda a: a + 1, "its edge table has"),
        ("filter_bits", lambda a: 0, "its edge table has filters of 0 bits beside 4 and 4"),
        ("filter_bits", lambda a: 57, "its edge table has filters of 57 bits beside 4 and 4"),
        ("filter_bits", None, "it lacks 'filter_bits'"),
    ],
)
def test_contradictions_of_an_edge_table_are_refused(name, change, message, with_edges, tmp_path):
    refused(changed(name, change), message, with_edges, tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("centers", None, "it lacks 'centers'"),
        ("words_V2", None, "it lacks 'words_V2'"),
        ("words_V2", lambda a: a[1:], r"words_V2 is float32 of shape \(3, 2\) but must be float32 of \(4, 2\)"),
        ("centers", lambda a: a[:, :, :255].copy(), r"prob_G is uint8 of shape \(11,\) but must be uint16"),
        ("centers", lambda a: a[1:], r"centers is float32 of shape \(2, 2, 256\) but must be float32 of \(3, 2, 256\)"),
        ("centers", lambda a: a.astype(np.float64), "centers is float64"),
        ("prob_G", lambda a: a.astype(np.uint16), "prob_G is uint16 of shape .* but must be uint8"),
        ("backoff_M", lambda a: a.astype(np.float32), "backoff_M is float32 of shape .* but must be uint8"),
    ],
)
def test_contradictions_of_codes_are_refused(name, change, message, quantised, tmp_path):
    refused(changed(name, change), message, quantised, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.astype(np.int64), r"filled_F is int64 of shape \(1,\) but must be uint32 of \(1,\)"),
        (lambda a: a[:, None], r"filled_F is uint32 of shape \(1, 1\) but must be uint32 of \(1,\)"),
        (lambda a: a[:0], "filled in are none, out of order, or of order 1 or the highest"),
        (lambda a: a - np.uint32(2), "filled in are"),
        (lambda a: a + np.uint32(2), "filled in are"),
        (lambda a: np.array([5, 4], np.uint32), "filled in are"),
        (lambda a: np.array([5, 5], np.uint32), "filled in are"),
    ],
)
def test_contradictions_of_filled_nodes_are_refused(change, message, filled, tmp_path):
    refused(changed(FILLED, change), message, filled, tmp_path)


def test_a_model_of_single_words(tmp_path):
    orders = [Ngrams(np.arange(3, dtype=np.uint32)[:, None], np.zeros(3, np.float32))]
    model = BackoffModel.of(build_trie(orders), Words.of(WORDS[:3]))
    save_model(tmp_path / "m", model)
    assert same(load_model(tmp_path / "m"), model)


def test_a_file_truncated_in_its_header(model, tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(path, model)
    path.write_bytes(path.read_bytes()[:100])
    assert read_head(path).is_model_file
    with pytest.raises(InputError, match="m.safetensors is damaged: its header ends at .* but the file at 100"):
        load_model(path)


def test_fields_match_a_trie(model):
    assert {f.name for f in dataclasses.fields(model.trie)} == {*TRIE_ARRAYS, *CODED, FILLED, "starts", "fanout"}


def test_a_text_with_a_brace_at_byte_8(tmp_path):
    """Its first 8 bytes would be a header length beyond any file's."""
    (tmp_path / "text").write_bytes(b"# by us {2024}\n\\data\\\n")
    assert not read_head(tmp_path / "text").is_model_file


def test_where_orders_begin_is_in_the_fingerprint(model):
    other = dataclasses.replace(model.trie, starts=(0, 4, 6, 10, 11))
    assert BackoffModel.of(other, model.words).fingerprint != model.fingerprint
