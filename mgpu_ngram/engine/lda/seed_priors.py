"""Priors of seed words, by which a user chooses the topics of some words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.seed_words import SEED_WEIGHT, check_seed
from mgpu_ngram.core.bags.word_list import as_words
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.bags.local_bags import WordIndex


def seed_priors(
    seeds: Mapping[Any, Any], words: Words | None, num_words: int, num_topics: int, beta: float
) -> dict[int, np.ndarray]:
    """Return the priors of seed words in all topics, (Z,) float32, by word id, ascending.

    seeds  {word or word id: its topic, an iterable of topics, or a dict from topic to weight}. A weight is a number of
           tokens of the word that the topic has from the start, by default SEED_WEIGHT; `beta` is added
    words  the vocabulary; None: only ids are known

    Raises InputError for words that are not in the vocabulary, topics that do not exist, and weights that are not
    above 0 or exceed MAX_WEIGHT.
    """
    if not isinstance(seeds, Mapping):
        raise InputError(f"seeds is a {type(seeds).__name__} but must be a dict from word to topic")
    priors: dict[int, np.ndarray] = {}
    index = None if words is None else WordIndex(words)
    for word, wanted in seeds.items():
        column = index.ids(as_words([word]))[0] if isinstance(word, str) and index else word
        if not isinstance(column, (int, np.integer)) or not 0 <= column < num_words:
            raise InputError(f"the seed word {word!r} is not in the vocabulary; leave it out, or give a vocabulary")
        topics = wanted if isinstance(wanted, Iterable) else [wanted]
        weights = [*wanted.items()] if isinstance(wanted, Mapping) else [(topic, SEED_WEIGHT) for topic in topics]
        prior_Z = np.full(num_topics, beta, np.float32)
        for topic, weight in weights:
            check_seed(word, topic, weight, num_topics)
        for topic, weight in dict(weights).items():
            prior_Z[topic] += weight
        priors[int(column)] = prior_Z
    return dict(sorted(priors.items()))
