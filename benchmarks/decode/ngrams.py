"""What an n-gram model costs: in the pass, read as children or as whole rows, and in whole decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.decode.generated_model import (
    FULL,
    SENTENCE_WORDS,
    DecodeBench,
    System,
    random_sources,
    run_on_device,
)
from mgpu_ngram.benchmarks.decode.logits_pass import TOLERANCE, check_best, log_probs, random_rows, sentences_of
from mgpu_ngram.benchmarks.decode.whole import WholeDecode, decode_row
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.units import ROWS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.frequency_models import ngrams_of, trie_of, zipf_codes, zipf_words
from mgpu_ngram.benchmarks.inputs.fusion_text import NUM_SPECIALS
from mgpu_ngram.benchmarks.inputs.plain_beam_search import EOS, PlainNgrams, PlainSearch
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.engine.decode.ngram_rows import NgramRows
from mgpu_ngram.engine.decode.open_translation import open_translation
from mgpu_ngram.engine.decode.word_scores import NgramScores
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.kernels.decode.best_of_beams import best_of_beams
from mgpu_ngram.kernels.decode.best_words import best_words
from mgpu_ngram.kernels.dispatch import to_host

LM_ORDER, LM_WEIGHT, LM_BEAM = 5, 0.2, 6
LM_TOKENS = {"gpu": 7_700_000, "cpu": 20_000}  # 20 M n-grams
LM_WORDS = {"gpu": 30_000, "cpu": 2_000}
ROWS, PASS_K = {"gpu": 1_280, "cpu": 64}, 4
TEXT_CODES = 1_000_000  # codes of the text whose histories are taken
LM_COST = 0.10  # most time of the n-gram model, as a share of the whole decode, on one H200


@dataclass(frozen=True)
class TargetNgrams:
    """An n-gram model of generated text in the words of a target.

    path     its file
    rows     the model on the device
    plain    its rows by NumPy
    count    n-grams of all orders
    codes_T  the text: word of the n-gram model + 1, 0 between sentences
    """

    path: Path
    rows: NgramRows
    plain: PlainNgrams
    count: int
    codes_T: Any

    @classmethod
    def make(cls, suite: Suite, tokens: Sequence[str], folder: Path) -> TargetNgrams:
        """Return the model whose words are `tokens`: </s>, <unk>, then those of `zipf_words`."""
        language = len(tokens) - 2
        words, codes_T = zipf_words(language), zipf_codes(LM_TOKENS[suite.device], language, xp=suite.xp)
        model = BackoffModel(trie_of(codes_T, len(words), LM_ORDER).map_arrays(to_host), words, "")
        path = folder / f"ngrams-{len(tokens)}"
        save_model(path, model)
        levels = list(ngrams_of(codes_T, len(words), LM_ORDER))
        id_V = np.concatenate([[2, 0], np.arange(NUM_SPECIALS, len(words))])
        rows = NgramRows(NextWordModel(model, suite.device, cpu_cores()), tokens, EOS)
        count = sum(len(level.ids) for level in levels)
        return cls(path, rows, PlainNgrams(levels, id_V, 1), count, to_host(codes_T))

    def histories(self, rows: int) -> np.ndarray:
        """Return (rows, N - 1) words of the target that follow each other in the text, none of them special."""
        windows = np.lib.stride_tricks.sliding_window_view(self.codes_T[:TEXT_CODES], LM_ORDER - 1)
        whole = windows[(windows > NUM_SPECIALS).all(axis=1)]
        return whole[np.arange(rows) * len(whole) // rows].astype(np.int64) - 2


def lm(bench: DecodeBench) -> None:
    """Rows: the pass and whole decodes, without and with an n-gram model of order 5 over the words of the target."""
    suite, device = bench.suite, bench.suite.device
    shape = replace(bench.system.shape, vocab_size=LM_WORDS[device])
    suite.say("a model with n-grams")
    system = System.make(shape, bench.folder)
    alone = open_translation(system.files, device)
    ngrams = TargetNgrams.make(suite, alone.target.tokens, bench.folder)
    _passes(suite, ngrams, shape.vocab_size)
    suite.release()
    sources = random_sources([SENTENCE_WORDS] * bench.sentences, shape.vocab_size)
    translation = open_translation(replace(system.files, lm=str(ngrams.path)), device)
    plain = PlainSearch(system.tensors, ngrams.plain, LM_WEIGHT)
    works = (
        WholeDecode("decode/lm without", system, alone, system.plain, LM_BEAM),
        WholeDecode("decode/lm with", system, translation, plain, LM_BEAM, lm_weight=LM_WEIGHT),
    )
    without, with_lm = (decode_row(suite, work, sources) for work in works)
    with_lm.sizes += f" order={LM_ORDER} ngrams={ngrams.count}"
    if without.rate and with_lm.rate:
        with_lm.baseline, with_lm.speedup = without.kernel, with_lm.rate / without.rate
        with_lm.notes = f"the n-grams cost {1 - with_lm.speedup:.1%} of the rate; target at most {LM_COST:.0%}"
        if device == "gpu" and shape == replace(FULL, vocab_size=shape.vocab_size):
            with_lm.target = (1 - LM_COST) * without.rate


def _passes(suite: Suite, ngrams: TargetNgrams, V: int) -> None:
    """Rows: the pass without n-grams, with their children, with whole rows that are written first; and next states.

    Histories are those of text: most have n-grams of high orders.
    """
    R, xp = ROWS[suite.device], suite.xp
    histories = ngrams.histories(R)
    logits_RV = random_rows(suite, (R, V), "float32")
    costs_R, starts_S1, sizes_S = sentences_of(suite, R, PASS_K)
    nodes_RK = ngrams.rows.start(R)
    nodes_RK, _ = ngrams.rows.step(nodes_RK, xp.full(R, -1, np.int32))
    for word_R in histories.T[:-1]:
        nodes_RK, _ = ngrams.rows.step(nodes_RK, xp.asarray(word_R.astype(np.int32)))
    last_R = xp.asarray(histories[:, -1].astype(np.int32))

    def found() -> NgramScores:
        return ngrams.rows.step(nodes_RK, last_R)[1]

    scores = found()
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "no n-grams": (lambda: None, 0.0),
        "n-gram children": (lambda: scores.children, LM_WEIGHT),
        "n-gram rows": (scores.make_rows, LM_WEIGHT),  # they are written and read
    }
    of_model = f"order={LM_ORDER} ngrams={ngrams.count}"
    for name, (make, weight) in calls.items():
        call = partial(_best, logits_RV, costs_R, (starts_S1, sizes_S), make, weight)
        score_of = partial(_plain_scores, logits_RV, to_host(costs_R), ngrams.plain, histories, weight)
        run_on_device(
            suite, f"decode/lm pass, {name}", f"rows={R} V={V} k={PASS_K} {of_model}", call,
            partial(check_best, score_of=score_of, k=PASS_K, tolerance=TOLERANCE), items=R, unit=ROWS_PER_SECOND,
        )  # fmt: skip
    seconds = device_seconds(found, suite.device)
    suite.add("decode/lm next states", f"rows={R} {of_model}", seconds, items=R, unit=ROWS_PER_SECOND)


def _best(
    logits_RV: Any, costs_R: Any, sentences: tuple[Any, Any], make: Callable[[], Any], weight: float
) -> tuple[Any, Any]:
    """Return (words, scores) of sentences; `make` returns the n-grams as `best_words` takes them."""
    words_RK, scores_RK, _ = best_words(logits_RV[None], PASS_K, costs_R, ngrams=make(), ngram_weight=weight)
    return best_of_beams(words_RK, scores_RK, *sentences)[1:]


def _plain_scores(
    logits_RV: Any, costs_R: np.ndarray, plain: PlainNgrams, histories: np.ndarray, weight: float, row: int
) -> np.ndarray:
    """Return the scores of the words after a row, by NumPy."""
    scores_V = log_probs(to_host(logits_RV[row]).astype(np.float64)) + float(costs_R[row])
    return scores_V + weight * plain.row(histories[row].tolist()) if weight else scores_V
