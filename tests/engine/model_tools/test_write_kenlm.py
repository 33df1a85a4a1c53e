"""KenLM's binary files from models: the bytes that KenLM's build_binary writes, and the same models when read again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram import kenlm
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.kenlm.binary_file import slots_of
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.trie.build import build_trie
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.engine.trie.quantize import quantize

FORMATS = ("kenlm-probing", "kenlm-trie")
every_format = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture
def model(binaries, tmp_path):
    (tmp_path / "model.arpa").write_text(binaries.ARPA)
    return open_model(tmp_path / "model.arpa")


def written(tmp_path, model, format):
    path = tmp_path / "model.binary"
    assert write_kenlm(path, model, format) == path.stat().st_size
    return path.read_bytes()


def test_a_trie_has_the_bytes_that_kenlm_writes(binaries, model, tmp_path):
    assert written(tmp_path, model, "kenlm-trie") == binaries.BINARIES["trie"]


def test_tables_have_the_slots_that_kenlm_writes(binaries, model, tmp_path):
    """KenLM fills the slots in the order of the ARPA file, and its table has none for the n-gram that it filled in."""
    found, expected = written(tmp_path, model, "kenlm-probing"), binaries.BINARIES["probing"]
    bigrams = 136 + 8 + 12 * 9 + 8 * 7
    assert found[136:bigrams] == expected[136:bigrams]
    assert found[bigrams + 16 * 10 + 12 * 4 :] == expected[bigrams + 16 * 9 + 12 * 4 :]
    for content, slots in (found, 10), (expected, 9):
        trigrams = bigrams + 16 * slots
        tables = content[bigrams:trigrams], content[trigrams : trigrams + 12 * 4]
        used = [
            {table[at : at + size] for at in range(0, len(table), size)} - {bytes(size)}
            for table, size in zip(tables, (16, 12), strict=True)
        ]
        assert [len(slots) for slots in used] == [7, 3]
        if content is found:
            ours = used
    assert ours == used


@every_format
def test_scores_of_written_models(binaries, model, tmp_path, format):
    written(tmp_path, model, format)
    drop_in = kenlm.Model(str(tmp_path / "model.binary"))
    for text, words in binaries.SCORES.items():
        assert [(prob, matched) for prob, matched, _ in drop_in.full_scores(text)] == words


@every_format
def test_values_of_codes_are_written(tmp_path, format):
    """Also of an order without n-grams."""
    ids = np.arange(3, dtype=np.uint32)[:, None]
    values = np.array([-1, -2, -3], np.float32)
    levels = [
        Ngrams(ids, values, values),
        Ngrams(np.array([[1, 2]], np.uint32), values[:1], values[:1]),
        Ngrams(np.empty((0, 3), np.uint32), values[:0]),
    ]
    words = Words.of(["<unk>", "<s>", "</s>"])
    model = BackoffModel.of(quantize(build_trie(levels), 4), words)
    written(tmp_path, model, format)
    again = open_model(tmp_path / "model.binary")
    assert again.trie.starts == (0, 3, 4, 4) and again.trie.prob_G[3] == -1 == again.trie.backoff_M[3]
    assert sorted(again.words) == sorted(words)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), V=st.integers(3, 40), order=st.integers(2, 5))
def test_random_models_are_read_again(tmp_path_factory, seed, V, order):
    rng, tmp_path = np.random.default_rng(seed), tmp_path_factory.mktemp("random")
    sets = [[(w,) for w in range(V)]]
    while len(sets) < order:
        longer = {(*sets[-1][i], w) for i, w in rng.integers(0, (len(sets[-1]) or 1, V), (60, 2)).tolist() if sets[-1]}
        sets.append(sorted(longer))
    levels = []
    for n, ngrams in enumerate(sets, 1):
        prob, backoff = -rng.random((2, len(ngrams)), np.float32)
        backoff[rng.random(len(ngrams)) < 0.3] = 0
        ids = np.array(ngrams, np.uint32).reshape(-1, n)
        levels.append(Ngrams(ids, prob, backoff if n < order else None))
    words = Words.of(["<unk>", "<s>", "</s>", *(f"word{v}" for v in range(3, V))])
    model = BackoffModel.of(build_trie(levels), words)
    write_kenlm(tmp_path / "probing", model, "kenlm-probing")
    write_kenlm(tmp_path / "trie", model, "kenlm-trie")
    again = open_model(tmp_path / "probing")
    assert again.words == words
    for name in "word_G", "prob_G", "backoff_M", "first_child_M", "suffix_L":
        assert np.array_equal(getattr(again.trie, name), getattr(model.trie, name)), name
    write_kenlm(tmp_path / "again", open_model(tmp_path / "trie"), "kenlm-trie")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "trie").read_bytes()


def test_models_that_kenlm_has_no_file_for(tmp_path):
    values = np.array([-1, -2, -3], np.float32)
    trie = build_trie([Ngrams(np.arange(3, dtype=np.uint32)[:, None], values)])
    model = BackoffModel.of(trie, Words.of(["<unk>", "<s>", "</s>"]))
    with pytest.raises(InputError, match="the model has order 1, but KenLM's binary models have order 2 or more"):
        write_kenlm(tmp_path / "m.binary", model, "kenlm-trie")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("ngrams", "multiplier", "slots"), [(3, 1.5, 4), (1, 1.5, 2), (20_000_001, 1.5, 30_000_000)])
def test_slots_of_hash_tables_by_hand(ngrams, multiplier, slots):
    """KenLM multiplies in float32, in which 20,000,001 is 20,000,000; one slot more than n-grams is the least."""
    assert slots_of(ngrams, multiplier) == slots
