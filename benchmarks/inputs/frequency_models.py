"""Models to measure on: relative frequencies of text of any size, generated or read; their structure is what counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.inputs.corpora import LONGEST_WORDS, QUANTILES, SHORTEST_WORDS, spellings, splitmix64
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.counts.vocabulary import SPECIALS
from mgpu_ngram.core.models.arpa import write_arpa
from mgpu_ngram.core.ngrams.trie import Ngrams, Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.lexicon import START_CODE
from mgpu_ngram.engine.count.sentence_markers import mark_sentences
from mgpu_ngram.engine.trie.build import FANOUT, build_trie
from mgpu_ngram.kernels.common.draws import GAMMA
from mgpu_ngram.kernels.dispatch import array_module, to_host

VOCABULARY = 1_000_000  # words that the generated language has; a text shows those that its size allows
# Chosen so that 8.7 million words have about the n-grams of each order that as many of English books have.
WORD_LAW = (1.2, 3.0)  # exponent and shift of the Zipf-Mandelbrot law of words,
SUCCESSOR_LAWS = (1.2, 1.0), (1.5, 1.0)  # of the successors of a word, and of two
SUCCESSORS = 100_000
FREE, AFTER_ONE = 38, 118  # of 256 words, those drawn by themselves, and after one word; the others after two
MEAN_WORDS = (SHORTEST_WORDS + LONGEST_WORDS) // 2  # of a sentence
BLOCK_SENTENCES = 1 << 17  # generated at once
BACKOFF_SHARE = 0.5  # of a count, that backing off takes (absolute discounting; Ney et al., 1994)


def trie_of(codes_T: Any, symbols: int, order: int, fanout: int = FANOUT) -> Trie:
    """The trie of the n-grams of a stream, on its device; arguments as for `ngrams_of`."""
    return build_trie(ngrams_of(codes_T, symbols, order), fanout)


def write_model(path: str | Path, codes_T: Any, words: Words, order: int) -> None:
    """Write the model of a stream as an ARPA file, for other tools; arguments as for `ngrams_of`."""
    levels = []
    for ngrams in ngrams_of(codes_T, len(words), order):
        backoff = None if ngrams.backoff is None else to_host(ngrams.backoff)
        levels.append(Ngrams(to_host(ngrams.ids), to_host(ngrams.prob), backoff))
    write_arpa(path, words, levels, threads=cpu_cores())


def ngrams_of(codes_T: Any, symbols: int, order: int) -> Iterator[Ngrams]:
    """Yield the distinct n-grams of a stream by order, each sorted, with relative frequencies; NumPy or CuPy.

    codes_T  (T,) uint32, word + 1, and a 0 after each sentence: <s> and </s> are put in here
    symbols  V; word 0 is <unk>, 1 is <s>, 2 is </s>

    P(w | h) is count(h w) / count(h), the same on every device; a word that does not occur gets what one that occurs
    once does, and <s>, which is never predicted, 1. A history backs off with half its distinct successors over its
    count. Numbers an n-gram by its history's number and its last word, so keys are 64 bits at any order.
    """
    xp, codes_T = array_module(codes_T), mark_sentences(codes_T)
    start_R = xp.flatnonzero(codes_T)  # where an n-gram begins, and
    number_R = codes_T[start_R].astype(np.int64) - 1  # which it is
    ids = xp.arange(symbols, dtype=np.uint32)[:, None]
    counts_G = xp.maximum(xp.bincount(number_R, minlength=symbols), 1)
    # By the host, as devices may round a logarithm differently.
    log10_C = xp.asarray(np.log10(np.maximum(np.arange(int(counts_G.max()) + 1), 1)))
    prob_G = log10_C[counts_G] - np.log10(int(counts_G.sum() - counts_G[START_CODE - 1]))
    prob_G[START_CODE - 1] = 0
    for n in range(2, order + 1):
        last_R = codes_T[start_R + (n - 1)]
        whole_R = last_R > 0
        start_R = start_R[whole_R]
        key_R = number_R[whole_R] << 32 | (last_R[whole_R] - 1)
        key_G, number_R, longer_counts_G = xp.unique(key_R, return_inverse=True, return_counts=True)
        history_G = key_G >> 32
        successors_G = xp.bincount(history_G, minlength=len(ids))
        weight_G = log10_C[successors_G] - log10_C[counts_G] + np.log10(BACKOFF_SHARE)
        yield Ngrams(ids, prob_G.astype(np.float32), xp.where(successors_G > 0, weight_G, 0).astype(np.float32))
        ids = xp.concatenate([ids[history_G], key_G.astype(np.uint32)[:, None]], axis=1)
        prob_G = log10_C[longer_counts_G] - log10_C[counts_G[history_G]]
        counts_G = longer_counts_G
    yield Ngrams(ids, prob_G.astype(np.float32))


def seen_words(codes_T: Any, words: Words) -> tuple[Any, Words]:
    """The words of a stream, and (V + 1,) uint32: the code that each code has among them, <unk>'s if it is not there.

    <unk>, <s> and </s> stay; the others keep their order.
    """
    xp = array_module(codes_T)
    seen_V = xp.bincount(codes_T, minlength=len(words) + 1)[1:] > 0
    seen_V[: len(SPECIALS)] = True
    code_V = xp.zeros(len(words) + 1, np.uint32)
    code_V[1:] = xp.where(seen_V, xp.cumsum(seen_V), 1)
    kept_V, length_V = to_host(seen_V), np.diff(words.offsets_V)
    offsets_V = np.concatenate([[0], np.cumsum(length_V[kept_V])])
    return code_V, Words(offsets_V, words.data[np.repeat(kept_V, length_V)])


def zipf_words(vocabulary: int = VOCABULARY) -> Words:
    """The words that the codes of `zipf_codes` stand for."""
    offsets_V, data = spellings(vocabulary)
    special = Words.of(list(SPECIALS))
    offsets = np.concatenate([special.offsets_V[:-1], offsets_V + special.offsets_V[-1]])
    return Words(offsets, np.concatenate([special.data, data]))


def zipf_codes(tokens: int, vocabulary: int = VOCABULARY, seed: int = 0, xp: Any = np) -> Any:
    """Return about `tokens` words of a generated language, in sentences of 10 to 30, as codes for `ngrams_of`.

    seed  another gives another text of the same language
    xp    numpy, or cupy to make it on the GPU: the same stream, for all its arithmetic is on integers

    A word is drawn by the Zipf-Mandelbrot law; or it is a successor of the word before it, or of the two before it,
    its rank among all of them drawn by such a law. A hash of these words and the rank says, by the law of words, which
    word that is.
    """
    laws = [(vocabulary, *WORD_LAW), *((SUCCESSORS, *law) for law in SUCCESSOR_LAWS)]
    tables = [xp.asarray(_ranks(*law)) for law in laws]
    sentences = -(-tokens // MEAN_WORDS)
    starts = range(0, sentences, BLOCK_SENTENCES)
    blocks = [_sentences(at, min(BLOCK_SENTENCES, sentences - at), vocabulary, seed, *tables) for at in starts]
    return xp.concatenate(blocks) if blocks else xp.empty(0, np.uint32)


@cache
def _ranks(items: int, exponent: float, shift: float) -> np.ndarray:
    """(QUANTILES,) uint32: the rank r, from 0, at each quantile of the law P(r) ~ 1 / (r + shift) ** exponent."""
    quantile_Q = (np.arange(QUANTILES) + 0.5) / QUANTILES
    power = 1 - exponent
    first, last = shift**power, (items + shift) ** power
    rank_Q = (first - quantile_Q * (first - last)) ** (1 / power) - shift
    return rank_Q.clip(0, items - 1).astype(np.uint32)


def _sentences(
    first: int, count: int, vocabulary: int, seed: int, rank_Q: Any, after_one_Q: Any, after_two_Q: Any
) -> Any:
    """Sentences first .. first + count - 1 of the text, word by word over all of them at once."""
    xp = array_module(rank_Q)
    key = splitmix64(np.array([seed + 1], np.uint64))[0]
    counter_S = xp.arange(first, first + count, dtype=np.uint64) * np.uint64(LONGEST_WORDS + 1)
    lengths = np.uint64(LONGEST_WORDS - SHORTEST_WORDS + 1)
    length_S = (splitmix64(counter_S * GAMMA ^ key) % lengths).astype(np.int64) + SHORTEST_WORDS
    codes = xp.zeros((count, LONGEST_WORDS + 1), np.uint32)
    before_S = two_before_S = xp.full(count, vocabulary, np.uint64)  # the number of <s> here
    for t in range(LONGEST_WORDS):
        random_S = splitmix64((counter_S + np.uint64(t + 1)) * GAMMA ^ key)
        quantile_S = (random_S >> np.uint64(40)).astype(np.int64)
        kind_S = random_S & np.uint64(255)
        one_S = splitmix64(before_S + np.uint64(1))
        two_S = splitmix64(one_S + two_before_S + np.uint64(1)) + after_two_Q[quantile_S]
        follows_S = splitmix64(xp.where(kind_S < FREE + AFTER_ONE, one_S + after_one_Q[quantile_S], two_S))
        rank_S = rank_Q[xp.where(kind_S < FREE, quantile_S, (follows_S >> np.uint64(40)).astype(np.int64))]
        codes[:, t] = rank_S + np.uint32(len(SPECIALS) + 1)
        before_S, two_before_S = rank_S.astype(np.uint64), before_S
    codes[xp.arange(count), length_S] = 0
    return codes[xp.arange(LONGEST_WORDS + 1) <= length_S[:, None]]
