"""The backoffs of the states of an n-gram model, with the signs of zeros that KenLM gives them.

A state is the longest suffix of the words so far that can be extended or has a backoff; earlier words cannot affect
later scores. It is stored as its node in the trie, or EMPTY; shorter n-grams have lower nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.models.arpa import UNK_LOG10
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.score.step_states import EMPTY

__all__ = ["EMPTY", "MAX_BATCH", "MAX_STATE", "signed_backoffs"]

MAX_BATCH = 1 << 40  # states in one call
MAX_STATE = np.iinfo(np.int32).max


def signed_backoffs(trie: Trie, unk_added: bool | None = None) -> Any:
    """Return (M,) float32: backoffs whose zeros have KenLM's signs, so that sums have the same bits.

    A history that cannot be extended has -0; a state need not remember it (lm/blank.hh).

    unk_added  whether the ARPA file lacks <unk>; None: by its probability
    """
    xp = array_module(trie.backoff_M)
    zero_M = xp.where(xp.diff(trie.first_child_M) > 0, np.float32(0), np.float32(-0.0))
    backoff_M = xp.where(trie.backoff_M == 0, zero_M, trie.backoff_M)
    if unk_added is None:
        unk_added = trie.prob_G[0] == UNK_LOG10
    if unk_added:  # KenLM remembers an <unk> that the file lacks (lm/model.cc, InitializeFromARPA)
        backoff_M[:1] += np.float32(0)
    return backoff_M
