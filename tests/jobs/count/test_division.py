"""The division of a count on a cluster: no worker merges or holds the whole result."""

from collections import Counter, defaultdict

import pytest

from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count.run import CountConfig, run

WORKERS = 4
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(start):
    return start(WORKERS)


@pytest.fixture
def tasks(cluster):
    """Return {name of a task, and its number of dependencies: {worker: number of runs}} of the tasks that run."""
    seen = defaultdict(Counter)

    def follow(event):
        if "worker" in event[1]:
            seen[event[1]["key"].partition("-")[0]][event[1]["worker"]] += 1
        return on_task(event)

    on_task = cluster._watch._on_task
    cluster.client.subscribe_topic(cluster._name, follow)
    yield seen
    cluster.client.subscribe_topic(cluster._name, on_task)


@pytest.mark.slow
def test_several_workers_merge_and_write(cluster, corpus, undisturbed, contents, hooks, tasks, tmp_path):
    """10 shards with a part for each; if the worker of a part is late, another worker takes the part."""
    for strategy, task in ("hash", "write_part_"), ("auto", "write_windows_"):
        config = CountConfig([str(c) for c in corpus], order=4, chunk_bytes=3000, strategy=strategy)
        result = run(config, RunContext(cluster, tmp_path / strategy))
        assert contents(result.path) == undisturbed
        written = Counter()
        for name, workers in tasks.items():
            if name.startswith(task):
                written += workers
        assert WORKERS <= written.total() <= 2 * WORKERS and len(written) > 1


@pytest.mark.slow
def test_dense_histograms_are_added_in_pairs(cluster, corpus, contents, hooks, tasks, run_here, tmp_path):
    """A tree of log2(workers) levels: three pairwise sums, after each worker's own sum."""
    options = {"order": 2, "unit": "byte", "strategy": "global"}
    config = CountConfig([str(c) for c in corpus], chunk_bytes=3000, **options)
    result = run(config, RunContext(cluster, tmp_path / "out"))
    assert contents(result.path) == contents(run_here(tmp_path / "here", corpus, 1, **options).path)
    assert tasks["bins_of_1"].total() == WORKERS
    sums = {name: workers.total() for name, workers in tasks.items() if name.startswith("bundle_runs_")}
    assert sums.pop("bundle_runs_2") == WORKERS - 1
    assert sum(sums.values()) == WORKERS and min(int(name.split("_")[-1]) for name in sums) > WORKERS
