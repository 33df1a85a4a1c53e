"""Next words of `ng.Model`: by hand, compared with golden rows and with scores of single words, and refusals."""

import itertools
import lzma
import os
import signal
import threading
from collections import Counter, OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from distributed import Client, LocalCluster

import mgpu_ngram as ng
from mgpu_ngram.api import next_words
from mgpu_ngram.core.models.compact import load_compact, save_compact
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.row_options import BLOCK_SHARE, FOUND_BYTES, ROW_DTYPES, SCALES, RowOptions, block_rows
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.distribution import histories as encoding
from mgpu_ngram.engine.distribution import next_word as engine
from mgpu_ngram.engine.distribution import row_maker
from mgpu_ngram.engine.distribution import sample_words as sampling
from mgpu_ngram.engine.trie import replicas
from mgpu_ngram.engine.trie.build import build_trie
from mgpu_ngram.jobs.convert import run as convert
from mgpu_ngram.kernels.dispatch import on_gpu, to_host
from tests.support.slow_cases import first_fast, slow_cases

INF = np.inf
AFTER_A = [-2.25, -0.25, -0.875, -1, -0.375]  # <unk>, <s>, </s>, a, b
SINGLE = [-2, 0, -1, -0.75, -1.25]


@pytest.fixture
def model(arpa, device):
    return ng.Model.load(arpa, device)


def host(made):
    """Return a result of a model, in host memory."""
    return tuple(map(to_host, made)) if isinstance(made, tuple) else to_host(made)


def log10_rows(model, histories, **how):
    return host(model.distribution(histories, scale="log10", **how)).tolist()


def test_by_hand(model, device):
    rows = model.distribution(["<s> a", "b", ""], scale="log10")
    assert on_gpu(rows) == (device == "gpu") and rows.shape == (3, 3, 5) and rows.dtype == np.float32
    after_b = [-2.125, -0.125, -0.625, -0.875, -1.375]
    assert host(rows).tolist() == [
        [SINGLE, AFTER_A, [-2.3125, -0.3125, -0.9375, -1.0625, -0.25]],
        [SINGLE, after_b, after_b],
        [SINGLE, SINGLE, SINGLE],
    ]


def test_stored_by_hand(model):
    nothing = [-INF] * 5
    after_a = [-INF, -INF, -0.875, -INF, -0.375]
    rows = log10_rows(model, ["<s> a", "b", ""], mode="stored")
    assert rows == [
        [SINGLE, after_a, [*nothing[:4], -0.25]],
        [SINGLE, [-INF, -INF, -0.625, -INF, -INF], nothing],
        [SINGLE, nothing, nothing],
    ]
    ln = host(model.distribution(["<s> a", "b", ""], mode="stored", scale="ln"))
    np.testing.assert_allclose(ln, np.log(10) * np.array(rows), rtol=3e-7)
    probs = host(model.distribution("<s> a", mode="stored"))
    assert probs.tolist() == [[[np.float32(10**x) for x in row] for row in rows[0]]]


def test_histories_of_all_kinds(model, to_device):
    """Strings, words and ids; long histories are cut, unknown words are <unk>, and <s> may precede a history."""
    expected = log10_rows(model, ["<s> a", "<s> a"])
    ids = np.array([1, 3])
    for histories in (
        [["<s>", "a"], b"b <s> a"], [ids, "<s>\ta\n"], [[b"<s>", "a"], to_device(ids)], np.array([ids, ids], np.uint8),
        to_device(np.array([[4, *ids]] * 2)),
    ):  # fmt: skip
        assert log10_rows(model, histories) == expected
    assert log10_rows(model, ["a", "a"], bos=True) == expected
    assert log10_rows(model, "<s> a") == expected[:1]
    assert log10_rows(model, ["zebra", ["zebra"], np.array([0]), "<unk>"]) == [[SINGLE] * 3] * 4
    assert log10_rows(model, [[], np.array([], np.int64), ""]) == [[SINGLE] * 3] * 3


def test_orders_scales_and_types(model):
    """Each setting changes only its own property."""
    log10 = host(model.distribution(["<s> a", "b a"], scale="log10"))
    for orders, chosen in (
        ("all", [0, 1, 2]), ("max", [2]), (2, [1]), ((3, 1), [0, 2]), ("1,2", [0, 1]), (np.array([1, 3]), [0, 2]),
    ):  # fmt: skip
        assert np.array_equal(host(model.distribution(["<s> a", "b a"], orders, scale="log10")), log10[:, chosen])
    ln = host(model.distribution(["<s> a", "b a"], scale="ln"))
    np.testing.assert_allclose(ln, log10 * np.log(10), rtol=3e-7)
    prob = host(model.distribution(["<s> a", "b a"]))
    np.testing.assert_allclose(prob, 10.0**log10, rtol=5e-7)
    half = host(model.distribution(["<s> a", "b a"], dtype="float16"))
    assert half.dtype == np.float16 and np.array_equal(half, prob.astype(np.float16))
    brain = host(model.distribution(["<s> a", "b a"], dtype="bfloat16"))
    widened = (brain.astype(np.uint32) << 16).view(np.float32)
    assert brain.dtype == np.uint16 and np.abs(widened / prob - 1).max() <= 2**-8


def test_the_score_of_every_word(model):
    """A row of the highest order in log10 equals the scores of all words, bit for bit."""
    words = list(model.vocabulary)
    for history in ["a b a", "b", "", "zebra a"]:
        scored = [model.full_scores(f"{history} {word}", eos=False)[-1][0] for word in words]
        assert log10_rows(model, history, orders="max", bos=True) == [[scored]]
    scored = np.array([model.full_scores(word, bos=False, eos=False)[0][0] for word in words], np.float32)
    rows = host(model.distribution("", scale="log10"))[0]
    assert [row.tobytes() for row in rows] == [scored.tobytes()] * 3  # <s> has -0


def test_top_k(model):
    """Ties by id; never <s>, which has probability 1 in lmplz's models."""
    ids, values = host(model.distribution(["<s> a", "b"], top_k=2, scale="log10"))
    assert ids.tolist() == [[[3, 2], [4, 2], [4, 2]], [[3, 2], [2, 3], [2, 3]]]
    assert values.tolist() == [
        [[-0.75, -1], [-0.375, -0.875], [-0.25, -0.9375]],
        [[-0.75, -1], *[[-0.625, -0.875]] * 2],
    ]
    ids, values = host(model.distribution("<s> a", top_k=3, mode="stored"))
    assert ids.tolist() == [[[3, 2, 4], [4, 2, -1], [4, -1, -1]]]
    assert values[0, 1:].tolist() == [
        [np.float32(10**-0.375), np.float32(10**-0.875), 0],
        [np.float32(10**-0.25), 0, 0],
    ]


MANY = 300


@pytest.fixture(scope="module")
def many_words(tmp_path_factory):
    """The path of a bigram model of 300 words in random order; most have probability 0 in float32, many are equal."""
    rng = np.random.default_rng(0)
    words = ["<unk>", "w1", "<s>", "</s>", *(f"w{i}" for i in range(4, MANY))]
    probs = -rng.integers(500, 990, MANY) / 10
    probs[:20] = -rng.integers(10, 15, 20) / 10
    probs = probs[rng.permutation(MANY)]
    pairs = [(words[1], w, -rng.integers(10, 30) / 10) for w in words[::3]]
    path = tmp_path_factory.mktemp("many") / "model.arpa"
    unigrams = [f"{p:.1f} {w} -0.5" for p, w in zip(probs, words, strict=True)]
    model_of(path, [unigrams, [f"{p:.1f} {a} {b}" for a, b, p in pairs]], "cpu")
    return path


def test_the_greatest_of_many_words(many_words, device):
    """The result equals sorted whole rows, on each scale: words of equal probability may differ in log10."""
    model = ng.Model.load(many_words, device)
    for scale in ("prob", "log10", "ln", "prob"):
        rows = host(model.distribution(["w1", "w9"], scale=scale))
        rows[:, :, model.vocabulary.id("<s>")] = -INF
        best = (-rows).argsort(axis=2, kind="stable")
        for k in (1, 30, MANY):
            ids, values = host(model.distribution(["w1", "w9"], top_k=k, scale=scale))
            k = min(k, MANY - 1)
            assert np.array_equal(ids[:, :, :k], best[:, :, :k])
            assert np.array_equal(values[:, :, :k], np.take_along_axis(rows, best[:, :, :k], axis=2))


def test_the_greatest_without_bos():
    """A model from arrays may lack <s>: then no word is left out."""
    unigrams = Ngrams(np.array([[0], [1]], np.uint32), np.array([-0.25, -0.5], np.float32))
    model = ng.Model(BackoffModel.of(build_trie([unigrams]), Words.of(["<unk>", "a"])), "cpu")
    assert model.distribution("a", top_k=2)[0].tolist() == [[[0, 1]]] and model.sample("a", temperature=0) == [0]


def test_two_threads(many_words, device):
    """Each thread gets the values of its own scale and their greatest, from one shared replica."""
    model, barrier, wrong = ng.Model.load(many_words, device), threading.Barrier(3), []
    expected = {s: host(ng.Model.load(many_words, device).distribution("w1", top_k=9, scale=s)) for s in SCALES}

    def ask(scale):
        barrier.wait()
        replica = model._next_word_model
        for _ in range(30):
            made = host(model.distribution("w1", top_k=9, scale=scale))
            wrong.extend(scale for a, b in zip(made, expected[scale], strict=True) if not np.array_equal(a, b))
        if model._next_word_model is not replica:
            wrong.append("replica")

    threads = [threading.Thread(target=ask, args=(scale,)) for scale in SCALES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_share_histories(many_words, monkeypatch):
    """Rows, greatest words and sampled words equal those of one thread, for any division."""
    rng = np.random.default_rng(0)
    histories = [" ".join(rng.choice(["w1", "w4", "w9", "x"], rng.integers(0, 4))) for _ in range(50)]
    model = ng.Model.load(many_words, "cpu")

    def made(threads):
        model._next_word_model.threads = threads
        best = np.stack(model.distribution(histories, top_k=3))
        return model.distribution(histories).tobytes(), best.tobytes(), model.sample(histories, seed=3).tolist()

    expected = made(1)
    for module in row_maker, sampling:
        monkeypatch.setattr(module, "MIN_PIECE_ROWS", 2)
    for module in engine, sampling:
        monkeypatch.setattr(module, "MIN_PIECE_HISTORIES", 3)
    assert all(made(threads) == expected for threads in (2, 3, 7, 64))


def test_backoffs_of_another_scale(model):
    """Backoffs are converted once, and compact blocks hold probabilities, not log10."""
    replica = model._next_word_model
    found = replica.find(*replica.encoder.histories([["a", "b"]]), scale="prob")
    for make in (replica.compact, lambda found: replica.dense(found, RowOptions.of(3, scale="ln"))):
        with pytest.raises(ValueError, match="backoffs are in prob but .* is requested"):
            make(found)


def test_log10_values_need_no_further_memory(model):
    """They also do not need the memory of the other scale."""
    replica = model._next_word_model
    prob = replica.scaled("prob")
    assert replica.scaled("log10").value_G is replica.prob_G and replica.scaled("prob") is prob
    assert replica.scaled("ln") is not prob


def test_rows_begin_at_multiples_of_128_bytes(model):
    for dtype in ROW_DTYPES:
        rows = model.distribution(["<s> a", "b"], dtype=dtype)
        assert all(stride % 128 == 0 for stride in rows.strides[:2])


def test_matrices_of_any_layout(model, to_device, copy_slices):
    """Large matrices, too, which are copied in slices."""
    copy_slices(64)
    ids = np.array([[4, 2, 1, 3], [0, 1, 4, 4], [3, 3, 3, 3]] * 9)
    expected = log10_rows(model, [" ".join(["<unk>", "<s>", "</s>", "a", "b"][i] for i in row) for row in ids])
    wide = np.concatenate([ids, ids], axis=1)
    for matrix in (ids, np.asfortranarray(ids), wide[:, 4:], wide[:, ::-1][:, ::-1], ids.astype(np.int32)):
        assert log10_rows(model, matrix) == log10_rows(model, to_device(matrix)) == expected
        blocks = [host(block) for block in model.iter_distributions(matrix, scale="log10", rows=5)]
        assert [len(block) for block in blocks] == [5] * 5 + [2] and np.concatenate(blocks).tolist() == expected
    assert log10_rows(model, np.zeros((2, 0), int)) == log10_rows(model, ["", ""])


def test_beginnings_of_sentences(model):
    """<s> precedes every history, for every result; for histories of order - 1 words it changes nothing."""
    histories, longer = ["a", "", "a b", "b a b"], ["<s> a", "<s>", "<s> a b", "<s> b a b"]
    expected = host(model.distribution(longer))
    assert np.array_equal(host(model.distribution(histories, bos=True)), expected)
    assert not np.array_equal(host(model.distribution(histories)), expected)
    assert np.array_equal(np.concatenate([host(b) for b in model.iter_distributions(histories, bos=True)]), expected)
    assert np.array_equal(np.concatenate(list(model.map_distributions(host, histories, bos=True))), expected)
    [block] = model.iter_distributions(histories, bos=True, compact=True)
    assert np.array_equal(host(ng.compact.densify(block, model.device)), expected)
    drawn = [host(model.sample([h] * 400, seed=3, bos=bos)).tolist() for h, bos in (("<s> a", False), ("a", True))]
    assert drawn[0] == drawn[1] != host(model.sample(["a"] * 400, seed=3)).tolist()


def test_positions_of_a_text_by_hand(model, to_device):
    """Positions before each word, with bos also before the end of each line; or of whole lines."""
    text_B = to_device(np.frombuffer(b"a b\n\n zebra\n", np.uint8))
    for bos, positions, expected in (
        (True, "every", range(6)), (False, "every", [0, 1, 4]), (True, "last", [2, 3, 5]), (False, "last", [2, 3, 5]),
    ):  # fmt: skip
        codes_T, positions_H = model._next_word_model.encoder.text(text_B, bos, positions)
        assert host(codes_T).tolist() == [4, 5, 0, 0, 1, 0] and host(positions_H).tolist() == list(expected)


def test_blocks(model):
    """Blocks of any size concatenate to the whole; blocks for this CPU or GPU can be compact, too."""
    histories = ["<s> a", "b", "", "a b", "zebra"]
    whole = host(model.distribution(histories))
    for rows in (1, 2, 5, None):
        blocks = [host(block) for block in model.iter_distributions(histories, rows=rows)]
        assert [len(block) for block in blocks] == {1: [1] * 5, 2: [2, 2, 1], 5: [5], None: [5]}[rows]
        assert np.array_equal(np.concatenate(blocks), whole)
        compact = model.iter_distributions(histories, rows=rows, compact=True)
        made = [host(ng.compact.densify(block, model.device)) for block in compact]
        assert np.array_equal(np.concatenate(made), whole)
        tops = list(zip(*map(host, model.iter_distributions(histories, rows=rows, top_k=2)), strict=True))
        assert [np.concatenate(t).tolist() for t in tops] == [
            t.tolist() for t in host(model.distribution(histories, top_k=2))
        ]
        means = list(model.map_distributions(lambda block: float(block.sum()), histories, rows=rows))
        np.testing.assert_allclose(sum(means), whole.sum(), rtol=1e-6)


def test_blocks_follow_the_free_memory(model, monkeypatch):
    row_bytes = 3 * 128 + 3 * FOUND_BYTES
    monkeypatch.setattr(next_words, "free_bytes", lambda device: 2.5 * row_bytes / BLOCK_SHARE)
    assert [len(block) for block in model.iter_distributions(["a"] * 5)] == [2, 2, 1]
    monkeypatch.setattr(next_words, "free_bytes", lambda device: 0)
    assert [len(block) for block in model.iter_distributions(["a"] * 2)] == [1, 1]


def test_rows_of_a_block_by_hand():
    """1,000 words: 2 orders of 2,000 or 4,000 bytes, padded to a multiple of 128, or of 7 pairs of 8 bytes.

    Each history adds its found nodes, of 3 orders.
    """
    found = 3 * FOUND_BYTES
    for how, row_bytes, apart in (
        ({"dtype": "float16"}, 4000, 4096), ({"dtype": "bfloat16"}, 4000, 4096), ({}, 8000, 8192),
        ({"top_k": 7}, 112, 112),
    ):  # fmt: skip
        options = RowOptions.of(5, (2, 3), **how)
        assert options.row_bytes(1000) == row_bytes
        assert block_rows(options, 1000, "cpu", 4 * (10 * (apart + found) + 9)) == 10
    dense, best = RowOptions.of(3), RowOptions.of(3, "max", top_k=1)
    for device, most_bytes in ("cpu", 64 << 20), ("gpu", 4 << 30):
        assert block_rows(dense, 1 << 20, device, 1 << 60) == most_bytes // ((12 << 20) + found)
        assert block_rows(best, 1 << 20, device, 1 << 60) == min(most_bytes // (8 + found), 1 << 20)


def test_compact_blocks(model, tmp_path):
    """They hold each run of children once, and files hold them unchanged."""
    histories = ["<s> a", "b a", "b"]
    [block] = model.iter_distributions(histories, compact=True)
    assert (len(block), block.order) == (3, 3)
    assert block.word_C.tolist() == [2, 4, 2, 4] and block.prob_C.tolist() == [-0.875, -0.375, -0.625, -0.25]
    assert block.backoff_HK.tolist() == [[-0.25, -0.0625], [-0.25, 0], [-0.125, 0]]
    assert block.first_HK.tolist() == [[0, 3], [0, 0], [2, 0]] and block.end_HK.tolist() == [[2, 4], [2, 0], [3, 0]]
    assert block.size_bytes == 3 * 6 * 4 + 2 * 4 * 4
    save_compact(tmp_path / "block.safetensors", block)
    loaded = load_compact(tmp_path / "block.safetensors", block.prob_V)
    for device in {model.device, "cpu"}:
        for how in {"scale": "log10"}, {"mode": "stored"}, {"orders": "max", "dtype": "float16"}, {"scale": "ln"}:
            expected = host(model.distribution(histories, **how))
            assert np.array_equal(host(ng.compact.densify(loaded, device, **how)), expected)
            parts = [host(ng.compact.densify(part, device, **how)) for part in loaded.parts(2)]
            assert np.array_equal(np.concatenate(parts), expected)
    [block] = model.iter_distributions(["zebra", ""], compact=True)  # nothing was found
    assert block.word_C.tolist() == [] and block.first_HK.dtype == np.uint32
    assert np.array_equal(host(ng.compact.densify(block, model.device)), host(model.distribution(["zebra", ""])))
    with pytest.raises(ng.InputError, match=r"lacks the probabilities of single words; add them with"):
        ng.compact.densify(load_compact(tmp_path / "block.safetensors"), "cpu")


def test_invalid_arguments_of_densify(model, to_device):
    [block] = model.iter_distributions(["<s> a", "b"], compact=True)
    for how in {"orders": 2}, {"orders": (1, 3), "mode": "stored", "scale": "ln"}, {"dtype": "bfloat16"}:
        expected = host(model.distribution(["<s> a", "b"], **how))
        assert np.array_equal(host(ng.compact.densify(block, model.device, **how)), expected)
        out = to_device(np.zeros_like(expected))
        assert ng.compact.densify(block, model.device, **how, out=out) is out
        assert np.array_equal(host(out), expected)


def test_files_without_a_block(model, arpa, tmp_path):
    path = tmp_path / "block.safetensors"
    [block] = model.iter_distributions(["<s> a", "b"], compact=True)
    save_compact(path, block)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ng.InputError, match="damaged|checksum"):
        load_compact(path)
    assert len(load_compact(path, verify=False)) == 2
    convert.build(convert.ConvertConfig(str(arpa)), model_path := tmp_path / "m.safetensors")
    with pytest.raises(ng.InputError, match="holds other arrays, not compact distributions; give a file of"):
        load_compact(model_path)


def test_a_model_without_backoffs(arpa, tmp_path, device):
    """It holds only stored n-grams and takes less memory; it cannot smooth or score."""
    path = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(arpa), backoff=False), path)
    model, whole = ng.Model.load(path, device), ng.Model.load(arpa, device)
    stored = host(whole.distribution(["<s> a", "b"], mode="stored"))
    assert np.array_equal(host(model.distribution(["<s> a", "b"], mode="stored")), stored)
    [block] = model.iter_distributions(["<s> a", "b"], mode="stored", compact=True)
    assert np.array_equal(host(ng.compact.densify(block, device, mode="stored")), stored)
    save_compact(tmp_path / "block.safetensors", block)
    loaded = load_compact(tmp_path / "block.safetensors", block.prob_V)
    for ask in (
        lambda: ng.compact.densify(loaded, device),
        lambda: model.distribution("a"),
        lambda: model.distribution("a", top_k=1),
        lambda: model.sample("a"),
        lambda: ng.compact.densify(block, device),
    ):
        with pytest.raises(ng.InputError, match="has no backoffs, which smoothed rows need; make it again without"):
            ask()
    with pytest.raises(ng.InputError, match="no backoffs, which scores need"):
        model.score("a")


def test_a_quantised_model(arpa, tmp_path, device):
    """Its rows hold the decoded values: with so few n-grams, the same values."""
    path = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(arpa), quantize=8), path)
    model, whole = ng.Model.load(path, device), ng.Model.load(arpa, device)
    assert log10_rows(model, ["<s> a", "b"]) == log10_rows(whole, ["<s> a", "b"])
    [block] = model.iter_distributions(["<s> a", "b"], compact=True)
    assert host(ng.compact.densify(block, device, scale="log10")).tolist() == log10_rows(whole, ["<s> a", "b"])


LACKING = [  # b c, c d and b c d are filled, because longer n-grams end with them
    ["-2 <unk> 0", "0 <s> -0.5", "-1 </s> 0", "-0.75 a -0.25", "-1.25 b -0.125", "-1.5 c -0.5", "-1.75 d 0"],
    ["-0.375 a b -0.0625", "-0.875 b a 0", "-99 b d 0", "-0.625 c a 0"],
    ["-0.5 a b a 0", "-0.25 a b c -0.03125"],
    ["-0.125 a b c d"],
]
A, B, C, D = 3, 4, 5, 6
SINGLES = [-2, 0, -1, -0.75, -1.25, -1.5, -1.75]
AFTER = {  # LACKING has these n-grams
    "b": {A: -0.875, D: -99}, "c": {A: -0.625}, "a b": {A: -0.5, C: -0.25}, "b c": {}, "c d": {}, "a b c": {D: -0.125},
}  # fmt: skip
STORED = {  # of orders 2, 3 and 4
    "a b": [AFTER["b"], AFTER["a b"], {}], "b": [AFTER["b"], {}, {}], "b c": [AFTER["c"], AFTER["b c"], {}],
    "a b c": [AFTER["c"], AFTER["b c"], AFTER["a b c"]], "b c d": [{}, AFTER["c d"], {}],
}  # fmt: skip


@pytest.fixture(params=[3, 4])
def lacking(request, tmp_path, device):
    """A model in which, of order 3, only b c is missing."""
    orders = LACKING[: request.param]
    if request.param == 3:
        orders = [*orders[:2], [line.rsplit(" ", 1)[0] for line in orders[2]]]
    return model_of(tmp_path / "lacking.arpa", orders, device)


def stored_rows(order):
    """Return (histories, orders, 7) float32, log10."""
    rows = np.full((len(STORED), order, 7), -INF, np.float32)
    rows[:, 0] = SINGLES
    for h, children in enumerate(STORED.values()):
        for n, found in enumerate(children[: order - 1], 1):
            rows[h, n, list(found)] = list(found.values())
    return rows


def test_filled_ngrams_are_not_stored(lacking):
    order = lacking.arrays.trie.order
    assert lacking.arrays.trie.filled_F.tolist() == {3: [9], 4: [9, 12, 15]}[order]
    log10 = stored_rows(order)
    probs = (10 ** log10.astype(float)).astype(np.float32)  # 10^-99 is 0
    bits, ln = probs.view(np.uint32), (log10.astype(float) * np.log(10)).astype(np.float32)
    expected = {
        ("log10", "float32"): log10, ("prob", "float32"): probs, ("prob", "float16"): probs.astype(np.float16),
        ("prob", "bfloat16"): ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16),
        ("log10", "float16"): log10.astype(np.float16), ("ln", "float32"): ln,
    }  # fmt: skip
    for (scale, dtype), rows in expected.items():
        how = {"mode": "stored", "scale": scale, "dtype": dtype}
        assert np.array_equal(host(lacking.distribution(list(STORED), **how)), rows)
        assert np.array_equal(host(lacking.distribution(list(STORED), "max", **how)), rows[:, -1:])
        blocks = [host(block) for block in lacking.iter_distributions(STORED, rows=2, **how)]
        assert [len(block) for block in blocks] == [2, 2, 1] and np.array_equal(np.concatenate(blocks), rows)
        sums = lacking.map_distributions(lambda block: host(block).copy(), STORED, rows=3, **how)
        assert np.array_equal(np.concatenate(list(sums)), rows)


def test_filled_ngrams_are_not_among_the_greatest(lacking):
    """A stored probability of 10^-99 is among them, though it is 0 in float32."""
    order = lacking.arrays.trie.order
    for scale in "prob", "log10":
        ids, values = host(lacking.distribution(list(STORED), top_k=3, mode="stored", scale=scale))
        for h, children in enumerate(STORED.values()):
            assert ids[h, 0].tolist() == [A, 2, B]  # never <s>
            for n, found in enumerate(children[: order - 1], 1):
                best = sorted(found, key=lambda v: -found[v])
                nothing = 0 if scale == "prob" else -INF
                assert ids[h, n].tolist() == best + [-1] * (3 - len(best))
                wanted = [found[v] if scale == "log10" else np.float32(10.0 ** found[v]) for v in best]
                assert values[h, n].tolist() == wanted + [nothing] * (3 - len(best))
    ids, _ = host(lacking.distribution(["b", "b c"], (2, 3), top_k=1, mode="stored"))
    assert ids.tolist() == [[[A], [-1]], [[A], [-1]]]


def test_filled_ngrams_back_off(lacking):
    """Smoothed rows, scores and samples are the same as without filling."""
    order = lacking.arrays.trie.order
    after_b = [-2.125, -0.125, -1.125, -0.875, -1.375, -1.625, -99]
    after_c = [-2.5, -0.5, -1.5, -0.625, -1.75, -2, -2.25]
    rows = log10_rows(lacking, ["b", "b c"])
    assert rows == [[SINGLES, *[after_b] * (order - 1)], [SINGLES, *[after_c] * (order - 1)]]
    ids, values = host(lacking.distribution("b c", "max", top_k=2, scale="log10"))
    assert (ids.tolist(), values.tolist()) == ([[[A, 2]]], [[[-0.625, -1.5]]])
    for text, scores in ("b c d", [-1.25, -1.625, -2.25]), ("a b c", [-0.75, -0.375, -0.25]):
        assert [score for score, *_ in lacking.full_scores(text, bos=False, eos=False)] == scores
    other = ng.Model(replace(lacking.arrays, trie=replace(lacking.arrays.trie, filled_F=None)), lacking.device)
    histories = list(STORED) * 20
    for how in {}, {"top_k": 4}, {"scale": "ln", "dtype": "bfloat16"}:
        made = [np.asarray(host(m.distribution(histories, **how))).tobytes() for m in (lacking, other)]
        assert made[0] == made[1]
    assert host(lacking.sample(histories, seed=1)).tolist() == host(other.sample(histories, seed=1)).tolist()


def test_blocks_mark_filled_ngrams(tmp_path, device):
    model = model_of(tmp_path / "lacking.arpa", LACKING, device)
    [block] = model.iter_distributions(["a b", "a b c"], compact=True)
    assert block.word_C.tolist() == [A, C, D, A, D, A, C, D, D] and block.filled_F.tolist() == [1, 4, 7]
    assert block.first_HK.tolist() == [[0, 5, 0], [3, 7, 8]] and block.end_HK.tolist() == [[3, 7, 0], [5, 8, 9]]
    assert block.filled_F.dtype == np.uint32 and block.size_bytes == 2 * 9 * 4 + 2 * 9 * 4 + 3 * 4
    left = block.stored()
    assert left.word_C.tolist() == [A, D, A, A, C, D]
    assert left.prob_C.tolist() == [-0.875, -99, -0.625, -0.5, -0.25, -0.125]
    assert left.first_HK.tolist() == [[0, 3, 0], [2, 5, 5]] and left.end_HK.tolist() == [[2, 5, 0], [3, 5, 6]]
    assert left.filled_F is None and left.stored() is left
    [other] = model.iter_distributions(["a", "a"], compact=True)
    assert other.filled_F is None and other.stored() is other and other.arrays().keys() == left.arrays().keys()


def test_blocks_of_a_model_with_missing_ngrams(lacking, tmp_path):
    """Rows of both modes equal those of the model, on any device, also from a file and in parts."""
    histories = list(STORED)
    [block] = lacking.iter_distributions(histories, compact=True)
    save_compact(tmp_path / "block.safetensors", block)
    loaded = load_compact(tmp_path / "block.safetensors", block.prob_V)
    assert loaded.filled_F.tolist() == block.filled_F.tolist()
    modes, scales = ("smoothed", "stored"), ("prob", "log10", "ln")
    for mode, scale, device in itertools.product(modes, scales, {lacking.device, "cpu"}):
        how = {"mode": mode, "scale": scale}
        expected = host(lacking.distribution(histories, **how))
        assert np.array_equal(host(ng.compact.densify(loaded, device, **how)), expected)
        parts = [host(ng.compact.densify(part, device, **how)) for part in loaded.parts(2)]
        assert np.array_equal(np.concatenate(parts), expected)
        if mode == "stored":
            assert np.array_equal(host(ng.compact.densify(loaded.stored(), device, **how)), expected)


@pytest.mark.parametrize("settings", [{}, {"quantize": 8}, {"backoff": False}, {"fanout": 5, "index": "edge"}])
def test_a_file_of_a_model_with_missing_ngrams(settings, lacking, tmp_path, device):
    path = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(tmp_path / "lacking.arpa"), **settings), path, device)
    model, log10 = ng.Model.load(path, device), stored_rows(lacking.arrays.trie.order)
    assert np.array_equal(host(model.distribution(list(STORED), mode="stored", scale="log10")), log10)


def test_models_with_any_missing_ngrams(device):
    """Random n-grams, each with its history, many without their suffix: exactly the given ones are stored."""
    V, words = 6, Words.of(["<unk>", "<s>", "</s>", "a", "b", "c"])
    for seed, order in itertools.product(range(6), (2, 3, 5)):
        rng = np.random.default_rng(seed)
        longest = {tuple(rng.integers(0, V, rng.integers(1, order + 1)).tolist()) for _ in range(60)}
        ngrams = {g[:n] for g in longest for n in range(1, len(g) + 1)} | {(v,) for v in range(V)}
        values = {g: -rng.integers(1, 90, 2).astype(np.float32) / 8 for g in sorted(ngrams)}
        levels = []
        for n in range(1, order + 1):
            rows = [g for g in values if len(g) == n]
            both = np.array([values[g] for g in rows], np.float32).reshape(-1, 2)
            ids = np.array(rows, np.uint32).reshape(-1, n)
            levels.append(Ngrams(ids, both[:, 0].copy(), both[:, 1].copy() if n < order else None))
        model = ng.Model(BackoffModel.of(build_trie(levels), words), device)
        assert (model.arrays.trie.filled_F is None) == (order == 2)
        histories = [rng.integers(0, V, rng.integers(0, order)) for _ in range(40)]
        expected = np.full((40, order, V), -INF, np.float32)
        for h, history in enumerate(histories):
            for n, v in itertools.product(range(min(order, len(history) + 1)), range(V)):
                ngram = (*history[len(history) - n :].tolist(), v)
                expected[h, n, v] = values[ngram][0] if ngram in values else -INF
        made = host(model.distribution(histories, mode="stored", scale="log10"))
        assert np.array_equal(made, expected)
        expected[:, :, 1] = -INF  # <s>
        best = (-expected).argsort(axis=2, kind="stable")[:, :, :3]
        ids, best_values = host(model.distribution(histories, mode="stored", scale="log10", top_k=3))
        wanted = np.take_along_axis(expected, best, axis=2)
        assert np.array_equal(best_values, wanted) and np.array_equal(ids, np.where(np.isinf(wanted), -1, best))
        for rows in 7, 40:
            blocks = model.iter_distributions(histories, rows=rows, compact=True)
            dense = [host(ng.compact.densify(block, device, mode="stored", scale="log10")) for block in blocks]
            assert np.array_equal(np.concatenate(dense), made)


def test_memory_of_the_stored_mode(lacking):
    """The copy without filled n-grams is kept and counted, and smoothed rows do not make it."""
    replica, bare = lacking._next_word_model, replace(lacking.arrays.trie, filled_F=None)
    assert replica.of_mode("smoothed") is replica and replica._stored is None
    stored = replica.of_mode("stored")
    assert stored is replica.of_mode("stored") and stored.of_mode("stored") is stored
    G, filled = len(bare), lacking.arrays.trie.filled_F
    assert len(stored.word_G) == len(stored.prob_G) == G - len(filled)
    assert engine.replica_bytes(lacking.arrays.trie) == engine.replica_bytes(bare) + 12 * G + filled.nbytes


def test_out(model, to_device):
    """A buffer is filled in place, with any strides except on the last axis."""
    expected = host(model.distribution(["<s> a", "b"]))
    wide = to_device(np.zeros((2, 4, 9), np.float32))
    out = wide[:, :3, 2:7]
    assert model.distribution(["<s> a", "b"], out=out) is out
    assert np.array_equal(host(out), expected) and np.count_nonzero(host(wide)) == np.count_nonzero(expected)
    for wrong, message in (
        (wide, r"out is float32 of shape \(2, 4, 9\) but must be float32 of shape \(2, 3, 5\)"),
        (out.astype(np.float64), "out is float64"),
        (to_device(np.zeros((2, 5, 3), np.float32)).transpose(0, 2, 1), "its last axis must be contiguous"),
        ([1, 2], "out is list but"),
        (to_device(np.zeros((2, 3, 5), np.float32))[::-1], "multiples of the item size, 0 or more"),
    ):
        with pytest.raises(ng.InputError, match=message):
            model.distribution(["<s> a", "b"], out=wrong)
    with pytest.raises(ng.InputError, match="out is for whole rows but top_k is given"):
        model.distribution(["<s> a", "b"], top_k=1, out=out)


class Buffer:
    """An array of another library in host memory."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float32", np.float32), ("bfloat16", np.uint16), ("bfloat16", np.int16)]
)
def test_a_buffer_is_filled(dtype, stored, arpa):
    model, memory = ng.Model.load(arpa, "cpu"), np.zeros((1, 3, 5), stored)
    buffer = Buffer(memory)
    expected = model.distribution("a", dtype=dtype).tobytes()
    assert model.distribution("a", dtype=dtype, out=buffer) is buffer and memory.tobytes() == expected
    memory[:] = 0
    [block] = model.iter_distributions(["a"], compact=True)
    assert ng.compact.densify(block, "cpu", dtype=dtype, out=buffer) is buffer and memory.tobytes() == expected


def test_memory_that_cannot_be_written(arpa):
    out = np.zeros((1, 3, 5), np.float32)
    out.flags.writeable = False
    with pytest.raises(ng.InputError, match="out is read-only; give a copy"):
        ng.Model.load(arpa, "cpu").distribution("a", out=out)


@pytest.mark.parametrize("bos", [False, True])
def test_found_and_made_at_once(model, bos):
    """The pipelined result, in which a GPU finds and writes rows at once, equals the two steps."""
    replica = engine.NextWordModel(model.arrays, model.device)
    codes = replica.encoder.histories([[], ["a"], ["a", "b"], ["nowhere", "b"]])
    replica.device = "gpu"
    modes = ["smoothed", "stored"]
    for orders, mode, scale, dtype in itertools.product(["all", "max", [1]], modes, SCALES, ROW_DTYPES):
        options = RowOptions.of(3, orders, mode, scale, dtype)
        expected = host(replica.dense(replica.find(*codes, bos, scale), options))
        assert np.array_equal(host(replica.find_and_make(*codes, options, bos)), expected), options
        out = replica.find_and_make(*codes, options, bos, expected[::-1].copy() if model.device == "cpu" else None)
        assert np.array_equal(host(out), expected), options


def test_memory_that_is_too_small(model, monkeypatch):
    """One line names the operation and the way out."""

    def full(*args, **how):
        raise MemoryError("no room")

    monkeypatch.setattr(row_maker, "write_rows", full)
    monkeypatch.setattr(engine, "find_and_write_rows", full)
    what = r"memory while making rows of shape \(1, 3, 5\) \(no room; .* bytes are free\); use iter_distributions"
    with pytest.raises(ng.RunError, match=what):
        model.distribution("a")
    with pytest.raises(
        ng.RunError, match="making the rows of a block of 2 histories .*; give rows, the number of histories per block"
    ):
        next(model.iter_distributions(["a", "b"]))
    monkeypatch.setattr(engine, "find_histories", full)
    for ask in model.sample, model.generate, lambda h: next(model.iter_distributions([h], compact=True)):
        with pytest.raises(ng.RunError, match="memory while finding histories .*; give fewer at once"):
            ask("a")
    monkeypatch.setattr(encoding.Encoder, "histories", full)
    for ask in model.distribution, lambda h: next(model.iter_distributions([h])):
        with pytest.raises(ng.RunError, match="memory while finding histories .*; give fewer at once"):
            ask("a")


def test_a_tensor_is_filled(model):
    torch = pytest.importorskip("torch")
    place = "cuda" if model.device == "gpu" else "cpu"
    expected = host(model.distribution(["<s> a", "b"]))
    tensor = torch.zeros(2, 3, 5, device=place)
    assert model.distribution(["<s> a", "b"], out=tensor) is tensor
    assert np.array_equal(tensor.cpu().numpy(), expected)
    brain = torch.zeros(2, 3, 5, device=place, dtype=torch.bfloat16)
    model.distribution(["<s> a", "b"], out=brain, dtype="bfloat16")
    assert torch.equal(brain.cpu(), torch.from_numpy(expected).to(torch.bfloat16))


def test_samples(model):
    """Samples follow the probabilities of the highest order without <s>; the seed decides; temperature 0 is greedy."""
    histories = ["<s> a"] * 4000
    ids = host(model.sample(histories, seed=1))
    assert ids.dtype == np.int32 and np.array_equal(ids, host(model.sample(histories, seed=1)))
    assert not np.array_equal(ids, host(model.sample(histories, seed=2)))
    probs = host(model.distribution("<s> a", "max"))[0, 0].astype(float)
    probs[1] = 0
    expected = 4000 * probs / probs.sum()
    counts = np.bincount(ids, minlength=5)
    assert counts[1] == 0 and (np.abs(counts - expected) < 5 * np.sqrt(expected + 1)).all()
    assert set(host(model.sample(histories, top_k=2)).tolist()) == {4, 2}
    for all_words in 5, 9:
        assert np.array_equal(ids, host(model.sample(histories, seed=1, top_k=all_words)))
    assert set(host(model.sample(histories, temperature=0)).tolist()) == {4}
    assert set(host(model.sample(histories, top_p=0.5)).tolist()) == {4}


def test_sentences(model):
    """A model of few words generates sentences; the same seed gives the same ones."""
    said = [model.generate("", 8, seed) for seed in range(30)]
    assert len(set(said)) > 3 and said == [model.generate("", 8, seed) for seed in range(30)]
    words = {word for sentence in said for word in sentence.split()}
    assert words <= {"<unk>", "a", "b"} and max(len(sentence.split()) for sentence in said) <= 8
    assert model.generate("a", 5, temperature=0) == "b"  # then comes </s>
    assert model.generate("a", 0) == ""


def model_of(path, orders, device):
    """Return the model of an ARPA file of lines by order: "-1 a b" or "-1 a b -0.5", with a backoff."""
    text = "\\data\\\n" + "".join(f"ngram {n}={len(lines)}\n" for n, lines in enumerate(orders, 1))
    for n, lines in enumerate(orders, 1):
        text += f"\n\\{n}-grams:\n"
        for prob, *words in (line.split(" ") for line in lines):
            text += "\t".join([prob, " ".join(words[:n]), *words[n:]]) + "\n"
    path.write_text(text + "\n\\end\\\n")
    return ng.Model.load(path, device)


def shares(row, temperature=1.0, top_k=None, top_p=1.0):
    """Return the share of each word, of those that these settings leave of a row of probabilities."""
    weights = np.where(row > 0, row, 0).astype(float) ** (1 / temperature) * (row > 0)
    ranked = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[ranked]) - weights[ranked]
    kept = ranked[: top_k or len(row)]
    kept = kept[before[: len(kept)] < (top_p * weights.sum() if top_p < 1 else np.inf)]
    found = np.zeros(len(row))
    found[kept] = weights[kept]
    return found / found.sum()


def check_samples(model, histories, draws=5000, **settings):
    """Compare samples with rows by Pearson's chi-square; rare words count as one. Above the bound for one in 10^6."""
    begin = model.vocabulary.id("<s>")
    for history in histories:
        row = host(model.distribution(history, "max"))[0, 0]
        row[begin] = 0
        expected = draws * shares(row, **settings)
        seen = np.bincount(host(model.sample([history] * draws, seed=5, **settings)), minlength=len(row))
        assert not seen[expected == 0].any(), (history, settings)
        rare = expected < 10
        seen, expected = (np.append(a[~rare], a[rare].sum()) for a in (seen, expected))
        terms = (seen - expected) ** 2 / np.maximum(expected, 1)
        assert terms.sum() < len(terms) + 5 * np.sqrt(2 * len(terms)) + 15, (history, settings)


SAMPLING = (
    {}, {"temperature": 0.5}, {"temperature": 2.0}, {"temperature": 0.1}, {"top_k": 2}, {"top_p": 0.7},
    {"top_k": 4, "top_p": 0.9, "temperature": 1.5}, {"top_k": 3, "top_p": 0.8, "temperature": 0.12},
    {"top_k": 2, "top_p": 0.99},
)  # fmt: skip


@pytest.mark.parametrize(
    "settings", [*SAMPLING[:1], *SAMPLING[6:7], *slow_cases(*SAMPLING[1:6], *SAMPLING[7:])], ids=str
)
def test_how_often_words_come(settings, model, lacking, tmp_path, device):
    """Of a trigram model, where <s> has probability 1, and of one that lacks n-grams, quantised and not."""
    check_samples(model, ["<s> a", "b", ""], **settings)
    check_samples(lacking, ["a b", "b c", "a b c"], **settings)
    path = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(tmp_path / "lacking.arpa"), quantize=8), path)
    quantised = ng.Model.load(path, device)
    assert host(quantised.sample(["a b"] * 50, seed=1, **settings)).tolist() == (
        host(lacking.sample(["a b"] * 50, seed=1, **settings)).tolist()
    )


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 3.0}, {"top_k": 30}, {"top_p": 0.9}, {"top_k": 9, "top_p": 0.9}], ids=str
)
def test_how_often_many_words_come(settings, tmp_path, device):
    """Of a model that does not sum to 1. Half of all words follow w4 and w6, a twentieth follows both."""
    rng = np.random.default_rng(3)
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, 200))]
    orders = [
        [f"{-1 - 2 * rng.random():.6f} {history}{word}{backoff}" for word in words[::step] for history in histories]
        for step, histories, backoff in ((1, [""], " -0.3"), (2, ["w4 ", "w6 "], " -0.2"), (20, ["w4 w6 "], ""))
    ]
    model = model_of(tmp_path / "m.arpa", orders, device)
    check_samples(model, ["w4 w6", "w4", "w3"], **settings)


def test_words_without_a_probability_do_not_count(tmp_path, device):
    """At a high temperature, too: 10^-99 is 0 in float32."""
    model = model_of(tmp_path / "m.arpa", [["-99 <unk>", "0 <s>", "-99 </s>", "-20 a", "-1 b"]], device)
    for settings in {}, {"top_k": 4}, {"top_p": 0.99}, {"top_k": 4, "top_p": 0.999}:
        words = host(model.sample([""] * 300, temperature=1e6, **settings)).tolist()
        assert set(words) == {3, 4}, settings


def test_children_that_hide_nearly_all_words(tmp_path, device):
    """Tries hardly ever succeed: a and b, which share the mass of single words, are rare after a."""
    unigrams = ["-9 <unk> 0", "0 <s> 0", "-9 </s> 0", "-0.30103 a 0", "-0.30103 b 0"]
    model = model_of(tmp_path / "m.arpa", [unigrams, ["-9 a a", "-9 a b"]], device)
    for settings in {}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.4}, {"top_k": 2, "top_p": 0.9}:
        check_samples(model, ["a"], draws=300, **settings)
    assert set(host(model.sample(["a"] * 50, top_p=0.4)).tolist()) == {0, 2}
    first = host(model.sample(["a"] * 50 + ["b"] * 50, seed=2)).tolist()
    assert first == host(model.sample(["a"] * 50 + ["b"] * 50, seed=2)).tolist() and set(first[50:]) == {3, 4}


@pytest.mark.gpu
def test_a_gpu_samples_the_same_words(many_words, tmp_path):
    for model in ng.Model.load(many_words, "cpu"), model_of(tmp_path / "lacking.arpa", LACKING, "cpu"):
        there = ng.Model(model.arrays, "gpu")
        histories = ["w1", "w9 w1", "a b c", "a b", ""] * 200
        for settings in *SAMPLING[:3], *SAMPLING[4:7]:
            expected = model.sample(histories, seed=9, **settings)
            assert np.array_equal(host(there.sample(histories, seed=9, **settings)), expected), settings


def test_weights_are_summed_once(model, monkeypatch):
    """For each temperature; the best words need no sums, and rows that are asked for need no others."""
    made = []
    real = sampling.sum_children
    monkeypatch.setattr(sampling, "sum_children", lambda *args: made.append(args[3]) or real(*args))
    for temperature, top_k, top_p, sums in (
        (1, 2, 1, []), (0, None, 1, []), (1, None, 1, [1, 1]), (1, None, 0.5, []), (1, 2, 0.5, []),
        (2, None, 1, [0.5, 0.5]), (1, None, 1, [1, 1]), (0.1, None, 1, []), (1, 5, 1, []),
    ):  # fmt: skip
        made.clear()
        model.sample("a", temperature, top_k, top_p)
        assert made == sums, (temperature, top_k, top_p)
    assert list(model._next_word_model._scaled) == ["prob"]  # of temperature 0.1 alone


def test_sampling_without_memory(model, monkeypatch):
    def full(*args):
        raise MemoryError("no room")

    monkeypatch.setattr(sampling, "sum_children", full)
    what = "memory while summing the weights of n-grams, 8 bytes each .*; give top_k, up to 1,024$"
    with pytest.raises(ng.RunError, match=what):
        model.sample("a")
    assert len(model.sample("a", top_k=2)) == 1
    monkeypatch.setattr(sampling, "draw_best", full)
    with pytest.raises(ng.RunError, match="memory while sampling words .*; give fewer histories at once$"):
        model.sample("a", top_k=2)


def test_each_word_has_its_own_random_number(tmp_path, device):
    """Otherwise a unigram model would repeat one word."""
    model = model_of(tmp_path / "m.arpa", [["-9 <unk>", "-9 <s>", "-9 </s>", "-0.30103 a", "-0.30103 b"]], device)
    for seed in range(5):
        assert set(model.generate("", 40, seed).split()) == {"a", "b"}


def test_earlier_words_count(tmp_path, device):
    """The beginning of the sentence, and a prompt whose words are separated by ASCII white space only."""
    words = ["-9 <unk> 0", "-9 <s> 0", "-3 </s> 0", "-2 a 0", "-2 b 0", "-2 c 0", "-2 a\u3000c 0"]
    pairs = ["-1 <s> b 0", "-1 b a 0", "-1 a b 0", "-1 a\u3000c c 0"]
    model = model_of(tmp_path / "m.arpa", [words, pairs, ["-0.1 <s> b c", "-0.1 b a c", "-0.1 a b </s>"]], device)
    assert model.generate("", 2, temperature=0) == "b c"
    assert model.generate("b", 1, temperature=0) == "c"
    assert model.generate("a b", 2, temperature=0) == ""
    assert model.generate("c b", 2, temperature=0) == "a c"
    assert model.generate("b a", 1, temperature=0) == model.generate(b"c b a", 1, temperature=0) == "c"
    assert model.generate("a\u3000c", 1, temperature=0) == "c"
    assert model.generate("a c", 1, temperature=0) == "a"
    with pytest.raises(ng.InputError, match=r"prompt is \['a'\] but must be a string of words"):
        model.generate(["a"])


def test_no_word_left_to_sample(tmp_path, device):
    """Only <s> has a probability above 0."""
    model = model_of(tmp_path / "m.arpa", [["-99 <unk>", "-9 <s>", "-99 </s>"]], device)
    assert model.generate("") == "" and host(model.sample("")).tolist() == [-1]


def test_an_order_that_is_too_high(tmp_path):
    orders = [["-9 <unk> 0", "-9 <s> 0", "-9 </s> 0", "-1 a 0"], *([f"-1 {'a ' * n}0"] for n in range(2, 34))]
    longest = " ".join(["-1", *34 * "a"])
    model = model_of(tmp_path / "m.arpa", [*orders, [longest]], "cpu")
    with pytest.raises(ng.InputError, match="the model has order 34 but distributions support orders up to 33; make a"):
        model.distribution("a")
    orders[-1] = [orders[-1][0].removesuffix(" 0")]
    model = model_of(tmp_path / "m.arpa", orders, "cpu")
    assert model.distribution("a").shape == (1, 33, 4)
    # No word follows them.
    assert len(model.arrays.trie.suffix_L) == 30 and len(model._next_word_model.trie.suffix_L) == 0


def test_a_model_file_that_was_replaced(arpa, tmp_path, monkeypatch):
    """This process keeps one replica of the file."""
    monkeypatch.setattr(replicas, "_held", OrderedDict())
    path, other = tmp_path / "m.safetensors", tmp_path / "other.safetensors"
    convert.build(convert.ConvertConfig(str(arpa)), path)
    convert.build(convert.ConvertConfig(str(arpa), quantize=8), other)
    before, after = ng.Model.load(path, "cpu").identity, ng.Model.load(other, "cpu").identity
    replica = engine.next_word_model_of(str(path), before, "cpu", 1)
    assert engine.next_word_model_of(str(path), before, "cpu", 1) is replica and before != after
    path.write_bytes(other.read_bytes())
    assert engine.next_word_model_of(str(path), before, "cpu", 1) is replica
    assert engine.next_word_model_of(str(path), after, "cpu", 1) is not replica and len(replicas._held) == 1
    with pytest.raises(ng.RunError, match=f"is {after} on this worker but was {before} at the start"):
        engine.next_word_model_of(str(path), before, "cpu", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orders": 4}, "orders is 4 but the model has orders 1 to 3; give some of these, all or max"),
        ({"orders": "0,2"}, "orders is '0,2' but the model has orders 1 to 3"),
        ({"orders": "most"}, "orders is 'most' but must be all, max or numbers such as 1,2,3"),
        ({"orders": []}, r"orders is \[\] but"),
        ({"orders": True}, "orders is True but must be all, max or numbers"),
        ({"orders": [2.5]}, r"orders is \[2.5\] but must be all, max or numbers"),
        ({"dtype": []}, r"dtype is \[\] but must be float32 or"),
        ({"mode": "raw"}, "mode is 'raw' but must be smoothed or stored"),
        ({"scale": "log2"}, "scale is 'log2' but must be prob or log10 or ln"),
        ({"dtype": "float64"}, "dtype is 'float64' but must be float32 or float16 or bfloat16"),
        ({"top_k": 0}, "top_k is 0 but must be 1 to 1,024; leave it out for all words"),
        ({"top_k": 1025}, "top_k is 1025 but"),
        ({"top_k": True}, "top_k is True but"),
        ({"top_k": 2, "dtype": "float16"}, "dtype is float16 but the values of top_k are float32"),
    ],
)
def test_settings_that_are_refused(settings, message, arpa):
    model = ng.Model.load(arpa, "cpu")
    with pytest.raises(ng.InputError, match=f"^{message}"):
        model.distribution("a", **settings)
    with pytest.raises(ng.InputError, match=f"^{message}"):
        next(model.iter_distributions(["a"], **settings))


@pytest.mark.parametrize(
    ("histories", "message"),
    [
        ([], "histories is empty; give at least one"),
        ([3], "history 0 has 3 but must be a string, a list of words or an array of ids"),
        (["a", ["a", 4]], "history 1 has 4 in it but must be"),
        (np.array([[3, 5]]), "ids are 3 to 5 but must be 0 to 4"),
        ([np.array([-1])], "ids are -1 to -1 but must be 0 to 4"),
        (np.array([3, 4]), r"histories are int64 of shape \(2,\) but must be a list of histories, or a matrix of ids"),
        (np.array([[0.5]]), "histories are float64"),
        (["\ud800"], r"history 0 has '\\ud800' at 0, which UTF-8 cannot write"),
        (3, "histories are 3 but must be a list of histories, or a matrix of ids"),
        (np.array("a"), "histories are array"),
        (
            np.array(["a", "b"]),
            r"histories are <U1 of shape \(2,\) but must be a list of histories, or a matrix of ids",
        ),
        (np.zeros((0, 3), int), "histories is empty; give at least one"),
    ],
)
def test_histories_that_are_refused(histories, message, arpa):
    model = ng.Model.load(arpa, "cpu")
    with pytest.raises(ng.InputError, match=f"^{message}"):
        model.distribution(histories)
    if not message.startswith("histories is empty"):
        with pytest.raises(ng.InputError, match=f"^{message}"):
            next(model.iter_distributions(histories))


def test_more_text_than_one_encoding_batch(arpa, monkeypatch):
    monkeypatch.setattr(encoding, "MAX_HISTORIES_BYTES", 5)
    model = ng.Model.load(arpa, "cpu")
    assert len(model.distribution(["a", "bb"])) == 2
    with pytest.raises(ng.InputError, match="the histories have 6 bytes but may have 5 together; give fewer of them"):
        model.distribution(["bb", "bb"])


def test_only_relevant_words_of_histories_are_sent():
    """The last words of each history, at most order - 1."""
    codes_T, positions_H = np.array([4, 5, 6, 7, 0, 0, 8, 0, 9, 9, 0], np.uint32), np.array([4, 5, 7, 10])
    for most, codes, positions in (
        (2, [6, 7, 0, 0, 8, 0, 9, 9, 0], [2, 3, 5, 8]), (9, codes_T.tolist(), [4, 5, 7, 10]), (0, [0] * 4, range(4)),
    ):  # fmt: skip
        made = encoding.shortened(codes_T, positions_H, most)
        assert made[0].dtype == np.uint32 and [a.tolist() for a in made] == [codes, list(positions)]


def test_invalid_sampling_arguments(arpa):
    model = ng.Model.load(arpa, "cpu")
    for settings, message in (
        ({"temperature": -1}, "temperature is -1 but must be a finite number, 0 or more"),
        ({"temperature": INF}, "temperature is inf but must be a finite number"),
        ({"temperature": 10**400}, "temperature is 1000000"),
        ({"top_p": 0}, "top_p is 0 but must be above 0 and at most 1"),
        ({"top_k": 0}, "top_k is 0 but must be 1 or more"),
        ({"seed": -1}, r"seed is -1 but must be 0 to 2\^64 - 1"),
        ({"seed": 0.5}, "seed is 0.5 but"),
    ):
        with pytest.raises(ng.InputError, match=message):
            model.sample("a", **settings)
        with pytest.raises(ng.InputError, match=message):
            model.generate("a", **settings)
    numbers = {"temperature": np.float32(0.5), "top_k": np.int64(2), "top_p": np.float32(0.5), "seed": np.uint64(3)}
    assert model.sample("a", **numbers).tolist() == model.sample("a", 0.5, 2, 0.5, 3).tolist()


def test_other_invalid_arguments(arpa):
    model = ng.Model.load(arpa, "cpu")
    for words in -1, "x", 2.5, True:
        with pytest.raises(ng.InputError, match=f"max_words is {words!r} but must be a number, 0 or more"):
            model.generate("a", max_words=words)
    with pytest.raises(ng.InputError, match="fn is 3 but must be a function of a block"):
        next(model.map_distributions(3, ["a"]))
    with pytest.raises(ng.InputError, match="block is int but must be a CompactBlock"):
        ng.compact.densify(3)


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster) as client:
        yield client


@pytest.mark.slow
def test_on_a_cluster(arpa, client):
    """Blocks arrive in order from any worker, and equal those of this process."""
    model = ng.Model.load(arpa, "cpu")
    histories = [["<s> a", "b", "", "a b"][i % 4] for i in range(50)]
    whole = model.distribution(histories)
    for rows in (3, 50, None):
        blocks = list(model.iter_distributions(iter(histories), rows=rows, client=client))
        assert sum(map(len, blocks)) == 50
        assert np.array_equal(np.concatenate([ng.compact.densify(block, "cpu") for block in blocks]), whole)
        dense = list(model.iter_distributions(histories, rows=rows, client=client, compact=False))
        assert np.array_equal(np.concatenate(dense), whole)
        ids, values = zip(*model.iter_distributions(histories, top_k=2, rows=rows, client=client), strict=True)
        expected = model.distribution(histories, top_k=2)
        assert np.array_equal(np.concatenate(ids), expected[0]) and np.array_equal(np.concatenate(values), expected[1])
        sums = list(model.map_distributions(lambda block: block.sum(axis=2), histories, rows=rows, client=client))
        assert np.array_equal(np.concatenate(sums), whole.sum(axis=2))


def test_histories_that_go_through_the_scheduler_are_few_at_once(arpa, client, monkeypatch):
    monkeypatch.setattr(next_words, "MAX_CALLED_HISTORIES", 7)
    model = ng.Model.load(arpa, "cpu")
    assert list(model.map_distributions(len, ["a"] * 20, client=client)) == [7, 7, 6]
    assert list(model.map_distributions(len, ["a"] * 20, rows=15, client=client)) == [15, 5]


@pytest.mark.slow
@pytest.mark.parametrize("all_die", [False, True])
def test_workers_that_die_on_a_cluster(all_die, arpa, tmp_path, wait_for_workers):
    """Blocks equal those of this process, whether a worker dies before or after it has made them."""
    model, histories = ng.Model.load(arpa, "cpu"), [["<s> a", "b", "", "a b"][i % 4] for i in range(60)]
    whole = model.distribution(histories)

    def kill(client):
        pids = client.run(os.getpid)
        for pid in list(pids.values())[: None if all_die else 1]:
            os.kill(pid, signal.SIGKILL)

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        rows = model.iter_distributions(histories, rows=4, client=client, compact=False)
        found = [next(rows)]
        kill(client)
        assert np.array_equal(np.concatenate([*found, *rows]), whole)
        wait_for_workers(client, 2)
        sums = model.map_distributions(lambda block: block.sum(axis=2), histories, rows=4, client=client)
        found = [next(sums)]
        kill(client)
        assert np.array_equal(np.concatenate([*found, *sums]), whole.sum(axis=2))


def test_filled_ngrams_on_a_cluster(tmp_path, client):
    """For both kinds of blocks that workers send."""
    path = tmp_path / "lacking.arpa"
    model, log10 = model_of(path, LACKING, "cpu"), stored_rows(4)
    how = {"mode": "stored", "scale": "log10", "rows": 2, "client": client}
    blocks = model.iter_distributions(STORED, **how)
    dense = [ng.compact.densify(block, "cpu", mode="stored", scale="log10") for block in blocks]
    assert np.array_equal(np.concatenate(dense), log10)
    assert np.array_equal(np.concatenate(list(model.iter_distributions(STORED, compact=False, **how))), log10)
    ids, values = zip(*model.iter_distributions(STORED, top_k=2, **how), strict=True)
    expected = model.distribution(list(STORED), top_k=2, mode="stored", scale="log10")
    assert np.array_equal(np.concatenate(ids), expected[0]) and np.array_equal(np.concatenate(values), expected[1])
    assert np.array_equal(np.concatenate(list(model.map_distributions(np.array, STORED, **how))), log10)


def test_settings_of_workers(arpa, client, cluster, monkeypatch):
    """<s> precedes histories there, too; blocks fit the memory of this process and of workers that share a host."""
    model, histories = ng.Model.load(arpa, "cpu"), ["a", "b b a", "", "a b", "b"]
    whole, row_bytes = model.distribution(histories, bos=True), 3 * 128 + 3 * FOUND_BYTES
    free = 2.5 * row_bytes / BLOCK_SHARE
    monkeypatch.setattr(next_words, "free_memory", lambda device: int(2 * free))
    monkeypatch.setattr(next_words, "free_bytes", lambda device: free)
    for blocks in (
        list(model.map_distributions(np.array, histories, bos=True, client=client)),
        list(model.iter_distributions(histories, bos=True, client=client, compact=False)),
    ):
        assert [len(block) for block in blocks] == [2, 2, 1] and np.array_equal(np.concatenate(blocks), whole)
    assert not [name for name in cluster.scheduler.worker_plugins if name.startswith("mgpu-ngram")]


def test_histories_are_sent_shortened(arpa, client, monkeypatch):
    """Only the words that count of long histories: they pass through the scheduler."""
    sent, new = [], next_words.client_executor

    def executor_of(client):
        executor = new(client)
        call = executor.call
        executor.call = lambda fn, *args, **how: sent.append(args[1]) or call(fn, *args, **how)
        return executor

    monkeypatch.setattr(next_words, "client_executor", executor_of)
    model, histories = ng.Model.load(arpa, "cpu"), ["b " * 1000 + "<s> a", "a " * 500]
    [rows] = model.iter_distributions(histories, client=client, compact=False)
    assert np.array_equal(rows, model.distribution(["<s> a", "a a"]))
    assert [[array.tolist() for array in codes] for codes in sent] == [[[2, 4, 0, 4, 4, 0], [2, 5]]]


def test_blocks_come_directly_from_the_workers(arpa, client, cluster, monkeypatch):
    """The scheduler gathers none of them."""
    gathered, gather = Counter(), cluster.scheduler.handlers["gather"]

    def counted(*args, **how):
        gathered["times"] += 1
        return gather(*args, **how)

    monkeypatch.setitem(cluster.scheduler.handlers, "gather", counted)
    assert len(list(ng.Model.load(arpa, "cpu").iter_distributions(["a"] * 5, rows=1, client=client))) == 5
    assert not gathered
    assert client.gather(client.submit(int, 3), direct=False) == 3 and gathered  # a gather would have been seen


def test_blocks_wait_for_the_caller(arpa, client):
    """At most a few blocks per worker are requested ahead of the caller."""
    model, asked = ng.Model.load(arpa, "cpu"), []
    blocks = model.iter_distributions((asked.append(h) or h for h in ["a"] * 1000), rows=1, client=client)
    assert not asked
    next(blocks)
    assert len(asked) <= 4
    blocks.close()
    assert len(asked) <= 4


def test_workers_that_find_another_file(arpa, client):
    model = ng.Model.load(arpa, "cpu")
    arpa.write_text(arpa.read_text().replace("-1.25", "-1.125"))
    with pytest.raises(ng.RunError, match="model.arpa is .* on this worker but was .* at the start; run again"):
        next(model.iter_distributions(["a"], client=client))


def test_a_model_without_a_file(arpa, client):
    model = ng.Model(ng.Model.load(arpa, "cpu").arrays, "cpu")
    with pytest.raises(ng.InputError, match="workers load a model from its file, but this one was not loaded"):
        next(model.iter_distributions(["a"], client=client))


@pytest.mark.parametrize("order", [3, 5])
def test_golden_rows(order, shared_data, device, tmp_path):
    """Stored rows match exactly, smoothed rows within 2e-6 in log10, and their sums."""
    golden = np.load(shared_data / "golden" / "dists" / f"small.o{order}.npz")
    path = tmp_path / "model.arpa"
    path.write_bytes(lzma.decompress((shared_data / "golden" / "models" / f"small.o{order}.arpa.xz").read_bytes()))
    model = ng.Model.load(path, device)
    assert list(model.vocabulary) == golden["vocab"].tolist()
    histories = golden["histories"].tolist()
    stored = host(model.distribution(histories, mode="stored", scale="log10"))
    expected = np.full(stored.shape, -INF, np.float32)
    at = golden["stored_hist"], golden["stored_order"] - 1, golden["stored_word"]
    expected[at] = np.log10(golden["stored_p"])
    assert np.array_equal(stored, expected)
    smoothed = host(model.distribution(histories))
    assert np.abs(np.log10(smoothed) - np.log10(golden["smoothed_f32"])).max() <= 2e-6
    log10 = host(model.distribution(histories[:8], scale="log10"))
    assert np.abs(log10 - np.log10(golden["smoothed_f64_first8"])).max() <= 2e-6
    for dtype, most in ("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 1e-2):
        rows = host(model.distribution(histories, dtype=dtype))
        if dtype == "bfloat16":
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        sums = np.delete(rows, 1, axis=2).sum(axis=2, dtype=np.float64)
        assert np.abs(sums - 1).max() <= most


@pytest.mark.parametrize("dtype, most", [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("name", first_fast(["small.o3.prune001", "small.o5.prune00112", "small.o3.limitvocab"]))
def test_rows_of_pruned_models_sum_to_1(name, dtype, most, shared_data, device, tmp_path):
    """For every order, after histories of random words, known or unknown."""
    path = tmp_path / "model.arpa"
    path.write_bytes(lzma.decompress((shared_data / "golden" / "models" / f"{name}.arpa.xz").read_bytes()))
    model, rng = ng.Model.load(path, device), np.random.default_rng(0)
    words = [*list(model.vocabulary)[2:200], "zebra-unknown"]
    histories = [" ".join(rng.choice(words, rng.integers(0, 7))) for _ in range(30)]
    rows = host(model.distribution(histories, dtype=dtype))
    if dtype == "bfloat16":
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    rows = np.delete(rows, model.vocabulary.id("<s>"), axis=2)
    assert np.abs(rows.sum(axis=2, dtype=np.float64) - 1).max() <= most
    scored = [model.full_scores(f"{h} {w}", eos=False)[-1][0] for h in histories[:3] for w in words[:50]]
    at = [model.vocabulary.id(word) for word in words[:50]]
    log10 = host(model.distribution(histories[:3], "max", scale="log10", bos=True))[:, 0, at]
    assert np.array_equal(log10.reshape(-1), np.array(scored, np.float32))
