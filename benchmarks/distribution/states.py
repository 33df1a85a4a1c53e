"""States on the device: a word after each of many states, and rows of all words, beside NGPU-LM."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.api.model import Model
from mgpu_ngram.benchmarks.distribution import rates as distribution_rates
from mgpu_ngram.benchmarks.distribution.rates import NGPU_LM, ON_DEVICE
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.harness.units import HISTORIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGEST, SHAPES, WRITES, Case, DistributionBench, ModelSize
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_rows, nodes_of, row_of
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.kernels.dispatch import array_module, to_host

STATES = {"gpu": 1_000_000, "cpu": 20_000}
CHECKED = 8  # states whose probabilities are compared with those of array code
TOLERANCE = 1e-5  # tolerance of a log10 probability
# Targets of one H200.
STEPS_PER_SECOND, ROWS_SHARE = 3e9, 0.8
SHORT_WORDS, SHORT_SECONDS, GRAPH_SECONDS = 1_024, 15e-6, 6e-6  # of one state, from Python and by a CUDA graph


def states(bench: DistributionBench) -> None:
    """Rows: words after states, rows of all words in the shapes of NGPU-LM, and one state as Python sees it."""
    _step(bench)
    for (symbols, batch), rate in distribution_rates.NGPU_LM_RATES.items():
        case = bench.case(ModelSize(symbols))
        if batch <= bench.most(case, case.options(orders="max", scale="ln")):
            _advance(bench, case, batch, rate)
    _one(bench, bench.case(ModelSize(min(symbols for symbols, _ in distribution_rates.NGPU_LM_RATES))))


def model_of(case: Case, device: str) -> Model:
    """Return the model of a case, for users."""
    return Model(BackoffModel(case.subject.trie, case.subject.words, ""), device)


def states_of(case: Case, histories: int) -> Any:
    """Return the states before the first tokens of the text, (H,) int32: the longest histories that the trie has."""
    xp, node_HK = array_module(case.subject.text_T), nodes_of(case, histories)
    length_H = (node_HK >= 0).cumprod(axis=1).sum(axis=1)
    last_H = xp.take_along_axis(node_HK, xp.maximum(length_H - 1, 0)[:, None], axis=1)[:, 0]
    return xp.where(length_H > 0, last_H, -1).astype(np.int32)


def _step(bench: DistributionBench) -> None:
    case, suite = bench.case(SHAPES[LARGEST]), bench.suite
    model, B = model_of(case, suite.device), min(STATES[suite.device], len(case.subject.text_T))
    suite.say(f"words after {B:,} states")
    xp, codes_B = suite.xp, case.subject.text_T[:B]
    states_B, words_B = states_of(case, B), xp.maximum(codes_B, 1).astype(np.int32) - 1
    out = xp.empty(B, np.float32), xp.empty(B, np.int32)
    call = partial(model.step, states_B, words_B, out=out)
    call()
    trie, looked = case.subject.trie, np.linspace(0, B - 1, CHECKED).astype(np.int64)
    node_HK = to_host(nodes_of(case, B)[xp.asarray(looked)])
    for b, nodes in zip(looked.tolist(), node_HK.tolist(), strict=True):
        wanted, got = float(row_of(trie, nodes, "smoothed")[-1][int(words_B[b])]), float(out[0][b])
        if abs(got - wanted) > TOLERANCE:
            raise WrongResult(f"the word after state {b} has log10 {got} but array code gives {wanted}; not timed")
    suite.add(
        "distribution/states, a word after each", case.sizes(B), device_seconds(call, suite.device), items=B,
        unit="states/s", target=bench.target(STEPS_PER_SECOND), notes=ON_DEVICE[suite.device],
    )  # fmt: skip


def _advance(bench: DistributionBench, case: Case, batch: int, rate: float) -> None:
    suite, options = bench.suite, case.options(orders="max", scale="ln")
    model, states_B = model_of(case, suite.device), states_of(case, batch)
    rows, following = bench.rows(batch, case, options), suite.xp.empty((batch, case.symbols), np.int32)
    alone = partial(model.advance, states_B, "ln", next_states=False, out=(rows[:, 0, : case.symbols], None))
    both = partial(model.advance, states_B, "ln", out=(rows[:, 0, : case.symbols], following))
    both()
    check_rows(case, options, rows[:, :, : case.symbols])
    v = case.symbols // 2
    if not suite.xp.array_equal(following[:, v], model.step(states_B, suite.xp.full(batch, v, np.int32))[1]):
        raise WrongResult(f"states after word {v} differ from those of a step; not timed")
    is_target = batch > 1 and case.symbols > SHORT_WORDS * 8
    for name, call, arrays in (("rows", alone, 1), ("rows and states", both, 2)):
        target = bench.written(ROWS_SHARE, case, options) if is_target and arrays == 1 and batch == 1_024 else None
        suite.add(
            f"distribution/states, {name}", case.sizes(batch), device_seconds(call, suite.device), items=batch,
            unit=HISTORIES_PER_SECOND, target=target, ceiling=WRITES[suite.device],
            bytes_moved=arrays * 4 * batch * case.symbols, baseline=NGPU_LM, baseline_seconds=batch / rate,
            notes=ON_DEVICE[suite.device],
        )  # fmt: skip


def _one(bench: DistributionBench, case: Case) -> None:
    suite, xp = bench.suite, bench.suite.xp
    model, states_B = model_of(case, suite.device), states_of(case, 1)
    out = xp.empty((1, case.symbols), np.float32), xp.empty((1, case.symbols), np.int32)
    call = partial(model.advance, states_B, "ln", out=out)
    call()
    how: dict[str, Any] = {"items": 1, "unit": HISTORIES_PER_SECOND}
    is_target = case.symbols == SHORT_WORDS
    suite.run(
        "distribution/states, one from Python", case.sizes(1), call, **how,
        target=bench.target(1 / SHORT_SECONDS) if is_target else None,
    )  # fmt: skip
    if suite.device == "gpu":
        stream = xp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            call()
            graph = stream.end_capture()
            suite.run(
                "distribution/states, one by a CUDA graph", case.sizes(1), graph.launch, **how,
                target=bench.target(1 / GRAPH_SECONDS) if is_target else None,
            )  # fmt: skip
