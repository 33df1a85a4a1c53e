"""Latent Dirichlet allocation on one device: its documents, their topics, and sweeps of Gibbs sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from mgpu_ngram.core.bags.topic_model import Priors, TopicModel
from mgpu_ngram.engine.lda.blocks import Blocks, Room, in_threads, make_blocks
from mgpu_ngram.engine.lda.documents import Block, CorpusPart, places
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.count_word_topics import count_word_topics
from mgpu_ngram.kernels.lda.first_topics import first_topics
from mgpu_ngram.kernels.lda.layout import repeat
from mgpu_ngram.kernels.lda.sample_topics import Draw, sample_topics
from mgpu_ngram.kernels.lda.topic_totals import topic_totals
from mgpu_ngram.kernels.lda.weights import PRIOR_BITS, WordTopics, count_bits

SORTED = 1 << 26  # counts that are sorted at a time
T = TypeVar("T")


class Group(Protocol):
    """The part of a `cluster.gang.Communicator` that sweeps need: sums over the devices of a run."""

    rank: int
    size: int

    def all_reduce(self, array: Any) -> Any: ...

    def all_reduce_async(self, array: Any, out: Any = None) -> Any: ...


def word_topics(counts_VZ: Any, priors: Priors) -> WordTopics:
    """Return the counts and priors as kernels read them, on the device of counts_VZ (V, Z) uint32."""
    xp = array_module(counts_VZ)
    V, Z = counts_VZ.shape
    totals_Z = topic_totals(counts_VZ)
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


@dataclass(eq=False)
class Sampler:
    """The documents of one device, and the counts of the whole corpus.

    counts_VZ  (V, Z) uint32: number of tokens of each word with each topic, over all devices
    local_VZ   (V, Z) uint32: the same for the documents of this device
    sweep      number of finished sweeps
    """

    blocks: Blocks
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
        return sum(int(lengths_D.sum(dtype=np.int64)) for lengths_D in self.blocks.lengths)

    def each(self, fn: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """Call fn with each tuple of arguments: in threads on a CPU, one after the other on a GPU."""
        return in_threads(1 if self.device == "gpu" else self.threads, fn, arguments)


def make_sampler(
    parts: Sequence[CorpusPart], num_words: int, num_topics: int, device: str, threads: int, room: Room | None = None
) -> Sampler:
    """Return a sampler of consecutive parts of the corpus. All tokens have topic 0 and are not counted."""
    zeros = [to_device(np.zeros((num_words, num_topics), np.uint32), device) for _ in range(2)]
    return Sampler(make_blocks(parts, num_topics, device, threads, room), zeros[0], zeros[1], device, threads)


def start_topics(
    sampler: Sampler,
    group: Group,
    seed: int,
    topics: dict[int, np.ndarray] | None = None,
    earlier: TopicModel | None = None,
) -> None:
    """Give every token a topic and count them, over all devices.

    seed     seed of random topics
    topics   topics of each part of the corpus, as `Block.topics` returns them; None: random topics
    earlier  model of earlier documents, whose counts are added and never change; only one device of the group has it
    """
    if topics is not None:
        for block in sampler.blocks.stored():
            block.set_topics(topics)
    sampler.local_VZ[...] = 0
    for v, counts_vZ in earlier.counts_by_words() if earlier else ():
        sampler.local_VZ[v : v + len(counts_vZ)] = to_device(counts_vZ, sampler.device)
    for block in sampler.blocks.loaded(changes=True):
        if topics is None:
            first_topics(block.documents, sampler.num_topics, seed, block.first)
        sampler.each(
            count_word_topics, [(pairs, block.documents.topics_T, sampler.local_VZ) for pairs in block.threads]
        )
    _sum_counts(sampler, group)


def sweep(sampler: Sampler, group: Group, priors: Priors, seed: int, exclude_self: bool = True) -> int:
    """Draw a new topic for every token of all devices.

    Return the number of this device's tokens whose topic changed.
    """
    words = word_topics(sampler.counts_VZ, priors)
    changed = []
    for block in sampler.blocks.loaded(changes=True):
        draw = Draw(seed, sampler.sweep + 1, block.first, exclude_self)
        changed += sampler.each(
            sample_topics, [(block.documents, pairs, words, sampler.local_VZ, draw) for pairs in block.threads]
        )
    _sum_counts(sampler, group)
    sampler.sweep += 1
    return sum(int(number[0]) for number in changed)


def _sum_counts(sampler: Sampler, group: Group) -> None:
    """Set the counts of the corpus to the sum over devices, while the entries of documents are made anew."""
    pending = group.all_reduce_async(sampler.local_VZ, sampler.counts_VZ)
    sampler.blocks.count_topics(1 if sampler.device == "gpu" else sampler.threads)
    pending.hold_stream()


def document_counts(block: Block, num_topics: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (document, topic, count) of each topic of consecutive documents of a block: int64 arrays on its device."""
    rows_D2, entries_T = block.documents.rows_D2, block.documents.entries_T
    xp, bits = array_module(entries_T), count_bits(num_topics)[1]
    for first, end, places_E in places(rows_D2, rows_D2[:, 1]):
        document_E = repeat(xp.arange(first, end), rows_D2[first:end, 1].astype(np.int64))
        entry_E = entries_T[places_E].astype(np.int64)
        topic_E = entry_E >> bits
        last_E = xp.ones(len(entry_E), bool)  # a count may take several entries
        last_E[:-1] = (topic_E[1:] != topic_E[:-1]) | (document_E[1:] != document_E[:-1])
        last = xp.flatnonzero(last_E)
        through = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(entry_E & ((1 << bits) - 1))[last]])
        yield document_E[last], topic_E[last], xp.diff(through)


def numbers_of_counts(counts_VZ: Any, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (counts, numbers) in host memory: the number of times that each count occurs in the rows of words, rising.

    Sorting needs several times the bytes of its input, so it sorts a part of the rows at a time.
    """
    xp = array_module(counts_VZ)
    step = max(1, SORTED // max(1, counts_VZ.shape[1]))
    counts, numbers = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
    for v in range(0, len(words), step):
        part = xp.unique(counts_VZ[xp.asarray(words[v : v + step])], return_counts=True)
        counts.append(to_host(part[0]))
        numbers.append(to_host(part[1]))
    return merged(counts, numbers)


def merged(values: Sequence[np.ndarray], numbers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values of all parts, rising, and the sum of the numbers of each."""
    values_N, place_of = np.unique(np.concatenate(values), return_inverse=True)
    numbers_N = np.zeros(len(values_N), np.int64)
    np.add.at(numbers_N, place_of, np.concatenate(numbers))
    return values_N, numbers_N


def total(sampler: Sampler, group: Group, number: int) -> int:
    """Return the sum of a number over all devices."""
    array = to_device(np.array([number], np.int64), sampler.device)
    return int(group.all_reduce(array)[0])
