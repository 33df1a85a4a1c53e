"""`mgpu-ngram bench estimate` runs completely, writes all rows and files, and times no wrong result."""

import lzma
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.benchmarks.estimate import bench as estimate
from mgpu_ngram.benchmarks.estimate import files as estimate_files
from mgpu_ngram.benchmarks.estimate import ids as estimate_ids
from mgpu_ngram.benchmarks.estimate import peers as estimate_peers
from mgpu_ngram.benchmarks.estimate import text as estimate_text
from mgpu_ngram.benchmarks.estimate.checks import check_sums
from mgpu_ngram.benchmarks.estimate.ids import STEPS
from mgpu_ngram.benchmarks.estimate.text import EstimateBench
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.estimate import part_values
from mgpu_ngram.engine.estimate import probabilities as engine
from tests.support.fake_lmplz import FAKE_LMPLZ
from tests.support.short_benches import measure_once

pytestmark = pytest.mark.slow

TOKENS = 3_000
STAGES = ("read", "tokenise", "vocabulary", "count", "adjust", "estimate", "assemble")


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with little text and few rounds: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate_ids, "ORACLE_TOKENS", 500)
        patch.setattr(estimate_text, "ORACLE_TOKENS", 500)
        for module in estimate_ids, estimate_text, estimate_files, estimate_peers:
            patch.setattr(module, "ROUNDS", 1)
        patch.setattr(estimate_text, "FILE_TOKENS", {"cpu": 1_000, "gpu": 100_000})
        measure_once(patch)
        yield


@pytest.fixture(scope="module")
def bench_run(small, lmplz_on_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    lmplz_on_path(FAKE_LMPLZ)
    return estimate.bench(BenchOptions("cpu", folder, tokens=TOKENS, workers="1,2")), folder


def test_every_part_has_rows(bench_run):
    found = Counter(row["kernel"].removeprefix("estimate/") for row in bench_run[0])
    assert found == Counter(
        ["ids to model", "text to model", "write model file", "write ARPA file", "peer lmplz", "text to ARPA"]
        + ["text to ARPA as a command", "text to model as lmplz"]
        + [f"ids, {step}" for step in STEPS]
        + [f"text to model, {stage}" for stage in STAGES]
        + [f"text to model by {name} smoothing" for name in ("witten-bell", "absolute", "good-turing", "additive")]
        + 2 * ["text to model by workers"]
        + ["ceiling/copy", "ceiling/read", "ceiling/numpy.sort"]
    )


def test_rows_are_consistent(bench_run):
    rows = {(r["kernel"].removeprefix("estimate/"), r["sizes"].split()[-1]): r for r in bench_run[0]}
    assert all(row["target"] is None for row in rows.values())  # these rows are of GPUs
    one, two = (rows["text to model by workers", f"workers={G}"] for G in (1, 2))
    assert one["speedup"] is None
    assert two["speedup"] == pytest.approx(one["median_seconds"] / two["median_seconds"])
    rows = {kernel: row for (kernel, _), row in rows.items()}
    whole, steps = rows["ids to model"], [rows[f"ids, {step}"] for step in STEPS]
    for name in "median_seconds", "bytes_moved":
        assert whole[name] == pytest.approx(sum(step[name] for step in steps))
    for row in whole, *steps:
        assert row["share_of_ceiling"] == pytest.approx(
            row["bytes_moved"] / row["median_seconds"] / rows["ceiling/copy"]["rate"]
        )
    assert "numpy.sort of 1 columns of keys would take" in rows["ids, count"]["notes"]
    peer, ours = rows["peer lmplz"], rows["text to ARPA"]
    assert ours["speedup"] == pytest.approx(peer["median_seconds"] / ours["median_seconds"])
    times = [float(s) for s in re.findall(r"-S \S+ (\S+) s", peer["notes"])]
    assert len(times) == 2 and min(times) == pytest.approx(peer["median_seconds"], rel=0.01)


def test_csv_and_figure(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    [figure] = folder.glob("estimate_*.png")
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_without_lmplz(lmplz_on_path, tmp_path):
    lmplz_on_path(None)
    found = [
        row
        for row in estimate.bench(BenchOptions("cpu", tmp_path, tokens=TOKENS, only="lmplz"))
        if "ceiling" not in row["kernel"]
    ]
    assert [row["kernel"] for row in found] == ["estimate/text to ARPA", "estimate/text to ARPA as a command"]
    assert found[0]["baseline"] == "" and found[0]["speedup"] is None
    assert not list(tmp_path.glob("*.png"))  # the figure shows steps


def test_a_real_text(lmplz_on_path, tmp_path):
    lmplz_on_path(FAKE_LMPLZ)
    (tmp_path / "fable.txt").write_bytes(b"the fox saw the grapes\nthe grapes were sour\n" * 40)
    found = estimate.bench(BenchOptions("cpu", tmp_path, str(tmp_path / "fable.txt"), tokens=TOKENS, only="lmplz"))
    peer, ours, command = (row for row in found if "ceiling" not in row["kernel"])
    assert peer["sizes"] == ours["sizes"] == "tokens=360 bytes=1760 n=1..5 text=fable.txt"
    assert ours["rate"] == pytest.approx(360 / ours["median_seconds"])
    assert command["sizes"] == ours["sizes"] and command["notes"].endswith("with the start of Python")
    assert command["speedup"] == pytest.approx(peer["median_seconds"] / command["median_seconds"])


def test_a_different_model_of_lmplz_gives_no_row(lmplz_on_path, tmp_path):
    run = EstimateBench(Suite("cpu"), TOKENS, [1], tmp_path)
    lmplz_on_path(FAKE_LMPLZ.replace("prune = []", "prune = [0, 0, 1]"))
    with pytest.raises(WrongResult, match="other n-grams"):
        estimate_peers.lmplz(run)
    assert not run.suite.rows


def test_a_failing_lmplz(lmplz_on_path, tmp_path):
    lmplz_on_path("#!/bin/sh\necho no memory >&2\nexit 3\n")
    with pytest.raises(RunError, match="status 3: no memory; take it off the PATH"):
        estimate_peers.lmplz(EstimateBench(Suite("cpu"), TOKENS, [1], tmp_path))


@pytest.fixture
def golden(shared_data, tmp_path):
    """A model that lmplz made."""
    path = tmp_path / "golden.arpa"
    path.write_bytes(_read(shared_data / "golden" / "models" / "small.o3.arpa"))
    return path


def _read(path):
    return path.read_bytes() if path.exists() else lzma.open(f"{path}.xz").read()


def test_the_same_models_by_value(golden, tmp_path):
    text, other = golden.read_text(), tmp_path / "other.arpa"
    lines = text.split("\n")
    at = lines.index("\\2-grams:")
    lines[at + 1 : at + 9] = reversed(lines[at + 1 : at + 9])
    other.write_text("\n".join(lines))
    estimate_peers.check_same(golden, other)  # in another order
    prob, rest = lines[at + 1].split("\t", 1)
    for change, is_same in ((5e-7, True), (3e-6, False)):
        lines[at + 1] = f"{float(prob) - change:.9g}\t{rest}"
        other.write_text("\n".join(lines))
        if is_same:
            estimate_peers.check_same(golden, other)
        else:
            with pytest.raises(WrongResult, match="log10 probability differs by [23].*e-06"):
                estimate_peers.check_same(golden, other)


def test_plain_python_by_hand():
    """Two sentences, a b and a. Every adjusted count is 1 except those of <s> a and <s>; the discounts are given."""
    model = oracles.kneser_ney([(b"a", b"b"), (b"a",)], 2, (0.5, 1.0, 1.5))
    # Left contexts: <s> of a, a of b, a and b of </s>: 4 in all. The discounts leave 0.5 + 0.5 + 1 of them
    # to <unk>, a, b and </s> in equal parts.
    low = {b"<unk>": 0.125, b"a": 0.5 / 4 + 0.125, b"b": 0.5 / 4 + 0.125, b"</s>": 1 / 4 + 0.125}
    high = {
        (b"<s>", b"a"): (2 - 1) / 2 + 0.5 * low[b"a"],
        (b"a", b"b"): 0.5 / 2 + 0.5 * low[b"b"],
        (b"a", b"</s>"): 0.5 / 2 + 0.5 * low[b"</s>"],
        (b"b", b"</s>"): 0.5 / 1 + 0.5 * low[b"</s>"],
    }
    backoff = {b"<s>": 0.5, b"a": 0.5, b"b": 0.5}
    expected = {(w,): (p, backoff.get(w, 1)) for w, p in low.items()} | {g: (p, 1) for g, p in high.items()}
    expected[b"<s>",] = 1, backoff[b"<s>"]
    assert model.keys() == expected.keys()
    for ngram, values in expected.items():
        assert model[ngram] == pytest.approx([math.log10(value) for value in values], abs=1e-12), ngram


@pytest.mark.parametrize("part", ["ids", "text"])
def test_a_wrong_probability_gives_no_row(part, monkeypatch, tmp_path):
    right = engine.interpolate

    def wrong(*arguments):
        prob_R = right(*arguments)
        prob_R[len(prob_R) // 2] *= np.float32(1.001)
        return prob_R

    for module in engine, part_values:  # of the only part, and of several parts
        monkeypatch.setattr(module, "interpolate", wrong)
    run = EstimateBench(Suite("cpu"), TOKENS, [1], tmp_path)
    with pytest.raises(WrongResult, match="by plain Python; not timed"):
        estimate.PARTS[part](run)
    assert not run.suite.rows


def test_a_wrong_backoff_is_found():
    codes_T, words = estimate_ids.zipf_stream(TOKENS, np)
    trie = estimate_ids.make_model(estimate_ids.mark_sentences(codes_T), len(words), Suite("cpu").budget()).trie
    check_sums(trie)
    trie.backoff_M[:] += np.float32(1e-3)
    with pytest.raises(WrongResult, match="add up to 1.00"):
        check_sums(trie)


def test_a_lost_sentence_gives_no_row(monkeypatch):
    monkeypatch.setattr(estimate_ids, "_check_beginning", lambda *_: None)
    right = estimate_ids.make_model
    monkeypatch.setattr(estimate_ids, "make_model", lambda marked_T, *rest: right(marked_T[:-13], *rest))
    suite = Suite("cpu")
    with pytest.raises(WrongResult, match="n-grams of order . of a model"):
        estimate_ids.ids(suite, TOKENS)
    assert not suite.rows


def test_a_different_model_of_more_workers_gives_no_row(monkeypatch, tmp_path):
    real = estimate_text._rounds

    def rounds(run, executor):
        results = real(run, executor)
        if executor.workers == 2:
            results[0].statistics.kept[5] += 1
        return results

    monkeypatch.setattr(estimate_text, "_rounds", rounds)
    run = EstimateBench(Suite("cpu"), TOKENS, [1, 2], tmp_path)
    with pytest.raises(WrongResult, match="2 workers make another model than 1"):
        estimate_text.workers(run)
    assert len(run.suite.rows) == 1


def test_a_file_with_a_different_model_gives_no_row(monkeypatch, tmp_path):
    real = estimate_files.save

    def save(model, path, format, *rest):
        result = real(model, path, format, *rest)
        if format == "arpa":
            lines = Path(path).read_text().split("\n")
            at = lines.index("\\5-grams:") + 1
            lines[at] = "-0.125\t" + lines[at].split("\t", 1)[1]
            Path(path).write_text("\n".join(lines))
        return result

    monkeypatch.setattr(estimate_files, "save", save)
    suite = Suite("cpu")
    with pytest.raises(WrongResult, match="other 5-grams"):
        estimate_files.write(suite, TOKENS, tmp_path)
    assert [row.kernel for row in suite.rows] == ["estimate/write model file"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "7"}, "part '7' is none of ids, text, smoothings, workers, write, lmplz"),
        ({"workers": "0"}, "workers is '0'"),
        ({"tokens": 5}, "tokens is 5 but must be at least 2000"),
        ({"folder": "/no/such/folder"}, "/no/such/folder: no such folder"),
        ({"text": "/no/such/text"}, "/no/such/text: no such file"),
    ],
)
def test_bad_options(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        estimate.bench(BenchOptions("cpu", tmp_path, **options))


@pytest.mark.gpu
def test_whole_suite_on_a_gpu(tmp_path):
    found = estimate.bench(BenchOptions("gpu", tmp_path, tokens=300_000, workers="1", folder=str(tmp_path)))
    rows = {row["kernel"]: row for row in found}
    assert rows["estimate/ids to model"]["target"] == 1.3e9 and rows["estimate/text to model"]["target"] == 750e6
    assert rows["estimate/ids memory"]["target"] == 70 and rows["estimate/ids memory"]["rate"] > 0
