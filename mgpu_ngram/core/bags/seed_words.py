"""Seed words: words to which a user assigns topics, to steer a topic model."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import EXPONENT

MAX_WEIGHT = 1e6
SEED_WEIGHT = 100.0  # tokens; with 10, planted topics of 15,000 tokens do not follow one seed word each


def seeds_of_topics(topics: Mapping[Any, Any], num_topics: int) -> dict[str, dict[int, float]]:
    """Return {word: {topic: weight}} from the words of each topic.

    topics  topic -> a word, a list of words, or a mapping word -> weight. The default weight is SEED_WEIGHT

    Raises InputError for topics that do not exist, words that are not str, and weights that `check_seed` refuses.
    """
    seeds: dict[str, dict[int, float]] = {}
    for topic, wanted in topics.items():
        if type(topic) is not int:
            raise InputError(f"seeds has the topic {topic!r}; give topics and their words, such as 3: [decimal, float]")
        words = wanted if isinstance(wanted, (list, Mapping)) else [wanted]
        weights = words.items() if isinstance(words, Mapping) else [(word, SEED_WEIGHT) for word in words]
        for word, weight in weights:
            if isinstance(weight, str) and EXPONENT.fullmatch(weight):  # YAML reads 1e2 as text
                weight = float(weight)
            if not isinstance(word, str):
                raise InputError(f"seeds has the word {word!r} of topic {topic}, which is not a str; put it in quotes")
            check_seed(word, topic, weight, num_topics)
            seeds.setdefault(word, {})[topic] = float(weight)
    return seeds


def check_seed(word: Any, topic: Any, weight: Any, num_topics: int) -> None:
    """Raise InputError for a topic that does not exist, and for a weight unless 0 < weight <= MAX_WEIGHT."""
    is_topic = isinstance(topic, Integral) and not isinstance(topic, bool) and 0 <= int(topic) < num_topics
    is_weight = isinstance(weight, Real) and not isinstance(weight, bool) and 0 < float(weight) <= MAX_WEIGHT
    if not (is_topic and is_weight):
        raise InputError(
            f"the seed word {word!r} has the topic {topic!r} with the weight {weight!r}; topics are 0 to "
            f"{num_topics - 1}, weights are above 0, {MAX_WEIGHT:,.0f} at most"
        )
