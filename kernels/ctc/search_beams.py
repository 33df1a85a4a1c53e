"""Beam search over the log-probabilities of CTC, with an n-gram model of words, a lexicon and hot words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import float64, int32

from .. import check
from ..common.integer_hash import mix64
from ..common.powers import LN_10, POWERS
from ..compile_cpu import read_only
from ..dispatch import pick, to_host
from ..launch import current_limits, kernel, launch
from ..score.step_states import EMPTY, StateTable, states_of_a_text
from ..trie.edges import EdgeTable, make_edges
from .cpu_search import search_on_cpu
from .search_arrays import (
    BLANK,
    CLOSES,
    MAX_BEAMS,
    MAX_TOKENS,
    SPACE,
    STARTS,
    CTCOptions,
    HotWords,
    LexiconTrie,
    NGrams,
    Tokens,
    UtteranceResults,
    Utterances,
)

BASE = 0x9E3779B97F4A7C15  # base of the polynomial that hashes strings
THREADS, AT_ONCE, WAVES = 256, 512, 4
BEAM_BYTES = 80
VARIANTS = (POWERS,)


def search_beams(
    log_probs_BTV: Any,
    lengths_B: Any,
    starts_B: Any,
    tokens: Tokens,
    lexicon: LexiconTrie,
    hot_words: HotWords,
    ngrams: NGrams,
    rules: CTCOptions,
) -> UtteranceResults:
    """Return the best texts of utterances.

    log_probs_BTV  (B, T, V) float32, natural logarithms; lower values count as ln 1e-15
    lengths_B      (B,) int32: frames of each utterance, 0 to T
    starts_B       (B,) int32: states of the n-gram model before each utterance

    A beam is a text, the prefix of a word and the last token. In each frame all beams are extended by the best token
    and by tokens of at least token_min_logp. A blank or a repeated token changes only the last token. Equal beams are
    joined: their probabilities are added, and the path is that of the last one by rank. The score of a beam is the sum
    of its logarithm, the scores of its words, the weight of each hot word, and the score of the unfinished word: that
    of its hot word, else 0 if it begins a known word, else `unknown`, times length / 6 if it is longer. Of equal
    scores, lower tokens come first, then beams of higher rank. At the end, the last word is scored. An empty last word
    counts as unknown. Beams are compared by hashes of 64 bits.

    The results of an utterance do not depend on other utterances. Source: pyctcdecode 0.5.0, `_decode_logits`.
    """
    check.dtype(log_probs_BTV, np.float32)
    check.dtype(lengths_B, np.int32)
    check.dtype(starts_B, np.int32)
    check.dtype(tokens.hash_V2, np.uint64)
    B, _, V = log_probs_BTV.shape
    if not 1 <= rules.n_best <= rules.beam_width <= MAX_BEAMS or not 1 <= V <= MAX_TOKENS:
        raise ValueError(
            f"got {V:,} tokens, beams of {rules.beam_width:,} and {rules.n_best:,} results; there may be "
            f"{MAX_TOKENS:,} tokens, {MAX_BEAMS:,} beams, and 1 to as many results as beams"
        )
    if len(lengths_B) != B or len(starts_B) != B or len(tokens.kind_V) != V:
        raise ValueError(
            f"got log-probabilities of shape {log_probs_BTV.shape}, {len(lengths_B)} lengths, {len(starts_B)} states "
            f"and {len(tokens.kind_V)} tokens; give a length and a state for each utterance, and all tokens"
        )
    tables = {"": ngrams.table, "lexicon.": lexicon.table, "hot_words.": hot_words.table}
    names = {n + f: getattr(table, f) for n, table in tables.items() for f in ("slots_E2", "words_V2")}
    run = pick(
        cpu=_cpu, cuda=_cuda, log_probs_BTV=log_probs_BTV, lengths_B=lengths_B, starts_B=starts_B, **tokens._asdict(),
        word_G=lexicon.word_G, score_G=hot_words.score_G, whole_G=hot_words.whole_G, **ngrams.states._asdict(), **names,
    )  # fmt: skip
    return run(log_probs_BTV, lengths_B, starts_B, tokens, lexicon, hot_words, ngrams, rules)


def hashes(first_V1: np.ndarray, symbols_S: np.ndarray) -> np.ndarray:
    """Return hash_V2 of `Tokens`: polynomials in BASE, modulo 2^64, whose coefficients are the mixed symbols."""
    made = []
    for begin, end in zip(first_V1[:-1].tolist(), first_V1[1:].tolist(), strict=True):
        total, power = 0, 1
        for symbol in symbols_S[begin:end].tolist():
            total = (total * BASE + int(mix64(symbol + 1))) % 2**64
            power = power * BASE % 2**64
        made.append((total, power))
    return np.array(made, np.uint64).reshape(-1, 2)


def _cpu(log_probs_BTV, lengths_B, starts_B, tokens, lexicon, hot_words, ngrams, rules):
    (B, T, _), N = log_probs_BTV.shape, rules.n_best
    found = UtteranceResults(
        np.zeros((B, N, 2)), np.full((B, N), EMPTY, np.int32), np.zeros(B, np.int32), np.full((B, N, T), -1, np.int32),
        np.zeros(B, np.int32),
    )  # fmt: skip
    utterances = Utterances(*map(_plain, (log_probs_BTV, lengths_B, starts_B)))
    score_G, whole_G = map(_plain, (hot_words.score_G, hot_words.whole_G))
    hot_words = HotWords(hot_words.table.map_arrays(_plain), score_G, whole_G, hot_words.weight)
    lexicon = LexiconTrie(lexicon.table.map_arrays(_plain), _plain(lexicon.word_G))
    states = StateTable(*map(_plain, ngrams.states))
    ngrams = ngrams._replace(table=ngrams.table.map_arrays(_plain), states=states)
    search_on_cpu(utterances, Tokens(*map(_plain, tokens)), lexicon, hot_words, ngrams, rules, found)
    return found


def _plain(array):
    """Return an array in the one form for which the search is compiled, which takes seconds: contiguous, read-only."""
    return read_only(np.ascontiguousarray(array))


def _cuda(log_probs_BTV, lengths_B, starts_B, tokens, lexicon, hot_words, ngrams, rules):
    import cupy

    B, T, V = log_probs_BTV.shape
    K, N, H = rules.beam_width, rules.n_best, rules.history
    found = UtteranceResults(
        cupy.empty((B, N, 2)), cupy.empty((B, N), np.int32), cupy.empty(B, np.int32), cupy.empty((B, N, T), np.int32),
        cupy.empty(B, np.int32),
    )  # fmt: skip
    if not B:
        return found
    C = max(AT_ONCE, 1 << (K - 1).bit_length())
    E = C + K
    P = 1 << (E - 1).bit_length()
    shared_bytes = 8 * (6 * C + 2 * E + 2 * P) + 4 * (4 * C + 2 * E) + 2 * (C + K)
    blocks = min(B, WAVES * current_limits()[0])
    room = cupy.empty(blocks * 2 * K * BEAM_BYTES, np.uint8), cupy.empty(blocks * 2 * K * H, np.uint64)
    room = *room, cupy.empty(blocks * V, np.int32), cupy.empty(blocks * T * K, np.uint32)
    aligned = tokens._replace(hash_V2=check.aligned(tokens.hash_V2))
    tables = lexicon.table, hot_words.table, ngrams.table
    of_lexicon, of_hot_words, of_ngrams = (table.map_arrays(check.aligned) for table in tables)
    args = (
        cupy.ascontiguousarray(log_probs_BTV), B, T, V, lengths_B, starts_B, *aligned, *of_lexicon, lexicon.word_G,
        *of_hot_words, hot_words.score_G, hot_words.whole_G, *of_ngrams,
        len(ngrams.table.words_V2), check.aligned(ngrams.states.nodes_M2), len(ngrams.states.nodes_M2),
        ngrams.states.state_G, ngrams.end, int32(rules.has_model),
        *map(float64, (hot_words.weight, rules.alpha, rules.beta, rules.unknown, LN_10, rules.beam_prune_logp)),
        float64(rules.token_min_logp), K, H, N, C, E, P, *room, *found,
    )  # fmt: skip
    launch(kernel("ctc/search_beams", "search_beams", **POWERS), blocks, THREADS, args, shared_bytes)
    return found


def edges_of_trie(symbol_G: np.ndarray, first_child_G1: np.ndarray, marked_G: np.ndarray) -> EdgeTable:
    """Return the edge table of a trie of strings in host memory, whose first nodes are all single symbols.

    symbol_G        (G,) uint32: the last symbol of each node
    first_child_G1  (G + 1,) uint32
    marked_G        (G,) bool
    """
    return make_edges(symbol_G, first_child_G1, marked_G.astype(np.float32), np.zeros(len(symbol_G), np.float32))


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return utterances over eight symbols, a blank and a space, or pieces of words; with and without a model."""
    V, K = 14, (1, 5, 100, 40, 300, 17, 3)[size % 7]
    B = 1 + size % 3 if size < 100_000 else 40
    T = min(size, 20 + size // (V * B))
    _, states = made = states_of_a_text(rng, max(size % 997, 60))
    index, values = made[0]["index"], made[0]["values"]
    words = int(index.first_child_M[0])
    table = make_edges(index.word_G, index.first_child_M, values.prob_G, values.backoff_M).map_arrays(to_host)
    symbols = 8
    # a trie of all strings of two symbols, and some of three
    pairs, third = np.arange(symbols * symbols), np.flatnonzero(rng.random(symbols**3) < 0.2)
    symbol_G = np.concatenate([np.arange(symbols), pairs % symbols, third % symbols]).astype(np.uint32)
    parents = np.concatenate([pairs // symbols, symbols + third // symbols])
    G = len(symbol_G)
    first_child_G1 = (symbols + np.searchsorted(parents, np.arange(G + 1))).astype(np.uint32)
    edges = edges_of_trie(symbol_G, first_child_G1, rng.random(G) < 0.8).map_arrays(to_host)
    hot = edges_of_trie(symbol_G, first_child_G1, np.arange(G) % 3 == 0).map_arrays(to_host)
    kinds = np.zeros(V, np.uint8)
    sizes = np.ones(V, np.int64)
    kinds[0], sizes[0] = BLANK, 0
    if size % 2:
        kinds[1], sizes[1] = SPACE, 0
    else:
        kinds[[1, 3, 5, 7]], kinds[9] = STARTS, STARTS | CLOSES
    sizes[10:] = 2
    first_V1 = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    symbols_S = rng.integers(0, symbols, first_V1[-1]).astype(np.int32)
    logits = rng.normal(0, (1, 3)[size % 2], (B, T, V)).astype(np.float32)
    logits[rng.random((B, T)) < 0.3, 0] += 5
    log_probs = (logits - np.log(np.exp(logits).sum(2, keepdims=True))).astype(np.float32)
    codes_G = rng.integers(-words, words, G).astype(np.int32)
    rules = CTCOptions(
        beam_width=K,
        n_best=1 + (K - 1) // 2,
        alpha=0.5,
        beta=1.5,
        unknown=-10.0,
        beam_prune_logp=(-10.0, -30.0)[size % 2],
        token_min_logp=(-5.0, -40.0)[size % 2 == 0],
        history=size % 4,
        has_model=size % 7 > 0,
    )
    lengths_B = rng.integers(T // 2, T + 1, B).astype(np.int32)
    return {
        "log_probs_BTV": log_probs, "lengths_B": lengths_B, "starts_B": rng.integers(-1, words, B).astype(np.int32),
        "tokens": Tokens(kinds, first_V1, symbols_S, hashes(first_V1, symbols_S)),
        "lexicon": LexiconTrie(edges, codes_G),
        "hot_words": HotWords(hot, rng.random(G), (rng.random(G) < 0.3).astype(np.uint8), 2.5),
        "ngrams": NGrams(table, made[0]["order"], StateTable(*map(to_host, states)), 1 if size % 3 else -1),
        "rules": rules,
    }  # fmt: skip
