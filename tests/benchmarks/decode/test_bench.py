"""`mgpu-ngram bench decode` runs completely, writes all rows and files, and times no wrong result."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import pytest

from mgpu_ngram.benchmarks.decode import amun as decode_amun
from mgpu_ngram.benchmarks.decode import batches as decode_batch
from mgpu_ngram.benchmarks.decode import bench as decode
from mgpu_ngram.benchmarks.decode import ceilings as decode_limits
from mgpu_ngram.benchmarks.decode import cpu as decode_cpu
from mgpu_ngram.benchmarks.decode import fused_pass, logits_pass
from mgpu_ngram.benchmarks.decode import generated_model as decode_work
from mgpu_ngram.benchmarks.decode import ngrams as decode_ngrams
from mgpu_ngram.benchmarks.decode import step as decode_step
from mgpu_ngram.benchmarks.decode import whole as decode_whole
from mgpu_ngram.benchmarks.decode import workers as decode_workers
from mgpu_ngram.benchmarks.decode.batches import lengths, scheduled, scheduled_sentences
from mgpu_ngram.benchmarks.decode.generated_model import (
    DecodeBench,
    GRUShape,
    check_results,
    options_of,
    random_sources,
)
from mgpu_ngram.benchmarks.decode.peers import TorchModel, best_of_sentences, k_best, log_softmax
from mgpu_ngram.benchmarks.harness.cuda_source import with_common
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs.plain_beam_search import PlainNgrams
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.decode import word_scores
from mgpu_ngram.engine.decode.batch import BATCHINGS, Batching
from mgpu_ngram.engine.decode.ensemble import Ensemble
from tests.support.short_benches import measure_once

pytestmark = pytest.mark.slow

WORDS = 100


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with a small model and few sentences: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(decode_work.SHAPES, "cpu", GRUShape(60, 6, 8))
        patch.setattr(decode_work, "SENTENCES_AT_ONCE", {"cpu": 4, "gpu": 64})
        for module in decode_batch, fused_pass, decode_whole, decode_workers:
            patch.setattr(module, "SENTENCES_AT_ONCE", {"cpu": 4, "gpu": 64})
        patch.setattr(logits_pass, "ROWS", {"cpu": (8, 16), "gpu": (64, 1024)})
        for module in logits_pass, decode_step:
            patch.setitem(module.WORDS, "cpu", 100)
        patch.setitem(decode_step.ROWS, "cpu", 18)
        patch.setitem(decode_step.SENTENCES, "cpu", 10)
        for module in fused_pass, decode_whole:
            patch.setattr(module, "BEAMS", (1, 3))
        patch.setitem(decode_ngrams.LM_TOKENS, "cpu", 300)
        patch.setitem(decode_ngrams.LM_WORDS, "cpu", 50)
        patch.setitem(decode_ngrams.ROWS, "cpu", 8)
        patch.setattr(decode_batch, "MIN_SENTENCES", 2)
        patch.setattr(decode_batch, "BATCHES", {"cpu": (1, 4), "gpu": (1, 64)})
        patch.setattr(decode_batch, "MEAN_WORDS", 6)
        patch.setattr(decode_workers, "TASKS", 3)
        patch.setattr(decode_cpu, "PROGRAM", "no program of this name")
        patch.setattr(decode_workers, "open_executor", lambda cluster: LocalExecutor(cluster.device, cluster.workers))
        measure_once(patch)
        yield


@pytest.fixture(scope="module")
def bench_run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return decode.bench(BenchOptions("cpu", folder, tokens=WORDS, workers="1,2")), folder


@pytest.fixture(scope="module")
def bench(small, tmp_path_factory):
    return DecodeBench(Suite("cpu"), WORDS, [1], tmp_path_factory.mktemp("bench"))


def test_every_part_has_rows(bench_run):
    found = Counter(row["kernel"].removeprefix("decode/") for row in bench_run[0])
    pairs = 2 * len(logits_pass.PASS_K)  # of numbers of rows, and k
    steps = ("unfused", "unfused, add bias", "unfused, softmax", "unfused, k-best", "fused", "fused, kernel")
    assert found["pass"] == 3 * pairs and found["pass numpy"] == 2 * pairs and found["pass of an ensemble"] == 4
    assert {name: found[f"step {name}"] for name in (*steps, "without the pass")} == dict.fromkeys(
        (*steps, "without the pass"), 3
    )
    assert found["whole float32"] == 2 and found["lm without"] == found["lm with"] == 1 and found["workers"] == 2
    assert found["fusion unfused"] == found["fusion fused"] == 2
    for name in ("pass, no n-grams", "pass, n-gram children", "pass, n-gram rows", "next states"):
        assert found[f"lm {name}"] == 1
    for kind in BATCHINGS:
        assert found[f"batch {kind}"] == 2 and found[f"refill {kind}"] == 1 and found[f"drain {kind}"] >= 1


def test_rows_are_consistent(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    assert {row["kernel"] for row in found if row["target"] is not None} == set()  # all are of GPUs
    assert {path.name.split("_")[1] for path in folder.glob("*.png")} == {
        "pass", "table3", "whole", "figure2", "figure3", "figure4"
    }  # fmt: skip
    rows = {(row["kernel"], row["sizes"]): row for row in found}
    mixed = rows["decode/pass of an ensemble", "rows=16 V=100 dtype=float16 k=4 models=2 ngrams=1"]
    assert mixed["bytes_moved"] == 3 * 16 * 100 * 2 and mixed["ceiling"] == decode_limits.READ
    whole = rows["decode/whole float32", "V=60 E=6 H=8 sentences=4 words=100 beam=3 batch=256"]
    assert whole["rate"] == pytest.approx(WORDS / whole["median_seconds"])


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_an_unfused_decode_runs_no_fused_pass(tmp_path, monkeypatch, device):
    monkeypatch.setitem(decode_work.SHAPES, "gpu", GRUShape(60, 6, 8))
    work = DecodeBench(Suite(device), WORDS, [1], tmp_path)
    sources = random_sources([6, 4], work.system.shape.vocab_size)
    fused = fused_pass.decoded(work, Ensemble, sources, 3, Batching(2))
    for name in "best_words", "best_hypotheses":
        monkeypatch.setattr(word_scores, name, None)
    if device == "cpu":  # takes the way of a GPU: what is not NumPy is a device's
        monkeypatch.setattr(word_scores, "array_module", lambda _: SimpleNamespace(**vars(np)))
    unfused = fused_pass.decoded(work, fused_pass.UnfusedEnsemble, sources, 3, Batching(2))
    assert [[h.words for h in results] for results in unfused] == [[h.words for h in results] for results in fused]
    with pytest.raises(TypeError):
        fused_pass.decoded(work, Ensemble, sources, 3, Batching(2))


def test_many_sentences_are_measured_once_in_float16(bench, monkeypatch):
    monkeypatch.setattr(decode_whole, "MANY_SENTENCES", 1)
    before = len(bench.suite.rows)
    decode_whole.whole(bench)
    assert len(bench.suite.rows) == before  # a CPU has no float16 products


def test_rows_of_n_grams_by_hand():
    ids = [np.array(words, np.uint32) for words in ([[0], [1], [2], [3]], [[1, 3], [3, 2], [3, 3]], [[1, 3, 2]])]
    prob = [np.array(p, np.float32) for p in ([-2, 0, -1, -0.5], [-0.25, -0.75, -1.5], [-0.125])]
    backoff = [np.array([0, -1, 0, -0.5], np.float32), np.array([-0.25, 0, 0], np.float32), None]
    levels = [Ngrams(*level) for level in zip(ids, prob, backoff, strict=True)]
    plain = PlainNgrams(levels, np.array([2, 0, 3]), 1)  # words of the translation model: </s>, <unk>, a
    assert plain.row([]) == pytest.approx(np.log(10) * np.array([-1 - 1, -2 - 1, -0.25]))
    # After <s> a: "<s> a </s>" is a trigram; <unk> backs off twice, "a a" once.
    assert plain.row([2]) == pytest.approx(np.log(10) * np.array([-0.125, -2 - 0.5 - 0.25, -1.5 - 0.25]))


def test_sentences_end_by_the_schedule(bench):
    sentences = scheduled_sentences(6, bench.system.shape.vocab_size)
    assert len({sentence.words - len(sentence) for sentence in sentences}) > 1
    for kind in BATCHINGS:
        marks = decode_batch.Marks("cpu")
        found = scheduled(bench, sentences, 2, Batching(2, kind=kind), marks)
        marks.mark()
        seconds = marks.seconds()
        assert [len(results[0].words) for results in found] == [sentence.words for sentence in sentences]
        assert len(seconds) >= max(sentence.words for sentence in sentences) and min(seconds) > 0
    wrong = [replace(sentence, words=sentence.words + 1) for sentence in sentences]
    with pytest.raises(WrongResult, match="but is scheduled for"):
        decode_batch.check_scheduled(found, wrong, bench, 2)


def test_lengths_are_as_in_text():
    found = lengths(5_000)
    assert found.min() >= 3 and found.max() <= 80
    assert np.log(found).std() == pytest.approx(decode_batch.SPREAD, rel=0.3)


def test_wrong_results_are_not_timed(bench):
    sources = random_sources([5, 3], bench.system.shape.vocab_size)
    found = bench.translation().decode(sources, options_of(2))
    check_results(found, sources, bench.system.plain, 2, "float32")
    best = found[1][0]
    for wrong in (best._replace(cost=best.cost + 0.1), best._replace(words=best.words[::-1])):
        with pytest.raises(WrongResult, match="sentence 1 has cost"):
            check_results([found[0], [wrong]], sources, bench.system.plain, 2, "float32")
    with pytest.raises(WrongResult, match="has no result"):
        check_results([found[0], []], sources, bench.system.plain, 2, "float32")


def test_wrong_passes_are_not_timed():
    x_RV = np.random.default_rng(0).normal(size=(6, 20))
    scores_RV = log_softmax(x_RV)
    assert np.exp(scores_RV).sum(axis=1) == pytest.approx(1)
    words, scores = best_of_sentences(*k_best(scores_RV.copy(), 3))
    logits_pass.check_best((words, scores), lambda row: scores_RV[row], 3, 1e-6)
    with pytest.raises(WrongResult, match="sentence 1 has scores"):
        logits_pass.check_best(
            (np.where([[0], [1]], words[:, ::-1], words), scores), lambda row: scores_RV[row], 3, 1e-6
        )


def test_workers_with_other_texts_are_not_timed(bench, monkeypatch):
    texts = iter([b"a\n", b"a\n", b"b\n"])
    monkeypatch.setattr(decode_workers, "decoded", lambda executor, config: next(texts))
    monkeypatch.setattr(decode_workers, "check_text", lambda bench, text: None)
    with pytest.raises(WrongResult, match="1 workers write another text"):
        decode_workers.add_row(bench, LocalExecutor("cpu", 1), None, [], 1)


@pytest.fixture
def amun(tmp_path, monkeypatch):
    """Return a file of lines; a stand-in of Amun prints them, and its seconds."""
    lines, program = tmp_path / "lines.txt", tmp_path / "stand-in"
    lines.write_text("")
    program.write_text(f"#!/bin/sh\ncat '{lines}'\necho '(I) Total time:  0.250000s wall, 0.5s user' >&2\n")
    program.chmod(0o755)
    monkeypatch.setattr(decode_cpu, "PROGRAM", str(program))
    return lines


def test_a_cpu_is_measured_beside_amun(bench, amun, monkeypatch):
    monkeypatch.setattr(decode_cpu, "cpu_cores", lambda: 2)
    monkeypatch.setattr(decode_cpu, "BEAMS", (2,))
    monkeypatch.setattr(decode_cpu, "ROUNDS", 2)
    monkeypatch.setattr(decode_cpu, "SHAPE", bench.system.shape)
    monkeypatch.setattr(decode_cpu, "EXAMPLE", amun)  # a file: no model is there
    sources = random_sources([25] * 16, bench.system.shape.vocab_size)
    found = bench.translation().decode(sources, options_of(2))
    vocabulary = load_nmt_vocabulary(bench.system.files.target_vocab)
    amun.write_text("".join(f"{' '.join(vocabulary.decode(best.words))}\n" for best, *_ in found))
    before = len(bench.suite.rows)
    decode_cpu.cpu(bench)
    rows = bench.suite.rows[before:]
    assert [row.kernel for row in rows] == ["decode/cpu Amun", "decode/cpu"] * 2
    assert [row.sizes.split()[-2:] for row in rows[::2]] == [["beam=2", "threads=1"], ["beam=2", "threads=2"]]
    assert all(row.runs == 2 for row in rows) and rows[0].rate == 16 * 25 / 0.25
    assert rows[1].notes == "100.00% of the lines equal" and rows[1].speedup == 0.25 / rows[1].median_seconds


def test_whole_decodes_of_amun(bench, amun):
    sources = random_sources([25] * 3, bench.system.shape.vocab_size)
    before = len(bench.suite.rows)
    amun.write_text("a\n" * 3)
    decode_amun.add_row(bench, decode_amun.WHOLE, sources, 3)
    decode_amun.add_row(bench, decode_amun.FUSED, sources, 3, 7, decode_amun.NO_FUSION)
    rows = bench.suite.rows[before:]
    assert [row.sizes.split()[-2:] for row in rows] == [["beam=3", "batch=341"], ["beam=3", "batch=7"]]
    assert all(row.rate == 3 * 25 / 0.25 and row.runs == decode_amun.ROUNDS for row in rows)
    config = (bench.folder / "amun.yml").read_text().splitlines()
    assert config[-1] == "use-fused-softmax: false" and f"    path: {bench.system.files.models[0]}" in config
    assert len((bench.folder / "amun.txt").read_text().splitlines()) == 3
    amun.write_text("a\n")
    with pytest.raises(WrongResult, match="Amun gives 1 lines for 3; not timed"):
        decode_amun.add_row(bench, decode_amun.WHOLE, sources, 1)


def test_amun_is_looked_for_on_a_gpu(bench, monkeypatch, amun):
    assert not decode_amun.is_there(bench, "a")
    on_gpu = replace(bench, suite=Suite("cpu"))
    on_gpu.suite.device = "gpu"
    assert decode_amun.is_there(on_gpu, "a") and not on_gpu.suite.rows
    monkeypatch.setattr(decode_cpu, "PROGRAM", "no program of this name")
    assert not decode_amun.is_there(on_gpu, "a")
    [row] = on_gpu.suite.rows
    assert (row.kernel, row.rate, row.notes) == ("a", None, "not measured: no program of this name is not on the PATH")


@pytest.mark.parametrize(
    ("part", "kernels"),
    [
        (decode_whole.whole, [f"{decode_amun.WHOLE}, float32"] * 2),
        (fused_pass.fusion, [decode_amun.UNFUSED, decode_amun.FUSED] * 2),
        (decode_batch.batch, [decode_amun.BATCH] * 2),
    ],
)
def test_parts_have_rows_of_amun(bench, monkeypatch, part, kernels):
    found = []
    monkeypatch.setattr(decode_amun, "is_there", lambda *_: True)
    monkeypatch.setattr(decode_amun, "add_row", lambda bench, kernel, *_, **__: found.append(kernel))
    monkeypatch.setattr(decode_whole, "has_torch", lambda: False)
    part(bench)
    assert found == kernels


def test_lines_that_are_not_amuns_are_not_timed(bench, amun):
    work = replace(decode_cpu.trained(bench), text="c a t\nd o g\n")
    with ZipFile(work.model) as parts:  # which Amun reads
        assert {part.compress_type for part in parts.infolist()} == {ZIP_STORED}
    with pytest.raises(WrongResult, match="0.00% of 2 lines are as the 0 of Amun"):
        decode_cpu.add_rows(bench, work, 1, 1)
    assert decode_cpu.share_of_equal("a\n" * 100 + "b\n", "a\n" * 101) == 100 / 101
    with pytest.raises(RunError, match="ended with status 0 and no time"):
        decode_cpu.run_amun(["true"])


def test_pytorch_finds_the_same_results(bench):
    pytest.importorskip("torch", reason="the peer needs PyTorch")
    sources = random_sources([6, 6, 6], bench.system.shape.vocab_size)
    found = TorchModel(bench.system.tensors, "cpu", "float32").translate(sources, 3, 2)
    ours = bench.translation().decode(sources, options_of(3))
    assert [results[0].words for results in found] == [results[0].words for results in ours]


def test_the_read_kernel_compiles(compile_cuda):
    succeeded, log = compile_cuda(with_common(decode_limits.SOURCE))
    assert succeeded, log


@pytest.mark.gpu
def test_a_gpu_measures_all_parts(tmp_path, monkeypatch):
    monkeypatch.setitem(decode_work.SHAPES, "gpu", GRUShape(2_000, 32, 64))
    monkeypatch.setitem(decode_ngrams.LM_TOKENS, "gpu", 20_000)
    monkeypatch.setitem(decode_ngrams.LM_WORDS, "gpu", 1_000)
    rows = decode.bench(BenchOptions("gpu", tmp_path, tokens=1_000, workers="1"))
    kernels = {row["kernel"] for row in rows}
    assert {"decode/pass cupy", "decode/whole float16", "decode/lm with", "decode/drain refill"} <= kernels
