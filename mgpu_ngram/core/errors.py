"""The two kinds of errors that users see, and warnings. All messages are one line: value, limit, way out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

SHOWN_CHARACTERS = 60  # characters of a wrong line to show in a message
INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT, as shells report it


class InputError(ValueError):
    """An input cannot be used: a wrong path or option, or a damaged file. Exit status 2."""

    def __init__(self, message: str = ""):
        super().__init__(_in_one_line(message))


class DamagedInput(InputError):
    """A file or a record is damaged; others can be read without it."""


class RunError(RuntimeError):
    """The run failed: out of memory, full disk, lost workers. Exit status 1."""

    def __init__(self, message: str = ""):
        super().__init__(_in_one_line(message))


class InputWarning(UserWarning):
    """An input is used, but perhaps not as the user expects."""


def _in_one_line(message: str) -> str:
    """Return a message on one line, because values such as arrays print on several lines."""
    return re.sub(r"\s*[\r\n]\s*", " ", str(message))


_emit: Callable[..., None] = warnings.warn
_format = warnings.formatwarning


def warn(message: str) -> None:
    """Issue an InputWarning."""
    _emit(message, InputWarning, stacklevel=4)


def send_warnings(emit: Callable[..., None]) -> None:
    """Pass each InputWarning of `warn` to `emit` (called like warnings.warn) instead of showing it here."""
    global _emit
    _emit = emit
    warnings.simplefilter("ignore", InputWarning)


def show_warnings_plainly() -> None:
    """Let this process print an InputWarning as one line, without the line of source code that warns."""
    warnings.formatwarning = _plain


def _plain(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
    if issubclass(category, InputWarning):
        return f"mgpu-ngram: warning: {message}\n"
    return _format(message, category, *place, **line)
