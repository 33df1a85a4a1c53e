"""A corpus from any input as bags of words over one vocabulary, which can be read in blocks several times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags, check_vocabulary, join_bags
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.documents.damage import Damage
from mgpu_ngram.core.documents.text_column import shown as shown_word
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.bags.local_bags import LocalBags, Terms, WordIndex, choose_words, merge_terms

KEEP_BYTES = 1 << 30  # bags of words that are kept from the pass that finds the vocabulary; more are made again
BLOCK_TOKENS = 1 << 24
WORDS_WAY_OUT = "write words as lowercase and token_pattern leave them, one a line"
MERGED_TERMS = 16  # vocabularies of parts that are merged at once

Parts = Callable[[], Iterator[Any]]  # returns a new iterator over Bags, or over LocalBags


class BagCorpus:
    """Documents as bags of words.

    name       name of the corpus, for messages
    parts      each call returns a new iterator over the documents, as `Bags` of num_words words or as `LocalBags`
    num_words  V
    words      the V words of the vocabulary; None if only ids are known. Raises InputError if there are not V words
    ignored    words of the vocabulary whose tokens in `LocalBags` are dropped
    states     files as checkpoints describe them (`Corpus.states`); none for values in memory
    check      called once, before documents that are texts are numbered
    """

    def __init__(
        self,
        name: str,
        parts: Parts,
        num_words: int,
        words: Words | None,
        ignored: frozenset[str] = frozenset(),
        states: tuple[dict[str, Any], ...] = (),
        check: Callable[[], None] = lambda: None,
    ):
        self._check, self._is_checked = check, False
        self.name, self.num_words, self.words, self.states = name, num_words, words, states
        self._parts, self._ignored = parts, ignored
        self.damage = Damage()  # that the last call of `blocks` or `read` has met
        if words is not None:
            check_vocabulary(words, num_words, "the vocabulary", name)

    def __repr__(self) -> str:
        return f"BagCorpus({self.name}, {self.num_words:,} words)"

    def blocks(self, tokens: int = BLOCK_TOKENS) -> Iterator[Bags]:
        """Yield the documents in order, in blocks of at most `tokens` tokens; a longer document is a block of its own.

        The blocks depend only on the documents, the vocabulary and `tokens`.
        """
        self.damage = Damage()
        return regroup(map(self._numbered, self._parts()), tokens)

    def read(self) -> Bags:
        """Return all documents."""
        self.damage = Damage()
        nothing = Bags(np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32), self.num_words)
        return join_bags([*map(self._numbered, self._parts())] or [nothing])

    @cached_property
    def _index(self) -> WordIndex:
        assert self.words is not None
        return WordIndex(self.words, self._ignored)

    def _numbered(self, part: Bags | LocalBags) -> Bags:
        if isinstance(part, LocalBags):
            self.damage.merge(part.damage)
            if part.is_text and not self._is_checked:
                self._is_checked = True
                self._check()
            return part.in_vocabulary(self._index)
        if part.num_words != self.num_words:
            sizes = f"parts of {self.num_words:,} and of {part.num_words:,} words"
            raise InputError(f"{self.name} has {sizes}; use one vocabulary for all of them")
        return part


def corpus_of_documents(
    name: str,
    parts: Parts,
    words: Words | None,
    options: TextOptions,
    repeatable: bool = True,
    states: tuple[dict[str, Any], ...] = (),
    is_new: bool = True,
) -> BagCorpus:
    """Return the corpus of parts that are `LocalBags`.

    words       the vocabulary; stop words keep their ids but get no tokens. None: the options choose it, and
                all parts are read now. Up to KEEP_BYTES of bags are kept; others are made again on demand
    repeatable  whether `parts` can be called twice; else all bags are kept
    is_new      whether a user gave the words (not a model), so that words that match no token cause a warning
    """
    is_given = words is not None and is_new
    kept: list[LocalBags] | None = [] if words is None or not repeatable else None
    levels: list[list[Terms]] = []
    size_bytes, damage = 0, Damage()
    for part in parts() if kept is not None else ():
        if words is None:
            _add_terms(levels, part.terms())
            damage.merge(part.damage)
        size_bytes += part.nbytes
        if kept is not None:
            kept.append(part)
        if repeatable and size_bytes > KEEP_BYTES:
            kept = None
    if words is None:
        if not levels:
            raise InputError(f"{name} is empty; give at least one document with a word")
        merged = merge_terms([terms for level in levels for terms in level])
        if damage.number and not len(merged.words):
            raise InputError(damage.first)
        words = choose_words(merged, options, name)
    again: Parts = parts if kept is None else kept.__iter__
    check = partial(_warn_of_words, words if is_given else None, options)
    return BagCorpus(name, again, len(words), words, options.stop_words, states, check)


def _warn_of_words(words: Words | None, options: TextOptions) -> None:
    """Warn of words of a given vocabulary and of stop words that no token can be."""
    lost = [] if words is None else [word for word in words if options.tokens_of(word) != [word]]
    if lost:
        warn(f"{_some(lost)} of the vocabulary can match no token of text; {WORDS_WAY_OUT}")
    stops = options.stop_words
    lost = [word for word in sorted(stops) if not stops.issuperset(options.tokens_of(word))]
    if lost:
        warn(f"{_some(lost)} of the stop words can match no token of text; {WORDS_WAY_OUT}")


def _some(words: list[str]) -> str:
    shown = ", ".join(repr(shown_word(word)) for word in words[:3])
    return f"{len(words):,} word{'s' if len(words) > 1 else ''} ({shown}{' ...' if len(words) > 3 else ''})"


def _add_terms(levels: list[list[Terms]], terms: Terms) -> None:
    """Add the terms of a part to level 0; a full level is merged into one of the next, so few merges see each word."""
    for level in levels:
        level.append(terms)
        if len(level) < MERGED_TERMS:
            return
        terms = merge_terms(level)
        level.clear()
    levels.append([terms])


def regroup(blocks: Iterable[Bags], tokens: int) -> Iterator[Bags]:
    """Yield the same documents in other blocks, cut as `Bags.blocks` would cut all of them at once."""
    waiting, size = list[Bags](), 0
    for block in blocks:
        waiting.append(block)
        size += block.tokens
        if size > tokens:
            *full, last = join_bags(waiting).blocks(tokens)
            yield from full
            waiting, size = [last], last.tokens
    if waiting:
        yield from join_bags(waiting).blocks(tokens)
