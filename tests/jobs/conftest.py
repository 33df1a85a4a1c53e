"""Fixtures of whole runs: a corpus in many chunks, its correct output, and clusters whose workers run test hooks."""

import copy
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import dask
import numpy as np
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.dask_config import ENVIRONMENT
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts import shards
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import chunk_ranges
from mgpu_ngram.jobs.count.run import CountConfig, run
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.progress import Progress
from tests.support.slowness import scaled

HOOKS = Path(__file__).parents[1] / "support" / "task_hooks.py"
HOOKS_FOLDER = f"{ENVIRONMENT}.NGRAM_TEST_HOOKS"
SHARD_TOKENS = 6000


@pytest.fixture(scope="session")
def contents():
    """Return a function that reads every file of an output, name -> bytes."""

    def read(folder):
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}

    return read


@pytest.fixture
def model_bytes(device, tmp_path):
    """Return model_bytes(config, cluster): the bytes of the model file of an estimate, by default in this process."""

    def run(config, cluster=None):
        executor = cluster or LocalExecutor(device, 1)
        try:
            estimate.run(config, RunContext(executor, tmp_path / "model", single_file=True, overwrite=True))
        finally:
            if cluster is None:
                executor.close()
        return (tmp_path / "model").read_bytes()

    return run


@pytest.fixture
def slow_first_chunk(monkeypatch):
    """Return slow_first_chunk(job, name, window): (the chunks that start, the event that ends the first one).

    The task `name` of the first chunk lasts until `window` chunks have started; meanwhile no more may start.
    """

    def replace(job, name, window):
        real, started, first = getattr(job, name), [], threading.Event()

        def slow(chunk, options):
            started.append(chunk.index)
            if chunk.index == 0:
                assert first.wait(scaled(30))
            elif len(started) == window:
                threading.Timer(0.2, first.set).start()
            elif not first.is_set():
                assert len(started) <= window
            return real(chunk, options)

        monkeypatch.setattr(job, name, slow)
        return started, first

    return replace


@pytest.fixture(params=[2, 4])
def several_gpus(request):
    """A cluster with that many GPUs, for tests marked `multigpu`."""
    if visible_gpus() < request.param:
        pytest.skip(f"needs {request.param} GPUs")
    executor = start_cluster("gpu", request.param)
    yield executor
    executor.close()


@pytest.fixture(scope="session")
def run_here():
    """Return a function that counts in this process."""

    def count(output, corpus, workers=2, progress=None, memory=None, checkpoint_seconds=120.0, resume=False,
              overwrite=False, **options):  # fmt: skip
        executor = LocalExecutor(workers=workers)
        try:
            config = CountConfig([str(c) for c in corpus], **options)
            return run(
                config,
                RunContext(
                    executor,
                    output,
                    overwrite=overwrite,
                    progress=progress or Progress(),
                    memory=memory or MemoryConfig(),
                    checkpoint_seconds=checkpoint_seconds,
                    resume=resume,
                ),
            )
        finally:
            executor.close()

    return count


def random_text(rng, tokens, words=2000):
    """Write lines of 1 to 30 words, a few of which are frequent."""
    vocabulary = np.array([f"w{i}" for i in range(words)])
    ids = np.minimum(rng.zipf(1.3, tokens) - 1, words - 1)
    ends = np.cumsum(rng.integers(1, 31, tokens))
    lines = np.split(vocabulary[ids], ends[ends < tokens])
    return "".join(" ".join(line) + "\n" for line in lines)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Two files: about 100 chunks of 3,000 bytes, 10 shards."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for name, tokens in ("one.txt", 40_000), ("two.txt", 20_000):
        (folder / name).write_text(random_text(rng, tokens))
    return sorted(folder.iterdir())


@pytest.fixture
def several_shards(monkeypatch):
    monkeypatch.setitem(shards.SHARD_TOKENS, "word", SHARD_TOKENS)


@pytest.fixture
def most_ranges(monkeypatch):
    """Return a function that sets the most ranges of a pass."""

    def limit(most):
        monkeypatch.setattr(chunk_ranges, "MOST_RANGES", most)
        monkeypatch.setattr(chunk_ranges, "RANGES_PER_WORKER", 1)

    return limit


@pytest.fixture(scope="session")
def undisturbed(corpus, contents, run_here, tmp_path_factory):
    """The correct output, from one process with one thread and one chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shards.SHARD_TOKENS, "word", SHARD_TOKENS)
        result = run_here(tmp_path_factory.mktemp("undisturbed") / "out", corpus, 1, order=4)
    assert result.manifest["num_shards"] == 10
    return contents(result.path)


@pytest.fixture(scope="session")
def hooks_folder(tmp_path_factory):
    """The folder of hooks, in the environment of every process that a test starts; see task_hooks.py."""
    folder = tmp_path_factory.mktemp("hooks")
    (folder / "shard_tokens").write_text(str(SHARD_TOKENS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGRAM_TEST_HOOKS", str(folder))
        yield folder


@pytest.fixture
def here():
    """An executor in this process, with three threads."""
    executor = LocalExecutor(workers=3)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def cluster(start):
    """A cluster of two worker processes with the hooks."""
    return start(2)


@pytest.fixture
def hooks(hooks_folder, several_shards):
    """Return a function that sets hooks, text by name; they are removed after the test."""

    def write(**texts):
        for name, text in texts.items():
            (hooks_folder / name).write_text(str(text))

    yield write
    for path in hooks_folder.iterdir():
        if path.name != "shard_tokens":
            path.unlink()


@pytest.fixture(scope="module")
def start(hooks_folder):
    """Return a function that starts a cluster on this host whose workers have the hooks."""
    before = copy.deepcopy(dask.config.config)
    with ExitStack() as closing:

        def make(workers, device="cpu"):
            settings = {"distributed.worker.preload": [str(HOOKS)], HOOKS_FOLDER: str(hooks_folder)}
            executor = start_cluster(device, workers, settings)
            closing.callback(executor.close)
            return executor

        yield make
    dask.config.config.clear()
    dask.config.config.update(before)


@pytest.fixture
def dask_processes(hooks_folder, tmp_path_factory):
    """Return a function that starts a scheduler and workers with the hooks as commands: (scheduler file, processes)."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    dask_command = [sys.executable, "-m", "dask"]
    here = ["--host", "127.0.0.1", "--scheduler-file", str(file), "--no-dashboard"]
    with ExitStack() as ending:

        def begin(workers):
            commands = [[*dask_command, "scheduler", "--port", "0", *here]]
            commands += [[*dask_command, "worker", *here, "--nthreads", "1", "--preload", str(HOOKS)]] * workers
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            processes = [subprocess.Popen(c, cwd=folder, start_new_session=True, **quiet) for c in commands]
            for process in processes:
                ending.callback(end, process)
            return file, processes

        yield begin


def end(process):
    """End a process and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
