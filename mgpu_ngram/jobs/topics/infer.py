"""Find the topics of documents on the workers of an executor: chunks in, their topics out, in order."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from mgpu_ngram.cluster.executor import Executor, Handle, in_order
from mgpu_ngram.core.bags.bags import Bags, check_vocabulary
from mgpu_ngram.core.documents.damage import Damage
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.bags.local_bags import LocalBags, WordIndex
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.topics.doc_topics import GroupShares, Representatives
from mgpu_ngram.engine.topics.infer import InferOptions, Inferred, infer_bags, infer_chunk, no_examples
from mgpu_ngram.jobs.budget import SHORT_TEXT_CHUNKS
from mgpu_ngram.jobs.chunk_tasks import MAX_WHOLE, in_parts
from mgpu_ngram.jobs.progress import Progress

AHEAD = 4  # chunks per worker in flight or buffered
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 1 << 16, 4 << 20  # text per task
DENSE_BYTES = 64 << 20  # approximate bytes of the shares that a task returns
DOCUMENT_BYTES = 100  # approximate least bytes of text of a document
BLOCK_TOKENS = 1 << 19  # tokens of a block of a matrix
MAX_GROUPS = 10_000
NUMBER = re.compile(r"[-+]?(\d{1,300}\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)


@dataclass
class InferredTotals:
    """Totals over all documents.

    documents    number of documents
    empty        number of documents without known words
    tokens       number of tokens of known words
    unknown      number of other tokens, without stop words
    documents_Z  number of documents whose largest topic is each topic
    examples     representative documents; snippets: their beginnings
    groups       number of documents and sum of shares by group
    damage       records and files that were left out
    """

    documents_Z: np.ndarray
    examples: Representatives
    documents: int = 0
    empty: int = 0
    tokens: int = 0
    unknown: int = 0
    snippets: dict[int, str] = field(default_factory=dict)
    groups: dict[str, tuple[int, np.ndarray]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)

    def add(self, found: Inferred) -> None:
        """Add the documents that follow."""
        documents_Zn = found.examples.documents_Zn
        moved = found.examples._replace(documents_Zn=np.where(documents_Zn < 0, -1, documents_Zn + self.documents))
        self.examples = self.examples.merged(moved)
        snippets = self.snippets | {self.documents + d: text for d, text in found.snippets.items()}
        kept = np.unique(self.examples.documents_Zn).tolist() if snippets else []
        self.snippets = {d: snippets[d] for d in kept if d in snippets}
        self.documents_Z = self.documents_Z + found.documents_Z
        self.documents += found.documents
        self.empty += int((found.tokens_D == 0).sum())
        self.tokens += int(found.tokens_D.sum())
        self.unknown += int(found.unknown_D.sum())
        for name, (documents, sums_Z) in found.groups.items():
            before, before_Z = self.groups.get(name, (0, 0.0))
            self.groups[name] = before + documents, before_Z + sums_Z
        if len(self.groups) > MAX_GROUPS:
            raise InputError(f"documents have over {MAX_GROUPS:,} groups; group them by another column or period")
        self.seconds = add_seconds(self.seconds, found.seconds)
        self.damage.merge(found.damage)

    def group_shares(self) -> GroupShares:
        """Return the mean shares of each group; the groups ascend, numbers by their value and before other names."""
        names = sorted(self.groups, key=_place_of_group)
        sums_GZ = np.array([self.groups[name][1] for name in names]).reshape(len(names), len(self.documents_Z))
        totals_G = sums_GZ.sum(1, keepdims=True)
        documents_G = np.array([self.groups[name][0] for name in names], np.int64)
        return GroupShares(names, documents_G, sums_GZ / np.where(totals_G > 0, totals_G, 1))


def _place_of_group(name: str) -> tuple[bool, float, str]:
    is_number = bool(NUMBER.fullmatch(name))
    return not is_number and name != "", float(name) if is_number else -math.inf, name


TakeInferred = Callable[[Inferred], None]


def infer(
    corpus: Corpus | BagCorpus,
    options: InferOptions,
    model: tuple[int, int, Words | None],
    executor: Executor,
    progress: Progress,
    take: TakeInferred | None = None,
) -> InferredTotals:
    """Find the topics of all documents; call `take` with the results of each chunk, in order.

    corpus  the result of `open_texts` or `open_bags`
    model   numbers of topics and words, and the vocabulary if known

    The driver and the workers hold a few chunks at once.
    """
    num_topics, num_words, words = model
    summary = InferredTotals(np.zeros(num_topics, np.int64), no_examples(num_topics, options.examples))
    counts: deque[int] = deque()  # number of chunks that each call completes
    if isinstance(corpus, Corpus):
        chunks, chunk_bytes = chunks_of(corpus, num_topics if options.dense else 0)
        progress.start("infer", len(chunks), "chunks", "tokens")
        calls = _calls(executor, options, _parts(chunks, chunk_bytes, summary.damage.add), counts)
    else:
        progress.start("infer", 0, "blocks", "tokens")
        calls = _bag_calls(executor, options, _blocks(corpus, num_topics, num_words, words), counts)
    for found in in_order(executor, calls, AHEAD * executor.workers):
        summary.add(found)
        if take:
            take(found)
        progress.advance(counts.popleft(), int(found.tokens_D.sum()))
    progress.finish()
    if summary.damage.number and not summary.documents:
        raise InputError(summary.damage.first)
    return summary


def chunks_of(corpus: Corpus, dense_topics: int) -> tuple[list[Chunk], int]:
    """Return the chunks of a text and their size. Both depend only on the text, and so do sums over documents.

    dense_topics  number of topics if all shares are returned; 0: only shares above the threshold
    """
    most = MAX_CHUNK_BYTES
    if dense_topics:
        most = max(MIN_CHUNK_BYTES, min(most, DENSE_BYTES // (4 * dense_topics) * DOCUMENT_BYTES))
    chunk_bytes = max(MIN_CHUNK_BYTES, min(most, corpus.text_bytes // SHORT_TEXT_CHUNKS))
    return corpus.chunks(chunk_bytes), chunk_bytes


def _parts(chunks: list[Chunk], chunk_bytes: int, report: Callable[[str], None]) -> Iterator[tuple[Chunk, int]]:
    """Yield the part of the text that one task reads, and the number of chunks that it completes.

    A large compressed file is read here, and yielded in parts. Parquet is read in batches, so a row group is a task.
    """
    for chunk in chunks:
        if chunk.size_bytes <= MAX_WHOLE * chunk_bytes:
            yield chunk, 1
            continue
        for piece in chunk.pieces:
            alone = Chunk(chunk.index, (piece,), piece.size_bytes)
            if piece.source.format == "parquet":
                yield alone, 0
            else:
                yield from ((part, 0) for part, _ in in_parts([alone], chunk_bytes, report))
        yield replace(chunk, pieces=()), 1


def _calls(
    executor: Executor, options: InferOptions, parts: Iterator[tuple[Chunk, int]], counts: deque[int]
) -> Iterator[Handle]:
    for chunk, done in parts:
        counts.append(done)
        yield executor.call(infer_chunk, chunk, options, label=f"the topics of {chunk}")


def _bag_calls(
    executor: Executor, options: InferOptions, blocks: Iterator[tuple[Bags, np.ndarray]], counts: deque[int]
) -> Iterator[Handle]:
    first = 0
    for bags, unknown_D in blocks:
        counts.append(1)
        label = f"the topics of documents {first:,} to {first + bags.documents:,}"
        yield executor.call(infer_bags, bags, unknown_D, options, label=label)
        first += bags.documents


def _blocks(
    corpus: BagCorpus, num_topics: int, num_words: int, words: Words | None
) -> Iterator[tuple[Bags, np.ndarray]]:
    """Yield bags of words of the model, and the number of unknown tokens of each document."""
    translate = _translation(corpus, num_words, words)
    most = max(1, DENSE_BYTES // (4 * num_topics))
    for block in corpus.blocks(BLOCK_TOKENS):
        for d in range(0, block.documents, most):
            bags = block.slice(d, min(d + most, block.documents))
            known = translate(bags)
            yield known, bags.lengths_D() - known.lengths_D()


def _translation(corpus: BagCorpus, num_words: int, words: Words | None) -> Callable[[Bags], Bags]:
    """Return a function from bags of the corpus to bags of the model. Raises InputError if words are not known."""
    if corpus.words is not None and words is not None and corpus.words != words:
        return partial(_renumbered, corpus.words, WordIndex(words, name="the model"))
    if corpus.num_words != num_words:
        if words is not None and corpus.words is None:
            raise InputError(
                f"{corpus.name} has {corpus.num_words:,} columns but the model has {num_words:,} words; give the words "
                "of its columns with --vocabulary (in YAML vocabulary: FILE)"
            )
        check_vocabulary(range(num_words), corpus.num_words, "the model", corpus.name)
    return lambda bags: bags


def _renumbered(words: Words, index: WordIndex, bags: Bags) -> Bags:
    return LocalBags(bags, words).in_vocabulary(index)
