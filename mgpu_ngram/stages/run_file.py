"""Read the YAML file of a run, check all its keys, and run its jobs in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.typed_config import fill, suggest
from mgpu_ngram.core.yaml_file import read_yaml
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS
from mgpu_ngram.stages.contract import Product, Settings
from mgpu_ngram.stages.registry import ENTRIES, STAGES


@dataclass(frozen=True)
class ClusterConfig:
    """The workers and the device of a run."""

    kind: Literal["local", "scheduler_file", "address"] = "local"  # local: a cluster that the run starts on this host;
    # scheduler_file, address: a running cluster
    device: Literal["auto", "cpu", "gpu"] = "auto"  # auto: a GPU if there is one and the work is large enough to gain;
    # gpu fails without one
    workers: int | None = None  # number of Dask workers; 0: work in this process; auto: 0, or for large inputs one per
    # GPU or core. For a running cluster: how many workers to wait for
    scheduler_file: str | None = None  # file that the scheduler writes, for kind scheduler_file
    address: str | None = None  # address of the scheduler, such as tcp://10.0.0.1:8786, for kind address
    secure: bool | None = None  # encrypt a local cluster, so that other users of this host cannot connect; auto: if the
    # host has other users. Not with ucx
    protocol: Literal["tcp", "ucx"] | None = None  # protocol of the cluster that the run starts; default tcp
    lost_seconds: float | None = None  # a worker or a scheduler that is silent for so long is lost: the run goes on
    # without the worker, and ends without the scheduler; default 300

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers is {self.workers} but must be 0 (in this process) or more")
        if self.lost_seconds is not None and not self.lost_seconds > 0:
            raise InputError(f"lost_seconds is {self.lost_seconds:g} but must be more than 0; leave it out for 300")
        for kind in ("scheduler_file", "address"):
            if self.kind == kind and not getattr(self, kind):
                raise InputError(f"kind {kind} needs the key {kind}; add it")
            if self.kind != kind and getattr(self, kind):
                raise InputError(f"{kind} is given but kind is {self.kind}; make kind {kind}, or leave {kind} out")
        if self.kind != "local" and self.workers == 0:
            raise InputError(f"workers is 0 but kind is {self.kind}; leave workers out, or make kind local")
        if self.kind != "local" and self.secure is not None:
            raise InputError(
                f"secure is {self.secure} but a cluster of kind {self.kind} has its own setting; leave secure out"
            )
        if self.kind != "local" and self.protocol:
            raise InputError(
                f"protocol is {self.protocol} but a cluster of kind {self.kind} has its own protocol; leave it out"
            )


@dataclass(frozen=True)
class RunConfig:
    """A whole run: jobs in order, each a (stage, settings) pair."""

    output: Path
    jobs: list[tuple[str, Settings]]
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    dask: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Document:
    output: str  # local folder; each job writes its own folder in it
    jobs: list[dict[str, Any]]  # jobs in the order of the run; each has one key, its stage
    cluster: dict[str, Any] = field(default_factory=dict)  # where tasks run
    memory: dict[str, Any] = field(default_factory=dict)  # memory that the run may use
    checkpoint_seconds: float = CHECKPOINT_SECONDS  # interval between saves of finished work; 0: after each chunk
    dask: dict[str, Any] = field(default_factory=dict)  # settings of Dask, by keys with dots

    def __post_init__(self) -> None:
        check_checkpoint_seconds(self.checkpoint_seconds)


def check_checkpoint_seconds(seconds: float) -> None:
    """Raise InputError unless a setting is 0 or more seconds."""
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise InputError(f"checkpoint_seconds is {seconds!r} but must be 0 (after every chunk) or more")


def load(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a YAML file; `overrides` are `key=value`, with dots into sections: cluster.workers=4, jobs.0.count.order=3.

    Raises InputError for all keys and values that a run cannot use.
    """
    document = read_yaml(path, "a mapping with keys output and jobs")
    for override in overrides or []:
        _override(document, override)
    filled = fill(_Document, document, str(path))
    jobs = [_job(job, f"{path}: jobs[{i}]") for i, job in enumerate(filled.jobs)]
    if not jobs:
        raise InputError(f"{path}: jobs is empty; give at least one, such as '- count: {{corpus: text.txt}}'")
    names = [settings.name for _, settings in jobs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: {names.count(name)} jobs are called {name!r}; give each its own 'name'")
    if not filled.output or "://" in filled.output:
        raise InputError(
            f"{path}: output is {filled.output!r} but must be a local folder, because outputs are renamed there"
        )
    jobs = _linked(jobs, filled.output, str(path))
    cluster = fill(ClusterConfig, filled.cluster, f"{path}: cluster")
    memory = fill(MemoryConfig, filled.memory, f"{path}: memory")
    return RunConfig(Path(filled.output), jobs, cluster, memory, filled.checkpoint_seconds, filled.dask)


def _job(job: dict[str, Any], where: str) -> tuple[str, Settings]:
    if len(job) != 1:
        raise InputError(f"{where} has {len(job)} keys but must have one, the stage: {', '.join(STAGES)}")
    (key, settings), *_ = job.items()
    stage = next((name for name, entry in ENTRIES.items() if key in entry.verbs), None)
    if stage is None:
        raise InputError(f"{where}: unknown stage {key!r}; {suggest(str(key), STAGES)}")
    if key != stage and isinstance(settings, dict):
        settings = {"name": key} | settings  # a job under an alias is called by the alias, and so is its folder
    return stage, fill(STAGES[stage].config, settings, f"{where}.{key}")


def _linked(jobs: list[tuple[str, Settings]], output: str, path: str) -> list[tuple[str, Settings]]:
    """Replace names of earlier jobs in settings by the paths of their products."""
    made: dict[tuple[Product, str], str] = {}  # (product, name of its job) -> path
    linked = []
    for i, (stage, settings) in enumerate(jobs):
        for key, product in STAGES[stage].needs.items():
            given = getattr(settings, key)
            several = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
            for wanted in several:
                if (product, wanted) not in made and any(
                    later.name == wanted and STAGES[name].makes == product for name, later in jobs[i + 1 :]
                ):
                    raise InputError(
                        f"{path}: {key} of job {settings.name!r} is {wanted!r}, which the job of that name makes "
                        f"later; put that job first, or write ./{wanted} for a path"
                    )
            paths = [made.get((product, wanted), wanted) for wanted in several]
            if paths != several:  # then all of them are text
                settings = replace(settings, **{key: paths if isinstance(given, list) else paths[0]})
        folder = Path(output) / settings.name
        made[STAGES[stage].makes, settings.name] = str(folder / STAGES[stage].product(settings))
        linked.append((stage, settings))
    return linked


def _override(document: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals:
        raise InputError(f"override {override!r} must be key=value, such as cluster.workers=4")
    *parents, last = path.split(".", 1 if path.startswith("dask.") else -1)  # Dask's own keys have dots
    at: Any = document
    for key in parents:
        try:
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
        except (ValueError, IndexError, AttributeError):
            raise InputError(f"override {override!r}: there is no {key!r}; write it as jobs.0.count.order=3") from None
    import yaml

    try:
        at[int(last) if isinstance(at, list) else last] = yaml.safe_load(text)
    except (ValueError, IndexError, TypeError, yaml.YAMLError):
        raise InputError(f"override {override!r}: no {last!r} can be set; write it as jobs.0.count.order=3") from None
