"""Integer weights of topics, so that sums do not depend on their order; include/topic_weights.cuh is the same on a GPU.

For a token, topic k weighs (n_dk + alpha_k) times (n_wk + beta_w) / (n_k + sum of word priors): Griffiths and Steyvers,
"Finding scientific topics" (2004). The right factor is scaled by a power of 2 of the word to an integer below 2^31. The
product of alpha_k and this integer is an integer, too, in units of 2^-PRIOR_BITS.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import float32, float64, int32, int64, uint64

from .. import check
from ..compile_cpu import njit

GROUP = 16  # topics whose prior weights a GPU sums together
BLOCK = 8  # topics, or entries of a document, whose weights a CPU sums together; rows of entries end in whole blocks
PRIOR_BITS = 8
ALIGN = 16  # documents start at multiples of this in arrays of tokens
ENTRY_TYPES = {np.dtype(np.uint16): "u16", np.dtype(np.uint32): "u32"}  # C names of dtypes of entries
MAX_TOPIC_WEIGHT = float32(2**31 - 128)  # weight; a topic without a token of its only word may round to more


class Documents(NamedTuple):
    """Documents in order, with one topic for each token.

    rows_D2    (D, 2) uint32: document d's tokens start at ALIGN * rows_D2[d, 0]; it has rows_D2[d, 1] entries
    lengths_D  (D,) uint32: number of tokens of each document
    topics_T   (T,) uint16: topics of tokens
    entries_T  (T,) uint16 or uint32: topics and counts of each document, from its start on; see `count_topics`
    """

    rows_D2: Any
    lengths_D: Any
    topics_T: Any
    entries_T: Any

    def check(self) -> None:
        """Raise TypeError for a wrong dtype."""
        check.dtype(self.rows_D2, np.uint32)
        check.dtype(self.lengths_D, np.uint32)
        check.dtype(self.topics_T, np.uint16)
        check.dtype(self.entries_T, np.uint16, np.uint32)


class Pairs(NamedTuple):
    """The tokens by word. A pair is a word in a document.

    slots_S3    (S, 3) int64: a word, its first pair, and the end of its pairs; or a part of the pairs of a word
    document_P  (P,) uint32
    token_P     (P,) uint32: the pair's first token; its tokens follow each other
    count_P     (P,) uint8: number of its tokens; a word that occurs more often in a document has several pairs there
    """

    slots_S3: Any
    document_P: Any
    token_P: Any
    count_P: Any

    def check(self) -> None:
        """Raise TypeError for a wrong dtype."""
        check.dtype(self.slots_S3, np.int64)
        check.dtype(self.document_P, np.uint32)
        check.dtype(self.token_P, np.uint32)
        check.dtype(self.count_P, np.uint8)


class WordTopics(NamedTuple):
    """Topics of words after the previous sweep, and the priors.

    counts_VZ  (V, Z) uint32: number of tokens of each word with each topic
    inverse_Z  (Z,) float32: 1 / (tokens of a topic + sum of its word priors)
    less_Z     (Z,) float32: the same with one token less
    alpha_Z    (Z,) float32: topic priors times 2^PRIOR_BITS
    beta       word prior
    seeds_V    (V,) int32: the row of a word's special priors in beta_KZ, or -1. (0,): no word has special priors
    beta_KZ    (K, Z) float32
    """

    counts_VZ: Any
    inverse_Z: Any
    less_Z: Any
    alpha_Z: Any
    beta: float
    seeds_V: Any
    beta_KZ: Any

    def check(self) -> None:
        """Raise TypeError for a wrong dtype."""
        check.dtype(self.counts_VZ, np.uint32)
        for array in (self.inverse_Z, self.less_Z, self.alpha_Z, self.beta_KZ):
            check.dtype(array, np.float32)
        check.dtype(self.seeds_V, np.int32)


def count_bits(num_topics: int) -> tuple[np.dtype, int]:
    """Return (dtype of an entry, its bits for the count): a topic takes the other, upper bits."""
    topic_bits = max(1, (num_topics - 1).bit_length())
    return (np.dtype(np.uint16), 16 - topic_bits) if topic_bits <= 12 else (np.dtype(np.uint32), 32 - topic_bits)


@njit(nogil=True, cache=True, inline="always")
def word_weight(share, scale):
    """Return the integer weight of a topic for a word."""
    return max(int32(1), int32(min(share * scale, MAX_TOPIC_WEIGHT)))


@njit(nogil=True, cache=True, inline="always")
def prior_weight(weight, alpha):
    """Return a topic's prior times its weight for a word, in units of 2^-PRIOR_BITS."""
    return uint64(max(int64(1), int64(float32(weight) * alpha)))


@njit(nogil=True, cache=True, inline="always")
def scale_of(greatest):
    """Return the power of 2 that scales `greatest` to at least 2^30 and below 2^31."""
    return float32(math.ldexp(1.0, 31 - math.frexp(float64(greatest))[1]))


@njit(nogil=True, cache=True)
def weigh_word(count_Z, inverse_Z, alpha_Z, beta_Z, share_Z, weight_Z, through_B):
    """Fill weight_Z, and fill through_B with running sums of prior weights, up to the end of each BLOCK topics.

    Returns (scale, the last of through_B). Indices are unsigned, so no code wraps negative ones and loops become SIMD.
    """
    Z = uint64(len(count_Z))
    for k in range(Z):
        share_Z[k] = (float32(count_Z[k]) + beta_Z[k]) * inverse_Z[k]
    greatest = int32(0)
    for bits in share_Z.view(np.int32):  # positive floats compare as their bits do, which SIMD code can
        greatest = max(greatest, bits)
    scale = scale_of(np.array([greatest]).view(np.float32)[0])
    for k in range(Z):
        weight_Z[k] = word_weight(share_Z[k], scale)
    total = uint64(0)
    whole = Z // uint64(BLOCK)
    for b in range(whole):
        for i in range(BLOCK):
            k = b * uint64(BLOCK) + uint64(i)
            total += prior_weight(weight_Z[k], alpha_Z[k])
        through_B[b] = total
    for k in range(whole * uint64(BLOCK), Z):
        total += prior_weight(weight_Z[k], alpha_Z[k])
        through_B[whole] = total
    return scale, total


@njit(nogil=True, cache=True, inline="always")
def beta_of(w, beta, seeds_V, beta_KZ, beta_Z):
    """Fill beta_Z with the priors of word w; all are `beta` if no word has special priors."""
    if len(seeds_V):
        for k in range(len(beta_Z)):
            beta_Z[k] = beta_KZ[seeds_V[w], k] if seeds_V[w] >= 0 else beta
