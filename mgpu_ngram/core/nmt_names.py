"""Names of tensors in files of Marian (--type s2s), as the names of Nematus."""

from __future__ import annotations

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt_tensors import Tensors

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


def with_nematus_names(tensors: Tensors) -> Tensors:
    """Return the tensors with names of Nematus; names of Marian are translated.

    Raises InputError for LSTM cells of Marian: their gates are in another order, and their memory begins otherwise.
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
    return tensors.renamed(MARIAN)
