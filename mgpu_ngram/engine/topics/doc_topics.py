"""Summaries of the topics of documents: representative documents, and shares of topics in groups of documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.compile_cpu import njit, read_only

NO_DOCUMENT = -1  # in an empty place


@dataclass(frozen=True, eq=False)
class DocTopics:
    """Weights of topics in D documents, a compressed sparse row matrix.

    starts_D1   (D + 1,) int64: document d has the entries starts_D1[d] to starts_D1[d + 1]; it may have none
    topics_N    (N,) topics, each once in a document
    weights_N   (N,) above 0: tokens of the topic in the document, or shares
    num_topics  Z
    """

    starts_D1: np.ndarray
    topics_N: np.ndarray
    weights_N: np.ndarray
    num_topics: int

    @property
    def documents(self) -> int:
        """Return D, the number of documents."""
        return len(self.starts_D1) - 1

    @cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays, as kernels take them."""
        return read_only(self.starts_D1), read_only(self.topics_N), read_only(self.weights_N)


class Representatives(NamedTuple):
    """The n documents with the largest share of each topic, largest first.

    Ties in order of falling weight, then by document. A topic with fewer documents has -1 and zeros at the end.

    documents_Zn  (Z, n) int64
    shares_Zn     (Z, n) float64, the topic's weight / all weights of the document
    weights_Zn    (Z, n) float64
    """

    documents_Zn: np.ndarray
    shares_Zn: np.ndarray
    weights_Zn: np.ndarray

    def merged(self, other: Representatives) -> Representatives:
        """Return the best documents of both. Any order of merging gives the same documents."""
        documents, shares, weights = (np.concatenate(pair, axis=1) for pair in zip(self, other, strict=True))
        n = self.documents_Zn.shape[1]
        order = np.lexsort((documents, -weights, -shares), axis=1)[:, :n]
        return Representatives(*(np.take_along_axis(array, order, axis=1) for array in (documents, shares, weights)))


@dataclass(frozen=True, eq=False)
class GroupShares:
    """Shares of topics in groups of documents, such as years or classes.

    groups        G names, ascending
    documents_G   (G,) int64
    shares_GZ     (G, Z) float64; a row sums to 1, or to 0 if no document of the group has a topic
    """

    groups: list[str]
    documents_G: np.ndarray
    shares_GZ: np.ndarray

    def as_json(self) -> dict[str, object]:
        """Return the shares as values of JSON."""
        rows = zip(self.groups, self.documents_G.tolist(), self.shares_GZ.tolist(), strict=True)
        return {"groups": [{"group": g, "documents": n, "shares": shares} for g, n, shares in rows]}


def representative_documents(doc_topics: DocTopics, n: int, first_document: int = 0) -> Representatives:
    """Return the n documents with the largest share of each topic.

    first_document  number of the first document if these are part of a corpus; then merge the results of the parts
    """
    if n < 0:
        raise InputError(f"{n} documents a topic were requested but the number must be 0 or more")
    shape = doc_topics.num_topics, n
    found = Representatives(np.full(shape, NO_DOCUMENT, np.int64), np.zeros(shape), np.zeros(shape))
    if n:
        _keep_best(*doc_topics.inputs, first_document, *found)
    return found


@njit(nogil=True, cache=True)
def _keep_best(starts_D1, topics_N, weights_N, first_document, documents_Zn, shares_Zn, weights_Zn):
    """Insert each document where it belongs in the rows of its topics; documents come in order, so ties stay behind."""
    last = documents_Zn.shape[1] - 1
    for d in range(len(starts_D1) - 1):
        total = 0.0
        for e in range(starts_D1[d], starts_D1[d + 1]):
            total += weights_N[e]
        for e in range(starts_D1[d], starts_D1[d + 1]):
            z, weight = topics_N[e], float(weights_N[e])
            share = weight / total
            i = last + 1
            while i > 0 and (
                share > shares_Zn[z, i - 1] or (share == shares_Zn[z, i - 1] and weight > weights_Zn[z, i - 1])
            ):
                i -= 1
                if i < last:
                    documents_Zn[z, i + 1] = documents_Zn[z, i]
                    shares_Zn[z, i + 1] = shares_Zn[z, i]
                    weights_Zn[z, i + 1] = weights_Zn[z, i]
            if i <= last:
                documents_Zn[z, i] = first_document + d
                shares_Zn[z, i] = share
                weights_Zn[z, i] = weight
