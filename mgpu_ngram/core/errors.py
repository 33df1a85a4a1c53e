"""The two kinds of failure a user meets, and warnings. All messages are one line: value, limit, way out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

SHOWN_CHARACTERS = 60  # of a wrong line, in a message
INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT, as shells report it


class InputError(ValueError):
    """What the user gave cannot be used: a path, an option, a damaged file. Exit status 2."""


class RunError(RuntimeError):
    """The run failed: out of memory, full disk, lost workers. Exit status 1."""


class InputWarning(UserWarning):
    """What the user gave is used, but perhaps not as they expect."""


_emit: Callable[..., None] = warnings.warn
_format = warnings.formatwarning


def warn(message: str) -> None:
    """Issue an InputWarning."""
    _emit(message, InputWarning, stacklevel=4)


def send_warnings(emit: Callable[..., None]) -> None:
    """Let `emit`, called like warnings.warn, issue each InputWarning of `warn`; this process shows none itself."""
    global _emit
    _emit = emit
    warnings.simplefilter("ignore", InputWarning)


def show_warnings_plainly() -> None:
    """Let this process print an InputWarning as one line, without the place in the source that warns."""
    warnings.formatwarning = _plain


def _plain(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
    if issubclass(category, InputWarning):
        return f"mgpu-ngram: warning: {message}\n"
    return _format(message, category, *place, **line)
