"""N-gram models in files of NeMo's, which hold the states and the arcs of an automaton instead of n-grams."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from mgpu_ngram.core.counts.vocabulary import END_ID, SPECIALS, START_ID, UNK_ID
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import BadNgram, build_trie

from .arguments import described

FIRST_TOKEN_ID = len(SPECIALS)  # first id of the tokens that the model knows
START_STATE, BOS_STATE = 0, 1
ARC_ARRAYS = ("from_states", "to_states", "ilabels", "arcs_weights")
STATE_ARRAYS = ("backoff_to_states", "backoff_weights", "state_order", "final_weights")
REAL_ARRAYS = ("arcs_weights", "backoff_weights", "final_weights")
LOG10_PER_LN = np.float32(1 / np.log(10))
NO_END = -9999.0  # NeMo writes -10000 for a sentence that cannot end
NEVER = np.float32(-99)  # log10
END_TOLERANCE = 1e-5  # If ln P of </s> is this close to the value by backoff, the model has no such n-gram with </s>.


def read_nemo(path: str | Path, tokens: Sequence[str]) -> BackoffModel:
    """Return the model of a .nemo file. Its <unk> has the probability of each token that the model lacks.

    tokens  the word of each token

    Raises InputError for a file of another format, and for a model with another number of tokens.
    """
    try:
        with tarfile.open(path) as archive:
            members = {Path(name).name: name for name in archive.getnames()}
            config, weights = (_bytes(archive, members[name]) for name in ("model_config.yaml", "model_weights.ckpt"))
        vocab_size = yaml.safe_load(config)["vocab_size"]
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int):
            raise TypeError(f"vocab_size is {vocab_size!r:.60}")
        tensors = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
        arrays = {name: _array(name, tensors[name]) for name in (*ARC_ARRAYS, *STATE_ARRAYS)}
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist") from None
    except (tarfile.TarError, KeyError, TypeError, yaml.YAMLError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0].rstrip(":")  # tarfile and PyTorch write a line for each attempt
        raise InputError(
            f"{str(path)!r} is not an n-gram model of NeMo: {type(error).__name__}: {reason}; give a file that NeMo's "
            "train_kenlm.py wrote"
        ) from None
    if vocab_size != len(tokens):
        raise InputError(
            f"{str(path)!r} has {vocab_size:,} tokens but vocab_size is {len(tokens):,}; give vocab_size={vocab_size}"
        )
    try:
        levels, known = _levels(arrays, vocab_size)
        trie = build_trie(levels)
        return BackoffModel.of(trie, Words.of(["<unk>", "<s>", "</s>", *(tokens[t] for t in known)]))
    except (IndexError, ValueError, BadNgram) as error:
        raise InputError(
            f"{str(path)!r} is a damaged n-gram model of NeMo: {error}; copy it or write it again"
        ) from None


def _bytes(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _array(name: str, tensor: Any) -> np.ndarray:
    """Return a tensor of a file as an array. Raises TypeError for anything but a row of integers, or of floats."""
    is_real = name in REAL_ARRAYS
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 1 or tensor.is_floating_point() != is_real:
        raise TypeError(f"{name} is {described(tensor)}")
    return (tensor.float() if is_real else tensor.long()).numpy()


def _levels(arrays: dict[str, Any], vocab_size: int) -> tuple[list[Ngrams], np.ndarray]:
    """Return the n-grams of each order, in log10, and the tokens that the model knows.

    A state of order n is a history of n - 1 words. An arc is an n-gram; if it ends in a state of order n + 1, that
    state has its backoff. Arcs from the first state to itself are tokens that the model lacks.
    """
    for names in ARC_ARRAYS, STATE_ARRAYS:
        sizes = [len(arrays[name]) for name in names]
        if len(set(sizes)) > 1:
            raise ValueError(f"{', '.join(names)} have {', '.join(map(str, sizes))} values")
    from_A, to_A, token_A, ln_A = (arrays[name][: len(arrays["ilabels"]) - vocab_size] for name in ARC_ARRAYS)
    if not all(np.isfinite(values).all() for values in (ln_A, arrays["final_weights"], arrays["backoff_weights"])):
        raise ValueError("a weight is not a finite number")
    order_S, final_S, backoff_S = arrays["state_order"], arrays["final_weights"], arrays["backoff_weights"]
    is_lost = (from_A == START_STATE) & (to_A == START_STATE)
    known = np.sort(token_A[(from_A == START_STATE) & ~is_lost])
    if (np.diff(known) == 0).any():
        raise ValueError("the first state has two arcs of one token")
    word_V = np.zeros(vocab_size, np.uint32)
    word_V[known] = np.arange(FIRST_TOKEN_ID, FIRST_TOKEN_ID + len(known))
    ends_S = final_S > NO_END
    ends_S &= np.abs(final_S - backoff_S - final_S[arrays["backoff_to_states"]]) > END_TOLERANCE
    ends_S[START_STATE] = True
    unknown = ln_A[is_lost][0] * LOG10_PER_LN if is_lost.any() else NEVER
    start_backoff = backoff_S[BOS_STATE] * LOG10_PER_LN
    markers = [(np.array([[UNK_ID], [START_ID]]), np.array([unknown, NEVER]), np.array([0, start_backoff]))]
    history_S: Any = np.zeros((len(order_S), order_S.max()), np.uint32)
    history_S[BOS_STATE, 0] = START_ID
    levels = []
    for n in range(1, order_S.max() + 1):
        at = np.flatnonzero((order_S[from_A] == n) & ~is_lost)
        to, grows = to_A[at], order_S[to_A[at]] == n + 1
        ids = np.column_stack([history_S[from_A[at], : n - 1], word_V[token_A[at]]])
        history_S[to[grows], :n] = ids[grows]
        ending = np.flatnonzero(ends_S & (order_S == n))
        ends = np.column_stack([history_S[ending, : n - 1], np.full(len(ending), END_ID)])
        ngrams = (ids, ln_A[at] * LOG10_PER_LN, np.where(grows, backoff_S[to], 0) * LOG10_PER_LN)
        end_ngrams = (ends, np.maximum(final_S[ending] * LOG10_PER_LN, NEVER), np.zeros(len(ending)))
        parts = zip(ngrams, end_ngrams, *(markers if n == 1 else []), strict=True)
        ids, prob, backoff = (np.concatenate(arrays) for arrays in parts)
        levels.append(Ngrams(ids.astype(np.uint32), prob.astype(np.float32), backoff.astype(np.float32)))
    return [*levels[:-1], Ngrams(levels[-1].ids, levels[-1].prob)], known
