"""Translation models in files: Nematus, Amun, Marian's s2s, and recurrent networks without attention."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.model import Affine, Attention, Cell, Gru, Lstm, NmtModel, Stacks
from mgpu_ngram.core.nmt.names import with_nematus_names
from mgpu_ngram.core.nmt.tensors import MARIAN_OPTIONS, Tensors, marian_options, read_tensors, tensor_names

KNOWN_MODELS = "Nematus and Amun with GRU, LSTM or multiplicative LSTM, Marian s2s with GRU, and GRUs without attention"
TRANSLATION_MODEL = "translation model"  # the format of its description
SCALED_VERSION = 0.1  # version of Nematus from which dropout scales in the training
MARIAN_EPSILON, NEMATUS_EPSILON = 1e-9, 1e-5
_LAYER = re.compile(r"(encoder_bi|encoder_bi_r|encoder|decoder)_l\d+_")
_FACTORS = [f"Wemb{i}" for i in range(1, 100)]  # embeddings of the factors after the first
G2P_SOURCE_EOS, G2P_START, G2P_EOS = 2, 2, 3  # ids of the models without attention


class Dims(NamedTuple):
    """E: embeddings, of source and target. H: state. A: attention. norm: "", "marian" or "nematus"."""

    source_E: int
    E: int
    H: int
    A: int
    norm: str


def load_nmt_model(path: str) -> NmtModel:
    """Return the model in a .npz file.

    Raises InputError, which names the tensor and both shapes, if a tensor is missing, unknown or has a wrong shape.
    """
    tensors = read_tensors(path)
    _check_dropout(path, tensors.name)
    if "enc_emb" in tensors:
        return _without_attention(tensors)
    if own := next((name for name in tensors if "_self_" in name), None):
        raise InputError(
            f"{tensors.name!r} has tensor {own!r}, so it is a transformer; models that can be read: {KNOWN_MODELS}"
        )
    tensors = with_nematus_names(tensors)
    norm = _norm(tensors)
    sides = ("encoder_", "encoder_r_")
    states = (*(f"{prefix}U" for prefix in (*sides, "decoder_")), "decoder_U_nl", "decoder_W_comb_att")
    previous = ("decoder_W", "decoder_Wx", "decoder_Wm", "ff_logit_prev_W", "ff_logit_W")
    dims = Dims(
        tensors.common(*((f"{prefix}{end}", 0) for prefix in sides for end in ("W", "Wx", "Wm"))),
        tensors.common(*((name, 0) for name in previous), ("ff_logit_prev_b", 0), ("ff_logit_ctx_b", 0)),
        tensors.common(*((name, 0) for name in states)),
        tensors.common(("decoder_Wc_att", 1), ("decoder_W_comb_att", 1), ("decoder_b_att", 0), ("decoder_U_att", 0)),
        norm,
    )
    model = _nematus(tensors, dims, _with_options(_stacks(tensors, dims), path, tensors.name))
    tensors.check_all_taken(KNOWN_MODELS)
    return model


def _norm(tensors: Tensors) -> str:
    """Return the kind of layer normalisation: "", "marian" or "nematus". Two scales show it; then all are required."""
    if sum("gamma" in name for name in tensors) > 1:
        return "marian"
    return "nematus" if sum(name.endswith(("_lns", "_ln_s")) for name in tensors) > 1 else ""


def vocabularies_beside(path: str) -> list[str]:
    """Return the vocabularies that Nematus names in PATH.json: sources, then the target; or [].

    If a name is not a file here, it is searched for in the folder of the model.
    """
    names = _options_beside(path).get("dictionaries")
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        return []
    folder = os.path.dirname(path)
    return [name if os.path.isfile(name) else os.path.join(folder, os.path.basename(name)) for name in names]


def _options_beside(path: str) -> dict[str, Any]:
    """Return the options that Nematus writes in PATH.json; {} for no such file."""
    try:
        with open(f"{path}.json", encoding="utf-8-sig") as file:
            options = json.load(file)
    except (OSError, ValueError):
        return {}
    return options if isinstance(options, dict) else {}


def _check_dropout(path: str, name: str) -> None:
    """Raise InputError for a model of Nematus before 0.1 with dropout, by the options that Nematus writes beside it.

    When these models decode, they scale states by the share that dropout kept. Later models scale in the training.
    """
    options = _options_beside(path)
    version = options.get("model_version", 0)
    if options.get("use_dropout") and isinstance(version, int | float) and version < SCALED_VERSION:
        raise InputError(
            f"{name!r} was trained with dropout by Nematus before {SCALED_VERSION} ({os.path.basename(path)}.json), "
            "so its states must be scaled; rename that file to decode without, as Amun does"
        )


def factors_in(path: str) -> int:
    """Return the number of factors of a source word, from the names of the tensors in a file alone."""
    return 1 + sum(name in _FACTORS for name in tensor_names(path))


def is_nmt_model(path: str) -> bool:
    """Return whether a ZIP archive has the source embeddings of a translation model, by the names of its tensors."""
    try:
        return not {"Wemb", "encoder_Wemb", "enc_emb"}.isdisjoint(tensor_names(path))
    except InputError:  # it is damaged
        return False


def describe_nmt_model(path: str) -> dict[str, Any]:
    """Return the sizes of the model in a file, as JSON values by name; reads and checks all of it."""
    model = load_nmt_model(path)
    first = model.decoder[0]
    cell = "GRU" if isinstance(first, Gru) else "LSTM" if first.mix_input is None else "multiplicative LSTM"
    return {
        "format": TRANSLATION_MODEL,
        "cell": cell,
        "layers": [1 + len(model.stacks.forward) + len(model.stacks.context), 1 + len(model.stacks.decoder)],
        "attention": model.attention is not None,
        "source_words": [len(rows) for rows in model.source_embeddings],
        "target_words": model.vocab_size,
        "embedding": model.target_embedding.shape[1],
        "state": first.state.weight_XY.shape[0],
        "parameters": model.parameters,
    }


def _stacks(t: Tensors, d: Dims) -> Stacks:
    """Return Marian's layers after the first. A layer that has any tensor must have all."""
    layers = {found[0] for found in map(_LAYER.match, t) if found}

    def stack(prefix: str, X: int, other: str = "") -> tuple[tuple[Cell, ...], ...]:
        n = 2
        while layers & {f"{prefix}l{n}_", f"{other}l{n}_"}:
            n += 1
        return tuple(_gru_layer(t, d, f"{prefix}l{i}_", X if i == 2 else d.H) for i in range(2, n))

    forward, backward = "encoder_bi_", "encoder_bi_r_"
    directions = stack(forward, d.H, backward), stack(backward, d.H, forward)
    return Stacks(*directions, stack("encoder_", 2 * d.H), stack("decoder_", d.H))


def _with_options(stacks: Stacks, path: str, name: str) -> Stacks:
    """Return the layers with the properties that Marian's options give."""
    options = marian_options(path)
    if options.get("right-left") == "true":
        raise InputError(f"{name!r} writes sentences from right to left (--right-left); train it without that option")
    if not (stacks.forward or stacks.context or stacks.decoder):
        return stacks

    def option(key: str, *known: str) -> str:
        value = options.get(key)
        if value not in known:
            raise InputError(
                f"{name!r} has stacked layers, for which the option {key} in {MARIAN_OPTIONS!r} must be "
                f"{' or '.join(known)}, but it is {'missing' if value is None else repr(value[:80])}; give the file "
                "that Marian wrote"
            )
        return value

    alternating = bool(stacks.forward) and option("enc-type", "bidirectional", "alternating") == "alternating"
    if stacks.context:
        option("enc-type", "bi-unidirectional")
    return replace(stacks, skip=option("skip", "true", "false") == "true", alternating=alternating)


def _nematus(t: Tensors, d: Dims, stacks: Stacks) -> NmtModel:
    C = d.H if stacks.context else 2 * d.H
    embeddings = _source_embeddings(t, d.source_E)
    if "Wemb_dec" not in t and "ff_logit_W" in t:
        V = t.shape("ff_logit_W")[-1]
        if V == t.shape("ff_logit_b")[-1] != len(embeddings[0]):  # so the target does not share the source's embeddings
            raise t.missing("Wemb_dec", (V, d.E))
    if "Wemb_dec" in t:
        V = t.common(("Wemb_dec", 0), ("ff_logit_W", 1), ("ff_logit_Wt", 0), ("ff_logit_b", -1))
        target = t.matrix("Wemb_dec", V, d.E)
    else:
        target, V = embeddings[0], len(embeddings[0])
    if "ff_logit_W" in t:
        output = t.matrix("ff_logit_W", d.E, V)
    else:
        output = np.ascontiguousarray((t.matrix("ff_logit_Wt", V, d.E) if "ff_logit_Wt" in t else target).T)
    attention = Attention(
        _affine(t, d, ("decoder_Wc_att", "decoder_b_att", "decoder_att_gamma1"), C, d.A),
        _affine(t, d, ("decoder_W_comb_att", "", "decoder_att_gamma2"), d.H, d.A),
        t.vector("decoder_U_att", d.A),
    )
    hidden = tuple(
        _affine(t, d, (f"ff_logit_{part}_W", f"ff_logit_{part}_b", f"ff_logit_l1_gamma{i}"), X, d.E)
        for part, i, X in (("lstm", 1, d.H), ("prev", 0, d.E), ("ctx", 2, C))
    )
    return NmtModel(
        name=t.name,
        kind="nematus",
        source_embeddings=embeddings,
        target_embedding=target,
        forward=_layer(t, d, "encoder_", d.source_E),
        backward=_layer(t, d, "encoder_r_", d.source_E),
        initial=_affine(t, d, ("ff_state_W", "ff_state_b", "ff_state_gamma"), C, d.H),
        decoder=_layer(t, d, "decoder_", d.E),
        attention=attention,
        conditional=_layer(t, d, "decoder_", C, "_nl"),
        hidden=hidden,
        output=Affine(output, t.vector("ff_logit_b", V)),
        stacks=stacks,
    )


def _source_embeddings(t: Tensors, E: int) -> tuple[np.ndarray, ...]:
    """Return the embeddings of all factors; their widths sum to E."""
    factors = [name for name in _FACTORS if name in t]
    widths = [t.shape(name)[-1] for name in factors]
    names, sizes = ["Wemb", *factors], [E - sum(widths), *widths]
    return tuple(t.matrix(name, t.shape(name)[0], size) for name, size in zip(names, sizes, strict=True))


def _affine(t: Tensors, d: Dims, names: tuple[str, str, str], X: int, Y: int) -> Affine:
    """Return a layer by the names of its matrix, its bias ("" for none) and Marian's scale."""
    matrix, bias, gamma = names
    weight = t.matrix(matrix, X, Y)
    b = t.vector(bias, Y) if bias else None
    if d.norm == "marian":
        return Affine(weight, None, t.vector(gamma, Y), b, (Y,), MARIAN_EPSILON)
    if d.norm == "nematus":
        stem, ends = (matrix, ("_lns", "_lnb")) if matrix.endswith("_att") else (matrix[:-2], ("_ln_s", "_ln_b"))
        scale, shift = (t.vector(stem + end, Y) for end in ends)
        return Affine(weight, b, scale, shift, (Y,), NEMATUS_EPSILON)
    return Affine(weight, b)


def _layer(t: Tensors, d: Dims, prefix: str, X: int, nl: str = "") -> tuple[Cell, ...]:
    """Return the cell of a prefix and its transitions. `nl` is "_nl" for the cell on the context."""
    W, U = f"{prefix}W{'c' if nl else ''}", f"{prefix}U{nl}"
    columns = t.common((U, 1), (W, 1), (f"{prefix}b{nl}", 0))
    if columns in (3 * d.H, 4 * d.H):
        return (_lstm(t, d, prefix, X, nl),)
    return _gru_layer(t, d, prefix, X, nl)


def _gru_layer(t: Tensors, d: Dims, prefix: str, X: int, nl: str = "") -> tuple[Cell, ...]:
    cells: list[Cell] = [_gru(t, d, prefix, X, nl)]
    while any(f"{prefix}{end}{nl}_drt_{len(cells)}" in t for end in ("U", "Ux", "b", "bx")):
        cells.append(_transition(t, d, prefix, f"{nl}_drt_{len(cells)}"))
    return tuple(cells)


def _gates(t: Tensors, names: tuple[str, str], X: int, H: int) -> np.ndarray:
    """Return the matrices of the gates (2H) and of the proposal (H) side by side."""
    return np.concatenate([t.matrix(names[0], X, 2 * H), t.matrix(names[1], X, H)], axis=1)


def _vectors(t: Tensors, names: tuple[str, str], end: str, H: int) -> np.ndarray:
    return np.concatenate([t.vector(names[0] + end, 2 * H), t.vector(names[1] + end, H)])


def _normed(t: Tensors, d: Dims, names: tuple[str, str], weight: np.ndarray, bias: np.ndarray | None) -> Affine:
    """Return a layer as Nematus normalises it: gates and proposals separately, with the bias inside."""
    if d.norm != "nematus":
        return Affine(weight, bias)
    scale, shift = (_vectors(t, names, end, d.H) for end in ("_lns", "_lnb"))
    return Affine(weight, bias, scale, shift, (2 * d.H, d.H), NEMATUS_EPSILON)


def _gru(t: Tensors, d: Dims, prefix: str, X: int, nl: str) -> Gru:
    H, end = d.H, "c" if nl else ""
    inputs = f"{prefix}W{end}", f"{prefix}W{end}x"
    states = f"{prefix}U{nl}", f"{prefix}Ux{nl}"
    weights = _gates(t, inputs, X, H), _gates(t, states, H, H)
    bias = _vectors(t, (f"{prefix}b{nl}", f"{prefix}bx{nl}"), "", H)
    biases = (None, bias) if nl else (bias, None)  # the cell on the context has its bias on the side of the state
    if d.norm == "marian":
        cell = prefix if prefix != "decoder_" else f"decoder_cell{2 if nl else 1}_"
        scales = (t.vector(f"{cell}gamma{i}", 3 * H) for i in (1, 2))
        layers = (
            Affine(weight, None, scale, shift, (3 * H,), MARIAN_EPSILON)
            for weight, scale, shift in zip(weights, scales, biases, strict=True)
        )
        return Gru(*layers)
    return Gru(_normed(t, d, inputs, weights[0], biases[0]), _normed(t, d, states, weights[1], biases[1]))


def _transition(t: Tensors, d: Dims, prefix: str, end: str) -> Gru:
    """Return a cell without an input; after the conditional cell, its bias is inside the reset gate."""
    names = f"{prefix}U{end}", f"{prefix}Ux{end}"
    weight, bias = _gates(t, names, d.H, d.H), _vectors(t, (f"{prefix}b{end}", f"{prefix}bx{end}"), "", d.H)
    inside, outside = (bias, np.zeros_like(bias)) if prefix == "decoder_" else (None, bias)
    if d.norm == "marian":
        scale = t.vector(f"{prefix}gamma2{end}", 3 * d.H)
        return Gru(None, Affine(weight, None, scale, inside, (3 * d.H,), MARIAN_EPSILON), outside)
    return Gru(None, _normed(t, d, names, weight, inside), outside)


def _lstm(t: Tensors, d: Dims, prefix: str, X: int, nl: str) -> Lstm:
    H, mix = d.H, "decoder_2_" if nl else prefix
    W, U, b = f"{prefix}W{'c' if nl else ''}", f"{prefix}U{nl}", f"{prefix}b{nl}"
    split = t.shape(U)[-1] == 3 * H
    weights = []
    for name, rows in ((W, X), (U, H)):
        if split:
            proposal = name.replace("U", "Ux") if name == U else f"{name}x"
            parts = t.matrix(name, rows, 3 * H), t.matrix(proposal, rows, H)
            weights.append(np.concatenate(parts, axis=1))
        else:
            weights.append(t.matrix(name, rows, 4 * H))
    if split:
        bias = np.concatenate([t.vector(b, 3 * H), t.vector(f"{prefix}bx{nl}", H)])
    else:
        bias = t.vector(b, 4 * H)
    cell = Affine(weights[0], bias), Affine(weights[1])
    if f"{mix}Wm" not in t:
        return Lstm(*cell)
    mixed = Affine(t.matrix(f"{mix}Wm", X, H), t.vector(f"{mix}bm", H))
    return Lstm(*cell, mixed, Affine(t.matrix(f"{mix}Um", H, H), t.vector(f"{mix}bmu", H)))


def _without_attention(t: Tensors) -> NmtModel:
    """Return a model of two GRUs: rows of weights are gates r, z and n, as in PyTorch."""
    H = t.common(("enc_w_hh", 1), ("dec_w_hh", 1), ("fc_w", 1))
    source_E, target_E = (t.common((f"{side}_w_ih", 1), (f"{side}_emb", 1)) for side in ("enc", "dec"))
    V = t.common(("fc_w", 0), ("fc_b", 0), ("dec_emb", 0))

    def cell(side: str, X: int) -> Gru:
        weights = (np.ascontiguousarray(t.matrix(f"{side}_w_{w}", 3 * H, n).T) for w, n in (("ih", X), ("hh", H)))
        biases = (t.vector(f"{side}_b_{w}", 3 * H) for w in ("ih", "hh"))
        return Gru(*(Affine(weight, bias) for weight, bias in zip(weights, biases, strict=True)))

    output = Affine(np.ascontiguousarray(t.matrix("fc_w", V, H).T), t.vector("fc_b", V))
    source = t.matrix("enc_emb", t.shape("enc_emb")[0], source_E)
    target = t.matrix("dec_emb", V, target_E)
    forward, decoder = (cell("enc", source_E),), (cell("dec", target_E),)
    t.check_all_taken(KNOWN_MODELS)
    return NmtModel(
        name=t.name, kind="gru_seq2seq", source_embeddings=(source,), target_embedding=target, forward=forward,
        backward=(), initial=None, decoder=decoder, attention=None, conditional=(), hidden=(), output=output,
        source_eos=G2P_SOURCE_EOS, eos=G2P_EOS, unk=1, start=G2P_START,
    )  # fmt: skip
