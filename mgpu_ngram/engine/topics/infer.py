"""Find the topics of new documents with a model: the work of one worker on a chunk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.text_options import DEFAULT_PATTERN, TextOptions
from mgpu_ngram.core.bags.topic_model import TopicModel, identify_topic_model, load_topic_model
from mgpu_ngram.core.bags.word_list import make_words
from mgpu_ngram.core.documents.columns import Period, classes_of, column_values, periods_of
from mgpu_ngram.core.documents.damage import Damage
from mgpu_ngram.core.documents.documents import JoinedTexts, TextDocuments, TokenLists, read_documents
from mgpu_ngram.core.errors import InputError, RunError, warn
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.engine.bags.local_bags import WordIndex
from mgpu_ngram.engine.bags.text_bags import local_bags
from mgpu_ngram.engine.lda.documents import to_bag
from mgpu_ngram.engine.lda.fold_in import fixed_of, row_sums
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.topics.doc_topics import DocTopics, Representatives, representative_documents
from mgpu_ngram.engine.topics.table import SNIPPET
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.fold_in import FixedTopics, fold_in

BLOCK_BYTES = 4 << 20  # text that becomes bags of words at once
SHARES_AT_ONCE = {"cpu": 1 << 22, "gpu": 1 << 26}  # documents x topics that are computed at once
LESS_MEMORY = "use fewer workers, or a device with more memory"


@dataclass(frozen=True)
class Grouping:
    """The grouping of documents: by the values of a column, or by the periods of its dates."""

    column: str
    period: Period | None = None

    def names(self, values: Sequence[Any]) -> list[str]:
        """Return the group of each value."""
        return classes_of(values) if self.period is None else periods_of(values, self.period, self.column)


@dataclass(frozen=True)
class InferOptions:
    """Options for finding the topics of documents; the same for all chunks of a run. Picklable.

    model      path of the model file
    identity   identity of that file, from `identify_topic_model`; the file of a worker must have the same one
    text       options for making bags of words
    threshold  shares below the threshold are left out of sparse rows
    dense      return all shares
    examples   number of representative documents of each topic
    snippets   return the beginnings of these documents
    grouping   add up the shares of groups; None: no groups
    """

    model: str
    identity: str
    text: TextOptions
    device: str = "cpu"
    threshold: float = 0.01
    dense: bool = False
    examples: int = 0
    snippets: bool = False
    grouping: Grouping | None = None


@dataclass
class Inferred:
    """The topics of D documents.

    tokens_D     (D,) int64, number of tokens of words that the model knows
    unknown_D    (D,) int64, number of other tokens, without stop words
    starts_D1    (D + 1,) int64, where the entries of each document start. The largest share of a document comes first,
                 ties by topic
    topics_N     (N,) int32
    shares_N     (N,) float32. All shares of a document sum to 1; those below the threshold are left out
    shares_DZ    (D, Z) float32 if they were requested, else (0, Z)
    documents_Z  (Z,) int64, number of documents whose largest topic is each topic; a document without known words
                 counts for no topic
    examples     representative documents, numbered from 0 in the chunk
    snippets     beginnings of the examples, by document
    groups       number of documents of each group, and (Z,) float64 the sum of their shares. Documents without known
                 words add no shares
    damage       records and files that were left out
    """

    tokens_D: np.ndarray
    unknown_D: np.ndarray
    starts_D1: np.ndarray
    topics_N: np.ndarray
    shares_N: np.ndarray
    shares_DZ: np.ndarray
    documents_Z: np.ndarray
    examples: Representatives
    snippets: dict[int, str] = field(default_factory=dict)
    groups: dict[str, tuple[int, np.ndarray]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)

    @property
    def documents(self) -> int:
        """Return D, the number of documents."""
        return len(self.tokens_D)


class TopicReplica:
    """A model on a device, ready to find topics."""

    def __init__(self, model: TopicModel, text: TextOptions, device: str):
        self.num_words, self.num_topics, self.device = model.num_words, model.num_topics, device
        self.fixed = FixedTopics(*(to_device_fast(array, device) for array in fixed_of(model)))
        stops = sorted(text.stop_words)
        self.index = None if model.words is None else WordIndex(model.words, stops, "the model")
        self.stops = WordIndex(make_words(stops)) if stops else None


_replicas: dict[
    tuple[str, str], tuple[TextOptions, TopicReplica]
] = {}  # the last one of this process, by (identity, device)
_loading = threading.Lock()


def topic_replica_of(options: InferOptions) -> TopicReplica:
    """Return this process's replica of a model, loaded at first use; a replica of another model is dropped."""
    key = options.identity, options.device
    with _loading:
        if key in _replicas and _replicas[key][0] == options.text:
            return _replicas[key][1]
        _replicas.clear()
        model = load_topic_model(options.model)
        found = identify_topic_model(options.model)
        if found != options.identity:
            raise RunError(
                f"{options.model} is {found} on this worker but was {options.identity} at the start; "
                "use the same file on all workers"
            )
        with memory_guard("loading a topic model", options.device, LESS_MEMORY):
            replica = TopicReplica(model, options.text, options.device)
        _replicas[key] = options.text, replica
        return replica


def text_options_of(settings: dict[str, Any]) -> TextOptions:
    """Return the text options of a model's training from its settings; options that it lacks have their defaults.

    A missing file of stop words is left out, with a warning: the vocabulary of the model lacks these words, so
    only the number of unknown words changes.
    """
    stop_words = settings.get("stop_words")
    lowercase, pattern = bool(settings.get("lowercase", True)), settings.get("token_pattern") or DEFAULT_PATTERN
    try:
        return TextOptions(lowercase, pattern, stop_words)
    except InputError as error:
        if stop_words is None:
            raise
        warn(f"the stop words of the model cannot be read ({error}); they count as unknown words")
        return TextOptions(lowercase, pattern)


def infer_chunk(chunk: Chunk, options: InferOptions) -> Inferred:
    """Return the topics of the documents of a chunk of `open_documents`."""
    watch = Stopwatch(options.device)
    replica = topic_replica_of(options)
    if replica.index is None:
        raise InputError(f"the model {options.model} has no words; give matrices with {replica.num_words:,} columns")
    watch.lap("load")
    names = options.grouping.names(column_values(chunk, options.grouping.column)) if options.grouping else None
    with memory_guard("finding topics", options.device, LESS_MEMORY):
        found = _TopicCollector(replica, options, watch)
        damage = Damage()
        for documents in read_documents(chunk, BLOCK_BYTES, not options.text.has_default_pattern, damage.add):
            local = local_bags(documents, options.text, options.device)
            bags = local.in_vocabulary(replica.index)
            unknown_D = local.bags.lengths_D() - bags.lengths_D()
            if replica.stops is not None:
                unknown_D -= local.in_vocabulary(replica.stops).lengths_D()
            watch.lap("read")
            at = found.documents
            groups = None if names is None else names[at : at + bags.documents]
            found.add(bags, unknown_D, groups, _teller(documents) if options.snippets else None)
        if names is not None and len(names) != found.documents:
            column = options.grouping and options.grouping.column
            raise InputError(
                f"{chunk} has {found.documents:,} documents but {len(names):,} values in the column {column!r}; "
                "correct its damaged records"
            )
        return replace(found.result(), damage=damage)


def infer_bags(bags: Bags, unknown_D: np.ndarray, options: InferOptions) -> Inferred:
    """Return the topics of bags of words of the model's vocabulary."""
    watch = Stopwatch(options.device)
    replica = topic_replica_of(options)
    watch.lap("load")
    with memory_guard("finding topics", options.device, LESS_MEMORY):
        found = _TopicCollector(replica, options, watch)
        found.add(bags, unknown_D, None, None)
        return found.result()


def _teller(documents: TextDocuments) -> Callable[[int], str]:
    """Return a function that returns the beginning of a document of a block."""
    if isinstance(documents, JoinedTexts):
        data = documents.data
        ends = np.flatnonzero(data == 10)

        def line(d: int) -> str:
            start = int(ends[d - 1]) + 1 if d else 0
            return data[start : min(int(ends[d]), start + 4 * SNIPPET)].tobytes().decode("utf-8", "replace")[:SNIPPET]

        return line
    if isinstance(documents, TokenLists):
        lists = documents

        def tokens(d: int) -> str:
            first, last = int(lists.starts_D1[d]), int(lists.starts_D1[d + 1])
            bounds = lists.offsets_T1[first : min(last, first + SNIPPET) + 1].tolist()
            parts = (lists.data[a:b].tobytes() for a, b in zip(bounds, bounds[1:], strict=False))
            return b" ".join(parts).decode("utf-8", "replace")[:SNIPPET]

        return tokens
    return lambda d: documents[d].encode("utf-8", "replace").decode()[:SNIPPET]


class _TopicCollector:
    """Collects the topics of blocks of documents."""

    def __init__(self, replica: TopicReplica, options: InferOptions, watch: Stopwatch):
        self.replica, self.options, self.watch = replica, options, watch
        self.documents = 0
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.documents_Z = np.zeros(replica.num_topics, np.int64)
        self.examples = no_examples(replica.num_topics, options.examples)
        self.snippets: dict[int, str] = {}
        self.groups: dict[str, tuple[int, np.ndarray]] = {}

    def add(
        self,
        bags: Bags,
        unknown_D: np.ndarray,
        groups: Sequence[str] | None,
        text: Callable[[int], str] | None,
    ) -> None:
        """Add documents, their groups, and a function that returns their beginnings by number."""
        step = max(1, SHARES_AT_ONCE[self.options.device] // self.replica.num_topics)
        first = self.documents
        for d in range(0, bags.documents, step):
            end = min(d + step, bags.documents)
            self._add(bags.slice(d, end), unknown_D[d:end], None if groups is None else groups[d:end])
        if text:
            best = np.unique(self.examples.documents_Zn)
            self.snippets = {
                number: self.snippets[number] if number < first else text(number - first)
                for number in best[best >= 0].tolist()
            }

    def _add(self, bags: Bags, unknown_D: np.ndarray, groups: Sequence[str] | None) -> None:
        theta_DZ = to_host(fold_in(to_bag(bags, self.replica.device), self.replica.fixed))
        self.watch.lap("infer")
        D, Z = theta_DZ.shape
        wide_DZ = theta_DZ / row_sums(theta_DZ)
        shares_DZ, tokens_D = wide_DZ.astype(np.float32), bags.lengths_D()
        known_D = tokens_D > 0
        self.documents_Z += np.bincount(shares_DZ.argmax(1)[known_D], minlength=Z)
        if self.options.examples:
            starts_D1 = np.concatenate([[0], np.cumsum(known_D * Z)])
            topics_N = np.tile(np.arange(Z, dtype=np.int32), int(known_D.sum()))
            documents = DocTopics(starts_D1, topics_N, theta_DZ[known_D].reshape(-1), Z)
            found = representative_documents(documents, self.options.examples, self.documents)
            self.examples = self.examples.merged(found)
        for name, (number, shares_Z) in _sums(groups, known_D, wide_DZ):
            before, sums_Z = self.groups.get(name, (0, 0.0))
            self.groups[name] = before + number, sums_Z + shares_Z
        self.parts.append((tokens_D, unknown_D, *self._rows(shares_DZ)))
        self.documents += D
        self.watch.lap("choose")

    def _rows(self, shares_DZ: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return (lengths_D, topics_N, shares_N, shares_DZ), sparse or dense."""
        D, Z = shares_DZ.shape
        if self.options.dense:
            return np.zeros(D, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), shares_DZ
        rows_N, topics_N = np.nonzero(shares_DZ >= np.float32(self.options.threshold))
        shares_N = shares_DZ[rows_N, topics_N]
        order = np.lexsort((topics_N, -shares_N, rows_N))
        lengths_D = np.bincount(rows_N, minlength=D)
        return lengths_D, topics_N[order].astype(np.int32), shares_N[order], np.zeros((0, Z), np.float32)

    def result(self) -> Inferred:
        """Return the topics of all documents."""
        Z = self.replica.num_topics
        none = [np.zeros(0, np.int64)] * 3
        empty = (*none, np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((0, Z), np.float32))
        columns = [np.concatenate(column) for column in zip(empty, *self.parts, strict=True)]
        tokens_D, unknown_D, lengths_D, topics_N, shares_N, shares_DZ = columns
        starts_D1 = np.concatenate([[0], np.cumsum(lengths_D)])
        return Inferred(
            tokens_D=tokens_D, unknown_D=unknown_D, starts_D1=starts_D1, topics_N=topics_N, shares_N=shares_N,
            shares_DZ=shares_DZ, documents_Z=self.documents_Z, examples=self.examples, snippets=self.snippets,
            groups=self.groups, seconds=self.watch.seconds,
        )  # fmt: skip


def no_examples(num_topics: int, n: int) -> Representatives:
    """Return no documents for each topic."""
    shape = num_topics, n
    return Representatives(np.full(shape, -1, np.int64), np.zeros(shape), np.zeros(shape))


def _sums(
    groups: Sequence[str] | None, known_D: np.ndarray, shares_DZ: np.ndarray
) -> Iterator[tuple[str, tuple[int, np.ndarray]]]:
    """Yield (group, (its documents, sum of the shares of those with a known word))."""
    if groups is None:
        return
    names, group_D = np.unique(np.array(groups, dtype=str), return_inverse=True)
    sums_GZ = np.zeros((len(names), shares_DZ.shape[1]))
    np.add.at(sums_GZ, group_D[known_D], shares_DZ[known_D])
    yield from zip(names.tolist(), zip(np.bincount(group_D).tolist(), sums_GZ, strict=True), strict=True)
