"""Search the outputs of CTC on a CPU, one utterance after another: the twin of search_beams.cu."""

from __future__ import annotations

import math

import numpy as np
from numpy import float32, float64, int64, uint64

from ..common.integer_hash import mix64
from ..common.powers import LN_10, LOG10_E, power10
from ..compile import njit
from ..decode.exponential_sums import log_of
from ..score.step_states import _cpu as step_all
from ..trie.edges import find_edge
from .search_arrays import BLANK, CLOSES, MAX_BEAMS, NAN, POSITIVE, SPACE, STARTS

CLOSED, SCORED, HOT = 1, 2, 4  # flags of a beam, as in ctc_beams.cuh
ROOT, OFF = -1, -2  # nodes of tries: of the empty string, and of strings that a trie lacks
MIN_LOG_PROB = float32(math.log(1e-15))
MAX_LOG_PROB = float32(1e-3)
USUAL_LENGTH = 6  # symbols; longer unknown words cost more
UNIT = 2.0**52
SMALLEST = -40.0  # least logarithm; exp(SMALLEST) is 0 units
CLOSED_HASH = uint64(0x632BE59BD9B4E019)


@njit(nogil=True, inline="always")
def _with_word(text, part):
    return mix64(text ^ mix64(part + uint64(1)))


@njit(nogil=True, inline="always")
def _key(text, part, closed, last):
    return mix64(_with_word(text, part + (CLOSED_HASH if closed else uint64(0))) + uint64(last + 2))


@njit(nogil=True, cache=True)
def _follow(table, node, symbol):
    """Return (the node of a string with one more symbol, or OFF; whether the trie marks it)."""
    if node == OFF:
        return int64(OFF), False
    if node == ROOT:
        return int64(symbol), table.words_V2.view(np.float32)[symbol, 2] != 0
    child, slot = find_edge(table, int64(node), int64(symbol))
    if slot < 0:
        return int64(OFF), False
    return child, table.slots_E2.view(np.float32)[slot, 2] != 0


@njit(nogil=True, cache=True)
def _extended(symbols_S, begin, end, lexicon, hot_words, score_G, unknown, word):
    """Return (node, hot node, length and score) of the beginning of a word with symbols begin to end - 1.

    unknown  0 without a model
    word     node, hot node and length before
    """
    node, hot, length = word
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
    elif length and not known:
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
def _merge(count, key_K, logit_K, room, first_K, last_K, logit_M):
    """Merge candidates of equal keys; return the number of distinct keys. Sets the first and the last candidate of each
    key, and the logarithm of its sum.

    room  slot_S (S,) int32, S a power of 2 above `count`, merged_K int64 and top_K float64
    """
    slot_S, merged_K, top_K = room
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
def search_on_cpu(utterances, tokens, lexicon, hot_words, ngrams, rules, found):
    """Fill `found` with the best texts of utterances; see `search_beams`."""
    (log_probs_BTV, lengths_B, starts_B), (kind_V, first_V1, symbols_S, hash_V2) = utterances, tokens
    (words_trie, word_G), (hot_trie, score_G, whole_G, weight) = lexicon, hot_words
    table, order, states, end = ngrams
    K, _, alpha, beta, unknown, prune, least, H, has_model = rules
    unknown_part = unknown if has_model else 0.0
    scores_BN2, states_BN, found_B, paths_BNT, errors_B = found
    B, num_frames, V = log_probs_BTV.shape
    steps_TK = np.zeros((num_frames, K), np.uint32)
    S = 4
    while S < 2 * K:
        S *= 2
    # hashes, logarithms and numbers of the beams of this frame and of the next
    hash_2K2 = np.empty((2, K, 2), np.uint64)
    logit_2K, raw_2K, score_2K, end_2K = np.empty((2, K)), np.empty((2, K)), np.empty((2, K)), np.empty((2, K))
    numbers_2K8 = np.empty((2, K, 8), np.int64)  # state, state after the word, node, hot node, length, last, hot, flags
    STATE, AFTER, NODE, HOT_NODE, LENGTH, LAST, COUNT, FLAGS = 0, 1, 2, 3, 4, 5, 6, 7
    past_2KH = np.zeros((2, K, H), np.uint64)
    kept_K = np.empty(K, np.int64)
    # of candidates of a token, and of a frame
    key_K, cand_K = np.empty(K, np.uint64), np.empty(K)
    first_K, last_K, logit_M = np.empty(K, np.int64), np.empty(K, np.int64), np.empty(K)
    room = np.empty(S, np.int32), np.empty(K, np.int64), np.empty(K)
    E = 9 * K
    total_E, logit_E, last_E, token_E = np.empty(E), np.empty(E), np.empty(E, np.int64), np.empty(E, np.int64)
    places_E, room_E = np.empty(E, np.int64), np.empty(E, np.int64)
    scores_K2, origins_K2 = np.empty((K, 2)), np.empty((K, 2), np.int64)
    tokens_V, row_V = np.empty(V, np.int64), np.empty(V, np.float32)
    asked_K, from_K, word_K = np.empty(K, np.int64), np.empty(K, np.int32), np.empty(K, np.int64)
    prob_K, next_K = np.empty(K, np.float32), np.empty(K, np.int32)
    end_prob_K, unused_K, ends_K = np.zeros(K, np.float32), np.empty(K, np.int32), np.full(K, end)
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
                    if not x <= MAX_LOG_PROB:
                        problems |= NAN if np.isnan(x) else POSITIVE
                    row_V[v] = (x if x < 0 else float32(0)) if x > MIN_LOG_PROB else MIN_LOG_PROB
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
                    numbers[FLAGS] &= ~HOT
                    numbers[FLAGS] |= SCORED | (HOT if numbers[HOT_NODE] >= 0 and whole_G[numbers[HOT_NODE]] else 0)
                    numbers[AFTER], end_2K[now, kept_K[i]] = numbers[STATE], 0
                    asked += 1
            if has_model and asked:
                of_words = from_K[:asked], word_K[:asked], float32(1), prob_K[:asked], next_K[:asked]
                step_all(table, order, states, *of_words)
                if is_end and end >= 0:
                    of_ends = next_K[:asked], ends_K[:asked], float32(1), end_prob_K[:asked], unused_K[:asked]
                    step_all(table, order, states, *of_ends)
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
                count = _merge(n, key_K, cand_K, room, first_K, last_K, logit_M)
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
                merged = _merge(n, key_K, cand_K, room, first_K, last_K, logit_M)
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
                            symbols_S, first_V1[token], first_V1[token + 1], words_trie, hot_trie, score_G,
                            unknown_part, (node, hot_node, length),
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
                        symbols_S, first_V1[token], first_V1[token + 1], words_trie, hot_trie, score_G,
                        unknown_part, (numbers[NODE], numbers[HOT_NODE], numbers[LENGTH]),
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
                n = _merge(n, key_K, cand_K, room, first_K, last_K, logit_M)
                for r in range(n):
                    kept_K[r] = first_K[r]
