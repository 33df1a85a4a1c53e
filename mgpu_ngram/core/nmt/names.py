"""Translate the names of tensors in files of Marian (--type s2s) to the names of Nematus."""

from __future__ import annotations

import re

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.tensors import Tensors

_DIRECTIONS = {"encoder_bi_": "encoder_", "encoder_bi_r_": "encoder_r_"}
_CELL = ("W", "U", "b", "Wx", "Ux", "bx", "gamma1", "gamma2")
_LOGITS = ("prev", "lstm", "ctx")
_STATES = ("encoder_bi_U", "encoder_bi_r_U", "decoder_cell1_U", "decoder_cell2_U")


def _marian_names() -> dict[str, str]:
    names = {f"{marian}{end}": f"{ours}{end}" for marian, ours in _DIRECTIONS.items() for end in _CELL}
    names |= {f"decoder_cell1_{end}": f"decoder_{end}" for end in _CELL[:6]}
    second = {"W": "Wc", "U": "U_nl", "b": "b_nl", "Wx": "Wcx", "Ux": "Ux_nl", "bx": "bx_nl"}
    names |= {f"decoder_cell2_{marian}": f"decoder_{ours}" for marian, ours in second.items()}
    names |= {f"decoder_ff_state_{end}": f"ff_state_{end}" for end in ("W", "b", "gamma")}
    for i, part in enumerate(_LOGITS):
        names |= {f"decoder_ff_logit_l1_{end}{i}": f"ff_logit_{part}_{end}" for end in ("W", "b")}
        names[f"decoder_ff_logit_l1_gamma{i}"] = f"ff_logit_l1_gamma{i}"
    names |= {f"decoder_ff_logit_l2_{end}": f"ff_logit_{end}" for end in ("W", "Wt", "b")}
    return names | {"encoder_Wemb": "Wemb", "decoder_Wemb": "Wemb_dec"}


MARIAN = _marian_names()
# Cells of layers after the first, cells after the first of a layer, and cells after the conditional one of the decoder.
_LATER = re.compile(r"(encoder_bi|encoder_bi_r|encoder|decoder)_(l\d+)_cell([1-9]\d?)_(\w+)")
_TRANSITION = re.compile(r"(encoder_bi|encoder_bi_r)_()cell([2-9]|[1-9]\d)_(\w+)")
_CONDITIONAL = re.compile(r"decoder_cell([3-9]|[1-9]\d)_(\w+)")


def _name_of_deep(name: str) -> str:
    """Return the name of a tensor of a deep model: its layer's name, with "_drt_1" and so on for transitions."""
    if found := _LATER.fullmatch(name) or _TRANSITION.fullmatch(name):
        side, layer, cell, end = found.groups()
        prefix = f"{side}_{layer}_" if layer else _DIRECTIONS[f"{side}_"]
        return f"{prefix}{end}" + (f"_drt_{int(cell) - 1}" if int(cell) > 1 else "")
    if found := _CONDITIONAL.fullmatch(name):
        return f"decoder_{found[2]}_nl_drt_{int(found[1]) - 2}"
    return name


def with_nematus_names(tensors: Tensors) -> Tensors:
    """Return the tensors with names of Nematus; names of Marian are translated. Layer 2 has the prefix "decoder_l2_".

    Raises InputError for LSTM cells of Marian: their gates have another order, and their first memory differs.
    """
    if not any(name.startswith(("encoder_bi_", "decoder_cell1_W")) for name in tensors):
        return tensors
    for name in _STATES:
        shape = tensors.shape(name) if name in tensors else ()
        if len(shape) == 2 and shape[1] == 4 * shape[0]:
            raise InputError(
                f"tensor {name!r} {shape} of {tensors.name!r} is of an LSTM but only GRUs of Marian's s2s can be read; "
                "train with --enc-cell gru --dec-cell gru"
            )
    stems = {name.rpartition("_")[0] for name in tensors if _name_of_deep(name) != name}
    # Names of tensors that the file lacks, too, for errors: of the first cell of each layer, in both directions.
    stems |= {re.sub(r"(_l\d+_cell)\d+$", r"\g<1>1", stem) for stem in stems}
    stems |= {stem.replace(*pair, 1) for stem in stems for pair in (("_bi_r_l", "_bi_l"), ("_bi_l", "_bi_r_l"))}
    deep = (f"{stem}_{end}" for stem in stems for end in _CELL)
    return tensors.renamed(MARIAN | {name: _name_of_deep(name) for name in deep})
