"""The step after the product (Table 3 of the paper): fused, beside bias, softmax and k-best one after another."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.decode import peers
from mgpu_ngram.benchmarks.decode import published as paper
from mgpu_ngram.benchmarks.decode.generated_model import SEED, DecodeBench, fastest, run_on_device
from mgpu_ngram.benchmarks.decode.logits_pass import TOLERANCE, check_best, log_probs, random_rows, sentences_of
from mgpu_ngram.benchmarks.decode.peers import as_torch, choose_threads, has_torch, torch_best
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.timing import MAX_RUNS
from mgpu_ngram.benchmarks.harness.units import ROWS_PER_SECOND
from mgpu_ngram.kernels.decode.advance_beams import Beams, Ending, Live, advance_beams
from mgpu_ngram.kernels.decode.best_hypotheses import SentenceRows, best_hypotheses
from mgpu_ngram.kernels.decode.best_of_beams import Chosen, best_of_beams
from mgpu_ngram.kernels.decode.best_words import best_words
from mgpu_ngram.kernels.dispatch import to_host

ROWS, WORDS = {"gpu": paper.STEP_ROWS, "cpu": 128}, {"gpu": paper.STEP_WORDS, "cpu": 5_000}
BEAMS = (1, 3, 9)
TARGET_SECONDS = {1: 0.08e-3, 3: 0.08e-3, 9: 0.09e-3}  # at most, of the whole step on one H200
SENTENCES = {"gpu": 1280, "cpu": 128}
STEPS = MAX_RUNS + 8  # room for each call of a measurement
EOS = 0
BESIDE = ("decode/step unfused", "decode/step torch")
SENTENCES_PER_SECOND = "sentences/s"


def step(bench: DecodeBench) -> None:
    """Rows of each beam size: the unfused steps and PyTorch, the fused kernel, the whole fused step, its end alone."""
    suite = bench.suite
    V = WORDS[suite.device]
    xp, bias = suite.xp, np.random.default_rng(SEED).standard_normal(V, np.float32)
    for k in BEAMS:
        suite.say(f"the step of beam {k}")
        R = ROWS[suite.device] // k * k
        logits_RV, bias_V = random_rows(suite, (R, V), "float32"), xp.asarray(bias)
        sizes = f"rows={R} V={V} k={k}"
        _unfused(suite, logits_RV, bias_V, k, sizes)
        _fused(suite, logits_RV, bias_V, k, sizes)
        del logits_RV
        suite.release()
        _end(suite, k)


def _plain(logits_RV: Any, bias_V: Any, costs_R: Any) -> Any:
    """Return score_of(row), the scores of words by NumPy."""
    return lambda row: log_probs(to_host(logits_RV[row] + bias_V).astype(np.float64)) + float(costs_R[row])


def _unfused(suite: Suite, logits_RV: Any, bias_V: Any, k: int, sizes: str) -> None:
    """Rows: the steps of array code, their sum, and PyTorch."""
    R = len(logits_RV)
    costs_R, _, _ = sentences_of(suite, R, k)
    how: dict[str, Any] = {"items": R, "unit": ROWS_PER_SECOND}
    with_bias_RV = peers.add_bias(logits_RV, bias_V)
    scores_RV = peers.log_softmax(with_bias_RV)

    def best_of(scores_RV: Any) -> tuple[Any, Any]:
        words_RK, scores_RK = peers.k_best(scores_RV, k)
        return peers.best_of_sentences(words_RK, scores_RK + costs_R[:, None])

    check_best(best_of(scores_RV.copy()), _plain(logits_RV, bias_V, costs_R), k, TOLERANCE)
    calls = (
        partial(peers.add_bias, logits_RV, bias_V),
        partial(peers.log_softmax, with_bias_RV),
        partial(best_of, scores_RV),  # later calls take the next best words; the work is the same
    )
    total = 0.0
    for name, call in zip(paper.UNFUSED_STEPS, calls, strict=True):
        row = suite.add(f"decode/step unfused, {name}", sizes, device_seconds(call, suite.device), **how)
        total += row.median_seconds or 0.0
    suite.add("decode/step unfused", sizes, [total], **how, notes=f"{suite.xp.__name__}; the sum of its steps")
    if has_torch():
        call = partial(torch_best, as_torch(logits_RV), as_torch(costs_R), k, as_torch(bias_V))
        choose_threads(call, suite.device)
        run_on_device(
            suite, "decode/step torch", sizes, call,
            lambda found: check_best(found, _plain(logits_RV, bias_V, costs_R), k, TOLERANCE), **how,
        )  # fmt: skip


def _fused(suite: Suite, logits_RV: Any, bias_V: Any, k: int, sizes: str) -> None:
    """Rows: the fused kernel, and the whole step with the best of each sentence and the next rows."""
    R, V = logits_RV.shape
    costs_R, starts_S1, sizes_S = sentences_of(suite, R, k)
    search = _Search.make(suite, R // k, k)
    is_full = suite.device == "gpu" and V == paper.STEP_WORDS
    score_of = _plain(logits_RV, bias_V, costs_R)
    how: dict[str, Any] = {"items": R, "unit": ROWS_PER_SECOND, "bytes_moved": logits_RV.nbytes, "ceiling": "read"}

    def kernel() -> tuple[Any, Any, Any]:
        return best_words(logits_RV[None], k, costs_R, bias_MV=bias_V[None])

    def best() -> Chosen:
        return best_hypotheses(logits_RV[None], k, SentenceRows(costs_R, starts_S1, sizes_S), bias_MV=bias_V[None])[0]

    check_best(best()[1:], score_of, k, TOLERANCE)
    baseline: dict[str, Any] = {}
    if is_full:
        baseline = {"baseline": f"{paper.AMUN}, kernel", "baseline_seconds": paper.AMUN_KERNEL[k]}
    suite.add("decode/step fused, kernel", sizes, device_seconds(kernel, suite.device), **how, **baseline)
    if is_full:
        baseline = {"baseline": f"{paper.AMUN}, whole step", "baseline_seconds": paper.AMUN_STEP[k]}
    else:
        baseline = fastest([row for row in suite.rows if row.kernel in BESIDE and row.sizes == sizes])
    seconds = device_seconds(lambda: search.advance(best()), suite.device)
    published = f"{sum(paper.UNFUSED_SECONDS[k]):.4g} s unfused, {paper.FUSED_SECONDS[k]:.4g} s fused"
    suite.add(
        "decode/step fused", sizes, seconds, **how, **baseline, target=R / TARGET_SECONDS[k] if is_full else None,
        notes=f"Table 3, a whole run on a V100: {published}",
    )  # fmt: skip


class _Search:
    """Sentences of k rows each in the middle of a search, of which none ends."""

    def __init__(self, live: Live, beams: Beams, ending: Ending):
        self.live, self.beams, self.ending = live, beams, ending

    @classmethod
    def make(cls, suite: Suite, S: int, k: int) -> _Search:
        xp = suite.xp
        _, starts_S1, sizes_S = sentences_of(suite, S * k, k)
        places_R = xp.asarray(np.tile(np.arange(k, dtype=np.int16), S))
        live = Live(xp.arange(S, dtype=np.int32), starts_S1, sizes_S, places_R)
        of_steps = (S, STEPS, k)
        longest_N = xp.full(S, STEPS, np.int32)
        beams = Beams(
            words_NLK=xp.zeros(of_steps, np.int32), before_NLK=xp.zeros(of_steps, np.int16),
            costs_NLK=xp.zeros(of_steps, np.float32), steps_N=xp.zeros(S, np.int32), longest_N=longest_N,
            most_N=longest_N.copy(), sizes_N=sizes_S.copy(), finished_NB=xp.full((S, 1), -np.inf),
        )  # fmt: skip
        return cls(live, beams, Ending(EOS, "amun", 0.0, xp.ones(STEPS + 1)))

    def advance(self, chosen: Chosen) -> tuple[Any, ...]:
        return advance_beams(chosen, self.live, self.beams, self.ending)


def _end(suite: Suite, k: int) -> None:
    """Row: the best of each sentence and the rows of the next step, without the pass over the words."""
    S, xp = SENTENCES[suite.device], suite.xp
    rng = np.random.default_rng(SEED)
    scores = -np.sort(rng.random((S * k, k), np.float32), axis=1)
    words = rng.integers(1, 50_000, (S * k, k)).astype(np.int32)
    words_RK, scores_RK = xp.asarray(words), xp.asarray(scores)
    _, starts_S1, sizes_S = sentences_of(suite, S * k, k)
    search = _Search.make(suite, S, k)

    def call() -> tuple[Any, ...]:
        return search.advance(best_of_beams(words_RK, scores_RK, starts_S1, sizes_S))

    def check(found: tuple[Any, ...]) -> None:
        scores_SC, words_SC = scores.reshape(S, k * k), words.reshape(S, k * k)
        best_SK = np.argsort(-scores_SC, axis=1, kind="stable")[:, :k]
        parents_SK = best_SK // k + np.arange(S)[:, None] * k
        wanted = parents_SK, *(np.take_along_axis(array, best_SK, 1) for array in (words_SC, scores_SC))
        if not all(np.array_equal(to_host(a), b.ravel()) for a, b in zip(found[1], wanted, strict=True)):
            raise WrongResult("the rows of the next step are not those that NumPy finds; not timed")

    run_on_device(
        suite, "decode/step without the pass", f"sentences={S} k={k}", call, check, items=S, unit=SENTENCES_PER_SECOND
    )
