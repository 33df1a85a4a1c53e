"""The head of a model file gives its kind and identity; it is read once, however the model is used."""

import builtins
import os
import re
import threading

import pytest

import mgpu_ngram as ng
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models import model_head
from mgpu_ngram.core.models.model_file import save_model
from mgpu_ngram.core.models.model_head import read_head
from mgpu_ngram.core.storage.file_heads import ARPA, KENLM, SAFETENSORS
from mgpu_ngram.engine.trie.open_model import open_model


@pytest.fixture
def files(binaries, put):
    """The paths of one model in four formats."""
    arpa = put(binaries.ARPA.encode(), "model.arpa")
    saved = arpa.with_suffix(".safetensors")
    save_model(saved, open_model(arpa))
    return {
        ARPA: arpa,
        SAFETENSORS: saved,
        "probing": put(binaries.BINARIES["probing"], "probing"),
        "trie": put(binaries.BINARIES["trie"], "trie"),
    }


def test_kinds(files):
    heads = {kind: read_head(path) for kind, path in files.items()}
    assert [head.kind for head in heads.values()] == [ARPA, SAFETENSORS, KENLM, KENLM]
    assert [head.is_model_file for head in heads.values()] == [False, True, False, False]
    assert [head.is_probing for head in heads.values()] == [False, False, True, False]
    assert heads["trie"].kenlm.order == 3 and heads[ARPA].kenlm is None
    assert read_head(heads[ARPA]) is heads[ARPA]
    assert heads[SAFETENSORS].identity == ng.Model.load(files[SAFETENSORS]).arrays.fingerprint
    found = os.stat(files[ARPA])
    assert heads[ARPA].identity == f"{found.st_size:,} bytes of {found.st_mtime_ns}"


def test_a_path_of_the_users_folder(files, monkeypatch):
    monkeypatch.setenv("HOME", str(files[ARPA].parent))
    assert str(read_head(f"~/{files[ARPA].name}").path) == str(files[ARPA])
    assert str(ng.Model.load(f"~/{files[ARPA].name}").path) == str(files[ARPA])


@pytest.mark.parametrize("kind", [ARPA, SAFETENSORS, "probing", "trie"])
def test_a_model_reads_its_head_once(files, kind, monkeypatch):
    read = []

    def count(path, mode):
        read.append(path)
        return builtins.open(path, mode)

    monkeypatch.setattr(model_head, "open", count, raising=False)
    model = ng.Model.load(files[kind], device="cpu")
    assert read == [files[kind]] and model.path == files[kind]
    assert model.identity == model_head.identify(files[kind])


def test_paths_without_a_file(tmp_path):
    for path in tmp_path / "none", tmp_path:
        head = read_head(path)
        assert (head.head, head.kind, head.is_model_file, head.is_probing) == (b"", "", False, False)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: cannot be read .*; give a model file, an ARPA"):
            _ = head.identity
    with pytest.raises(InputError, match="path is 5 but must be a path"):
        read_head(5)


def test_a_pipe_is_not_read(tmp_path):
    """Its first bytes would be missing when the model is read."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"\\data\\\n",))
    writer.start()
    assert read_head(tmp_path / "pipe").head == b""
    assert (tmp_path / "pipe").read_bytes() == b"\\data\\\n"
    writer.join()
