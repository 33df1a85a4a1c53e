"""`mgpu-ngram bench paper` makes every table and figure of each paper, or says why not, and judges each claim."""

import csv
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mgpu_ngram import cli
from mgpu_ngram.benchmarks import PAPERS
from mgpu_ngram.benchmarks.count import byte_ngrams
from mgpu_ngram.benchmarks.decode import amun as decode_amun
from mgpu_ngram.benchmarks.decode import batches as decode_batch
from mgpu_ngram.benchmarks.decode import cpu as decode_cpu
from mgpu_ngram.benchmarks.decode import fused_pass
from mgpu_ngram.benchmarks.decode import generated_model as decode_work
from mgpu_ngram.benchmarks.decode import step as decode_step
from mgpu_ngram.benchmarks.decode import whole as decode_whole
from mgpu_ngram.benchmarks.distribution import thesis as distribution_thesis
from mgpu_ngram.benchmarks.harness import machine_rates, suite
from mgpu_ngram.benchmarks.harness.bench_modules import open_bench
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.rows import Row, read_rows, write_rows
from mgpu_ngram.benchmarks.inputs import distribution_cases, scoring_subjects
from mgpu_ngram.benchmarks.inputs.distribution_cases import ModelSize
from mgpu_ngram.benchmarks.lda import peers as lda_peers
from mgpu_ngram.benchmarks.lda import tables as lda_paper
from mgpu_ngram.benchmarks.reproduce import amun as paper_amun
from mgpu_ngram.benchmarks.reproduce import culda as paper_culda
from mgpu_ngram.benchmarks.reproduce import glm as paper_glm
from mgpu_ngram.benchmarks.reproduce import page as paper_page
from mgpu_ngram.benchmarks.reproduce import quote
from mgpu_ngram.benchmarks.reproduce.measure import reproduce
from mgpu_ngram.benchmarks.reproduce.paper import (
    FAILS,
    HOLDS,
    IN_PART,
    UNKNOWN,
    Claim,
    Figure,
    Item,
    JudgedRows,
    NoFigure,
    Paper,
    Verdict,
    of_gpu,
    open_paper,
    saturated,
    verdict_of,
)
from mgpu_ngram.benchmarks.score import effects as score_effects
from mgpu_ngram.benchmarks.score import rates as score_rates
from mgpu_ngram.benchmarks.score import sustained as score_sustained
from mgpu_ngram.cluster.local import LocalExecutor

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]
# What each paper has, by the tables, figures and sections that its text names.
LISTED = {
    "glm": "T1 T2 T3 T4 T5 F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 5.6 5.7",
    "gilm": "T5.1 T5.2 T5.3 T5.4 F5.1 F5.2 F5.3 hypotheses",
    "ngrams-cuda": "A B",
    "culda": "T1 T2 T3 T4 T5 F1 F2 F3 F4 F5 F6 F7 F8 F9",
    "amun": "T1 T2 T3 T4 F1 F2 F3 F4",
}
ROWS_OF_THE_INDEX = 24
OPTIONS: dict[str, dict] = {
    "glm": {"tokens": 2_000},
    "gilm": {"tokens": 2_000, "size": "1 MiB"},
    "ngrams-cuda": {"size": "10 kB"},
    "culda": {"tokens": 4_000, "workers": "1,2"},
    "amun": {"tokens": 100},
}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with little text, small models and few rounds: the tests need no precise times."""
    shapes = {distribution_cases.SMALL: ModelSize(150, 1_000), distribution_cases.LARGE: ModelSize(301)}
    with pytest.MonkeyPatch.context() as patch:
        for numbers, value in (
            (scoring_subjects.QUERIES, 300), (scoring_subjects.TEXT_WORDS, 1_500), (score_sustained.SECONDS, 0.01),
            (score_sustained.PASSES, 1), (score_rates.LARGER, 4), (distribution_cases.TEXT_WORDS, 1_200),
            (distribution_cases.FOUND_HISTORIES, 500), (lda_paper.SWEEPS, 3), (lda_paper.TOPICS, 8),
            (decode_work.SHAPES, decode_work.GRUShape(60, 6, 8)), (decode_work.SENTENCES_AT_ONCE, 4),
            (decode_batch.BATCHES, (1, 4)), (decode_batch.DRAINED, 48), (decode_step.WORDS, 100),
            (decode_step.ROWS, 18), (decode_step.SENTENCES, 10), (suite.CEILING_BYTES, 1 << 20),
            (suite.SORTED_KEYS, 1 << 12),
        ):  # fmt: skip
            for device in "cpu", "gpu":
                patch.setitem(numbers, device, value)
        patch.setitem(decode_work.SHAPES, "gpu", decode_work.GRUShape(2_000, 32, 64))
        patch.setitem(lda_paper.TOPICS, "gpu", 64)
        for name, shape in shapes.items():
            patch.setitem(distribution_cases.SHAPES, name, shape)
        patch.setattr(scoring_subjects.Subject, "make", staticmethod(cache(scoring_subjects.Subject.make)))
        patch.setattr(score_effects, "FANOUTS", (4, 33, 64))
        patch.setattr(machine_rates, "READS", 1 << 20)
        patch.setattr(distribution_thesis, "SENTENCES", (1, 5, 20))
        patch.setattr(lda_paper, "open_executor", lambda cluster: threads(cluster.device, cluster.workers))
        patch.setattr(lda_peers, "is_there", lambda program: False)
        patch.setattr(decode_whole, "BEAMS", (1, 3))
        patch.setattr(decode_whole, "has_torch", lambda: False)
        patch.setattr(fused_pass, "BEAMS", (1, 3))
        patch.setattr(decode_batch, "MIN_SENTENCES", 2)
        patch.setattr(decode_batch, "MEAN_WORDS", 6)
        patch.setattr(byte_ngrams, "LOOP_BYTES", 1 << 12)
        patch.setattr("mgpu_ngram.benchmarks.harness.timing.MAX_RUNS", 1)
        yield


def threads(device, workers):
    """Return an executor whose gangs have a rank in each of its threads."""
    executor = LocalExecutor(device, workers)
    executor.tasks_per_process = 1
    return executor


def expanded(name):
    """Return the short names in the reasons of what is not made: "Figures 1 to 3 and 5" is F1, F2, F3, F5."""
    kind = {"T": "T", "F": "F"}.get(name[0], "")
    spans = re.findall(r"([\d.]+)(?: to (\d+))?", name)
    return {f"{kind}{n}" for a, b in spans for n in ([a] if not b else range(int(a), int(b) + 1))}


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_is_made_whole(name, device, tmp_path):
    paper = open_paper(name)
    options = OPTIONS[name] | ({"workers": "1"} if device == "gpu" and "workers" in OPTIONS[name] else {})
    page = reproduce(paper, BenchOptions(device, tmp_path, **options)).read_text()
    assert page == (tmp_path / name / "README.md").read_text()
    with open(tmp_path / name / "claims.csv", newline="") as file:
        claims = list(csv.DictReader(file))
    judged = {(line["names"].split()[0], line["claim"]) for line in claims}
    assert judged == {(item.name, claim.text) for item in paper.items for claim in item.claims}
    assert {line["verdict"] for line in claims} <= {HOLDS, IN_PART, FAILS, UNKNOWN} and all(c["why"] for c in claims)
    for item in paper.items:
        heading = page.index(f"\n## {', '.join(map(paper_page.long_name, item.names))}: {item.title}\n")
        assert page.index("### ", heading) and all(figure.what in page for figure in item.figures)
        if item.parts:
            rows = read_rows(tmp_path / name / f"{item.name}.csv")
            assert [row for row in rows if row.rate is not None or row.notes]
            assert all(row.commit in page and row.date in page and row.host in page for row in rows)
            assert all(f"which ran `{row.command}`" in page for row in rows)
            for picture in paper_page.pictures_of(item):
                assert f"]({paper_page.with_device(picture, rows[0].device)})" in page
    made = {n for item in paper.items for n in item.names}
    assert set(LISTED[name].split()) <= made | {n for reason in paper.not_made for n in expanded(reason)}
    assert not made & {n for reason in paper.not_made for n in expanded(reason)}
    assert "Not measured yet" not in page


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_names_parts_and_options_of_its_bench(name):
    paper = open_paper(name)
    bench = open_bench(paper.bench)
    names = [n for item in paper.items for n in item.names]
    assert len(set(names)) == len(names) and paper.not_made
    for item in paper.items:
        assert set(item.parts) <= set(bench.PARTS) and bool(item.parts) != bool(item.of)
        assert all(paper.item(n).parts for n in item.of) and item.claims
    assert "only" in paper.flags and "text" not in paper.flags


@pytest.mark.parametrize("name", PAPERS)
def test_pages_show_the_rows_as_they_are(name, tmp_path):
    folder = CHECKOUT / "benchmarks" / "papers" / name
    if not (folder / "README.md").is_file():
        pytest.skip(f"{name} has no results yet")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    paper_page.write_page(open_paper(name), tmp_path)
    for file in ("README.md", "claims.csv"):
        assert (tmp_path / file).read_text() == (folder / file).read_text(), "run `mgpu-ngram bench quote`"


# What the stored rows of an H200 lack.
NOT_STORED = {
    "decode/drain drain",
    "decode/fusion fused",
    "lda/fig7 NYTimes",
    "no step was counted",
    "worker(s)",
    "the clock of the cores stayed at",
}


@pytest.mark.parametrize("name", PAPERS)
def test_rows_of_a_gpu_are_judged(name):
    paper = open_paper(name)
    rows = [r for r in read_rows(CHECKOUT / "benchmarks" / "results" / f"{paper.bench}.csv") if r.device == DEVICE]
    for item in paper.items:
        for claim in item.claims:
            verdict = claim.verdict(rows)
            lacks = verdict.result == UNKNOWN and any(word in verdict.why for word in NOT_STORED)
            assert verdict.result in (HOLDS, IN_PART, FAILS) or lacks, (claim.text, verdict)


def test_the_index_has_a_line_for_each_table_and_figure():
    lines = [line for line in (CHECKOUT / "docs" / "papers.md").read_text().splitlines() if "`mgpu-ngram bench" in line]
    items = [(name, item) for name in PAPERS for item in open_paper(name).items]
    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == len(items) == ROWS_OF_THE_INDEX
    for line, (name, item) in zip(table, items, strict=True):
        assert f"`mgpu-ngram bench paper {name} --only {','.join(item.of or (item.name,))}`" in line


RATE = "queries/s"
DEVICE = "NVIDIA H200"


def claim_that(limit):
    return Claim(
        f"Over {limit}.", lambda found: Verdict(HOLDS if found.rate("a", "n=2") > limit else FAILS, "it is a rate")
    )


@pytest.fixture
def by_hand(monkeypatch):
    """A paper of one table and of one that judges its rows; its bench gives rates of 1, 2, 3, ... a run."""
    rates = iter(range(1, 9))

    class Bench:
        FLAGS = frozenset({"tokens", "text"})

        @staticmethod
        def bench(options):
            rows = [Row("a", f"n={n}", "x, 2 cores", "1", rate=float(n), rate_unit=RATE) for n in (2, 10)]
            rows += [Row("theirs", "n=2", "x, 2 cores", "1", rate=float(next(rates)), rate_unit=RATE)]
            write_rows(rows, Path(options.results) / "score.csv")

    monkeypatch.setattr("mgpu_ngram.benchmarks.reproduce.measure.open_bench", lambda name: Bench)
    figures = (Figure("theirs", 1.5, RATE, "a GTX"), Figure("more", "none fits", "", "a GTX"))
    one = Item(("T1", "F2"), "rates", (claim_that(1), claim_that(5)), figures, ("p",))
    return Paper(
        "hand", "Hand: a paper", "A. U. Thor", "score", "Work.", (one, Item(("5.6",), "x", one.claims, of=("T1",)))
    )


def test_a_page_by_hand(by_hand, tmp_path):
    page = reproduce(by_hand, BenchOptions("cpu", tmp_path)).read_text()
    assert "## Table 1, Figure 2: rates" in page and "## Section 5.6: x" in page
    assert "| theirs | 1.5 queries/s | a GTX |" in page and "| more | none fits | a GTX |" in page
    assert page.index("| a | n=2 | 2 queries/s |") < page.index("| a | n=10 | 10 queries/s |")
    assert page.count("- *Over 1.* **Holds:** it is a rate.") == 2 == page.count("- *Over 5.* **Does not hold:**")
    assert (tmp_path / "hand" / "T1_x_2_cores.png").read_bytes().startswith(
        b"\x89PNG"
    ) and "](T1_x_2_cores.png)" in page


def test_a_new_run_replaces_the_rows_of_its_device_alone(by_hand, tmp_path):
    reproduce(by_hand, BenchOptions("cpu", tmp_path))
    path = tmp_path / "hand" / "T1.csv"
    write_rows([Row("a", "n=2", DEVICE, "1", rate=9.0), Row("old", "n=1", "x, 2 cores", "1", rate=1.0)], path)
    page = reproduce(by_hand, BenchOptions("cpu", tmp_path, only="F2")).read_text()
    found = {(row.device, row.kernel, row.rate) for row in read_rows(path)}
    assert found == {(DEVICE, "a", 9), ("x, 2 cores", "a", 2), ("x, 2 cores", "a", 10), ("x, 2 cores", "theirs", 2)}
    assert page.index(f"### {DEVICE}") < page.index("### x, 2 cores") and page.count("**Holds:**") == 6


def test_what_rows_lack_is_not_judged():
    found = JudgedRows([Row("a", "n=2", DEVICE, "1", notes="does not fit"), Row("a", "n=3 k=1", DEVICE, "1", rate=2.0)])
    assert found.rate("a", "k=1") == 2 and found.by("a", "n") == {3: 2.0} and found.is_gpu
    for call, message in (
        (lambda: found.rate("a", "n=2"), "`a n=2` has no figure: does not fit"),
        (lambda: found.rate("b"), "`b` has no figure: it was not measured"),
        (lambda: found.by("b", "n"), "`b` has no figure by n"),
    ):
        with pytest.raises(NoFigure, match=re.escape(message)):
            call()
    assert claim_that(1).verdict(found.rows)[:2] == (UNKNOWN, "`a n=2` has no figure: does not fit")
    assert claim_that(1).verdict([])[0] == UNKNOWN


def test_an_explanation_is_told_where_a_claim_does_not_hold():
    for result, why in ((FAILS, "1 of 2; clocks"), (IN_PART, "1 of 2; clocks"), (HOLDS, "1 of 2"), (UNKNOWN, "1 of 2")):
        assert Verdict(result, "1 of 2", "clocks").explained()[:2] == (result, why)
    of_cpu = [Row("a", "n=2", "x, 2 cores", "1", rate=1.0)]
    claim = Claim("So.", of_gpu(lambda found: Verdict(FAILS, f"the rate is {found.rate('a'):g}", "clocks")))
    assert claim.verdict(of_cpu)[:2] == (UNKNOWN, "it is a claim on a GPU; on this CPU the rate is 1")


def test_a_verdict_of_several_statements():
    parts = [(True, "a"), (False, "b")]
    assert verdict_of(parts, "clocks", ".") == (IN_PART, "a; b.", "clocks")
    assert verdict_of(iter(parts[:1])) == (HOLDS, "a", "") and verdict_of(parts[1:])[0] == FAILS


def test_the_number_from_which_rates_are_saturated():
    assert saturated({1: 1.0, 10: 8.9, 100: 9.0, 1_000: 10.0}) == (100, 10.0)
    assert saturated({10: 5.0, 100: 4.0}) == (10, 5.0)


def test_ratios_of_two_kernels():
    rows = [Row("a", f"k={k}", DEVICE, "1", rate=rate, median_seconds=2.0) for k, rate in ((3, 6.0), (1, 3.0))]
    rows += [Row("b", f"k={k}", DEVICE, "1", rate=4.0, median_seconds=seconds) for k, seconds in ((3, 8.0), (9, 1.0))]
    found = JudgedRows([*rows, Row("c", "k=1", DEVICE, "1", rate=1.0), Row("ab", "", DEVICE, "1", notes="failed")])
    assert found.ratios("a", "b", "k") == {3: 1.5} and found.ratios("a", "b", "k", "median_seconds") == {3: 0.25}
    with pytest.raises(NoFigure, match="`b` and `c` have no figures of the same k"):
        found.ratios("b", "c", "k")
    assert found.rated("a") == rows[:2]


def test_several_verdicts_in_one():
    verdicts = {result: Verdict(result, "") for result in (HOLDS, FAILS, UNKNOWN)}
    for results, expected in (
        ((HOLDS, UNKNOWN), HOLDS), ((FAILS, FAILS), FAILS), ((HOLDS, FAILS), IN_PART), ((UNKNOWN,), UNKNOWN),
    ):  # fmt: skip
        assert paper_page.combined([verdicts[result] for result in results]) == expected


def test_the_index_tells_what_holds(by_hand, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_page, "PAPERS", {"hand": ""})
    monkeypatch.setattr(paper_page, "open_paper", lambda name: by_hand)
    (tmp_path / "papers" / "hand").mkdir(parents=True)
    mark = f"<!-- papers: {DEVICE} -->\n<!-- end -->"
    page = quote.quoted(mark, tmp_path / "results")
    assert page.count("| not measured yet |") == 2 and "| Hand | Table 1, Figure 2: rates |" in page
    write_rows([Row("a", "n=2", DEVICE, "1", rate=2.0)], tmp_path / "papers" / "hand" / "T1.csv")
    page = quote.quoted(page, tmp_path / "results")
    assert page.count(f"| {IN_PART} |") == 2 and "[Hand](../benchmarks/papers/hand/README.md)" in page


def test_quote_writes_the_pages_of_papers(by_hand, tmp_path, monkeypatch):
    monkeypatch.setattr(paper_page, "PAPERS", {"none": "", "hand": ""})
    monkeypatch.setattr(paper_page, "open_paper", lambda name: replace(by_hand, name=name))
    papers = tmp_path / "papers"
    assert paper_page.refresh(papers) == [] and not papers.exists()
    page = reproduce(by_hand, BenchOptions("cpu", papers))
    write_rows([Row("a", "n=2", DEVICE, "1", rate=9.0)], papers / "hand" / "T1.csv")
    assert paper_page.refresh(papers) == [page] and f"### {DEVICE}" in page.read_text()
    assert paper_page.refresh(papers) == [] and not (papers / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["glm", "gilm"], "bench paper takes one of glm"),
        ([], "bench paper takes one of glm"),
        (["glm", "--text", "x"], "bench paper glm takes no --text"),
        (["glm", "--workers", "2"], "bench paper glm takes no --workers"),
        (["ngrams-cuda", "--tokens", "5000"], "bench paper ngrams-cuda takes no --tokens"),
        (["gilm", "--size", "1"], "size is 1 bytes but must be at least 128"),
        (["glm", "--tokens", "1"], "tokens is 1 but must be at least 1000"),
        (["glm", "--only", "T9"], "part 'T9' is none of T3, T4, T5, F9, F10, 5.6, 5.7"),
    ],
)
def test_wrong_options_are_refused(arguments, message, capsys, tmp_path):
    assert cli.main(["bench", "paper", *arguments, "--device", "cpu", "--results", str(tmp_path / "papers")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_results_in_place_of_a_file_are_refused(capsys, tmp_path):
    (tmp_path / "x").write_text("mine")
    assert cli.main(["bench", "paper", "glm", "--only", "5.6", "--device", "cpu", "--results", f"{tmp_path}/x"]) == 2
    assert "x: results go to a folder, and this is a file; give a folder" in capsys.readouterr().err
    assert (tmp_path / "x").read_text() == "mine"


def test_amun_is_measured_on_a_cpu(tmp_path, monkeypatch):
    def add_rows(bench, work, beam_size, threads):
        sizes = f"beam={beam_size} threads={threads}"
        bench.suite.add(decode_cpu.AMUN_CPU, sizes, [0.5], items=10, unit="source words/s")

    monkeypatch.setattr(decode_cpu, "PROGRAM", "sh")  # a program that is on the PATH
    monkeypatch.setattr(decode_cpu, "SHAPE", decode_work.SHAPES["cpu"])
    monkeypatch.setattr(decode_cpu, "EXAMPLE", tmp_path / "none")
    monkeypatch.setattr(decode_cpu, "add_rows", add_rows)
    page = reproduce(open_paper("amun"), BenchOptions("cpu", tmp_path, tokens=100, only="T4")).read_text()
    assert "| decode/cpu Amun (original program: Amun) | beam=1 threads=1 | 20 source words/s |" in page
    assert "| Amun | not on the PATH |" not in page


def test_a_larger_model_by_hand():
    rows = of_size(f"score/table4 {scoring_subjects.TREE}", "G", {1: 8e9, 5: 6e9})
    rows += of_size(f"score/table4 {scoring_subjects.EDGES}", "G", {1: 8e9, 5: 10e9})
    verdict = paper_glm._model_size(JudgedRows(rows))
    assert verdict.result == IN_PART and "falls from 8 G to 6 G queries a second with 5 times" in verdict.why
    assert "rises from 8 G to 10 G queries a second with 5 times the n-grams, 25 % for each fivefold" in verdict.why


def test_a_fivefold_model_by_hand():
    # rate ~ n**-0.5: 5 times the n-grams leave 5**-0.5 = 0.447 of the rate
    assert paper_glm._loss((1e6, 10.0), (16e6, 2.5)) == pytest.approx(1 - 5**-0.5)


def test_clocks_of_a_run_on_end():
    notes = "200 passes a run; first 18 G at SM 1980 MHz, memory 3201 MHz; last 13.5 G at SM 1485 MHz, memory 3201 MHz"
    row = Row(score_sustained.ON_END, "n=5", DEVICE, "1", rate=1.4e10, notes=notes)
    verdict = paper_glm._clocks(JudgedRows([row]))
    assert verdict.result == HOLDS and "from 1980 to 1485 MHz, 25 %" in verdict.why and "loses 25 %" in verdict.why
    assert [paper_glm.parse_number(text) for text in ("1.23 G", "1,234 M", "7")] == [1.23e9, 1.234e9, 7.0]


def of_size(kernel, letter, values, column="rate"):
    return [Row(kernel, f"{letter}={n}", DEVICE, "1", **{"rate": 1.0, column: value}) for n, value in values.items()]


def test_steps_that_fall_and_steps_that_stay():
    naive = of_size("decode/drain naive", "step", {1: 1.0, 9: 1.0, 17: 0.9, 25: 0.9}, "median_seconds")
    falls = of_size("decode/drain drain", "step", {1: 1.0, 9: 0.5, 17: 0.2, 25: 0.1}, "median_seconds")
    verdict = paper_amun._falls(JudgedRows(naive + falls))
    assert verdict.result == HOLDS and "takes 15 % of the longest" in verdict.why and "90 % where they" in verdict.why
    stays = of_size("decode/drain drain", "step", {1: 1.0, 17: 0.95}, "median_seconds")
    assert paper_amun._falls(JudgedRows(naive + stays)).result == IN_PART


def test_gains_of_fusion():
    rows = of_size("decode/fusion unfused", "beam", {1: 100.0, 9: 50.0}) + of_size(
        "decode/fusion fused", "beam", {1: 130.0, 9: 62.5}
    )
    found = JudgedRows(rows)
    assert paper_amun._fusion(found)[:2] == (
        HOLDS,
        "whole decodes gain 30 % with beam 1, 25 % with beam 9, over bias, softmax and k-best one after another in "
        "array code",
    )
    assert paper_amun._gains_fall(found).result == HOLDS
    rows += of_size(decode_amun.UNFUSED, "beam", {1: 10.0}) + of_size(decode_amun.FUSED, "beam", {1: 12.0})
    assert paper_amun._fusion(JudgedRows(rows)).why.endswith("code; Amun's program gains 20 % with beam 1 here")


def test_several_gpus():
    found = JudgedRows(of_size("lda/fig9 PubMed", "workers", {1: 4e9, 2: 7.6e9, 4: 8e9}))
    verdict = paper_culda._speedups(found)
    assert verdict[:2] == (IN_PART, "1.9 times on 2 (1.93 published), 2 times on 4 (2.99 published), over one")


def test_intensities():
    verdict = paper_culda._memory_bound(JudgedRows([Row("lda/table1 compute S", "x", DEVICE, "1", rate=2.0)]))
    assert verdict.result == HOLDS and "compute S 2; an H200 can do 14" in verdict.why
