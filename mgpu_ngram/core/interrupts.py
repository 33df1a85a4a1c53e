"""Ctrl-C in threads: a flag that cli.py sets, and a check that ends the work of a thread.

A task checks at the end of each of its steps (`Stopwatch.lap`), and an output before it gets its name. The driver
cancels tasks on Dask instead.
"""

from __future__ import annotations

import threading

interrupted = threading.Event()  # set from Ctrl-C until the command has ended


def end_if_interrupted() -> None:
    """Raise KeyboardInterrupt in a thread of an interrupted command; Python raises it in the main thread."""
    if interrupted.is_set() and threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt
