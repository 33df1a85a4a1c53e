"""The load of Dask's scheduler: a count or an estimate runs with its real driver and scheduler, and tasks that do
nothing.

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

import numpy as np
import psutil

from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.cluster.dask import connect
from mgpu_ngram.cluster.devices import allow_open_files
from mgpu_ngram.cluster.executor import Executor, Handle, Offer, Share
from mgpu_ngram.core.counts.shards import num_shards
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.count.strategy import plans_of_shards
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.jobs.count.chunk_ranges import ranges_of
from mgpu_ngram.jobs.count.numbering import WORD_BYTES
from mgpu_ngram.jobs.count.passes import CountTotals
from mgpu_ngram.jobs.count.plan import count_budget, guess
from mgpu_ngram.jobs.estimate import run as estimate_job
from mgpu_ngram.jobs.estimate.assemble import Report
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.plan import KEPT_TOKEN_BYTES, limits_of_parts, plan_budgets
from mgpu_ngram.jobs.estimate.tasks import PartReport
from mgpu_ngram.jobs.estimate.word_tasks import ReportOfWords
from mgpu_ngram.jobs.progress import Progress

WORKERS = (32,)
CHUNKS_PER_WORKER = (8, 32, 100)
CHUNK_BYTES = 64 << 20
HOST_BYTES = 16 << 30  # of memory of each worker, on paper
ORDER = 5
PART_BYTES, SAMPLED = 1 << 20, 1000  # bytes of an estimated part, and n-grams of its sample
WORKERS_OF_PROCESS = 50  # more of them wait for the lock of their interpreter most of the time
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
    """Add a row for each number of workers and of chunks: the CPU time that the scheduler takes for a job.

    workers  numbers of workers; all have a thread
    """
    for G in workers:
        for per_worker in CHUNKS_PER_WORKER:
            for job in JOBS:
                suite.say(f"the scheduler of {job}: {G:,} simulated workers, {G * per_worker:,} chunks")
                add_row(suite, simulate(job, G, G * per_worker))


def add_row(suite: Suite, load: Load) -> None:
    """Add the row of one simulated job."""
    phases = ", ".join(f"{name} {tasks:,} tasks {cpu:.1f} s" for name, (tasks, cpu) in load.phases.items())
    suite.add(
        f"cluster/scheduler of {load.job}",
        f"workers={load.workers} chunks={load.chunks}",
        [load.scheduler_seconds],
        items=load.tasks,
        unit="tasks/s",
        notes=f"CPU seconds of the scheduler; driver {load.driver_seconds:.1f} s of CPU; {load.tasks:,} tasks; "
        f"scheduler's memory {load.peak_bytes:,} bytes; {load.wall_seconds:.1f} s in all; {phases}; {TARGET}",
    )


@dataclass
class Load:
    """The cost of one simulated job, which is a key of JOBS.

    scheduler_seconds, driver_seconds  CPU time
    peak_bytes  most memory of the scheduler's process
    phases      (tasks that the driver calls, CPU seconds of the scheduler) by phase; tasks of the passes are called
                before the first phase begins, or before the second
    """

    job: str
    workers: int
    chunks: int
    tasks: int = 0
    scheduler_seconds: float = 0.0
    driver_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)


def simulate(job: str, workers: int, chunks: int, until: str = "") -> Load:
    """Return the load of a job over words, orders 1 to 5, of `chunks` chunks of 64 MiB.

    job    a key of JOBS: "a count" up to its files, or "an estimate" up to its model, not pruned and not written
    until  phase of the run before which it ends, such as "write"; "": the run ends by itself
    """
    corpus = Corpus((Source("simulated.txt", "plain", chunks * CHUNK_BYTES),), "word")
    load = Load(job, workers, chunks)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mgpu-ngram-simulated-")))
        scheduler, file = stack.enter_context(simulated_cluster(workers, folder))
        executor = connect(None, str(file), "cpu", workers, lost_seconds=LOST_SECONDS)
        stack.callback(executor.close)
        memory = MemoryConfig(host_bytes=workers * HOST_BYTES)
        simulated = Simulated(executor, answers(job, corpus, executor, memory))
        progress = _Phases(load, scheduler, simulated, until)
        context = RunContext(simulated, folder / "out", progress=progress, memory=memory)
        before, driver, start = _cpu_seconds(scheduler), time.process_time(), time.perf_counter()
        with suppress(_Reached):
            JOBS[job](context, corpus)
        load.wall_seconds = time.perf_counter() - start
        load.driver_seconds = time.process_time() - driver
        load.scheduler_seconds = _cpu_seconds(scheduler) - before
        load.tasks, load.peak_bytes = simulated.called, _peak_bytes(scheduler)
    return load


def _count(context: RunContext, corpus: Corpus) -> None:
    count_job.run(COUNT, context, corpus)


def _estimate(context: RunContext, corpus: Corpus) -> None:
    path = Path(context.target) / "model"
    estimate_job.estimated(ESTIMATE, corpus, context, path, lambda model, result: result)


COUNT = count_job.CountConfig([], order=ORDER, chunk_bytes=CHUNK_BYTES)
ESTIMATE = EstimateConfig(["simulated.txt"], order=ORDER, chunk_bytes=CHUNK_BYTES)
JOBS: dict[str, Callable[[RunContext, Corpus], None]] = {"a count": _count, "an estimate": _estimate}


def answers(job: str, corpus: Corpus, executor: Executor, memory: MemoryConfig) -> dict[str, Any]:
    """Return the results, by `_name_of`, of the tasks whose results the driver or a worker reads; other tasks return
    None.
    """
    tokens, symbols = guess(COUNT, corpus)
    ranges = len(ranges_of(corpus.chunks(CHUNK_BYTES), executor.workers))
    of_range = Corpus((Source("", "plain", corpus.size_bytes // ranges),), "word")
    shards = num_shards(tokens, "word")
    if job == "an estimate":
        budget = plan_budgets(count_budget(memory, executor, KEPT_TOKEN_BYTES * tokens), tokens, executor.workers)[1]
        shards = limits_of_parts(executor, budget, symbols, ORDER).num_parts(tokens, symbols)
    orders, sample = range(2, ORDER + 1), np.linspace(0, symbols - 1, SAMPLED).astype(np.uint64)
    counted, size = [4, 3, 2, 1], (1, 1)
    return {
        "passes._bytes_of": WORD_BYTES * guess(COUNT, of_range)[1],
        "passes._totals": CountTotals(
            tokens=tokens,
            lines=1,
            symbols=symbols,
            num_shards=shards,
            split=(),
            shard_tokens=[tokens // shards] * shards,
            checksums=[],
            seconds={},
            plans=plans_of_shards(symbols, ORDER),
            dense=[],
        ),
        "passes._report_of": ({}, 0),
        "passes.save_vocabularies": {},
        "write_counts.write_windows": ([], {}),
        "stored_parts.save_parts": ({}, {}),
        "tasks.report_of": PartReport(dict.fromkeys(orders, counted), dict.fromkeys(orders, size), {}),
        "tasks.last_of": {-1: []},
        "word_tasks.report_of_words": ReportOfWords(counted, size, tokens),
        "word_tasks.counts_of_last": (3, 1, 1),
        "assemble._report_of": Report(sample, dict.fromkeys(orders, 1), PART_BYTES, 0, {}),
        "assemble._is_made": True,
    }


class Idle:
    """A task that does nothing. It has the name of the task that it replaces, by which Dask groups tasks."""

    def __init__(self, name: str, answer: Any):
        self.__name__, self.answer = name, answer

    def __call__(self, *_: Any) -> Any:
        return self.answer


class Simulated:
    """An executor around `inner` whose tasks do nothing; all else passes through. Tasks receive the places of shares in
    their place: workers exchange shares without the scheduler, and here they are in few processes.

    answers  results of tasks by `_name_of`
    called   number of tasks so far
    """

    def __init__(self, inner: Executor, answers: dict[str, Any]):
        self.inner, self.answers, self.called = inner, answers, 0

    def call(self, fn: Callable[..., Any], *args: Any, **how: Any) -> Handle:
        self.called += 1
        name = _name_of(fn)
        return self.inner.call(Idle(name.split(".")[-1], self.answers.get(name)), *map(_without_shares, args), **how)

    def offer(self, handles: Sequence[Handle]) -> Offer:
        self.called += 1  # the list of places
        return self.inner.offer(handles)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _without_shares(arg: Any) -> Any:
    if isinstance(arg, list):
        return [_without_shares(a) for a in arg]
    return arg.offer.places if isinstance(arg, Share) else arg


def _name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a task's function behind that of its module."""
    fn = getattr(fn, "func", fn)  # of a partial
    return f"{fn.__module__.split('.')[-1]}.{getattr(fn, '__name__', type(fn).__name__)}"


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
    processes = -(-workers // WORKERS_OF_PROCESS)
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
