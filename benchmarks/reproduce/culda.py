"""CuLDA_CGS (Xie et al., 2018): its tables and figures, by parts of `bench lda`."""

from __future__ import annotations

from collections.abc import Mapping

from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.lda.tables import CULDA, CULDA_SPEEDUP, INTENSITY, ON_H200, PUBLISHED, SHARES, WARPLDA
from mgpu_ngram.benchmarks.reproduce.paper import (
    FAILS,
    HOLDS,
    IN_PART,
    Claim,
    Figure,
    Item,
    JudgedRows,
    NoFigure,
    Paper,
    Program,
    Verdict,
    number,
    of_gpu,
    result_of,
    times,
    verdict_of,
)

HARDWARE = {
    "Titan X": "GeForce GTX Titan X", "Titan Xp": "Titan Xp", "V100": "Tesla V100",
    "WarpLDA": "two Xeon E5-2690 v4, 28 cores",
}  # fmt: skip
MEAN_INTENSITY = 0.27  # operations a byte
BALANCE = 67e12 / 4.8e12  # float32 operations of an H200 for each byte of its memory traffic, from its data sheet
PEER = "WarpLDA"
SCALING = 0.75  # share of a linear speed-up: the paper's with four GPUs


def _memory_bound(found: JudgedRows) -> Verdict:
    ours = {row.kernel.removeprefix("lda/table1 "): row.rate or 0.0 for row in found.rated("lda/table1 ")}
    if not ours:
        raise NoFigure("no step was counted")
    listed = ", ".join(f"{step} {rate:.2g}" for step, rate in ours.items())
    why = (
        f"operations for each byte of device memory, counted in our source: {listed}; an H200 can do {BALANCE:.0f}. "
        "They are more than the paper's, because weights of a word stay on the chip and entries have two bytes"
    )
    return Verdict(HOLDS if max(ours.values()) < BALANCE else FAILS, why)


def _faster_than_warplda(found: JudgedRows) -> Verdict:
    def of_corpus(name: str, published: Mapping[str, float]) -> tuple[bool, str]:
        ours = found.rate(f"lda/table4 {name}")
        return ours > 1.61 * published[PEER], (
            f"{name}: {number(ours)} tokens a second, {times(ours / published[PEER])} times WarpLDA as published "
            f"and {times(ours / published['V100'])} times CuLDA_CGS on a V100"
        )

    here = [
        f"; WarpLDA here ({row.notes}): {number(row.rate)} tokens a second of NYTimes"
        for row in found.rows
        if row.kernel == WARPLDA and row.rate
    ]
    return verdict_of([of_corpus(*pair) for pair in PUBLISHED.items()], ending="".join(here))


def _scales_to_new_gpus(found: JudgedRows) -> Verdict:
    theirs = [row.rate for row in found.rows if row.kernel == CULDA and row.rate]
    rate, how = (theirs[0], "here") if theirs else (ON_H200[1], "measured on an H200 before")
    ours, v100 = found.rate("lda/table4 NYTimes"), PUBLISHED["NYTimes"]["V100"]
    why = (
        f"its program, {how}, samples {number(rate)} tokens a second of a corpus of the size of NYTimes, "
        f"{times(rate / v100)} times its rate on a V100, where memory is {4.8 / 0.9:.2g} times as fast; this engine "
        f"samples {number(ours)}"
    )
    return Verdict(HOLDS if rate > 4 * v100 else FAILS, why)


def _rises(found: JudgedRows) -> Verdict:
    gains, whys = {}, []
    for name in PUBLISHED:
        rates = found.by(f"lda/fig7 {name}", "sweep")
        first, last = rates[min(rates)], rates[max(rates)]
        gains[name] = last / first - 1
        whys.append(f"{name} goes from {number(first)} to {number(last)} tokens a second by sweep {max(rates)}")
    why = "; ".join(whys) + ", as documents have fewer topics"
    return Verdict(result_of([gains["NYTimes"] > 0.05, gains["NYTimes"] > gains["PubMed"]]), why)


def _sampling_takes_most(found: JudgedRows) -> Verdict:
    ours = {part: found.rate(f"lda/table5 {part}") for part in SHARES}
    listed = ", ".join(f"{part} {share:.3g} %" for part, share in ours.items())
    least = min(SHARES["sampling"].values())
    return Verdict(HOLDS if ours["sampling"] >= 0.9 * least else FAILS, f"of the time of a sweep here: {listed}")


def _converges(found: JudgedRows) -> Verdict:
    def of_corpus(name: str) -> tuple[bool, str]:
        rows = [row for row in found.rows if row.kernel == f"lda/fig8 {name}" and row.rate is not None]
        if not rows:
            raise NoFigure(f"`lda/fig8 {name}` was not measured")
        points = sorted((row.median_seconds or 0.0, row.rate or 0.0) for row in rows)
        (_, low), (seconds, high) = points[0], points[-1]
        near = next(at for at, value in points if value >= low + 0.9 * (high - low))
        rule = found.by(f"lda/fig8 {name}, own count included", "sweep")
        return high > low, (
            f"{name} rises from {low:.4g} to {high:.4g} a token in {seconds:.3g} s of sweeps, nine tenths of it by "
            f"{near:.3g} s; with the paper's rule it reaches {rule[max(rule)]:.4g}"
        )

    ending = ". Held-out perplexity ranks the two rules the other way round (docs/lda.md)"
    because = "other programs are compared elsewhere, at the same held-out perplexity"
    verdict = verdict_of(map(of_corpus, PUBLISHED), because, ending)
    return verdict._replace(result=IN_PART if verdict.result == HOLDS else FAILS)


def _speedups(found: JudgedRows) -> Verdict:
    rates = found.by("lda/fig9 PubMed", "workers")
    if len(rates) < 2 or 1 not in rates:
        raise NoFigure(f"{', '.join(map(str, rates))} worker(s) were measured; a host with 2 or 4 GPUs is needed")
    gains = {G: rate / rates[1] for G, rate in rates.items() if G > 1}
    listed = ", ".join(
        f"{gain:.3g} times on {G} ({CULDA_SPEEDUP[G]} published)" if G in CULDA_SPEEDUP else f"{gain:.3g} times on {G}"
        for G, gain in gains.items()
    )
    return Verdict(result_of([gain >= SCALING * G for G, gain in gains.items()]), f"{listed}, over one")


PAPER = Paper(
    name="culda",
    title="CuLDA: solving large-scale LDA problems on GPUs",
    source="Xie, Liang, Li and Tan, 2018",
    bench="lda",
    work="The paper trains 1,024 topics on NYTimes and PubMed. Here corpora of the same numbers of documents, words "
    "and tokens are generated, because the data sets cannot be had without network; on a CPU they have 1 M tokens and "
    "64 topics. Counts are compared with the corpus before a sweep is timed.",
    items=(
        Item(
            ("T1",),
            "operations a byte of each step",
            (Claim("LDA sampling does 0.27 operations for each byte, so memory bounds it.", _memory_bound),),
            (
                *(Figure(step, value, "operations/B", "counted, on any") for step, value in INTENSITY.items()),
                Figure("mean of the steps", MEAN_INTENSITY, "operations/B", "counted, on any"),
            ),
            ("table1",),
            shown=("lda/table1",),
        ),
        Item(
            ("T4", "F7"),
            "tokens a second, mean of 100 sweeps and by sweep",
            (
                Claim("CuLDA_CGS is 1.61 to 7.34 times as fast as WarpLDA on 28 cores.", of_gpu(_faster_than_warplda)),
                Claim("CuLDA_CGS scales to future GPUs.", of_gpu(_scales_to_new_gpus)),
                Claim(
                    "The rate rises over the first sweeps and goes steady; PubMed, whose documents are shorter, varies "
                    "less.",
                    of_gpu(_rises),
                ),
            ),
            (
                *(
                    Figure(
                        f"{PEER if where == PEER else 'CuLDA_CGS'}, {name}",
                        rate,
                        TOKENS_PER_SECOND,
                        HARDWARE[where],
                    )
                    for name, rates in PUBLISHED.items()
                    for where, rate in rates.items()
                ),
                *(
                    Figure("CuLDA_CGS, NYTimes, measured later", rate, TOKENS_PER_SECOND, f"{G} x NVIDIA H200")
                    for G, rate in ON_H200.items()
                ),
            ),
            ("table4", "fig7"),
            pictures=("lda_table4", "lda_fig7"),
            shown=("lda/table4", "lda/fig7"),
        ),
        Item(
            ("T5",),
            "shares of the time of a sweep, NYTimes",
            (Claim("Sampling takes 79 to 88 % of the time.", _sampling_takes_most),),
            tuple(
                Figure(f"{part}", share, "%", HARDWARE[where])
                for part, shares in SHARES.items()
                for where, share in shares.items()
            ),
            ("table5",),
            pictures=("lda_table5",),
            shown=("lda/table5",),
        ),
        Item(
            ("F8",),
            "log-likelihood of a token by time",
            (
                Claim(
                    "The log-likelihood of a token converges, in less time than with WarpLDA, LDA* and SaberLDA.",
                    of_gpu(_converges),
                ),
            ),
            (Figure("curves without numbers", "see the paper", "", "V100 and others"),),
            ("fig8",),
            pictures=("lda_fig8",),
            shown=("lda/fig8",),
            differs="LDA* and SaberLDA are not public. WarpLDA stands beside this engine on a CPU in `bench lda --only "
            "cpu`, at the same held-out perplexity.",
        ),
        Item(
            ("F9",),
            "several GPUs, PubMed",
            (Claim("Two GPUs are 1.93 and four 2.99 times as fast as one.", of_gpu(_speedups)),),
            tuple(
                Figure(f"CuLDA_CGS, {G} GPUs", gain, "times one", HARDWARE["Titan Xp"])
                for G, gain in CULDA_SPEEDUP.items()
            ),
            ("fig9",),
            pictures=("lda_fig9",),
            shown=("lda/fig9",),
        ),
    ),
    programs=(
        Program(
            "CuLDA_CGS",
            (CULDA,),
            "`make` with `-arch=sm_90 -O3` in `src_culda` and `src_format` of github.com/cuMF/CuLDA_CGS; `culda` and "
            "`format`, named `culda_format`, are put on the PATH. Mended before: its warp shuffles and ballots have "
            "masks, it does not sleep, its likelihood is summed in double, and it has workers for 132 multiprocessors.",
        ),
        Program(
            PEER,
            (WARPLDA,),
            "`./get_gflags.sh`, `./build.sh` and `make -C release/src` in github.com/thu-ml/warplda, with GCC 12 and "
            "`CXXFLAGS='-include stdexcept'`; `warplda` and `format` are put on the PATH. The paper's peer.",
        ),
    ),
    not_made={
        "Tables 2 and 3": "the hardware and the sizes of the data sets",
        "Figures 1 to 6": "drawings of the algorithm",
    },
)
