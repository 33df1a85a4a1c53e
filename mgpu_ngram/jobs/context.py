"""The context of a job besides its settings: where a run works and its limits, or the workers that a plan assumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS


@dataclass(frozen=True)
class RunContext:
    """The executor and the output of a job, and its limits.

    executor            runs the tasks
    output              the folder to write, which appears when it is complete. None: the job writes no file
    single_file         `output` is the file of the result alone, without a folder and a manifest
    overwrite           replace an output of the same kind
    resume              continue from OUT.checkpoint; the result is that of an uninterrupted run
    progress            receives the progress of phases
    memory              limits for each GPU and host, and the spill folder
    checkpoint_seconds  seconds between saves of finished work in OUT.checkpoint
    """

    executor: Executor
    output: str | Path | None
    single_file: bool = False
    overwrite: bool = False
    resume: bool = False
    progress: Progress = field(default_factory=Progress)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    @property
    def target(self) -> str | Path:
        """Return `output`, for jobs that always write."""
        if self.output is None:
            raise ValueError("the job writes an output but the context has none; give RunContext an output")
        return self.output


@dataclass(frozen=True)
class PlanContext:
    """The workers that a plan assumes.

    free_bytes  free bytes of one GPU, or of the host if `device` is "cpu"
    transport   transport of arrays between workers
    output      folder of the whole run; sorted runs spill beside it
    """

    workers: int
    device: str
    free_bytes: int
    transport: str = "memory"
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    output: str | Path = "."
