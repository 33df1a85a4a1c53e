"""The contract between a stage and the command line, YAML files, plans, reports and resumed runs.

This module and the modules of the stages import nothing heavy at their top, because `--help` loads them. So `Stage`
imports a job when its `plan`, `run` or `changed_since` is called. It finds the functions by name, so mypy does not
check their types; `tests/stages/test_add_a_stage.py` does.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, Protocol, TypeVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.json_text import to_json

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.core.memory_config import MemoryConfig
    from mgpu_ngram.jobs.context import PlanContext, RunContext

STDOUT = "-"  # the output of a command that writes to standard output
Product = Literal["model", "counts", "topics", "weights", "other"]


class Settings(Protocol):
    """The settings of one job: a frozen dataclass whose fields are the keys of its YAML."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def name(self) -> str: ...


class Result(Protocol):
    """The result of a run, for people and for machines: a frozen dataclass.

    Each result lists `seconds` to `transport` itself: inherited fields would come first in its JSON.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    def as_json(self) -> dict[str, object]: ...


C = TypeVar("C", bound=Settings)
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Target:
    """Where a command writes.

    path         None: nowhere, the command prints
    single_file  write only the file of the result; else a folder with a manifest
    is_stdout    `path` is a temporary file, which the command copies to standard output
    """

    path: str | Path | None  # a str keeps URLs such as s3://, which Path would change
    single_file: bool = False
    is_stdout: bool = False


class Stage(ABC, Generic[C, R]):
    """A stage: settings in, an output folder out. One subclass and one instance each.

    name           name of the stage in YAML files, and of its folder in jobs/
    config         the class of its settings
    format         of its manifests: "mgpu_ngram counts"
    makes          the products that later jobs may name as inputs
    needs          settings that may name an earlier job, or several -> the product of that job: {"model": "model"}
    files          other settings that name files, besides `needs` and `stdin_setting`
    resumes        whether --resume continues a run that ended early from its checkpoint
    memory_keys    keys of the YAML section `memory` that take effect; others are refused
    examples       of its command, for --help
    stdin_setting  the setting in which "-" means standard input; "" for none
    stdout         what `-o -` writes to standard output: an ARPA file, or what the command prints without -o; "" for
                   nothing, then `-o -` is refused
    bench          name of its benchmark for `mgpu-ngram bench`; "" for none
    """

    name: str
    config: type[C]
    format: str
    makes: Product = "other"
    needs: ClassVar[Mapping[str, Product]] = {}
    files: tuple[str, ...] = ()
    resumes: bool = False
    memory_keys: frozenset[str] = frozenset()
    examples: str
    stdin_setting: str = ""
    stdout: Literal["arpa", "printed", ""] = ""
    bench: str = ""

    @abstractmethod
    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command, but not those that every stage has."""

    @abstractmethod
    def settings(self, arguments: argparse.Namespace) -> C:
        """Return the settings from the arguments of the command. Raises InputError."""

    @abstractmethod
    def target(self, arguments: argparse.Namespace) -> Target:
        """Return where the command writes."""

    def inputs(self, config: C) -> list[str]:
        """Return the paths that the settings name as inputs."""
        named = {key: _texts(getattr(config, key)) for key in (*self.needs, self.stdin_setting, *self.files) if key}
        return [path for key, paths in named.items() for path in paths if key in self.needs or os.path.isfile(path)]

    def check_target(self, config: C, target: Target, overwrite: bool) -> None:
        """Raise InputError unless the target may be written. Called before any work."""
        from mgpu_ngram.core.storage.output import check_folder_name, check_free, check_kind, check_not_input

        if target.path is not None:
            check_not_input(target.path, self.inputs(config))
        if target.path is not None and target.single_file:
            self.check_file(config, target.path, overwrite)
        elif target.path is not None:
            check_free(target.path, overwrite)
            check_kind(target.path, self.format)
            check_folder_name(target.path)

    def check_file(self, config: C, path: str | Path, overwrite: bool) -> None:
        """Raise InputError unless the result may be written as a single file there."""
        from mgpu_ngram.core.storage.output import check_free

        check_free(path, overwrite)

    def check(self, config: C, made: Collection[str] = ()) -> None:
        """Raise InputError for a file named in the settings that does not exist or contradicts them.

        made  paths in the settings that an earlier job will make: not checked
        """

    def open_inputs(self, config: C) -> Corpus | None:
        """Return the text that the settings name; None when the stage reads no text."""
        return None

    def work_bytes(self, config: C, inputs: Corpus | None) -> int:
        """Return the approximate size of the work, from which a run chooses this process or a cluster."""
        return inputs.text_bytes if inputs else 0

    def cpu_seconds(self, config: C, inputs: Corpus | None) -> float:
        """Return the approximate seconds that 2 cores need; inf if unknown.

        If they are few, a run with device auto does not open the GPU.
        """
        return math.inf

    def _job(self) -> ModuleType:
        """Return the module whose functions `plan`, `run` and `changed_since` the stage calls."""
        return importlib.import_module(f"mgpu_ngram.jobs.{self.name}.run")

    def plan(self, config: C, context: PlanContext) -> dict[str, object]:
        """Return what a run would do, as JSON values by name. Computes nothing."""
        planned: dict[str, object] = self._job().plan(config, context)
        return planned

    def run(self, config: C, context: RunContext, inputs: Corpus | None) -> R:
        """Run the job. Raises InputError or RunError."""
        result: R = self._job().run(config, context, inputs)
        return result

    def changed_since(self, config: C, manifest: dict[str, object]) -> str:
        """Return how a finished output differs from the output of these settings; "" if it does not."""
        change: str = self._job().changed_since(config, manifest)
        return change

    def product(self, config: C) -> str:
        """Return the path inside the output folder that later jobs take; "" for the folder itself."""
        return ""

    def describe(self, path: str, manifest: dict[str, object]) -> dict[str, object]:
        """Return the description of an output folder for `info`, as JSON values by name."""
        return manifest

    @abstractmethod
    def show_result(self, config: C, result: R) -> None:
        """Print the summary of a run."""

    @abstractmethod
    def show_plan(self, plan: dict[str, object]) -> None:
        """Print a plan."""

    @abstractmethod
    def show_info(self, path: str, described: dict[str, object]) -> None:
        """Print what `describe` returned."""

    def shows_progress(self, config: C) -> bool:
        """Return whether the run may draw progress bars; False if it prints lines itself."""
        return True

    def print_json(self, result: R) -> None:
        """Print the result of the command for machines."""
        print(to_json(result.as_json(), indent=2))

    def check_memory(self, memory: MemoryConfig, job: str) -> None:
        """Raise InputError for a key of `memory` that has no effect on this stage."""
        for key, value in vars(memory).items():
            if value is not None and key not in self.memory_keys:
                raise InputError(
                    f"memory.{key} is {value} but has no effect on job {job!r} of stage {self.name}; leave it out, or "
                    "run this job from a file of its own"
                )

    @property
    def resume_hint(self) -> str:
        """Return the words that follow "run again" in a message: how to resume; "" if the stage does not resume."""
        return "with --resume" if self.resumes else ""


# A stage of the registry. Only the stage itself knows the classes of its settings and results; `config` makes settings.
RegisteredStage = Stage[Settings, Result]


def _texts(value: object) -> list[str]:
    """Return the texts in the value of a setting."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
    return [text for one in values for text in _texts(one)]


def given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, object]:
    """Return the settings among `names` that the command line sets; an absent flag is None, False or []."""
    values = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False and value != []}
