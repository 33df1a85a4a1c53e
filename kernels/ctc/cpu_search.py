"""Search the outputs of CTC on a CPU, one utterance after another: the twin of search_beams.cu.

LLVM inlines the steps of a frame (`forceinline`). As calls, they count references of arrays: the search took 17% longer
with 100 beams and 65% longer with one beam. With Numba's own `inline`, it took 20% longer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import float32, float64, int64, uint64

from ..common.integer_hash import mix64
from ..common.powers import LN_10, LOG10_E, power10
from ..compile_cpu import njit
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
STATE, AFTER, NODE, HOT_NODE, LENGTH, LAST, COUNT, FLAGS = 0, 1, 2, 3, 4, 5, 6, 7  # columns of `Beams.numbers_K8`
CANDIDATES = 9  # of each beam: with less room, candidates are dropped more often


class Beams(NamedTuple):
    """The beams of a frame.

    hash_K2     uint64: hashes of the whole words, and of the prefix of a word
    logit_K     logarithm of the probability
    raw_K       score of the whole words
    score_K     score of the prefix
    end_K       score of the prefix as a word, once it is SCORED
    numbers_K8  int64: state, state after the prefix, node, hot node and length of the prefix, last token, number of hot
                words, flags
    past_KH     uint64: hashes of the last H words
    """

    hash_K2: Any
    logit_K: Any
    raw_K: Any
    score_K: Any
    end_K: Any
    numbers_K8: Any
    past_KH: Any


class Merging(NamedTuple):
    """Candidates that `_merge` merges, and room to do so.

    key_K, logit_K   uint64 key and logarithm of each candidate
    first_K, last_K  become the first and the last candidate of each key
    sum_K            becomes the logarithm of the sum of each key
    room             slot_S (S,) int32, S a power of 2 above K, merged_K int64 and top_K float64
    """

    key_K: Any
    logit_K: Any
    first_K: Any
    last_K: Any
    sum_K: Any
    room: Any


class Candidates(NamedTuple):
    """Candidates for the beams of the next frame, and room to sort them.

    total_E, logit_E  score and logarithm
    origin_E2         int64: beam of this frame, and token
    """

    total_E: Any
    logit_E: Any
    origin_E2: Any
    places_E: Any
    room_E: Any


class Asked(NamedTuple):
    """Words that the n-gram model scores: their beams, states and ids, log10 probabilities and states after them."""

    beam_K: Any
    from_K: Any
    word_K: Any
    prob_K: Any
    next_K: Any
    end_prob_K: Any
    unused_K: Any
    ends_K: Any


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
def _merge(count, key_K, logit_K, first_K, last_K, sum_K, room):
    """Merge candidates of equal keys; return the number of distinct keys. See `Merging`."""
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
        sum_K[m] = top_K[m] + log_of(float64(sum_M[m]), -52)
    return merged


@njit(nogil=True, forceinline=True)
def _select(count, candidates, least, most):
    """Return the places of candidates with scores of at least `least`, the best first, of equal ones the lower first;
    at most `most` places.
    """
    total_E, _, _, places_E, room_E = candidates
    size, width = 0, 1
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
        places_E, room_E = room_E, places_E
        width *= 2
    return places_E[: min(size, most)]


@njit(nogil=True, cache=True)
def _keep_best(count, candidates, least, K):
    """Keep the best candidates, at most K, in the first places; return their number."""
    total_E, logit_E, origin_E2, _, _ = candidates
    chosen = _select(count, candidates, least, K)
    floats_R2, origin_R2 = np.empty((len(chosen), 2)), np.empty((len(chosen), 2), np.int64)
    for r in range(len(chosen)):
        floats_R2[r, 0], floats_R2[r, 1] = total_E[chosen[r]], logit_E[chosen[r]]
        origin_R2[r, 0], origin_R2[r, 1] = origin_E2[chosen[r], 0], origin_E2[chosen[r], 1]
    for r in range(len(chosen)):
        total_E[r], logit_E[r] = floats_R2[r, 0], floats_R2[r, 1]
        origin_E2[r, 0], origin_E2[r, 1] = origin_R2[r, 0], origin_R2[r, 1]
    return len(chosen)


@njit(nogil=True, forceinline=True)
def _likely_tokens(log_probs_V, kind_V, least, row_V, tokens_V):
    """Set row_V to the log-probabilities of a frame within limits, and tokens_V to its best token and all of at least
    `least`.

    Returns (number of these tokens, whether one of them begins or ends a word, what is wrong with the frame).
    """
    argmax, problems, num_tokens, ends = 0, 0, 0, False
    for v in range(len(row_V)):
        x = log_probs_V[v]
        if not x <= MAX_LOG_PROB:
            problems |= NAN if np.isnan(x) else POSITIVE
        row_V[v] = (x if x < 0 else float32(0)) if x > MIN_LOG_PROB else MIN_LOG_PROB
        if row_V[v] > row_V[argmax]:
            argmax = v
    for v in range(len(row_V)):
        if v == argmax or float64(row_V[v]) >= least:
            tokens_V[num_tokens] = v
            num_tokens += 1
            ends |= kind_V[v] & (SPACE | STARTS) != 0
    return num_tokens, ends, problems


@njit(nogil=True, forceinline=True)
def _score_ends(beams, kept, is_last, ngrams, nodes, rules, asked):
    """Score the prefixes of the beams `kept` as words: after the last frame of all beams, else those not yet scored.

    nodes  word_G of the lexicon and whole_G of the hot words
    """
    (word_G, whole_G), (table, order, states, end) = nodes, ngrams
    has_model = rules.has_model
    beam_K, from_K, word_K, prob_K, next_K, end_prob_K, unused_K, ends_K = asked
    count = 0
    for k in kept:
        numbers = beams.numbers_K8[k]
        if is_last or (numbers[LENGTH] and not numbers[FLAGS] & SCORED):
            beam_K[count], from_K[count] = k, numbers[STATE]
            code = int64(word_G[numbers[NODE]]) if has_model and numbers[NODE] >= 0 else int64(-1)
            word_K[count] = code if code >= 0 else ~code
            numbers[FLAGS] &= ~HOT
            numbers[FLAGS] |= SCORED | (HOT if numbers[HOT_NODE] >= 0 and whole_G[numbers[HOT_NODE]] else 0)
            numbers[AFTER], beams.end_K[k] = numbers[STATE], 0
            count += 1
    if not has_model or not count:
        return
    of_words = from_K[:count], word_K[:count], float32(1), prob_K[:count], next_K[:count]
    step_all(table, order, states, *of_words)
    has_end = is_last and end >= 0
    if has_end:
        of_ends = next_K[:count], ends_K[:count], float32(1), end_prob_K[:count], unused_K[:count]
        step_all(table, order, states, *of_ends)
    for a in range(count):
        numbers, score = beams.numbers_K8[beam_K[a]], float64(prob_K[a])
        if numbers[NODE] < 0 or word_G[numbers[NODE]] < 0:
            score += rules.unknown
        if has_end:
            score += float64(end_prob_K[a])
        beams.end_K[beam_K[a]] = rules.alpha * score * LN_10 + rules.beta
        numbers[AFTER] = next_K[a]


@njit(nogil=True, cache=True)
def _end_texts(beams, kept, weight, has_model, merging, candidates):
    """Make a candidate of each text, with its last word; return (number of candidates, the best score)."""
    key_K, logit_K, first_K, last_K, sum_K, room = merging
    for i in range(len(kept)):
        text, part = beams.hash_K2[kept[i], 0], beams.hash_K2[kept[i], 1]
        if beams.numbers_K8[kept[i], LENGTH]:
            text = _with_word(text, part)
        key_K[i], logit_K[i] = _key(text, uint64(0), False, -1), beams.logit_K[kept[i]]
    count, best = _merge(len(kept), key_K, logit_K, first_K, last_K, sum_K, room), -np.inf
    for m in range(count):
        k, logit = kept[last_K[m]], sum_K[m]
        numbers = beams.numbers_K8[k]
        raw, hot = beams.raw_K[k], numbers[COUNT] + (1 if numbers[FLAGS] & HOT else 0)
        raw += beams.end_K[k]
        total = _total(has_model, logit, raw, weight * hot, 0.0)
        best = max(best, total)
        candidates.total_E[m], candidates.logit_E[m], candidates.origin_E2[m, 0] = total, logit, k
    return count, best


@njit(nogil=True, inline="always")
def _key_after(token, kind, numbers, hashes, hash_V2):
    """Return the key of a beam after a token."""
    text, part = hashes
    closed = numbers[FLAGS] & CLOSED != 0
    if not kind & BLANK and token != numbers[LAST]:
        if kind & (SPACE | STARTS) or closed:
            if numbers[LENGTH]:
                text = _with_word(text, part)
            part = hash_V2[token, 0]
        else:
            part = part * hash_V2[token, 1] + hash_V2[token, 0]
        closed = kind & CLOSES != 0
    return _key(text, part, closed, token)


@njit(nogil=True, forceinline=True)
def _extend(likely, n, kept_K, beams, how, merging, candidates):
    """Make candidates of the beams kept_K[:n] with each likely token; return (their number, the best score).

    likely  row_V, tokens_V and the number of tokens
    how     tokens; the tables of the lexicon and of hot words, and the scores of the latter; their weight; rules
    """
    (row_V, tokens_V, num_tokens), (tokens, (trie, hot_trie, score_G), weight, rules) = likely, how
    kind_V, first_V1, symbols_S, hash_V2 = tokens
    hash_K2, logit_K, raw_K, score_K, end_K, numbers_K8, _ = beams
    key_K, added_K, first_K, last_K, sum_K, room = merging
    has_model, K = rules.has_model, rules.beam_width
    total_E, logit_E, origin_E2, _, _ = candidates
    unknown = rules.unknown if has_model else 0.0
    count, best = 0, -np.inf
    for place in range(num_tokens):
        token = tokens_V[place]
        kind, logit = kind_V[token], float64(row_V[token])
        for i in range(n):
            k = kept_K[i]
            key_K[i] = _key_after(token, kind, numbers_K8[k], (hash_K2[k, 0], hash_K2[k, 1]), hash_V2)
            added_K[i] = logit_K[k] + logit
        merged = _merge(n, key_K, added_K, first_K, last_K, sum_K, room)
        if count + merged > len(total_E):
            count = _keep_best(count, candidates, best + rules.beam_prune_logp, K)
        for m in range(merged):
            k = kept_K[last_K[m]]
            numbers = numbers_K8[k]
            raw, hot, part_score = raw_K[k], numbers[COUNT], score_K[k]
            if not kind & BLANK and token != numbers[LAST]:
                node, hot_node, length = numbers[NODE], numbers[HOT_NODE], numbers[LENGTH]
                if kind & (SPACE | STARTS) or numbers[FLAGS] & CLOSED:
                    if length:
                        raw += end_K[k]
                        hot += 1 if numbers[FLAGS] & HOT else 0
                    node, hot_node, length = int64(ROOT), int64(ROOT), int64(0)
                _, _, _, part_score = _extended(
                    symbols_S, first_V1[token], first_V1[token + 1], trie, hot_trie, score_G, unknown,
                    (node, hot_node, length),
                )  # fmt: skip
            total = _total(has_model, sum_K[m], raw, weight * hot, part_score)
            best = max(best, total)
            total_E[count], logit_E[count], origin_E2[count, 0], origin_E2[count, 1] = total, sum_K[m], k, token
            count += 1
    return count, best


@njit(nogil=True, forceinline=True)
def _advance(chosen, candidates, beams, after, how, steps_K):
    """Make the beams `after` of the chosen candidates; return whether the word of one of them is closed.

    steps_K  becomes token * MAX_BEAMS + the beam before
    """
    (kind_V, first_V1, symbols_S, hash_V2), (trie, hot_trie, score_G), _, rules = how
    _, logit_E, origin_E2, _, _ = candidates
    old_hash_K2, _, old_raw_K, old_score_K, old_end_K, old_numbers_K8, old_past_KH = beams
    hash_K2, logit_K, raw_K, score_K, end_K, numbers_K8, past_KH = after
    unknown, H, has_closed = rules.unknown if rules.has_model else 0.0, past_KH.shape[1], False
    for r in range(len(chosen)):
        k, token = origin_E2[chosen[r], 0], origin_E2[chosen[r], 1]
        kind, is_new = kind_V[token], 0
        hash_K2[r, 0], hash_K2[r, 1] = old_hash_K2[k, 0], old_hash_K2[k, 1]
        for number in range(8):
            numbers_K8[r, number] = old_numbers_K8[k, number]
        logit_K[r], raw_K[r], score_K[r], end_K[r] = logit_E[chosen[r]], old_raw_K[k], old_score_K[k], old_end_K[k]
        numbers, word = numbers_K8[r], old_hash_K2[k, 1]
        if not kind & BLANK and token != numbers[LAST]:
            if kind & (SPACE | STARTS) or numbers[FLAGS] & CLOSED:
                is_new = 1 if numbers[LENGTH] else 0
                if is_new:
                    hash_K2[r, 0] = _with_word(hash_K2[r, 0], word)
                    raw_K[r] += end_K[r]
                    numbers[STATE] = numbers[AFTER]
                    numbers[COUNT] += 1 if numbers[FLAGS] & HOT else 0
                hash_K2[r, 1] = 0
                numbers[NODE], numbers[HOT_NODE], numbers[LENGTH] = ROOT, ROOT, 0
            hash_K2[r, 1] = hash_K2[r, 1] * hash_V2[token, 1] + hash_V2[token, 0]
            numbers[NODE], numbers[HOT_NODE], numbers[LENGTH], score_K[r] = _extended(
                symbols_S, first_V1[token], first_V1[token + 1], trie, hot_trie, score_G, unknown,
                (numbers[NODE], numbers[HOT_NODE], numbers[LENGTH]),
            )  # fmt: skip
            numbers[FLAGS] = CLOSED if kind & CLOSES else 0
        numbers[LAST] = token
        has_closed |= numbers[FLAGS] & CLOSED != 0
        for h in range(H):
            past_KH[r, h] = old_past_KH[k, h - is_new] if h >= is_new else mix64(word + uint64(1))
        steps_K[r] = uint64(token * MAX_BEAMS + k)
    return has_closed


@njit(nogil=True, forceinline=True)
def _distinct(n, beams, merging, kept_K):
    """Set kept_K to the first beam of those with equal last words, in order; return their number."""
    key_K, logit_K, first_K, last_K, sum_K, room = merging
    for r in range(n):
        words = uint64(0)
        for h in range(beams.past_KH.shape[1]):
            words = mix64(words ^ beams.past_KH[r, h])
        numbers = beams.numbers_K8[r]
        key_K[r] = _key(words, beams.hash_K2[r, 1], numbers[FLAGS] & CLOSED != 0, numbers[LAST])
        logit_K[r] = 0
    n = _merge(n, key_K, logit_K, first_K, last_K, sum_K, room)
    for r in range(n):
        kept_K[r] = first_K[r]
    return n


@njit(nogil=True, cache=True)
def _write(chosen, candidates, beams, steps_TK, scores_N2, states_N, paths_NT):
    """Write the chosen texts as results."""
    for r in range(len(chosen)):
        e = chosen[r]
        scores_N2[r, 0], scores_N2[r, 1] = candidates.logit_E[e], candidates.total_E[e]
        k = candidates.origin_E2[e, 0]
        states_N[r] = beams.numbers_K8[k, AFTER]
        for frame in range(len(steps_TK) - 1, -1, -1):
            step = int64(steps_TK[frame, k])
            paths_NT[r, frame], k = step // MAX_BEAMS, step % MAX_BEAMS


@njit(nogil=True, cache=True)
def _new_beams(K, H):
    return Beams(
        np.empty((K, 2), np.uint64), np.empty(K), np.empty(K), np.empty(K), np.empty(K), np.empty((K, 8), np.int64),
        np.zeros((K, H), np.uint64),
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _start(beams, state):
    """Make the first beam that of the empty text."""
    beams.hash_K2[0, 0] = beams.hash_K2[0, 1] = 0
    beams.logit_K[0] = beams.raw_K[0] = beams.score_K[0] = beams.end_K[0] = 0
    beams.numbers_K8[0] = 0
    beams.numbers_K8[0, STATE], beams.numbers_K8[0, LAST] = state, -1
    beams.numbers_K8[0, NODE] = beams.numbers_K8[0, HOT_NODE] = ROOT
    beams.past_KH[0] = 0


@njit(nogil=True, cache=True)
def search_on_cpu(utterances, tokens, lexicon, hot_words, ngrams, rules, found):
    """Fill `found` with the best texts of utterances; see `search_beams`."""
    (log_probs_BTV, lengths_B, starts_B), K, prune = utterances, rules.beam_width, rules.beam_prune_logp
    B, num_frames, V = log_probs_BTV.shape
    nodes = lexicon.word_G, hot_words.whole_G
    how = tokens, (lexicon.table, hot_words.table, hot_words.score_G), hot_words.weight, rules
    S, E = 4, CANDIDATES * K
    while S < 2 * K:
        S *= 2
    beams, after = _new_beams(K, rules.history), _new_beams(K, rules.history)
    merging = Merging(
        np.empty(K, np.uint64), np.empty(K), np.empty(K, np.int64), np.empty(K, np.int64), np.empty(K),
        (np.empty(S, np.int32), np.empty(K, np.int64), np.empty(K)),
    )  # fmt: skip
    candidates = Candidates(
        np.empty(E), np.empty(E), np.empty((E, 2), np.int64), np.empty(E, np.int64), np.empty(E, np.int64)
    )
    asked = Asked(
        beam_K=np.empty(K, np.int64), from_K=np.empty(K, np.int32), word_K=np.empty(K, np.int64),
        prob_K=np.empty(K, np.float32), next_K=np.empty(K, np.int32), end_prob_K=np.zeros(K, np.float32),
        unused_K=np.empty(K, np.int32), ends_K=np.full(K, ngrams.end),
    )  # fmt: skip
    steps_TK, kept_K = np.zeros((num_frames, K), np.uint32), np.empty(K, np.int64)
    row_V, tokens_V = np.empty(V, np.float32), np.empty(V, np.int64)
    for b in range(B):
        n, problems, has_closed = 1, 0, False
        _start(beams, starts_B[b])
        kept_K[0] = 0
        for t in range(lengths_B[b]):
            num_tokens, ends, wrong = _likely_tokens(
                log_probs_BTV[b, t], tokens.kind_V, rules.token_min_logp, row_V, tokens_V
            )
            problems |= wrong
            if ends or has_closed:
                _score_ends(beams, kept_K[:n], False, ngrams, nodes, rules, asked)
            likely = row_V, tokens_V, num_tokens
            count, best = _extend(likely, n, kept_K, beams, how, merging, candidates)
            chosen = _select(count, candidates, best + prune, K)
            has_closed = _advance(chosen, candidates, beams, after, how, steps_TK[t])
            beams, after, n = after, beams, len(chosen)
            for r in range(n):
                kept_K[r] = r
            if rules.history:
                n = _distinct(n, beams, merging, kept_K)
        _score_ends(beams, kept_K[:n], True, ngrams, nodes, rules, asked)
        count, best = _end_texts(beams, kept_K[:n], hot_words.weight, rules.has_model, merging, candidates)
        chosen = _select(count, candidates, best + prune, min(K, found.states_BN.shape[1]))
        found.found_B[b], found.errors_B[b] = len(chosen), problems
        steps = steps_TK[: lengths_B[b]]
        _write(chosen, candidates, beams, steps, found.scores_BN2[b], found.states_BN[b], found.paths_BNT[b])
