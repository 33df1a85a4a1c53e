"""configs/slurm/count.sbatch as written, on a real SLURM of four nodes on this host: CPU workers, private networks."""

import json
import os
import re
import shutil
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram import cli
from tests.support import nmt_models, real_slurm
from tests.support.slowness import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(real_slurm.why_not()), reason=f"no SLURM: {real_slurm.why_not()}"),
]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "configs" / "slurm" / "count.sbatch"
HOOKS = ROOT / "tests" / "support" / "task_hooks.py"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE"}
ORDER = ["jobs.0.count.corpus=text file", "jobs.0.count.order=3", "jobs.0.count.chunk_bytes=4000"]
ORDER += ["jobs.0.count.strategy=hash"]  # sorted runs, which are saved while chunks are counted
SAVED = "the output/count.checkpoint/entries-*/run-*"
WORDS = ["eos", "UNK", "the", "people", "of", "by", "for", "7", "a"]
SAVE = "checkpoint_seconds=0"
STAGES = """
output: alone
cluster: {device: cpu}
jobs:
- count: {corpus: text file, order: 3, chunk_bytes: 8000}
- estimate: {corpus: text file, order: 3, chunk_bytes: 8000, discount_fallback: [0.5, 1, 1.5]}
- lda: {corpus: text file, topics: 3, sweeps: 2}
- score: {model: estimate, text: held out}
- decode: {models: [model.npz], source_vocab: [words.json], target_vocab: words.json, text: [held out], beam_size: 2}
"""


@pytest.fixture(scope="module")
def slurm():
    with real_slurm.SlurmCluster() as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that all nodes see, with spaces in its path."""
    folder = tmp_path / "shared by all"
    folder.mkdir()
    lines = (f"{i % 101} of the people by the people for the people {i % 7}"[: 20 + i % 31] for i in range(4000))
    (folder / "text file").write_text("\n".join(lines) + "\n")
    (folder / "held out").write_text("the people of 7\nfor the people by\n")
    monkeypatch.chdir(folder)
    return folder


class Job:
    """A submitted script."""

    def __init__(self, slurm, folder, *arguments, options=(), nodes=4, **variables):
        self.slurm, self.folder = slurm, folder
        self.log = folder / f"log {time.monotonic_ns()}"
        environment = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        environment |= {"CONFIG": str(SCRIPT.with_name("count.yaml")), "OUTPUT": "the output"}
        environment |= {"INTERFACE": "eth0", "DEVICE": "cpu", "TMPDIR": str(folder), **variables}
        sbatch = ["sbatch", "--parsable", f"--output={self.log}", f"--nodes={nodes}", "--gpus-per-node=0"]
        self.number = slurm.run(*sbatch, *options, SCRIPT, *arguments, cwd=folder, **environment).strip()

    def state(self):
        return self.slurm.job(self.number).get("JobState")

    def restarts(self):
        return int(self.slurm.job(self.number)["Restarts"])

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def skip_pause(self):
        """Start a requeued job at once; SLURM would wait two minutes."""

        def starts():
            self.slurm.run("scontrol", "update", f"JobId={self.number}", "StartTime=now", check=False)
            return self.state() == "RUNNING"

        assert wait_until(starts, 60, 2), self.slurm.job(self.number)

    def wait(self):
        """Return (state, exit status) when the job has ended."""
        assert wait_until(lambda: self.state() in ENDED, 240, 0.5), (self.state(), self.text())
        found = self.slurm.job(self.number)
        return found["JobState"], int(found["ExitCode"].split(":")[0])

    def wait_for(self, pattern):
        """Wait until a file of that name exists."""
        assert wait_until(lambda: any(self.folder.glob(pattern)) or self.state() in ENDED, 120, 0.2), self.text()
        assert self.state() not in ENDED, self.text()

    def lines(self):
        """Return the lines of mgpu-ngram and of the script, without those of Dask and SLURM."""
        return [line for line in self.text().splitlines() if line.startswith(("mgpu-ngram", "srun ended"))]


@pytest.fixture
def submit(slurm, folder):
    """Return submit(*arguments, options=(), nodes=4, **variables) -> Job. At the end no job is left."""
    jobs = []

    def start(*arguments, **more):
        jobs.append(Job(slurm, folder, *arguments, **more))
        return jobs[-1]

    yield start
    for job in jobs:
        slurm.run("scancel", "--full", job.number, check=False)
    assert wait_until(lambda: set(slurm.states()) == {"idle"}, 60, 0.5), slurm.run("sinfo", "-R", "-N", "-l")


@pytest.fixture
def slow(folder):
    """Variables that make counting slow, so that a job can be hit while it counts."""
    hooks = folder / "hooks"
    hooks.mkdir()
    (hooks / "count_chunk.slow").write_text("1")
    return {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(HOOKS), "NGRAM_TEST_HOOKS": str(hooks)}


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def traceback_in(text):
    """Return what stands around the first traceback of a log, or ""."""
    found = re.search("Traceback|CommClosedError", text)
    return text[max(0, found.start() - 400) : found.start() + 4000] if found else ""


def check_ended_quietly(job, last):
    """Check that the log has no traceback, and which line of ours is the last one."""
    assert not traceback_in(job.text()), traceback_in(job.text())
    assert job.lines()[-1].startswith(last), job.text()


def check_resumes(job):
    """Check that a job ends as it should, by itself or after SLURM started it again, with the counts of one process."""
    assert job.wait() == ("COMPLETED", 0), job.text()
    killed, _, resumed = job.text().rpartition("State start")  # of the scheduler
    if traceback_in(killed):  # SLURM kills processes at any moment: their Python may still print one
        warnings.warn(traceback_in(killed), stacklevel=2)
    assert not traceback_in(resumed), traceback_in(resumed)
    assert int(re.findall(r'"resumed_chunks": (\d+)', job.text())[-1]) > 0, job.text()
    check_counts(job.folder)


def check_counts(folder):
    """Check that the counts are those of one process, and that nothing else was left."""
    left = {path.name for path in (folder / "the output").iterdir()}
    assert {name for name in left if not name.startswith(".slurm-")} == {"count"}  # of a script that was killed
    shutil.rmtree(folder / "alone", ignore_errors=True)
    run = ["run", str(SCRIPT.with_name("count.yaml")), *ORDER, "output=alone", "cluster.workers=0"]
    assert cli.main(run) == 0
    assert files(folder / "the output" / "count") == files(folder / "alone" / "count")


def test_all_stages(submit, folder):
    """One file of five jobs: the outputs are those of one process, and the second submission has nothing to do."""
    (folder / "stages.yaml").write_text(STAGES)
    np.savez(folder / "model.npz", **nmt_models.random_tensors())
    (folder / "words.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}))
    job = submit("--json", CONFIG="stages.yaml")
    assert job.wait() == ("COMPLETED", 0), job.text()
    assert job.text().count('"workers": 4,') == 5, job.text()
    assert cli.main(["run", "stages.yaml", "cluster.workers=0"]) == 0
    made, alone = files(folder / "the output"), files(folder / "alone")
    assert made.keys() == alone.keys() and len(made) > 10
    differing = {name for name in made if made[name] != alone[name] and not name.endswith("manifest.json")}
    assert differing == set()
    again = submit(CONFIG="stages.yaml")
    assert again.wait() == ("COMPLETED", 0)
    assert again.text().count(": finished before") == 5


def test_scancel_with_a_signal(submit, folder, slow):
    job = submit(*ORDER, SAVE, **slow)
    job.wait_for(SAVED)
    job.slurm.run("scancel", "--batch", "--signal=TERM", job.number)
    assert job.wait() == ("FAILED", 143), job.text()
    check_ended_quietly(job, "mgpu-ngram: interrupted; unfinished outputs are removed; a job that")
    check_resumes(submit(*ORDER, "--json"))


def test_scancel(submit, folder, slow):
    """SLURM ends all processes of the job."""
    job = submit(*ORDER, SAVE, **slow)
    job.wait_for(SAVED)
    job.slurm.run("scancel", job.number)
    assert job.wait()[0] == "CANCELLED"
    check_resumes(submit(*ORDER, "--json"))


def test_the_time_limit(submit, folder, slow):
    """SLURM sends the signal up to a minute earlier than --signal says: here at any time before the limit."""
    (folder / "hooks" / "count_chunk.slow").write_text("10")  # so long that the job cannot end before its limit
    job = submit(*ORDER, SAVE, options=["--time=1", "--signal=B:TERM@35"], **slow)
    assert job.wait() == ("FAILED", 143), job.text()
    check_ended_quietly(job, "mgpu-ngram: interrupted; ")
    job = submit(*ORDER)
    assert job.wait() == ("COMPLETED", 0), job.text()
    check_counts(folder)


def test_preemption(submit, folder, slow):
    """A job of higher priority takes the nodes; SLURM starts the first one again, and it resumes."""
    job = submit(*ORDER, SAVE, "--json", options=["--partition=low"], **slow)
    job.wait_for(SAVED)
    job.slurm.run("srun", "--partition=high", "--nodes=4", "--exclusive", "true")
    assert job.restarts() == 1
    job.skip_pause()
    check_resumes(job)


@pytest.mark.parametrize("which", ["of the script", "of a worker"])
def test_a_node_is_lost(submit, folder, slow, slurm, which):
    """SLURM starts the script again on the other nodes, and it resumes by itself."""
    chunk = folder / "hooks" / "count_chunk.slow"
    chunk.write_text("4")  # so long that SLURM notices the loss before the end
    job = submit(*ORDER, SAVE, "--json", nodes=3, **slow)
    job.wait_for(SAVED)
    first = slurm.job(job.number)["BatchHost"]
    used = {name for name, state in zip(slurm.nodes, slurm.states(), strict=True) if state != "idle"}
    lost = first if which == "of the script" else max(used - {first})
    slurm.kill_node(lost)
    try:
        wait_until(lambda: slurm.states()[slurm.nodes.index(lost)].startswith("down"), 60, 0.5)
        chunk.unlink()
        assert wait_until(lambda: job.restarts() == 1, 60, 0.5), slurm.job(job.number)
        job.skip_pause()
        check_resumes(job)
    finally:
        slurm.start_node(lost)


def test_late_workers(submit, folder):
    """The run waits for the workers of a node that starts late."""
    (folder / "late.py").write_text(
        "import socket, time\nasync def dask_setup(_):\n    pass\n"
        "if socket.gethostname() == 'node3':\n    time.sleep(10)\n"
    )
    job = submit(*ORDER, "--json", DASK_DISTRIBUTED__WORKER__PRELOAD=str(folder / "late.py"))
    assert job.wait() == ("COMPLETED", 0), job.text()
    assert '"workers": 4,' in job.text()
    check_counts(folder)


def test_srun_refuses(submit, folder):
    """Its reason comes at once: the script asks for more processors than the nodes have."""
    program = folder / "srun"
    program.write_text(f'#!/bin/bash\nexec {shutil.which("srun")} "${{@/--cpus-per-task=*/--cpus-per-task=64}}"\n')
    program.chmod(0o755)
    job = submit(*ORDER, PATH=os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert job.wait() == ("FAILED", 1)
    check_ended_quietly(job, "srun ended before the run, with status 1, so the run was ended, too: srun: error: ")
    assert "workers came" not in job.text()
