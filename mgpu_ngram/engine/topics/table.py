"""The table of topics: size, words, documents and nearest topics of each topic, for printing and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from mgpu_ngram.core.documents.text_column import shown
from mgpu_ngram.engine.topics.doc_topics import Representatives
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.words import (
    FREX_WEIGHT,
    LAMBDA,
    most_frequent_and_exclusive,
    most_probable,
    most_relevant,
)

ALWAYS = ("topic", "share", "tokens", "words", "relevant_words", "frex_words")  # always in the JSON of a topic
SNIPPET = 400  # characters of a document that are kept to show it
WORD_LISTS = ("probability", "relevance", "frex")  # kinds of word lists


@dataclass(frozen=True)
class TopicSummary:
    """One topic.

    share      share of all tokens
    documents  number of documents that belong to the topic; None if unknown
    words      the most probable words, best first; relevant_words and frex_words are ranked by relevance and by FREX
    coherence  values by measure
    nearest    [(topic, distance)], nearest first
    examples   [(document, share of the topic)], representative documents
    """

    topic: int
    share: float
    tokens: int
    documents: int | None
    words: list[str]
    relevant_words: list[str]
    frex_words: list[str]
    coherence: dict[str, float] = field(default_factory=dict)
    nearest: list[tuple[int, float]] = field(default_factory=list)
    examples: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class TopicTable:
    """All topics, the largest first.

    lambda_      weight of probability in relevance
    frex_weight  weight of frequency in FREX
    """

    topics: list[TopicSummary]
    lambda_: float = LAMBDA
    frex_weight: float = FREX_WEIGHT

    def as_json(self) -> dict[str, object]:
        """Return the table as values of JSON. Documents and topics that are unknown are left out."""
        rows = [asdict(row) for row in self.topics]
        rows = [{k: v for k, v in row.items() if k in ALWAYS or v not in (None, {}, [])} for row in rows]
        return {"lambda": self.lambda_, "frex_weight": self.frex_weight, "topics": rows}


@dataclass(frozen=True)
class TopicFacts:
    """Facts about topics that a table shows if known.

    documents_Z  (Z,) number of documents whose largest topic is each topic
    coherence    (Z,) values by measure, from `coherence`
    nearest      the result of `nearest_of`
    examples     the result of `representative_documents`
    """

    documents_Z: np.ndarray | None = None
    coherence: Mapping[str, np.ndarray] = field(default_factory=dict)
    nearest: Mapping[int, list[tuple[int, float]]] = field(default_factory=dict)
    examples: Representatives | None = None


@dataclass(frozen=True)
class TableParts:
    """The parts of a table to make; other parts are skipped to save time.

    lists   some of WORD_LISTS; other lists of words are empty
    topics  the topics of the rows; None: all
    """

    lists: tuple[str, ...] = WORD_LISTS
    topics: Sequence[int] | None = None


def topic_table(
    rows: TopicRows,
    word: Callable[[int], str],
    n: int = 10,
    facts: TopicFacts | None = None,
    lambda_: float = LAMBDA,
    frex_weight: float = FREX_WEIGHT,
    threads: int = 1,
    parts: TableParts | None = None,
) -> TopicTable:
    """Return the table of topics.

    word  returns a word by id, such as Words.word
    n     number of words of each list
    """
    facts = facts or TopicFacts()
    parts = parts or TableParts()
    chosen = None if parts.topics is None else {*parts.topics}
    ways = {
        "probability": lambda: most_probable(rows, n, threads, chosen),
        "relevance": lambda: most_relevant(rows, n, lambda_, threads, chosen),
        "frex": lambda: most_frequent_and_exclusive(rows, n, frex_weight, threads, chosen),
    }
    nothing: list[list[str]] = [[]] * rows.num_topics
    lists = [
        [_spelled(word, *row) for row in zip(*ways[name](), strict=True)] if name in parts.lists else nothing
        for name in WORD_LISTS
    ]
    examples = facts.examples
    topics = []
    for z in np.argsort(-rows.totals_Z, kind="stable").tolist():
        if chosen is not None and z not in chosen:
            continue
        topics.append(
            TopicSummary(
                topic=z,
                share=float(rows.shares_Z[z]),
                tokens=round(rows.totals_Z[z]),
                documents=None if facts.documents_Z is None else int(facts.documents_Z[z]),
                words=lists[0][z],
                relevant_words=lists[1][z],
                frex_words=lists[2][z],
                coherence={name: float(values_Z[z]) for name, values_Z in facts.coherence.items()},
                nearest=facts.nearest.get(z, []),
                examples=_row(examples.documents_Zn[z], examples.shares_Zn[z]) if examples else [],
            )
        )
    return TopicTable(topics, lambda_, frex_weight)


def snippet(text: str, characters: int = SNIPPET) -> str:
    """Return the beginning of a text as one line of text that can be shown."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= characters else line[: characters - 1] + "…"


def _row(ids_n: np.ndarray, values_n: np.ndarray) -> list[tuple[int, float]]:
    return [(i, value) for i, value in zip(ids_n.tolist(), values_n.tolist(), strict=True) if i >= 0]


def _spelled(word: Callable[[int], str], words_n: np.ndarray, scores_n: np.ndarray) -> list[str]:
    """Return the words as text, without words that no topic has."""
    return [shown(word(int(v))) for v in words_n[np.isfinite(scores_n)]]
