"""A page to explore topics: one HTML file that loads nothing from a network.

As LDAvis does (Sievert and Shirley 2014): a map of topics by distance, and the words of a topic by relevance.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from mgpu_ngram.core.documents.text_column import shown
from mgpu_ngram.engine.topics.distances import Nearest, nearest_topics, topic_distances, topic_map
from mgpu_ngram.engine.topics.doc_topics import GroupShares
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.table import TopicFacts, snippet
from mgpu_ngram.engine.topics.words import LAMBDA, largest

NEAREST = 5  # other topics beside a topic
LAMBDA_STEPS = 21  # values of lambda from 0 to 1 whose best words the page has


@dataclass(frozen=True)
class PageOptions:
    """Options of a page.

    title       title of the page
    words       number of words shown for a topic, a bar each
    lambda_     initial weight of probability in relevance
    max_topics  greatest number of topics on the page, the largest ones; browsers draw a few thousand circles at once
    text        function that returns a document by number, to show its beginning; None to show only numbers
    groups      shares of topics in groups of documents, or None
    threads     threads that compute the distances
    """

    title: str = "Topics"
    words: int = 30
    lambda_: float = LAMBDA
    max_topics: int = 1000
    text: Callable[[int], str] | None = None
    groups: GroupShares | None = None
    threads: int = 1


def topic_page(
    rows: TopicRows, word: Callable[[int], str], facts: TopicFacts | None = None, options: PageOptions | None = None
) -> str:
    """Return the page of a topic model as HTML.

    word   function that returns a word by id, such as Words.word
    facts  documents, coherence and representative documents, as far as known. Nearest topics are computed
    """
    options = options or PageOptions()
    data = page_data(rows, word, facts or TopicFacts(), options)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # or a word could end the element, or begin a comment
        text = text.replace(character, f"\\u{ord(character):04x}")
    style, script = _source("css"), _source("js")
    policy = f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; base-uri 'none'"
    title = html.escape(shown(options.title))
    parts = {"policy": policy, "title": title, "style": style, "script": script, "data": text}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("html"))


def page_data(rows: TopicRows, word: Callable[[int], str], facts: TopicFacts, options: PageOptions) -> dict[str, Any]:
    """Return the data of a page, as values of JSON. Words and topics are numbered by their order on the page."""
    topics_K = largest(rows.totals_Z, options.max_topics)
    distances_KK = topic_distances(rows.take(topics_K), threads=options.threads)
    points_K2, nearest = topic_map(distances_KK), nearest_topics(distances_KK, NEAREST)
    chosen = [_candidates(rows, z, options.words) for z in topics_K.tolist()]
    ids_U = np.unique(np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in chosen)]))
    same = bool((rows.beta_V == rows.beta_V[:1]).all())
    beta = float(rows.beta_V[0]) if same and rows.num_words else rows.beta_V[ids_U].tolist()
    topics = []
    for k, z in enumerate(topics_K.tolist()):
        ids, places = chosen[k]
        entries = rows.entries(z)
        counts = rows.tokens_N[entries][places]
        topics.append(
            {
                "id": z,
                "share": _short(rows.shares_Z[z]),
                "scale": float(rows.scales_Z[z]),
                "x": _short(points_K2[k, 0]),
                "y": _short(points_K2[k, 1]),
                "words": np.searchsorted(ids_U, ids).tolist(),
                "counts": [_whole(value) for value in counts.tolist()],
                **({} if rows.excess_N is None else {"excess": rows.excess_N[entries][places].tolist()}),
                "near": _near(nearest, k),
                **_known(facts, z),
            }
        )
        if options.groups:
            topics[-1]["groups"] = [_short(share) for share in options.groups.shares_GZ[:, z]]
    numbers = sorted({number for topic in topics for number, _ in topic["examples"]})
    return {
        "lambda": options.lambda_,
        "shown": options.words,
        "topics_of": rows.num_topics,
        "vocabulary": rows.num_words,
        "tokens": _whole(float(rows.totals_Z.sum())),
        "beta": beta,
        "words": [shown(word(int(v))) for v in ids_U],
        "totals": [_whole(value) for value in rows.word_totals_V[ids_U].tolist()],
        "topics": topics,
        "texts": {number: snippet(options.text(number)) for number in numbers} if options.text else {},
        "groups": options.groups
        and {"names": list(map(shown, options.groups.groups)), "documents": options.groups.documents_G.tolist()},
    }


def _candidates(rows: TopicRows, z: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of a topic that are among its n most relevant ones for some lambda, and their places in its row.

    Words without a token are left out.
    """
    ids, counts = rows.row(z)
    places = np.flatnonzero(rows.word_totals_V[ids])
    ids, counts = ids[places], counts[places]
    log_prob = np.log((counts + rows.beta_V[ids]) * rows.scales_Z[z])
    log_share = np.log(rows.word_totals_V[ids] / max(rows.totals_Z.sum(), 1.0))
    best = [largest(log_prob - (1 - lambda_) * log_share, n) for lambda_ in np.linspace(0, 1, LAMBDA_STEPS)]
    chosen = np.unique(np.concatenate(best))
    return ids[chosen].astype(np.int64), places[chosen]


def _known(facts: TopicFacts, z: int) -> dict[str, Any]:
    """Return the facts about topic z that are known."""
    known: dict[str, Any] = {"examples": []}
    if facts.documents_Z is not None:
        known["documents"] = int(facts.documents_Z[z])
    if facts.coherence:
        known["coherence"] = {name: _short(values_Z[z]) for name, values_Z in facts.coherence.items()}
    if facts.examples:
        pairs = zip(facts.examples.documents_Zn[z].tolist(), facts.examples.shares_Zn[z], strict=True)
        known["examples"] = [[number, _short(share)] for number, share in pairs if number >= 0]
    return known


def _near(nearest: Nearest, k: int) -> list[list[Any]]:
    pairs = zip(nearest.topics_Zn[k].tolist(), nearest.distances_Zn[k], strict=True)
    return [[other, _short(distance)] for other, distance in pairs]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _whole(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _source(suffix: str) -> str:
    return (resources.files(__package__) / f"page.{suffix}").read_text(encoding="utf-8")


def _hashed(source: str) -> str:
    """Return the source as a content security policy allows it: no other script or style of the page then runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
