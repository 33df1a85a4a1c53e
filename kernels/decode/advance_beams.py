"""End hypotheses, divide their scores by the length penalty, shrink beams, and arrange the rows of the next step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import int64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import kernel, launch
from .best_of_beams import Chosen

THREADS = 1024  # threads of the only block
MAX_PLACES = 1 << 12
STOP_RULES = ("amun", "first", "bound")


class Beams(NamedTuple):
    """Sentences that are searched, each in a slot, and their hypotheses of all steps.

    words_NLK    int32, the word of hypothesis k of a sentence's step l
    before_NLK   int16, the hypothesis of the previous step that it extends
    costs_NLK    float32
    steps_N      int32, number of steps that a sentence has done, below L
    longest_N    int32, the greatest number of words of a result, including its end
    most_N       int32, the greatest number of steps, at most L
    sizes_N      int32, number of places of the beam, at most K; each hypothesis that ends takes one away
    finished_NB  float64, the greatest scores of finished hypotheses, falling, filled up with -inf
    """

    words_NLK: Any
    before_NLK: Any
    costs_NLK: Any
    steps_N: Any
    longest_N: Any
    most_N: Any
    sizes_N: Any
    finished_NB: Any


class Live(NamedTuple):
    """Sentences that continue.

    slots_S    int32, the slot of each sentence; -1 after the last one
    starts_S1  int64: sentence s has rows starts_S1[s] to starts_S1[s + 1] - 1
    sizes_S    int32, number of places of the beam; 0 after the last sentence
    places_R   int16, for each row the number of its hypothesis among those of the previous step of its sentence
    """

    slots_S: Any
    starts_S1: Any
    sizes_S: Any
    places_R: Any


class Rows(NamedTuple):
    """Hypotheses that continue, in the order of sentences; arrays and places_R are 0 after the last one.

    parents_R  int32, the row of the previous step that each one extends
    words_R    int32
    costs_R    float32
    """

    parents_R: Any
    words_R: Any
    costs_R: Any


class Ending(NamedTuple):
    """The rules by which hypotheses and sentences end.

    eos           word that ends a hypothesis
    rule          "amun": a sentence ends with its last hypothesis; "first": with the first that ends; "bound": when no
                  other hypothesis can be among the B best
    word_penalty  penalty of each word of a hypothesis, including its end
    lengths_L1    float64, the divisor of a score by the number of words, constant or rising; entry 0 is not read
    """

    eos: int
    rule: str
    word_penalty: float
    lengths_L1: Any


def advance_beams(chosen: Chosen, live: Live, beams: Beams, ending: Ending) -> tuple[Live, Rows, Any, Any]:
    """Return (sentences that continue, their rows, slots of finished sentences, counts).

    chosen  the result of `best_of_beams` for `live`; scores are costs. Words of -1 may be anywhere

    A hypothesis is finished when its word is `eos` or when it has `longest` words. It continues unless its word is
    `eos` or it has more than `longest` words; the step after the greatest length lets hypotheses end, as in Amun. A
    sentence is finished when none continues, when it has done `most` steps, or by the rule. So is a sentence with NaN
    scores. Hypotheses of a sentence keep their order; R is S * K.

    done_S    int32, in the order of sentences, then -1
    counts_4  int64: numbers of sentences that continue, of their rows, the sum of their sizes, finished sentences

    `beams` are changed in place. The score of a hypothesis of n words is (cost - word_penalty * n) / lengths_L1[n].
    Source: Hoang et al. 2018, algorithm 2, with the removal of finished sentences on the device.
    """
    check.dtype(chosen.words_SK, np.int32)
    check.dtype(chosen.scores_SK, np.float32)
    check.dtype(live.slots_S, np.int32)
    check.dtype(live.places_R, np.int16)
    check.dtype(beams.before_NLK, np.int16)
    check.dtype(ending.lengths_L1, np.float64)
    _, L, K = beams.words_NLK.shape
    if chosen.words_SK.shape != (len(live.slots_S), K) or K > MAX_PLACES or len(ending.lengths_L1) < L + 1:
        raise ValueError(
            f"words have shape {chosen.words_SK.shape} and lengths {len(ending.lengths_L1)} entries but need "
            f"({len(live.slots_S)}, {K}), at most {MAX_PLACES:,} columns, and {L + 1} entries"
        )
    run = pick(
        cpu=_cpu, cuda=_cuda, lengths_L1=ending.lengths_L1, **chosen._asdict(), **live._asdict(), **beams._asdict()
    )
    check.contiguous(**beams._asdict())
    return run(chosen, live, beams, ending)


def _cpu(chosen, live, beams, ending):
    S, K = chosen[1].shape
    after = Live(
        np.full(S, -1, np.int32), np.zeros(S + 1, np.int64), np.zeros(S, np.int32), np.zeros(S * K, np.int16)
    )  # fmt: skip
    rows = Rows(np.zeros(S * K, np.int32), np.zeros(S * K, np.int32), np.zeros(S * K, np.float32))
    done_S, counts_4 = np.full(S, -1, np.int32), np.zeros(4, np.int64)
    _advance(chosen, live, beams, ending._replace(rule=STOP_RULES.index(ending.rule)), after, rows, done_S, counts_4)
    return after, rows, done_S, counts_4


@njit(nogil=True, cache=True)
def finished_score(cost, length, word_penalty, lengths_L1):
    """Return the score of a finished hypothesis of `length` words, including its end; arguments as in `Ending`.

    advance_beams.cu repeats the formula, because it must round each step as this function does.
    """
    return (cost - word_penalty * length) / lengths_L1[length]


@njit(nogil=True, cache=True)
def _advance(chosen, live, beams, ending, after, rows, done_S, counts_4):
    rows_SK, words_SK, scores_SK = chosen
    slots_S, _, _, places_R = live
    words_NLK, before_NLK, costs_NLK, steps_N, longest_N, most_N, sizes_N, finished_NB = beams
    eos, rule, word_penalty, lengths_L1 = ending
    next_slots_S, next_starts_S1, next_sizes_S, next_places_R = after
    parents_R, words_R, costs_R = rows
    S, K = words_SK.shape
    B = finished_NB.shape[1]
    sentences, num_rows, places, done = 0, 0, 0, 0
    for s in range(S):
        n = int64(slots_S[s])
        if n < 0:
            continue
        step = int64(steps_N[n])
        length = step + 1
        first = num_rows
        ended = 0
        best = np.float64(0)
        finishes = False
        for k in range(K):
            word, cost = words_SK[s, k], scores_SK[s, k]
            words_NLK[n, step, k], costs_NLK[n, step, k] = word, cost
            if word < 0:
                before_NLK[n, step, k] = 0
                continue
            before_NLK[n, step, k] = places_R[rows_SK[s, k]]
            if word == eos or length == longest_N[n]:
                finishes = True
                score = finished_score(cost, length, word_penalty, lengths_L1)
                if score > finished_NB[n, B - 1]:
                    at = B - 1
                    while at and finished_NB[n, at - 1] < score:
                        finished_NB[n, at] = finished_NB[n, at - 1]
                        at -= 1
                    finished_NB[n, at] = score
            if word == eos or length > longest_N[n]:
                ended += 1
                continue
            if num_rows == first:
                best = np.float64(cost)
            parents_R[num_rows], words_R[num_rows], costs_R[num_rows] = rows_SK[s, k], word, cost
            next_places_R[num_rows] = k
            num_rows += 1
        steps_N[n] = length
        sizes_N[n] -= ended
        is_done = num_rows == first or length >= most_N[n] or (rule == 1 and finishes)
        if rule == 2 and not is_done and finished_NB[n, B - 1] > -np.inf:
            least, most = length + 1, int64(most_N[n])
            reach = best - word_penalty * (least if word_penalty >= 0 else most)
            is_done = finished_NB[n, B - 1] >= max(reach / lengths_L1[least], reach / lengths_L1[most])
        if is_done:
            next_places_R[first:num_rows] = 0
            parents_R[first:num_rows] = 0
            words_R[first:num_rows] = 0
            costs_R[first:num_rows] = 0
            num_rows = first
            done_S[done] = n
            done += 1
        else:
            next_slots_S[sentences], next_starts_S1[sentences], next_sizes_S[sentences] = n, first, sizes_N[n]
            places += sizes_N[n]
            sentences += 1
    next_starts_S1[sentences:] = num_rows
    counts_4[0], counts_4[1], counts_4[2], counts_4[3] = sentences, num_rows, places, done


def _cuda(chosen, live, beams, ending):
    import cupy

    S, K = chosen[1].shape
    after = Live(
        cupy.empty(S, np.int32), cupy.empty(S + 1, np.int64), cupy.empty(S, np.int32), cupy.empty(S * K, np.int16)
    )  # fmt: skip
    rows = Rows(cupy.empty(S * K, np.int32), cupy.empty(S * K, np.int32), cupy.empty(S * K, np.float32))
    done_S, counts_4 = cupy.empty(S, np.int32), cupy.empty(4, np.int64)
    L, B = beams.words_NLK.shape[1], beams.finished_NB.shape[1]
    args = (
        *(cupy.ascontiguousarray(array) for array in chosen), live.slots_S, live.places_R, S, K, L, B, *beams,
        np.int32(ending.eos), np.int32(STOP_RULES.index(ending.rule)), np.float64(ending.word_penalty),
        ending.lengths_L1, *after, *rows, done_S, counts_4,
    )  # fmt: skip
    launch(kernel("decode/advance_beams", "advance_beams"), 1, THREADS, args)
    return after, rows, done_S, counts_4


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sentences at any step, two steps before their ends and later; some have ties, NaN or no candidate."""
    K, L, B = (1, 3, 8, 64)[size % 4], 7, 1 + size % 2
    S = -(-size // 16) if K > 8 else size
    N = S + 3
    most_N = rng.integers(1, L + 1, N).astype(np.int32)
    finished_NB = -np.sort(rng.integers(0, 40, (N, B)) / 4, axis=1)
    finished_NB[rng.random(N) < 0.5, B - 1] = -np.inf
    beams = Beams(
        words_NLK=np.zeros((N, L, K), np.int32), before_NLK=np.zeros((N, L, K), np.int16),
        costs_NLK=np.zeros((N, L, K), np.float32), steps_N=(most_N - 1 - rng.integers(0, most_N) // 2).astype(np.int32),
        longest_N=np.maximum(1, most_N - rng.integers(0, 3, N)).astype(np.int32), most_N=most_N,
        sizes_N=rng.integers(1, K + 1, N).astype(np.int32), finished_NB=finished_NB,
    )  # fmt: skip
    slots_S = rng.permutation(N)[:S].astype(np.int32)
    slots_S[S - S // 8 :] = -1
    counts_S = np.where(slots_S < 0, 0, rng.integers(1, K + 1, S))
    starts_S1 = np.concatenate([[0], np.cumsum(counts_S)]).astype(np.int64)
    filled_S = np.where(slots_S < 0, 0, np.minimum(beams.sizes_N[slots_S], rng.integers(0, 3 * K + 1, S)))
    is_word_SK = (np.arange(K) < filled_S[:, None]) & (rng.random((S, K)) < 0.9)
    words_SK = np.where(is_word_SK, rng.integers(0, 4, (S, K)), -1).astype(np.int32)
    rows_SK = np.where(is_word_SK, starts_S1[:-1, None] + rng.integers(0, np.maximum(1, counts_S)[:, None], (S, K)), -1)
    scores_SK = -np.sort(rng.integers(0, 80, (S, K)) / np.float32(8), axis=1).astype(np.float32)
    scores_SK[~is_word_SK] = -np.inf
    scores_SK[(filled_S == 0) & (rng.random(S) < 0.5)] = np.nan
    sizes_S = np.where(slots_S < 0, 0, beams.sizes_N[slots_S]).astype(np.int32)
    live = Live(slots_S, starts_S1, sizes_S, rng.integers(0, K, starts_S1[-1]).astype(np.int16))
    lengths_L1 = np.arange(L + 1) ** 0.6
    ending = Ending(0, STOP_RULES[size % 3], (0.25, 0.0, -0.25)[size // 4 % 3], lengths_L1)
    chosen = Chosen(rows_SK.astype(np.int32), words_SK, scores_SK)
    return {"chosen": chosen, "live": live, "beams": beams, "ending": ending}
