"""Runs from text that ended early and are resumed by other runs."""

import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from mgpu_ngram.jobs.progress import Progress
from tests.support.variants import first_fast


class Ended(Progress):
    """End a run when all chunks are counted and saved."""

    def start(self, phase, *_):
        if phase == "adjust":
            raise KeyboardInterrupt


@pytest.mark.parametrize(("before", "after"), first_fast([(2, 3), (3, 2), (4, 1)]))
@pytest.mark.parametrize("less_memory", [False, True])
def test_resume_with_other_workers_and_other_memory(
    corpus, tmp_path, part_tokens, monkeypatch, before, after, less_memory
):
    """The saved runs keep the number of shards that the first run chose."""
    config = EstimateConfig([str(path) for path in corpus], order=3, chunk_bytes=50_000)

    def run(name, workers, **options):
        executor = LocalExecutor("cpu", workers)
        try:
            return estimate.run(config, RunContext(executor, tmp_path / name, single_file=True, **options))
        finally:
            executor.close()

    run("whole", 1)
    with pytest.raises(KeyboardInterrupt):
        run("resumed", before, progress=Ended(), checkpoint_seconds=0)
    if less_memory:
        part_tokens(5000)
    assert run("resumed", after, resume=True).resumed_chunks > 3
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
