"""Deep models of Marian's s2s, beside plain loops of its equations in float64."""

import itertools

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.engine.decode.batch import Forced, decode
from mgpu_ngram.engine.decode.search_options import SearchOptions
from mgpu_ngram.engine.memory.copies import to_device_fast

SOURCE_V, V, E, H = 9, 7, 5, 4
SENTENCES = [np.array(ids) for ids in ([2, 3, 0], [4, 5, 6, 7, 8, 2, 3, 4, 0], [5, 0])]
DEFAULTS = {
    "enc-type": "bidirectional", "enc-depth": 1, "enc-cell-depth": 1, "dec-depth": 1, "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1, "skip": False, "layer-normalization": False,
}  # fmt: skip


def cells(o):
    """Return {prefix: width of the input, 0 for none} of all cells, as Marian names them."""
    found = {}
    both = o["enc-depth"] if o["enc-type"] != "bi-unidirectional" else 1
    for side, i, j in itertools.product(
        ("encoder_bi", "encoder_bi_r"), range(1, both + 1), range(1, o["enc-cell-depth"] + 1)
    ):  # fmt: skip
        name = side + (f"_l{i}" if i > 1 else "") + (f"_cell{j}" if i > 1 or j > 1 else "")
        found[name] = 0 if j > 1 else H if i > 1 else E
    for i, j in itertools.product(range(both + 1, o["enc-depth"] + 1), range(1, o["enc-cell-depth"] + 1)):
        found[f"encoder_l{i}_cell{j}"] = 0 if j > 1 else H if i > 2 else 2 * H
    C = width_of_contexts(o)
    for j in range(1, o["dec-cell-base-depth"] + 1):
        found[f"decoder_cell{j}"] = {1: E, 2: C}.get(j, 0)
    for i, j in itertools.product(range(2, o["dec-depth"] + 1), range(1, o["dec-cell-high-depth"] + 1)):
        found[f"decoder_l{i}_cell{j}"] = 0 if j > 1 else H
    return found


def width_of_contexts(o):
    return H if o["enc-type"] == "bi-unidirectional" and o["enc-depth"] > 1 else 2 * H


def tensors_of(o, seed=0):
    """Return {name: array} of a model with these options, and the options as Marian stores them."""
    C, norm = width_of_contexts(o), o["layer-normalization"]
    found = {"encoder_Wemb": (SOURCE_V, E), "decoder_Wemb": (V, E), "decoder_ff_state_W": (C, H)}
    found |= {"decoder_ff_state_b": (1, H), "decoder_ff_logit_l2_W": (E, V), "decoder_ff_logit_l2_b": (1, V)}
    found |= {"decoder_W_comb_att": (H, C), "decoder_Wc_att": (C, C), "decoder_b_att": (1, C), "decoder_U_att": (C, 1)}
    for i, rows in enumerate((E, H, C)):
        found |= {f"decoder_ff_logit_l1_W{i}": (rows, E), f"decoder_ff_logit_l1_b{i}": (1, E)}
        if norm:
            found[f"decoder_ff_logit_l1_gamma{i}"] = 1, E
    if norm:
        found |= {"decoder_ff_state_gamma": (1, H), "decoder_att_gamma1": (1, C), "decoder_att_gamma2": (1, C)}
    for prefix, X in cells(o).items():
        sizes = {"U": (H, 2 * H), "Ux": (H, H), "b": (1, 2 * H), "bx": (1, H)}
        sizes |= {"W": (X, 2 * H), "Wx": (X, H)} if X else {}
        sizes |= {"gamma2": (1, 3 * H)} | ({"gamma1": (1, 3 * H)} if X else {}) if norm else {}
        found |= {f"{prefix}_{name}": size for name, size in sizes.items()}
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(size=size).astype(np.float32) for name, size in found.items()}
    text = "".join(f"{name}: {str(value).lower()}\n" for name, value in o.items())
    return tensors | {"special:model.yml": np.frombuffer(text.encode() + b"\0", np.int8)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class PlainMarian:
    """One sentence at a time."""

    def __init__(self, tensors, o):
        self.t = {name: array.astype(float) for name, array in tensors.items()}
        self.o, self.names = o, [*cells(o)]

    def norm(self, x, gamma):
        if not self.o["layer-normalization"]:
            return x
        return self.t[gamma][0] * (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-9)

    def gru(self, prefix, x, h, final=False):
        """x is None: a transition. final: the bias of the proposal is inside the reset gate."""
        t = self.t
        b = np.concatenate([t[f"{prefix}_b"][0], t[f"{prefix}_bx"][0]])
        U = np.concatenate([t[f"{prefix}_U"], t[f"{prefix}_Ux"]], axis=1)
        of_state, of_input = self.norm(h @ U, f"{prefix}_gamma2"), np.zeros(3 * H)
        if x is not None:
            W = np.concatenate([t[f"{prefix}_W"], t[f"{prefix}_Wx"]], axis=1)
            of_input = self.norm(x @ W, f"{prefix}_gamma1")
        r = sigmoid(of_input[:H] + of_state[:H] + b[:H])
        z = sigmoid(of_input[H : 2 * H] + of_state[H : 2 * H] + b[H : 2 * H])
        s, c = of_state[2 * H :], b[2 * H :]
        proposal = np.tanh(of_input[2 * H :] + ((s + c) * r if final else s * r + c))
        return (1 - z) * proposal + z * h

    def layer(self, prefixes, x, h):
        """A layer: a cell on x and transitions."""
        for j, prefix in enumerate(prefixes):
            h = self.gru(prefix, None if j else x, h)
        return h

    def sequence(self, prefixes, rows, backward):
        h, found = np.zeros(H), [None] * len(rows)
        for i in reversed(range(len(rows))) if backward else range(len(rows)):
            found[i] = h = self.layer(prefixes, rows[i], h)
        return found

    def stack(self, layers, rows, backward):
        for i, prefixes in enumerate(layers):
            turned = self.o["enc-type"] == "alternating" and i % 2 == 1
            states = self.sequence(prefixes, rows, backward != turned)
            skipped = self.o["skip"] and i > 0
            rows = [state + row for state, row in zip(states, rows, strict=True)] if skipped else states
        return rows

    def layers(self, side, first=2):
        """Return the names of the cells of each layer of a side."""
        depth = self.o["enc-cell-depth"] if side.startswith("encoder") else self.o["dec-cell-high-depth"]
        found = []
        if first == 1:
            found.append([side, *(f"{side}_cell{j}" for j in range(2, depth + 1))])
        i = 2
        while f"{side}_l{i}_cell1" in self.names:
            found.append([f"{side}_l{i}_cell{j}" for j in range(1, depth + 1)])
            i += 1
        return found

    def encode(self, source):
        rows = list(self.t["encoder_Wemb"][source])
        forward = self.stack(self.layers("encoder_bi", 1), rows, False)
        backward = self.stack(self.layers("encoder_bi_r", 1), rows, True)
        contexts = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
        return np.stack(self.stack(self.layers("encoder"), contexts, False))

    def log_probs(self, source, words):
        """Return the logarithm of the probability of each word, and the attention."""
        t, contexts = self.t, self.encode(source)
        first = self.norm(contexts.mean(0) @ t["decoder_ff_state_W"], "decoder_ff_state_gamma")
        h = np.tanh(first + t["decoder_ff_state_b"][0])
        high = self.layers("decoder")
        states = [h] * len(high)
        keys = [self.norm(row @ t["decoder_Wc_att"], "decoder_att_gamma1") + t["decoder_b_att"][0] for row in contexts]
        y, found, attention = np.zeros(E), [], []
        for word in words:
            h = self.gru("decoder_cell1", y, h)
            query = self.norm(h @ t["decoder_W_comb_att"], "decoder_att_gamma2")
            energies = np.array([np.tanh(key + query) @ t["decoder_U_att"][:, 0] for key in keys])
            weights = np.exp(energies) / np.exp(energies).sum()
            context = weights @ contexts
            h = self.gru("decoder_cell2", context, h, final=True)
            for j in range(3, self.o["dec-cell-base-depth"] + 1):
                h = self.gru(f"decoder_cell{j}", None, h, final=True)
            top = h
            for i, prefixes in enumerate(high):
                states[i] = self.layer(prefixes, top, states[i])
                top = states[i] + top if self.o["skip"] else states[i]
            hidden = np.zeros(E)
            for i, x in enumerate((y, top, context)):
                product = self.norm(x @ t[f"decoder_ff_logit_l1_W{i}"], f"decoder_ff_logit_l1_gamma{i}")
                hidden += product + t[f"decoder_ff_logit_l1_b{i}"][0]
            logits = np.tanh(hidden) @ t["decoder_ff_logit_l2_W"] + t["decoder_ff_logit_l2_b"][0]
            found.append((logits - np.log(np.exp(logits).sum()))[word])
            attention.append(weights)
            y = t["decoder_Wemb"][word]
        return found, np.array(attention)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enc-cell-depth": 2, "dec-cell-base-depth": 4, "layer-normalization": True},
        {"enc-depth": 3, "dec-depth": 3},
        {"enc-depth": 3, "dec-depth": 2, "skip": True, "enc-type": "alternating", "layer-normalization": True},
        {"enc-depth": 3, "enc-cell-depth": 3, "enc-type": "bi-unidirectional", "skip": True, "dec-depth": 3},
        {
            "enc-depth": 2,
            "enc-type": "bi-unidirectional",
            "dec-depth": 2,
            "dec-cell-high-depth": 3,
            "dec-cell-base-depth": 3,
        },
    ],
    ids=["shallow", "transitions", "stacked", "alternating", "unidirectional", "high"],
)
def test_deep_models(options, save_model, placed):
    """Sums of given words in a batch, and all results of a search, whose beams exchange their states."""
    options = DEFAULTS | options
    tensors = tensors_of(options)
    model, plain = placed(load_nmt_model(save_model(tensors))), PlainMarian(tensors, options)
    targets = [[3, 6, 2, 5, 4], [2, 2], [6]]
    settings = SearchOptions(alignments=True)
    for source, target, (found,) in zip(
        SENTENCES, targets, decode([model], SENTENCES, settings, forced=Forced(targets=targets)), strict=True
    ):
        scores, attention = plain.log_probs(source, [*target, 0])
        np.testing.assert_allclose(found.word_scores, scores, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.alignment_LT, attention, rtol=0, atol=1e-4)
    together = decode([model], SENTENCES, SearchOptions(4, 4))
    for source, results in zip(SENTENCES, together, strict=True):
        for found in results:
            np.testing.assert_allclose(found.word_scores, plain.log_probs(source, found.words)[0], rtol=1e-4, atol=1e-4)
        (alone,) = decode([model], [source], SearchOptions(4, 4))
        assert [(found.words, found.cost) for found in alone] == [(found.words, found.cost) for found in results]


def test_what_is_missing_has_the_name_in_the_file(save_model, mgpu_ngram):
    options = DEFAULTS | {"enc-depth": 2, "dec-depth": 3, "dec-cell-high-depth": 2, "dec-cell-base-depth": 3}
    tensors = tensors_of(options)
    first = (
        "encoder_bi_l2_cell1_U",
        "encoder_bi_r_l2_cell1_U",
        "decoder_l3_cell1_U",
        "decoder_l3_cell2_U",
        "decoder_cell3_U",
    )
    for name in (*first, "encoder_bi_r_l2_cell1_W", "encoder_bi_l2_cell1_bx", "decoder_l3_cell2_b", "decoder_cell3_bx"):
        path = save_model({other: array for other, array in tensors.items() if other != name})
        with pytest.raises(InputError, match=f"lacks tensor '{name}' of shape"):
            load_nmt_model(path)
    for prefix in ("encoder_bi_l2_cell1_", "encoder_bi_r_l2_cell1_"):  # a layer of one direction
        with pytest.raises(InputError, match=f"lacks tensor '{prefix}W' of shape"):
            load_nmt_model(save_model({name: array for name, array in tensors.items() if not name.startswith(prefix)}))
    with pytest.raises(InputError, match=r"tensor 'decoder_l2_cell1_U' .* has shape \(4, 16\) but"):
        load_nmt_model(save_model(tensors | {"decoder_l2_cell1_U": np.zeros((H, 4 * H), np.float32)}))
    with pytest.raises(InputError, match="tensor 'decoder_l5_cell1_U' .* has no place"):
        load_nmt_model(save_model(tensors | {"decoder_l5_cell1_U": np.zeros((H, 2 * H), np.float32)}))
    status, out, _ = mgpu_ngram("info", save_model(tensors))
    assert status == 0 and "GRU of 4, encoder depth 2, decoder depth 3, embeddings of 5, with attention" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "enc-type .* must be bidirectional or alternating, but it is missing"),
        (b"enc-type: alternating", "skip .* must be true or false, but it is missing"),
        (b"skip: 1\nenc-type: bidirectional", "skip .* but it is '1'"),
        (b"skip: [true]\nenc-type: bidirectional", "skip .* but it is missing"),
        (b"skip: true\nenc-type: bi-unidirectional", "enc-type .* but it is 'bi-unidirectional'"),
        (b"- skip", "enc-type .* but it is missing"),
        (b"a: [", "is damaged YAML"),
        (b"[" * 9999, "is damaged YAML"),
        (b"\xff", "is damaged YAML"),
    ],
    ids=["none", "absent", "number", "list", "type", "sequence", "open", "deep", "bytes"],
)
def test_stacked_layers_need_the_options_of_marian(text, message, save_model):
    tensors = tensors_of(DEFAULTS | {"enc-depth": 2})
    del tensors["special:model.yml"]
    if text is not None:
        tensors["special:model.yml"] = np.frombuffer(text, np.int8)
    with pytest.raises(InputError, match=message) as error:
        load_nmt_model(save_model(tensors))
    assert "\n" not in str(error.value)


def test_models_from_right_to_left_are_refused(save_model):
    tensors = tensors_of(DEFAULTS)
    tensors["special:model.yml"] = np.frombuffer(b"skip: false\nright-left: true", np.int8)
    with pytest.raises(InputError, match=r"writes sentences from right to left \(--right-left\); train it without"):
        load_nmt_model(save_model(tensors))


def test_layers_on_contexts_need_their_type_of_encoder(save_model):
    tensors = tensors_of(DEFAULTS | {"enc-depth": 2, "enc-type": "bi-unidirectional"})
    tensors["special:model.yml"] = np.frombuffer(b"skip: true\nenc-type: alternating", np.int8)
    with pytest.raises(InputError, match="enc-type .* must be bi-unidirectional, but it is 'alternating'"):
        load_nmt_model(save_model(tensors))


@pytest.mark.gpu
def test_half_precision(save_model):
    """Of a GPU, which adds the states of layers in float32 and stores float16."""
    options = DEFAULTS | {"enc-depth": 2, "dec-depth": 2, "skip": True}
    tensors = tensors_of(options)
    model = load_nmt_model(save_model(tensors)).map_arrays(lambda a: to_device_fast(a.astype(np.float16), "gpu"))
    ((found,),) = decode([model], SENTENCES[:1], forced=Forced(targets=[[3, 6]]))
    expected = PlainMarian(tensors, options).log_probs(SENTENCES[0], [3, 6, 0])[0]
    np.testing.assert_allclose(found.word_scores, expected, rtol=0.02, atol=0.05)
