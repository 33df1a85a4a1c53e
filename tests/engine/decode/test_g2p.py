"""The model of pronunciation in examples/g2p, and its scripts: training, error rates and the service."""

import contextlib
import hashlib
import http.client
import importlib.util
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.decode.batch import Forced, decode
from mgpu_ngram.engine.decode.output import text_of
from mgpu_ngram.engine.decode.search_options import SearchOptions
from tests.support.slowness import scaled

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
G2P = EXAMPLES / "g2p"


def opened(folder):
    """Return (model, vocabulary of letters, vocabulary of phonemes)."""
    files = (str(folder / f"{side}.json") for side in ("letters", "phonemes"))
    return load_nmt_model(str(folder / "model.npz")), *map(load_nmt_vocabulary, files)


def errors_in_readme():
    """Return {beam: (errors in words.txt, phonemes)}."""
    rows = re.findall(r"^\| (\d+) \|.*\| (\d+) of (\d+) \|$", (G2P / "README.md").read_text("utf-8"), re.MULTILINE)
    return {int(beam): (int(wrong), int(phonemes)) for beam, wrong, phonemes in rows}


def imported(name):
    """Return a script of examples as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(path):
    return path.read_text("utf-8").splitlines()


def edits(a, b):
    """Return the least number of insertions, deletions and replacements from a to b, by the recurrence itself."""
    known = {}

    def least(i, j):
        if not (i and j):
            return i + j
        if (i, j) not in known:
            same = least(i - 1, j - 1) + (a[i - 1] != b[j - 1])
            known[i, j] = min(same, least(i - 1, j) + 1, least(i, j - 1) + 1)
        return known[i, j]

    return least(len(a), len(b))


@pytest.mark.parametrize("beam", [1, 5])
def test_the_error_rate_of_the_model(beam):
    """The words were held out, and their phoneme error rate is the one in README."""
    words, spoken = lines_of(G2P / "words.txt"), [line.split() for line in lines_of(G2P / "words.phonemes")]
    assert all(int(hashlib.sha1(w.replace(" ", "").encode()).hexdigest(), 16) % 1000 < 20 for w in words)
    model, letters, phonemes = opened(G2P)
    ids = [letters.encode(word, len(letters.tokens)) for word in words]
    found = [text_of(best[0], phonemes).split() for best in decode([model], ids, SearchOptions(beam))]
    wrong, all_phonemes = (sum(map(edits, found, spoken)), sum(map(len, spoken)))
    assert (wrong, all_phonemes) == errors_in_readme()[beam]


@pytest.fixture
def error_rate(monkeypatch):
    """Import examples/error_rate.py, as scripts beside it do."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return imported("error_rate.py")


def test_error_rates(error_rate, tmp_path, capsys):
    """By hand, by another program of the recurrence, and without tokens."""
    for count in (edits, error_rate.edits):
        assert (count("kitten", "sitting"), count("", "ab"), count("ab", ""), count("ab", "ab")) == (3, 2, 2, 0)
    spoken = [line.split() for line in lines_of(G2P / "words.phonemes")]
    assert all(error_rate.edits(a, b) == edits(a, b) for a in spoken[:9] for b in spoken)
    (tmp_path / "found").write_text("K AE1 T\n\nD AO1 G Z\n")
    (tmp_path / "wanted").write_text("K AE1 T\nAH0\nD AO1 G\n")
    error_rate.main(str(tmp_path / "found"), str(tmp_path / "wanted"))
    assert capsys.readouterr().out == "2 of 7 tokens, 28.57%; 2 of 3 lines\n"
    with pytest.raises(SystemExit, match="there are 53 results but 3 references; give one for each"):
        error_rate.main(str(G2P / "words.txt"), str(tmp_path / "wanted"))


@pytest.fixture
def service():
    """The port of the service, which runs in threads of this process."""
    serve = imported("g2p/serve.py")
    with serve.Service(G2P, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def answer(port, method, body=None, **headers):
    """Return (status, answer or reason) of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=scaled(100))
    with contextlib.closing(connection):
        connection.request(method, "/", body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode() if response.status == 200 else response.reason


def test_the_service(service):
    """Requests at one time have the answers of the model; wrong ones have one line."""
    words = [word.replace(" ", "") for word in lines_of(G2P / "words.txt")]
    model, letters, phonemes = opened(G2P)
    ids = [letters.encode(" ".join(word), len(letters.tokens)) for word in words]
    best = [text_of(found[0], phonemes) + "\n" for found in decode([model], ids, SearchOptions(5))]
    parts = [slice(i, i + 9) for i in range(0, len(words), 9)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda part: answer(service, "POST", "\n".join(words[part])), parts))
    assert answers == [(200, "".join(best[part])) for part in parts]
    assert answer(service, "POST", f"\n {words[0].upper()}\r\n") == (200, "\n" + best[0])
    assert answer(service, "POST", f"{words[0][0]}\t{words[0][1:]}\x0c\n") == (200, best[0])
    assert answer(service, "POST", "") == (200, "\n")
    assert answer(service, "POST", b"\xff") == (400, "the words are not UTF-8; convert them")
    assert answer(service, "POST", Content_Length="1048577")[0] == 413
    assert answer(service, "POST", Content_Length="many")[0] == 411
    assert answer(service, "GET")[0] == 501


def test_the_training_script(error_rate, tmp_path, monkeypatch, capsys):
    """PyTorch and the decoder compute the same probabilities and the same words from the files that it writes."""
    torch = pytest.importorskip("torch", reason="the training script needs PyTorch")
    script = imported("train_g2p.py")
    pairs = zip(lines_of(G2P / "words.txt"), lines_of(G2P / "words.phonemes"), strict=True)
    entries = [f"{word.replace(' ', '')} {spoken}" for word, spoken in pairs]
    held_in = [f"{a}{entry} # of tests" for entry in entries for a in "fn"]
    dictionary = tmp_path / "some.dict"
    dictionary.write_text("\n".join([*entries, *held_in, "read(2) R EH1 D", "isn't IH1 Z", ""]))
    monkeypatch.setattr(sys, "argv", ["", str(dictionary), "-o", str(tmp_path), "--epochs", "1", "--state", "12"])
    script.main()
    assert re.fullmatch(r"epoch 1: loss \d\.\d+, dev \d\.\d+, PER \d+\.\d\d%\n", capsys.readouterr().out)
    model, letters, phonemes = opened(tmp_path)
    test = {name: lines_of(tmp_path / f"test.{name}") for name in ("words", "phonemes")}
    assert len(test["words"]) >= len(entries) and set(lines_of(G2P / "words.txt")) <= set(test["words"])
    with np.load(tmp_path / "model.npz") as arrays:
        trained = script.Model(len(letters.tokens), len(phonemes.tokens), script.EMBEDDING, 12)
        trained.load_state_dict({name: torch.tensor(arrays[name]) for name in arrays.files})
    words = [letters.encode(word, len(letters.tokens)) for word in test["words"]]
    spoken = [phonemes.encode(line, len(phonemes.tokens)) for line in test["phonemes"]]
    forced = decode([model], words, forced=Forced(targets=[ids[:-1] for ids in spoken]))
    free = decode([model], words, SearchOptions(allow_unk=True))
    for i, (word, line) in enumerate(zip(words, spoken, strict=True)):
        with torch.no_grad():
            loss = trained.loss(torch.tensor(word)[None], torch.tensor(line)[None]).item()
        assert -forced[i][0].cost == pytest.approx(loss * len(line), rel=1e-5)
        assert [x for x in free[i][0].words if x] == trained.greedy(torch.tensor(word)[None])[0]
