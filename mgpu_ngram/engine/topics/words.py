"""The words that describe a topic: the most probable, the most relevant, the most frequent and exclusive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_whole
from mgpu_ngram.engine.topics.rows import TopicRows

LAMBDA = 0.6  # the optimum of the user study of Sievert and Shirley 2014, section 3.2
FREX_WEIGHT = 0.5  # as in the R package stm


class TopWords(NamedTuple):
    """The n best words of each topic, best first; ties by word id. Topics that were not requested have no words.

    words_Zn   (Z, n) int64, word ids
    scores_Zn  (Z, n) float64; -inf for words that no topic has, which come last
    """

    words_Zn: np.ndarray
    scores_Zn: np.ndarray


def most_probable(rows: TopicRows, n: int, threads: int = 1, topics: Iterable[int] | None = None) -> TopWords:
    """Return the n words of each topic, or of some topics, with the highest p(word | topic)."""
    return _best(rows, n, threads, rows.probabilities, topics)


def most_relevant(
    rows: TopicRows, n: int, lambda_: float = LAMBDA, threads: int = 1, topics: Iterable[int] | None = None
) -> TopWords:
    """Return the n words of each topic with the highest relevance (Sievert and Shirley 2014, equation 1).

    lambda_  from 0 to 1: the weight of ln p(word | topic); 1 - lambda_ is the weight of the lift, ln (p(word | topic) /
             p(word)), with p(word) the word's share of all tokens

    Time is O(Z V); memory is O(V) per thread.
    """
    _check_share("lambda", lambda_)
    total_V = rows.word_totals_V
    log_share_V = np.log(np.where(total_V > 0, total_V, 1) / max(total_V.sum(), 1.0))

    def relevance(z: int) -> np.ndarray:
        log_prob_V = np.log(rows.probabilities(z))
        return lambda_ * log_prob_V + (1 - lambda_) * (log_prob_V - log_share_V)

    return _best(rows, n, threads, relevance, topics)


def most_frequent_and_exclusive(
    rows: TopicRows, n: int, weight: float = FREX_WEIGHT, threads: int = 1, topics: Iterable[int] | None = None
) -> TopWords:
    """Return the n words of each topic with the highest FREX score (Bischof and Airoldi 2012).

    weight  from 0 to 1, the weight of frequency; 1 - weight is the weight of exclusivity

    The score is the weighted harmonic mean of two ranks, divided by the number of words: the word's rank in the topic
    by p(word | topic), and by exclusivity, p(word | topic) / sum over topics of p(word | topic). As in the R package
    stm, equal values share the mean of their ranks, and the exclusivities of a word shrink towards 1 / Z the fewer
    tokens the word has (Hausser and Strimmer 2009). Words without tokens have no rank.

    Time is O(Z V log V); memory is O(V) per thread.
    """
    _check_share("the FREX weight", weight)
    sum_V, shrink_V = _exclusivity(rows)
    ranked_V = rows.word_totals_V > 0

    def frex(z: int) -> np.ndarray:
        prob_V = rows.probabilities(z)
        exclusivity_V = shrink_V / rows.num_topics + (1 - shrink_V) * prob_V / sum_V
        score_V = np.zeros(len(prob_V))
        frequency, exclusivity = (_mean_ranks(values_V[ranked_V]) for values_V in (prob_V, exclusivity_V))
        score_V[ranked_V] = 1 / (weight / frequency + (1 - weight) / exclusivity)
        return score_V

    return _best(rows, n, threads, frex, topics)


def _exclusivity(rows: TopicRows) -> tuple[np.ndarray, np.ndarray]:
    """Return (V,) sums of p(word | topic) over topics, and (V,) weights of 1 / Z in the shrunk exclusivities."""
    scale_Z, beta_V, total_V = rows.scales_Z, rows.beta_V, rows.word_totals_V
    sum_V = beta_V * scale_Z.sum() + rows.word_sums(scale_Z)
    cross_V, square_V = rows.word_sums(scale_Z**2), rows.word_sums(scale_Z**2, squared=True)
    squares_V = (beta_V**2 * (scale_Z**2).sum() + 2 * beta_V * cross_V + square_V) / sum_V**2
    variance_V = (1 - squares_V) / np.maximum(total_V - 1, 1)  # summed over topics
    distance_V = squares_V - 1 / rows.num_topics  # squared, from equal shares
    with np.errstate(divide="ignore", invalid="ignore"):
        shrink_V = np.clip(variance_V / distance_V, 0, 1)
    return sum_V, np.where((total_V <= 1) | (distance_V <= 0), 1.0, shrink_V)


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value among all, from 1, divided by their number; equal values share the mean rank."""
    values = values.astype(np.float32)  # or values that differ by the rounding of sums alone would not be equal
    order = np.argsort(values)
    rising = values[order]
    starts = np.flatnonzero(np.concatenate([[True], rising[1:] != rising[:-1]])[: len(values)])
    sizes = np.diff(starts, append=len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat((starts + (sizes + 1) / 2) / len(values), sizes)
    return ranks


def _best(
    rows: TopicRows,
    n: int,
    threads: int,
    score: Callable[[int], np.ndarray],
    topics: Iterable[int] | None = None,
) -> TopWords:
    """Return the n best words of each topic, or of some topics, by score(topic) (V,)."""
    n = min(check_whole(n, "the number of words of a topic"), rows.num_words)
    missing_V = rows.word_totals_V <= 0
    best = TopWords(np.zeros((rows.num_topics, n), np.int64), np.full((rows.num_topics, n), -np.inf))

    def work(z: int) -> None:
        score_V = np.where(missing_V, -np.inf, score(z))
        best.words_Zn[z] = words = largest(score_V, n)
        best.scores_Zn[z] = score_V[words]

    chosen = range(rows.num_topics) if topics is None else topics
    if threads == 1:
        for z in chosen:
            work(z)
        return best
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, chosen))
    return best


def largest(values: np.ndarray, n: int) -> np.ndarray:
    """Return the indexes of the n largest values, largest first; equal values by index."""
    if not 0 < n < len(values):
        return np.argsort(-values, kind="stable")[:n]
    least = np.partition(values, len(values) - n)[len(values) - n]
    above = np.flatnonzero(values > least)
    chosen = np.concatenate([above, np.flatnonzero(values == least)[: n - len(above)]])
    return chosen[np.argsort(-values[chosen], kind="stable")]


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} is {value:g} but must be from 0 to 1")
