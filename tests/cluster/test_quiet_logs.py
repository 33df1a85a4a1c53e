"""What a loss makes Dask log is left out; other errors stay."""

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest
from distributed.comm.core import CommClosedError
from distributed.utils import LoopRunner, sync

from mgpu_ngram.cluster.quiet_logs import leave_out_losses


def log(logger, error):
    try:
        raise error
    except BaseException:
        logging.getLogger(logger).error("what happened", exc_info=True)


@pytest.fixture
def logged(monkeypatch):
    """The messages that pass the filters."""
    leave_out_losses()
    found = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda _, record: found.append(record.getMessage()))
    return found


def test_losses_are_left_out(logged):
    because = OSError("Timed out")
    because.__cause__ = CommClosedError("in <TCP>: Stream is closed")
    for error in CommClosedError("lost"), asyncio.CancelledError(), because:
        for logger in "distributed.core", "distributed.client", "distributed.worker", "tornado.application", "asyncio":
            log(logger, error)
    logging.getLogger("distributed.worker").info("Run out-of-band function %r", "progress_of")
    logging.getLogger("distributed.scheduler").error("broadcast to tcp://a:1 failed: CommClosedError: closed")
    assert logged == []


def test_an_interrupt_before_a_call_has_begun(logged, monkeypatch):
    def interrupt(event, timeout=None):
        raise KeyboardInterrupt

    async def call():
        pass

    runner = LoopRunner()
    runner.start()
    runner.loop.add_callback(time.sleep, 0.2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Event, "wait", interrupt)
        sync(runner.loop, call)
    runner.stop()
    assert logged == []


def test_other_errors_stay(logged):
    log("distributed.worker", NameError("name 'size' is not defined"))
    log("distributed.worker", OSError("no space"))
    log("mgpu_ngram", CommClosedError("lost"))
    logging.getLogger("distributed.worker").error("worker %s leaves", 1)
    logging.getLogger("distributed.scheduler").error("broadcast to tcp://a:1 failed: OSError: no space")
    last = "broadcast to tcp://a:1 failed: OSError: no space"
    assert logged == ["what happened"] * 3 + ["worker 1 leaves", last]


SHOWN = """
import logging
from distributed.comm.core import CommClosedError
def show(number):
    for error in CommClosedError("a loss"), ValueError(f"an error of process {number}"):
        logging.getLogger("distributed.core").error("%s", error, exc_info=error)
"""
PROGRAM = """
from multiprocessing import get_context
from shown import show
if __name__ == "__main__":
    show(0)
    process = get_context("spawn").Process(target=show, args=[1])
    process.start()
    process.join()
"""


@pytest.mark.slow
def test_a_command_of_dask_and_its_workers(tmp_path):
    (tmp_path / "shown.py").write_text(SHOWN)
    (tmp_path / "commanded.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mgpu_ngram.cluster.quiet_logs", "commanded"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "an error of process 0" in done.stderr and "an error of process 1" in done.stderr
    assert "a loss" not in done.stderr
