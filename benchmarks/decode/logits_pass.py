"""The pass from logits to the best words of sentences: beside a read of the same bytes, and other programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.decode import peers
from mgpu_ngram.benchmarks.decode.ceilings import READ, read_rate
from mgpu_ngram.benchmarks.decode.generated_model import SEED, SPREAD, DecodeBench, fastest, run_on_device
from mgpu_ngram.benchmarks.decode.peers import as_torch, choose_threads, has_torch, release_torch, torch_best
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import ROWS_PER_SECOND
from mgpu_ngram.engine.torch.arrays import as_array
from mgpu_ngram.kernels.decode.best_hypotheses import SentenceRows, best_hypotheses
from mgpu_ngram.kernels.dispatch import to_host

ROWS = {"gpu": (1_280, 65_536), "cpu": (64, 512)}
WORDS = {"gpu": 50_000, "cpu": 5_000}
PASS_K = (1, 4, 8)
PASS_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}  # the last: its bits
SHARES = {"float32": {1: 0.85, 4: 0.80, 8: 0.75}, "float16": {k: 0.75 for k in PASS_K}}  # of the read, on one H200
MIXED_DTYPES = ("float32", "float16")
MIXED_SHARE = 0.70  # share of the rate of a plain read, with two models and an n-gram model
COPIES = 6  # copies of the rows: peers need six, an ensemble with n-grams three
BLOCK_ROWS = 512  # drawn by the host; the others repeat them
WEIGHTS, NGRAM_WEIGHT = (0.6, 0.4), 0.2
TOLERANCE, PEER_TOLERANCE = 1e-3, 0.2  # of scores; peers round float16 and bfloat16 scores
Pair = tuple[Any, Any]


def fused_pass(bench: DecodeBench) -> None:
    """Rows: the pass by number of rows, dtype and k; and with two models and n-grams."""
    suite, V = bench.suite, WORDS[bench.suite.device]
    for wanted in ROWS[suite.device]:
        R = fitting_rows(suite, wanted, V)
        for dtype in PASS_DTYPES:
            suite.say(f"the pass over {R:,} rows of {dtype}")
            logits_RV = random_rows(suite, (R, V), dtype)
            sizes = f"rows={R} V={V} dtype={dtype}"
            read = read_rate(suite, logits_RV, sizes)
            for k in PASS_K:
                _pass_row(suite, logits_RV, k, f"{sizes} k={k}", _target(suite, R, wanted, dtype, k, read))
            del logits_RV
            release_torch(suite.device)
            suite.release()
        for dtype in MIXED_DTYPES:
            _mixed(suite, fitting_rows(suite, wanted, V), V, dtype)
            suite.release()


def _target(suite: Suite, R: int, wanted: int, dtype: str, k: int, read: float) -> float | None:
    """Return the rows a second to reach on one H200; None where there is no target."""
    share = SHARES.get(dtype, {}).get(k)
    if suite.device == "cpu" or R < wanted or share is None:
        return None
    return share * read / (WORDS["gpu"] * np.dtype(PASS_DTYPES[dtype]).itemsize)


def fitting_rows(suite: Suite, rows: int, words: int) -> int:
    """Return as many rows as the memory allows, for all k."""
    fitting = suite.free_bytes() // (4 * COPIES * words)
    return max(8, min(rows, fitting) // 8 * 8)


def random_rows(suite: Suite, shape: tuple[int, ...], dtype: str) -> Any:
    """Return rows of logits on the device; rows from BLOCK_ROWS on repeat others."""
    xp, *before, V = suite.xp, *shape
    R = int(np.prod(before))
    block_RV = SPREAD * np.random.default_rng(SEED).standard_normal((min(R, BLOCK_ROWS), V), np.float32)
    if dtype == "bfloat16":
        block_RV = (block_RV.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    block = xp.asarray(block_RV.astype(PASS_DTYPES[dtype], copy=False))
    rows_RV = xp.empty((R, V), block.dtype)
    for first in range(0, R, len(block)):
        rows_RV[first : first + len(block)] = block[: R - first]
    return rows_RV.reshape(shape)


def as_floats(bits: Any) -> np.ndarray:
    """Return logits on the host as float64."""
    array = to_host(bits)
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float64)


def check_best(found: Pair, score_of: Callable[[int], np.ndarray], k: int, tolerance: float) -> None:
    """Raise WrongResult unless sentences of k rows have the scores that NumPy finds, and words that have them.

    found     (words, scores), (S, k)
    score_of  score_of(row): (V,) scores of the words after a row
    """
    words_SK, scores_SK = (to_host(as_array(array)) for array in found)
    S = len(words_SK)
    for s in {0, S // 2, S - 1}:
        all_KV = np.stack([score_of(s * k + j) for j in range(k)])
        expected = np.sort(all_KV, axis=None)[::-1][:k]
        pairs = zip(words_SK[s], scores_SK[s], strict=True)
        own = max(np.abs(all_KV[:, word] - score).min() for word, score in pairs)
        if not (np.abs(scores_SK[s] - expected).max() <= tolerance and own <= tolerance):
            raise WrongResult(f"sentence {s} has scores {scores_SK[s]} but NumPy finds {expected}; not timed")


def log_probs(x_V: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities of words, in float64."""
    return x_V - x_V.max() - np.log(np.exp(x_V - x_V.max()).sum())


def sentences_of(suite: Suite, R: int, k: int) -> tuple[Any, Any, Any]:
    """Return (costs of rows, starts and sizes of sentences) of k rows each."""
    xp = suite.xp
    starts_S1 = xp.arange(0, R + 1, k, dtype=np.int64)
    costs_R = -(xp.arange(R) % 7).astype(np.float32)
    return costs_R, starts_S1, xp.full(len(starts_S1) - 1, k, np.int32)


def _pass_row(suite: Suite, logits_RV: Any, k: int, sizes: str, target: float | None) -> None:
    """Rows of the peers, then of the pass."""
    R = len(logits_RV)
    costs_R, starts_S1, sizes_S = sentences_of(suite, R, k)
    halves = logits_RV.dtype != np.float32
    how: dict[str, Any] = {"items": R, "unit": ROWS_PER_SECOND}

    def score_of(row: int) -> np.ndarray:
        return log_probs(as_floats(logits_RV[row])) + float(costs_R[row])

    def ours() -> Pair:
        return best_hypotheses(logits_RV[None], k, SentenceRows(costs_R, starts_S1, sizes_S))[0][1:]

    def by_arrays() -> Pair:
        words_RK, scores_RK = peers.k_best(peers.log_softmax(logits_RV), k)
        return peers.best_of_sentences(words_RK, scores_RK + costs_R[:, None])

    beside = []
    if has_torch():
        call = partial(torch_best, as_torch(logits_RV), as_torch(costs_R), k)
        choose_threads(call, suite.device)
        beside.append(_peer(suite, "torch", sizes, call, score_of, k, halves, how))
    if logits_RV.dtype != np.uint16:
        beside.append(_peer(suite, suite.xp.__name__, sizes, by_arrays, score_of, k, halves, how))
    run_on_device(
        suite, "decode/pass", sizes, ours, lambda found: check_best(found, score_of, k, TOLERANCE), **how,
        bytes_moved=logits_RV.nbytes, ceiling=READ, target=target, **fastest(beside),
    )  # fmt: skip


def _peer(
    suite: Suite,
    name: str,
    sizes: str,
    call: Callable[[], Pair],
    score_of: Callable[..., Any],
    k: int,
    halves: bool,
    how: dict[str, Any],
) -> Row:
    tolerance = PEER_TOLERANCE if halves else TOLERANCE
    return run_on_device(
        suite, f"decode/pass {name}", sizes, call, lambda found: check_best(found, score_of, k, tolerance), **how
    )


def _mixed(suite: Suite, R: int, V: int, dtype: str) -> None:
    """Row: the pass over an ensemble of two and the rows of an n-gram model."""
    k = 4
    rows_3RV = random_rows(suite, (3, R, V), dtype)
    logits_MRV, ngram_RV = rows_3RV[:2], rows_3RV[2]
    costs_R, starts_S1, sizes_S = sentences_of(suite, R, k)
    sizes = f"rows={R} V={V} dtype={dtype}"
    read = read_rate(suite, rows_3RV, f"{sizes} arrays=3")

    def score_of(row: int) -> np.ndarray:
        parts = [log_probs(as_floats(logits_RV[row])) for logits_RV in logits_MRV]
        mixed = sum(w * part for w, part in zip(WEIGHTS, parts, strict=True))
        return mixed + NGRAM_WEIGHT * as_floats(ngram_RV[row]) + float(costs_R[row])

    def ours() -> Pair:
        of_models = WEIGHTS, None, ngram_RV, NGRAM_WEIGHT
        return best_hypotheses(logits_MRV, k, SentenceRows(costs_R, starts_S1, sizes_S), *of_models)[0][1:]

    run_on_device(
        suite, "decode/pass of an ensemble", f"{sizes} k={k} models=2 ngrams=1", ours,
        lambda found: check_best(found, score_of, k, TOLERANCE), items=R, unit=ROWS_PER_SECOND,
        bytes_moved=rows_3RV.nbytes, ceiling=READ,
        target=MIXED_SHARE * read * R / rows_3RV.nbytes if suite.device == "gpu" else None,
    )  # fmt: skip
