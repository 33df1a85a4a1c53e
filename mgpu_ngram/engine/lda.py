"""Latent Dirichlet allocation on one device: its documents, their topics, and sweeps of Gibbs sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np

from mgpu_ngram.core.bags import Bags
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.count_topics import count_topics
from mgpu_ngram.kernels.lda.count_words import count_words
from mgpu_ngram.kernels.lda.first_topics import first_topics
from mgpu_ngram.kernels.lda.fold_in import Bag, fold_in
from mgpu_ngram.kernels.lda.layout import lay_out, repeat
from mgpu_ngram.kernels.lda.plugin_likelihood import UNITS, plugin_likelihood
from mgpu_ngram.kernels.lda.sample_topics import Draw, sample_topics
from mgpu_ngram.kernels.lda.weights import ALIGN, PRIOR_BITS, Documents, Pairs, WordTopics, count_bits

SLOT_PAIRS = 4096  # pairs of a slot on a GPU: a block of threads takes one slot
T = TypeVar("T")


class Group(Protocol):
    """The part of a `cluster.gang.Communicator` that sweeps need: sums over the devices of a run."""

    rank: int
    size: int

    def all_reduce(self, array: Any) -> Any: ...

    def all_reduce_async(self, array: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class Priors:
    """The parameters of the Dirichlet priors.

    alpha_Z  (Z,) float64: of topics in a document
    beta     of words in a topic
    seeds    own priors of some words, over all topics: word id -> (Z,) float32
    """

    alpha_Z: np.ndarray
    beta: float
    seeds: dict[int, np.ndarray] = field(default_factory=dict)

    def sums_Z(self, num_words: int) -> np.ndarray:
        """Return (Z,) float64, the sum over words of the priors of each topic."""
        own_KZ = np.array([*self.seeds.values()], np.float64).reshape(len(self.seeds), len(self.alpha_Z))
        return self.beta * (num_words - len(self.seeds)) + own_KZ.sum(0)


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

    number   of the block in the corpus
    first    number of its first document
    parts    all pairs, in parts that threads may take at once: no word is in two of them
    """

    number: int
    first: int
    documents: Documents
    pairs: Pairs
    parts: tuple[Pairs, ...]

    def topics(self) -> np.ndarray:
        """Return (tokens,) uint16 in host memory: the topics of all tokens, document by document."""
        return to_host(self.documents.topics_T[self._tokens()])

    def set_topics(self, topics: np.ndarray) -> None:
        """Set the topics of all tokens to what `topics` returned."""
        xp = array_module(self.documents.topics_T)
        self.documents.topics_T[self._tokens()] = xp.asarray(topics)

    def _tokens(self) -> Any:
        """Return the places of all tokens in topics_T."""
        xp = array_module(self.documents.topics_T)
        lengths_D = self.documents.lengths_D.astype(np.int64)
        ends_D = xp.cumsum(lengths_D)
        total = int(ends_D[-1]) if len(ends_D) else 0
        gaps_D = ALIGN * self.documents.rows_D2[:, 0].astype(np.int64) - (ends_D - lengths_D)
        return xp.arange(total) + repeat(gaps_D, lengths_D)


def make_block(number: int, first: int, bags: Bags, num_topics: int, device: str, threads: int) -> Block:
    """Return documents on a device; all tokens have topic 0."""
    starts_D1, words_P, counts_P = to_bag(bags, device)
    documents, pairs = lay_out(starts_D1, words_P, counts_P, num_topics, SLOT_PAIRS if device == "gpu" else None)
    if device == "gpu":
        return Block(number, first, documents, pairs, (pairs,))
    slots = [np.ascontiguousarray(pairs.slots_S3[i::threads]) for i in range(threads)]
    return Block(number, first, documents, pairs, tuple(pairs._replace(slots_S3=part) for part in slots))


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
    blocks: Sequence[tuple[int, int, Bags]], num_words: int, num_topics: int, device: str, threads: int
) -> Shard:
    """Return a shard of blocks, each given as (number, number of its first document, bags). Topics are not set."""
    made = [make_block(*block, num_topics, device, threads) for block in blocks]
    zeros = [to_device(np.zeros((num_words, num_topics), np.uint32), device) for _ in range(2)]
    return Shard(made, zeros[0], zeros[1], device, threads)


def start(shard: Shard, group: Group, seed: int, topics: dict[int, np.ndarray] | None = None) -> None:
    """Give every token a topic and count them, over all devices.

    seed    of random topics
    topics  topics of each block by its number, as `Block.topics` returns them; None: random topics
    """
    for block in shard.blocks:
        if topics is None:
            first_topics(block.documents, shard.num_topics, seed, block.first)
        else:
            block.set_topics(topics[block.number])
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


def plugin(shard: Shard, group: Group, priors: Priors) -> float:
    """Return the plug-in log-likelihood, natural, of the tokens of all devices: see `plugin_likelihood`."""
    words = word_topics(shard.counts_VZ, priors)
    sums = [
        shard.each(plugin_likelihood, [(block.documents, part, words) for part in block.parts])
        for block in shard.blocks
    ]
    total = sum(int(number[0]) for block in sums for number in block)
    return int(_total(shard, group, total)) / UNITS


def _total(shard: Shard, group: Group, number: int) -> int:
    """Return the sum of a number over all devices."""
    array = to_device(np.array([number], np.int64), shard.device)
    return int(group.all_reduce(array)[0])


def document_counts(shard: Shard, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (document, topic, count) of each topic of each document of a block, in host memory."""
    rows_D2, entries_T = to_host(block.documents.rows_D2), to_host(block.documents.entries_T)
    sizes_D = rows_D2[:, 1].astype(np.int64)
    ends_D = np.cumsum(sizes_D)
    places = np.arange(int(ends_D[-1]) if len(ends_D) else 0)
    places += np.repeat(ALIGN * rows_D2[:, 0].astype(np.int64) - (ends_D - sizes_D), sizes_D)
    document_E = np.repeat(np.arange(len(rows_D2)), sizes_D)
    bits = count_bits(shard.num_topics)[1]
    entry_E = entries_T[places].astype(np.int64)
    topic_E, count_E = entry_E >> bits, entry_E & ((1 << bits) - 1)
    new_E = np.ones(len(places), bool)  # a count may take several entries
    new_E[1:] = (topic_E[1:] != topic_E[:-1]) | (document_E[1:] != document_E[:-1])
    starts = np.flatnonzero(new_E)
    counts = np.add.reduceat(count_E, starts) if len(starts) else count_E
    return document_E[starts], topic_E[starts], counts


def joint(shard: Shard, group: Group, priors: Priors) -> float:
    """Return ln p(words, topics | priors) of the tokens of all devices, with theta and phi integrated out.

    Griffiths and Steyvers (2004), equations 2 and 3, with asymmetric priors.
    """
    alpha_Z, V = priors.alpha_Z, len(shard.counts_VZ)
    alpha = float(alpha_Z.sum())
    documents = 0.0
    for block in shard.blocks:
        _, topic_E, count_E = document_counts(shard, block)
        keys, numbers = np.unique(topic_E << 32 | count_E, return_counts=True)
        topics, counts = keys >> 32, keys & 0xFFFFFFFF
        documents += float((numbers * (_lgamma(counts + alpha_Z[topics]) - _lgamma(alpha_Z)[topics])).sum())
        lengths, numbers = np.unique(to_host(block.documents.lengths_D), return_counts=True)
        documents += float((numbers * (math.lgamma(alpha) - _lgamma(lengths + alpha))).sum())
    total = _total(shard, group, round(documents * UNITS)) / UNITS

    xp = array_module(shard.counts_VZ)
    plain_V = xp.ones(V, bool)
    for word, prior_Z in priors.seeds.items():
        plain_V[word] = False
        prior_Z = prior_Z.astype(np.float64)
        total += float((_lgamma(to_host(shard.counts_VZ[word]) + prior_Z) - _lgamma(prior_Z)).sum())
    counts, numbers = (
        to_host(a) for a in xp.unique(shard.counts_VZ[plain_V] if priors.seeds else shard.counts_VZ, return_counts=True)
    )
    total += float((numbers * (_lgamma(counts + priors.beta) - math.lgamma(priors.beta))).sum())
    sums_Z = priors.sums_Z(V)
    totals_Z = to_host(shard.counts_VZ.sum(0, dtype=np.int64))
    return total + float((_lgamma(sums_Z) - _lgamma(totals_Z + sums_Z)).sum())


def _lgamma(values: np.ndarray) -> np.ndarray:
    """Return ln Gamma of each value."""
    return np.array([math.lgamma(x) for x in np.asarray(values, np.float64).ravel().tolist()]).reshape(np.shape(values))


def completion(counts_VZ: Any, priors: Priors, observed: Bags, target: Bags) -> tuple[int, int]:
    """Return (sum of ln p of the target tokens in units of 1 / UNITS, their number), by document completion.

    observed, target  the two halves of the same held-out documents

    Topics of a document are fitted to the observed half with `fold_in`. Wallach et al., "Evaluation methods for topic
    models" (2009), section 5.
    """
    words = word_topics(counts_VZ, priors)
    device = "cpu" if array_module(counts_VZ) is np else "gpu"
    theta_DZ = fold_in(to_bag(observed, device), words)
    xp = array_module(theta_DZ)
    theta_DZ = theta_DZ / theta_DZ.sum(1, keepdims=True, dtype=np.float64)
    starts, total = target.starts_D1, 0
    for d in np.flatnonzero(np.diff(starts)).tolist():
        pairs = slice(int(starts[d]), int(starts[d + 1]))
        word_P = target.words_P[pairs].astype(np.int64)
        phi_PZ = _phi(words, xp.asarray(word_P), priors)
        p_P = to_host((phi_PZ * theta_DZ[d]).sum(1))
        total += int(np.rint(target.counts_P[pairs] * np.log(p_P) * UNITS).astype(np.int64).sum())
    return total, target.tokens


def _phi(words: WordTopics, word_P: Any, priors: Priors) -> Any:
    """Return (P, Z) float64: the probability of words in each topic."""
    xp = array_module(words.counts_VZ)
    beta_PZ = xp.full((len(word_P), 1), words.beta, np.float64)
    if priors.seeds:
        row_P = words.seeds_V[word_P]
        beta_PZ = xp.where(row_P[:, None] >= 0, words.beta_KZ[row_P].astype(np.float64), beta_PZ)
    return (words.counts_VZ[word_P] + beta_PZ) * words.inverse_Z.astype(np.float64)


def to_bag(bags: Bags, device: str) -> Bag:
    """Return the arrays of bags on a device."""
    return Bag(*(to_device(np.asarray(array), device) for array in (bags.starts_D1, bags.words_P, bags.counts_P)))
