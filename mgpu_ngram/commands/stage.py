"""The commands of the stages, such as `mgpu-ngram count`: each runs one job."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_ngram.commands.run import FinishedBefore, Job, RunOptions, run_jobs
from mgpu_ngram.commands.run_flags import (
    add_cluster_flags,
    add_memory_flags,
    add_resume_flags,
    cluster_config,
    memory_config,
)
from mgpu_ngram.commands.standard_streams import stdin_as_file, stdout
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.core.storage.output import no_empty_folders
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS
from mgpu_ngram.stages.contract import STDOUT, RegisteredStage, Target
from mgpu_ngram.stages.registry import ENTRIES, STAGES
from mgpu_ngram.stages.run_file import RunConfig, check_checkpoint_seconds


def add(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the stage that this verb names."""
    name = next(name for name, entry in ENTRIES.items() if verb in entry.verbs)
    stage = STAGES[name]
    parser.epilog = stage.examples
    stage.add_flags(parser)
    add_cluster_flags(parser)
    add_memory_flags(parser, stage.memory_keys)
    if stage.resumes:
        add_resume_flags(parser)
    parser.set_defaults(verb=partial(_run_stage, stage))


def _run_stage(stage: RegisteredStage, arguments: argparse.Namespace) -> None:
    to_stdout = arguments.output == STDOUT
    if to_stdout and not stage.stdout:
        raise InputError(f"-o - is standard output, where {stage.name} writes no files; name an output")
    if stage.stdout == "printed" and to_stdout:
        arguments.output = None
    settings, target = stage.settings(arguments), stage.target(arguments)
    seconds = getattr(arguments, "checkpoint_seconds", CHECKPOINT_SECONDS)
    check_checkpoint_seconds(seconds)
    options = RunOptions(arguments.overwrite, getattr(arguments, "resume", False))
    memory = memory_config(arguments)
    with ExitStack() as stack:
        if stage.stdout == "arpa" and to_stdout:
            if options.resume:
                raise InputError("--resume continues a run into a file, but -o - is standard output; name a file")
            file = stack.enter_context(file_for(None, "model.arpa", memory.spill_dir))
            target = Target(file, single_file=True, is_stdout=True)
        config = RunConfig(Path(target.path or ""), [], cluster_config(arguments), memory, seconds)
        results = run_one(Job(stage, settings, target), config, options, quiet=arguments.json)
        for result in results if arguments.json else ():  # no results if the reader of a pipe has ended
            with stdout():
                if isinstance(result, FinishedBefore):
                    print(to_json([result.as_json()], indent=2))
                else:
                    stage.print_json(result)


def run_one(job: Job, config: RunConfig, options: RunOptions, quiet: bool = False) -> list[Any]:
    """Run one job as `run_jobs` does; "-" among its inputs is standard input."""
    stage, settings, target = job.stage, job.settings, job.target
    stage.check(settings)  # at once: starting a cluster and reading a pipe take long
    if not options.resume:
        stage.check_target(settings, target, options.overwrite)
    with ExitStack() as stack:
        stack.enter_context(no_empty_folders([job.path]))
        corpus = None
        if stage.stdin_setting:
            corpus = stack.enter_context(stdin_as_file(stage, settings, _folder(target, stack)))
        return run_jobs([job], config, options, corpus, quiet=quiet)


@contextmanager
def file_for(path: str | None, name: str, folder: str | None) -> Iterator[Path]:
    """Yield the path of a new file. When the block ends, the file replaces `path`.

    In the block, prints go to standard error. Errors do not name the new file, which is deleted.

    path    None: standard output. To a file that is not regular, such as a pipe, the new file is copied
    name    name of the new file
    folder  folder of a new file that will be copied; None: the system's temporary folder
    """
    from mgpu_ngram.core.storage.scratch import scratch_folder

    replaced = os.path.realpath(path) if path and (os.path.isfile(path) or not os.path.lexists(path)) else None
    scratch = Path(scratch_folder(os.path.dirname(replaced) if replaced else folder))
    shown = str(path) if replaced else f"a temporary file in {scratch.parent}"
    try:
        with redirect_stdout(sys.stderr):
            try:
                yield scratch / name
            except (InputError, RunError) as error:
                text = str(error).replace(str(scratch / name), shown).replace(str(scratch), str(scratch.parent))
                raise (InputError if isinstance(error, InputError) else RunError)(text) from error
        if replaced:
            os.replace(scratch / name, replaced)
            return
        with stdout(), open(scratch / name, "rb") as file, ExitStack() as stack:
            out = stack.enter_context(open(path, "wb")) if path else sys.stdout.buffer
            shutil.copyfileobj(file, out, 1 << 20)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _folder(target: Target, stack: ExitStack) -> Path:
    """Return where standard input is kept for the workers: beside the output, or in a temporary folder."""
    if target.path is not None:
        return Path(target.path).absolute().parent
    from mgpu_ngram.core.storage.scratch import scratch_folder

    folder = Path(scratch_folder())
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder
