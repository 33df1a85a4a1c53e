"""Leave lost connections out of the logs of Dask: a run reports in one line what it lost.

When a process of a cluster ends, its peers log CommClosedError, CancelledError and other results of the same loss, each
with a traceback of 30 lines. Workers also log each question of the driver, several a second while topics are trained.
As a program, this module runs a command of Dask with such quiet logs, in the process itself and in the workers that it
starts:

    python -m mgpu_ngram.cluster.quiet_logs distributed.cli.dask_worker --scheduler-file scheduler.json
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import runpy
import sys
import traceback
from typing import Any

from distributed.comm.core import CommClosedError
from tornado.iostream import StreamClosedError

LOGGERS = "distributed", "tornado", "asyncio"
QUESTION = "Run out-of-band function"  # how the record of a call of Client.run begins
LOSSES = (CommClosedError, StreamClosedError, asyncio.CancelledError, concurrent.futures.CancelledError)


class _NoLosses(logging.Filter):
    """Drops records of exceptions that a loss has caused, logged whole or as text, and records of the driver's calls
    of `Client.run`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith(QUESTION) or any(f" failed: {loss.__name__}" in message for loss in LOSSES):
            return False
        error: Any = record.exc_info[1] if record.exc_info else None
        while error is not None:
            if isinstance(error, LOSSES) or _is_wrong_cancel(error):
                return False
            error = error.__cause__ or error.__context__
        return True


def _is_wrong_cancel(error: BaseException) -> bool:
    """Return whether Dask itself failed to cancel (distributed 2026.7).

    The scheduler fails at a task that no client wants any more, the client at a call that an interrupt meets before it
    has begun: then `cancel` in `distributed.utils.sync` asks for a future that does not exist yet.
    """
    frames = traceback.extract_tb(error.__traceback__)
    failed_in = frames[-1].name if frames else ""
    return (type(error), failed_in) in ((AssertionError, "stimulus_cancel"), (NameError, "cancel"))


_no_losses = _NoLosses()


def leave_out_losses() -> None:
    """Leave lost connections out of what this process logs from now on; further calls change nothing.

    Filters loggers, not handlers: Dask replaces the handlers in a worker that starts.
    """
    for name in LOGGERS:
        logging.getLogger(name)
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in LOGGERS:
            logging.getLogger(name).addFilter(_no_losses)


if __name__ in ("__main__", "__mp_main__"):  # the second in the workers that the first one starts
    leave_out_losses()

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")
