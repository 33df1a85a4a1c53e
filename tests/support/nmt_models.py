"""Translation models of random weights, as dicts of tensors."""

import numpy as np

SOURCE_V, V, E, H, A = 9, 7, 5, 4, 6


def shapes(norm="", cell="gru", transitions=0, tied="", factors=()):
    """Return {name: shape} of a model."""
    C = 2 * H
    found = {"Wemb": (SOURCE_V, E - sum(factors)), "Wemb_dec": (V, E)}
    found |= {f"Wemb{i + 1}": (4, width) for i, width in enumerate(factors)}
    found |= {"decoder_W_comb_att": (H, A), "decoder_Wc_att": (C, A), "decoder_b_att": (A,), "decoder_U_att": (A, 1)}
    found |= {"decoder_c_tt": (1,), "ff_state_W": (C, H), "ff_state_b": (H,), "ff_logit_W": (E, V), "ff_logit_b": (V,)}
    for part, rows in (("lstm", H), ("prev", E), ("ctx", C)):
        found |= {f"ff_logit_{part}_W": (rows, E), f"ff_logit_{part}_b": (E,)}
        if norm == "nematus":
            found |= {f"ff_logit_{part}_ln_{end}": (E,) for end in "sb"}
    for prefix, rows, nl in (("encoder_", E, ""), ("encoder_r_", E, ""), ("decoder_", E, ""), ("decoder_", C, "_nl")):
        w = "Wc" if nl else "W"
        if cell == "gru" or nl:
            found |= {f"{prefix}{w}": (rows, 2 * H), f"{prefix}{w}x": (rows, H), f"{prefix}U{nl}": (H, 2 * H)}
            found |= {f"{prefix}Ux{nl}": (H, H), f"{prefix}b{nl}": (2 * H,), f"{prefix}bx{nl}": (H,)}
        else:
            found |= {f"{prefix}{w}": (rows, 4 * H), f"{prefix}U{nl}": (H, 4 * H), f"{prefix}b{nl}": (4 * H,)}
            if cell == "mlstm":
                found |= {f"{prefix}Wm": (rows, H), f"{prefix}bm": (H,), f"{prefix}Um": (H, H), f"{prefix}bmu": (H,)}
        for i in range(1, transitions + 1 if prefix != "decoder_" or nl else 1):
            end = f"{nl}_drt_{i}"
            found |= {f"{prefix}U{end}": (H, 2 * H), f"{prefix}Ux{end}": (H, H)}
            found |= {f"{prefix}b{end}": (2 * H,), f"{prefix}bx{end}": (H,)}
        if norm == "marian":
            name = {"": "decoder_cell1_", "_nl": "decoder_cell2_"}[nl] if prefix == "decoder_" else prefix
            found |= {f"{name}gamma{i}": (3 * H,) for i in (1, 2)}
    if norm == "marian":
        found |= {"ff_state_gamma": (H,), "decoder_att_gamma1": (A,), "decoder_att_gamma2": (A,)}
        found |= {f"ff_logit_l1_gamma{i}": (E,) for i in range(3)}
    if norm in ("nematus", "weights"):
        kinds = ("_lns", "_lnb") if norm == "nematus" else ("_wns",)
        letters = ("W", "U", "Wx", "Ux")
        matrices = [
            n for n in found if n.startswith(("encoder", "decoder")) and n.split("coder_")[1].lstrip("r_")[0] in "WU"
        ]
        matrices = [n for n in matrices if n != "decoder_U_att" and letters]
        found |= {n + kind: found[n][1:] for n in matrices for kind in kinds}
        if norm == "nematus":
            found |= {"ff_state_ln_s": (H,), "ff_state_ln_b": (H,)}
    if tied:
        del found["ff_logit_W"]
    if tied == "all":
        del found["Wemb_dec"]
    return found


def random_tensors(seed=0, scale=1.0, **kind):
    """Return {name: array} of a small model; `kind` has norm, cell, transitions, tied and factors."""
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(size=shape) * scale).astype(np.float32) for name, shape in shapes(**kind).items()}


def tensors_without_attention(seed=0):
    """Return {name: array} of two GRUs, with the words of the other models."""
    rng = np.random.default_rng(seed)
    found = {"enc_emb": (SOURCE_V, 3), "dec_emb": (V, 3), "fc_w": (V, 2), "fc_b": (V,)}
    for side in ("enc", "dec"):
        found |= {f"{side}_w_ih": (6, 3), f"{side}_w_hh": (6, 2), f"{side}_b_ih": (6,), f"{side}_b_hh": (6,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in found.items()}
