"""Methods of `Model` in functions that `torch.compile` compiles: one operator each, no graph break."""

import copy
import pickle

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli

torch = pytest.importorskip("torch")

LINES = ["a b c d e", "b c a", "d e f g a b", "g"]
ROWS = (1, 4, 7)  # PyTorch compiles once more for the second size, and then for all sizes


def estimated(folder, lines, order):
    """Return the path of a model."""
    (folder / "text").write_text("\n".join(lines) + "\n")
    words = ["estimate", str(folder / "text"), "-o", str(folder / "model.safetensors"), "--order", str(order)]
    assert cli.main([*words, "--discount-fallback", "--device", "cpu"]) == 0
    return folder / "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return estimated(tmp_path_factory.mktemp("compiled"), LINES * 3, 3)


@pytest.fixture
def model(saved, device):
    return ng.Model.load(saved, device)


def place(model):
    return "cuda" if model.device == "gpu" else "cpu"


def states_of(model, rows):
    return torch.arange(-1, rows - 1, dtype=torch.int32, device=place(model))


CALLS = {
    "step": lambda model, states: model.step(states, states + 1),
    "step in ln": lambda model, states: model.step(states, words=states + 1, scale="ln"),
    "final": lambda model, states: model.final(states),
    "advance": lambda model, states: model.advance(states, "ln"),
    "rows alone": lambda model, states: model.advance(states, next_states=False, dtype="float16")[0],
    "rows of bfloat16": lambda model, states: model.advance(states, dtype="bfloat16")[0].float(),
    "distribution": lambda model, states: model.distribution(abs(states)[:, None], bos=True),
    "one order": lambda model, states: model.distribution(abs(states)[:, None], "max", scale="log10", top_k=None),
    "best words": lambda model, states: model.distribution(abs(states)[:, None], top_k=3),
    "sample": lambda model, states: model.sample(abs(states)[:, None], temperature=0.5, seed=7),
    "score_ids": lambda model, states: model.score_ids(abs(states), torch.tensor([0, len(states)]).to(states.device)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_graph_break(call, backend, model):
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for rows in ROWS:
        states = states_of(model, rows)
        expected, found = call(model, states), compiled(model, states)
        pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
        for one, other in pairs:
            assert one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


def test_operators_keep_the_rules_of_pytorch(model):
    from torch import library

    from mgpu_ngram.engine.torch import operators  # noqa: F401

    states, ops, number = states_of(model, 5), torch.ops.mgpu_ngram, {"model": model._number}
    ends = torch.tensor([0, 2, 5]).to(states.device)
    histories = abs(states)[:, None]
    for op, *inputs in (
        (ops.model_step, states, states),
        (ops.model_final, states),
        (ops.model_advance, states),
        (ops.model_advance, states, "ln", "float16", False),
        (ops.model_distribution, histories),
        (ops.model_distribution, histories, "max", "stored", None, "bfloat16"),
        (ops.model_distribution, histories, "all", "smoothed", 4),
        (ops.model_sample, histories),
        (ops.model_score_ids, abs(states), ends),
    ):
        library.opcheck(op.default, tuple(inputs), number)


def test_two_models_in_one_function(saved, tmp_path, device):
    paths = saved, estimated(tmp_path, ["c b a", "a a a"], 2)
    models = [ng.Model.load(path, device) for path in paths]
    models += [copy.copy(models[0]), pickle.loads(pickle.dumps(models[1]))]
    final = torch.compile(lambda model, states: model.final(states), fullgraph=True, backend="eager")
    states = states_of(models[0], 2)
    for one in (*models, *models):
        assert torch.equal(final(one, states), one.final(states))
    assert len({one._number for one in models}) == 4


def test_other_arguments_break_the_graph_and_work(model):
    states = states_of(model, 3)
    out = torch.empty(3, device=place(model)), torch.empty(3, dtype=torch.int32, device=place(model))
    rows = model.distribution(abs(states)[:, None]).contiguous()
    for call in (
        lambda states: [2 * x for x in model.step(states + 0, states, out=out)],
        lambda states: [2 * model.distribution(abs(states)[:, None], out=rows.clone())],
        lambda states: [2 * model.distribution(abs(states)[:, None], [1, 3])],
        lambda states: [2 * model.distribution(abs(states)[:, None], 2)],
        lambda states: [2 * model.sample(abs(states)[:, None], 1.0, None)],
        lambda states: [2 * model.sample(abs(states)[:, None], seed=(1 << 64) - 1)],
        lambda states: [2 * torch.as_tensor(model.start(3), device=states.device) + states],
    ):
        for one, other in zip(call(states), torch.compile(call, backend="eager")(states), strict=True):
            assert torch.equal(one, other)
    found = torch.compile(lambda states: model.final(states), backend="eager")(np.zeros(2, np.int32))
    assert len(found) == 2
    with pytest.raises(ng.InputError, match="stream is given"):
        torch.compile(lambda states: model.final(states, stream=7), backend="eager")(states)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, states: model.final(states, "decibel"), "decibel"),
        (lambda model, states: model.advance(states, dtype="int8"), "int8"),
        (lambda model, states: model.step(states, states[:-1]), "give a word for each state"),
    ],
)
def test_errors_name_what_is_wrong(call, message, model):
    with pytest.raises(Exception, match=message):
        torch.compile(call, fullgraph=True, backend="eager")(model, states_of(model, 3))
