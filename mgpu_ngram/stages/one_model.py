"""Stages that write one model: the parts that they share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mgpu_ngram.core.storage.model_layout import MODEL_FILES
from mgpu_ngram.stages.contract import Result, Settings, Stage, Target
from mgpu_ngram.stages.report import show_file, show_model, shown_path

if TYPE_CHECKING:
    from mgpu_ngram.jobs.one_model import ModelResult


class ModelSettings(Settings, Protocol):
    """The settings of a job that writes one model in a format of `MODEL_FILES`."""

    @property
    def format(self) -> str: ...


C = TypeVar("C", bound=ModelSettings)
R = TypeVar("R", bound=Result)


class OneModelStage(Stage[C, R]):
    """A stage whose command writes one model file, ARPA file or KenLM binary model."""

    memory_keys = frozenset({"device_bytes"})
    makes = "model"
    stdout = "arpa"

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output, single_file=True)

    def check_file(self, config: C, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.core.models.model_file import check_free_file

        check_free_file(path, overwrite, config.format)

    def product(self, config: C) -> str:
        return MODEL_FILES[config.format]

    def describe(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        from mgpu_ngram.core.models.file_kind import identify_file

        name = MODEL_FILES[manifest["options"].get("format", "safetensors")]
        return identify_file(os.path.join(path, name)) | {"file": name}

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        file = os.path.join(path, described["file"])
        (show_model if described["file"] == MODEL_FILES["safetensors"] else show_file)(file, described)


def show_made(result: ModelResult) -> None:
    """Print the size of a model, and the time that it took."""
    counts = " + ".join(f"{count:,}" for count in result.counts)
    print(f"{shown_path(result.path)}: order {result.order}, {sum(result.counts):,} n-grams ({counts})")
    fingerprint = f"; fingerprint {result.fingerprint}" if result.fingerprint else ""
    print(f"{result.size_bytes:,} bytes, {result.bytes_per_ngram:.1f} an n-gram{fingerprint}")
    spent = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in result.seconds.items())
    print(f"time went to {spent}")
