"""The load of Dask's scheduler: a count runs with its real driver and scheduler, and tasks that do nothing.

The workers are objects of a few processes, so that 1,000 of them fit one host. Each has its own connections.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.cluster.dask import connect
from mgpu_ngram.cluster.devices import allow_open_files, cpu_cores
from mgpu_ngram.cluster.executor import Executor, Handle, Offer
from mgpu_ngram.core.counts.shards import num_shards
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.count.strategy import plans_of_shards
from mgpu_ngram.engine.count.text_ids import WindowKeys
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.jobs.count.chunk_ranges import ranges_of
from mgpu_ngram.jobs.count.numbering import WORD_BYTES
from mgpu_ngram.jobs.count.passes import CountTotals
from mgpu_ngram.jobs.count.plan import guess
from mgpu_ngram.jobs.progress import Progress

WORKERS = (32,)
CHUNKS_PER_WORKER = (8, 32, 100)
CHUNK_BYTES = 64 << 20
HOST_BYTES = 16 << 30  # of memory of each worker, on paper
START_SECONDS, LOST_SECONDS = 60, 3600.0  # workers that share a core may be silent for long
SETTINGS = {  # of workers, which share a core: by default, each would also have 51 timers a second
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1h",
    "DASK_DISTRIBUTED__ADMIN__TICK__CYCLE": "1h",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "1h",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "False",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "300s",
}
TARGET = "target: 1,000 workers and 100,000 chunks within 120 s of the scheduler's CPU"


def run(suite: Suite, workers: Sequence[int]) -> None:
    """Add a row for each number of workers and of chunks: the CPU time that the scheduler takes for a count.

    workers  numbers of workers; all have a thread
    """
    for G in workers:
        for per_worker in CHUNKS_PER_WORKER:
            suite.say(f"the scheduler of a count: {G:,} simulated workers, {G * per_worker:,} chunks")
            add_row(suite, simulate(G, G * per_worker))


def add_row(suite: Suite, load: Load) -> None:
    """Add the row of one simulated count."""
    phases = ", ".join(f"{name} {tasks:,} tasks {cpu:.1f} s" for name, (tasks, cpu) in load.phases.items())
    suite.add(
        "cluster/scheduler of a count",
        f"workers={load.workers} chunks={load.chunks}",
        [load.scheduler_seconds],
        items=load.tasks,
        unit="tasks/s",
        notes=f"CPU seconds of the scheduler; driver {load.driver_seconds:.1f} s of CPU; {load.tasks:,} tasks; "
        f"scheduler's memory {load.peak_bytes:,} bytes; {load.wall_seconds:.1f} s in all; {phases}; {TARGET}",
    )


@dataclass
class Load:
    """The cost of one simulated count.

    scheduler_seconds, driver_seconds  CPU time
    peak_bytes  most memory of the scheduler's process
    phases      (tasks that the driver calls, CPU seconds of the scheduler) by phase; tasks of the passes are called
                before the first phase begins, or before the second
    """

    workers: int
    chunks: int
    tasks: int = 0
    scheduler_seconds: float = 0.0
    driver_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)


def simulate(workers: int, chunks: int, until: str = "") -> Load:
    """Return the load of a count of words, orders 1 to 5, of `chunks` chunks of 64 MiB.

    until  phase of the run before which it ends, such as "write"; "": the run ends by itself
    """
    corpus = Corpus((Source("simulated.txt", "plain", chunks * CHUNK_BYTES),), "word")
    config = count_job.CountConfig([], chunk_bytes=CHUNK_BYTES)
    load = Load(workers, chunks)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mgpu-ngram-simulated-")))
        scheduler, file = stack.enter_context(simulated_cluster(workers, folder))
        executor = connect(None, str(file), "cpu", workers, lost_seconds=LOST_SECONDS)
        stack.callback(executor.close)
        simulated = Simulated(executor, answers(config, corpus, workers))
        progress = _Phases(load, scheduler, simulated, until)
        memory = MemoryConfig(host_bytes=workers * HOST_BYTES)
        context = RunContext(simulated, folder / "out", progress=progress, memory=memory)
        before, driver, start = _cpu_seconds(scheduler), time.process_time(), time.perf_counter()
        with suppress(_Reached):
            count_job.run(config, context, corpus)
        load.wall_seconds = time.perf_counter() - start
        load.driver_seconds = time.process_time() - driver
        load.scheduler_seconds = _cpu_seconds(scheduler) - before
        load.tasks, load.peak_bytes = simulated.called, _peak_bytes(scheduler)
    return load


def answers(config: count_job.CountConfig, corpus: Corpus, workers: int) -> dict[str, Any]:
    """Return the results, by name, of the tasks whose results the driver or a worker reads; other tasks return None."""
    tokens, symbols = guess(config, corpus)
    ranges = len(ranges_of(corpus.chunks(CHUNK_BYTES), workers))
    of_range = Corpus((Source("", "plain", corpus.size_bytes // ranges),), "word")
    shards = num_shards(tokens, "word")
    share = [tokens // shards] * shards
    plans = plans_of_shards(symbols, config.order)
    return {
        "_bytes_of": WORD_BYTES * guess(config, of_range)[1],
        "_totals": CountTotals(
            tokens=tokens,
            lines=1,
            symbols=symbols,
            num_shards=shards,
            split=(),
            shard_tokens=share,
            checksums=[],
            seconds={},
            plans=plans,
            dense=[],
        ),
        "_report_of": ({}, 0),
        "save_vocabularies": {},
        "select_keys": WindowKeys(0, []),
        "write_windows": ([], {}),
    }


class Idle:
    """A task that does nothing. It has the name of the task that it replaces, by which Dask groups tasks."""

    def __init__(self, name: str, answer: Any):
        self.__name__, self.answer = name, answer

    def __call__(self, *_: Any) -> Any:
        return self.answer


class Simulated:
    """An executor around `inner` whose tasks do nothing; all else passes through.

    answers  results of tasks by name
    called   number of tasks so far
    """

    def __init__(self, inner: Executor, answers: dict[str, Any]):
        self.inner, self.answers, self.called = inner, answers, 0

    def call(self, fn: Callable[..., Any], *args: Any, **how: Any) -> Handle:
        self.called += 1
        name = getattr(fn, "__name__", type(fn).__name__)
        return self.inner.call(Idle(name, self.answers.get(name)), *args, **how)

    def offer(self, handles: Sequence[Handle]) -> Offer:
        self.called += 1  # the list of places
        return self.inner.offer(handles)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Reached(Exception):
    """The phase before which a simulation ends."""


class _Phases(Progress):
    """Notes the tasks and the scheduler's CPU time of each phase of a run; ends the run before the phase `until`."""

    def __init__(self, load: Load, scheduler: psutil.Process, simulated: Simulated, until: str):
        self.load, self.scheduler, self.simulated, self.until = load, scheduler, simulated, until
        self.phase, self.tasks, self.seconds = "begin", 0, _cpu_seconds(scheduler)

    def start(self, phase: str, total: int, unit: str = "", rate: str = "") -> None:
        self.finish()
        self.phase = phase
        if phase == self.until:
            raise _Reached

    def finish(self) -> None:
        tasks, seconds = self.simulated.called, _cpu_seconds(self.scheduler)
        self.load.phases[self.phase] = tasks - self.tasks, seconds - self.seconds
        self.tasks, self.seconds = tasks, seconds


@contextmanager
def simulated_cluster(workers: int, folder: Path) -> Iterator[tuple[psutil.Process, Path]]:
    """Start a scheduler in a process of its own, and workers in others; yield (the scheduler, its file)."""
    file = folder / "scheduler.json"
    options = {"nthreads": 1, "host": "127.0.0.1", "local_directory": str(folder), "memory_limit": 0}
    worker = {"cls": "distributed.Worker", "opts": options}
    processes = min(workers, max(1, cpu_cores() // 2))
    allow_open_files()  # each worker has a few connections; processes inherit the limit
    here = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = _start({}, "scheduler", *here)
    started = [scheduler]
    try:
        _wait_for(file, scheduler)
        address = str(json.loads(file.read_text())["address"])
        for i in range(processes):
            spec = folder / f"workers-{i}.json"
            spec.write_text(json.dumps({f"{k:05}": worker for k in range(i, workers, processes)}))
            started.append(_start(SETTINGS, "spec", "--spec-file", str(spec), address))
        yield psutil.Process(scheduler.pid), file
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def _start(settings: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "dask", *arguments], env=os.environ | settings, **quiet)


def _wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the scheduler has written its file."""
    deadline = time.monotonic() + START_SECONDS
    while not file.exists() or not file.read_bytes().rstrip().endswith(b"}"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunError(f"the scheduler of a simulated cluster did not start within {START_SECONDS} s")
        time.sleep(0.05)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak_bytes(process: psutil.Process) -> int:
    """Return the most memory of a process since its start; 0 without /proc."""
    try:
        with open(f"/proc/{process.pid}/status") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")), 0)
    except OSError:  # not Linux
        return 0
