"""Convert bags of words with local vocabularies to bags of one vocabulary.

A worker makes `LocalBags` of its documents. Their `Terms` are merged, `choose_words` makes the vocabulary, and each
worker renumbers its bags.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mgpu_ngram.core.bags.bags import Bags, empty_corpus, join_bags, make_bags
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.word_list import make_words
from mgpu_ngram.core.counts.arrow_numbers import numbers_from_arrow, numbers_to_arrow
from mgpu_ngram.core.counts.vocabulary import words_from_arrow, words_to_arrow
from mgpu_ngram.core.documents.damage import Damage
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.utf8 import to_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


@dataclass(frozen=True)
class Terms:
    """The words of documents, sorted by bytes, which is also the order of their code points.

    words        V words
    documents_V  (V,) int64, number of documents that have the word
    counts_V     (V,) int64, number of its tokens
    documents    number of documents
    """

    words: Words
    documents_V: np.ndarray
    counts_V: np.ndarray
    documents: int


@dataclass(frozen=True)
class LocalBags:
    """Bags of words, and their bags.num_words words, in any order, each once.

    is_text  whether they were made from texts; else from lists of tokens
    damage   records and files that were left out
    """

    bags: Bags
    words: Words
    is_text: bool = False
    damage: Damage = field(default_factory=Damage)

    @property
    def nbytes(self) -> int:
        return self.bags.nbytes + self.words.offsets_V.nbytes + self.words.data.nbytes

    def terms(self) -> Terms:
        """Return the words with their numbers of documents and tokens."""
        V = self.bags.num_words
        documents_V = np.bincount(self.bags.words_P, minlength=V)
        counts_V = np.zeros(V, np.int64)
        np.add.at(counts_V, self.bags.words_P, self.bags.counts_P)
        terms = Terms(self.words, documents_V, counts_V, self.bags.documents)
        return _take(terms, _sorted_rows(self.words))

    def in_vocabulary(self, index: WordIndex) -> Bags:
        """Return the bags with the ids of a vocabulary; words that it lacks are left out."""
        ids_V = index.ids(self.words)
        ids_P = ids_V[self.bags.words_P]
        kept_P = ids_P >= 0
        starts_D1 = np.concatenate([[0], np.cumsum(kept_P)])[self.bags.starts_D1]
        return make_bags(starts_D1, ids_P[kept_P].astype(np.uint32), self.bags.counts_P[kept_P], len(index.words))


class WordIndex:
    """Finds the ids of words in a vocabulary. Raises InputError if a word occurs twice."""

    def __init__(self, words: Words, ignored: Collection[str] = (), name: str = "the vocabulary"):
        """`ignored` words are not found."""
        refuse_duplicates(words, name)
        self.words = words
        self._shifted = Words(np.concatenate([[0], words.offsets_V]), words.data)  # `Words` finds no word 0
        self._ids_V = np.arange(-1, len(words))  # -1 for words that are not found
        if ignored:
            self._ids_V[self._shifted.ids(*_arrays(make_words(sorted(ignored))))] = -1

    def ids(self, words: Words) -> np.ndarray:
        """Return (V,) int64, the id of each word, -1 for words that are not found."""
        return self._ids_V[self._shifted.ids(*_arrays(words))]


def refuse_duplicates(words: Words, name: str) -> None:
    """Raise InputError if a word occurs twice, because its id would be ambiguous."""
    if len(words_to_arrow(words.offsets_V, words.data).unique()) == len(words):
        return
    first: dict[bytes, int] = {}
    for v in range(len(words)):
        before = first.setdefault(words.symbol(v), v)
        if before != v:
            where = f"words {before:,} and {v:,}"
            raise InputError(f"{where} of {name} are both {words.word(v)!r}; give each word once")


def _arrays(words: Words) -> tuple[np.ndarray, np.ndarray]:
    return words.offsets_V, words.data


def merge_terms(parts: Sequence[Terms]) -> Terms:
    """Return the words of one or more parts with their sums. Any order of merging gives the same terms."""
    if len(parts) == 1:
        return parts[0]
    words, ids_of_parts = _unite([part.words for part in parts])
    documents_V, counts_V = np.zeros(len(words), np.int64), np.zeros(len(words), np.int64)
    for part, ids in zip(parts, ids_of_parts, strict=True):
        documents_V[ids] += part.documents_V
        counts_V[ids] += part.counts_V
    terms = Terms(words, documents_V, counts_V, sum(part.documents for part in parts))
    return _take(terms, _sorted_rows(words))


def join_local(parts: Sequence[LocalBags]) -> LocalBags:
    """Return the documents of one or more parts, in order, with one vocabulary."""
    if len(parts) == 1:
        return parts[0]
    words, ids_of_parts = _unite([part.words for part in parts])
    bags = []
    for part, ids in zip(parts, ids_of_parts, strict=True):
        words_P = ids.astype(np.uint32)[part.bags.words_P]
        bags.append(make_bags(part.bags.starts_D1, words_P, part.bags.counts_P, len(words)))
    return LocalBags(join_bags(bags), words, any(part.is_text for part in parts))


def choose_words(terms: Terms, options: TextOptions, name: str = "the corpus") -> Words:
    """Return the vocabulary that CountVectorizer would choose, sorted; ties in alphabetical order.

    Raises InputError if max_df is below min_df, and if no word is left.
    """
    most, least = (n if isinstance(n, int) else n * terms.documents for n in (options.max_df, options.min_df))
    if most < least and terms.documents:
        raise InputError(
            f"max_df {options.max_df} is {most:g} of the {terms.documents:,} documents of {name}, fewer than min_df "
            f"{options.min_df}; raise max_df or lower min_df"
        )
    stop_words = {to_bytes(word) for word in options.stop_words}
    kept_V = (terms.documents_V <= most) & (terms.documents_V >= least)
    if stop_words:
        stops = pa.array(sorted(stop_words), pa.large_binary())
        kept_V &= ~pc.is_in(words_to_arrow(terms.words.offsets_V, terms.words.data), stops).to_numpy(False)
    rows = np.flatnonzero(kept_V)
    if options.max_features is not None and len(rows) > options.max_features:
        rows = np.sort(rows[np.argsort(-terms.counts_V[rows], kind="stable")[: options.max_features]])
    if not terms.documents:
        raise empty_corpus(name, 0)
    if not len(rows):
        left = "no word" if not len(terms.words) else f"none of the {len(terms.words):,} words left"
        raise InputError(
            f"{name} has {left} in its {terms.documents:,} documents; lower min_df, raise max_df, or change "
            "stop_words or token_pattern"
        )
    return _take(terms, rows).words


def _unite(parts: Sequence[Words]) -> tuple[Words, list[np.ndarray]]:
    """Return each word of the parts once, and the ids of the words of each part."""
    arrays = [words_to_arrow(part.offsets_V, part.data) for part in parts]
    whole = pa.concat_arrays(arrays).dictionary_encode()
    ids = numbers_from_arrow(whole.indices)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return Words(*words_from_arrow(whole.dictionary)), np.split(ids, ends)


def _sorted_rows(words: Words) -> np.ndarray:
    return numbers_from_arrow(pc.array_sort_indices(words_to_arrow(words.offsets_V, words.data)))


def _take(terms: Terms, rows: np.ndarray) -> Terms:
    words = words_to_arrow(terms.words.offsets_V, terms.words.data).take(numbers_to_arrow(rows))
    taken = Words(*words_from_arrow(words))
    return Terms(taken, terms.documents_V[rows], terms.counts_V[rows], terms.documents)
