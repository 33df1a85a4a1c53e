"""The documents of a topic model's corpus: parts that devices divide, and blocks of them on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bag_files import load_bags
from mgpu_ngram.core.bags.bags import Bags, join_bags
from mgpu_ngram.engine.lda.hold_out import keep_training
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.fold_in import Bag
from mgpu_ngram.kernels.lda.layout import lay_out, repeat
from mgpu_ngram.kernels.lda.weights import ALIGN, Documents, Pairs

SLOT_PAIRS = 4096  # pairs of a slot on a GPU: a block of threads takes one slot
PLACES_AT_ONCE = 1 << 24  # tokens or entries whose places are computed at once


@dataclass(frozen=True)
class CorpusPart:
    """Consecutive documents of the corpus: the devices of a run divide the parts, and snapshots name them.

    number     number of the part
    first      number of its first document in the corpus
    bags       the documents, or the path of the file that holds them
    documents, tokens, pairs  numbers of documents, tokens and pairs
    held_out   share of the documents that are held out, and the seed that selects them
    """

    number: int
    first: int
    bags: Bags | str
    documents: int
    tokens: int
    pairs: int
    held_out: tuple[float, int] = (0.0, 0)

    @classmethod
    def of(
        cls, number: int, first: int, bags: Bags, path: str | None = None, held_out: tuple[float, int] = (0.0, 0)
    ) -> CorpusPart:
        """Return the part of these documents; `path` is a file that holds them, if any."""
        return cls(number, first, path or bags, bags.documents, bags.tokens, bags.pairs, held_out)

    def load(self) -> Bags:
        """Return the documents; held-out documents are empty."""
        share, seed = self.held_out
        return keep_training(self.load_all(), self.first, share, seed) if share else self.load_all()

    def load_all(self) -> Bags:
        """Return all documents."""
        return load_bags(self.bags, verify=False) if isinstance(self.bags, str) else self.bags


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive documents of the corpus on a device.

    tokens   number of tokens of each part of the corpus in this block, by the number of the part
    first    number of its first document
    threads  all pairs, divided among threads so that each word belongs to one thread
    """

    tokens: dict[int, int]
    first: int
    documents: Documents
    pairs: Pairs
    threads: tuple[Pairs, ...]

    def topics(self) -> dict[int, np.ndarray]:
        """Return uint16 in host memory: the topics of all tokens of each part of the corpus, document by document."""
        topics, at = np.empty(sum(self.tokens.values()), np.uint16), 0
        for _, _, places_T in places(self.documents.rows_D2, self.documents.lengths_D):
            topics[at : at + len(places_T)] = to_host(self.documents.topics_T[places_T])
            at += len(places_T)
        return dict(zip(self.tokens, np.split(topics, np.cumsum([*self.tokens.values()])[:-1]), strict=True))

    def set_topics(self, topics: dict[int, np.ndarray]) -> None:
        """Set the topics of all tokens to the result of `topics`, which may include other parts."""
        xp, at = array_module(self.documents.topics_T), 0
        given = np.concatenate([topics[n] for n in self.tokens])
        for _, _, places_T in places(self.documents.rows_D2, self.documents.lengths_D):
            self.documents.topics_T[places_T] = xp.asarray(given[at : at + len(places_T)])
            at += len(places_T)


def places(rows_D2: Any, sizes_D: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield (first, end, places_N) of consecutive documents: the places of their tokens, or of their entries.

    rows_D2  rows of `Documents`
    sizes_D  (D,) number of tokens, or entries, of each document

    An index takes several times the bytes of a topic, so each yield has about PLACES_AT_ONCE places, on the device.
    """
    xp, sizes_D = array_module(rows_D2), sizes_D.astype(np.int64)
    for first, end in strips(sizes_D):
        size_D = sizes_D[first:end]
        before_D = xp.cumsum(size_D) - size_D
        gaps_D = ALIGN * rows_D2[first:end, 0].astype(np.int64) - before_D
        yield first, end, xp.arange(int(size_D.sum())) + repeat(gaps_D, size_D)


def strips(sizes_N: Any) -> list[tuple[int, int]]:
    """Return (first, end) of consecutive items of about PLACES_AT_ONCE places together, from their int64 sizes."""
    xp, ends_N = array_module(sizes_N), sizes_N.cumsum()
    total = int(ends_N[-1]) if len(ends_N) else 0
    limits = xp.arange(PLACES_AT_ONCE, total, PLACES_AT_ONCE)
    cuts = to_host(xp.searchsorted(ends_N, limits)).tolist() if total > PLACES_AT_ONCE else []
    return list(pairwise(sorted({0, *cuts, len(sizes_N)})))


def make_block(parts: Sequence[CorpusPart], num_topics: int, device: str, threads: int) -> Block:
    """Return consecutive parts of the corpus on a device; all tokens have topic 0."""
    loaded = [part.load() for part in parts]
    tokens = {part.number: bags.tokens for part, bags in zip(parts, loaded, strict=True)}
    first, bags = parts[0].first, join_bags(loaded)
    starts_D1, words_P, counts_P = to_bag(bags, device)
    documents, pairs = lay_out(starts_D1, words_P, counts_P, num_topics, SLOT_PAIRS if device == "gpu" else None)
    if device == "gpu":
        return Block(tokens, first, documents, pairs, (pairs,))
    slots = [np.ascontiguousarray(pairs.slots_S3[i::threads]) for i in range(threads)]
    return Block(tokens, first, documents, pairs, tuple(pairs._replace(slots_S3=part) for part in slots))


def arrays_of(block: Block) -> list[Any]:
    """Return the arrays of a block except the entries, which follow from the topics."""
    return [*block.documents[:3], *block.pairs]


def to_bag(bags: Bags, device: str) -> Bag:
    """Return the arrays of bags on a device."""
    return Bag(*(to_device(np.asarray(array), device) for array in (bags.starts_D1, bags.words_P, bags.counts_P)))
