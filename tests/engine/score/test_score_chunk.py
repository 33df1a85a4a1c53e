"""Replicas score sentences like a plain scorer with n-grams in dicts, for every kind of input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.memory.device import to_device as move
from mgpu_ngram.engine.score import replica as replica_module
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

PROBS = {
    "<unk>": -2, "<s>": 0, "</s>": -1, "a": -0.75, "b": -1.25, "<s> a": -0.5, "a b": -0.375, "b </s>": -0.625,
    "a </s>": -0.875, "<s> a b": -0.25,
}  # fmt: skip
BACKOFFS = {"<s>": -0.5, "a": -0.25, "b": -0.125, "<s> a": -0.0625, "a b": -0.03125}
IDS = ["<unk>", "<s>", "</s>", "a", "b"]


def plain_score(words, bos, eos):
    """Return [(log10, words matched)] by the definition."""
    words = [w if w in IDS else "<unk>" for w in words] + ["</s>"] * eos
    history, found = ["<s>"] * bos, []
    for word in words:
        for m in range(len(history), -1, -1):
            ngram = " ".join([*history[len(history) - m :], word])
            if ngram in PROBS:
                skipped = (" ".join(history[len(history) - k :]) for k in range(m + 1, len(history) + 1))
                found.append((PROBS[ngram] + sum(BACKOFFS.get(h, 0) for h in skipped), m + 1))
                break
        history = [*history, word][-2:]
    return found


@pytest.fixture(scope="module", params=["edge", "btree"])
def replica(request, arpa_text, device, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.arpa"
    path.write_text(arpa_text)
    return Replica(open_model(path), device, request.param)


WORDS = st.sampled_from(["a", "b", "c", "<s>", "</s>", "<unk>"])
SENTENCES = st.lists(st.lists(WORDS, max_size=6), max_size=8)


@settings(max_examples=40)
@given(sentences=SENTENCES, bos=st.booleans(), eos=st.booleans())
def test_text_and_ids(replica, device, sentences, bos, eos):
    expected = [plain_score(words, bos, eos) for words in sentences]
    text = "".join("\t" + "  ".join(words) + " \r\n" for words in sentences).encode()
    scores, positions_T = replica.score_text(move(np.frombuffer(text, np.uint8), device), bos, eos)
    check(scores, expected, sentences, eos)
    starts = [text[p:].split()[0].decode() if text[p] != 10 else "\n" for p in to_host(positions_T).tolist()]
    assert starts == [w for words in sentences for w in [*words, "\n"]]
    ids = [IDS.index(w) if w in IDS else 0 for words in sentences for w in words]
    offsets = np.cumsum([0, *map(len, sentences)])
    scores = replica.score_ids(move(np.array(ids, np.int64), device), move(offsets, device), bos, eos)
    check(scores, expected, sentences, eos)
    assert on_gpu(scores.total_S) == (device == "gpu")


def check(scores, expected, sentences, eos):
    ended = to_host(scores.codes_T) == 0
    kept = np.ones(len(ended), bool) if eos else ~ended
    probs, orders = to_host(scores.prob_T)[kept].tolist(), to_host(scores.order_T)[kept].tolist()
    assert list(zip(probs, orders, strict=True)) == [token for tokens in expected for token in tokens]
    assert to_host(scores.ends_S).tolist() == np.cumsum([len(words) + 1 for words in sentences]).tolist()
    assert to_host(scores.total_S).tolist() == [sum(p for p, _ in tokens) for tokens in expected]
    unknown = [
        [p for (p, _), w in zip(tokens, words, strict=False) if w in ("c", "<unk>")]
        for tokens, words in zip(expected, sentences, strict=True)
    ]
    assert to_host(scores.oovs_S).tolist() == list(map(len, unknown))
    assert to_host(scores.oov_total_S).tolist() == list(map(sum, unknown))


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        ([0, 5], [0, 2], "ids are 0 to 5 but must be 0 to 4"),
        ([-1, 4], [0, 2], "ids are -1 to 4 but must be 0 to 4"),
        ([1, 2], [0, 1], "must rise from 0 to the number of ids, 2"),
        ([1, 2], [1, 2], "must rise from 0"),
        ([1, 2], [0, 2, 1, 2], "must rise from 0"),
        ([1, 2], [], "must rise from 0"),
        ([1.5, 2], [0, 2], "ids are float64 of shape .* but ids and offsets must be integers"),
        ([[1, 2]], [0, 1], r"ids are int64 of shape \(1, 2\) but ids and offsets must be integers"),
    ],
)
def test_invalid_ids(replica, device, ids, offsets, message):
    with pytest.raises(InputError, match=message):
        replica.score_ids(move(np.array(ids), device), move(np.array(offsets, np.int64), device))


def test_threads_share_long_streams(arpa, monkeypatch):
    """Streams are cut at sentence ends; a sentence longer than a piece stays whole."""
    monkeypatch.setattr(replica_module, "PIECE_TOKENS", 10)
    rng = np.random.default_rng(0)
    alone, shared = Replica(open_model(arpa), "cpu"), Replica(open_model(arpa), "cpu", threads=3)
    for lengths in [], [0], [0] * 50, [3] * 50, [35, 1, 0, 40, 2], rng.integers(0, 20, 200).tolist():
        ids, offsets = rng.integers(0, 5, sum(lengths)), np.cumsum([0, *lengths])
        for bos, eos in (True, True), (False, False):
            one, several = (vars(replica.score_ids(ids, offsets, bos, eos)) for replica in (alone, shared))
            assert all(np.array_equal(one[name], several[name]) for name in one)
    tail = np.array([4, 5, 0] + [4] * 30, np.uint32)  # the last one is not a whole sentence
    assert np.array_equal(shared.score_codes(tail).prob_T, alone.score_codes(tail).prob_T)
