"""Let an interrupt of a command end the work of its threads."""

from __future__ import annotations

import threading

interrupted = threading.Event()  # set from Ctrl-C until the command has ended


def end_if_interrupted() -> None:
    """Raise KeyboardInterrupt in a thread of an interrupted command; Python raises it in the main thread."""
    if interrupted.is_set() and threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt
