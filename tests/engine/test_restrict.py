"""Models restricted to the words of a text: on random models, and against KenLM's filter."""

import lzma
import tarfile

import numpy as np
import pytest

from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.open_model import open_model
from mgpu_ngram.engine.restrict import read_allowed, restrict
from mgpu_ngram.engine.write_model import write_model
from mgpu_ngram.kernels.dispatch import to_host

WORDS = Words.of(["<unk>", "<s>", "</s>", "a", "b", "<c>", "d>", "e"])


@pytest.mark.parametrize("mode", ["single", "union"])
@pytest.mark.parametrize(("seed", "whole"), [(1, True), (2, False)])
def test_random_models(seed, whole, mode, tmp_path, plain_backoff, to_device):
    """Lines that matter lie more than 64 lines apart; `<c>` is in all lines, `d>` is a word as others."""
    (tmp_path / "words").write_text("a\tb x\n" + "x\n" * 80 + "b d>\n\nd>")
    plain = plain_backoff.random(seed, words=len(WORDS), whole=whole)
    allowed = read_allowed(str(tmp_path / "words"), WORDS)
    trie, words = restrict(plain.trie(to_device), WORDS, allowed, mode)
    assert list(words) == ["<unk>", "<s>", "</s>", "a", "b", "<c>", "d>"]
    ids = {"a": 3, "b": 4, "d>": 6}
    lines = [{"a", "b", "d>"}] if mode == "single" else [{"a", "b"}, {"b", "d>"}]
    sets = [{0, 1, 2, 5} | {ids[w] for w in line} for line in lines]
    found = plain_backoff.of(trie.map_arrays(to_host))
    assert found.probs == {g: np.float32(p) for g, p in plain.probs.items() if any(set(g) <= s for s in sets)}
    kept = {h: np.float32(plain.backoffs.get(h, 0)) for h in found.probs if len(h) < 4}
    assert found.backoffs == kept


def test_no_words(tmp_path, plain_backoff):
    (tmp_path / "words").write_text("\n")
    plain = plain_backoff.random(1, words=len(WORDS))
    for mode in "single", "union":
        trie, words = restrict(plain.trie(), WORDS, read_allowed(str(tmp_path / "words"), WORDS), mode)
        assert list(words) == ["<unk>", "<s>", "</s>", "<c>"] and trie.order == 4


@pytest.mark.parametrize(("mode", "text"), [("single", "vocab.txt"), ("union", "sent12.txt")])
def test_what_kenlm_keeps(mode, text, shared_data, tmp_path):
    """The same lines of text; KenLM keeps the order of its input."""
    golden = shared_data / "golden" / "tools"
    if not golden.is_dir():
        pytest.skip("shared/data beside this checkout has no golden outputs of tools")
    with tarfile.open(golden / "filter" / "filter.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "a.arpa").write_bytes(lzma.decompress((golden / "mix" / "a.arpa.xz").read_bytes()))
    model = open_model(tmp_path / "a.arpa")
    made = restrict(model.trie, model.words, read_allowed(str(tmp_path / "filter" / text), model.words), mode)
    write_model(tmp_path / "made.arpa", *made, "arpa", 1)

    def lines(path):
        return sorted(line for line in path.read_bytes().split(b"\n") if line)

    assert lines(tmp_path / "made.arpa") == lines(tmp_path / "filter" / f"a.{mode}.arpa")
