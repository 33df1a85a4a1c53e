"""The model over token ids for PyTorch, beside KenLM's states, word by word. NeMo's own tests ask for the same."""

import copy
import gc
import math
import pickle
import re
import sys
import weakref

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli, kenlm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
tokens_of = pytest.importorskip("mgpu_ngram.torch")

V, OFFSET = 30, 100
TOLERANCE = 2e-5  # of a natural logarithm: log10 times ln 10 in float32


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """Return an ARPA file of order 4, whose words are 25 of the 30 tokens."""
    rng = np.random.default_rng(7)
    lines = [" ".join(chr(OFFSET + t) for t in rng.zipf(1.4, rng.integers(1, 12)) % 25) for _ in range(800)]
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "text").write_text("\n".join(lines) + "\n")
    words = ["estimate", str(folder / "text"), "-o", str(folder / "tokens.arpa"), "--order", "4", "--device", "cpu"]
    assert cli.main([*words, "--discount-fallback"]) == 0
    return folder / "tokens.arpa"


@pytest.fixture
def lm(arpa, device):
    return tokens_of.NGramLM.from_file(arpa, V, normalize_unk=False, device=device)


class Words:
    """A batch of KenLM's states, advanced word by word."""

    def __init__(self, arpa, rows, bos):
        self.model, self.states = kenlm.Model(str(arpa)), [kenlm.State() for _ in range(rows)]
        for state in self.states:
            (self.model.BeginSentenceWrite if bos else self.model.NullContextWrite)(state)

    def scores(self):
        return torch.tensor([[self.one(state, chr(t + OFFSET))[0] for t in range(V)] for state in self.states])

    def final(self):
        return torch.tensor([self.one(state, "</s>")[0] for state in self.states])

    def one(self, state, word):
        after = kenlm.State()
        return self.model.BaseScore(state, word, after) * math.log(10), after

    def step(self, tokens):
        pairs = [self.one(state, chr(t + OFFSET)) for state, t in zip(self.states, tokens, strict=True)]
        self.states = [after for _, after in pairs]
        return [score for score, _ in pairs]


@pytest.mark.parametrize("bos", [True, False])
def test_walks_are_those_of_kenlm(lm, arpa, bos):
    rng, plain = np.random.default_rng(1), Words(arpa, 6, bos)
    states = lm.get_init_states(6, bos)
    assert states.dtype == torch.int64 and states.shape == (6,)
    for _ in range(8):
        scores, after = lm.advance(states)
        assert scores.shape == after.shape == (6, V) and scores.dtype == torch.float32 and after.dtype == torch.int64
        assert torch.allclose(scores.cpu(), plain.scores(), atol=TOLERANCE, rtol=0)
        assert torch.allclose(lm.get_final(states).cpu(), plain.final(), atol=TOLERANCE, rtol=0)
        tokens = rng.integers(0, V, 6)
        wanted = plain.step(tokens.tolist())
        picked = torch.from_numpy(tokens).to(states.device)[:, None]
        assert np.allclose(scores.gather(1, picked)[:, 0].cpu().numpy(), wanted, atol=TOLERANCE, rtol=0)
        states = after.gather(1, picked)[:, 0]
    groups = {}
    for state, of_kenlm in zip(states.tolist(), plain.states, strict=True):
        groups.setdefault(state, set()).add(of_kenlm)
    assert all(len(group) == 1 for group in groups.values())


@pytest.mark.parametrize("bos", [True, False])
def test_sentences(lm, arpa, bos):
    sentences = [[3, 7, 1], [5, 4, 18, 29, 3, 9, 16, 2, 28, 6, 9]]
    wanted = []
    for sentence in sentences:
        plain = Words(arpa, 1, bos)
        wanted.append([plain.step([t])[0] for t in sentence])
        alone = lm(torch.tensor([sentence]).to(lm.device), bos=bos)
        assert np.allclose(alone.cpu().numpy(), [wanted[-1]], atol=TOLERANCE, rtol=0)
    padded = torch.tensor([sentences[0] + [0] * 8, sentences[1]]).to(lm.device)
    both = lm(padded, torch.tensor([3, 11]).to(lm.device), bos=bos).cpu().numpy()
    assert np.allclose(both, [wanted[0] + [0] * 8, wanted[1]], atol=TOLERANCE, rtol=0)
    with_end = lm(padded, torch.tensor([3, 11]).to(lm.device), bos=bos, eos=True).cpu().numpy()
    for row, sentence in zip(with_end, sentences, strict=True):
        plain = Words(arpa, 1, bos)
        scores = [plain.step([t])[0] for t in sentence] + [float(plain.final()[0])]
        assert np.allclose(row, scores + [0] * (12 - len(scores)), atol=TOLERANCE, rtol=0)
    assert lm(padded[:, :0]).shape == (2, 0)


def test_unknown_tokens_share_a_probability(arpa, device):
    shared = tokens_of.NGramLM.from_file(arpa, V, device=device)
    scores, _ = shared.advance(shared.get_init_states(1, bos=False))
    plain = Words(arpa, 1, False)
    wanted, unknown = plain.scores(), [t for t in range(V) if chr(t + OFFSET) not in plain.model]
    assert len(unknown) >= 5
    wanted[:, unknown] -= math.log(len(unknown))
    assert torch.allclose(scores.cpu(), wanted, atol=TOLERANCE, rtol=0)
    total = scores.exp().sum() + shared.get_final(shared.get_init_states(1, bos=False)).exp()
    assert abs(float(total) - 1) < 1e-4


def test_the_end_as_a_token(lm):
    states = lm.get_init_states(3)
    scores, after = lm.advance(states, eos_id=4)
    assert torch.equal(scores[:, 4], lm.get_final(states)) and torch.equal(after[:, 4], states)
    plain, others = lm.advance(states)
    keep = [t for t in range(V) if t != 4]
    assert torch.equal(scores[:, keep], plain[:, keep]) and torch.equal(after[:, keep], others[:, keep])


def test_tokens_that_are_none_count_as_unknown(lm, arpa):
    unknown = next(t for t in range(V) if chr(t + OFFSET) not in kenlm.Model(str(arpa)))
    states = lm.step(lm.get_init_states(4), torch.full((4,), 3, device=lm.device))
    after = lm.step(states, torch.tensor([unknown, -1, V, 1 << 40], device=lm.device))
    assert after.tolist() == [after[0]] * 4 and after[0] != lm.step(states, states.new_full((4,), 3))[0]
    last = tokens_of.NGramLM(lm.model, [chr(t + OFFSET) for t in range(4)])  # its last token is a word of the model
    states = last.get_init_states(3)
    assert last.step(states, torch.tensor([-1, 4, 3], device=lm.device)).tolist() == [
        -1,
        -1,
        last.advance(states)[1][0, 3],
    ]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_tokens_of_small_integers(lm, dtype):
    states, tokens = lm.get_init_states(4), torch.tensor([0, 3, 24, 29], device=lm.device)
    assert torch.equal(lm.step(states, tokens.to(getattr(torch, dtype))), lm.step(states, tokens))


def test_tokens_up_to_the_last_character(lm, arpa):
    load, last = tokens_of.NGramLM.from_file, sys.maxunicode
    with pytest.raises(ng.InputError, match="none of the 1 tokens is a word of the model"):
        load(arpa, 1, token_offset=last)
    with pytest.raises(ng.InputError, match=f"vocab_size is 2 but there are 1 characters from {last} on"):
        load(arpa, 2, token_offset=last)


def test_it_is_a_module_without_parameters(lm):
    assert lm.to("cpu") is lm and not list(lm.parameters()) and not lm.state_dict() and lm.vocab_size == V
    assert lm.eval() is lm and not lm.advance(lm.get_init_states(1))[0].requires_grad


@pytest.mark.gpu
def test_it_moves_to_the_gpu_and_back_with_a_module_that_has_it(arpa):
    lm = tokens_of.NGramLM.from_file(arpa, V, device="cpu")
    states = torch.arange(-1, 40)
    wanted = *lm.advance(states), lm.get_final(states)
    decoder = torch.nn.Sequential(lm)
    for place in "cuda", "cpu":
        decoder.to(place)
        assert lm.device.type == place and lm.get_init_states(1).device.type == place
        found = *lm.advance(states.to(place)), lm.get_final(states.to(place))
        assert all(array.device.type == place for array in found)
        for array, of_cpu in zip(found, wanted, strict=True):
            assert torch.allclose(array.cpu(), of_cpu, atol=TOLERANCE, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("symbols", "batch"), [(V, 5), (2100, 2500)])  # few words, and many
def test_cuda_graphs_capture_the_first_call(arpa, symbols, batch):
    lm = tokens_of.NGramLM(ng.Model.load(arpa, "gpu"), [chr(t + OFFSET) for t in range(symbols)])
    assert lm.compatible_with_cuda_graphs()
    states, graph = torch.zeros(batch, dtype=torch.int64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        begin = lm.get_init_states(batch)
        scores, after = lm.advance(states, eos_id=3)
        ends = lm.get_final(after[:, 7])
    others = [torch.ones(batch, symbols, device="cuda") for _ in range(3)]  # not where the graph writes
    for first in 0, 50:
        states.copy_(torch.arange(first, first + batch))
        graph.replay()
        wanted = lm.advance(states, eos_id=3)
        assert torch.equal(scores, wanted[0]) and torch.equal(after, wanted[1])
        assert torch.equal(ends, lm.get_final(after[:, 7])) and torch.equal(begin, lm.get_init_states(batch))
    assert all(bool((array == 1).all()) for array in others)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["A", "B"], "none of the 2 tokens is a word of the model; check how the words of the model name tokens"),
        ([chr(103), "A", chr(103)], "tokens 0 and 2 are the same word of the model, 'g'; rename one"),
    ],
)
def test_refusals(arpa, tokens, message):
    with pytest.raises(ng.InputError) as error:
        tokens_of.NGramLM(ng.Model.load(arpa, "cpu"), tokens)
    assert str(error.value) == message


def test_calls_that_are_refused(lm, arpa):
    place, labels = lm.device, torch.zeros(2, 3, dtype=torch.int64, device=lm.device)
    for call, message in (
        (
            lambda: lm(labels.float()),
            r"labels are torch.float32 of shape (2, 3) but must be a tensor of integers, (B, L)",
        ),
        (lambda: lm(labels + V), f"labels have {V} but must be 0 to {V - 1}"),
        (lambda: lm(labels, [1, 4]), "labels_lengths have 4 but must be 0 to 3"),
        (
            lambda: lm(labels, [1]),
            "labels_lengths are torch.int64 of shape (1,) but must be 2 integers, one for each row",
        ),
        (lambda: lm.advance(lm.get_init_states(1), eos_id=-1), f"eos_id is -1 but must be a token, 0 to {V - 1}"),
        (lambda: tokens_of.NGramLM(lm.model, {"a": 0}), "tokens are {'a': 0} but must be a list of words, by token id"),
        (
            lambda: tokens_of.NGramLM(str(arpa), ["a"]),
            f"model is {str(arpa)!r:.60} but must be a loaded model, such as",
        ),
        (lambda: tokens_of.NGramLM.from_file(arpa, 1.5), "vocab_size is 1.5 but must be an integer, 1 or more"),
        (lambda: tokens_of.NGramLM.from_file(arpa, 1 << 21), "vocab_size is 2,097,152 but there are 1,114,012 charact"),
    ):
        with pytest.raises(ng.InputError, match=re.escape(message)):
            call()
    padded = torch.cat([labels, torch.full((2, 1), -100, device=place)], 1)
    assert torch.equal(lm(padded, [3, 3])[:, :3], lm(labels))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_without_a_break(lm, backend):
    def walk(tokens):
        states = lm.step(lm.get_init_states(tokens.shape[0]), tokens)
        scores, after = lm.advance(states, eos_id=1)
        return 2 * scores, after, lm.get_final(states)

    compiled = torch.compile(walk, fullgraph=True, backend=backend)
    for rows in 1, 4, 7:
        tokens = torch.arange(-1, rows - 1).to(lm.device)
        assert all(torch.equal(a, b) for a, b in zip(compiled(tokens), walk(tokens), strict=True))


def test_operators_keep_the_rules_of_pytorch(lm):
    from torch import library

    states, ops = lm.get_init_states(3), torch.ops.mgpu_ngram
    for op, inputs in (ops.advance, (states,)), (ops.step, (states, states % 3)):
        library.opcheck(op.default, (*inputs, lm._number))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_calls_refuse_other_tensors(lm, fullgraph):
    states, wrong = lm.get_init_states(2), torch.tensor([0.5, 1.0], device=lm.device)
    calls = lm.advance, lm.get_final, lambda states: lm.step(states, states), lambda tokens: lm.step(states, tokens)
    for call in calls:
        with pytest.raises(ng.InputError, match=r"are torch.float32 of shape \(2,\) but must be"):
            torch.compile(call, backend="eager", fullgraph=fullgraph)(wrong)


def test_a_compiled_function_keeps_no_model(arpa):
    lm = tokens_of.NGramLM.from_file(arpa, V, device="cpu")
    compiled = [torch.compile(call, backend="eager") for call in (lm.advance, lm.get_final)]
    states, number = lm.get_init_states(2), lm._number
    for call in compiled:
        call(states)
    gone = weakref.ref(lm), weakref.ref(lm.model)
    del lm, compiled, call
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in gone] == [None, None]
    with pytest.raises(
        ng.InputError, match=f"the n-gram model {number} of a compiled function is gone; keep the model"
    ):
        torch.ops.mgpu_ngram.advance(states, number)


def test_copies_outlive_a_module(arpa, device):
    module = torch.nn.Sequential(tokens_of.NGramLM.from_file(arpa, V, device=device))
    states = module[0].get_init_states(3)
    expected, copied = module[0].advance(states), copy.deepcopy(module)
    del module
    gc.collect()
    found = torch.compile(lambda states: copied[0].advance(states), backend="eager")(states)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_module_pickles(lm):
    states = lm.get_init_states(3)
    copied = pickle.loads(pickle.dumps(lm))
    for found, wanted in zip(copied.advance(states), lm.advance(states), strict=True):
        assert torch.equal(found, wanted)
    assert copied._number != lm._number and copied.device == lm.device


def test_arguments_that_are_no_tensors_of_integers(lm):
    states, tokens = lm.get_init_states(2), torch.zeros(2, dtype=torch.int64)
    for call, message in [
        (lambda: lm.advance([0, 1]), "states are list but must be a tensor of integers, (B,)"),
        (lambda: lm.advance(states, eos_id=1.5), "eos_id is 1.5 but must be an integer"),
        (
            lambda: lm.step(states, tokens.float()),
            "tokens are torch.float32 of shape (2,) but must be a tensor of integers",
        ),
        (lambda: lm.step([0], tokens), "states are list but must be"),
        (lambda: lm.get_final(np.zeros(1, int)), "states are int64 of shape (1,) but must be"),
        (lambda: lm.get_init_states(-1), "batch_size is -1 but must be an integer, 0 or more"),
        (lambda: lm(tokens[None], "ab"), "labels_lengths are 'ab' but must be 1 integers"),
    ]:
        with pytest.raises(ng.InputError, match=re.escape(message)):
            call()


def test_autocast_leaves_scores_as_they_are(lm):
    """As PyTorch's losses: logarithms of probabilities are float32."""
    states = lm.get_init_states(3)
    wanted = *lm.advance(states), lm.get_final(states)
    with torch.autocast(lm.device.type, dtype=torch.bfloat16):
        found = *lm.advance(states), lm.get_final(states)
    assert found[0].dtype == torch.float32 and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_calls_of_a_model_may_stand_in_a_compiled_function(arpa, device):
    model = ng.Model.load(arpa, device)
    states = torch.zeros(3, dtype=torch.int32, device="cuda" if device == "gpu" else "cpu")
    shape = 2, 1, len(model.vocabulary)

    def scores(states):
        begun = model.start(3, out=torch.empty_like(states))
        rows = 2 * model.distribution(["", "a"], "max", out=torch.empty(shape, device=states.device))
        return 2 * model.advance(states + 1)[0], *model.step(states, states), model.final(states), begun, rows

    found, wanted = torch.compile(scores, backend="eager")(states), scores(states)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_without_pytorch_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mgpu_ngram.torch")
    with pytest.raises(
        ng.InputError, match="mgpu_ngram.torch needs PyTorch, which is not installed; pip install torch"
    ):
        import mgpu_ngram.torch  # noqa: F401
