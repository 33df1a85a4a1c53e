"""States of `ng.Model`: KenLM's states, rows of distributions, and refusals; see also engine/test_golden_queries.py."""

import itertools

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import kenlm
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.engine.states import state_model
from mgpu_ngram.engine.trie.quantize import quantize
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host
from mgpu_ngram.kernels.score import step_states as kernel
from mgpu_ngram.kernels.trie.find_children import TrieIndex

LN_10 = np.float32(np.log(10))


@pytest.fixture
def model(arpa, device):
    return ng.Model.load(arpa, device)


def host(pair):
    return tuple(map(to_host, pair))


def on_device(model, values, dtype=np.int32):
    return array_module(model.start(0)).asarray(np.array(values, dtype))


def test_scores_and_states_are_those_of_kenlm_states(model, arpa):
    """All texts of up to four words: probabilities to the bit, and which states are equal."""
    plain, words = kenlm.Model(str(arpa)), list(model.vocabulary)
    groups = {}
    for text in itertools.chain.from_iterable(itertools.product(range(len(words)), repeat=n) for n in range(5)):
        for bos in (True, False):
            state, wanted, total = model.start(1, bos), kenlm.State(), []
            (plain.BeginSentenceWrite if bos else plain.NullContextWrite)(wanted)
            for word in text:
                log10, state = model.step(state, on_device(model, [word], np.int64))
                after = kenlm.State()
                total.append((to_host(log10).tolist(), [plain.BaseScore(wanted, words[word], after)]))
                wanted = after
            assert all(got == expected for got, expected in total)
            groups.setdefault(int(to_host(state)[0]), set()).add(wanted)
    assert len(groups) > 3 and all(len(group) == 1 for group in groups.values())
    assert len(set().union(*groups.values())) == len(groups)


def test_an_order_without_rows(device, tmp_path):
    """Order 35: a word after a state as KenLM's, but no rows."""
    repeated = [f"-{n}\t{' '.join('a' * n)}\t-0.{n}" for n in range(2, 35)]
    orders = [["-9\t<unk>\t0", "-9\t<s>\t-0.5", "-1\t</s>\t0", "-1\ta\t-0.25"], *([line] for line in repeated)]
    orders.append([f"-0.5\t{' '.join('a' * 35)}"])
    text = "\\data\\\n" + "".join(f"ngram {n}={len(lines)}\n" for n, lines in enumerate(orders, 1))
    text += "".join(f"\n\\{n}-grams:\n" + "\n".join(lines) + "\n" for n, lines in enumerate(orders, 1))
    path = tmp_path / "high.arpa"
    path.write_text(text + "\n\\end\\\n")
    model, plain = ng.Model.load(path, device), kenlm.Model(str(path))
    state, wanted, a = model.start(1, bos=False), kenlm.State(), model.vocabulary.id("a")
    plain.NullContextWrite(wanted)
    for _ in range(40):
        after = kenlm.State()
        log10, state = model.step(state, on_device(model, [a]))
        assert to_host(log10).tolist() == [plain.BaseScore(wanted, "a", after)]
        wanted = after
    assert to_host(log10)[0] == -0.5
    with pytest.raises(ng.InputError, match="order 35 but distributions support orders up to 33"):
        model.advance(state)


@pytest.mark.filterwarnings("ignore:.*lacks <unk>")
@pytest.mark.parametrize("bits", [None, 8], ids=["exact", "quantised"])
def test_random_models_beside_a_plain_scorer(plain_model, bits, device, tmp_path, monkeypatch):
    """Models of orders 2 to 5, also without <unk> or suffixes of n-grams: 16 texts of 6 words, which states are equal,
    and rows. So few values have codes of their own.
    """
    monkeypatch.setattr(kernel, "PIECE", 4)
    for seed in range(10, 22):
        plain, rng, path = plain_model(seed), np.random.default_rng(seed), tmp_path / f"{seed}.arpa"
        path.write_text(plain.text)
        exact = ng.Model.load(path, device)
        arrays = exact.arrays
        model = exact if bits is None else ng.Model(BackoffModel.of(quantize(arrays.trie, bits), arrays.words), device)
        words = list(model.vocabulary)
        histories = [("<s>",) if i % 2 else () for i in range(16)]
        starts = np.stack([to_host(model.start(8, bos=False)), to_host(model.start(8))], axis=1)
        states, seen = on_device(model, starts.ravel()), {}
        for _ in range(6):
            rows, following = host(model.advance(states))
            assert np.array_equal(rows, [[plain.step(h, word)[0] for word in words] for h in histories])
            assert np.array_equal(to_host(model.final(states)), rows[:, model.vocabulary.id("</s>")])
            chosen = rng.integers(0, len(words), 16)
            log10, states = model.step(states, on_device(model, chosen))
            after = to_host(states)
            assert np.array_equal(to_host(log10), rows[range(16), chosen])
            assert np.array_equal(after, following[range(16), chosen])
            histories = [plain.step(h, words[v])[3] for h, v in zip(histories, chosen, strict=True)]
            assert all(seen.setdefault(s, h) == h for s, h in zip(after.tolist(), histories, strict=True))
        assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("scale", ["log10", "ln", "prob"])
def test_rows_are_those_of_distributions(model, scale):
    texts = ["", "<s>", "a", "<s> a", "b", "a a", "a b", "<s> a b", "b a a"]
    states = []
    for text in texts:
        state = model.start(1, bos=False)
        for word in text.split():
            state = model.step(state, on_device(model, [model.vocabulary.id(word)]))[1]
        states += to_host(state).tolist()
    rows, following = host(model.advance(on_device(model, states), scale=scale))
    wanted = to_host(model.distribution(texts, orders="max", scale=scale))[:, 0]
    assert rows.tobytes() == np.ascontiguousarray(wanted).tobytes()
    for v in range(len(model.vocabulary)):
        log, after = host(model.step(on_device(model, states), on_device(model, [v] * len(states)), "log10"))
        assert np.array_equal(following[:, v], after)
        if scale == "log10":
            assert np.array_equal(rows[:, v], log)
    assert following.dtype == np.int32 and on_gpu(model.start(1)) == (model.device == "gpu")


def test_natural_logarithms_and_ends(model):
    states = model.start(3)
    log10, after = host(model.step(states, on_device(model, [3, 4, 99])))
    ln, again = host(model.step(states, on_device(model, [3, 4, 99]), scale="ln"))
    assert np.array_equal(ln, log10 * LN_10) and np.array_equal(after, again)
    unknown = host(model.step(states, on_device(model, [0, 0, -5])))
    assert unknown[0].tolist() == [log10[2]] * 3 and unknown[1].tolist() == [after[2]] * 3
    end = on_device(model, [model.vocabulary.id("</s>")] * 3)
    assert np.array_equal(to_host(model.final(states)), to_host(model.step(states, end)[0]))
    assert np.array_equal(to_host(model.final(states, "ln")), to_host(model.final(states)) * LN_10)


def test_arrays_to_fill(model):
    xp, states, V = array_module(model.start(0)), model.start(2), len(model.vocabulary)
    words = on_device(model, [3, 4])
    given = xp.zeros(2, np.float32), xp.zeros(2, np.int32)
    assert model.step(states, words, out=given) is given
    assert [a.tobytes() for a in host(given)] == [a.tobytes() for a in host(model.step(states, words))]
    rows = xp.zeros((2, 2 * V), np.float16)[:, :V], xp.zeros((2, 2 * V), np.int32)[:, :V]
    model.advance(states, dtype="float16", out=rows)
    wanted = host(model.advance(states, dtype="float16"))
    assert all(np.array_equal(a, b) for a, b in zip(host(rows), wanted, strict=True))
    assert model.advance(states, next_states=False)[1] is None
    begun = xp.zeros(2, np.int32)
    assert model.start(2, out=begun) is begun and np.array_equal(to_host(begun), to_host(states))
    alone = xp.zeros((2, V), np.float32)
    model.advance(states, next_states=False, out=(alone, None))
    assert np.array_equal(to_host(alone), to_host(model.advance(states)[0]))


def test_a_model_of_single_words_has_one_state(device, tmp_path):
    path = tmp_path / "one.arpa"
    path.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-0.5\t</s>\n-0.25\ta\n\n\\end\\\n")
    model = ng.Model.load(path, device)
    assert to_host(model.start(2)).tolist() == [-1, -1]
    log10, after = host(model.step(model.start(3), on_device(model, [3, 2, 9])))
    assert log10.tolist() == [-0.25, -0.5, -1] and after.tolist() == [-1] * 3
    rows, following = host(model.advance(model.start(2)))
    assert rows.tolist() == [[-1, -99, -0.5, -0.25]] * 2 and following.tolist() == [[-1] * 4] * 2
    assert to_host(model.final(model.start(1))).tolist() == [-0.5]


def test_threads_share_states(arpa, monkeypatch):
    model = ng.Model.load(arpa, "cpu")
    states, words = np.arange(-1, 7, dtype=np.int32), np.arange(8, dtype=np.int64) % 5
    alone, rows = model.step(states, words), model.advance(states)
    monkeypatch.setattr(model._next_word_model, "threads", 3)
    monkeypatch.setattr(state_model, "MIN_PIECE_STATES", 1)
    monkeypatch.setattr(state_model, "MIN_PIECE_ROWS", 1)
    assert all(np.array_equal(a, b) for a, b in zip(model.step(states, words), alone, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(model.advance(states), rows, strict=True))


def test_no_states_and_states_of_another_model(model):
    assert [len(array) for array in model.step(model.start(0), on_device(model, []))] == [0, 0]
    assert [array.shape for array in model.advance(model.start(0))] == [(0, 5), (0, 5)]
    numbers = [10**6, -7, 2**31 - 1, 2**32 + 1, 3 - 2**32, model.arrays.trie.histories]
    wild = on_device(model, numbers, np.int64)
    nothing = model.start(len(numbers), bos=False)
    for made, wanted in (
        (model.step(wild, on_device(model, [3] * 6)), model.step(nothing, on_device(model, [3] * 6))),
        (model.advance(wild), model.advance(nothing)),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(host(made), host(wanted), strict=True))


REFUSED = [
    (lambda m: m.start(-1), "batch is -1 but must be a number of sentences, 0 to 1,099,511,627,776"),
    (lambda m: m.start(2**70), "batch is 1180591620717411303424 but"),
    (lambda m: m.start(True), "batch is True but"),
    (lambda m: m.start(1, stream=0), "stream is given but the model is on the CPU, which has none; leave it out"),
    (lambda m: m.step([0], [1], stream=object()), "stream is given but the model is on the CPU"),
    (lambda m: m.step([0], [1, 2]), "got 1 states but 2 words; give a word for each state"),
    (lambda m: m.step([0.5], [1]), "states are float64 of shape (1,) but must be integers in one dimension"),
    (lambda m: m.step([[0]], [1]), "states are int64 of shape (1, 1) but"),
    (lambda m: m.step([[0], [1, 2]], [1]), "states are rows of several lengths but must be integers in one dimension"),
    (lambda m: m.step([0], ["a"]), "words are <U1 of shape (1,) but"),
    (lambda m: m.step([0], [1], scale="prob"), "scale is 'prob' but must be log10 or ln"),
    (lambda m: m.final([0], scale="e"), "scale is 'e' but must be log10 or ln"),
    (lambda m: m.advance([0], scale="e"), "scale is 'e' but must be prob or log10 or ln"),
    (lambda m: m.step([0], [1], scale=np.array(["ln", "e"])), "scale is array(['ln', 'e'], dtype='<U2') but"),
    (lambda m: m.advance([0], dtype="float8"), "dtype is 'float8' but must be"),
    (lambda m: m.step([0], [1], out=np.zeros(1)), "out is ndarray but must be two arrays"),
    (
        lambda m: m.step([0], [1], out=(np.zeros(2, np.float32), np.zeros(1, np.int32))),
        "out is float32 of shape (2,) but",
    ),
    (
        lambda m: m.step([0], [1], out=(np.zeros(1, np.float32), np.zeros(1, np.int64))),
        "out is int64 of shape (1,) but",
    ),
    (lambda m: m.advance([0], out=(np.zeros((1, 5), np.float32), None)), "out must be (rows, states)"),
    (lambda m: m.start(2, out=np.zeros(2)), "out is float64 of shape (2,) but must be int32 of shape (2,)"),
    (lambda m: m.advance([0], out=(None, np.zeros((1, 5), np.int32))), "out is NoneType but must be an array"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals_in_one_line(arpa, call, message):
    with pytest.raises(ng.InputError) as error:
        call(ng.Model.load(arpa, "cpu"))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_index_btree_is_refused(arpa):
    with pytest.raises(ng.InputError, match="states need the edge table but the index is btree; load the model with"):
        ng.Model.load(arpa, "cpu", index="btree").start(1)


def test_too_many_histories_are_refused(monkeypatch):
    monkeypatch.setattr(kernel, "MAX_HISTORIES", 2)
    index = TrieIndex(np.zeros(3, np.uint32), np.array([3, 3, 3, 3], np.uint32), None, None, 32)
    with pytest.raises(OverflowError, match="3 histories exceed 2"):
        kernel.make_states(index, np.zeros(3, np.int64), np.zeros(3, np.float32))


def test_tensors_in_tensors_out(arpa):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = ng.Model.load(arpa, "cpu")
    states = torch.from_numpy(model.start(2))
    log10, after = model.step(states, torch.tensor([3, 4]))
    assert isinstance(log10, torch.Tensor) and after.dtype == torch.int32
    rows, following = model.advance(after, dtype="bfloat16")
    assert rows.dtype == torch.bfloat16 and following.shape == rows.shape == (2, 5)
    wanted = torch.from_numpy(model.advance(after.numpy())[0]).to(torch.bfloat16)
    assert torch.equal(rows, wanted)
    assert model.advance(after)[0].stride() == (32, 1)  # rows begin at multiples of 128 bytes: they are not copied


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda torch: torch.zeros(2, dtype=torch.bfloat16),
            r"states are torch.bfloat16 of shape \(2,\) but must be integers",
        ),
        (
            lambda torch: torch.zeros(2, dtype=torch.int32).to_sparse(),
            "a tensor is torch.sparse_coo on cpu but must be",
        ),
        (lambda torch: torch.zeros(2, dtype=torch.int32, device="meta"), "a tensor is torch.strided on meta but must"),
        (
            lambda torch: torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)]),
            "a tensor is nested but must be dense; give tensor.to_padded",
        ),
        (lambda torch: torch.zeros(2, dtype=torch.float8_e4m3fn), "states are torch.float8_e4m3fn of shape"),
        (lambda torch: torch.zeros(2, dtype=torch.complex64).conj(), "states are torch.complex64 of shape"),
    ],
)
def test_tensors_that_are_no_states(arpa, make, message):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(ng.InputError, match=message):
        ng.Model.load(arpa, "cpu").step(make(torch), [3, 4])


def test_tensors_with_gradients_are_not_filled(arpa):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model, out = ng.Model.load(arpa, "cpu"), (torch.zeros(2, requires_grad=True), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ng.InputError, match="out requires a gradient"):
        model.step(model.start(2), [3, 4], out=out)


@pytest.mark.gpu
def test_a_cuda_graph_repeats_a_step(arpa):
    import cupy

    model = ng.Model.load(arpa, "gpu")
    states, words = model.start(4), cupy.array([3, 4, 0, 2], np.int32)
    out = cupy.zeros(4, np.float32), cupy.zeros(4, np.int32)
    model.step(states, words, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        model.step(states, words, out=out)
        graph = stream.end_capture()
        words[...] = cupy.array([4, 4, 3, 3], np.int32)
        graph.launch()
    stream.synchronize()
    wanted = model.step(states, words)
    assert all(np.array_equal(a, b) for a, b in zip(host(out), host(wanted), strict=True))


@pytest.mark.gpu
def test_tensors_of_a_stream(arpa):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = ng.Model.load(arpa, "gpu")
    plain = ng.Model.load(arpa, "cpu")
    rng = np.random.default_rng(1)
    states, words = rng.integers(-1, 8, 50_000).astype(np.int32), rng.integers(0, 5, 50_000)
    wanted = plain.step(states, words)
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            slow = torch.ones(4096, 4096, device="cuda")
            for _ in range(5):
                slow = slow @ slow / 4096  # the inputs appear late on this stream
            made = model.step(
                torch.from_numpy(states).cuda() + slow[0, 0].int() - 1, torch.from_numpy(words).cuda(), scale="log10"
            )
            found = [tensor.cpu().numpy() for tensor in made]
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_flags_are_true_or_false(arpa):
    model = ng.Model.load(arpa, "cpu")
    for value in ("no", None, 2, 0.0, np.zeros(2)):
        for name, call in {
            "bos": lambda bos: model.start(1, bos),
            "next_states": lambda following: model.advance([0], next_states=following),
        }.items():
            with pytest.raises(ng.InputError, match=f"^{name} is .* but must be True or False$"):
                call(value)
    assert model.start(1, np.bool_(False))[0] == model.start(1, 0)[0] == -1


def test_messages_are_one_line_whatever_they_show(arpa):
    model = ng.Model.load(arpa, "cpu")
    with pytest.raises(ng.InputError, match=r"^batch is array\(\[\[0., 0.\], \[0., 0.\]\]\) but must be a number"):
        model.start(np.zeros((2, 2)))
    with pytest.raises(ng.InputError, match=r"^scale is array\(\[\[0., 0.\], \[0., 0.\]\]\) but must be log10 or ln$"):
        model.step([0], [1], scale=np.zeros((2, 2)))
    for error in ng.InputError, ng.RunError:
        assert str(error("one\n  two\r\nthree")) == "one two three"


class OfAnotherLibrary:
    """An array that has DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries(model):
    states, words = model.start(2), on_device(model, [3, 4])
    for found, wanted in (
        (model.step(OfAnotherLibrary(states), OfAnotherLibrary(words)), model.step(states, words)),
        (model.advance(OfAnotherLibrary(states)), model.advance(states)),
        ([model.score_ids(OfAnotherLibrary(words), [0, 2])], [model.score_ids(words, [0, 2])]),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(host(found), host(wanted), strict=True))
    with pytest.raises(ng.InputError, match="^words are float64 of shape"):
        model.step(states, OfAnotherLibrary(on_device(model, [3, 4], np.float64)))
