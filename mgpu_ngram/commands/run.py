"""`mgpu-ngram run` and `plan`: the jobs of a YAML file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mgpu_ngram.api import describe_cluster, open_executor
from mgpu_ngram.commands.shared import add_scheduler_flags, command, scheduler_overrides, stdout
from mgpu_ngram.config import STAGES, RunConfig, load
from mgpu_ngram.core.corpus import Corpus
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import identify
from mgpu_ngram.core.output import check_free, find_manifest
from mgpu_ngram.jobs.distribution.config import known_facts
from mgpu_ngram.report import Bars, show_plan, show_result

RUN_EXAMPLES = """examples:
  mgpu-ngram run configs/quickstart.yaml
  mgpu-ngram run configs/quickstart.yaml cluster.workers=4 jobs.0.count.order=3 --overwrite
  mgpu-ngram run configs/quickstart.yaml --resume
  mgpu-ngram run configs/quickstart.yaml --scheduler-file scheduler.json"""
PLAN_EXAMPLES = """example:
  mgpu-ngram plan configs/quickstart.yaml"""


def add(verbs: Any) -> None:
    run = command(verbs, "run", "run the jobs of a YAML file", RUN_EXAMPLES)
    run.add_argument("config", metavar="CONFIG.yaml")
    run.add_argument("overrides", nargs="*", metavar="key=value", help="settings over those of the file")
    add_scheduler_flags(run)
    run.add_argument("--resume", action="store_true", help="go on with a run that ended early")
    run.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
    run.set_defaults(verb=_run)

    plan = command(verbs, "plan", "say what a YAML file would do; computes nothing", PLAN_EXAMPLES)
    plan.add_argument("config", metavar="CONFIG.yaml")
    plan.add_argument("overrides", nargs="*", metavar="key=value")
    add_scheduler_flags(plan)
    plan.set_defaults(verb=_plan)


def _run(arguments: argparse.Namespace) -> None:
    config = load(arguments.config, [*scheduler_overrides(arguments), *arguments.overrides])
    jobs = [(stage, settings, config.output / settings.name) for stage, settings in config.jobs]
    run_jobs(jobs, config, arguments)


def run_jobs(
    jobs: list[tuple[str, Any, Path]], config: RunConfig, arguments: argparse.Namespace, corpus: Corpus | None = None
) -> None:
    """Run jobs, each a (stage, settings, output), one after the other; show each result when it is there."""
    results = []
    if arguments.resume and not arguments.overwrite:
        made = [job for job in jobs if _is_made(*job)]
        jobs = [job for job in jobs if job not in made]
        results = [{"path": str(target), "finished_before": True} for _, _, target in made]
        for _, _, target in made:
            print(f"{target}: finished before", file=sys.stderr)
    for _, _, target in jobs:
        check_free(target, arguments.overwrite)  # at once, for a cluster takes its time to start
    # all, before the first runs: a wrong path in the last job must not cost the work of those before
    for i, (stage, settings, _) in enumerate(jobs):
        earlier = [target for _, _, target in jobs[:i]]
        if hasattr(settings, "model") and not any(Path(settings.model).is_relative_to(target) for target in earlier):
            identify(settings.model)
            if stage == "distribution":
                known_facts(settings)
    corpora = [corpus or STAGES[stage].open_inputs(settings) for stage, settings, _ in jobs]
    if jobs:
        executor = open_executor(config.cluster, config.dask)
        try:
            if executor.dashboard and sys.stderr.isatty():
                print(f"dashboard: {executor.dashboard}", file=sys.stderr)
            for (stage, settings, target), inputs in zip(jobs, corpora, strict=True):
                with Bars() as bars:
                    result = STAGES[stage].run(
                        settings, executor, target, arguments.overwrite, bars, inputs, config.memory,
                        config.checkpoint_seconds, arguments.resume,
                    )  # fmt: skip
                results.append(result.as_json())
                if not arguments.json:
                    with stdout():
                        show_result(result)
        finally:
            executor.close()
    if arguments.json:
        with stdout():
            print(json.dumps(results, indent=2))


def _is_made(stage: str, settings: Any, target: Path) -> bool:
    """Whether a run before this one has made just this output. Raises InputError for one made of something else."""
    manifest = find_manifest(target)
    if manifest is None or manifest["format"] != STAGES[stage].FORMAT:
        return False
    try:
        what = STAGES[stage].changed_since(settings, manifest)
    except InputError:  # what it was made from is gone
        return False
    if what:
        raise InputError(f"{target} is finished, but {what}; put back what changed or make it again with --overwrite")
    return True


def _plan(arguments: argparse.Namespace) -> None:
    config = load(arguments.config, [*scheduler_overrides(arguments), *arguments.overrides])
    cluster = describe_cluster(config.cluster, config.dask)
    plans = [
        STAGES[stage].plan(
            settings, cluster["workers"], cluster["device"], cluster["free_bytes"], config.memory, config.output
        )
        | {"transport": cluster["transport"]}
        for stage, settings in config.jobs
    ]
    with stdout():
        if arguments.json:
            print(json.dumps(plans, indent=2))
        else:
            for plan in plans:
                show_plan(plan)
