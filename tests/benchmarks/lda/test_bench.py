"""`mgpu-ngram bench lda` runs completely, writes all rows and files, and times no wrong result."""

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from mgpu_ngram.benchmarks.harness.cuda_source import with_common
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.lda import bench as lda
from mgpu_ngram.benchmarks.lda import cpu as lda_cpu
from mgpu_ngram.benchmarks.lda import figures as lda_figures
from mgpu_ngram.benchmarks.lda import gpus as lda_gpus
from mgpu_ngram.benchmarks.lda import peers as lda_peers
from mgpu_ngram.benchmarks.lda import quality as lda_quality
from mgpu_ngram.benchmarks.lda import speed as lda_speed
from mgpu_ngram.benchmarks.lda import sweeps as lda_work
from mgpu_ngram.benchmarks.lda import tables as lda_paper
from mgpu_ngram.benchmarks.lda import transform as lda_transform
from mgpu_ngram.benchmarks.lda.generated_corpus import SHAPES, CorpusShape, cut, generate, language, lengths
from mgpu_ngram.benchmarks.lda.sweeps import (
    STEPS,
    LdaBench,
    check_counts,
    fingerprint,
    open_sampler,
    staged_sweeps,
    timed_sweeps,
)
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.bags.bags import join_bags, make_bags
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.lda.hold_out import hold_out
from mgpu_ngram.engine.lda.sweep import word_topics
from mgpu_ngram.kernels.lda.fold_in import Bag, FixedTopics, fixed_topics, fold_in
from tests.support.short_benches import measure_once

pytestmark = pytest.mark.slow

TOKENS = 4_000


def threads(workers):
    """Return an executor whose gangs have a rank in each of its threads."""
    executor = LocalExecutor("cpu", workers)
    executor.tasks_per_process = 1
    return executor


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with few tokens and sweeps: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lda_speed, "CHECKED_TOKENS", 2_000)
        patch.setattr(lda_speed, "TOPICS", {"cpu": (8, 40), "gpu": (64, 4096)})
        for module in lda_speed, lda_paper:
            patch.setattr(module, "SWEEPS", {"cpu": 3, "gpu": 3})
        for module in lda_gpus, lda_paper, lda_transform:
            patch.setattr(module, "TOPICS", {"cpu": 8, "gpu": 1024})
        patch.setattr(lda_transform, "TRAINING_SWEEPS", 3)
        patch.setattr(lda_quality, "TOPICS", (50, 64))  # scikit-learn takes priors up to 1
        patch.setattr(lda_quality, "SEEDS", (1, 2))
        patch.setattr(lda_quality, "SWEEPS", 10)
        patch.setattr(lda_cpu, "TOPICS", 64)
        patch.setattr(lda_peers, "is_there", "scikit-learn".__eq__)
        patch.setattr(lda_peers, "cpu_cores", lambda: 1)  # processes of scikit-learn take seconds to start
        patch.setattr(lda_cpu, "GOAL_SWEEPS", 10)
        patch.setattr(
            lda_paper, "open_executor", lambda cluster: threads(cluster.workers)
        )  # the part gpus takes Dask's
        measure_once(patch)
        yield


@pytest.fixture(scope="module")
def bench_run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return lda.bench(BenchOptions("cpu", folder, tokens=TOKENS, workers="1,2")), folder


@pytest.fixture
def bags():
    return generate(SHAPES["KOS"].scaled(TOKENS))


def test_every_part_has_rows(bench_run):
    found = Counter(row["kernel"].removeprefix("lda/") for row in bench_run[0])
    of_topics = ["memory", "sweep", "sample reads", "sample entries", *(f"sweep, {step}" for step in STEPS)]
    tables = [f"table1 {step}" for step in lda_paper.INTENSITY] + [f"table5 {part}" for part in lda_paper.SHARES]
    by_sweep = [
        "fig7 NYTimes",
        "fig7 PubMed",
        *(f"fig8 {name}{rule}" for name in ("NYTimes", "PubMed") for rule in ("", ", own count included")),
    ]
    assert {name: n for name, n in found.items() if not name.startswith("cpu")} == Counter(
        ["corpus NYTimes", "corpus PubMed", "ceiling/copy", "ceiling/read", "ceiling/numpy.sort", "stream", "transform"]
        + ["table4 NYTimes", "table4 PubMed", *tables]
        + 2 * ["gpus NYTimes", "gpus PubMed", "quality", "quality exact", "quality own count included", "fig9 PubMed"]
        + 2 * ["quality scikit-learn"]
        + 3 * [*by_sweep, "fig9 by sweep", "fig9 by sweep"]
        + 2 * of_topics
    )
    assert found["cpu"] == 1 == found["cpu scikit-learn"]


def test_rows_are_consistent(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    assert {row["kernel"] for row in found if row["target"] is not None} == {"lda/quality"}  # others are of GPUs
    assert {path.name.split("_")[1] for path in folder.glob("*.png")} == {"table4", "table5", "fig7", "fig8", "fig9"}
    rows = {(row["kernel"], row["sizes"].split()[-1]): row for row in found}
    whole, steps = rows["lda/sweep", "K=8"], [rows[f"lda/sweep, {step}", "K=8"] for step in STEPS]
    assert whole["bytes_moved"] == sum(step["bytes_moved"] for step in steps)
    assert whole["rate"] == pytest.approx(3 * TOKENS / whole["median_seconds"])
    assert 1 < rows["lda/sample entries", "K=8"]["rate"] <= 8
    one, two = (rows["lda/gpus NYTimes", f"workers={n}"] for n in (1, 2))
    assert two["ceiling"] == "2 x workers=1" and not one["ceiling"]
    assert two["floor_seconds"] == pytest.approx(one["median_seconds"] / 2)


def test_a_corpus_has_its_shape_and_any_cut_has_the_same_documents():
    shape = SHAPES["PubMed"].scaled(30_000)
    assert shape == CorpusShape("PubMed", 333, 899, 30_000)
    assert SHAPES["PubMed"].scaled(10**9) == SHAPES["PubMed"]
    whole = generate(shape).check()
    assert (whole.documents, whole.num_words, whole.tokens) == (333, 899, 30_000)
    assert whole.lengths_D().tolist() == lengths(shape, 1).tolist()
    cuts = cut(shape, 3)
    assert join_bags([generate(shape, first=a, last=b) for a, b in zip(cuts, cuts[1:], strict=False)]) == whole
    assert generate(shape, seed=2) != whole


# Stands in for CuLDA_CGS's programs, whose texts have a document a line, its name first.
FAKE_CULDA = """#!{python}
import sys
if sys.argv[0].endswith("culda_format"):
    lines = open(sys.argv[1]).read().splitlines()
    assert sys.argv[3] == "1" and all(line.startswith(f"d{{d}} ") for d, line in enumerate(lines))
    open(sys.argv[2] + ".words", "w").write(str(sum(len(line.split()) - 1 for line in lines)))
else:
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    words = int(open(options["-i"] + ".words").read())
    assert options["-g"] == options["-c"] == "1" and options["-k"] == "1024" and options["-a"] == "0.048828125"
    for i in range(int(options["-t"])):
        print(f"Iteration {{i + 1:3d}}:   0.10 sec, 0.10 sec, logLikelyhood = -8.1, {{words * (i + 1):5.3f}} M")
"""


def test_culda_is_compared(bags, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    bench = LdaBench(Suite("cpu"), TOKENS, [1], None, tmp_path)
    shape = bench.shape("NYTimes")
    lda_paper._culda(bench, shape)
    assert bench.suite.rows[0].notes == "not measured: culda and culda_format not on the PATH"
    for name in lda_peers.CULDA_PROGRAMS:
        (tmp_path / name).write_text(FAKE_CULDA.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    lda_paper._culda(bench, shape)
    row = bench.suite.rows[1]
    assert row.kernel == lda_paper.CULDA and row.sizes.endswith(" K=1024") and row.notes.endswith("sweeps 1 to 3")
    # Sweeps of 4 G, 8 G and 12 G tokens/s: 3 T tokens in 11 T / 24 of a microsecond.
    assert row.rate == pytest.approx(3 / (1 + 1 / 2 + 1 / 3) * shape.tokens * 1e6)
    lda_figures.draw([row, replace(row, kernel="lda/table4 NYTimes")], tmp_path)
    assert next(tmp_path.glob("lda_table4_*.png")).read_bytes().startswith(b"\x89PNG")


# Stands in for WarpLDA's programs: a sweep takes half a second.
FAKE_WARPLDA = """#!{python}
import sys
if sys.argv[0].endswith("format"):
    assert sys.argv[1:] == ["-input", "train.txt", "-prefix", "train"] and open("train.txt").read(5) == "d0 d0"
else:
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    for i in range(int(options["--niter"])):
        print(f"Iteration {{i}}, 0.5 s, 1.0 Mtoken/s")
    open("train.vocab", "w").write("0\\n2\\n")
    open("train.model", "w").write("2 8 0.1 0.01\\n2 1:5 3:2\\n1 0:4\\n")
"""


def test_a_peer_that_fails_is_quoted(tmp_path):
    with pytest.raises(RunError, match="sh ended with status 3: no NUMA node; take it off the PATH to go without"):
        lda_peers._run(["sh", "-c", "echo reading; echo no NUMA node >&2; exit 3"], tmp_path)
    with pytest.raises(RunError, match="sh ended with status 1: it says nothing; "):
        lda_peers._run(["sh", "-c", "exit 1"], tmp_path)


def test_warplda_is_compared(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    bench = LdaBench(Suite("cpu"), TOKENS, [1], None, tmp_path)
    for name in "warplda", "format":
        (programs / name).write_text(FAKE_WARPLDA.format(python=sys.executable))
        (programs / name).chmod(0o755)
    lda_paper._warplda(bench, bench.shape("NYTimes"))
    [row] = bench.suite.rows
    assert row.kernel == lda_paper.WARPLDA and row.rate == pytest.approx(TOKENS / 0.5) and " K=8" in row.sizes
    counts_VZ, seconds = lda_peers.warplda_counts(3, 8, 2, tmp_path / "warplda")
    assert counts_VZ[0, [1, 3]].tolist() == [5, 2] and counts_VZ[2, 0] == 4 and counts_VZ.sum() == 11 and seconds == 1


def test_words_of_a_corpus_follow_their_law():
    shape = SHAPES["KOS"].scaled(200_000)
    known, bags = language(shape.words, 1), generate(shape)
    found_V = np.bincount(bags.words_P, bags.counts_P, bags.num_words) / bags.tokens
    upper_N, start = np.concatenate([[np.uint64(0)], known.upper_N]), len(known.word_N) - shape.words
    zipf_V = np.zeros(shape.words)
    zipf_V[known.word_N[start:]] = np.diff(upper_N)[start:] / 2**32
    assert zipf_V.sum() == pytest.approx(1)
    assert (found_V >= 0.2 * zipf_V - 4 * np.sqrt(zipf_V / bags.tokens)).all()  # the background is a quarter of tokens
    assert np.corrcoef(found_V, zipf_V)[0, 1] > 0.5


def test_wrong_counts_are_not_timed(bags):
    sampler = open_sampler(bags, 10, "cpu")
    timed_sweeps(sampler, 1)
    check_counts(sampler, bags)
    word, topic = np.argwhere(sampler.counts_VZ)[0]
    sampler.counts_VZ[word, topic] -= 1
    with pytest.raises(WrongResult, match=r"1 of \d+ words have other counts than tokens, 3,999 beside 4,000"):
        check_counts(sampler, bags)
    sampler.counts_VZ[word, (topic + 1) % 10] += 1
    with pytest.raises(WrongResult, match="2 of 10 topics"):
        check_counts(sampler, bags)


def test_wrong_sweeps_are_not_timed(monkeypatch):
    def wrong(sampler, sweeps):
        staged = staged_sweeps(sampler, sweeps)
        sampler.counts_VZ[0, 0] += 1
        return staged

    suite = Suite("cpu")
    lda_speed.check_devices(suite)
    monkeypatch.setattr(lda_speed, "staged_sweeps", wrong)
    with pytest.raises(WrongResult, match="have different counts of topics"):
        lda_speed.check_devices(suite)


def test_wrong_corpora_are_not_timed(bags):
    shape, suite = SHAPES["KOS"].scaled(TOKENS), Suite("cpu")
    lda_speed.check_corpus(bags, shape, suite)
    with pytest.raises(WrongResult, match="generates other documents"):
        lda_speed.check_corpus(generate(shape, seed=2), shape, suite)
    with pytest.raises(WrongResult, match="but should have corpus=KOS"):
        lda_speed.check_corpus(bags.slice(0, 5), shape, suite)


def test_a_fingerprint_tells_counts_apart(bags):
    sampler = open_sampler(bags, 10, "cpu")
    before = fingerprint(sampler)
    sampler.counts_VZ[[0, 1]] = sampler.counts_VZ[[1, 0]]
    assert fingerprint(sampler) != before


def test_exact_sampling_by_hand_and_beside_ours():
    one = make_bags([0, 3], [0, 1, 2], [2, 1, 4], 4)
    counts_VZ = lda_quality.exact_counts(one, 2, 5, 1)
    assert counts_VZ.sum(1).tolist() == [2, 1, 4, 0]
    bags = generate(SHAPES["KOS"].scaled(30_000))
    held_out = hold_out(bags.slice(200, bags.documents), 200, 1.0, 0)
    exact = lda_quality.exact_counts(bags.slice(0, 200), 16, 30, 1)
    sampler = open_sampler(bags.slice(0, 200), 16, "cpu")
    timed_sweeps(sampler, 30)
    found = [lda_quality.perplexity(counts_VZ, held_out) for counts_VZ in (exact, sampler.counts_VZ)]
    assert found[1] == pytest.approx(found[0], rel=0.1)
    for counts_VZ, perplexity in zip((exact, sampler.counts_VZ), found, strict=True):
        assert lda_quality.perplexity_of_phi(lda_quality.phi_of(counts_VZ), held_out) == pytest.approx(perplexity, 1e-3)


def test_a_real_corpus_comes_with_held_out_documents(tmp_path):
    for name, count in (("train", 2), ("test", 4)):
        (tmp_path / f"docword.x.{name}.txt").write_text(f"2\n3\n2\n1 1 {count}\n2 3 {count}\n")
    bench = lda_work.LdaBench(Suite("cpu"), 10, [1], tmp_path / "docword.x.train.txt", tmp_path)
    split = lda_quality.Split.of(bench)
    assert (split.train.tokens, split.sizes(5)) == (4, "corpus=x T=4 D=2 V=3 K=5")
    assert split.held_out.observed.tokens + split.held_out.target.tokens == 8


def test_a_file_without_held_out_documents_is_split(tmp_path):
    counts = np.random.default_rng(1).integers(0, 3, (400, 12)) * np.arange(400)[:, None]
    sp.save_npz(tmp_path / "all.npz", sp.csr_array(counts))
    split = lda_quality.Split.of(lda_work.LdaBench(Suite("cpu"), 10, [1], tmp_path / "all.npz", tmp_path))
    assert split.sizes(5).startswith("corpus=all T=") and 20 < 400 - split.train.documents < 60
    halves = split.held_out.observed, split.held_out.target
    assert split.train.tokens + sum(bags.tokens for bags in halves) == counts.sum()
    assert split.train.check().lengths_D().all(), "no document is empty"


def test_topics_of_scikit_learn_are_distributions(bags):
    phi_VZ = lda_peers.sklearn_phi(bags, 50, 1)
    assert phi_VZ.shape == (bags.num_words, 50) and phi_VZ.sum(0) == pytest.approx(np.ones(50))
    held_out = hold_out(bags, 0, 0.2, 1)
    uniform = lda_quality.perplexity_of_phi(np.full_like(phi_VZ, 1 / bags.num_words), held_out)
    assert uniform == pytest.approx(bags.num_words)
    assert lda_quality.perplexity_of_phi(phi_VZ, held_out) < uniform


def test_wrong_topics_of_documents_are_not_timed(bags):
    sampler = open_sampler(bags, 6, "cpu")
    words = word_topics(sampler.counts_VZ, lda_work.priors_of(6))
    theta_DZ = fold_in(Bag(bags.starts_D1, bags.words_P, bags.counts_P), fixed_topics(words))
    lda_transform.check_topics(theta_DZ, bags, words)
    theta_DZ[1] = theta_DZ[1, ::-1].copy()
    with pytest.raises(WrongResult, match="of document 1 have other topics than by NumPy"):
        lda_transform.check_topics(theta_DZ, bags, words)
    theta_DZ[0, 0] += 1
    with pytest.raises(WrongResult, match="do not sum to"):
        lda_transform.check_topics(theta_DZ, bags, words)


def test_bytes_of_shared_memory_are_those_of_the_iterations_of_each_document(monkeypatch):
    last_D = np.array([1, 4])  # document 0 takes one iteration, document 1 takes four
    monkeypatch.setattr(
        lda_transform, "fold_in",
        lambda bag, topics, n=100: np.tile(np.minimum(last_D, n)[:, None].astype(np.float32), (1, 10)),
    )  # fmt: skip
    bag = Bag(np.array([0, 1, 3]), np.array([0, 1, 2], np.uint32), np.ones(3, np.uint32))
    topics = FixedTopics(np.array([[0, 40], [3, 5], [4, 100]], np.uint32), None, None, None)
    # Iterations 0, 1 and 3 read 32 entries of a word at most. Iteration 2 reads all.
    entries = 32 + 3 * (5 + 32) + (5 + 100)
    assert lda_transform.shared_bytes(bag, topics) == 12 * entries + 16 * 10 * (1 + 4)


def test_the_reads_of_shared_memory_compile(compile_cuda):
    succeeded, log = compile_cuda(with_common(lda_transform.SOURCE))
    assert succeeded, log


def test_ranks_with_different_counts_are_not_timed():
    suite = Suite("cpu")
    bench = lda_work.LdaBench(suite, TOKENS, [2], None, None)
    executor = threads(2)
    prints = []
    lda_gpus.add_row(bench, executor, "NYTimes", 2, prints)
    assert len(prints) == 2 and prints[0] == prints[1] and len(suite.rows) == 1
    with pytest.raises(WrongResult, match="different numbers of workers"):
        lda_gpus.add_row(bench, executor, "NYTimes", 1, [prints[0] + 1])
    with pytest.raises(RunError, match="3 workers were asked for but 2 can run"):
        lda_gpus.add_row(bench, executor, "NYTimes", 3, [])
    executor.close()


def test_time_to_a_perplexity_ends_at_the_goal():
    steps = [(5, lda_cpu.Clock(1.0), 20.0), (10, lda_cpu.Clock(2.0), 10.0), (15, lda_cpu.Clock(3.0), 5.0)]
    assert lda_cpu._to_goal(iter(steps), 10.0)[0] == 10
    assert lda_cpu._to_goal(iter(steps), 1.0)[0] == 15


@pytest.mark.gpu
def test_a_gpu_measures_all_parts(tmp_path):
    rows = lda.bench(BenchOptions("gpu", tmp_path, tokens=200_000, workers="1"))
    kernels = {row["kernel"] for row in rows}
    assert {"lda/sample beside random reads", "lda/sample issue slots", "lda/corpus PubMed"} <= kernels
