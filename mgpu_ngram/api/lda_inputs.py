"""Convert parameters of the estimator `LDA` to settings of the training, and documents to bags of words."""

from __future__ import annotations

import math
import re
import reprlib
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import numpy as np

from mgpu_ngram.api.lda_fitted import device_for
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.bags.matrix_bags import is_matrix
from mgpu_ngram.core.bags.sklearn_base import check_columns
from mgpu_ngram.core.bags.text_options import DEFAULT_PATTERN, TextOptions
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.bags.bags_of import bags_of
from mgpu_ngram.jobs.lda.config import LdaConfig

CONFIG_NAMES = {  # names of the settings of LdaConfig, by the names here
    "n_components": "topics",
    "max_iter": "sweeps",
    "doc_topic_prior": "alpha",
    "topic_word_prior": "beta",
    "random_state": "seed",
    "exclude_self": "exclude_self",
    "optimise_every": "optimise_every",
    "evaluate_every": "evaluate_every",
    "held_out": "held_out",
    "tol": "tolerance",
}
TEXT_PARAMETERS = ("lowercase", "token_pattern", "stop_words", "min_df", "max_df", "max_features")
BAG_BYTES_PER_SECOND = 8e6  # bytes of text that 2 CPU cores turn into bags of words in a second, rounded down


def config_of(lda: Any, seed: int) -> LdaConfig:
    """Return the settings of an estimator's training. Raises InputError, which names the setting."""
    updates_of(lda)
    values = {name: getattr(lda, ours) for ours, name in CONFIG_NAMES.items()} | {"corpus": [], "seed": seed}
    if values["beta"] is None:
        del values["beta"]
    if not (lda.doc_topic_prior is None or isinstance(lda.doc_topic_prior, Real)):
        try:
            values["alpha"] = np.asarray(lda.doc_topic_prior, np.float64).tolist()
        except (TypeError, ValueError):
            raise InputError(
                f"doc_topic_prior is {reprlib.repr(lda.doc_topic_prior)} but must be one number, or "
                f"{lda.n_components} numbers above 0"
            ) from None
    if isinstance(lda.evaluate_every, Integral):
        values["evaluate_every"] = max(0, int(lda.evaluate_every))
    if not (lda.callback is None or callable(lda.callback)):
        raise InputError(f"callback is {lda.callback!r} but must be a function of (iteration, metrics), or None")
    try:
        return fill(LdaConfig, values, type(lda).__name__)
    except InputError as error:
        ours = {name: ours for ours, name in CONFIG_NAMES.items()}
        pattern = rf"^(\w+(?:: |\.))({'|'.join(ours)})\b"
        raise InputError(re.sub(pattern, lambda match: match[1] + ours[match[2]], str(error))) from None


def updates_of(lda: Any) -> tuple[int, float]:
    """Return (max_doc_update_iter, mean_change_tol). Raises InputError, which names the setting."""
    most, tol = lda.max_doc_update_iter, lda.mean_change_tol
    if not (isinstance(most, Integral) and int(most) >= 0):
        raise InputError(f"max_doc_update_iter is {most!r} but must be a whole number, 0 or more")
    if not (isinstance(tol, Real) and float(tol) >= 0):
        raise InputError(f"mean_change_tol is {tol!r} but must be a number, 0 or more")
    return int(most), float(tol)


def text_bytes(X: Any) -> float:
    """Return the approximate size of texts in memory; inf if it is unknown without reading them."""
    if not isinstance(X, (list, tuple, np.ndarray)) or getattr(X, "shape", None) == ():
        return math.inf
    return sum(len(text) for text in X if isinstance(text, (str, bytes)))


def is_counts(X: Any) -> bool:
    """Return whether X is a matrix, `Bags`, or a list of rows of numbers."""
    if isinstance(X, (list, tuple)):
        return (
            bool(X)
            and isinstance(X[0], (list, tuple, np.ndarray))
            and not any(isinstance(v, (str, bytes)) for v in X[0])
        )
    return isinstance(X, Bags) or is_matrix(X)


def seed_of(random_state: Any) -> Any:
    """Return the seed of a training; an int is its own seed."""
    if random_state is None:
        return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
    if hasattr(random_state, "randint"):
        return int(random_state.randint(0, 2**63 - 1, dtype=np.int64))
    if hasattr(random_state, "integers"):
        return int(random_state.integers(0, 2**63 - 1))
    return random_state


def documents_of(lda: Any, X: Any, fitting: bool = False) -> BagCorpus:
    """Return documents as bags of words, of the model's vocabulary unless `fitting` chooses one.

    Sets the estimator's attributes of the columns.
    """
    words = lda.vocabulary if fitting else lda._model.words
    if hasattr(X, "__array__") and not hasattr(X, "shape"):
        X = np.asarray(X)
    if len(getattr(X, "shape", ())) == 2:
        check_columns(lda, X, reset=fitting)
    token_pattern = lda.token_pattern or DEFAULT_PATTERN
    options = TextOptions(lda.lowercase, token_pattern, *(getattr(lda, name) for name in TEXT_PARAMETERS[2:]))
    if fitting and is_counts(X):
        options.refuse_for("X")
    if words is None and not fitting and not is_counts(X):
        raise InputError("the model does not know its words, so X must be a matrix of counts, not documents")
    documents = bags_of(X, words, options, device_for(lda.device, text_bytes(X) / BAG_BYTES_PER_SECOND))
    if fitting and len(getattr(X, "shape", ())) != 2:
        lda.n_features_in_ = documents.num_words
        with suppress(AttributeError):
            del lda.feature_names_in_
    elif documents.num_words != lda.n_features_in_:
        raise InputError(f"X has {documents.num_words} features, but the model has {lda.n_features_in_}")
    return documents
