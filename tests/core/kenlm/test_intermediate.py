"""KenLM's intermediate models: the model of the ARPA file that lmplz wrote beside one, and damaged files."""

import lzma
import tarfile

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.file_kind import identify_file
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.engine.trie.open_model import open_model


@pytest.fixture
def by_hand(tmp_path):
    """Return the path of a model of <unk>, <s>, </s> and a, with the pair a </s>."""
    (tmp_path / "m.kenlm_intermediate").write_text("KenLM intermediate binary file\nCounts 4 1\nPayload pb\n")
    (tmp_path / "m.vocab").write_bytes(b"<unk>\0<s>\0</s>\0a\0")
    words = [(0, -2.0, 0.0), (1, 0.0, -0.5), (2, -1.0, 0.0), (3, -0.5, -0.25)]
    record = [("id", "<u4"), ("prob", "<f4"), ("backoff", "<f4")]
    (tmp_path / "m.1").write_bytes(np.array(words, record).tobytes())
    (tmp_path / "m.2").write_bytes(np.array([3, 2], "<u4").tobytes() + np.array([-0.125, 0], "<f4").tobytes())
    return tmp_path / "m.kenlm_intermediate"


def test_by_hand(by_hand, device):
    model = open_model(by_hand, device)
    assert list(model.words) == ["<unk>", "<s>", "</s>", "a"] and model.trie.starts == (0, 4, 5)
    assert model.trie.prob_G.tolist() == [-2, 0, -1, -0.5, -0.125]
    assert model.trie.backoff_M.tolist() == [0, -0.5, 0, -0.25] and model.trie.first_child_M.tolist() == [4, 4, 4, 4, 5]
    found = identify_file(by_hand)
    assert (found["format"], found["orders"]) == ("intermediate model of KenLM", [4, 1])
    assert identify(by_hand).startswith(f"{found['size_bytes']:,} bytes of ")


def test_what_lmplz_wrote(shared_data, tmp_path):
    golden = shared_data / "golden" / "tools"
    if not golden.is_dir():
        pytest.skip("shared/data beside this checkout has no golden outputs of tools")
    with tarfile.open(golden / "interpolate" / "intermediate_a.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "a.arpa").write_bytes(lzma.decompress((golden / "mix" / "a.arpa.xz").read_bytes()))
    made, expected = open_model(tmp_path / "kl" / "im.a.kenlm_intermediate"), open_model(tmp_path / "a.arpa")
    assert made.trie.starts == expected.trie.starts and set(made.words) == set(expected.words)

    def named(model):
        ids = model.words
        parents = np.searchsorted(model.trie.first_child_M, np.arange(len(model.trie)), "right") - 1
        names = [ids.word(w) for w in range(len(ids))]
        for g in range(len(ids), len(model.trie)):
            names.append(f"{names[parents[g]]} {ids.word(model.trie.word_G[g])}")
        return dict(zip(names, model.trie.prob_G.tolist(), strict=True)), dict(
            zip(names, model.trie.backoff_M.tolist(), strict=False)
        )

    for found, wanted in zip(named(made), named(expected), strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("m.2", lambda data: None, "m.2', which is missing; copy it beside the other files"),
        ("m.vocab", lambda data: None, "m.vocab', which is missing"),
        ("m.1", lambda data: data[:-4], "m.1' has 44 bytes, but 4 1-grams take 48; copy it again"),
        ("m.vocab", lambda data: data[:-2], "does not hold 4 words that end with NUL, <unk> first; copy it again"),
        ("m.vocab", lambda data: b"<UNK>\0" + data[6:], "does not hold 4 words that end with NUL, <unk> first"),
        ("m.kenlm_intermediate", lambda data: data.replace(b"Counts", b"Count"), "is damaged: it has no line 'Counts"),
        ("m.kenlm_intermediate", lambda data: data.replace(b"pb", b"q"), "is damaged: it has no line 'Counts"),
        (
            "m.2",
            lambda data: b"\x04" + data[1:],
            "m.2' is damaged: it has word id 4 but ids are below 4; copy it again",
        ),
        ("m.1", lambda data: data[:12] * 2 + data[24:], "is damaged: it does not list each of 4 words once"),
    ],
)
def test_damaged_files(name, change, told, by_hand):
    path = by_hand.with_name(name)
    data = change(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(InputError) as error:
        open_model(by_hand)
    assert told in str(error.value) and "\n" not in str(error.value)
