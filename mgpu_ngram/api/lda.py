"""`LDA`, a topic model with scikit-learn's interface, on CPUs, GPUs and Dask clusters."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.api.lda_model import FittedModel, documents_of, fit_model
from mgpu_ngram.api.lda_settings import CONFIG_NAMES, config_of, seed_of, updates_of
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.bags.sklearn_base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    NotFittedError,
    TransformerMixin,
)
from mgpu_ngram.core.bags.topic_model import TopicModel, find_topic_model, load_topic_model, save_topic_model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.storage.output import check_file, new_file
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.lda.coherence import COHERENCE_MEASURES, PairCounts, WordPairs, count_pairs
from mgpu_ngram.engine.lda.fold_in import to_csr
from mgpu_ngram.engine.topics.page import PageOptions, topic_page
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.table import TopicTable, topic_table
from mgpu_ngram.engine.topics.words import most_probable
from mgpu_ngram.jobs.lda.config import ALPHA_SUM, LdaConfig
from mgpu_ngram.jobs.topics.files import HTML
from mgpu_ngram.kernels.dispatch import array_module, on_gpu


class LDA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Latent Dirichlet allocation by collapsed Gibbs sampling, with the interface of scikit-learn's class.

    n_components      number of topics, 1 to 65,536
    max_iter          sweeps over all tokens
    random_state      None: different topics each time; an int from 0 to 2^64 - 1, a numpy RandomState or Generator: the
                      same topics on any device and for any number of workers, the same as `mgpu-ngram lda --seed`
    doc_topic_prior   alpha, the prior of each topic in a document: a number, or (n_components,); None: 1 /
                      n_components, as in scikit-learn. `mgpu-ngram lda` has 50 / topics
    topic_word_prior  beta, the prior of each word in a topic; None: 1 / n_components, as in scikit-learn.
                      `mgpu-ngram lda` has 0.01
    seeds             {word or number of a column: its topic, a list of topics, or a dict topic -> weight}. A
                      weight is a number of tokens of the word that the topic has from the start, by default 100.
                      In other topics the word keeps the prior beta
    optimise_every    sweeps between estimates of both priors; 0: the priors do not change
    exclude_self      leave a token's own count out, as collapsed Gibbs sampling does; False: as CuLDA_CGS
    evaluate_every    sweeps between metrics, and between calls of `callback`; 0 or less: only after the last sweep
    held_out          share of the documents that are left out of training, to measure the perplexity on them
    tol               stop when the perplexity falls by less than this share between two metrics; 0: never
    max_doc_update_iter  greatest number of iterations for a document in transform, score and perplexity
    mean_change_tol   a document is finished when an iteration changes its topics by less than this number of tokens in
                      the mean, and by less than 1 % of the document
    callback          callback(iteration, metrics) is called with the number of sweeps and a dict of metrics; training
                      stops if it returns True
    verbose           1: print the perplexity with each metric
    vocabulary        words of the columns, or of documents: a list, a dict word -> column, or a file with a word a
                      line. None: a table's column names; documents' own words
    lowercase, token_pattern, stop_words, min_df, max_df, max_features
                      options for making bags of words, as in scikit-learn's CountVectorizer. stop_words may be
                      "english", a file, or words
    device            "auto" (a GPU if there is one and 2 CPU cores would take a second), "cpu" or "gpu"

    X is a matrix of counts (documents, words): a scipy or cupyx sparse matrix, a NumPy or CuPy array, a DataFrame, a
    Dask array of such blocks; or an iterable of texts, or of lists of tokens. A document may be empty. Counts are whole
    numbers from 0 to 2^32 - 1; fractions, negative counts and NaN raise InputError, a ValueError. There are no sample
    weights; repeat a document instead.

    After fit:
    components_          (n_components, n_features) float64, made at first use: number of tokens of each word and topic
                         plus the word's prior; rows divided by their sums are the topics' word probabilities
    doc_topic_prior_     (n_components,) float64; topic_word_prior_: float
    n_iter_              number of sweeps of the last call of fit or partial_fit
    n_batch_iter_        number of batches: 1 after fit, one more with each partial_fit
    bound_               perplexity of the training tokens, exp(-plug-in log-likelihood per token): too low for new text
    history_             metrics, a list of dicts: sweep, joint and plugin (log-likelihood per token, natural),
                         perplexity, changed (share of tokens), held_out_perplexity
    n_features_in_       number of words; words_: (n_features,) the words as str, None if they are unknown;
                         feature_names_in_: names of the columns of a table
    model_               the TopicModel

    Source of the sampler: Xie et al., "CuLDA_CGS: Solving large-scale LDA problems on GPUs" (2018).

    >>> from mgpu_ngram import LDA
    >>> texts = ["apples and pears", "pears and plums", "trains and cars", "cars and roads"] * 10
    >>> lda = LDA(n_components=2, stop_words="english", random_state=1)
    >>> lda.fit_transform(texts).shape
    (40, 2)
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        max_iter: int = 200,
        random_state: Any = None,
        doc_topic_prior: Any = None,
        topic_word_prior: float | None = None,
        seeds: Any = None,
        optimise_every: int = 0,
        exclude_self: bool = True,
        evaluate_every: int = 10,
        held_out: float = 0.0,
        tol: float = 0.0,
        max_doc_update_iter: int = 100,
        mean_change_tol: float = 1e-3,
        callback: Callable[[int, dict[str, float]], object] | None = None,
        verbose: int = 0,
        vocabulary: Any = None,
        lowercase: bool = True,
        token_pattern: str | None = None,
        stop_words: Any = None,
        min_df: float = 1,
        max_df: float = 1.0,
        max_features: int | None = None,
        device: str = "auto",
    ):
        self.n_components = n_components
        self.max_iter = max_iter
        self.random_state = random_state
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.seeds = seeds
        self.optimise_every = optimise_every
        self.exclude_self = exclude_self
        self.evaluate_every = evaluate_every
        self.held_out = held_out
        self.tol = tol
        self.max_doc_update_iter = max_doc_update_iter
        self.mean_change_tol = mean_change_tol
        self.callback = callback
        self.verbose = verbose
        self.vocabulary = vocabulary
        self.lowercase = lowercase
        self.token_pattern = token_pattern
        self.stop_words = stop_words
        self.min_df = min_df
        self.max_df = max_df
        self.max_features = max_features
        self.device = device

    def fit(self, X: Any, y: Any = None, client: Any = None) -> LDA:
        """Train a new model on documents, and return self.

        y       ignored
        client  a `distributed.Client`, whose workers train; None: this process

        Raises InputError for documents and settings that cannot be used, and RunError if too many workers are lost.
        """
        config = config_of(self, seed_of(self.random_state))
        self._train(config, documents_of(self, X, fitting=True), client)
        return self

    def fit_transform(self, X: Any, y: Any = None, client: Any = None) -> Any:
        """Return `fit(X).transform(X)`; reads X once, so it may be an iterator."""
        config, documents = config_of(self, seed_of(self.random_state)), documents_of(self, X, fitting=True)
        self._train(config, documents, client)
        return self._shares(documents, X)

    def partial_fit(self, X: Any, y: Any = None, client: Any = None) -> LDA:
        """Train on one more batch of documents, and return self. The first batch is as in `fit`.

        The topics of a batch are sampled in max_iter sweeps, with the counts of its own tokens and of all batches
        before. After the batch, its counts stay in the model, and its topics are never sampled again. So the
        model depends on the batches and their order. Batch b has the seed random_state + b. The vocabulary is that of
        the first batch; other words are ignored. Metrics are those of the batch.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y, client)
        documents, earlier, batches = documents_of(self, X), self.model_, self.n_batch_iter_
        if self.n_components != earlier.num_topics:
            raise InputError(
                f"n_components is {self.n_components} but the model has {earlier.num_topics} topics; call fit instead"
            )
        config = config_of(self, (earlier.settings.get("seed", 0) + batches) % 2**64)
        self._train(config, documents, client, earlier)
        return self

    def transform(self, X: Any, threshold: float | None = None) -> Any:
        """Return the shares of topics in documents, (documents, n_components) float32; each row sums to 1.

        threshold  None: return a dense array. Else return a CSR matrix of the shares that are at least this

        A row depends only on its document and the model, not on the batch. With fixed topics of words, the row is about
        the fixed point of CVB0 (Asuncion et al., "On smoothing and inference for topic models", 2009), which is unique;
        max_doc_update_iter and mean_change_tol set the precision. An empty document has the shares of doc_topic_prior_.
        The result is of CuPy if X is of CuPy and the model is on a GPU, else of NumPy or SciPy.

        Raises InputError for wrong counts or another number of columns, NotFittedError before `fit`.
        """
        return self._shares(documents_of(self, X), X, threshold)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the natural log-likelihood of half of the tokens of each document, given the other half.

        Document completion: a random number, from the model's seed and the token's place in X, makes each token
        observed or a target. Topics of a document are fitted to its observed tokens (see `transform`). The result is
        the sum of ln p over targets, the same each time. Wallach et al., "Evaluation methods for topic models" (2009),
        section 5.
        """
        return self._completion(X)[0]

    def perplexity(self, X: Any, sub_sampling: bool = False) -> float:
        """Return the perplexity of documents by document completion: exp(-score / number of target tokens).

        NaN without target tokens. Compare it only with other document completions, not with the bound that
        scikit-learn's class returns. sub_sampling must be False.
        """
        if sub_sampling:
            raise InputError("sub_sampling is True, which is not supported; leave it out")
        score, tokens = self._completion(X)
        return math.exp(-score / tokens) if tokens else math.nan

    def topics(self, n_words: int = 10) -> TopicTable:
        """Return the table of topics, the largest first: share of tokens, and the words by three measures."""
        return topic_table(self._rows, self._word, n_words, threads=cpu_cores())

    def top_words(self, n_words: int = 10) -> list[list[str]]:
        """Return the n_words most probable words of each topic, best first; ties by column. A column without a name is
        its number.
        """
        words_Zn, scores_Zn = most_probable(self._rows, n_words, cpu_cores())
        rows = zip(words_Zn.tolist(), np.isfinite(scores_Zn).tolist(), strict=True)
        return [[self._word(v) for v, known in zip(*row, strict=True) if known] for row in rows]

    def coherence(self, X: Any, measure: str = "c_npmi", n_words: int = 10) -> np.ndarray:
        """Return the coherence of each topic, (n_components,) float64: the co-occurrence of its top words in X.

        measure  u_mass, c_npmi, c_uci or c_v; pairs of words are counted in whole documents. A document without a
                 word counts as one, as in gensim; in the metrics of a training it does not
        """
        if not isinstance(measure, str) or measure not in COHERENCE_MEASURES:
            raise InputError(f"measure is {measure!r} but must be one of {', '.join(COHERENCE_MEASURES)}")
        best = most_probable(self._rows, n_words, cpu_cores())
        pairs = WordPairs.of(best.words_Zn, self.n_features_in_)
        counts = PairCounts(0, np.zeros(len(pairs.words_U), np.int64), np.zeros(len(pairs.others_E), np.int64))
        for bags in documents_of(self, X).blocks():
            counts += count_pairs(bags, pairs, cpu_cores())
        return COHERENCE_MEASURES[measure](counts, pairs)

    def to_html(self, path: str | Path, title: str = "Topics", overwrite: bool = False) -> None:
        """Write a page to explore the topics: one HTML file that loads nothing from a network.

        `overwrite` replaces a page.
        """
        check_path(path, "path")
        if not isinstance(title, str):
            raise InputError(f"title is {title!r} but must be text")
        check_file(path, overwrite, *HTML)
        page = topic_page(self._rows, self._word, options=PageOptions(title, threads=cpu_cores()))
        with new_file(path) as sink:
            sink.write(page.encode())

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the model to a safetensors file, which holds no code. `overwrite` replaces a topic model."""
        check_path(path, "path")
        save_topic_model(path, self._model, overwrite)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> LDA:
        """Return the estimator of a file of `save`, or of a file or folder of `mgpu-ngram lda`.

        device  as in the constructor

        The settings are those of the training, without callback, seeds and the options that chose the vocabulary: the
        model has its words. Raises InputError if no valid topic model is there.
        """
        check_path(path, "path")
        model = load_topic_model(find_topic_model(path))
        found = {ours: model.settings[name] for ours, name in CONFIG_NAMES.items() if name in model.settings}
        found |= {name: model.settings[name] for name in ("lowercase", "token_pattern") if name in model.settings}
        if found.get("doc_topic_prior") is None:  # the default of the command
            found["doc_topic_prior"] = ALPHA_SUM / model.num_topics
        self = cls(**{**found, "n_components": model.num_topics}, device=device)
        self._keep(model, model.settings.get("batches", 1))
        self.n_features_in_ = model.num_words
        return self

    @property
    def components_(self) -> np.ndarray:
        return self._fitted.components_ZV

    @property
    def doc_topic_prior_(self) -> np.ndarray:
        return self._model.priors.alpha_Z

    @property
    def topic_word_prior_(self) -> float:
        return self._model.priors.beta

    @property
    def n_iter_(self) -> int:
        return self._model.sweeps

    @property
    def bound_(self) -> float:
        return self._model.history[-1]["perplexity"]

    @property
    def history_(self) -> list[dict[str, Any]]:
        return list(self._model.history)

    @property
    def words_(self) -> np.ndarray | None:
        return None if self._model.words is None else np.array(list(self._model.words), object)

    @property
    def _n_features_out(self) -> int:
        return self._model.num_topics

    @property
    def _model(self) -> TopicModel:
        return self._fitted.model

    @property
    def _fitted(self) -> FittedModel:
        """The fitted model. Raises NotFittedError before the first fit."""
        if not hasattr(self, "model_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit, partial_fit or LDA.load")
        return self._made

    @property
    def _rows(self) -> TopicRows:
        return TopicRows.of_model(self._model)

    def _word(self, v: int) -> str:
        """Return the name of a column."""
        if self._model.words is not None:
            return self._model.words.word(v)
        return str(self.feature_names_in_[v]) if hasattr(self, "feature_names_in_") else str(v)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # whole numbers from 0 on: scikit-learn has no tag for counts
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _train(self, config: LdaConfig, documents: BagCorpus, client: Any, earlier: TopicModel | None = None) -> None:
        """Set the model to that of the documents, in addition to those of the earlier model."""
        if model := fit_model(self, config, documents, client, earlier):
            self._keep(model, model.settings.get("batches", 1))

    def _keep(self, model: TopicModel, batches: int) -> None:
        self.model_, self.n_batch_iter_ = model, batches
        self._made = FittedModel(model)

    def _shares(self, documents: BagCorpus, X: Any, threshold: float | None = None) -> Any:
        """Return the shares of topics in documents, as `transform` does; X is their source, for its kind of arrays."""
        if threshold is not None and not (isinstance(threshold, Real) and 0 <= threshold <= 1):
            raise InputError(f"threshold is {threshold!r} but must be a share from 0 to 1, or None")
        is_open = on_gpu(getattr(X, "data", None) if hasattr(X, "indptr") else X)
        Z, blocks = self._model.num_topics, self._fitted.shares(documents, self.device, updates_of(self), is_open)
        if threshold is not None:
            return to_csr(blocks, threshold, Z)
        parts = list(blocks) or [np.empty((0, Z), np.float32)]
        return array_module(parts[0]).concatenate(parts)

    def _completion(self, X: Any) -> tuple[float, int]:
        """Return (log-likelihood of the target tokens, their number)."""
        return self._fitted.completion(documents_of(self, X), self.device, updates_of(self))
