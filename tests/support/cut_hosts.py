"""A Dask cluster whose hosts are network namespaces, and runs on it while links are cut."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from mgpu_ngram import cli
from tests.support import real_slurm
from tests.support.slowness import scaled, wait_until

HOOKS = Path(__file__).resolve().with_name("task_hooks.py")
LOST_SECONDS = 15
TCP_SECONDS = 12  # of Dask; it accepts no less than 11
SWEEPS = "sweeps"
MARKS = [  # of tests that cut links
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(real_slurm.why_no_namespaces()), reason=real_slurm.why_no_namespaces()),
]
JOBS = {
    "count": "count: {corpus: text, order: 3, chunk_bytes: 20000}",
    "estimate": "estimate: {corpus: text, order: 3, chunk_bytes: 20000, discount_fallback: [0.5, 1, 1.5]}",
    "lda": "lda: {corpus: text, topics: 3, sweeps: 1000, block_tokens: 4000}",
}


class Hosts:
    """A scheduler and a driver on the host `head`, and a worker on each other host."""

    def __init__(self, folder, spaces, names, protocol="tcp", **variables):
        self.folder, self.spaces, self.names, self.protocol, self.processes = folder, spaces, names, protocol, []
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
        hooks = folder / "hooks"
        hooks.mkdir(exist_ok=True)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = kept | variables | {"NGRAM_TEST_HOOKS": str(hooks), "PATH": path}

    def start(self):
        quiet = [sys.executable, "-m", "mgpu_ngram.cluster.quiet_logs"]
        common = ["--interface", "eth0", "--dashboard-address", "127.0.0.1:0"]
        common += ["--scheduler-file", str(self.folder / "scheduler.json"), "--protocol", self.protocol]
        self.spawn("head", *quiet, "distributed.cli.dask_scheduler", *common, "--port", "0")
        worker = [*common, "--nthreads", "1", "--memory-limit", "0", "--local-directory", str(self.folder)]
        for name in self.names:
            command = [*quiet, "distributed.cli.dask_worker", *worker, "--name", name, "--preload", str(HOOKS)]
            self.spawn(name, *command)

    def spawn(self, host, *command):
        with open(self.folder / f"{host}.log", "ab") as log:
            process = subprocess.Popen(
                [*self.spaces.host(host), *command], stdout=log, stderr=log, cwd=self.folder, env=self.environment
            )
        self.processes.append(process)
        return process

    def run(self, *overrides):
        """Start a run on `head`."""
        settings = ["--scheduler-file", "scheduler.json", f"cluster.workers={len(self.names)}", *overrides]
        command = [sys.executable, "-m", "mgpu_ngram", "run", "jobs.yaml", "--resume-or-start", *settings]
        process = subprocess.Popen(
            [*self.spaces.host("head"), *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            cwd=self.folder, env=self.environment,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def has_workers(self):
        """Return whether all workers have joined."""
        logs = [self.folder / f"{name}.log" for name in self.names]
        return all(log.exists() and "Registered to" in log.read_text() for log in logs)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def started_hosts(folder):
    """Yield hosts(names, **variables): a started cluster, with a text in its folder."""
    lines = (f"{i % 101} of the people by the people for the people {i % 7}"[: 20 + i % 31] for i in range(4000))
    (folder / "text").write_text("\n".join(lines) + "\n")
    started = []
    with real_slurm.Namespaces({"head": 1, "one": 11, "two": 12}) as spaces:

        def start(names=("one", "two"), **variables):
            started.append(Hosts(folder, spaces, names, **variables))
            started[-1].start()
            return started[-1]

        yield start
        for each in started:
            each.end()


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def cut_in(hosts, folder, stage, task, names, seconds=None, protocol="tcp", **variables):
    """Cut hosts while a task runs, or "" before the first task; return (status, stderr).

    seconds  after which the links are there again; None: never
    """
    (folder / "jobs.yaml").write_text(f"output: out\njobs: [{JOBS[stage]}]\n")
    timeouts = {"TCP": f"{TCP_SECONDS}s", "CONNECT": f"{TCP_SECONDS}s"}
    variables |= {f"DASK_DISTRIBUTED__COMM__TIMEOUTS__{name}": value for name, value in timeouts.items()}
    cluster = hosts(protocol=protocol, **variables)
    if task not in ("", SWEEPS):
        (folder / "hooks" / f"{task}.slow").write_text("2")
    gone = f"dask.distributed.scheduler.no-workers-timeout={TCP_SECONDS}s"
    run = cluster.run(f"cluster.lost_seconds={LOST_SECONDS}", gone)
    moments = {"": cluster.has_workers, SWEEPS: lambda: any(folder.glob("out/lda.checkpoint"))}
    moment = moments.get(task, (folder / "hooks" / f"{task}.waits").exists)
    assert wait_until(lambda: moment() or run.poll() is not None, 60, 0.1)
    assert run.poll() is None, run.stderr.read()
    for path in (folder / "hooks").glob("*.slow"):
        path.unlink()
    for name in names:
        cluster.spaces.cut(name)
    if seconds:
        time.sleep(seconds)
        for name in names:
            cluster.spaces.join(name)
    _, err = run.communicate(timeout=scaled(100))
    return run.returncode, err


def check_output(folder, stage):
    assert cli.main(["run", "jobs.yaml", "output=alone", "cluster.workers=0"]) == 0
    made, alone = files(folder / "out" / stage), files(folder / "alone" / stage)
    differing = {name for name in made.keys() | alone.keys() if made.get(name) != alone.get(name)}
    assert differing <= {"manifest.json"}


MOMENTS = [("count", "text_ids"), ("estimate", "adjust_parts"), ("lda", SWEEPS)]
OTHER_MOMENTS = [("count", "tokenise"), ("count", "write_windows"), ("estimate", "text_ids"), ("estimate", "save")]
