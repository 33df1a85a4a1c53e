"""The experiments of giLM (Li, 2018) with this engine: Figures 5.1 and 5.2, Tables 5.1 to 5.3."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from mgpu_ngram.benchmarks.distribution.rates import ON_DEVICE, dense_row
from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.units import DISTRIBUTIONS_PER_SECOND, QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGE, SHAPES, SMALL, Case, DistributionBench
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_rows
from mgpu_ngram.benchmarks.inputs.plain_scoring import ScoreWork
from mgpu_ngram.benchmarks.inputs.scoring_subjects import edge_table
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.kernels.dispatch import array_module, to_host

SENTENCES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
MAX_ROOMS = 32  # that the rows of a text may fill, one after the other
ORDERS = (5, 4, 3)
PROBABILITIES_PER_SECOND = "probabilities/s"
# Li (2018), on one GPU of a K80: a second, in millions, of his large and of his small model. The first row of Table 5.3
# measures the small model again.
GILM_ON_K80, GLM_ON_K80 = "giLM on a K80", "gLM on a K80"
TABLE_51 = {
    "smoothed": {LARGE: 0.36e6, SMALL: 27.90e6},
    "stored": {LARGE: 0.35e6, SMALL: 38.56e6},
    "scores": {LARGE: 13.08e6, SMALL: 21.45e6},
}
TABLE_53 = {LARGE: {5: 0.36e6, 4: 0.27e6, 3: 0.18e6}, SMALL: {5: 30.00e6, 4: 28.38e6, 3: 22.70e6}}


def saturation(bench: DistributionBench) -> None:
    """Rows: scores of words, and distributions after them, by sentences at once. Figures 5.1 and 5.2."""
    case, suite = bench.case(SHAPES[LARGE]), bench.suite
    suite.say("saturation")
    index, options = edge_table(case.subject.trie), case.options()
    out = bench.rows(bench.most(case, options), case, options)
    ends_S = to_host(array_module(case.subject.text_T).flatnonzero(case.subject.text_T == 0)) + 1
    for sentences in SENTENCES:
        if sentences > len(ends_S):
            break
        T = int(ends_S[sentences - 1])
        sizes = f"{case.subject.model_sizes} V={case.symbols} sentences={sentences} T={T}"
        is_written = T <= MAX_ROOMS * bench.most(case, options)
        if is_written:
            check_rows(case, options, *_in_blocks(case, T, out))
        seconds = device_seconds(partial(index.score, case.subject.text_T[:T]), suite.device)
        suite.add(
            "distribution/saturation scores", sizes, seconds, items=T, unit=QUERIES_PER_SECOND,
            notes=ON_DEVICE[suite.device],
        )  # fmt: skip
        if is_written:
            seconds = device_seconds(partial(_in_blocks, case, T, out), suite.device)
            items = T * len(options.orders)
            suite.add(
                "distribution/saturation rows", sizes, seconds, items=items, unit=DISTRIBUTIONS_PER_SECOND,
                notes=ON_DEVICE[suite.device],
            )  # fmt: skip


def _in_blocks(case: Case, histories: int, out: Any) -> tuple[Any, int]:
    """Find all, then write as many rows at once as there is room for; returns the last ones, and whose they are."""
    found = case.find_first(histories)
    for begin in range(0, histories, len(out)):
        block = found.part(begin, begin + len(out))
        rows = case.model.dense(block, case.options(), out[: len(block.first_HK)])
    return rows, begin


def throughput(bench: DistributionBench) -> None:
    """Rows: distributions with backoff and without, scores of words, and probabilities of each. Tables 5.1 and 5.2.

    And models with backoffs and without: their sizes, and stored distributions.
    """
    for name in LARGE, SMALL:
        case, suite = bench.case(SHAPES[name]), bench.suite
        suite.say(f"with and without backoff, V = {case.symbols:,}")
        rates = {}
        for mode in "smoothed", "stored":
            peer = GILM_ON_K80, TABLE_51[mode][name]
            rates[mode] = dense_row(bench, f"table5.1 {name}", case, case.options(mode=mode), peer=peer).rate
        bare = replace(case, model=_without_backoffs(case))
        dense_row(bench, f"table5.1 {name}, no backoffs,", bare, bare.options(mode="stored"))
        rates["scores"] = score_row(bench, f"table5.1 {name} scores", case, (GLM_ON_K80, TABLE_51["scores"][name])).rate
        for what, rate in rates.items():
            _outputs(bench, name, case, what, rate, 1 if what == "scores" else case.symbols)
        _sizes(bench, name, case)


def score_row(bench: DistributionBench, part: str, case: Case, peer: tuple[str, float] | None = None) -> Any:
    """A row: our scores of the words of the text, one each."""
    codes_T, index = case.subject.text_T, edge_table(case.subject.trie)
    T = len(codes_T)
    beside: dict[str, Any] = {"baseline": peer[0], "baseline_seconds": T / peer[1]} if peer else {}
    call, check = partial(index.score, codes_T), ScoreWork.of(case.subject.trie, codes_T).check
    return bench.suite.run(
        f"distribution/{part}", case.subject.sizes(codes_T), call, check=check, items=T, unit=QUERIES_PER_SECOND,
        **beside,
    )  # fmt: skip


def _outputs(bench: DistributionBench, name: str, case: Case, what: str, rate: float | None, each: int) -> None:
    """A row: numbers that come out a second, which is what Table 5.2 compares."""
    row = bench.suite.add_note(f"distribution/table5.2 {name} {what}", case.subject.model_sizes, f"{each:,} each")
    if rate:
        who, theirs = (GLM_ON_K80 if what == "scores" else GILM_ON_K80), TABLE_51[what][name] * each
        row.rate, row.rate_unit = rate * each, PROBABILITIES_PER_SECOND
        row.baseline, row.speedup = who, rate * each / theirs


def _without_backoffs(case: Case) -> NextWordModel:
    """Of the same model, made by `mgpu-ngram trie --no-backoff`."""
    trie = case.subject.trie
    model = BackoffModel(replace(trie, backoff_M=trie.backoff_M[:0]), case.subject.words, "")
    return NextWordModel(model, case.model.device, case.model.threads)


def _sizes(bench: DistributionBench, name: str, case: Case) -> None:
    """Rows: bytes of a model file with backoffs, and without."""
    trie, path = case.subject.trie.map_arrays(to_host_fast), bench.folder / "sized"
    for what, saved in (("with", trie), ("without", replace(trie, backoff_M=trie.backoff_M[:0]))):
        row = bench.suite.add_note(
            f"distribution/model {name} {what} backoffs", case.subject.model_sizes, "size of its file"
        )
        row.rate, row.rate_unit = float(save_model(path, BackoffModel(saved, case.subject.words, ""))), "B"
        path.unlink()


def order(bench: DistributionBench) -> None:
    """Rows: distributions after models of falling order, and scores with them. Table 5.3."""
    for name in LARGE, SMALL:
        full = bench.case(SHAPES[name])
        bench.suite.say(f"order, V = {full.symbols:,}")
        for n in ORDERS:
            case = full if n == full.order else Case.of(full.subject.of_order(n), bench.suite.device)
            dense_row(bench, f"table5.3 {name}", case, case.options(), peer=(GILM_ON_K80, TABLE_53[name][n]))
            score_row(bench, f"table5.3 {name} scores", case)
            bench.suite.release()
