"""Stages that run for KenLM's programs (`kenlm` and `kenlm_filter`), and the files of these programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mgpu_ngram.commands.run import Job, RunOptions
from mgpu_ngram.commands.stage import run_one
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.scratch import scratch_folder
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS
from mgpu_ngram.stages.contract import Target
from mgpu_ngram.stages.registry import STAGES
from mgpu_ngram.stages.run_file import ClusterConfig, RunConfig


def can_be_reread(path: str) -> bool:
    """Return whether a path is a file or a folder, not a pipe."""
    return os.path.isfile(path) or os.path.isdir(path)


@contextmanager
def regular_file(path: str, folder: str | None) -> Iterator[str]:
    """Yield the path of a file that is read more than once: its own, or that of a copy of a pipe in `folder`."""
    if not os.path.exists(path) or can_be_reread(path):
        yield path
        return
    scratch = scratch_folder(folder)
    copy = os.path.join(scratch, "model")
    try:
        with open(path, "rb") as pipe, open(copy, "wb") as file:
            shutil.copyfileobj(pipe, file, 1 << 20)
        yield copy
    except InputError as error:
        raise InputError(str(error).replace(copy, path)) from None
    except OSError as error:
        raise RunError(f"cannot keep {path} in {folder or 'the temporary folder'}: {error.strerror}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_stage(name: str, settings: dict[str, Any], target: Path | Target, memory: MemoryConfig) -> list[Any]:
    """Run a job quietly; a path is that of the single file to write."""
    stage = STAGES[name]
    made = fill(stage.config, {key: value for key, value in settings.items() if value is not None}, name)
    if isinstance(target, Path):
        target = Target(target, single_file=True)
    return run_one(Job(stage, made, target), stage_config(Path(target.path or ""), memory), RunOptions(), quiet=True)


def stage_config(path: Path | None, memory: MemoryConfig) -> RunConfig:
    """Return the settings of a run of one stage in this process, as KenLM's programs need it."""
    return RunConfig(path or Path(""), [], ClusterConfig(), memory, CHECKPOINT_SECONDS)


def folder_of(prefix: str | None, flag: str) -> str | None:
    """Return the folder of a file, or of files with a prefix. Raises InputError unless it exists."""
    if prefix is None:
        return None
    folder = prefix if flag == "-T" and os.path.isdir(prefix) else os.path.dirname(prefix) or "."
    if not os.path.isdir(folder):
        raise InputError(f"{flag} is {prefix!r} but {folder!r} is not a folder; make it, or name another")
    return folder
