"""open_model gives the same model from ARPA files and model files, and one line for bad files."""

import gzip
import re

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError, InputWarning
from mgpu_ngram.core.models.model_file import save_model
from mgpu_ngram.core.ngrams.trie import TRIE_ARRAYS
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.kernels.dispatch import on_gpu

ARPA = r"""\data\
ngram 1=4
ngram 2=3
ngram 3=1

\1-grams:
-1	</s>
-99	<s>	-0.5
-2	<unk>
-0.25	the	-0.125

\2-grams:
-0.5	the </s>	-0.75
-0.25	<s> the
-4	the the

\3-grams:
-0.0625	<s> the </s>

\end\
"""


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    return path


def test_from_arpa_by_hand(arpa, device):
    model = open_model(arpa, device)
    assert list(model.words) == ["<unk>", "</s>", "<s>", "the"]
    assert model.trie.starts == (0, 4, 7, 8) and not on_gpu(model.trie.word_G)
    assert model.trie.word_G.tolist() == [0, 1, 2, 3, 3, 1, 3, 1]
    assert model.trie.prob_G.tolist() == [-2, -1, -99, -0.25, -0.25, -0.5, -4, -0.0625]
    assert model.trie.backoff_M.tolist() == [0, 0, -0.5, -0.125, 0, -0.75, 0]


def test_numba_is_imported_while_a_model_file_is_read(arpa, monkeypatch, tmp_path):
    save_model(tmp_path / "model.safetensors", open_model(arpa))
    begun = []
    monkeypatch.setattr("mgpu_ngram.engine.trie.open_model.import_early", lambda: begun.append("numba"))
    open_model(tmp_path / "model.safetensors")
    assert begun == ["numba"]


@pytest.mark.parametrize("fanout", [2, 32])
def test_the_same_from_every_file(fanout, arpa, device, tmp_path):
    watch = Stopwatch(device)
    model = open_model(arpa, device, 3, fanout, watch=watch)
    assert set(watch.seconds) == {"read", "build"}
    packed = tmp_path / "model.arpa.gz"
    packed.write_bytes(gzip.compress(ARPA.encode()))
    save_model(tmp_path / "model.safetensors", model)
    for path in packed, str(tmp_path / "model.safetensors"):
        other = open_model(path, device, fanout=fanout)
        assert other.fingerprint == model.fingerprint and other.words == model.words
        assert all(np.array_equal(getattr(other.trie, n), getattr(model.trie, n)) for n in TRIE_ARRAYS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<s> the </s>", "</s> the </s>", r"line 18: the 3-gram lacks its history, its first 2 words as a 2-gram; add"),
        ("-99", "99", "line 8: '99"),
    ],
)
def test_bad_models(old, new, message, arpa):
    arpa.write_text(ARPA.replace(old, new))
    with pytest.raises(InputError, match=message) as error:
        open_model(arpa)
    assert "\n" not in str(error.value)


def test_an_ngram_that_is_listed_again(arpa):
    """As in KenLM's probing models, the first line counts."""
    once = open_model(arpa)
    text = ARPA.replace("ngram 2=", "ngram 2=1+")
    count = int(re.search(r"ngram 2=1\+(\d+)", text)[1])
    text = re.sub(r"ngram 2=1\+\d+", f"ngram 2={count + 1}", text)
    lines = text.split("\n")
    first = lines.index("\\2-grams:") + 1
    words = lines[first].split("\t")[1]
    arpa.write_text("\n".join([*lines[: first + 1], f"-3\t{words}\t-1", *lines[first + 1 :]]))
    with pytest.warns(InputWarning, match=r"lists 1 2-gram again"):
        assert open_model(arpa).fingerprint == once.fingerprint


def test_invalid_files(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        open_model(tmp_path / "nowhere.arpa")
    with pytest.raises(InputError, match="no"):
        open_model(tmp_path)
