"""Processes that live and say nothing: the run goes on without a silent worker, and ends without its scheduler."""

import os
import signal
import subprocess
import sys
import time

import pytest
from distributed import Client, LocalCluster

from mgpu_ngram.cluster.dask import connect
from mgpu_ngram.cluster.dask_executor import DaskExecutor
from mgpu_ngram.core.errors import RunError

pytestmark = pytest.mark.slow

LOST_SECONDS = 10
HERE = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 51}


def slow_pid():
    time.sleep(0.1)
    return os.getpid()


def test_a_silent_worker_is_left_out(capfd):
    with LocalCluster(n_workers=2, **HERE) as cluster, Client(cluster) as client:
        executor = DaskExecutor(client, "cpu", lost_seconds=LOST_SECONDS)
        silent, other = sorted(client.run(os.getpid).values())
        os.kill(silent, signal.SIGSTOP)
        try:
            assert set(executor.gather([executor.call(slow_pid) for _ in range(20)])) == {other}
        finally:
            os.kill(silent, signal.SIGCONT)
        executor.close()
    assert f"has been silent for {LOST_SECONDS} s; the run goes on without it" in capfd.readouterr().err


def test_a_silent_scheduler_ends_the_run(tmp_path):
    file = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    worker = ["--nthreads", "1", "--memory-limit", "0", "--local-directory", str(tmp_path), "--no-nanny"]
    commands = [["dask_scheduler", "--port", "0", *common], ["dask_worker", *common, *worker]]
    running = []
    try:
        for program, *arguments in commands:
            command = [sys.executable, "-m", f"distributed.cli.{program}", *arguments]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        executor = connect(None, str(file), "cpu", 1, lost_seconds=LOST_SECONDS)
        assert executor.gather([executor.call(os.getpid)]) == [running[1].pid]
        running[0].send_signal(signal.SIGSTOP)
        message = f"^the Dask scheduler .* has been silent for {LOST_SECONDS} s; check the network, then run again"
        with pytest.raises(RunError, match=message):
            executor.gather([executor.call(os.getpid)])
        executor.close()
    finally:
        for process in running:
            process.kill()
            process.wait()
