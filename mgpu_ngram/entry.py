"""The entry points of `mgpu-ngram`, `python -m mgpu_ngram` and the programs of KenLM. They handle Ctrl-C before they
import the rest.

Exit status 130: interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from contextlib import suppress
from typing import Any

from mgpu_ngram.core.errors import INTERRUPTED

START_SECONDS = 1.0  # in which modules and compiled kernels are loaded


def main() -> int:
    """Run one command; return its exit status."""
    return _start("main")


def kenlm_program() -> int:
    """Run the program of KenLM that this script is named after; return its exit status."""
    return _start("kenlm_program")


def _start(function: str) -> int:
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a script's background job ignores Ctrl-C
    if ours:
        signal.signal(signal.SIGINT, _leave)
    _collect_garbage_after(START_SECONDS)
    atexit.register(gc.freeze)  # or Python looks for cycles once more when it ends, in all modules: 0.1 s
    # No kernel uses BLAS, whose threads take 2 s of CPU time on 16 cores when NumPy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from mgpu_ngram import cli

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return getattr(cli, function)()
    except KeyboardInterrupt:
        return _say_interrupted()


def _collect_garbage_after(seconds: float) -> None:
    """Turn the collector of reference cycles off, and on again after some seconds.

    Imports make hundreds of thousands of objects and no garbage; to look through them takes 0.1 s of CPU time.
    """
    gc.disable()
    timer = threading.Timer(seconds, gc.enable)
    timer.daemon = True  # a command that ends sooner does not wait for it
    timer.start()


def _leave(*_: Any) -> None:
    """End the process at once: while modules are imported, no run has begun and nothing needs to be removed."""
    os._exit(_say_interrupted())


def _say_interrupted() -> int:
    with suppress(OSError):  # standard error is closed
        os.write(2, b"mgpu-ngram: interrupted\n")
    return INTERRUPTED
