"""Files of models: names and shapes of all formats, and one line for each way to be wrong."""

import warnings

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.core.nmt.model import Lstm
from mgpu_ngram.core.nmt.names import MARIAN
from tests.support.slow_cases import first_fast


def error_of(path):
    with pytest.raises(InputError) as error:
        load_nmt_model(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "kind", first_fast([{}, {"norm": "marian"}, {"norm": "nematus"}, {"cell": "mlstm"}, {"transitions": 2}], 2)
)
def test_each_tensor_is_needed_with_its_shape(random_tensors, save_model, kind):
    tensors = random_tensors(**kind)
    load_nmt_model(save_model(tensors))
    optional = {"decoder_c_tt", "ff_logit_W"}  # without these, the model is a sound one of another kind
    for name in sorted(set(tensors) - optional)[len(tensors) % 2 :: 2]:
        missing = {other: array for other, array in tensors.items() if other != name}
        if not (name.endswith("Wm") or "_drt_" in name):
            assert repr(name) in error_of(save_model(missing))
        wrong = tensors | {name: np.zeros((3, 11), np.float32)}
        message = error_of(save_model(wrong))
        assert repr(name) in message and "(3, 11)" in message


def test_errors_name_the_tensor_and_both_shapes(random_tensors, save_model):
    tensors = random_tensors()
    path = save_model(tensors | {"decoder_U_nl": np.zeros((4, 9), np.float32)})
    assert error_of(path).startswith(
        f"tensor 'decoder_U_nl' of {path!r} has shape (4, 9) but the other tensors need (4, 8); "
    )
    path = save_model({name: array for name, array in tensors.items() if name != "encoder_b"})
    assert error_of(path).startswith(f"{path!r} lacks tensor 'encoder_b' of shape (8,); ")
    path = save_model(tensors | {"Wemb_dec": np.zeros((8, 5), np.float32)})  # the output layer has 7 words
    assert error_of(path).startswith(
        f"tensor 'Wemb_dec' of {path!r} has shape (8, 5) but the other tensors need (7, 5); "
    )
    path = save_model(tensors | {"encoder_2_W": np.zeros((4, 9), np.float32)})
    assert error_of(path).startswith(f"tensor 'encoder_2_W' (4, 9) of {path!r} has no place (1 such); ")
    path = save_model(tensors | {"my_gamma": np.zeros((4,), np.float32)})
    assert error_of(path).startswith(f"tensor 'my_gamma' (4,) of {path!r} has no place (1 such); ")
    path = save_model(tensors | {"encoder_b": np.zeros((2, 2, 2), np.float32)})
    error = f"array 'encoder_b' of {path!r} has shape (2, 2, 2) but must have at most 2 axes; "
    assert error_of(path).startswith(error)
    path = save_model(tensors | {"Wemb": np.zeros((0, 5), np.float32)})
    assert error_of(path).startswith(f"tensor 'Wemb' of {path!r} has shape (0, 5), so it is empty; ")
    assert error_of(save_model({})).endswith(
        "lacks tensor 'encoder_W' of shape (rows, columns); copy the model again or save it again with numpy.savez"
    )


@pytest.mark.parametrize(
    ("norm", "name", "shape"), [("marian", "encoder_gamma1", "(12,)"), ("nematus", "encoder_W_lns", "(8,)")]
)
def test_a_model_lacks_the_first_scale(random_tensors, save_model, norm, name, shape):
    path = save_model({other: array for other, array in random_tensors(norm=norm).items() if other != name})
    assert error_of(path).startswith(f"{path!r} lacks tensor {name!r} of shape {shape}; ")


def test_a_model_lacks_the_embeddings_of_the_target(random_tensors, save_model):
    """Source and target have 9 and 7 words, so they share no embeddings."""
    path = save_model({name: array for name, array in random_tensors().items() if name != "Wemb_dec"})
    assert error_of(path).startswith(f"{path!r} lacks tensor 'Wemb_dec' of shape (7, 5); ")


def test_pickles_integers_and_nan_are_refused(random_tensors, save_model, tmp_path):
    tensors = random_tensors()
    assert "is a pickle" in error_of(save_model(tensors | {"encoder_b": np.array([{}] * 8, object)}))
    assert "is int64" in error_of(save_model(tensors | {"encoder_b": np.zeros(8, np.int64)}))
    assert "holds NaN" in error_of(save_model(tensors | {"encoder_b": np.full(8, np.nan, np.float32)}))
    with warnings.catch_warnings(action="error"):  # there is one line
        assert "or infinity" in error_of(save_model(tensors | {"encoder_b": np.full(8, 1e300)}))
    (tmp_path / "text.npz").write_text("hello")
    assert "damaged .npz" in error_of(str(tmp_path / "text.npz"))
    assert "does not exist" in error_of(str(tmp_path / "nothing.npz"))
    whole = (tmp_path / "model.npz").read_bytes()
    for size in range(0, len(whole), len(whole) // 20):
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        error_of(str(tmp_path / "cut.npz"))


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ('{"use_dropout": true}', True),
        ('{"use_dropout": true, "model_version": 0.05}', True),
        ('{"use_dropout": true, "model_version": 0.1}', False),
        ('{"use_dropout": false}', False),
        ("[1", False),
        ("[1]", False),
    ],
)
def test_dropout_of_early_releases_of_nematus(random_tensors, save_model, options, refused):
    path = save_model(random_tensors())
    with open(f"{path}.json", "w") as file:
        file.write(options)
    if refused:
        assert "with dropout by Nematus before 0.1 (model.npz.json), so" in error_of(path)
    else:
        load_nmt_model(path)


def test_tensors_that_are_no_weights_are_ignored(random_tensors, save_model):
    extra = {"history_errs": np.zeros(3), "uidx": np.int64(3), "zipped_params": np.array([{}], object)}
    extra |= {"adam_t": np.zeros(1), "special:model.yml": np.zeros(5, np.int8)}
    load_nmt_model(save_model(random_tensors() | extra))


def test_vectors_may_be_matrices_and_any_precision_or_order(random_tensors, save_model):
    tensors = random_tensors()
    expected = load_nmt_model(save_model(tensors))
    rows = {n: a.reshape(1, -1) if a.ndim == 1 else np.asfortranarray(a, np.float64) for n, a in tensors.items()}
    rows["decoder_c_tt"] = np.zeros((1, 0))
    rows["ff_logit_b"] = rows["ff_logit_b"].T
    found = load_nmt_model(save_model(rows))
    arrays = [[], []]
    for model, into in zip((expected, found), arrays, strict=True):
        model.map_arrays(into.append)
    assert len(arrays[0]) == len(arrays[1]) > 20
    for a, b in zip(*arrays, strict=True):
        np.testing.assert_array_equal(a, b)
        assert b.dtype == np.float32


@pytest.mark.parametrize("norm", ["", "marian"])
def test_names_of_marian(random_tensors, save_model, norm):
    tensors = random_tensors(norm=norm)
    renamed = of_marian(tensors)
    assert {"encoder_bi_r_Ux", "decoder_cell2_W", "decoder_ff_logit_l1_W2", "decoder_Wemb"} <= set(renamed)
    expected, found = load_nmt_model(save_model(tensors, "a")), load_nmt_model(save_model(renamed, "b"))
    pairs = [[], []]
    for model, into in zip((expected, found), pairs, strict=True):
        model.map_arrays(into.append)
    assert all(np.array_equal(a, b) for a, b in zip(*pairs, strict=True))


def of_marian(tensors):
    """Return tensors with the names of Marian's s2s."""
    back = {ours: marian for marian, ours in MARIAN.items()}
    return {back.get(name, name): array for name, array in tensors.items()}


def test_names_of_marian_are_those_that_it_writes():
    """Some of each kind, as Marian's s2s writes them: the first matrix of the output reads the word before."""
    some = {
        "encoder_bi_r_Wx": "encoder_r_Wx", "decoder_cell1_U": "decoder_U", "decoder_cell2_W": "decoder_Wc",
        "decoder_cell2_bx": "decoder_bx_nl", "decoder_ff_logit_l1_W0": "ff_logit_prev_W",
        "decoder_ff_logit_l1_b1": "ff_logit_lstm_b", "decoder_ff_logit_l1_gamma2": "ff_logit_l1_gamma2",
        "decoder_ff_logit_l2_b": "ff_logit_b", "decoder_ff_state_gamma": "ff_state_gamma", "encoder_Wemb": "Wemb",
    }  # fmt: skip
    assert {marian: MARIAN[marian] for marian in some} == some


def test_errors_of_marian_models_have_the_names_of_the_file(random_tensors, save_model):
    tensors = of_marian(random_tensors())
    path = save_model({name: array for name, array in tensors.items() if name != "encoder_bi_b"})
    assert error_of(path).startswith(f"{path!r} lacks tensor 'encoder_bi_b' of shape (8,); ")
    wrong = save_model(tensors | {"decoder_cell2_W": np.zeros((3, 11), np.float32)})
    assert error_of(wrong).startswith(f"tensor 'decoder_cell2_W' of {wrong!r} has shape (3, 11) but")


def test_the_output_matrix_of_marian_is_transposed(random_tensors, save_model):
    """Later releases of Marian store an output layer of its own by word."""
    tensors = of_marian(random_tensors())
    old = load_nmt_model(save_model(tensors, "old"))
    weight = tensors.pop("decoder_ff_logit_l2_W")
    new = load_nmt_model(save_model(tensors | {"decoder_ff_logit_l2_Wt": weight.T}, "new"))
    assert np.array_equal(new.output.weight_XY, old.output.weight_XY)
    wrong = save_model(tensors | {"decoder_ff_logit_l2_Wt": weight})
    assert "'decoder_ff_logit_l2_Wt'" in error_of(wrong) and "has shape (5, 7) but" in error_of(wrong)


def test_transformers_of_marian_are_refused(save_model):
    path = save_model({name: np.ones((4, 4), np.float32) for name in ("Wemb", "encoder_l1_self_Wq")})
    assert error_of(path).startswith(f"{path!r} has tensor 'encoder_l1_self_Wq', so it is a transformer; models that")


def test_lstms_of_marian_are_refused(random_tensors, save_model):
    """Their gates are in another order than Amun's."""
    path = save_model(of_marian(random_tensors(cell="lstm")))
    assert error_of(path).startswith(f"tensor 'encoder_bi_U' (4, 16) of {path!r} is of an LSTM but only GRUs of Marian")


def test_tied_embeddings(random_tensors, save_model):
    tensors = random_tensors(tied="target")
    assert np.array_equal(load_nmt_model(save_model(tensors)).output.weight_XY, tensors["Wemb_dec"].T)
    tensors = random_tensors(tied="all") | {"ff_logit_b": np.zeros(9, np.float32)}
    model = load_nmt_model(save_model(tensors))
    assert np.array_equal(model.output.weight_XY, tensors["Wemb"].T) and model.vocab_size == 9


def test_a_split_lstm_is_that_of_one_matrix(random_tensors, save_model):
    tensors = random_tensors(cell="lstm")
    model = load_nmt_model(save_model(tensors))
    (cell,) = model.forward
    assert isinstance(cell, Lstm) and cell.mix_input is None
    for prefix in ("encoder_", "encoder_r_", "decoder_"):
        for name, proposal in (("W", "Wx"), ("U", "Ux"), ("b", "bx")):
            whole = tensors[prefix + name]
            tensors[prefix + name], tensors[prefix + proposal] = whole[..., :12], whole[..., 12:]
    split = load_nmt_model(save_model(tensors))
    assert np.array_equal(split.forward[0].state.weight_XY, cell.state.weight_XY)
    assert np.array_equal(split.decoder[0].input.bias_Y, model.decoder[0].input.bias_Y)


def test_embeddings_of_factors_are_in_their_order(random_tensors, save_model):
    tensors = random_tensors(factors=(1, 2))
    found = load_nmt_model(save_model(tensors)).source_embeddings
    assert all(np.array_equal(a, tensors[b]) for a, b in zip(found, ("Wemb", "Wemb1", "Wemb2"), strict=True))


def test_an_lstm_on_the_context_has_names_of_its_own(random_tensors, save_model):
    """The multiplicative part of the second cell has the prefix decoder_2_; gates and proposals may be apart."""
    tensors = random_tensors(cell="mlstm")
    for name in ("decoder_Wcx", "decoder_Ux_nl", "decoder_bx_nl"):
        del tensors[name]
    H, C = 4, 8
    sizes = {"decoder_Wc": (C, 4 * H), "decoder_U_nl": (H, 4 * H), "decoder_b_nl": (4 * H,)}
    sizes |= {"decoder_2_Wm": (C, H), "decoder_2_Um": (H, H), "decoder_2_bm": (H,), "decoder_2_bmu": (H,)}
    rng = np.random.default_rng(1)
    tensors |= {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    (cell,) = load_nmt_model(save_model(tensors, "whole")).conditional
    layers = {"decoder_2_W": cell.mix_input, "decoder_2_U": cell.mix_state}
    for name, layer in layers.items():
        assert np.array_equal(layer.weight_XY, tensors[f"{name}m"])
        assert np.array_equal(layer.bias_Y, tensors["decoder_2_bm" if name.endswith("W") else "decoder_2_bmu"])
    for name, proposal in (("Wc", "Wcx"), ("U_nl", "Ux_nl"), ("b_nl", "bx_nl")):
        whole = tensors[f"decoder_{name}"]
        tensors[f"decoder_{name}"], tensors[f"decoder_{proposal}"] = whole[..., :12], whole[..., 12:]
    (split,) = load_nmt_model(save_model(tensors, "split")).conditional
    for ours, other in ((split.input, cell.input), (split.state, cell.state)):
        assert np.array_equal(ours.weight_XY, other.weight_XY)
    assert np.array_equal(split.input.bias_Y, cell.input.bias_Y)


def test_weights_are_normalised_by_column(random_tensors, save_model):
    """By hand: a column (3, 4) with scale 2 becomes (3, 4) / (5 * 2)."""
    tensors = random_tensors(norm="weights")
    tensors["decoder_Ux"][:, 0], tensors["decoder_Ux_wns"][0] = (3, 4, 0, 0), 2
    (cell,) = load_nmt_model(save_model(tensors)).decoder
    np.testing.assert_allclose(cell.state.weight_XY[:, 8], [0.3, 0.4, 0, 0], rtol=1e-6)


def test_the_number_of_parameters(random_tensors, save_model):
    tensors = random_tensors()
    expected = sum(array.size for name, array in tensors.items() if name != "decoder_c_tt")
    assert load_nmt_model(save_model(tensors)).parameters == expected
