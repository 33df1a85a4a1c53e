"""Convert parameters of the estimator `LDA` to settings of the training."""

from __future__ import annotations

import re
import reprlib
from numbers import Integral, Real
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import fill
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


def config_of(lda: Any, seed: int) -> LdaConfig:
    """Return the settings of an estimator's training. Raises InputError, which names the setting."""
    updates_of(lda)
    values = {name: getattr(lda, ours) for ours, name in CONFIG_NAMES.items()} | {"corpus": [], "seed": seed}
    if isinstance(lda.n_components, Integral) and int(lda.n_components) > 0:
        values |= {name: 1 / int(lda.n_components) for name in ("alpha", "beta") if values[name] is None}
    else:
        del values["alpha"], values["beta"]
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


def seed_of(random_state: Any) -> Any:
    """Return the seed of a training; an int is its own seed."""
    if random_state is None:
        return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
    if hasattr(random_state, "randint"):
        return int(random_state.randint(0, 2**63 - 1, dtype=np.int64))
    if hasattr(random_state, "integers"):
        return int(random_state.integers(0, 2**63 - 1))
    return random_state
