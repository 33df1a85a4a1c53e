"""Arguments of `mgpu_ngram.torch` and of methods of `Model` that take tensors: strange ones, and tensors of ids."""

import math
import warnings

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.kernels.dispatch import to_host

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nt = pytest.importorskip("mgpu_ngram.torch")


def strange_values():
    """Return values that few arguments take. Most have a representation in several lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of nested and of quantized tensors
        nested = torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)])
        quantized = torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)
    return [
        None, "no", b"no", 1.5, math.nan, -1, 1 << 62, 1 << 70, [1, 2], [[1], [1, 2]], {"a": 1}, {1, 2}, object(), 1j,
        np.array(3), np.zeros((2, 3)), np.array([None, 1]), np.array(["a", "b"]), np.array([1, 2**63], np.uint64),
        np.zeros(2, [("a", "i4")]), nested, quantized, torch.tensor(3), torch.zeros(2, 3), torch.zeros(2, 2, 5),
        torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.complex64).conj(), torch.zeros(2, 3).to_sparse(),
        torch.zeros(2, dtype=torch.int64).to_sparse(), torch.zeros(2, 3, device="meta"), torch.full((2, 3), math.nan),
        torch.zeros(2, 3).bfloat16(), torch.zeros(2, 3).to(torch.float8_e4m3fn), torch.ones(2).to(torch.uint64),
    ]  # fmt: skip


@pytest.fixture
def calls(arpa):
    """Return (function, arguments that it takes) by name."""
    model = ng.Model.load(arpa, "cpu")
    lm, states = nt.NGramLM(model, ["a", "b"]), model.start(2)
    of_tokens = nt.LogitsProcessor(model, 0.5, ["a", "b", "</s>"], eos_token_id=2, pad_token_id=1)
    of_pieces = nt.LogitsProcessor(model, 0.5, pieces=[b" a", b"b", b" "], eos_token_id=2)
    search, layer = nt.CTCBeamSearch([" ", "a", "b", ""], model), nt.MixtureOfDistributions(4, 5, 2)
    hidden, log_probs, target = torch.randn(2, 4), torch.randn(2, 2).log_softmax(-1), torch.tensor([1, 2])
    rows = {"input_ids": torch.tensor([[1, 0], [0, 1]]), "scores": torch.zeros(2, 3)}
    begin = lm.get_init_states(2)
    return {
        "start": (model.start, {"batch": 2, "bos": True, "out": None}),
        "step": (model.step, {"states": states, "words": [3, 4], "scale": "ln", "out": None}),
        "final": (model.final, {"states": states, "scale": "ln"}),
        "advance": (model.advance, {"states": states, "scale": "ln", "dtype": "float16", "next_states": True}),
        "sample": (model.sample, {"histories": ["a"], "temperature": 1.0, "top_k": 2, "seed": 0, "bos": False}),
        "distribution": (model.distribution, {"histories": ["a"], "orders": "all", "bos": False, "out": None}),
        "score_ids": (model.score_ids, {"ids": [3, 4], "offsets": [0, 2]}),
        "NGramLM": (nt.NGramLM, {"model": model, "tokens": ["a", "b"], "normalize_unk": True}),
        "from_file": (nt.NGramLM.from_file, {"lm_path": arpa, "vocab_size": 3, "token_offset": 97, "device": "cpu"}),
        "get_init_states": (lm.get_init_states, {"batch_size": 2, "bos": True}),
        "NGramLM.advance": (lm.advance, {"states": begin, "eos_id": None}),
        "NGramLM.step": (lm.step, {"states": begin, "tokens": target}),
        "get_final": (lm.get_final, {"states": begin}),
        "forward": (lm, {"labels": target[:, None] - 1, "labels_lengths": [0, 1], "bos": True, "eos": False}),
        "LogitsProcessor": (
            nt.LogitsProcessor,
            {"model": model, "weight": 0.5, "tokens": ["a"], "eos_token_id": None, "pad_token_id": None},
        ),
        "of tokens": (of_tokens, rows),
        "of pieces": (of_pieces, rows),
        "CTCBeamSearch": (
            nt.CTCBeamSearch,
            {"labels": ["a", ""], "model": model, "unigrams": None, "alpha": 0.5, "lm_score_boundary": True},
        ),
        "search": (
            search,
            {
                "log_probs": torch.randn(2, 7, 4).log_softmax(-1),
                "lengths": [7, 5],
                "n_best": 1,
                "beam_width": 9,
                "beam_prune_logp": -10.0,
                "prune_history": False,
                "hotwords": ["a"],
                "start_states": None,
            },
        ),
        "MixtureOfDistributions": (
            nt.MixtureOfDistributions,
            {"hidden_size": 3, "num_words": 4, "num_counts": 2, "block_dropout": {"counts": 0.5}},
        ),
        "loss of the layer": (layer, {"hidden": hidden, "log_probs": log_probs, "target": target}),
        "probabilities": (layer.probabilities, {"hidden": hidden, "rows": torch.rand(2, 2, 5)}),
        "top_k": (
            nt.MixtureOfDistributions(4, 2, 1).top_k,
            {"hidden": hidden, "models": [lm], "states": begin[:, None], "k": 2},
        ),
        "mixture_loss": (
            nt.mixture_loss,
            {"logits": torch.randn(2, 8), "log_probs": log_probs, "target": target, "num_words": 5, "dropped": None},
        ),
    }


NAMES = [
    "start", "step", "final", "advance", "sample", "distribution", "score_ids", "NGramLM", "from_file",
    "get_init_states", "NGramLM.advance", "NGramLM.step", "get_final", "forward", "LogitsProcessor", "of tokens",
    "of pieces", "CTCBeamSearch", "search", "MixtureOfDistributions", "loss of the layer", "probabilities", "top_k",
    "mixture_loss",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_strange_values_are_taken_or_refused_in_one_line(calls, name):
    assert set(NAMES) == set(calls)
    call, arguments = calls[name]
    call(**arguments)
    for argument in arguments:
        for value in strange_values():
            try:
                call(**arguments | {argument: value})
            except ng.InputError as error:
                assert "\n" not in str(error) and len(str(error)) < 400, (argument, value)


def test_tensors_of_ids(arpa, device):
    """Rows, samples and scores are tensors if the ids are one, and equal those of arrays."""
    model, place = ng.Model.load(arpa, device), "cuda" if device == "gpu" else "cpu"
    ids = np.array([[3, 4], [4, 3]])
    tensor = torch.from_numpy(ids).to(place)
    rows = model.distribution(tensor, scale="ln")
    assert rows.device.type == place and np.array_equal(rows.cpu(), to_host(model.distribution(ids, scale="ln")))
    half, of_array = (model.distribution(given, dtype="bfloat16") for given in (tensor, ids))
    assert half.dtype == torch.bfloat16 and np.array_equal(half.view(torch.uint16).cpu(), to_host(of_array))
    for found, wanted in zip(model.distribution(tensor, top_k=2), model.distribution(ids, top_k=2), strict=True):
        assert found.device.type == place and np.array_equal(found.cpu(), to_host(wanted))
    for how in {}, {"top_k": 2}, {"top_p": 0.5}:
        words = model.sample(tensor, **how)
        assert words.dtype == torch.int32 and np.array_equal(words.cpu(), to_host(model.sample(ids, **how)))
    assert np.array_equal(to_host(model.sample([tensor[0], ids[1]])), to_host(model.sample(ids)))
    [block] = model.iter_distributions(tensor)
    assert np.array_equal(to_host(block), to_host(model.distribution(ids)))
    scores = model.score_ids(tensor.flatten(), torch.tensor([0, 2, 4], device=place))
    assert scores.device.type == place and np.array_equal(scores.cpu(), model.score_ids(ids.ravel(), [0, 2, 4]))
    with pytest.raises(ng.InputError, match=r"^histories are torch.bfloat16 of shape \(2, 2\) but must be integers"):
        model.distribution(tensor.bfloat16())


def test_a_view_with_another_sign_is_not_filled(arpa):
    """PyTorch would write into a copy."""
    out = torch.zeros(1, 2, 3, dtype=torch.complex64).conj().imag
    with pytest.raises(ng.InputError, match=r"out is a view with another sign than its memory; give out.clone\(\)"):
        ng.Model.load(arpa, "cpu").distribution(["a"], out=out)
