"""Whole decodes with the fused pass and with bias, softmax and k-best one after another (Figure 4 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.decode import amun as decode_amun
from mgpu_ngram.benchmarks.decode import peers
from mgpu_ngram.benchmarks.decode.generated_model import (
    SENTENCE_WORDS,
    SENTENCES_AT_ONCE,
    SOURCE_WORDS_PER_SECOND,
    DecodeBench,
    check_results,
    options_of,
    random_sources,
    sizes_of,
    words_in,
)
from mgpu_ngram.benchmarks.decode.step import BEAMS
from mgpu_ngram.engine.decode.batch import Batching, Forced, search_all
from mgpu_ngram.engine.decode.ensemble import Ensemble
from mgpu_ngram.engine.decode.search_options import Hypothesis
from mgpu_ngram.engine.decode.word_scores import WordScores
from mgpu_ngram.kernels.decode.best_of_beams import Chosen, best_of_beams

UNFUSED = "decode/fusion unfused"
PUBLISHED = "25 % faster by fusion on a V100, as published"


class UnfusedScores(WordScores):
    """Scores of one model whose best words are found in steps of array code."""

    def best(self, k: int, costs_R: Any, forbidden_F: Any) -> tuple[Any, Any]:
        scores_RV = peers.log_softmax(peers.add_bias(self.logits_MRV[0], self.bias_MV[0]))
        if forbidden_F is not None:
            scores_RV[:, forbidden_F] = -np.inf
        words_RK, scores_RK = peers.k_best(scores_RV, k)
        return words_RK.astype(np.int32), scores_RK + costs_R[:, None]

    def best_of_beams(self, k: int, costs_R: Any, starts_S1: Any, sizes_S: Any, forbidden_F: Any) -> Chosen:
        return best_of_beams(*self.best(k, costs_R, forbidden_F), starts_S1, sizes_S)


class UnfusedEnsemble(Ensemble):
    """One model without the fused pass. Its steps are not captured, because sorts may wait for the device."""

    version = None

    def step(self, state: Any, words_R: Any) -> tuple[Any, WordScores]:
        state, scores = super().step(state, words_R)
        return state, UnfusedScores(**{f.name: getattr(scores, f.name) for f in fields(scores)})


def fusion(bench: DecodeBench) -> None:
    """Rows by beam size: unfused, then fused; on a GPU also of Amun's program where it is on the PATH."""
    suite, system = bench.suite, bench.system
    sources = random_sources([SENTENCE_WORDS] * bench.sentences, system.shape.vocab_size)
    batching = Batching(SENTENCES_AT_ONCE[suite.device])
    for k in BEAMS:
        suite.say(f"whole decodes, unfused and fused, beam {k}")
        unfused, fused = (
            suite.run(
                kernel, sizes_of(system.shape, sources, k, batching),
                partial(decoded, bench, kind, sources, k, batching),
                check=partial(check_results, sources=sources, plain=system.plain, beam_size=k, dtype="float32"),
                items=words_in(sources), unit=SOURCE_WORDS_PER_SECOND,
            )
            for kernel, kind in ((UNFUSED, UnfusedEnsemble), ("decode/fusion fused", Ensemble))
        )  # fmt: skip
        if unfused.rate and fused.rate:
            fused.baseline, fused.speedup, fused.notes = UNFUSED, fused.rate / unfused.rate, PUBLISHED
    if decode_amun.is_there(bench, decode_amun.FUSED):
        for k in BEAMS:
            decode_amun.add_row(bench, decode_amun.UNFUSED, sources, k, batching.sentences, decode_amun.NO_FUSION)
            decode_amun.add_row(bench, decode_amun.FUSED, sources, k, batching.sentences)


def decoded(
    bench: DecodeBench, kind: type[Ensemble], sources: Sequence[np.ndarray], k: int, batching: Batching
) -> list[list[Hypothesis]]:
    """Return the results of a decode with an ensemble of a kind."""
    model = kind(bench.translation().steps(), [1.0])
    requests = {i: Forced().request(i, len(source), model.eos) for i, source in enumerate(sources)}
    found = search_all(model, requests, sources, options_of(k), batching)
    return [found[i] for i in range(len(sources))]
