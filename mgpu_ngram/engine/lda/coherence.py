"""Coherence of topics: how often their top words occur in the same documents.

Documents are sets of words (boolean documents): a bag has no order, so the sliding windows of Röder, Both and
Hinneburg 2015 ("Exploring the space of topic coherence measures") are whole documents here. Formulas are those of
gensim's CoherenceModel, which gives the same values for windows that are longer than every document.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.compile_cpu import njit, read_only

if TYPE_CHECKING:
    from mgpu_ngram.core.bags.bags import Bags

EPSILON = 1e-12  # in logarithms, as in gensim
BLOCK_TOPICS = 4096  # topics whose (n, n) tables of pairs are in memory together


@dataclass(frozen=True, eq=False)
class WordPairs:
    """All pairs of words that are top words of the same topic, each pair once.

    num_words   V, of the vocabulary
    words_U     (U,) int64, ascending: the words of all topics
    starts_U1   (U + 1,) int64: word u has the pairs starts_U1[u] to starts_U1[u + 1]
    others_E    (E,) int32, ascending for each u: the other word of each pair, as an index into words_U
    tops_Zn     (Z, n) int32: the top words of each topic, indexes into words_U
    pairs_Znn   (Z, n, n) int64: the pair of two top words; -1 for a word with itself

    A pair is stored with that of its words that has fewer pairs, so no word has more than sqrt(2 E) pairs.
    """

    num_words: int
    words_U: np.ndarray
    starts_U1: np.ndarray
    others_E: np.ndarray
    tops_Zn: np.ndarray
    pairs_Znn: np.ndarray

    @classmethod
    def of(cls, words_Zn: np.ndarray, num_words: int) -> WordPairs:
        """Return the pairs of the top words (Z, n) of topics. Raises InputError if a topic has a word twice."""
        Z, n = words_Zn.shape
        rising_Zn = np.sort(words_Zn, axis=1)
        repeated = np.argwhere(rising_Zn[:, 1:] == rising_Zn[:, :-1])
        if len(repeated):
            z, i = repeated[0]
            raise InputError(f"topic {z} has word {rising_Zn[z, i]} twice among its top words; give each word once")
        if words_Zn.size and not 0 <= words_Zn.min() <= words_Zn.max() < num_words:
            raise InputError(f"top words have ids up to {words_Zn.max()}, but the vocabulary has {num_words} words")
        words_U, tops_N = np.unique(words_Zn, return_inverse=True)
        tops_Zn = tops_N.reshape(Z, n).astype(np.int64)
        U = len(words_U)
        first_Znn, second_Znn = tops_Zn[:, :, None], tops_Zn[:, None, :]
        low, high = np.minimum(first_Znn, second_Znn), np.maximum(first_Znn, second_Znn)
        keys_E = np.unique((low * U + high)[low < high])  # each pair once
        degree_U = np.bincount(keys_E // max(U, 1), minlength=U) + np.bincount(keys_E % max(U, 1), minlength=U)
        rank_U = np.empty(U, np.int64)
        rank_U[np.argsort(degree_U, kind="stable")] = np.arange(U)

        def oriented(low: np.ndarray, high: np.ndarray) -> np.ndarray:
            swap = rank_U[low] > rank_U[high]
            return np.where(swap, high * U + low, low * U + high)

        edges_E = np.sort(oriented(keys_E // max(U, 1), keys_E % max(U, 1)))
        starts_U1 = np.searchsorted(edges_E, np.arange(U + 1) * U)
        pairs_Znn = np.searchsorted(edges_E, oriented(low, high))
        pairs_Znn[low == high] = -1
        others_E = (edges_E % max(U, 1)).astype(np.int32)
        return cls(num_words, words_U, starts_U1, others_E, tops_Zn.astype(np.int32), pairs_Znn)


@dataclass(frozen=True, eq=False)
class PairCounts:
    """The numbers of documents in which words and pairs of words occur.

    documents  the number of documents
    words_U    (U,) int64, documents with each word of a WordPairs
    pairs_E    (E,) int64, documents with each pair
    """

    documents: int
    words_U: np.ndarray
    pairs_E: np.ndarray

    def __add__(self, other: PairCounts) -> PairCounts:
        """Return the counts over the documents of both. Any order of adding gives the same counts."""
        return PairCounts(self.documents + other.documents, self.words_U + other.words_U, self.pairs_E + other.pairs_E)


def count_pairs(bags: Bags, pairs: WordPairs, threads: int = 1) -> PairCounts:
    """Return the numbers of documents of `bags` in which the words and pairs occur.

    Each thread counts consecutive documents with a copy of the counts: 8 (U + E) bytes. Releases the GIL.
    """
    if bags.num_words != pairs.num_words:
        raise InputError(
            f"the documents have {bags.num_words:,} words but the topics {pairs.num_words:,}; "
            "give documents with the vocabulary of the model"
        )
    local_V = np.full(pairs.num_words, -1, np.int32)
    local_V[pairs.words_U] = np.arange(len(pairs.words_U))
    cuts = np.searchsorted(bags.starts_D1, np.linspace(0, bags.pairs, threads + 1)[1:-1].astype(np.int64))
    bounds = [0, *cuts.tolist(), bags.documents]

    def count(first: int, last: int) -> PairCounts:
        words_U, pairs_E = (np.zeros(len(a), np.int64) for a in (pairs.words_U, pairs.others_E))
        inputs = bags.starts_D1[first : last + 1], bags.words_P, local_V, pairs.starts_U1, pairs.others_E
        _count(*map(read_only, inputs), words_U, pairs_E)
        return PairCounts(last - first, words_U, pairs_E)

    with ThreadPoolExecutor(threads) as pool:
        first, *rest = pool.map(count, bounds[:-1], bounds[1:])
    return sum(rest, first)


def u_mass(counts: PairCounts, pairs: WordPairs) -> np.ndarray:
    """Return (Z,) the u_mass coherence of each topic (Mimno et al. 2011): ln ((D(v, w) / D + epsilon) / (D(w) / D)).

    The mean over pairs of a top word v and a higher-ranked one w. A pair whose w is in no document counts as 0.
    """
    return _by_block(counts, pairs, _u_mass)


def c_uci(counts: PairCounts, pairs: WordPairs) -> np.ndarray:
    """Return (Z,) the mean pointwise mutual information over pairs of top words: ln ((p(v, w) + epsilon) / p(v) p(w)).

    A pair with a word that is in no document counts 0.
    """
    return _by_block(counts, pairs, lambda *block: _mean_of_pairs(_pmi(*block)))


def c_npmi(counts: PairCounts, pairs: WordPairs) -> np.ndarray:
    """Return (Z,) the mean normalised pointwise mutual information, PMI / -ln (p(v, w) + epsilon), from -1 to 1.

    A pair with a word that is in no document counts 0.
    """
    return _by_block(counts, pairs, lambda *block: _mean_of_pairs(_npmi(*block)))


def c_v(counts: PairCounts, pairs: WordPairs) -> np.ndarray:
    """Return (Z,) the C_v coherence: the mean cosine of each top word's NPMI with all top words, and their sum."""
    return _by_block(counts, pairs, _c_v)


COHERENCE_MEASURES: dict[str, Callable[[PairCounts, WordPairs], np.ndarray]] = {
    "u_mass": u_mass,
    "c_npmi": c_npmi,
    "c_uci": c_uci,
    "c_v": c_v,
}


def coherence(bags: Bags, words_Zn: np.ndarray, threads: int = 1) -> dict[str, np.ndarray]:
    """Return every measure of COHERENCE_MEASURES, each (Z,) float64, for the top words of topics, best first.

    bags      the documents, all in memory; for a corpus in parts, add the `count_pairs` of the parts
    words_Zn  (Z, n) word ids
    """
    pairs = WordPairs.of(words_Zn, bags.num_words)
    counts = count_pairs(bags, pairs, threads)
    return {name: measure(counts, pairs) for name, measure in COHERENCE_MEASURES.items()}


BlockMeasure = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _by_block(counts: PairCounts, pairs: WordPairs, measure: BlockMeasure) -> np.ndarray:
    """Return measure(joint_Znn, single_Zn), the shares of documents with two words and with one, for all topics."""
    Z, n = pairs.tops_Zn.shape
    documents = max(counts.documents, 1)
    scores_Z = np.zeros(Z)
    for start in range(0, Z, BLOCK_TOPICS) if n else ():
        block = slice(start, start + BLOCK_TOPICS)
        single_Zn = counts.words_U[pairs.tops_Zn[block]] / documents
        joint_Znn = np.append(counts.pairs_E, 0)[pairs.pairs_Znn[block]] / documents
        joint_Znn[:, range(n), range(n)] = single_Zn
        scores_Z[block] = measure(joint_Znn, single_Zn)
    return scores_Z


def _u_mass(joint_Znn: np.ndarray, single_Zn: np.ndarray) -> np.ndarray:
    better_Znn = np.broadcast_to(single_Zn[:, None, :], joint_Znn.shape)
    scores_Znn = np.log((joint_Znn + EPSILON) / np.where(better_Znn > 0, better_Znn, 1))
    scores_Znn[better_Znn == 0] = 0
    rows, columns = np.tril_indices(joint_Znn.shape[1], -1)
    return scores_Znn[:, rows, columns].mean(axis=1) if len(rows) else np.zeros(len(joint_Znn))


def _pmi(joint_Znn: np.ndarray, single_Zn: np.ndarray) -> np.ndarray:
    product_Znn = single_Zn[:, :, None] * single_Zn[:, None, :]
    return np.where(product_Znn > 0, np.log((joint_Znn + EPSILON) / np.where(product_Znn > 0, product_Znn, 1)), 0)


def _npmi(joint_Znn: np.ndarray, single_Zn: np.ndarray) -> np.ndarray:
    return _pmi(joint_Znn, single_Zn) / -np.log(joint_Znn + EPSILON)


def _mean_of_pairs(scores_Znn: np.ndarray) -> np.ndarray:
    Z, n, _ = scores_Znn.shape
    off_diagonal = ~np.eye(n, dtype=bool)
    return scores_Znn[:, off_diagonal].mean(axis=1) if n > 1 else np.zeros(Z)


def _c_v(joint_Znn: np.ndarray, single_Zn: np.ndarray) -> np.ndarray:
    vectors_Znn = _npmi(joint_Znn, single_Zn)
    sum_Zn = vectors_Znn.sum(axis=1)
    lengths_Zn = np.linalg.norm(vectors_Znn, axis=2) * np.linalg.norm(sum_Zn, axis=1)[:, None]
    dots_Zn = np.einsum("znm,zm->zn", vectors_Znn, sum_Zn)
    return (dots_Zn / np.where(lengths_Zn > 0, lengths_Zn, 1)).mean(axis=1)


@njit(nogil=True, cache=True)
def _count(starts_D1, words_P, local_V, starts_U1, others_E, words_U, pairs_E):
    seen_U = np.full(len(words_U), -1, np.int64)  # the last document with the word
    present_U = np.empty(len(words_U), np.int32)
    for d in range(len(starts_D1) - 1):
        present = 0
        for p in range(starts_D1[d], starts_D1[d + 1]):
            u = local_V[words_P[p]]
            if u >= 0:
                seen_U[u] = d
                words_U[u] += 1
                present_U[present] = u
                present += 1
        for i in range(present):
            u = present_U[i]
            for e in range(starts_U1[u], starts_U1[u + 1]):
                if seen_U[others_E[e]] == d:
                    pairs_E[e] += 1
