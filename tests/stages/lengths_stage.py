"""The toy stage of docs/add-a-stage.md: the length of each input file."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.saver import Saver
from mgpu_ngram.stages.contract import Stage, Target, given
from mgpu_ngram.stages.flags import add_overwrite, add_text

FORMAT = "mgpu_ngram lengths"


@dataclass(frozen=True)
class LengthsConfig:
    text: list[str]
    unit: Literal["bytes", "lines"] = "bytes"
    text_column: str = "text"
    name: str = "lengths"


@dataclass(frozen=True)
class LengthsResult:
    path: Path
    lengths: list[int]
    resumed: int

    def as_json(self):
        return {"path": str(self.path), "lengths": self.lengths, "resumed": self.resumed}


def length(path, unit):
    """Return the bytes or lines of a file, as an array that a checkpoint can hold."""
    data = Path(path).read_bytes()
    return np.array([len(data) if unit == "bytes" else data.count(b"\n")])


def save(lengths, items, folder):
    save_entry(folder, "length", items, {"lengths": np.concatenate(lengths)})


class LengthsStage(Stage[LengthsConfig, LengthsResult]):
    name = "lengths"
    config = LengthsConfig
    format = FORMAT
    resumes = True
    examples = "examples:\n  mgpu-ngram lengths a.txt b.txt -o out"
    stdin_setting = "text"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_text(parser, "text")
        parser.add_argument("-o", "--output", required=True)
        parser.add_argument("--unit", choices=["bytes", "lines"])
        add_overwrite(parser)

    def settings(self, arguments):
        return fill(LengthsConfig, given(arguments, ["text", "unit"]), self.name)

    def target(self, arguments):
        return Target(arguments.output)

    def open_inputs(self, config):
        return open_corpus(config.text)

    def made_of(self, config, corpus):
        return {"inputs": corpus.described, "options": {"unit": config.unit}}

    def plan(self, config, context):
        return {"job": config.name, "files": len(self.open_inputs(config).sources), "workers": context.workers}

    def changed_since(self, config, manifest):
        made_of = self.made_of(config, self.open_inputs(config))
        return manifest_changes(manifest, made_of)

    def run(self, config, context, inputs):
        executor, made_of = context.executor, self.made_of(config, inputs)
        lengths: dict[int, int] = {}
        with (
            Output.create(context.target, context.overwrite) as out,
            Checkpoint.open(out.path, made_of, context.resume, context.overwrite) as checkpoint,
        ):
            for entry in checkpoint.entries("length"):
                lengths |= zip(entry.items, load_arrays(entry.path)[0]["lengths"].tolist(), strict=True)
            resumed = len(lengths)
            saver = Saver(executor, context.checkpoint_seconds, save, str(checkpoint.entries_folder))
            running = {
                executor.call(length, source.location, config.unit, label=source.name): i
                for i, source in enumerate(inputs.sources)
                if i not in lengths
            }
            context.progress.start("lengths", len(inputs.sources), "files")

            def done(handle):
                if handle not in running:
                    return []
                i = running[handle]
                [made] = executor.gather([handle])
                lengths[i] = int(made[0])
                saves = saver.add(handle, i)
                context.progress.advance(1)
                return saves

            executor.wait(list(running), done)
            found = [lengths[i] for i in sorted(lengths)]
            (out.folder / "lengths.json").write_text(json.dumps(found))
            write_manifest(out.folder, made_of | {"total": sum(found), "versions": {}}, FORMAT)
            out.commit()
            checkpoint.discard()
        return LengthsResult(out.path, found, resumed)

    def show_result(self, config, result):
        print(f"{os.path.basename(result.path)}: {result.lengths} {config.unit}, {result.resumed} resumed")

    def show_plan(self, plan):
        print(f"{plan['job']}: {plan['files']} files")

    def show_info(self, path, described):
        print(f"{path}: {described['total']} {described['options']['unit']}")


STAGE = LengthsStage()
