"""`mgpu-ngram bench cluster` runs completely, writes all rows and files, and times no wrong result."""

from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.benchmarks.cluster import arrays as cluster_arrays
from mgpu_ngram.benchmarks.cluster import bench as cluster
from mgpu_ngram.benchmarks.cluster import scheduler as cluster_scheduler
from mgpu_ngram.benchmarks.cluster import vocabulary as cluster_vocabulary
from mgpu_ngram.benchmarks.cluster import words as cluster_words
from mgpu_ngram.benchmarks.cluster.words import ZipfCorpus
from mgpu_ngram.benchmarks.count import tables as cluster_tables
from mgpu_ngram.benchmarks.count.tables import count_to_tables, totals_of
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.shards import SHARD_TOKENS
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.count import sorted_runs as engine_runs
from mgpu_ngram.jobs.count import chunk_ranges
from mgpu_ngram.kernels.dispatch import to_host

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small():
    """Run with few rounds: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_words, "ROUNDS", 1)
        patch.setattr(cluster_words, "ORACLE_WORDS", 2_000)
        patch.setattr(cluster_arrays, "ROUNDS", {"cpu": 1, "gpu": 1})
        patch.setattr(cluster_arrays, "BINS", {"cpu": 1 << 10, "gpu": 1 << 20})
        patch.setattr(cluster_scheduler, "WORKERS", (4,))
        patch.setattr(cluster_scheduler, "CHUNKS_PER_WORKER", (2,))
        patch.setattr(cluster, "FILE_TOKENS", {"cpu": 4_000, "gpu": 400_000})
        yield


@pytest.fixture(scope="module")
def bench_run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return cluster.bench(BenchOptions("cpu", folder, tokens=10_000, size="64 KiB")), folder


def test_every_part_has_rows(bench_run):
    found = Counter(row["kernel"].removeprefix("cluster/") for row in bench_run[0])
    assert found == {
        "read text": 2,
        "words text to shards": 2,
        "tree-reduce of a histogram": 1,
        "one tree-reduce of a histogram": 1,
        "shuffle and merge": 1,
        "shuffle alone": 1,
        "merge alone": 1,
        "without a cluster": 1,
        "without a cluster, to Parquet": 1,
        "overhead": 1,
        "overhead, to Parquet": 1,
        "run with all memory": 1,
        "run with a small budget": 1,
        "distinct words": 1,
        "scheduler of a count": 1,
        "scheduler of an estimate": 1,
    }


def test_rows_are_consistent(bench_run):
    rows = {(r["kernel"], r["sizes"].split()[-1]): r for r in bench_run[0]}
    one, two = (rows["cluster/words text to shards", f"workers={G}"] for G in (1, 2))
    assert one["speedup"] is None
    assert two["speedup"] == pytest.approx(one["median_seconds"] / two["median_seconds"])
    for row in one, two:
        assert row["sizes"].startswith("tokens=10000 ")
        assert row["rate"] == pytest.approx(10_000 / row["median_seconds"]) and row["rate_unit"] == "tokens/s"
    shuffled = rows["cluster/shuffle and merge", "workers=2"]
    held_bytes = int(shuffled["sizes"].split()[0].removeprefix("table_bytes="))
    assert held_bytes == pytest.approx(2 * (64 << 10), rel=0.1)
    assert shuffled["rate"] == pytest.approx(held_bytes / 2 / shuffled["median_seconds"])
    assert all(row["target"] is None for row in bench_run[0])  # these rows are of GPUs


def test_csv_and_figure(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    [figure] = folder.glob("cluster_speedup_*.png")
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def corpus(small, tmp_path):
    return ZipfCorpus.generate(tmp_path, 5_000, 2_000)


def test_a_corpus_and_its_head(corpus):
    lines = [line.split() for path, _ in corpus.files for line in path.read_bytes().splitlines()]
    assert corpus.totals == [sum(max(0, len(words) - n + 1) for words in lines) for n in range(1, 6)]
    assert corpus.totals[0] == 5_000 and len(corpus.files) == 3
    assert [len(corpus.head(tokens).files) for tokens in (1, 2_000, 3_999, 4_000, 5_000, 10_000)] == [1, 1, 1, 2, 3, 3]


@pytest.mark.parametrize("on_disk", [False, True])
def test_merged_tables_hold_every_ngram(corpus, monkeypatch, on_disk):
    monkeypatch.setitem(SHARD_TOKENS, "word", 500)  # ten shards, so two partitions
    if on_disk:
        monkeypatch.setattr(cluster_tables, "spill_run", lambda run, _, folder: engine_runs.store_run(run, folder))
    executor = LocalExecutor("cpu", 2)
    try:
        merged = count_to_tables(corpus.paths, executor, corpus.folder, chunk_bytes=5_000)
        parts = executor.gather(merged.parts)
    finally:
        executor.close()
    assert len(parts) == 2 and all(bool(run.stored) == on_disk for part in parts for run in part)
    totals = sum((Counter(totals_of(part)) for part in parts), Counter({1: merged.tokens}))
    assert [totals[n] for n in range(1, 6)] == corpus.totals


def check_wrong(corpus, workers, message):
    """Check that the bench of a corpus finds a wrong result and keeps no row."""
    suite, executor = Suite("cpu"), LocalExecutor("cpu", workers)
    try:
        with pytest.raises(WrongResult, match=message):
            cluster_words.speedup(suite, executor, corpus)
    finally:
        executor.close()
    assert not suite.rows


def test_a_wrong_merge_gives_no_row(corpus, monkeypatch):
    right = engine_runs.merge_tables

    def wrong(tables):
        keys, counts, ends_S = right(tables)
        if len(tables) > 1:
            counts[:2] += np.array([1, -1])
        return keys, counts, ends_S

    monkeypatch.setattr(engine_runs, "merge_tables", wrong)
    check_wrong(corpus, 2, "order 2")


def test_a_lost_chunk_gives_no_row(corpus):
    whole = ZipfCorpus(corpus.folder, [*corpus.files[:-1], (corpus.files[-1][0], [n + 1 for n in corpus.files[-1][1]])])
    check_wrong(whole, 1, "n-grams of order 1")


def test_runs_overlap_as_stated():
    G, universe = 3, cluster_arrays.candidates(240_000, 3)
    runs = [cluster_arrays.make_run(k, G, universe, "cpu") for k in range(G)]
    expected: Counter[tuple[int, ...]] = Counter()
    holders: Counter[tuple[int, ...]] = Counter()
    for run in runs:
        [table] = run.tables[4]
        assert table.nbytes == pytest.approx(240_000, rel=0.05) and len(table.ends_S) == 256
        for shard in range(256):
            rows = table.shard(shard)
            ngrams = [(shard, *key) for key in rows.keys.T.tolist()]
            assert ngrams == sorted(set(ngrams))
            expected.update(dict(zip(ngrams, rows.counts.tolist(), strict=True)))
            holders.update(ngrams)
    assert len(expected) == universe
    assert set(holders.values()) == {1, 3}
    common = sum(n == 3 for n in holders.values()) / (holders.total() / 3)
    assert common == pytest.approx(cluster_arrays.COMMON_SHARE, rel=0.1)
    [merged] = engine_runs.merge_runs(*runs).tables[4]
    found = {}
    for shard in range(256):
        rows = merged.shard(shard)
        found |= {(shard, *key): n for key, n in zip(rows.keys.T.tolist(), to_host(rows.counts).tolist(), strict=True)}
    assert found == expected


def test_parts_and_workers():
    assert BenchOptions("cpu").parts(cluster.PARTS) == list(cluster.PARTS)
    assert BenchOptions("cpu", only="4,spill").parts(cluster.PARTS) == ["histogram", "spill"]
    assert BenchOptions("gpu", workers="4,1,4").clusters() == [1, 4] and BenchOptions("cpu").clusters() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"only": "9"},
            "part '9' is none of read, speedup, overhead, histogram, shuffle, spill, vocabulary, scheduler",
        ),
        ({"only": "0"}, "nor a number from 1 to 8"),
        ({"workers": "1,two"}, "workers is '1,two'"),
        ({"workers": "0"}, "workers is '0'"),
        ({"tokens": 5}, "tokens is 5 but must be at least 1000"),
        ({"folder": "/no/such/folder"}, "/no/such/folder: no such folder"),
    ],
)
def test_bad_options(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        cluster.bench(BenchOptions("cpu", tmp_path, **options))


@pytest.mark.multigpu
def test_whole_suite_on_gpus(small, tmp_path):
    found = {
        row["kernel"]: row
        for row in cluster.bench(BenchOptions("gpu", tmp_path, tokens=1_000_000, size="8 MiB", workers="1,2"))
    }
    assert {"cluster/words text to shards", "cluster/shuffle and merge", "cluster/run with a small budget"} <= set(
        found
    )
    assert found["cluster/tree-reduce of a histogram"]["notes"].startswith("16 at once")


def test_distinct_words_are_those_that_were_written(tmp_path, monkeypatch):
    total = cluster_vocabulary.write_distinct(tmp_path / "text", 1_234)
    words = (tmp_path / "text").read_text().split()
    assert len({*words}) == len(words) == 1_234 and {len(word) for word in words} == {cluster_vocabulary.DIGITS}
    assert total == sum(int(word, 16) for word in words) % 2**64
    data = np.frombuffer("".join(words).encode(), np.uint8)
    assert cluster_vocabulary.sum_of_values(data) == total
    real = cluster_vocabulary.write_distinct
    monkeypatch.setattr(cluster_vocabulary, "write_distinct", lambda path, words: real(path, words) + 1)
    suite = Suite("cpu")
    with pytest.raises(WrongResult, match="values of the words"):
        cluster_vocabulary.run(suite, tmp_path, 1_000)
    assert not suite.rows


def test_a_simulated_count(monkeypatch, tmp_path):
    """Twenty chunks alone, and in ranges: the tasks are those of the real driver, of whom one phase may be left out."""
    whole = cluster_scheduler.simulate("a count", 4, 20)
    assert 4 * 20 < whole.tasks < 400 and sum(tasks for tasks, _ in whole.phases.values()) == whole.tasks
    assert list(whole.phases) == ["begin", "tokenise", "count", "reduce", "write"]
    assert 0 < whole.scheduler_seconds < whole.wall_seconds and 0 < whole.driver_seconds < whole.wall_seconds
    assert sum(seconds for _, seconds in whole.phases.values()) <= whole.scheduler_seconds
    assert 50 << 20 < whole.peak_bytes < 1 << 30
    monkeypatch.setattr(chunk_ranges, "MOST_RANGES", 5)
    monkeypatch.setattr(chunk_ranges, "RANGES_PER_WORKER", 1)
    in_ranges = cluster_scheduler.simulate("a count", 4, 20, until="write")
    assert list(in_ranges.phases) == ["begin", "tokenise", "count", "reduce"]
    assert in_ranges.tasks < whole.tasks - whole.phases["write"][0] - 3 * (20 - 5)
    suite = Suite("cpu")
    cluster_scheduler.add_row(suite, whole)
    assert suite.rows[0].rate == pytest.approx(whole.tasks / whole.scheduler_seconds)
    assert suite.rows[0].sizes == "workers=4 chunks=20" and f"{whole.tasks:,} tasks" in suite.rows[0].notes


def test_a_simulated_estimate():
    """The driver goes through all phases up to the model, and its tasks grow with the workers, not with their pairs."""
    small, large = (cluster_scheduler.simulate("an estimate", workers, 20) for workers in (4, 16))
    for load in small, large:
        assert list(load.phases) == ["begin", "tokenise", "count", "adjust", "estimate", "assemble"]
        assert sum(tasks for tasks, _ in load.phases.values()) == load.tasks
        assert 0 < load.scheduler_seconds < load.wall_seconds
    assert 4 * 20 < small.tasks < large.tasks < 4 * small.tasks
    suite = Suite("cpu")
    cluster_scheduler.add_row(suite, small)
    assert suite.rows[0].kernel == "cluster/scheduler of an estimate"
