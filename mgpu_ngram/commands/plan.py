"""`mgpu-ngram plan`: what the jobs of a YAML file would do."""

from __future__ import annotations

import argparse

from mgpu_ngram.api.executors import describe_cluster
from mgpu_ngram.commands.run import Job, check_settings, work_of
from mgpu_ngram.commands.run_flags import add_config_arguments, load_config
from mgpu_ngram.commands.standard_streams import stdout
from mgpu_ngram.core.json_text import to_json
from mgpu_ngram.jobs.context import PlanContext
from mgpu_ngram.stages.contract import Target
from mgpu_ngram.stages.registry import STAGES

EXAMPLES = """example:
  mgpu-ngram plan configs/quickstart.yaml"""


def add(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EXAMPLES
    add_config_arguments(parser)
    parser.set_defaults(verb=_plan, many="overrides")


def _plan(arguments: argparse.Namespace) -> None:
    config = load_config(arguments)
    for name, settings in config.jobs:
        STAGES[name].check_memory(config.memory, settings.name)
    check_settings(
        [Job(STAGES[name], settings, Target(config.output / settings.name)) for name, settings in config.jobs]
    )
    jobs = [(STAGES[name], settings) for name, settings in config.jobs]
    work = work_of(((stage, settings, stage.open_inputs(settings)) for stage, settings in jobs), config.memory)
    found = describe_cluster(config.cluster, config.dask, work)
    context = PlanContext(
        found["workers"], found["device"], found["free_bytes"], found["transport"], config.memory, config.output
    )
    plans = [(stage, stage.plan(settings, context) | {"transport": context.transport}) for stage, settings in jobs]
    with stdout():
        if arguments.json:
            print(to_json([plan for _, plan in plans], indent=2))
            return
        print(f"runs {found['reason']}\n")
        for stage, plan in plans:
            stage.show_plan(plan)
            print()
