"""The commands. A module is imported when its command is given; its `add(parser, verb)` adds the arguments."""

from __future__ import annotations

from mgpu_ngram.stages.registry import ENTRIES


def commands() -> dict[str, tuple[str, str]]:
    """Return (module, description) of every command, by name."""
    return {
        "run": ("mgpu_ngram.commands.run", "run the jobs of a YAML file"),
        "plan": ("mgpu_ngram.commands.plan", "show what the jobs of a YAML file would do, without running them"),
        **{entry.verbs[0]: ("mgpu_ngram.commands.stage", entry.help) for entry in ENTRIES.values()},
        "export": ("mgpu_ngram.commands.export", "print n-grams and counts as text, separated by a tab"),
        "info": ("mgpu_ngram.commands.info", "describe the output of a job, a model or another file"),
        "bench": (
            "mgpu_ngram.commands.bench",
            "measure a stage and compare it with hardware limits and other programs",
        ),
    }


def aliases() -> dict[str, str]:
    """Return the name of the command that each other name stands for."""
    return {alias: entry.verbs[0] for entry in ENTRIES.values() for alias in entry.verbs[1:]}
