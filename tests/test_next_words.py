"""`ng.Model` and the next word: by hand, beside golden rows, by the scores of single words, and what is refused."""

import lzma

import numpy as np
import pytest
from distributed import Client, LocalCluster

import mgpu_ngram as ng
from mgpu_ngram.core.compact import load_compact, save_compact
from mgpu_ngram.engine import distribution as engine
from mgpu_ngram.jobs import trie
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

INF = np.inf
AFTER_A = [-2.25, -0.25, -0.875, -1, -0.375]  # <unk>, <s>, </s>, a, b
SINGLE = [-2, 0, -1, -0.75, -1.25]


@pytest.fixture
def model(arpa, device):
    return ng.Model.load(arpa, device)


def host(made):
    """What a model made, on the host."""
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
    probs = host(model.distribution("<s> a", mode="stored"))
    assert probs.tolist() == [[[np.float32(10**x) for x in row] for row in rows[0]]]


def test_histories_of_all_kinds(model, to_device):
    """Strings, words and ids; long ones are cut, unknown words are <unk>, <s> may stand before them."""
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
    """Each setting changes what it says, and no more."""
    log10 = host(model.distribution(["<s> a", "b a"], scale="log10"))
    for orders, chosen in {"all": [0, 1, 2], "max": [2], 2: [1], (3, 1): [0, 2], "1,2": [0, 1]}.items():
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
    """A row of the highest order in log10 is what scoring gives, one word at a time, to the bit."""
    words = list(model.vocabulary)
    for history in ["a b a", "b", "", "zebra a"]:
        scored = [model.full_scores(f"{history} {word}", eos=False)[-1][0] for word in words]
        assert log10_rows(model, history, orders="max", bos=True) == [[scored]]


def test_top_k(model):
    """Ties by id; never <s>, to which lmplz gives a probability of 1."""
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


def test_blocks(model):
    """Blocks of any size are parts of the whole; those in reach of a CPU or GPU are compact, too."""
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
    from mgpu_ngram import next_words

    row_bytes = 3 * 5 * 4 + 3 * engine.FOUND_BYTES
    monkeypatch.setattr(next_words, "free_bytes", lambda device: 2.5 * row_bytes / engine.BLOCK_SHARE[device])
    assert [len(block) for block in model.iter_distributions(["a"] * 5)] == [2, 2, 1]
    monkeypatch.setattr(next_words, "free_bytes", lambda device: 0)
    assert [len(block) for block in model.iter_distributions(["a"] * 2)] == [1, 1]


def test_compact_blocks(model, tmp_path):
    """They hold each run of children once, and stand in a file as they are."""
    histories = ["<s> a", "b a", "b"]
    [block] = model.iter_distributions(histories, compact=True)
    assert (len(block), block.order) == (3, 3)
    assert block.word_C.tolist() == [2, 4, 2, 4] and block.prob_C.tolist() == [-0.875, -0.375, -0.625, -0.25]
    assert block.backoff_HK.tolist() == [[-0.25, -0.0625], [-0.25, 0], [-0.125, 0]]
    assert np.array_equal(block.first_HK[0, :1], block.first_HK[1, :1])
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
    with pytest.raises(ng.InputError, match=r"lacks the probabilities of single words; give it with"):
        ng.compact.densify(load_compact(tmp_path / "block.safetensors"), "cpu")


def test_a_model_without_backoffs(arpa, tmp_path, device):
    """It has all that is stored, and takes less room; nothing is smoothed, and nothing scored."""
    path = tmp_path / "m.safetensors"
    trie.build(trie.TrieConfig(str(arpa), backoff=False), path)
    model, whole = ng.Model.load(path, device), ng.Model.load(arpa, device)
    stored = host(whole.distribution(["<s> a", "b"], mode="stored"))
    assert np.array_equal(host(model.distribution(["<s> a", "b"], mode="stored")), stored)
    [block] = model.iter_distributions(["<s> a", "b"], mode="stored", compact=True)
    assert np.array_equal(host(ng.compact.densify(block, device, mode="stored")), stored)
    for ask in (
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
    """Its rows are those of the values that its codes stand for: with so few n-grams, the same."""
    path = tmp_path / "m.safetensors"
    trie.build(trie.TrieConfig(str(arpa), quantize=8), path)
    model, whole = ng.Model.load(path, device), ng.Model.load(arpa, device)
    assert log10_rows(model, ["<s> a", "b"]) == log10_rows(whole, ["<s> a", "b"])
    [block] = model.iter_distributions(["<s> a", "b"], compact=True)
    assert host(ng.compact.densify(block, device, scale="log10")).tolist() == log10_rows(whole, ["<s> a", "b"])


def test_out(model, to_device):
    """A buffer is filled in place: of any stride but that of the last axis."""
    expected = host(model.distribution(["<s> a", "b"]))
    wide = to_device(np.zeros((2, 4, 9), np.float32))
    out = wide[:, :3, 2:7]
    assert model.distribution(["<s> a", "b"], out=out) is out
    assert np.array_equal(host(out), expected) and np.count_nonzero(host(wide)) == np.count_nonzero(expected)
    for wrong, message in (
        (wide, r"out is float32 of shape \(2, 4, 9\) but must be float32 of shape \(2, 3, 5\)"),
        (out.astype(np.float64), "out is float64"),
        (to_device(np.zeros((2, 5, 3), np.float32)).transpose(0, 2, 1), "must lie beside each other"),
        ([1, 2], "out is list but"),
    ):
        with pytest.raises(ng.InputError, match=message):
            model.distribution(["<s> a", "b"], out=wrong)
    with pytest.raises(ng.InputError, match="out is for whole rows but top_k is given"):
        model.distribution(["<s> a", "b"], top_k=1, out=out)


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
    """By the probabilities of the highest order without <s>; the seed decides; greedy at 0."""
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
    assert set(host(model.sample(histories, temperature=0)).tolist()) == {4}
    assert set(host(model.sample(histories, top_p=0.5)).tolist()) == {4}


def test_sentences(model):
    """A model of few words talks; a seed says the same again."""
    said = [model.generate("", 8, seed) for seed in range(30)]
    assert len(set(said)) > 3 and said == [model.generate("", 8, seed) for seed in range(30)]
    words = {word for sentence in said for word in sentence.split()}
    assert words <= {"<unk>", "a", "b"} and max(len(sentence.split()) for sentence in said) <= 8
    assert model.generate("a", 5, temperature=0) == "b"  # then </s>
    assert model.generate("a", 0) == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orders": 4}, "orders is 4 but the model has orders 1 to 3; give some of those, all or max"),
        ({"orders": "0,2"}, "orders is '0,2' but the model has orders 1 to 3"),
        ({"orders": "most"}, "orders is 'most' but must be all, max or numbers such as 1,2,3"),
        ({"orders": []}, r"orders is \[\] but"),
        ({"mode": "raw"}, "mode is 'raw' but must be smoothed or stored"),
        ({"scale": "log2"}, "scale is 'log2' but must be prob or log10 or ln"),
        ({"dtype": "float64"}, "dtype is 'float64' but must be float32 or float16 or bfloat16"),
        ({"top_k": 0}, "top_k is 0 but must be 1 to 1,024; leave it out for all words"),
        ({"top_k": 1025}, "top_k is 1025 but"),
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
        ([], "there are no histories; give one at least"),
        ([3], "history 0 has 3 but must be a string, a list of words or an array of ids"),
        (["a", ["a", 4]], "history 1 has 4 in it but must be"),
        (np.array([[3, 5]]), "ids are 3 to 5 but must be 0 to 4"),
        ([np.array([-1])], "ids are -1 to -1 but must be 0 to 4"),
        (np.array([3, 4]), r"histories are int64 of shape \(2,\) but must be a list of histories, or a matrix of ids"),
        (np.array([[0.5]]), "histories are float64"),
        (["\ud800"], r"history 0 has '\\ud800' at 0, which UTF-8 cannot write"),
    ],
)
def test_histories_that_are_refused(histories, message, arpa):
    with pytest.raises(ng.InputError, match=f"^{message}"):
        ng.Model.load(arpa, "cpu").distribution(histories)


def test_draws_that_are_refused(arpa):
    model = ng.Model.load(arpa, "cpu")
    for settings, message in (
        ({"temperature": -1}, "temperature is -1 but must be 0 or more"),
        ({"temperature": INF}, "temperature is inf but"),
        ({"top_p": 0}, "top_p is 0 but must be above 0 and at most 1"),
        ({"top_k": 0}, "top_k is 0 but must be 1 or more"),
    ):
        with pytest.raises(ng.InputError, match=message):
            model.sample("a", **settings)
        with pytest.raises(ng.InputError, match=message):
            model.generate("a", **settings)


@pytest.fixture(scope="module")
def client():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        yield client


def test_on_a_cluster(arpa, client):
    """Blocks come in order, whoever made them, and are those of this process."""
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


def test_blocks_wait_for_the_caller(arpa, client):
    """No more are asked for than a few per worker ahead of the caller."""
    model, asked = ng.Model.load(arpa, "cpu"), []
    blocks = model.iter_distributions((asked.append(h) or h for h in ["a"] * 1000), rows=1, client=client)
    assert not asked
    next(blocks)
    assert len(asked) <= 4
    blocks.close()
    assert len(asked) <= 4


def test_a_model_that_has_no_file(arpa, client):
    model = ng.Model(ng.Model.load(arpa, "cpu").arrays, "cpu")
    with pytest.raises(ng.InputError, match="workers load a model from its file, but this one was not loaded"):
        next(model.iter_distributions(["a"], client=client))


@pytest.mark.parametrize("order", [3, 5])
def test_golden_rows(order, shared_data, device, tmp_path):
    """Stored rows exactly, smoothed ones within 2e-6 in log10, and what they sum to."""
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


@pytest.mark.parametrize("name", ["small.o3.prune001", "small.o5.prune00112", "small.o3.limitvocab"])
def test_rows_of_pruned_models_sum_to_1(name, shared_data, device, tmp_path):
    """For every order, after histories of random words, known or not."""
    path = tmp_path / "model.arpa"
    path.write_bytes(lzma.decompress((shared_data / "golden" / "models" / f"{name}.arpa.xz").read_bytes()))
    model, rng = ng.Model.load(path, device), np.random.default_rng(0)
    words = [*list(model.vocabulary)[2:200], "zebra-unknown"]
    histories = [" ".join(rng.choice(words, rng.integers(0, 7))) for _ in range(30)]
    rows = np.delete(host(model.distribution(histories)), model.vocabulary.id("<s>"), axis=2)
    assert np.abs(rows.sum(axis=2, dtype=np.float64) - 1).max() <= 1e-5
    scored = [model.full_scores(f"{h} {w}", eos=False)[-1][0] for h in histories[:3] for w in words[:50]]
    at = [model.vocabulary.id(word) for word in words[:50]]
    log10 = host(model.distribution(histories[:3], "max", scale="log10", bos=True))[:, 0, at]
    assert np.array_equal(log10.reshape(-1), np.array(scored, np.float32))
