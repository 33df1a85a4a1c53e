"""Beam search over the log-probabilities of CTC, with an n-gram model of words, a lexicon and hot words."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import float32, float64, int32, int64, uint64

from .. import check
from ..common.mix import mix64
from ..common.powers import POWERS, power10
from ..compile import njit
from ..decode.terms import log_of
from ..dispatch import pick, to_host
from ..launch import current_limits, kernel, launch
from ..score.step_states import EMPTY, StateTable, states_of_a_text
from ..score.step_states import _cpu as step_all
from ..trie.edges import EdgeTable, find_edge, make_edges

BLANK, SPACE, STARTS, CLOSES = 1, 2, 4, 8  # kinds of tokens
CLOSED, SCORED, HOT = 1, 2, 4  # flags of a beam, as in search_beams.cu
ROOT, OFF = -1, -2  # nodes of tries: of the empty string, and of strings that a trie lacks
NAN, POSITIVE = 1, 2  # what is wrong with the log-probabilities of an utterance
MAX_BEAMS, MAX_TOKENS = 1 << 10, 1 << 22
LEAST_LOG_PROB = float32(math.log(1e-15))
MOST_LOG_PROB = float32(1e-3)
USUAL_LENGTH = 6  # symbols; longer unknown words cost more
LOG10_E, LN_10 = math.log10(math.e), 1 / math.log10(math.e)
UNIT = 2.0**52
SMALLEST = -40.0  # of a logarithm; exp(SMALLEST) is 0 units
CLOSED_HASH = uint64(0x632BE59BD9B4E019)
BASE = 0x9E3779B97F4A7C15  # of the polynomial that hashes strings
THREADS, AT_ONCE, WAVES = 256, 512, 4
BEAM_BYTES = 80
VARIANTS = (POWERS,)


class Tokens(NamedTuple):
    """The V tokens of an acoustic model, as strings of symbols.

    kind_V     (V,) uint8: BLANK; SPACE: ends a word and adds nothing; STARTS: a word begins with it; CLOSES: a word
               ends with it; or a sum
    first_V1   (V + 1,) int32: token v has the symbols symbols_S[first_V1[v]:first_V1[v + 1]]
    symbols_S  (S,) int32
    hash_V2    (V, 2) uint64: of the symbols, and what a hash before them is multiplied by; see `hashes`
    """

    kind_V: Any
    first_V1: Any
    symbols_S: Any
    hash_V2: Any


class Lexicon(NamedTuple):
    """A trie of words as strings of symbols.

    table   an edge table; the "probability" of a node is 1 if it begins a known word, else 0
    word_G  (G,) int32: the word of the n-gram model that ends at a node; ~word if it counts as unknown
    """

    table: EdgeTable
    word_G: Any


class HotWords(NamedTuple):
    """A trie of hot words.

    table    an edge table; the "probability" of a node is 1 if it begins a hot word, else 0
    score_G  (G,) float64: the score of a word that is unfinished at a node
    whole_G  (G,) uint8: 1 where a hot word ends
    weight   the score of a hot word
    """

    table: EdgeTable
    score_G: Any
    whole_G: Any
    weight: float


class NGrams(NamedTuple):
    """An n-gram model of words, as `step_states` takes it; `end` is its word </s>, or -1 to leave ends unscored."""

    table: EdgeTable
    order: int
    states: StateTable
    end: int


class Rules(NamedTuple):
    """Settings of a search.

    beam_width        K, beams that are kept, at most MAX_BEAMS
    n_best            N, results of an utterance, at most K
    alpha, beta       the score of a word is alpha * ln P + beta
    unknown           added to the log10 probability of unknown words, and the score of unknown beginnings of words
    beam_prune_logp   beams are dropped if they are so far below the best one; at most 0
    token_min_logp    less likely tokens are skipped, unless they are the best of their frame
    history           words whose equality makes beams equal, of which the best is kept; 0: none
    has_model         whether words have scores; else the lexicon and the n-grams are not read
    """

    beam_width: int
    n_best: int
    alpha: float
    beta: float
    unknown: float
    beam_prune_logp: float
    token_min_logp: float
    history: int
    has_model: bool


class Found(NamedTuple):
    """Results of utterances, the best first.

    scores_BN2  (B, N, 2) float64: the logarithm of the probability of the sounds, then the score; 0 without a result
    states_BN   (B, N) int32: the state of the n-gram model after the last word; EMPTY without a result
    found_B     (B,) int32: results of each utterance
    paths_BNT   (B, N, T) int32: the token of each frame on the path that gives a result's times; -1 behind its frames
    errors_B    (B,) int32: NAN, POSITIVE or their sum if log-probabilities are NaN or above 0; else 0
    """

    scores_BN2: Any
    states_BN: Any
    found_B: Any
    paths_BNT: Any
    errors_B: Any


def search_beams(
    log_probs_BTV: Any,
    lengths_B: Any,
    starts_B: Any,
    tokens: Tokens,
    lexicon: Lexicon,
    hot_words: HotWords,
    ngrams: NGrams,
    rules: Rules,
) -> Found:
    """Return the best texts of utterances.

    log_probs_BTV  (B, T, V) float32, natural; they count as at least ln 1e-15
    lengths_B      (B,) int32: frames of each utterance, 0 to T
    starts_B       (B,) int32: states of the n-gram model before each utterance

    A beam is a text, the beginning of a word and the last token. In each frame all beams are extended by the best token
    and by those of at least token_min_logp. A blank or the token before changes the last token alone. Equal beams are
    one: their probabilities are added, and the path is that of the last one by rank. The score of a beam is the sum of
    its logarithm, the scores of its words, a hot word's weight for each, and the score of the unfinished word: that of
    its hot word, else 0 if it begins a known word, else `unknown`, times length / 6 if it is longer. Of equal scores,
    lower tokens are first, then beams of higher rank. At the end, the last word is scored, even if it is empty: then
    it is unknown. Beams are compared by hashes of 64 bits.

    An utterance's results do not depend on the others. Source: pyctcdecode 0.5.0, `_decode_logits`.
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


def _fields(table: EdgeTable) -> tuple:
    bits = table.word_bits, table.key_bits, table.node_bits, table.check_bits, table.filter_bits
    return table.slots_E2, table.words_V2, table.buckets, *bits


def _cpu(log_probs_BTV, lengths_B, starts_B, tokens, lexicon, hot_words, ngrams, rules):
    B, T, _ = log_probs_BTV.shape
    K, N = rules.beam_width, rules.n_best
    found = Found(
        np.zeros((B, N, 2)), np.full((B, N), EMPTY, np.int32), np.zeros(B, np.int32), np.full((B, N, T), -1, np.int32),
        np.zeros(B, np.int32),
    )  # fmt: skip
    _search(
        np.ascontiguousarray(log_probs_BTV), lengths_B, starts_B, *tokens, _fields(lexicon.table), lexicon.word_G,
        _fields(hot_words.table), hot_words.score_G, hot_words.whole_G, hot_words.weight, _fields(ngrams.table),
        ngrams.order, *ngrams.states, ngrams.end, K, rules.alpha, rules.beta, rules.unknown, rules.beam_prune_logp,
        rules.token_min_logp, rules.history, rules.has_model, np.zeros((T, K), np.uint32), *found,
    )  # fmt: skip
    return found


@njit(nogil=True, inline="always")
def _with_word(text, part):
    return mix64(text ^ mix64(part + uint64(1)))


@njit(nogil=True, inline="always")
def _key(text, part, closed, last):
    return mix64(_with_word(text, part + (CLOSED_HASH if closed else uint64(0))) + uint64(last + 2))


@njit(nogil=True, cache=True)
def _follow(table, node, symbol):
    """Return (the node of a string with one more symbol, or OFF; whether the trie marks it)."""
    slots_E2, words_V2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits = table
    if node == OFF:
        return int64(OFF), False
    if node == ROOT:
        return int64(symbol), words_V2.view(np.float32)[symbol, 2] != 0
    child, slot = find_edge(
        slots_E2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, int64(node), int64(symbol)
    )
    if slot < 0:
        return int64(OFF), False
    return child, slots_E2.view(np.float32)[slot, 2] != 0


@njit(nogil=True, cache=True)
def _extended(symbols_S, begin, end, lexicon, hot_words, score_G, has_model, unknown, node, hot, length):
    """Return (node, hot node, length and score) of the beginning of a word with symbols begin to end - 1."""
    known = False
    for s in range(begin, end):
        node, known = _follow(lexicon, node, symbols_S[s])
        hot, is_hot = _follow(hot_words, hot, symbols_S[s])
        if not is_hot:
            hot = int64(OFF)
        length += 1
    score = 0.0
    if hot >= 0:
        score = score_G[hot]
    elif length and has_model and not known:
        score = unknown
        if length > USUAL_LENGTH:
            score = score * length / USUAL_LENGTH
    return node, hot, length, score


@njit(nogil=True, cache=True)
def _total(has_model, logit, raw, hot, part_score):
    if has_model:
        return logit + ((raw + hot) + part_score)
    return (logit + hot) + part_score


@njit(nogil=True, cache=True)
def _merge(count, key_K, logit_K, slot_S, merged_K, top_K, first_K, last_K, logit_M):
    """Merge candidates of equal keys, and return how many differ; set the first and the last of each, and the logarithm
    of its sum.

    slot_S  (S,) int32; S is a power of 2 above `count`
    """
    mask, merged = len(slot_S) - 1, 0
    for at in range(len(slot_S)):
        slot_S[at] = -1
    for i in range(count):
        at = int64(key_K[i] & uint64(mask))
        while slot_S[at] >= 0 and key_K[first_K[slot_S[at]]] != key_K[i]:
            at = (at + 1) & mask
        m = int64(slot_S[at])
        if m < 0:
            m, slot_S[at] = merged, merged
            first_K[m], top_K[m] = i, logit_K[i]
            merged += 1
        top_K[m], last_K[m], merged_K[i] = max(top_K[m], logit_K[i]), i, m
    sum_M = np.zeros(merged, np.int64)
    for i in range(count):
        d = logit_K[i] - top_K[merged_K[i]]
        if d > SMALLEST:
            sum_M[merged_K[i]] += int64(power10(d * LOG10_E) * UNIT)
    for m in range(merged):
        logit_M[m] = top_K[m] + log_of(float64(sum_M[m]), -52)
    return merged


@njit(nogil=True, cache=True)
def _select(count, total_E, least, places_E, room_E):
    """Sort the places of totals of at least `least`, the best first, of equal ones the lower first.

    Returns (how many there are, whether they are in room_E instead of places_E).
    """
    size, width, moved = 0, 1, False
    for e in range(count):
        if total_E[e] >= least:
            places_E[size] = e
            size += 1
    while width < size:  # merge sorted runs
        for low in range(0, size, 2 * width):
            left, middle, end = low, min(low + width, size), min(low + 2 * width, size)
            right = middle
            for to in range(low, end):
                if right == end or (left < middle and total_E[places_E[left]] >= total_E[places_E[right]]):
                    room_E[to] = places_E[left]
                    left += 1
                else:
                    room_E[to] = places_E[right]
                    right += 1
        places_E, room_E, moved = room_E, places_E, not moved
        width *= 2
    return size, moved


@njit(nogil=True, cache=True)
def _search(
    log_probs_BTV, lengths_B, starts_B, kind_V, first_V1, symbols_S, hash_V2, lexicon, word_G, hot_words, score_G,
    whole_G, weight, ngrams, order, nodes_M2, state_G, end, K, alpha, beta, unknown, prune, least, H, has_model,
    steps_TK, scores_BN2, states_BN, found_B, paths_BNT, errors_B,
):  # fmt: skip
    slots_E2, words_V2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits = ngrams
    B, _, V = log_probs_BTV.shape
    S = 4
    while S < 2 * K:
        S *= 2
    # of beams now and next: hashes, logarithms and numbers
    hash_2K2 = np.empty((2, K, 2), np.uint64)
    logit_2K, raw_2K, score_2K, end_2K = np.empty((2, K)), np.empty((2, K)), np.empty((2, K)), np.empty((2, K))
    numbers_2K8 = np.empty((2, K, 8), np.int64)  # state, state after the word, node, hot node, length, last, hot, flags
    STATE, AFTER, NODE, HOT_NODE, LENGTH, LAST, COUNT, FLAGS = 0, 1, 2, 3, 4, 5, 6, 7
    past_2KH = np.zeros((2, K, H), np.uint64)
    kept_K = np.empty(K, np.int64)
    # of candidates of a token, and of a frame
    key_K, cand_K, slot_S = np.empty(K, np.uint64), np.empty(K), np.empty(S, np.int32)
    merged_K, top_K, first_K, last_K = np.empty(K, np.int64), np.empty(K), np.empty(K, np.int64), np.empty(K, np.int64)
    logit_M = np.empty(K)
    E = 9 * K
    total_E, logit_E, last_E, token_E = np.empty(E), np.empty(E), np.empty(E, np.int64), np.empty(E, np.int64)
    places_E, room_E = np.empty(E, np.int64), np.empty(E, np.int64)
    scores_K2, origins_K2 = np.empty((K, 2)), np.empty((K, 2), np.int64)
    tokens_V, row_V = np.empty(V, np.int64), np.empty(V, np.float32)
    asked_K, from_K, word_K = np.empty(K, np.int64), np.empty(K, np.int32), np.empty(K, np.int64)
    prob_K, next_K, ends_K, unused_K = (
        np.empty(K, np.float32),
        np.empty(K, np.int32),
        np.empty(K, np.int64),
        np.empty(K, np.int32),
    )
    end_prob_K = np.zeros(K, np.float32)
    for b in range(B):
        now, then, n, T, problems, has_closed = 0, 1, 1, lengths_B[b], 0, False
        hash_2K2[0, 0, 0] = hash_2K2[0, 0, 1] = 0
        logit_2K[0, 0] = raw_2K[0, 0] = score_2K[0, 0] = end_2K[0, 0] = 0
        for number in range(8):
            numbers_2K8[0, 0, number] = 0
        numbers_2K8[0, 0, STATE], numbers_2K8[0, 0, LAST] = starts_B[b], -1
        numbers_2K8[0, 0, NODE] = numbers_2K8[0, 0, HOT_NODE] = ROOT
        for h in range(H):
            past_2KH[0, 0, h] = 0
        kept_K[0] = 0
        for t in range(T + 1):
            is_end, ends = t == T, has_closed
            num_tokens = 0
            if not is_end:  # the best token, and all that are likely enough
                argmax = 0
                for v in range(V):
                    x = log_probs_BTV[b, t, v]
                    if not x <= MOST_LOG_PROB:
                        problems |= NAN if np.isnan(x) else POSITIVE
                    row_V[v] = (x if x < 0 else float32(0)) if x > LEAST_LOG_PROB else LEAST_LOG_PROB
                    if row_V[v] > row_V[argmax]:
                        argmax = v
                for v in range(V):
                    if v == argmax or float64(row_V[v]) >= least:
                        tokens_V[num_tokens] = v
                        num_tokens += 1
                        ends |= kind_V[v] & (SPACE | STARTS) != 0
            # the scores of words that may end here
            asked = 0
            for i in range(n):
                numbers = numbers_2K8[now, kept_K[i]]
                if is_end or (ends and numbers[LENGTH] and not numbers[FLAGS] & SCORED):
                    asked_K[asked], from_K[asked] = kept_K[i], numbers[STATE]
                    code = int64(word_G[numbers[NODE]]) if has_model and numbers[NODE] >= 0 else int64(-1)
                    word_K[asked] = code if code >= 0 else ~code
                    ends_K[asked] = end
                    numbers[FLAGS] &= ~HOT
                    numbers[FLAGS] |= SCORED | (HOT if numbers[HOT_NODE] >= 0 and whole_G[numbers[HOT_NODE]] else 0)
                    numbers[AFTER], end_2K[now, kept_K[i]] = numbers[STATE], 0
                    asked += 1
            if has_model and asked:
                step_all(
                    slots_E2, words_V2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, order,
                    nodes_M2, state_G, from_K[:asked], word_K[:asked], float32(1), prob_K[:asked], next_K[:asked],
                )  # fmt: skip
                if is_end and end >= 0:
                    step_all(
                        slots_E2, words_V2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, order,
                        nodes_M2, state_G, next_K[:asked], ends_K[:asked], float32(1), end_prob_K[:asked],
                        unused_K[:asked],
                    )  # fmt: skip
                for a in range(asked):
                    numbers, score = numbers_2K8[now, asked_K[a]], float64(prob_K[a])
                    if numbers[NODE] < 0 or word_G[numbers[NODE]] < 0:
                        score += unknown
                    if is_end and end >= 0:
                        score += float64(end_prob_K[a])
                    end_2K[now, asked_K[a]] = alpha * score * LN_10 + beta
                    numbers[AFTER] = next_K[a]
            count, best = 0, -np.inf
            if is_end:
                for i in range(n):
                    text, part = hash_2K2[now, kept_K[i], 0], hash_2K2[now, kept_K[i], 1]
                    if numbers_2K8[now, kept_K[i], LENGTH]:
                        text = _with_word(text, part)
                    key_K[i], cand_K[i] = _key(text, uint64(0), False, -1), logit_2K[now, kept_K[i]]
                count = _merge(n, key_K, cand_K, slot_S, merged_K, top_K, first_K, last_K, logit_M)
                for m in range(count):
                    k = kept_K[last_K[m]]
                    numbers = numbers_2K8[now, k]
                    raw, hot = raw_2K[now, k], numbers[COUNT] + (1 if numbers[FLAGS] & HOT else 0)
                    raw += end_2K[now, k]
                    logit_E[m], last_E[m] = logit_M[m], k
                    total_E[m] = _total(has_model, logit_M[m], raw, weight * hot, 0.0)
                    best = max(best, total_E[m])
            for place in range(num_tokens):
                token = tokens_V[place]
                kind, logit = kind_V[token], float64(row_V[token])
                for i in range(n):
                    numbers = numbers_2K8[now, kept_K[i]]
                    text, part = hash_2K2[now, kept_K[i], 0], hash_2K2[now, kept_K[i], 1]
                    closed = numbers[FLAGS] & CLOSED != 0
                    if not kind & BLANK and token != numbers[LAST]:
                        if kind & (SPACE | STARTS) or closed:
                            if numbers[LENGTH]:
                                text = _with_word(text, part)
                            part = hash_V2[token, 0]
                        else:
                            part = part * hash_V2[token, 1] + hash_V2[token, 0]
                        closed = kind & CLOSES != 0
                    key_K[i], cand_K[i] = _key(text, part, closed, token), logit_2K[now, kept_K[i]] + logit
                merged = _merge(n, key_K, cand_K, slot_S, merged_K, top_K, first_K, last_K, logit_M)
                if count + merged > E:
                    size, moved = _select(count, total_E, best + prune, places_E, room_E)
                    chosen, count = room_E if moved else places_E, min(size, K)
                    for r in range(count):
                        e = chosen[r]
                        scores_K2[r, 0], scores_K2[r, 1] = total_E[e], logit_E[e]
                        origins_K2[r, 0], origins_K2[r, 1] = last_E[e], token_E[e]
                    for r in range(count):
                        total_E[r], logit_E[r] = scores_K2[r, 0], scores_K2[r, 1]
                        last_E[r], token_E[r] = origins_K2[r, 0], origins_K2[r, 1]
                for m in range(merged):
                    k = kept_K[last_K[m]]
                    numbers = numbers_2K8[now, k]
                    raw, hot, part_score = raw_2K[now, k], numbers[COUNT], score_2K[now, k]
                    if not kind & BLANK and token != numbers[LAST]:
                        node, hot_node, length = numbers[NODE], numbers[HOT_NODE], numbers[LENGTH]
                        if kind & (SPACE | STARTS) or numbers[FLAGS] & CLOSED:
                            if length:
                                raw += end_2K[now, k]
                                hot += 1 if numbers[FLAGS] & HOT else 0
                            node, hot_node, length = int64(ROOT), int64(ROOT), int64(0)
                        _, _, _, part_score = _extended(
                            symbols_S, first_V1[token], first_V1[token + 1], lexicon, hot_words, score_G, has_model,
                            unknown, node, hot_node, length,
                        )  # fmt: skip
                    total = _total(has_model, logit_M[m], raw, weight * hot, part_score)
                    best = max(best, total)
                    total_E[count], logit_E[count], last_E[count], token_E[count] = total, logit_M[m], k, token
                    count += 1
            size, moved = _select(count, total_E, best + prune, places_E, room_E)
            chosen, size = room_E if moved else places_E, min(size, K)
            if is_end:
                found_B[b], errors_B[b] = min(size, states_BN.shape[1]), problems
                for r in range(found_B[b]):
                    e = chosen[r]
                    scores_BN2[b, r, 0], scores_BN2[b, r, 1] = logit_E[e], total_E[e]
                    k = last_E[e]
                    states_BN[b, r] = numbers_2K8[now, k, AFTER]
                    for frame in range(T - 1, -1, -1):
                        step = int64(steps_TK[frame, k])
                        paths_BNT[b, r, frame], k = step // MAX_BEAMS, step % MAX_BEAMS
                break
            has_closed = False
            for r in range(size):
                e = chosen[r]
                k, token = last_E[e], token_E[e]
                kind, is_new = kind_V[token], 0
                hash_2K2[then, r, 0], hash_2K2[then, r, 1] = hash_2K2[now, k, 0], hash_2K2[now, k, 1]
                for number in range(8):
                    numbers_2K8[then, r, number] = numbers_2K8[now, k, number]
                logit_2K[then, r], raw_2K[then, r] = logit_E[e], raw_2K[now, k]
                score_2K[then, r], end_2K[then, r] = score_2K[now, k], end_2K[now, k]
                numbers, word = numbers_2K8[then, r], hash_2K2[now, k, 1]
                if not kind & BLANK and token != numbers[LAST]:
                    if kind & (SPACE | STARTS) or numbers[FLAGS] & CLOSED:
                        is_new = 1 if numbers[LENGTH] else 0
                        if is_new:
                            hash_2K2[then, r, 0] = _with_word(hash_2K2[then, r, 0], word)
                            raw_2K[then, r] += end_2K[then, r]
                            numbers[STATE] = numbers[AFTER]
                            numbers[COUNT] += 1 if numbers[FLAGS] & HOT else 0
                        hash_2K2[then, r, 1] = 0
                        numbers[NODE], numbers[HOT_NODE], numbers[LENGTH] = ROOT, ROOT, 0
                    hash_2K2[then, r, 1] = hash_2K2[then, r, 1] * hash_V2[token, 1] + hash_V2[token, 0]
                    numbers[NODE], numbers[HOT_NODE], numbers[LENGTH], score_2K[then, r] = _extended(
                        symbols_S, first_V1[token], first_V1[token + 1], lexicon, hot_words, score_G, has_model,
                        unknown, numbers[NODE], numbers[HOT_NODE], numbers[LENGTH],
                    )  # fmt: skip
                    numbers[FLAGS] = CLOSED if kind & CLOSES else 0
                numbers[LAST] = token
                has_closed |= numbers[FLAGS] & CLOSED != 0
                for h in range(H):
                    past_2KH[then, r, h] = past_2KH[now, k, h - is_new] if h >= is_new else mix64(word + uint64(1))
                steps_TK[t, r] = uint64(token * MAX_BEAMS + k)
            now, then, n = then, now, size
            for r in range(n):
                kept_K[r] = r
            if H:  # of beams with equal last words, keep the first
                for r in range(n):
                    words = uint64(0)
                    for h in range(H):
                        words = mix64(words ^ past_2KH[now, r, h])
                    numbers = numbers_2K8[now, r]
                    key_K[r] = _key(words, hash_2K2[now, r, 1], numbers[FLAGS] & CLOSED != 0, numbers[LAST])
                    cand_K[r] = 0
                n = _merge(n, key_K, cand_K, slot_S, merged_K, top_K, first_K, last_K, logit_M)
                for r in range(n):
                    kept_K[r] = first_K[r]


def _cuda(log_probs_BTV, lengths_B, starts_B, tokens, lexicon, hot_words, ngrams, rules):
    import cupy

    B, T, V = log_probs_BTV.shape
    K, N, H = rules.beam_width, rules.n_best, rules.history
    found = Found(
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
    args = (
        cupy.ascontiguousarray(log_probs_BTV), B, T, V, lengths_B, starts_B, *aligned, *_pointers(lexicon.table),
        lexicon.word_G, *_pointers(hot_words.table), hot_words.score_G, hot_words.whole_G, *_pointers(ngrams.table),
        len(ngrams.table.words_V2), check.aligned(ngrams.states.nodes_M2), len(ngrams.states.nodes_M2),
        ngrams.states.state_G, ngrams.end, int32(rules.has_model),
        *map(float64, (hot_words.weight, rules.alpha, rules.beta, rules.unknown, LN_10, rules.beam_prune_logp)),
        float64(rules.token_min_logp), K, H, N, C, E, P, *room, *found,
    )  # fmt: skip
    launch(kernel("ctc/search_beams", "search_beams", **POWERS), blocks, THREADS, args, shared_bytes)
    return found


def _pointers(table: EdgeTable) -> tuple:
    slots_E2, words_V2, *numbers = _fields(table)
    return check.aligned(slots_E2), check.aligned(words_V2), *numbers


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
    rules = Rules(
        K,
        1 + (K - 1) // 2,
        0.5,
        1.5,
        -10.0,
        (-10.0, -30.0)[size % 2],
        (-5.0, -40.0)[size % 2 == 0],
        size % 4,
        size % 7 > 0,
    )
    lengths_B = rng.integers(T // 2, T + 1, B).astype(np.int32)
    return {
        "log_probs_BTV": log_probs, "lengths_B": lengths_B, "starts_B": rng.integers(-1, words, B).astype(np.int32),
        "tokens": Tokens(kinds, first_V1, symbols_S, hashes(first_V1, symbols_S)), "lexicon": Lexicon(edges, codes_G),
        "hot_words": HotWords(hot, rng.random(G), (rng.random(G) < 0.3).astype(np.uint8), 2.5),
        "ngrams": NGrams(table, made[0]["order"], StateTable(*map(to_host, states)), 1 if size % 3 else -1),
        "rules": rules,
    }  # fmt: skip
