"""`mgpu-ngram bench decode`: beam search from its kernels to whole decodes, beside Amun's figures and PyTorch.

The targets of a part stand in its own file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.decode.batches import batch, drain, refill
from mgpu_ngram.benchmarks.decode.cpu import cpu
from mgpu_ngram.benchmarks.decode.fused_pass import fusion
from mgpu_ngram.benchmarks.decode.generated_model import DecodeBench
from mgpu_ngram.benchmarks.decode.logits_pass import fused_pass
from mgpu_ngram.benchmarks.decode.ngrams import lm
from mgpu_ngram.benchmarks.decode.step import step
from mgpu_ngram.benchmarks.decode.whole import whole
from mgpu_ngram.benchmarks.decode.workers import workers as several_workers
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import open_suite

WORDS = {"gpu": 75_000, "cpu": 1_500}  # words of the whole decode: on a GPU 3,000 sentences
MIN_WORDS = 100
FLAGS = {"tokens", "workers", "only", "folder"}
SEARCH = "engine.decode.batch", "engine.decode.open_translation"
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "decode/": SEARCH,
    "decode/cpu": ("jobs.decode.run",),
    "decode/cpu Amun": (),
    "decode/fusion": (*SEARCH, "engine.decode.word_scores"),
    "decode/lm": (*SEARCH, "engine.decode.word_scores"),
    "decode/pass": ("kernels.decode.best_hypotheses",),
    "decode/pass cupy": (),
    "decode/pass torch": (),
    "decode/step": ("kernels.decode.advance_beams", "kernels.decode.best_hypotheses"),
    "decode/step torch": (),
    "decode/workers": ("jobs.decode.run",),
}
PARTS: dict[str, Callable[[DecodeBench], None]] = {
    "pass": fused_pass,
    "step": step,
    "whole": whole,
    "fusion": fusion,
    "batch": batch,
    "drain": drain,
    "refill": refill,
    "lm": lm,
    "workers": several_workers,
    "cpu": cpu,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure beam search, write decode.csv and figures to the folder of results, and return the rows.

    tokens  words of the sentences of a whole decode, 25 each; other parts take as many sentences or fewer
    only    parts to measure; the rate at which the device copies is always measured

    Results are compared with those of plain NumPy before they are timed, and WrongResult is raised when one differs.
    Rows are printed and saved part by part.
    """
    parts, clusters = options.parts(PARTS), options.clusters()
    words = options.num_tokens(WORDS, MIN_WORDS)
    suite = open_suite("decode", options)
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = DecodeBench(suite, words, clusters, Path(place))
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    from mgpu_ngram.benchmarks.decode import figures as decode_figures

    decode_figures.draw(suite.rows, Path(options.results))
    return [asdict(row) for row in suite.rows]
