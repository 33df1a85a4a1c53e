"""Latent Dirichlet allocation on one device: its documents, their topics, and sweeps of Gibbs sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from mgpu_ngram.core.bags import Bags, join_bags
from mgpu_ngram.core.topic_model import Priors
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.count_topics import count_topics
from mgpu_ngram.kernels.lda.count_words import count_words
from mgpu_ngram.kernels.lda.first_topics import first_topics
from mgpu_ngram.kernels.lda.fold_in import Bag
from mgpu_ngram.kernels.lda.layout import lay_out, repeat
from mgpu_ngram.kernels.lda.sample_topics import Draw, sample_topics
from mgpu_ngram.kernels.lda.weights import ALIGN, PRIOR_BITS, Documents, Pairs, WordTopics, count_bits

BLOCK_TOKENS = 3 << 30  # of a block, with the gaps between documents: below 2^32
SLOT_PAIRS = 4096  # pairs of a slot on a GPU: a block of threads takes one slot
T = TypeVar("T")


class Group(Protocol):
    """The part of a `cluster.gang.Communicator` that sweeps need: sums over the devices of a run."""

    rank: int
    size: int

    def all_reduce(self, array: Any) -> Any: ...

    def all_reduce_async(self, array: Any) -> Any: ...


def word_topics(counts_VZ: Any, priors: Priors) -> WordTopics:
    """Return what kernels read of the counts and the priors, on the device of counts_VZ (V, Z) uint32."""
    xp = array_module(counts_VZ)
    V, Z = counts_VZ.shape
    totals_Z = counts_VZ.sum(0, dtype=np.int64)
    prior_Z = xp.asarray(priors.sums_Z(V))
    seeds_V = np.full(V if priors.seeds else 0, -1, np.int32)
    for row, word in enumerate(priors.seeds):
        seeds_V[word] = row
    beta_KZ = np.array([*priors.seeds.values()], np.float32).reshape(len(priors.seeds), Z)
    return WordTopics(
        counts_VZ,
        (1 / (totals_Z + prior_Z)).astype(np.float32),
        (1 / (xp.maximum(totals_Z, 1) - 1 + prior_Z)).astype(np.float32),
        xp.asarray((priors.alpha_Z * (1 << PRIOR_BITS)).astype(np.float32)),
        priors.beta,
        xp.asarray(seeds_V),
        xp.asarray(beta_KZ),
    )


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive documents of the corpus on a device.

    tokens   of each part of the corpus in this block, by the number of the part
    first    number of its first document
    parts    all pairs, in parts that threads may take at once: no word is in two of them
    """

    tokens: dict[int, int]
    first: int
    documents: Documents
    pairs: Pairs
    parts: tuple[Pairs, ...]

    def topics(self) -> dict[int, np.ndarray]:
        """Return uint16 in host memory: the topics of all tokens of each part of the corpus, document by document."""
        topics = to_host(self.documents.topics_T[self._places()])
        return dict(zip(self.tokens, np.split(topics, np.cumsum([*self.tokens.values()])[:-1]), strict=True))

    def set_topics(self, topics: dict[int, np.ndarray]) -> None:
        """Set the topics of all tokens to what `topics` returned, of these parts or more."""
        xp = array_module(self.documents.topics_T)
        self.documents.topics_T[self._places()] = xp.asarray(np.concatenate([topics[n] for n in self.tokens]))

    def _places(self) -> Any:
        """Return the places of all tokens in topics_T."""
        xp = array_module(self.documents.topics_T)
        lengths_D = self.documents.lengths_D.astype(np.int64)
        ends_D = xp.cumsum(lengths_D)
        total = int(ends_D[-1]) if len(ends_D) else 0
        gaps_D = ALIGN * self.documents.rows_D2[:, 0].astype(np.int64) - (ends_D - lengths_D)
        return xp.arange(total) + repeat(gaps_D, lengths_D)


def make_block(parts: Sequence[tuple[int, int, Bags]], num_topics: int, device: str, threads: int) -> Block:
    """Return consecutive parts of the corpus on a device; all tokens have topic 0. See `make_shard`."""
    tokens = {number: bags.tokens for number, _, bags in parts}
    first, bags = parts[0][1], join_bags([bags for _, _, bags in parts])
    starts_D1, words_P, counts_P = to_bag(bags, device)
    documents, pairs = lay_out(starts_D1, words_P, counts_P, num_topics, SLOT_PAIRS if device == "gpu" else None)
    if device == "gpu":
        return Block(tokens, first, documents, pairs, (pairs,))
    slots = [np.ascontiguousarray(pairs.slots_S3[i::threads]) for i in range(threads)]
    return Block(tokens, first, documents, pairs, tuple(pairs._replace(slots_S3=part) for part in slots))


@dataclass(eq=False)
class Shard:
    """The documents of one device, and the counts of the whole corpus.

    counts_VZ  (V, Z) uint32: tokens of each word with each topic, over all devices
    local_VZ   (V, Z) uint32: the same, of this device's documents
    sweep      sweeps done
    """

    blocks: list[Block]
    counts_VZ: Any
    local_VZ: Any
    device: str
    threads: int
    sweep: int = 0

    @property
    def num_topics(self) -> int:
        return self.counts_VZ.shape[1]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of this device's documents."""
        return sum(int(block.documents.lengths_D.sum(dtype=np.int64)) for block in self.blocks)

    def each(self, fn: Callable[..., T], arguments: Iterable[tuple[Any, ...]]) -> list[T]:
        """Call fn with each tuple of arguments: in threads on a CPU, one after the other on a GPU."""
        listed = list(arguments)
        if self.threads == 1 or self.device == "gpu" or len(listed) < 2:
            return [fn(*each) for each in listed]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(lambda each: fn(*each), listed))

    def count_topics(self) -> None:
        """Bring the documents' entries up to date with their topics."""
        Z = self.num_topics
        parts = [part for block in self.blocks for part in _row_parts(block.documents, self.threads)]
        self.each(count_topics, [(part, Z) for part in parts])


def _row_parts(documents: Documents, parts: int) -> list[Documents]:
    """Return the documents in so many parts of about equal length."""
    if parts == 1:
        return [documents]
    rows_D2, lengths_D = documents.rows_D2, documents.lengths_D
    ends_D = np.cumsum(lengths_D, dtype=np.int64)
    total = int(ends_D[-1]) if len(ends_D) else 0
    cuts = [0, *np.searchsorted(ends_D, [total * i // parts for i in range(1, parts)]).tolist(), len(rows_D2)]
    return [documents._replace(rows_D2=rows_D2[a:b], lengths_D=lengths_D[a:b]) for a, b in pairwise(cuts)]


def make_shard(
    parts: Sequence[tuple[int, int, Bags]], num_words: int, num_topics: int, device: str, threads: int
) -> Shard:
    """Return a shard of consecutive parts of the corpus. All tokens have topic 0 and are not counted.

    parts  (number of the part, number of its first document, its documents)
    """
    made = [make_block(group, num_topics, device, threads) for group in _groups(parts)]
    zeros = [to_device(np.zeros((num_words, num_topics), np.uint32), device) for _ in range(2)]
    return Shard(made, zeros[0], zeros[1], device, threads)


def _groups(parts: Sequence[tuple[int, int, Bags]]) -> list[list[tuple[int, int, Bags]]]:
    """Return the parts in groups of at most BLOCK_TOKENS tokens, if a part alone has not more."""
    groups: list[list[tuple[int, int, Bags]]] = []
    room = 0
    for part in parts:
        tokens = part[2].tokens + ALIGN * part[2].documents
        if not groups or tokens > room:
            groups.append([])
            room = BLOCK_TOKENS
        groups[-1].append(part)
        room -= tokens
    return groups


def start(shard: Shard, group: Group, seed: int, topics: dict[int, np.ndarray] | None = None) -> None:
    """Give every token a topic and count them, over all devices.

    seed    of random topics
    topics  topics of each part of the corpus, as `Block.topics` returns them; None: random topics
    """
    for block in shard.blocks:
        if topics is None:
            first_topics(block.documents, shard.num_topics, seed, block.first)
        else:
            block.set_topics(topics)
    shard.local_VZ[...] = 0
    for block in shard.blocks:  # parts share no word
        shard.each(count_words, [(part, block.documents.topics_T, shard.local_VZ) for part in block.parts])
    _sum_counts(shard, group)


def sweep(shard: Shard, group: Group, priors: Priors, seed: int, exclude_self: bool = True) -> int:
    """Draw a new topic for every token of all devices. Return how many of this device's tokens changed their topic."""
    words = word_topics(shard.counts_VZ, priors)
    changed = []
    for block in shard.blocks:
        draw = Draw(seed, shard.sweep + 1, block.first, exclude_self)
        changed += shard.each(
            sample_topics, [(block.documents, part, words, shard.local_VZ, draw) for part in block.parts]
        )
    _sum_counts(shard, group)
    shard.sweep += 1
    return sum(int(number[0]) for number in changed)


def _sum_counts(shard: Shard, group: Group) -> None:
    """Set the counts of the corpus to the sum over devices, while the entries of documents are made anew."""
    shard.counts_VZ[...] = shard.local_VZ
    pending = group.all_reduce_async(shard.counts_VZ)
    shard.count_topics()
    pending.wait()


def to_bag(bags: Bags, device: str) -> Bag:
    """Return the arrays of bags on a device."""
    return Bag(*(to_device(np.asarray(array), device) for array in (bags.starts_D1, bags.words_P, bags.counts_P)))


def document_counts(block: Block, num_topics: int) -> tuple[Any, Any, Any]:
    """Return (document, topic, count) of each topic of each document of a block: int64 arrays on its device."""
    rows_D2, entries_T = block.documents.rows_D2, block.documents.entries_T
    xp = array_module(entries_T)
    sizes_D = rows_D2[:, 1].astype(np.int64)
    ends_D = xp.cumsum(sizes_D)
    E = int(ends_D[-1]) if len(ends_D) else 0
    places_E = xp.arange(E) + repeat(ALIGN * rows_D2[:, 0].astype(np.int64) - (ends_D - sizes_D), sizes_D)
    document_E = repeat(xp.arange(len(rows_D2)), sizes_D)
    bits = count_bits(num_topics)[1]
    entry_E = entries_T[places_E].astype(np.int64)
    topic_E = entry_E >> bits
    last_E = xp.ones(E, bool)  # a count may take several entries
    last_E[:-1] = (topic_E[1:] != topic_E[:-1]) | (document_E[1:] != document_E[:-1])
    last = xp.flatnonzero(last_E)
    through = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(entry_E & ((1 << bits) - 1))[last]])
    return document_E[last], topic_E[last], xp.diff(through)


def total(shard: Shard, group: Group, number: int) -> int:
    """Return the sum of a number over all devices."""
    array = to_device(np.array([number], np.int64), shard.device)
    return int(group.all_reduce(array)[0])
