"""Make bags of words from Python values: matrices, texts, lists of tokens, and Dask collections of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.matrix_bags import as_matrix, bags_of_matrix, column_words, is_matrix
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.word_list import as_words
from mgpu_ngram.core.documents.documents import JoinedTexts
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.missing import MISSING_WAY_OUT, is_missing
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.utf8 import to_bytes, to_text
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus, corpus_of_documents
from mgpu_ngram.engine.bags.local_bags import LocalBags
from mgpu_ngram.engine.bags.text_bags import count_tokens, local_bags

BATCH_DOCUMENTS = 1 << 14  # documents of an iterable that are counted at once


def bags_of(
    X: Any, vocabulary: Any = None, options: TextOptions | None = None, device: str = "cpu", name: str = "X"
) -> BagCorpus:
    """Return the corpus of a Python value.

    X           a matrix of counts, see `bags_of_matrix`; lists of equal length of numbers; `Bags`; an iterable of texts
                (str), or of lists of tokens; a Dask array whose blocks are such matrices; a Dask bag or series of
                documents
    vocabulary  see `as_words`. A table's column names, if they are str, are used when none is given
    options     how documents become bags of words
    device      "cpu" or "gpu", the device that makes bags of words from text

    Dask collections are computed partition by partition, each time blocks are read.
    """
    options, words = options or TextOptions(), None if vocabulary is None else as_words(vocabulary)
    is_new = not isinstance(vocabulary, Words)
    if isinstance(X, (str, bytes)):
        raise InputError(f"{name} is one text; give an iterable of documents, such as [text]")
    if hasattr(X, "to_delayed"):
        return _of_dask(X, words, options, device, name, is_new)
    if is_counts(X):
        bags = bags_of_matrix(as_matrix(X, name) if isinstance(X, (list, tuple)) else X, name)
        return BagCorpus(name, lambda: iter([bags]), bags.num_words, column_words(X) if words is None else words)
    if hasattr(X, "to_pylist"):  # an Arrow array
        X = X.to_pylist()
    if not isinstance(X, Iterable):
        raise InputError(f"{name} is a {type(X).__name__} but must be a matrix of counts, texts, or lists of tokens")
    repeatable = iter(X) is not X
    parts = lambda: _of_documents(X, options, device, name)  # noqa: E731
    return corpus_of_documents(name, parts, words, options, repeatable, is_new=is_new)


def is_counts(X: Any) -> bool:
    """Return whether X holds counts, not documents: a matrix, `Bags`, or lists of numbers."""
    if isinstance(X, (list, tuple)):
        return isinstance(next(chain.from_iterable(_rows(X)), None), (int, float, np.number))
    return isinstance(X, Bags) or is_matrix(X)


def _rows(X: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """Yield the rows that are sequences, up to the first that is none."""
    for row in X:
        if not isinstance(row, (list, tuple, np.ndarray)):
            return
        yield row


def _of_documents(documents: Iterable[Any], options: TextOptions, device: str, name: str) -> Iterator[LocalBags]:
    """Yield the bags of texts or lists of tokens, in batches. Raises InputError for other documents."""
    rest, first = iter(documents), 0
    while batch := list(islice(rest, BATCH_DOCUMENTS)):
        missing = next((i for i, document in enumerate(batch) if is_missing(document)), None)
        if missing is not None:
            raise InputError(f"document {first + missing:,} of {name} is {batch[missing]}, not text; {MISSING_WAY_OUT}")
        texts = [isinstance(document, (str, bytes)) for document in batch]
        if all(texts):
            yield _of_texts(batch, options, device)
        elif not any(texts):
            for i, document in enumerate(batch, first):
                _check_tokens(document, i, name)
            yield count_tokens(batch)
        else:
            i = first + texts.index(not texts[0])
            raise InputError(
                f"document {i:,} of {name} is {_shown(batch[i - first])}, unlike other documents; "
                "give all documents one type"
            )
        first += len(batch)


def _check_tokens(document: Any, i: int, name: str) -> None:
    if not isinstance(document, (list, tuple, np.ndarray)):
        raise InputError(f"document {i:,} of {name} is {_shown(document)} but must be a str, or a list of str")
    wrong = [token for token in document if not isinstance(token, str)]
    if wrong:
        raise InputError(f"document {i:,} of {name} has the token {_shown(wrong[0])} but tokens must be str")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 40 else text[:37] + '...'} ({type(value).__name__})"


def _of_texts(batch: list[str | bytes], options: TextOptions, device: str) -> LocalBags:
    if not options.has_default_pattern:
        texts = [to_text(t) if isinstance(t, bytes) else t for t in batch]
        return local_bags(texts, options, device)
    lines = [(t if isinstance(t, bytes) else to_bytes(t)).replace(b"\n", b" ") for t in batch]
    return local_bags(JoinedTexts(np.frombuffer(b"\n".join([*lines, b""]), np.uint8)), options, device)


def _of_dask(X: Any, words: Any, options: TextOptions, device: str, name: str, is_new: bool) -> BagCorpus:
    """Return the corpus of a Dask array, bag, series or table; Dask itself is not imported."""
    if hasattr(X, "chunks") and hasattr(X, "rechunk"):
        if len(getattr(X, "shape", ())) != 2:
            raise InputError(f"{name} is a Dask array of {X.ndim} dimensions but must have 2, documents x words")
        if len(X.chunks[1]) > 1:
            raise InputError(f"{name} is cut between words into {len(X.chunks[1])} blocks; use X.rechunk({{1: -1}})")
        if np.isnan(X.shape[1]):
            raise InputError(f"{name} is a Dask array of an unknown number of columns; use X.compute_chunk_sizes()")
        blocks = X.to_delayed().ravel().tolist()
        num_words = int(X.shape[1])
    else:
        blocks = np.ravel(X.to_delayed()).tolist()
        num_words = len(X.columns) if getattr(X, "ndim", 1) == 2 else -1

    def matrices() -> Iterator[Bags]:
        for i, block in enumerate(blocks):
            yield bags_of_matrix(block.compute(), f"block {i} of {name}")

    def documents() -> Iterator[LocalBags]:
        for i, block in enumerate(blocks):
            yield from _of_documents(block.compute(), options, device, f"partition {i} of {name}")

    if num_words >= 0:
        return BagCorpus(name, matrices, num_words, column_words(X) if words is None else words)
    return corpus_of_documents(name, documents, words, options, is_new=is_new)
