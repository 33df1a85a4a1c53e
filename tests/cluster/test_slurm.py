"""configs/slurm/count.sbatch runs as under SLURM on two "nodes" of this host: CPU workers, loopback only."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mgpu_ngram import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "configs" / "slurm" / "count.sbatch"
HOOKS = ROOT / "tests" / "support" / "task_hooks.py"
CONFIG = str(SCRIPT.with_name("count.yaml"))
CHUNK_BYTES = 4000
SETTINGS = ["jobs.0.count.corpus=text", "jobs.0.count.order=3", f"jobs.0.count.chunk_bytes={CHUNK_BYTES}"]
SLURM = """#!/bin/bash
SLURM_JOB_NUM_NODES=$(sed -n 's/^#SBATCH --nodes=\\([0-9]*\\).*/\\1/p' "$1")
export SLURM_JOB_NUM_NODES SLURM_CPUS_ON_NODE=1 SLURM_GPUS_ON_NODE=4
"""
# The real sbatch copies the script away, too.
SBATCH = """
cp "$1" "$STUBS/slurm_script"
shift
bash "$STUBS/slurm_script" "$@" >"$STUBS/out" 2>"$STUBS/err" </dev/null &
echo "Submitted batch job $!"
"""
# Runs the command once per node, and forwards a signal to all of them.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" >"$STUBS/srun.log"
while [[ $1 == -* ]]; do shift; done
trap 'kill $(jobs -p); wait' TERM
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do "$@" & done
wait
"""


class Job:
    """A submitted script, the session leader of all processes that it starts."""

    def __init__(self, folder, *arguments, **variables):
        self.folder, stubs = folder, folder / "stubs"
        shutil.rmtree(stubs, ignore_errors=True)
        stubs.mkdir()
        for name, text in {"sbatch": SLURM + SBATCH, "srun": SRUN}.items():
            (stubs / name).write_text(text)
            (stubs / name).chmod(0o755)
        path = os.pathsep.join([str(stubs), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {"DEVICE": "cpu", "INTERFACE": "lo", "TMPDIR": str(stubs), "CONFIG": CONFIG}
        environment |= {"PATH": path, "STUBS": str(stubs), **variables}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DASK_"))}
        self.stubs = stubs
        self.sbatch = subprocess.Popen(
            ["sbatch", SCRIPT, *arguments], cwd=folder, env=kept | environment, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.pid = int(re.fullmatch(r"Submitted batch job (\d+)\n", self.sbatch.communicate()[0])[1])

    def processes(self):
        """Return all of its processes that still run."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.sbatch.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def runs(self):
        return self.pid in [p.pid for p in self.processes()]

    def wait_for(self, pattern):
        """Wait for a file of that name."""
        while not list(self.folder.glob(pattern)):
            assert self.runs(), self.err()
            time.sleep(0.01)

    def wait(self):
        """Wait until the script has ended; none of its processes may remain."""
        while self.runs():
            time.sleep(0.05)
        assert self.processes() == []
        assert list((self.folder / "out").glob(".slurm-*")) == []

    def end(self):
        for process in self.processes():
            process.kill()

    def out(self):
        return (self.stubs / "out").read_text()

    def err(self):
        return (self.stubs / "err").read_text()


@pytest.fixture
def submit(tmp_path):
    """Return submit(*arguments, **variables) -> Job, in `tmp_path` with the corpus."""
    lines = (f"{i % 101} of the people by the people for the people {i % 7}"[: 20 + i % 31] for i in range(4000))
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    jobs = []

    def start(*arguments, settings=SETTINGS, **variables):
        jobs.append(Job(tmp_path, *settings, *arguments, OUTPUT="out", **variables))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture
def expected(tmp_path, monkeypatch):
    """The files of an uninterrupted run in one process, by name."""

    def count():
        monkeypatch.chdir(tmp_path)
        assert cli.main(["run", CONFIG, *SETTINGS, "output=alone", "cluster.workers=0"]) == 0
        return files(tmp_path / "alone" / "count")

    return count


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def connections(process):
    try:
        return process.net_connections()
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return []


def result(job):
    """Return the output of `mgpu-ngram run --json` for its one job."""
    return json.loads(job.out())[0]


def test_two_nodes(submit, tmp_path, expected):
    job = submit("--json")
    job.wait_for("out/count.checkpoint/identity.json")
    listening = [c.laddr.ip for p in job.processes() for c in connections(p) if c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3 and set(listening) == {"127.0.0.1"}
    job.wait()
    assert (result(job)["workers"], result(job)["device"], result(job)["resumed_chunks"]) == (2, "cpu", 0)
    srun = (job.stubs / "srun.log").read_text().split("\n")
    assert srun[:3] == ["--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=1"]
    assert [srun[srun.index(flag) + 1] for flag in ("--interface", "--nworkers", "--nthreads")] == ["lo", "1", "1"]
    assert srun[srun.index("--local-directory") + 1] == str(job.stubs)
    assert (made := files(tmp_path / "out" / "count")) == expected() and "manifest.json" in made


def test_two_nodes_train_topics(submit, tmp_path, monkeypatch):
    """The workers of two nodes are a gang, with the model of one process."""
    job = "lda: {corpus: text, topics: 4, sweeps: 5, block_tokens: 2000}"
    (tmp_path / "lda.yaml").write_text(f"output: alone\njobs: [{job}]\n")
    submitted = submit("--json", settings=(), CONFIG="lda.yaml")
    submitted.wait()
    assert result(submitted)["workers"] == 2, submitted.err()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "lda.yaml", "cluster.workers=0"]) == 0
    models = [(tmp_path / folder / "lda" / "model.safetensors").read_bytes() for folder in ("out", "alone")]
    assert models[0] == models[1]


def test_a_time_limit_leaves_a_checkpoint_and_the_next_submission_resumes(submit, tmp_path, expected):
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "count_chunk.slow").write_text("2")  # so long that chunks are left when the signal arrives
    runs = "jobs.0.count.strategy=hash"  # sorted runs, which are saved while chunks are counted
    hooked = {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(HOOKS), "NGRAM_TEST_HOOKS": str(hooks)}
    job = submit("checkpoint_seconds=0", runs, **hooked)
    job.wait_for("out/count.checkpoint/entries-*/run-*")
    os.kill(job.pid, signal.SIGTERM)
    job.wait()
    assert "mgpu-ngram: interrupted; " in job.err() and job.out() == ""
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["count.checkpoint"]

    job = submit("--json")
    job.wait()
    chunks = (tmp_path / "text").stat().st_size // CHUNK_BYTES
    assert 0 < result(job)["resumed_chunks"] < chunks, job.err()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["count"]
    assert files(tmp_path / "out" / "count") == expected()


# Accepts the flags of dask-cuda's command, but starts workers without a GPU.
DASK_CUDA = """
import sys
from distributed.cli.dask_worker import main
if __name__ == "__main__":
    at = sys.argv.index("--device-memory-limit")
    sys.argv[at : at + 2] = ["--nworkers", "4"]
    main()
"""


def test_gpu_workers(submit, tmp_path):
    """dask-cuda starts one worker per GPU of all nodes; one line reports that they see no GPU."""
    package = tmp_path / "stub" / "dask_cuda"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(DASK_CUDA)
    job = submit(DEVICE="gpu", PYTHONPATH=str(package.parent), CUDA_VISIBLE_DEVICES="")
    job.wait()
    lines = [line for line in job.err().splitlines() if line.startswith("mgpu-ngram: ")]
    lines = [line for line in lines if "waiting up to 60 s for scheduler file" not in line]
    assert len(lines) == 1 and "device is gpu but" in lines[0], job.err()
    srun = (job.stubs / "srun.log").read_text().split("\n")
    assert srun[srun.index("dask_cuda.cli") - 2 :][:5] == [
        "-m",
        "mgpu_ngram.cluster.quiet_logs",
        "dask_cuda.cli",
        "--device-memory-limit",
        "0",
    ]
    assert not (tmp_path / "out" / "count").exists()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"INTERFACE": ""}, "INTERFACE is not set but 2 nodes need one; INTERFACE=ib0 sbatch ... names their network"),
        ({"DEVICE": "tpu"}, "DEVICE is 'tpu' but must be gpu or cpu"),
    ],
)
def test_wrong_variables_start_nothing(submit, tmp_path, variables, message):
    job = submit(**variables)
    job.wait()
    assert (job.err(), job.out()) == (message + "\n", "")
    assert not (tmp_path / "out").exists() and not (job.stubs / "srun.log").exists()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck():
    subprocess.run(["shellcheck", SCRIPT], check=True)
