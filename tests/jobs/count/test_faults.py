"""Runs on clusters with dying or late workers, or a lost scheduler: the correct output, or one line with the cause."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest

from mgpu_ngram.cluster.dask import connect
from mgpu_ngram.cluster.executor import MAX_DEATHS
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.memory.budget import KEPT_SHARE
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import passes
from mgpu_ngram.jobs.count.run import CountConfig, run
from mgpu_ngram.jobs.progress import Progress
from tests.support.slow_cases import slow_cases
from tests.support.slowness import scaled

OPTIONS = {"order": 4, "chunk_bytes": 3000, "strategy": "hash"}  # sorted runs of chunks
KILLS = {"tokenise": 8, "count": 8}  # at any moment of a phase
BOMBS = {  # short tasks: the merge, the shuffle, the writing
    "hash": 2 * ("bundle_runs", "take_shards", "write_part"),
    # `take_keys` runs within `write_windows`: less than MAX_DEATHS for a task that meets them all
    "auto": (*2 * ("bundle_ids", "select_keys", "write_windows"), "take_keys"),
}
BOMB_SECONDS = 0.02
pytestmark = pytest.mark.timeout(120)


def on(executor, corpus, output, progress=None, strategy="hash", **more):
    config = CountConfig([str(c) for c in corpus], **{**OPTIONS, "strategy": strategy})
    return run(config, RunContext(executor, output, progress=progress or Progress(), **more))


def kill(executor, choose):
    """Kill one running worker; its nanny starts another. Return whether a worker was killed.

    The worker of a task that was running in MAX_DEATHS - 1 deaths is spared: one more would rightly end the run.
    """
    cluster, tasks = executor.client.cluster, executor._watch._tasks

    def is_spared(worker):
        keys = [str(task.key) for task in list(worker.processing)]
        return any(key in tasks and tasks[key].deaths >= MAX_DEATHS - 1 for key in keys)

    names = [worker.name for worker in list(cluster.scheduler.workers.values()) if not is_spared(worker)]
    there = [pid for name in names if (pid := cluster.workers[name].pid)]
    with suppress(psutil.NoSuchProcess):  # it was killed, and the scheduler has not noticed
        if there and (process := psutil.Process(choose(there))).status() != psutil.STATUS_ZOMBIE:
            process.kill()
            return True
    return False


@pytest.fixture(autouse=True)
def healthy(request, wait_for_workers):
    """A test begins with two workers."""
    yield
    if "cluster" in request.fixturenames:
        wait_for_workers(request.getfixturevalue("cluster").client, 2)


@pytest.mark.parametrize("strategy", BOMBS)
def test_undisturbed(strategy, cluster, corpus, undisturbed, contents, hooks, tmp_path):
    result = on(cluster, corpus, tmp_path / "out", strategy=strategy)
    assert contents(result.path) == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


DEATHS = {  # (tasks that die before they start, tasks that die when they are done)
    "hash": (
        ["tokenise", "count_chunk", "bundle_runs", "write_part"],
        ["tokenise", "save_vocabularies", "count_chunk", "save_runs", "take_shards", "write_part"],
    ),
    "auto": (
        ["tokenise", "text_ids", "bundle_ids", "select_keys", "write_windows"],
        ["tokenise", "save_vocabularies", "text_ids", "take_keys", "write_windows", "save_files"],
    ),
}


@pytest.mark.parametrize("strategy", DEATHS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.multigpu)])
@pytest.mark.timeout(300)
def test_a_death_in_every_task(
    device, strategy, cluster, start, corpus, undisturbed, contents, hooks, hooks_folder, tmp_path
):
    """Tasks that write files die after they have written them. GPUs give the same output as a CPU."""
    before, after = DEATHS[strategy]
    hooks(**dict.fromkeys([*(f"{task}.before" for task in before), *(f"{task}.after" for task in after)], ""))
    executor = cluster if device == "cpu" else start(2, device)
    result = on(executor, corpus, tmp_path / "out", strategy=strategy, checkpoint_seconds=0)
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(result.path) == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_death_in_every_task_of_vocabularies_in_ranges(
    cluster, corpus, undisturbed, contents, hooks, hooks_folder, tmp_path, monkeypatch
):
    """Vocabularies are in files, which other processes map; the words of a lost process are made again."""
    monkeypatch.setattr(passes, "WORD_BYTES", 1 << 60)
    monkeypatch.setattr(passes, "ranges_needed", lambda sizes, budget: 4)
    before, after = ["deal_range", "join_pieces"], ["merge_sorted", "deal_range", "words_of_piece", "number_piece"]
    hooks(**dict.fromkeys([*(f"{task}.before" for task in before), *(f"{task}.after" for task in after)], ""))
    share = "from mgpu_ngram.engine.memory.budget import KEPT_SHARE; KEPT_SHARE['cpu'] = {}"
    cluster.everywhere(exec, share.format(0))  # nothing waits in memory
    try:
        result = on(cluster, corpus, tmp_path / "out", memory=MemoryConfig(spill_dir=str(tmp_path / "spill")))
    finally:
        cluster.everywhere(exec, share.format(KEPT_SHARE["cpu"]))
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(result.path) == undisturbed
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BOMBS)
@pytest.mark.parametrize("wanted", ["count", "write"])
def test_all_workers_die_at_once(wanted, strategy, cluster, corpus, undisturbed, contents, hooks, tmp_path):
    """All counted chunks are lost, and for a moment the cluster has no worker."""
    killed = []

    class KillAll(Progress):
        def start(self, phase, total, unit="", rate=""):
            if phase == wanted:
                for nanny in cluster.client.cluster.workers.values():
                    os.kill(nanny.pid, signal.SIGKILL)
                    killed.append(nanny.pid)
                time.sleep(0.2)  # until the scheduler has noticed

    result = on(cluster, corpus, tmp_path / "out", KillAll(), strategy)
    assert len(killed) == 2
    assert contents(result.path) == undisturbed


@pytest.mark.slow
def test_saved_chunks_are_not_counted_again(cluster, corpus, undisturbed, contents, hooks, tmp_path):
    """A worker dies that counted about half of the chunks: only its unsaved chunks are counted again."""
    labels, saved = [], set()

    class KillOne(Progress):
        phase, done = "", 0

        def start(self, phase, total, unit="", rate=""):
            self.phase, self.total = phase, total

        def advance(self, done, amount=0):
            if self.phase != "count":
                return
            self.done += done
            if 4 * self.done >= 3 * self.total and not saved:
                files = tmp_path.glob("out.checkpoint/entries-*/run-*.safetensors")
                saved.update(f"counting chunk {item}" for file in files for item in load_arrays(file)[1]["items"])
                assert kill(cluster, lambda there: there[0])

    def follow(event):
        if "worker" in event[1]:
            labels.append(cluster._watch.label(event[1]["key"]).partition(":")[0])
        return on_task(event)

    on_task = cluster._watch._on_task
    cluster.client.subscribe_topic(cluster._name, follow)
    try:
        hooks(**{"count_chunk.slow": 0.05})
        result = on(cluster, corpus, tmp_path / "out", KillOne(), checkpoint_seconds=0)
    finally:
        cluster.client.subscribe_topic(cluster._name, on_task)
    again = {label for label, times in Counter(labels).items() if label.startswith("counting") and times > 1}
    assert len(saved) > 30 and len(again & saved) < len(saved) // 6  # a few results were not released yet
    assert contents(result.path) == undisturbed


class Killed(Progress):
    """The driver ends a phase only after as many workers have died in it as KILLS says."""

    def __init__(self):
        self.phase, self.kills, self.seen = "", Counter(), threading.Condition()

    def start(self, phase, total, unit="", rate=""):
        self.finish()
        self.phase = phase

    def finish(self):
        with self.seen:
            if self.phase:
                self.seen.wait_for(lambda: self.kills[self.phase] >= KILLS.get(self.phase, 0))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BOMBS)
def test_kills_at_random(strategy, cluster, corpus, undisturbed, contents, hooks, hooks_folder, tmp_path):
    """Kills come right after a restart or another kill, or later. In phases with few tasks, tasks kill their worker."""
    choose, over, progress = random.Random(1), threading.Event(), Killed()
    deaths = hooks_folder.with_name(f"{hooks_folder.name}.deaths")
    deaths.touch()
    before = deaths.stat().st_size
    bombs = [f"{task}.{choose.choice(['before', 'after'])}-{i}" for i, task in enumerate(BOMBS[strategy])]
    hooks(**{bomb: choose.choice(["", choose.uniform(0, BOMB_SECONDS)]) for bomb in bombs})

    def kill_now_and_then():
        while not over.wait(choose.choice([0.01, 0.5, 1.5])):
            with progress.seen:
                if progress.kills[progress.phase] < KILLS.get(progress.phase, 0) and kill(cluster, choose.choice):
                    progress.kills[progress.phase] += 1
                    progress.seen.notify()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        # Saved runs are not bundled: on a slow machine, a save each second would leave none.
        result = on(cluster, corpus, tmp_path / "out", progress, strategy, checkpoint_seconds=scaled(0.4))
    finally:
        over.set()
        killer.join()
    # A second bomb is left if the first one kills a moment after the last of these tasks.
    left = Counter(p.name.partition(".")[0] for p in hooks_folder.iterdir())
    died = {task: BOMBS[strategy].count(task) - left[task] for task in BOMBS[strategy]}
    assert min(died.values()) > 0, "a worker died in every task"
    assert progress.kills == KILLS and sum(KILLS.values()) + deaths.stat().st_size - before >= 20
    assert contents(result.path) == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("task", slow_cases("tokenise", "count_chunk"))
def test_a_chunk_that_always_kills_its_worker(task, start, corpus, undisturbed, contents, hooks, tmp_path):
    executor = start(2)
    hooks(**{f"{task}.chunk": 30})
    doing = {"tokenise": "tokenising", "count_chunk": "counting"}[task]
    name = re.escape(str(corpus[0]))
    message = (
        rf"^{doing} chunk 30: {name}, bytes [\d,]+ to [\d,]+ killed every worker that ran it \(4 times\); .*chunk_b"
    )
    with pytest.raises(RunError, match=message):
        on(executor, corpus, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_that_joins_during_a_run_is_used(
    start, corpus, undisturbed, contents, hooks, tmp_path, wait_for_workers
):
    executor = start(1)
    alone = on(executor, corpus, tmp_path / "alone")
    assert contents(alone.path) == undisturbed and list(alone.worker_rates) == ["0"]
    hooks(**{"count_chunk.slow": 0.05})

    class Grow(Progress):
        def start(self, phase, total, unit="", rate=""):
            if phase == "tokenise":
                executor.client.cluster.scale(2)
            if phase == "count":
                wait_for_workers(executor.client, 2)

    result = on(executor, corpus, tmp_path / "out", Grow())
    assert sorted(result.worker_rates) == ["0", "1"] and min(result.worker_rates.values()) > 0
    assert contents(result.path) == undisturbed


@pytest.mark.slow
def test_the_scheduler_is_lost(dask_processes, cluster, corpus, undisturbed, contents, hooks, tmp_path):
    file, processes = dask_processes(2)
    hooks(**{"count_chunk.slow": 0.05})

    class Lose(Progress):
        phase, is_lost = "", False

        def start(self, phase, total, unit="", rate=""):
            self.phase = phase

        def advance(self, done, amount=0):
            saved = tmp_path.glob("out.checkpoint/entries-*/run-*")
            if self.phase == "count" and not self.is_lost and any(saved):
                self.is_lost = True
                processes[0].kill()

    executor = connect(None, str(file), "cpu", 2)
    try:
        with pytest.raises(RunError, match=r"^the Dask scheduler tcp://\S+ was lost; start one, then run again"):
            on(executor, corpus, tmp_path / "out", Lose(), checkpoint_seconds=0)
    finally:
        executor.close()
    assert [p.name for p in tmp_path.iterdir()] == ["out.checkpoint"]
    result = on(cluster, corpus, tmp_path / "out", resume=True)
    assert 1 <= result.resumed_chunks < 50
    assert contents(result.path) == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_run_through_a_scheduler_file(dask_processes, corpus, undisturbed, contents, hooks, tmp_path):
    file, _ = dask_processes(2)
    count = {"corpus": [str(c) for c in corpus], **OPTIONS}
    (tmp_path / "run.yaml").write_text(json.dumps({"output": str(tmp_path / "runs"), "jobs": [{"count": count}]}))
    command = [sys.executable, "-m", "mgpu_ngram", "run", str(tmp_path / "run.yaml"), "--scheduler-file", str(file)]
    done = subprocess.run([*command, "cluster.workers=2"], capture_output=True, text=True)
    waiting = f"mgpu-ngram: waiting up to 60 s for scheduler file {file}\n"  # where the scheduler is slow to start
    assert done.returncode == 0 and done.stderr in ("", waiting) and "2 cpu workers" in done.stdout
    assert contents(tmp_path / "runs" / "count") == undisturbed
