"""Choose the documents that are held out of training, and cut them in two halves, on which `metrics` measures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.kernels.common.philox import HELD_OUT, random_numbers


@dataclass(frozen=True)
class HeldOut:
    """The two halves of the documents that are held out of the training."""

    observed: Bags
    target: Bags

    def slice(self, first: int, last: int) -> HeldOut:
        """Return documents first to last - 1."""
        return HeldOut(self.observed.slice(first, last), self.target.slice(first, last))


def keep_training(bags: Bags, first: int, share: float, seed: int) -> Bags:
    """Return the bags without the words of the documents that `hold_out` returns for the same arguments."""
    held_P = np.repeat(_held(bags, first, share, seed), np.diff(bags.starts_D1))
    return _with_counts(bags, np.where(held_P, 0, bags.counts_P).astype(np.uint32))


def hold_out(bags: Bags, first: int, share: float, seed: int) -> HeldOut:
    """Return the documents that are held out.

    first  number of document 0 in the corpus
    share  share of documents that are held out. Each has a random number of its own, so any cut of the corpus holds out
           the same documents. Each token of these is observed with probability 1/2, else a target
    """
    lengths_D, numbers_D = np.diff(bags.starts_D1), first + np.arange(bags.documents)
    held_D = _held(bags, first, share, seed)
    held_P = np.repeat(held_D, lengths_D)
    pair_T = np.repeat(np.flatnonzero(held_P), bags.counts_P[held_P])
    document_T = np.repeat(np.arange(bags.documents), lengths_D)[pair_T]
    position_T = np.arange(len(pair_T)) - np.searchsorted(document_T, document_T)
    seen_T = random_numbers(seed, HELD_OUT, numbers_D[document_T], 1 + position_T) < 0.5
    halves = (np.bincount(pair_T[chosen_T], minlength=bags.pairs) for chosen_T in (seen_T, ~seen_T))
    return HeldOut(*(_chosen(_with_counts(bags, counts_P.astype(np.uint32)), held_D) for counts_P in halves))


def held_out_tokens(bags: Bags, first: int, share: float, seed: int) -> int:
    """Return the number of tokens of the documents that `hold_out` returns for the same arguments."""
    return int(bags.lengths_D()[_held(bags, first, share, seed)].sum())


def _held(bags: Bags, first: int, share: float, seed: int) -> np.ndarray:
    """Return (D,) bool: which documents are held out."""
    return random_numbers(seed, HELD_OUT, first + np.arange(bags.documents), 0) < share


def _with_counts(bags: Bags, counts_P: np.ndarray) -> Bags:
    """Return the bags with other counts, without pairs of count 0."""
    keep_P = counts_P > 0
    before_P1 = np.concatenate([[0], np.cumsum(keep_P)])
    return Bags(before_P1[bags.starts_D1], bags.words_P[keep_P], counts_P[keep_P], bags.num_words)


def _chosen(bags: Bags, chosen_D: np.ndarray) -> Bags:
    """Return the chosen documents; the others have no pairs."""
    lengths_D = np.diff(bags.starts_D1)[chosen_D]
    return Bags(np.concatenate([[0], np.cumsum(lengths_D)]), bags.words_P, bags.counts_P, bags.num_words)
