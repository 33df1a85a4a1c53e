"""The subjects of `bench score`: models of generated text, their indexes, and the text that they score."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.inputs.frequency_models import seen_words, trie_of, zipf_codes, zipf_words
from mgpu_ngram.core.counts.vocabulary import END_ID, START_ID
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.trie.build import edges_of, index_of, values_of
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_tokens import score_tokens
from mgpu_ngram.kernels.trie.edges import EdgeTable

ORDER = 5
EDGES, TREE, QUANTISED = "edge table", "B+-tree", "B+-tree of 8 bits"

QUERIES = {"gpu": 1_129_000, "cpu": 400_000}  # as many as the peers' text has
REPEATS = {"gpu": 8, "cpu": 1}  # as theirs was
TEXT_WORDS = {"gpu": 100_000_000, "cpu": 500_000}  # not repeated

Scores = tuple[Any, Any]


@dataclass(frozen=True)
class Index:
    """One way to look n-grams up; `score` takes codes, and gives log10 probabilities and orders of matches."""

    name: str
    score: Callable[[Any], Scores]
    size_bytes: int


@dataclass(frozen=True)
class Subject:
    """A model on a device, its training text, and other text of the same language; codes are those of `zipf_codes`.

    training_T  codes of the text that it was made from
    text_T      codes to be scored
    """

    trie: Trie
    words: Words
    training_T: Any
    text_T: Any

    @classmethod
    def make(cls, tokens: int, text_words: int, device: str, text_seed: int = 1) -> Subject:
        """Return the model of generated text, and more text of the same language in the codes of the model.

        tokens      words of the training text: 8.8 million give 23 million n-grams of orders 1 to 5, 26 million give 63
                    million
        text_words  words of the other text; a word that the model lacks is <unk>
        text_seed   0 would give the training text
        """
        xp = array_module(to_device(np.empty(0), device))
        codes_T = zipf_codes(tokens, xp=xp)
        code_V, words = seen_words(codes_T, zipf_words())
        training_T, text_T = code_V[codes_T], code_V[zipf_codes(text_words, seed=text_seed, xp=xp)]
        return cls(trie_of(training_T, len(words), ORDER), words, training_T, text_T)

    def of_order(self, order: int) -> Subject:
        """The model of a lower order."""
        return replace(self, trie=trie_of(self.training_T, len(self.words), order))

    @property
    def model_sizes(self) -> str:
        return f"n={self.trie.order} G={len(self.trie)}"

    def sizes(self, codes_T: Any, repeated: int = 1) -> str:
        return f"{self.model_sizes} T={len(codes_T)}" + (f" repeated={repeated}" if repeated > 1 else "")


def edge_table(trie: Trie) -> Index:
    return of_edges(edges_of(trie), trie.order)


def of_edges(table: EdgeTable, order: int) -> Index:
    return Index(EDGES, partial(_by_edges, table, order), table.slots_E2.nbytes + table.words_V2.nbytes)


def tree(trie: Trie) -> Index:
    size_bytes = sum(array.nbytes for array in trie.arrays().values())
    return Index(QUANTISED if trie.quantized else TREE, partial(_by_trie, trie), size_bytes)


def _by_edges(table: EdgeTable, order: int, codes_T: Any) -> Scores:
    return score_by_edges(table, order, START_ID, END_ID, codes_T)


def _by_trie(trie: Trie, codes_T: Any) -> Scores:
    return score_tokens(index_of(trie), values_of(trie), trie.order, START_ID, END_ID, codes_T)


def in_threads(index: Index, threads: int, pool: ThreadPoolExecutor) -> Index:
    """The same, a part of the text in each thread of a CPU."""

    def score(codes_T: Any) -> Scores:
        parts = list(pool.map(index.score, _cut(codes_T, threads)))
        prob, order = zip(*parts, strict=True)
        return np.concatenate(prob), np.concatenate(order)

    return Index(f"{index.name}, {threads} threads", score, index.size_bytes)


def _cut(codes_T: Any, parts: int) -> list[Any]:
    """Parts of about the same size, cut between sentences."""
    ends_S = np.flatnonzero(codes_T == 0) + 1
    at = [int(ends_S[(len(ends_S) - 1) * k // parts]) for k in range(1, parts)]
    return np.split(codes_T, at)


def head(codes_T: Any, tokens: int) -> Any:
    """Its first whole sentences, of `tokens` codes at most; at least one sentence."""
    ends_S = array_module(codes_T).flatnonzero(codes_T == 0) + 1
    return codes_T[: int(ends_S[max(1, int((ends_S <= tokens).sum())) - 1])]


def queries(subject: Subject, device: str) -> tuple[Any, int]:
    """The codes that stand beside the peers' figures, and how often they are repeated in them."""
    repeats, codes_T = REPEATS[device], head(subject.text_T, QUERIES[device])
    return array_module(codes_T).tile(codes_T, repeats), repeats
