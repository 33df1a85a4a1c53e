"""`mgpu-ngram bench lda` runs completely, writes all rows and files, and times no wrong result."""

from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.benchmarks import lda, lda_speed, lda_work
from mgpu_ngram.benchmarks.lda_corpus import SHAPES, Shape, cut, generate, language, lengths
from mgpu_ngram.benchmarks.lda_work import STEPS, check_counts, fingerprint, open_shard, staged_sweeps, timed_sweeps
from mgpu_ngram.benchmarks.options import BenchOptions
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.core.bags import join_bags

TOKENS = 4_000


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with few tokens and sweeps: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lda_speed, "CHECKED_TOKENS", 2_000)
        patch.setattr(lda_speed, "TOPICS", {"cpu": (8, 40), "gpu": (64, 4096)})
        patch.setattr(lda_work, "SWEEPS", {"cpu": 3, "gpu": 3})
        patch.setattr(lda_speed, "SWEEPS", {"cpu": 3, "gpu": 3})
        patch.setattr("mgpu_ngram.benchmarks.suite.CEILING_BYTES", {"cpu": 1 << 16, "gpu": 1 << 24})
        patch.setattr("mgpu_ngram.benchmarks.suite.SORTED_KEYS", {"cpu": 1 << 12, "gpu": 1 << 20})
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
    assert found == Counter(
        ["corpus NYTimes", "corpus PubMed", "ceiling/copy", "ceiling/read", "ceiling/numpy.sort"] + 2 * of_topics
    )


def test_rows_are_consistent(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    assert all(row["target"] is None for row in found)  # targets are of whole corpora on GPUs
    rows = {(row["kernel"], row["sizes"].split()[-1]): row for row in found}
    whole, steps = rows["lda/sweep", "K=8"], [rows[f"lda/sweep, {step}", "K=8"] for step in STEPS]
    assert whole["bytes_moved"] == sum(step["bytes_moved"] for step in steps)
    assert whole["rate"] == pytest.approx(3 * TOKENS / whole["median_seconds"])
    assert 1 < rows["lda/sample entries", "K=8"]["rate"] <= 8


def test_a_corpus_has_its_shape_and_any_cut_has_the_same_documents():
    shape = SHAPES["PubMed"].scaled(30_000)
    assert shape == Shape("PubMed", 333, 899, 30_000)
    assert SHAPES["PubMed"].scaled(10**9) == SHAPES["PubMed"]
    whole = generate(shape).check()
    assert (whole.documents, whole.num_words, whole.tokens) == (333, 899, 30_000)
    assert whole.lengths_D().tolist() == lengths(shape, 1).tolist()
    cuts = cut(shape, 3)
    assert join_bags([generate(shape, first=a, last=b) for a, b in zip(cuts, cuts[1:], strict=False)]) == whole
    assert generate(shape, seed=2) != whole


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
    shard = open_shard(bags, 10, "cpu")
    timed_sweeps(shard, 1)
    check_counts(shard, bags)
    word, topic = np.argwhere(shard.counts_VZ)[0]
    shard.counts_VZ[word, topic] -= 1
    with pytest.raises(WrongResult, match=r"1 of \d+ words have other counts than tokens, 3,999 beside 4,000"):
        check_counts(shard, bags)
    shard.counts_VZ[word, (topic + 1) % 10] += 1
    with pytest.raises(WrongResult, match="2 of 10 topics"):
        check_counts(shard, bags)


def test_wrong_sweeps_are_not_timed(monkeypatch):
    def wrong(shard, sweeps):
        staged = staged_sweeps(shard, sweeps)
        shard.counts_VZ[0, 0] += 1
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
    shard = open_shard(bags, 10, "cpu")
    before = fingerprint(shard)
    shard.counts_VZ[[0, 1]] = shard.counts_VZ[[1, 0]]
    assert fingerprint(shard) != before


@pytest.mark.gpu
def test_a_gpu_measures_all_parts(tmp_path):
    rows = lda.bench(BenchOptions("gpu", tmp_path, tokens=200_000, workers="1"))
    kernels = {row["kernel"] for row in rows}
    assert {"lda/sample beside random reads", "lda/sample issue slots", "lda/corpus PubMed"} <= kernels
