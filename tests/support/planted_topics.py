"""A topic model with planted topics, and documents of them, for tests."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mgpu_ngram.core.bags.topic_model import Priors, TopicModel, save_topic_model
from mgpu_ngram.core.bags.word_list import make_words

TOPICS = ("apple pear plum cherry", "oak elm birch willow", "cat dog cow horse")
ALPHA, BETA = 0.5, 0.01


def planted_model(settings=None, words=True, alpha_Z=(ALPHA, ALPHA, ALPHA)):
    """Topic z has the words of TOPICS[z], 100 tokens each, and the word `and`, which all topics share."""
    names = ["and", *(word for topic in TOPICS for word in topic.split())]
    counts_VZ = np.zeros((len(names), 3), np.uint32)
    counts_VZ[0] = 50
    for z, topic in enumerate(TOPICS):
        for word in topic.split():
            counts_VZ[names.index(word), z] = 100
    priors = Priors(np.array(alpha_Z, np.float64), BETA)
    history = ({"sweep": 9, "joint": -3.0, "plugin": -2.5, "perplexity": 12.2, "changed": 0.1},)
    given = {"words": make_words(names) if words else None, "settings": settings or {}, "sweeps": 9}
    return TopicModel.of_counts(counts_VZ, priors, history=history, **given)


def save_planted(path, **how):
    save_topic_model(path, planted_model(**how))
    return str(path)


def documents(n, seed=0):
    """Return n documents: (text, its class, its date); number d has mostly topic d % 3, and every tenth none."""
    rng = np.random.default_rng(seed)
    found = []
    for d in range(n):
        own, other = (TOPICS[z].split() for z in (d % 3, (d + 1) % 3))
        words = [*rng.choice(own, rng.integers(4, 12)), *rng.choice(other, 2), "and", "zebra"]
        text = "" if d % 10 == 9 else " ".join(words)
        found.append((text, ("fruit", "trees", "beasts")[d % 3], datetime.date(2019 + d % 2, 1 + d % 3, 1 + d % 28)))
    return found


def write_parquet(path, found, rows=100):
    columns = (list(column) for column in zip(*found, strict=True))
    pq.write_table(pa.table(dict(zip(("text", "kind", "day"), columns, strict=True))), path, row_group_size=rows)
    return str(path)


def fold_in_by_hand(words, model, iterations=200):
    """Return the shares of topics of a document by the fixed point of CVB0 in plain Python."""
    names, counts_VZ = list(model.words), model.counts_VZ().astype(float)
    totals = counts_VZ.sum(0) + model.priors.beta * len(names)
    alpha = model.priors.alpha_Z.tolist()
    theta = list(alpha)
    for _ in range(iterations):
        new = list(alpha)
        for word in words:
            if word in names:
                weights = [
                    theta[z] * (counts_VZ[names.index(word), z] + model.priors.beta) / totals[z] for z in range(3)
                ]
                new = [a + w / sum(weights) for a, w in zip(new, weights, strict=True)]
        theta = new
    return [t / sum(theta) for t in theta]
