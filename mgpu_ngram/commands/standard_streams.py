"""Standard output, whose errors a command reports, and standard input as a file that workers can read."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_ngram.core.errors import InputError, RunError

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.stages.contract import RegisteredStage, Settings


@contextmanager
def stdout() -> Iterator[None]:
    """Guard printing: ignore a broken pipe, report a full disk."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its exit
        if not isinstance(error, BrokenPipeError):
            what = f"cannot write to stdout ({error.strerror})"
            raise RunError(f"{what}; free space there or pipe it elsewhere") from None


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove a file, if it is there, when the block ends."""
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


@contextmanager
def stdin_as_file(stage: RegisteredStage, settings: Settings, folder: Path) -> Iterator[Corpus | None]:
    """Yield the corpus of a stage's inputs if "-" is one of them, else None.

    Standard input is copied to a file in `folder`, so that workers can read it in parallel.
    """
    setting = stage.stdin_setting
    paths = getattr(settings, setting)
    if "-" not in paths:
        yield None
        return
    if sys.stdin is None:
        raise InputError("input '-' is standard input, which is closed; pipe text to it, or name a file")
    path = Path(os.path.abspath(folder), f".stdin-{secrets.token_hex(8)}")
    with ExitStack() as stack:
        stack.enter_context(_removed(path))  # before the file exists: an interrupt may come at any moment
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)))
        except OSError as error:
            raise InputError(f"cannot keep stdin in {folder} ({error.strerror}); give another output path") from None
        try:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
            file.flush()
        except OSError as error:
            raise RunError(f"cannot keep stdin in {folder} ({error.strerror}); free space there") from None
        named = [str(path) if given == "-" else given for given in paths]
        try:
            corpus = stage.open_inputs(replace(settings, **{setting: named}))
        except InputError as error:
            raise InputError(str(error).replace(str(path), "-")) from None
        assert corpus is not None
        sources = (replace(s, name="-") if s.name == str(path) else s for s in corpus.sources)
        yield replace(corpus, sources=tuple(sources))
