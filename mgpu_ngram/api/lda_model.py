"""The documents and the model of the estimator `LDA`, on the devices that the documents need: convert, train, apply."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from mgpu_ngram.api.executors import executor_of
from mgpu_ngram.cluster.devices import cpu_cores, resolve_device
from mgpu_ngram.cluster.placement import GPU_START_SECONDS
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.sklearn_base import check_columns
from mgpu_ngram.core.bags.text_options import DEFAULT_PATTERN, TextOptions
from mgpu_ngram.core.bags.topic_model import TopicModel
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.bags.bags_of import bags_of, is_counts
from mgpu_ngram.engine.lda.fold_in import TopicFinder, cpu_seconds
from mgpu_ngram.jobs.lda.config import LdaConfig
from mgpu_ngram.jobs.lda.train import corpus_of, shared_folder, train
from mgpu_ngram.kernels.dispatch import to_host

BAG_BYTES_PER_SECOND = 8e6  # bytes of text that 2 CPU cores turn into bags of words in a second, rounded down


def device_for(device: str, seconds: float) -> str:
    """Return the device for work of this many seconds of 2 CPU cores; "auto" opens no GPU for less than a second."""
    return "cpu" if device == "auto" and seconds < GPU_START_SECONDS else resolve_device(device)


def text_bytes(X: Any) -> float:
    """Return the approximate size of texts in memory; inf if it is unknown without reading them."""
    if not isinstance(X, (list, tuple, np.ndarray)) or getattr(X, "shape", None) == ():
        return math.inf
    return sum(len(text) for text in X if isinstance(text, (str, bytes)))


def documents_of(lda: Any, X: Any, fitting: bool = False) -> BagCorpus:
    """Return documents as bags of words, of the model's vocabulary unless `fitting` chooses one.

    Sets the estimator's attributes of the columns.
    """
    if hasattr(X, "__array__") and not hasattr(X, "shape"):
        X = np.asarray(X)
    words, has_columns = lda.vocabulary if fitting else lda._model.words, len(getattr(X, "shape", ())) == 2
    if has_columns:
        check_columns(lda, X, reset=fitting)
    options = TextOptions(
        lda.lowercase, lda.token_pattern or DEFAULT_PATTERN, lda.stop_words, lda.min_df, lda.max_df, lda.max_features
    )
    if fitting and is_counts(X):
        options.refuse_for("X")
    if words is None and not fitting and not is_counts(X):
        raise InputError("the model does not know its words, so X must be a matrix of counts, not documents")
    documents = bags_of(X, words, options, device_for(lda.device, text_bytes(X) / BAG_BYTES_PER_SECOND))
    if fitting and not has_columns:
        lda.n_features_in_ = documents.num_words
        with suppress(AttributeError):
            del lda.feature_names_in_
    elif documents.num_words != lda.n_features_in_:
        raise InputError(f"X has {documents.num_words} features, but the model has {lda.n_features_in_}")
    return documents


def fit_model(
    lda: Any, config: LdaConfig, documents: BagCorpus, client: Any, earlier: TopicModel | None = None
) -> TopicModel | None:
    """Return the model of documents, in addition to those of the earlier model; None if they are empty then.

    client  a `distributed.Client`, whose workers train; None: this process
    """
    executor, folder = None, None
    try:
        if client is not None:
            executor = executor_of(lda.device, client)
            folder = shared_folder(executor)
        corpus = corpus_of(config, documents, lda.seeds or {}, folder, earlier=earlier)
        if not corpus.tokens:
            return None
        executor = executor or executor_of(device_for(lda.device, config.cpu_seconds(corpus.tokens)), None)
        callback = partial(_report, lda) if lda.callback or lda.verbose else None
        model = train(config, corpus, executor, callback=callback).model
    finally:
        if executor:
            executor.close()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    settings = model.settings | {"lowercase": lda.lowercase, "token_pattern": lda.token_pattern}
    if earlier:  # the joint likelihood of the batch alone is not defined
        settings |= {"seed": earlier.settings.get("seed", 0), "batches": lda.n_batch_iter_ + 1}
        history = tuple({k: v for k, v in metrics.items() if k != "joint"} for metrics in model.history)
        model = replace(model, history=history)
    return replace(model, settings=settings)


def _report(lda: Any, sweep: int, metrics: dict[str, float]) -> object:
    if lda.verbose:
        found = metrics.get("held_out_perplexity")  # none if no token is held out
        held = "" if found is None else f", held-out perplexity {found:,.1f}"
        print(f"sweep {sweep} of {lda.max_iter}: perplexity {metrics['perplexity']:,.1f}{held}")
    return lda.callback(sweep, metrics) if lda.callback else False


class FittedModel:
    """A model and its device arrays, which are made at first use; a copy in another process makes them again."""

    def __init__(self, model: TopicModel):
        self.model = model
        self._finders: dict[str, TopicFinder] = {}

    @cached_property
    def components_ZV(self) -> np.ndarray:
        return self.model.pseudocounts_ZV()

    def shares(self, documents: BagCorpus, device: str, updates: tuple[int, float], is_open: bool) -> Iterator[Any]:
        """Yield the shares of topics in documents, (documents, topics) float32, block by block.

        updates  greatest number of iterations for a document, and the change at which it is finished
        is_open  whether the caller already uses the GPU; then blocks stay there
        """
        for bags in documents.blocks():
            for block in self._finder(bags, device, is_open).shares(bags, *updates):
                yield block if is_open else to_host(block)

    def completion(self, documents: BagCorpus, device: str, updates: tuple[int, float]) -> tuple[float, int]:
        """Return (log-likelihood of the target tokens, their number)."""
        seed, first, score, tokens = self.model.settings.get("seed", 0), 0, 0.0, 0
        for bags in documents.blocks():
            found = self._finder(bags, device).completion(bags, seed, first, *updates)
            score, tokens, first = score + found[0], tokens + found[1], first + bags.documents
        return score, tokens

    def _finder(self, bags: Bags, device: str, is_open: bool = False) -> TopicFinder:
        """Return the model on the device for these documents."""
        place = device_for(device, math.inf if is_open else cpu_seconds(bags.tokens, self.model.num_topics))
        if place not in self._finders:
            self._finders[place] = TopicFinder(self.model, place, cpu_cores())
        return self._finders[place]

    def __reduce__(self) -> tuple[Any, ...]:
        return FittedModel, (self.model,)
