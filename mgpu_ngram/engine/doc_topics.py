"""Topics of documents: how many documents a topic has, which represent it, and its share in groups of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.words import read_only
from mgpu_ngram.kernels.compile import njit

NONE = -1  # the document in a place that no document fills


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

    Equal shares by weight, largest first, then by document. A topic with fewer documents has -1 and zeros at the end.

    documents_Zn  (Z, n) int64
    shares_Zn     (Z, n) float64, the topic's weight / all weights of the document
    weights_Zn    (Z, n) float64
    """

    documents_Zn: np.ndarray
    shares_Zn: np.ndarray
    weights_Zn: np.ndarray

    def merged(self, other: Representatives) -> Representatives:
        """Return the best of both. Any order of merging gives the same documents."""
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


def documents_of_topics(doc_topics: DocTopics, threshold: float | None = None) -> np.ndarray:
    """Return (Z,) int64, the documents of each topic.

    threshold  a document belongs to each topic with at least this share of it; None: to its largest topic, the first
               one of equals. A document without weights belongs to none
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise InputError(f"the threshold of documents is {threshold:g}; give a share above 0 and up to 1")
    documents_Z = np.zeros(doc_topics.num_topics, np.int64)
    _count_documents(*doc_topics.inputs, 0.0 if threshold is None else float(threshold), documents_Z)
    return documents_Z


def representative_documents(
    doc_topics: DocTopics, n: int, least_weight: float = 0.0, first_document: int = 0
) -> Representatives:
    """Return the n documents with the largest share of each topic.

    least_weight    documents whose weights sum to less are left out: one word is no example
    first_document  the number of the first document, when these are a part of a corpus; merge the parts
    """
    if n < 0:
        raise InputError(f"{n} documents a topic were asked for; give 0 or more")
    shape = doc_topics.num_topics, n
    found = Representatives(np.full(shape, NONE, np.int64), np.zeros(shape), np.zeros(shape))
    if n:
        _keep_best(*doc_topics.inputs, float(least_weight), first_document, *found)
    return found


def group_shares(doc_topics: DocTopics, groups_D: Sequence[Any] | np.ndarray, by_tokens: bool = False) -> GroupShares:
    """Return the share of each topic in each group of documents.

    groups_D   a group for each document: strings, numbers or dates (see `cut_dates`); None and NaT are the group ""
    by_tokens  sum the weights, so that long documents count more; else each document counts the same
    """
    values_D = np.asarray(groups_D)
    if values_D.shape != (doc_topics.documents,):
        raise InputError(
            f"{len(values_D):,} groups were given for {doc_topics.documents:,} documents; give a group for each"
        )
    if values_D.dtype.kind == "O":
        values_D = np.array(["" if value is None else str(value) for value in values_D.tolist()], dtype=str)
    values_G, group_D = np.unique(values_D, return_inverse=True)
    sums_GZ = np.zeros((len(values_G), doc_topics.num_topics))
    _add_groups(*doc_topics.inputs, read_only(group_D), by_tokens, sums_GZ)
    totals_G = sums_GZ.sum(axis=1, keepdims=True)
    names = ["" if name == "NaT" and values_G.dtype.kind == "M" else name for name in map(str, values_G)]
    documents_G = np.bincount(group_D, minlength=len(values_G))
    return GroupShares(names, documents_G, sums_GZ / np.where(totals_G > 0, totals_G, 1))


def cut_dates(dates_D: Sequence[Any] | np.ndarray, unit: str) -> np.ndarray:
    """Return dates cut to years ("Y"), months ("M"), weeks ("W", which start on Thursdays) or days ("D")."""
    if unit not in ("Y", "M", "W", "D"):
        raise InputError(f"the period of groups is {unit!r}; give Y, M, W or D")
    return np.asarray(dates_D, "datetime64").astype(f"datetime64[{unit}]")


@njit(nogil=True, cache=True)
def _count_documents(starts_D1, topics_N, weights_N, threshold, documents_Z):
    for d in range(len(starts_D1) - 1):
        total, largest, best = 0.0, 0.0, np.int64(-1)
        for e in range(starts_D1[d], starts_D1[d + 1]):
            total += weights_N[e]
            if weights_N[e] > largest or (weights_N[e] == largest and topics_N[e] < best):
                largest, best = float(weights_N[e]), np.int64(topics_N[e])
        if threshold > 0:
            for e in range(starts_D1[d], starts_D1[d + 1]):
                if weights_N[e] >= threshold * total:
                    documents_Z[topics_N[e]] += 1
        elif best >= 0:
            documents_Z[best] += 1


@njit(nogil=True, cache=True)
def _keep_best(
    starts_D1, topics_N, weights_N, least_weight, first_document, documents_Zn, shares_Zn, weights_Zn
):  # fmt: skip
    """Insert each document where it belongs in the rows of its topics; documents come in order, so ties stay behind."""
    last = documents_Zn.shape[1] - 1
    for d in range(len(starts_D1) - 1):
        total = 0.0
        for e in range(starts_D1[d], starts_D1[d + 1]):
            total += weights_N[e]
        if total < least_weight:
            continue
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


@njit(nogil=True, cache=True)
def _add_groups(starts_D1, topics_N, weights_N, group_D, by_tokens, sums_GZ):
    for d in range(len(starts_D1) - 1):
        total = 0.0
        for e in range(starts_D1[d], starts_D1[d + 1]):
            total += weights_N[e]
        for e in range(starts_D1[d], starts_D1[d + 1]):
            sums_GZ[group_D[d], topics_N[e]] += weights_N[e] if by_tokens else weights_N[e] / total
