"""Whole decodes of a generated GRU model: source words a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_ngram.benchmarks.decode import amun as decode_amun
from mgpu_ngram.benchmarks.decode.generated_model import (
    DTYPES,
    SENTENCE_WORDS,
    SENTENCES_AT_ONCE,
    SOURCE_WORDS_PER_SECOND,
    DecodeBench,
    System,
    check_results,
    options_of,
    random_sources,
    sizes_of,
    words_in,
)
from mgpu_ngram.benchmarks.decode.peers import TorchModel, choose_threads, has_torch, release_torch
from mgpu_ngram.benchmarks.decode.published import AMUN, AMUN_WORDS
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.inputs.plain_beam_search import PlainSearch
from mgpu_ngram.engine.decode.batch import Batching, sentences_at_once
from mgpu_ngram.engine.decode.open_translation import Translation

BEAMS = (1, 3, 6, 9)
MANY_SENTENCES = 20_000  # from here on, fewer settings and one run each
MANY = (("float16", 1), ("float16", 6))
TARGETS = {  # source words/s on one H200, at least
    "float32": {1: 300e3, 3: 150e3, 6: 85e3, 9: 60e3},
    "float16": {1: 700e3, 3: 370e3, 6: 220e3, 9: 150e3},
}
MANY_TARGETS = {1: 1.2e6, 6: 0.35e6}


@dataclass(frozen=True)
class WholeDecode:
    """A whole decode.

    plain      the search of plain NumPy
    lm_weight  of the system's n-gram model
    """

    kernel: str
    system: System
    translation: Translation
    plain: PlainSearch
    beam_size: int
    dtype: str = "float32"
    lm_weight: float = 0.0


def whole(bench: DecodeBench) -> None:
    """Rows by dtype and beam size: PyTorch and Amun's program where they are installed, then this engine."""
    suite, system = bench.suite, bench.system
    sources = random_sources([SENTENCE_WORDS] * bench.sentences, system.shape.vocab_size)
    is_many = bench.sentences > MANY_SENTENCES
    for dtype in DTYPES[suite.device]:
        beams = [k for k in BEAMS if not is_many or (dtype, k) in MANY]
        beside = _torch_rows(bench, sources, beams, dtype) if has_torch() and not is_many else {}
        release_torch(suite.device)
        if not is_many and decode_amun.is_there(bench, f"{decode_amun.WHOLE}, {dtype}"):
            for k in beams:
                settings = decode_amun.TENSOR_CORES if dtype == "float16" else ""
                decode_amun.add_row(bench, f"{decode_amun.WHOLE}, {dtype}", sources, k, settings=settings)
        for k in beams:
            suite.say(f"whole decode, {dtype}, beam {k}")
            work = WholeDecode(f"decode/whole {dtype}", system, bench.translation(dtype), system.plain, k, dtype)
            row = decode_row(suite, work, sources, runs=1 if is_many else None)
            name, rate = (AMUN, AMUN_WORDS[dtype][k]) if bench.is_full else beside.get(k, ("", None))
            if row.rate and rate:
                row.baseline, row.speedup = name, row.rate / rate
            row.target = (MANY_TARGETS if is_many else TARGETS[dtype])[k] if bench.is_full else None


def decode_row(
    suite: Suite,
    work: WholeDecode,
    sources: Sequence[np.ndarray],
    batching: Batching | None = None,
    runs: int | None = None,
) -> Row:
    """A row of whole decodes, whose results are checked."""
    batching = batching or Batching(sentences_at_once(suite.device, work.beam_size))
    return suite.run(
        work.kernel, sizes_of(work.system.shape, sources, work.beam_size, batching),
        lambda: work.translation.decode(sources, options_of(work.beam_size), batching, lm_weight=work.lm_weight),
        check=lambda found: check_results(found, sources, work.plain, work.beam_size, work.dtype),
        items=words_in(sources), unit=SOURCE_WORDS_PER_SECOND, runs=runs,
    )  # fmt: skip


def _torch_rows(
    bench: DecodeBench, sources: Sequence[np.ndarray], beams: Sequence[int], dtype: str
) -> dict[int, tuple[str, float | None]]:
    """Rows of PyTorch. Return {beam size: (name, source words/s)}."""
    suite, system, batch = bench.suite, bench.system, SENTENCES_AT_ONCE[bench.suite.device]
    suite.say(f"PyTorch, {dtype}")
    model = TorchModel(system.tensors, suite.device, dtype)
    choose_threads(lambda: model.translate(sources[:batch], beams[0], batch), suite.device)
    found: dict[int, tuple[str, float | None]] = {}
    for k in beams:
        row = _torch_row(bench, model, sources, k, dtype, batch)
        found[k] = row.kernel, row.rate
    return found


def _torch_row(
    bench: DecodeBench, model: TorchModel, sources: Sequence[np.ndarray], k: int, dtype: str, batch: int
) -> Row:
    return bench.suite.run(
        f"decode/whole torch {dtype}", sizes_of(bench.system.shape, sources, k, Batching(batch, kind="naive")),
        lambda: model.translate(sources, k, batch),
        check=lambda found: check_results(found, sources, bench.system.plain, k, dtype),
        items=words_in(sources), unit=SOURCE_WORDS_PER_SECOND, notes="the same model in a plain loop",
    )  # fmt: skip
