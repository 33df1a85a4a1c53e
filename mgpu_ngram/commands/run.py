"""`mgpu-ngram run`: the jobs of a YAML file. Every job, of a file or of a command, passes through `run_jobs`."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.cluster.placement import Work
from mgpu_ngram.commands.run_flags import add_config_arguments, load_config
from mgpu_ngram.commands.standard_streams import stdout
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.freed_memory import keep_freed_memory
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.claim import claimed
from mgpu_ngram.core.storage.output import check_not_input, find_manifest, no_empty_folders
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.stages.contract import STDOUT, RegisteredStage, Result, Settings, Target
from mgpu_ngram.stages.registry import STAGES
from mgpu_ngram.stages.report import Bars
from mgpu_ngram.stages.run_file import RunConfig

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus

EXAMPLES = """examples:
  mgpu-ngram run configs/quickstart.yaml
  mgpu-ngram run configs/quickstart.yaml cluster.workers=4 jobs.0.count.order=3 --overwrite
  mgpu-ngram run configs/quickstart.yaml --resume
  mgpu-ngram run configs/quickstart.yaml --scheduler-file scheduler.json"""


@dataclass(frozen=True)
class Job:
    """One job: a stage, its settings, and where it writes."""

    stage: RegisteredStage
    settings: Settings
    target: Target

    @property
    def path(self) -> Path:
        """The output of a job that has one."""
        return Path(self.target.path or "")


@dataclass(frozen=True)
class RunOptions:
    """How jobs treat the outputs and checkpoints of an earlier run.

    overwrite  replace outputs, and delete checkpoints
    resume     skip finished jobs, resume jobs that have a checkpoint, start the others
    or_start   with resume: not an error if there is nothing to resume
    """

    overwrite: bool = False
    resume: bool = False
    or_start: bool = False


@dataclass(frozen=True)
class FinishedBefore:
    """The result of a job that an earlier run finished."""

    path: Path

    def as_json(self) -> dict[str, object]:
        return {"path": str(self.path), "finished_before": True}


def add(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EXAMPLES
    add_config_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="continue a run that ended early")
    parser.add_argument(
        "--resume-or-start", action="store_true", help="resume, or start the run if there is nothing to resume"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    parser.set_defaults(verb=_run, many="overrides")


def _run(arguments: argparse.Namespace) -> None:
    config = load_config(arguments)
    jobs = [Job(STAGES[stage], settings, Target(config.output / settings.name)) for stage, settings in config.jobs]
    resume = arguments.resume or arguments.resume_or_start
    options = RunOptions(arguments.overwrite, resume, arguments.resume_or_start)
    with no_empty_folders(job.path for job in jobs):
        results = run_jobs(jobs, config, options, quiet=arguments.json)
    if arguments.json:
        with stdout():
            print(to_json([result.as_json() for result in results], indent=2))


def run_jobs(
    jobs: Sequence[Job],
    config: RunConfig,
    options: RunOptions,
    corpus: Corpus | None = None,
    quiet: bool = False,
) -> list[Result]:
    """Run jobs in order, show each result when its job ends (unless `quiet`), and return all results.

    Results of jobs that an earlier run finished come first.

    corpus  the open input of a single job, instead of the input that its settings name

    Raises InputError, before any work, if another run writes an output of these jobs.
    """
    for job in jobs:
        job.stage.check_memory(config.memory, job.settings.name)
    with claimed(job.path for job in jobs if job.target.path is not None and not job.target.is_stdout):
        return _run_claimed(jobs, config, options, corpus, quiet)


def _run_claimed(
    jobs: Sequence[Job], config: RunConfig, options: RunOptions, corpus: Corpus | None, quiet: bool
) -> list[Result]:
    """Do what `run_jobs` says, while no other run writes these outputs: what is found to be finished stays so."""
    # All checks come first: a wrong path in the last job must not cost the work of the jobs before it.
    finished = [job for job in jobs if _is_finished(job)] if options.resume and not options.overwrite else []
    for job in finished:
        print(f"{job.path}: finished before", file=sys.stderr)
    results: list[Result] = [FinishedBefore(job.path) for job in finished]
    jobs = [job for job in jobs if job not in finished]
    resuming = _to_resume(jobs, options)
    for job in jobs:
        if not options.resume or job not in resuming:
            job.stage.check_target(job.settings, job.target, options.overwrite)
    check_settings(jobs)
    corpora = [corpus or job.stage.open_inputs(job.settings) for job in jobs]
    for job, inputs in zip(jobs, corpora, strict=True):
        if inputs and job.target.path is not None:
            check_not_input(job.target.path, inputs.local_files)
    if not jobs:
        return results
    work = work_of(
        ((job.stage, job.settings, inputs) for job, inputs in zip(jobs, corpora, strict=True)), config.memory
    )
    executor = open_executor(config.cluster, config.dask, work)
    if executor.device == "cpu" and executor.transport == "memory":
        keep_freed_memory(config.memory.host_bytes or math.inf)  # of this process, which ends after the command
    try:
        if executor.dashboard and sys.stderr.isatty():
            print(f"dashboard: {executor.dashboard}", file=sys.stderr)
        for job, inputs in zip(jobs, corpora, strict=True):
            stage = job.stage
            executor.resume_hint = "" if job.target.is_stdout else stage.resume_hint
            with stdout():
                with Bars(stage.shows_progress(job.settings)) as bars:
                    context = RunContext(
                        executor=executor, output=job.target.path, single_file=job.target.single_file,
                        overwrite=options.overwrite, resume=job in resuming, progress=bars, memory=config.memory,
                        checkpoint_seconds=config.checkpoint_seconds,
                    )  # fmt: skip
                    result = stage.run(job.settings, context, inputs)
                if job.target.is_stdout:
                    result = replace(result, path=Path(STDOUT))
                results.append(result)
                if not quiet:
                    if job is not jobs[0]:
                        print()
                    stage.show_result(job.settings, result)
    finally:
        executor.close()
    return results


def work_of(jobs: Iterable[tuple[RegisteredStage, Settings, Corpus | None]], memory: MemoryConfig) -> Work:
    """Return the work of jobs, each a (stage, settings, input) triple: the largest size, and the sum of CPU seconds."""
    sizes, seconds = [0], [0.0]
    for stage, settings, inputs in jobs:
        sizes.append(stage.work_bytes(settings, inputs))
        seconds.append(stage.cpu_seconds(settings, inputs))
    limits_gpu = memory.device_bytes is not None  # so the user expects a GPU
    return Work(max(sizes), math.inf if limits_gpu else sum(seconds))


def check_settings(jobs: Sequence[Job]) -> None:
    """Raise InputError for settings that cannot work. Files that an earlier job makes do not exist yet."""
    for i, job in enumerate(jobs):
        job.stage.check(job.settings, [path for earlier in jobs[:i] for path in _made_by(earlier, job)])


def _made_by(earlier: Job, job: Job) -> list[str]:
    """Return the paths in the settings of a job that are inside the output of an earlier one."""
    needed = (getattr(job.settings, key) for key in job.stage.needs)
    paths = [path for value in needed for path in (value if isinstance(value, list) else [value])]
    return [path for path in paths if isinstance(path, str) and path and Path(path).is_relative_to(earlier.path)]


def _is_finished(job: Job) -> bool:
    """Return whether an earlier run made exactly this output. Raises InputError if it used other settings or inputs."""
    manifest = find_manifest(job.path)
    if manifest is None or manifest["format"] != job.stage.format:
        return False
    try:
        change = job.stage.changed_since(job.settings, manifest)
    except InputError:  # its inputs are gone
        return False
    if change:
        raise InputError(
            f"{job.path} is finished, but {change}; put back what changed or make it again with --overwrite"
        )
    return True


def _to_resume(jobs: Sequence[Job], options: RunOptions) -> list[Job]:
    """Return the jobs that continue from a checkpoint: with several jobs, or or_start, only those that have one."""
    if not options.resume:
        return []
    able = [job for job in jobs if job.stage.resumes]
    if len(jobs) == 1 and not options.or_start:
        return able  # without a checkpoint, the job reports which one is missing
    return [job for job in able if os.path.lexists(f"{os.path.realpath(job.path)}.checkpoint")]
