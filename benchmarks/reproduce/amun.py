"""Amun (Hoang et al., 2018): its tables and figures, by parts of `bench decode`."""

from __future__ import annotations

from collections.abc import Mapping

from mgpu_ngram.benchmarks.decode import amun as decode_amun
from mgpu_ngram.benchmarks.decode.amun import WHOLE
from mgpu_ngram.benchmarks.decode.cpu import AMUN_CPU
from mgpu_ngram.benchmarks.decode.generated_model import SOURCE_WORDS_PER_SECOND
from mgpu_ngram.benchmarks.decode.published import (
    AMUN_STEP,
    AMUN_UNFUSED,
    AMUN_WORDS,
    FUSED_SECONDS,
    PRODUCT_SECONDS,
    STEP_ROWS,
    STEP_WORDS,
    TENSOR_CORE_SECONDS,
    UNFUSED_SECONDS,
    UNFUSED_STEPS,
)
from mgpu_ngram.benchmarks.reproduce.paper import (
    FAILS,
    HOLDS,
    Claim,
    Figure,
    Item,
    JudgedRows,
    NoFigure,
    Paper,
    Program,
    Verdict,
    of_gpu,
    percent,
    result_of,
    times,
    verdict_of,
)

V100, H200 = "Tesla V100", "NVIDIA H200"
UNFUSED, FUSED = "decode/step unfused", "decode/step fused"
NAIVE, DRAINED = "naive", "drain"  # the batching of Marian, and that of Amun
FUSION_GAIN, BATCH_GAIN = 0.25, 20
SAVED_BY_TENSOR_CORES = {k: 1 - new / old for k, (old, new) in TENSOR_CORE_SECONDS.items()}


def _saves(found: JudgedRows) -> Verdict:
    saved = {k: 1 - ratio for k, ratio in found.ratios(FUSED, UNFUSED, "k", "median_seconds").items()}
    theirs = {k: 1 - FUSED_SECONDS[k] / sum(UNFUSED_SECONDS[k]) for k in FUSED_SECONDS}
    is_so = [saved[k] >= 0.9 * theirs[k] for k in saved]
    why = f"the fused step saves {_by_beam(saved, theirs)} of the time of the three steps in array code"
    return Verdict(result_of(is_so), why)


def _like_the_bias(found: JudgedRows) -> Verdict:
    ratios = found.ratios(FUSED, f"{UNFUSED}, {UNFUSED_STEPS[0]}", "k", "median_seconds")
    published = FUSED_SECONDS[1] / UNFUSED_SECONDS[1][0]
    ratio = {k: ratios[k] for k in (1, 3) if k in ratios}
    listed = ", ".join(f"{value:.2g} times its time with beam {k}" for k, value in ratio.items())
    why = (
        f"the whole fused step takes {listed} ({published:.2g} published with beam 1): it reads the scores, where "
        "adding the bias also writes them"
    )
    return Verdict(result_of([value <= 1.1 * published for value in ratio.values()]), why)


def _tensor_cores(found: JudgedRows) -> Verdict:
    theirs = SAVED_BY_TENSOR_CORES
    gains = _gains(found, "decode/whole float16", "decode/whole float32")
    saved = {k: 1 - 1 / (1 + gains[k]) for k in theirs if k in gains}
    if not saved:
        raise NoFigure("no beam size was measured in both types")
    why = (
        f"float16 saves {_by_beam(saved, theirs)} of the time of whole decodes. Weights and logits are stored in "
        f"float16, too, where Amun rounds the inputs of products alone"
    )
    amun = _amun_gains(found, f"{WHOLE}, float16", f"{WHOLE}, float32")
    return Verdict(result_of([saved[k] >= theirs[k] for k in saved]), why + amun)


def _gains(found: JudgedRows, fast: str, slow: str) -> dict[int, float]:
    """Return by what share a kernel is faster than another, by beam size."""
    return {k: ratio - 1 for k, ratio in found.ratios(fast, slow, "beam").items()}


def _by_beam(shares: Mapping[int, float], published: Mapping[int, float] | None = None) -> str:
    """Return a list of shares by beam size, with those that are published."""
    return ", ".join(
        f"{percent(share)} with beam {k}" + (f" ({percent(published[k])} published)" if published else "")
        for k, share in shares.items()
    )


def _amun_gains(found: JudgedRows, fast: str, slow: str) -> str:
    """Return a clause about Amun's program; nothing where it was not measured."""
    try:
        gains = _gains(found, fast, slow)
    except NoFigure:
        return ""
    return f"; Amun's program gains {_by_beam(gains)} here"


def _falls(found: JudgedRows) -> Verdict:
    seconds = {kind: found.by(f"decode/drain {kind}", "step", "median_seconds") for kind in (DRAINED, NAIVE)}
    left = {}
    for kind, by_step in seconds.items():
        most = max(by_step.values())
        later = [value for step, value in by_step.items() if step > max(by_step) / 2]
        left[kind] = (sum(later) / len(later)) / most
    why = (
        f"in the second half of the steps of a batch, a step takes {percent(left[DRAINED])} of the longest step where "
        f"rows leave the batch, and {percent(left[NAIVE])} where they stay"
    )
    return Verdict(result_of([left[DRAINED] < 0.5, left[NAIVE] > 0.8]), why)


def _gains_by_batch(found: JudgedRows) -> Verdict:
    rates = found.by(f"decode/batch {DRAINED}", "batch")
    gain = max(rates.values()) / rates[min(rates)]
    why = f"batches whose rows leave gain {times(gain)} times from 1 sentence to {max(rates, key=rates.__getitem__):,}"
    try:
        theirs = found.by(decode_amun.BATCH, "batch")
        why += f"; Amun's program gains {times(max(theirs.values()) / theirs[min(theirs)])} times here"
    except NoFigure:
        pass  # it is not on the PATH
    return Verdict(HOLDS if gain > BATCH_GAIN else FAILS, why)


def _keeps_rate(found: JudgedRows) -> Verdict:
    def of_batching(kind: str, name: str) -> tuple[bool, str]:
        rates = found.by(f"decode/batch {kind}", "batch")
        kept = rates[max(rates)] / max(rates.values())
        why = f"where {name}, batches of {max(rates):,} have {percent(kept)} of the highest rate"
        return kept >= 0.9 if kind == DRAINED else kept < 0.9, why

    return verdict_of([of_batching(DRAINED, "rows leave"), of_batching(NAIVE, "rows stay")])


def _fusion(found: JudgedRows) -> Verdict:
    gains = _gains(found, "decode/fusion fused", "decode/fusion unfused")
    why = f"whole decodes gain {_by_beam(gains)}, over bias, softmax and k-best one after another in array code"
    is_so = [gain >= 0.8 * FUSION_GAIN for gain in gains.values()]
    return Verdict(result_of(is_so), why + _amun_gains(found, decode_amun.FUSED, decode_amun.UNFUSED))


def _gains_fall(found: JudgedRows) -> Verdict:
    gains = _gains(found, "decode/fusion fused", "decode/fusion unfused")
    return Verdict(HOLDS if gains[max(gains)] <= gains[min(gains)] else FAILS, f"the gains are {_by_beam(gains)}")


def _table3() -> tuple[Figure, ...]:
    found = []
    for k, steps in UNFUSED_SECONDS.items():
        found += [Figure(f"beam {k}, product", PRODUCT_SECONDS[k][0], "s a run", V100)]
        found += [
            Figure(f"beam {k}, {step}", value, "s a run", V100)
            for step, value in zip(UNFUSED_STEPS, steps, strict=True)
        ]
        found += [Figure(f"beam {k}, fused", FUSED_SECONDS[k], "s a run", V100)]
    sizes = f"{STEP_ROWS:,} rows of {STEP_WORDS:,} words"
    for what, times_of in (("unfused", AMUN_UNFUSED), ("fused", AMUN_STEP)):
        found += [
            Figure(f"its program later, {sizes}, beam {k}, {what}", 1e3 * seconds, "ms a step", H200)
            for k, seconds in times_of.items()
        ]
    return tuple(found)


PAPER = Paper(
    name="amun",
    title="Amun: fast neural machine translation implementation",
    source="Hoang, Dwojak, Krislauks, Torregrosa and Heafield, 2018",
    bench="decode",
    work="The paper translates 50,000 sentences of WMT data with models of GRU and mLSTM cells on a V100. Here a GRU "
    "model of random weights has 50,000 words, embeddings of 512 and states of 1,024 on a GPU (4,000, 64 and 128 on a "
    "CPU) and translates random sentences to a set length, so that the work is the same for every program. Results "
    "are compared with those of plain NumPy before they are timed.",
    items=(
        Item(
            ("T3",),
            "the output layer after the product, by step",
            (
                Claim(
                    "Fusion saves 87, 87 and 72 % of the time of bias, softmax and k-best with beams 1, 3, 9.",
                    of_gpu(_saves),
                ),
                Claim("With low beam sizes the fused operation is as fast as adding the bias.", of_gpu(_like_the_bias)),
            ),
            _table3(),
            ("step",),
            pictures=("decode_table3",),
            shown=("decode/step",),
            differs="Times are of one step; the paper's are of whole runs. Products are cuBLAS' in both and are left "
            "out.",
        ),
        Item(
            ("T4",),
            "tensor cores",
            (Claim("Tensor cores save 14 % of the time with beam 1 and 20 % with beam 9.", of_gpu(_tensor_cores)),),
            (
                *(
                    Figure(f"beam {k}, {what}", seconds, "s a run", V100)
                    for k, pair in TENSOR_CORE_SECONDS.items()
                    for what, seconds in zip(("baseline", "tensor cores"), pair, strict=True)
                ),
                *(
                    Figure(
                        f"its program later, {dtype if dtype == 'float32' else 'tensor cores'}, beam {k}",
                        rate,
                        SOURCE_WORDS_PER_SECOND,
                        H200,
                    )
                    for dtype, rates in AMUN_WORDS.items()
                    for k, rate in rates.items()
                ),
            ),
            ("whole", "cpu"),
            pictures=("decode_whole",),
            shown=("decode/whole", "decode/cpu"),
            differs="A CPU has no tensor cores. There, Amun's CPU program and this engine translate with a trained "
            "model and a random one.",
        ),
        Item(
            ("F2",),
            "the time of each step of a batch",
            (
                Claim(
                    "Steps become faster as sentences end; with naive batches they take the same time.", of_gpu(_falls)
                ),
            ),
            (Figure("curves without numbers, 1,280 sentences", "see the paper", "", V100),),
            ("drain",),
            pictures=("decode_figure2",),
            shown=("decode/drain",),
            differs="A third curve refills the batch with new sentences.",
        ),
        Item(
            ("F3",),
            "the rate by the size of the batch",
            (
                Claim("Batches make Amun over 20 times faster.", of_gpu(_gains_by_batch)),
                Claim("Large batches do not lose speed, where naive ones over 1,000 do.", of_gpu(_keeps_rate)),
            ),
            (Figure("Amun, gain of batches", "over 20 times", "", V100),),
            ("batch",),
            pictures=("decode_figure3",),
            shown=("decode/batch",),
        ),
        Item(
            ("F4",),
            "whole decodes with the fused operation",
            (
                Claim("Fusion makes whole decodes 25 % faster.", of_gpu(_fusion)),
                Claim("The relative gain falls marginally as the beam grows.", of_gpu(_gains_fall)),
            ),
            (Figure("gain of fusion", "25 %", "", V100),),
            ("fusion",),
            pictures=("decode_figure4",),
            shown=("decode/fusion",),
        ),
    ),
    programs=(
        Program(
            "Amun",
            (WHOLE, decode_amun.UNFUSED, decode_amun.FUSED, decode_amun.BATCH, AMUN_CPU),
            "`cmake` and `make` in github.com/marian-nmt/amun, on a GPU with `-gencode=arch=compute_90,code=sm_90` "
            "among the `CUDA_NVCC_FLAGS` of its CMakeLists.txt, on a CPU with `-DCUDA=OFF`; `amun` is put on the PATH.",
        ),
    ),
    not_made={
        "Tables 1 and 2": "BLEU of models trained on WMT data; neither the models nor the data come with the paper",
        "Figure 1": "shares of time of such a model, as a picture without numbers",
    },
    unused=("workers",),
)
