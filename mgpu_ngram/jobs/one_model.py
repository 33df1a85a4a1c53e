"""Jobs in which one worker makes one model: the result of the job, and its run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import check_free_file
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.model_layout import MODEL_FILES
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.jobs.budget import limited_to
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.kernels.common.count_true import count_true


@dataclass(frozen=True)
class ModelResult:
    """The model of a run.

    counts   number of n-grams of each order
    seconds  seconds by step
    """

    path: Path
    counts: list[int]
    fingerprint: str
    size_bytes: int
    seconds: dict[str, float]

    @property
    def order(self) -> int:
        return len(self.counts)

    @property
    def bytes_per_ngram(self) -> float:
        """Bytes of the file per n-gram, including its words."""
        return self.size_bytes / sum(self.counts)

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        return asdict(self) | {"path": str(self.path), "order": self.order, "bytes_per_ngram": self.bytes_per_ngram}


R = TypeVar("R", bound=ModelResult)
Make = Callable[[Path, str, int, bool], R]


def run_alone(make: Make[R], context: RunContext, format: str, kind: str, made_of: dict[str, Any]) -> R:
    """Let one worker make a model: OUT/model.safetensors, .arpa or .binary, and OUT/manifest.json; only the model for a
    single file.

    make     make(path, device, threads, overwrite) writes the model; a picklable function
    format   format of the model, a key of MODEL_FILES
    kind     the format of the manifest
    made_of  the settings and inputs that determine the output, for the manifest

    Not resumable.
    """
    executor = limited_to(context.executor, context.memory)

    def made(path: Path, overwrite: bool) -> R:
        task = executor.call(make, path, executor.device, executor.threads, overwrite, label="the model")
        executor.wait([task])
        result: R = executor.gather([task])[0]
        return result

    if context.single_file:
        target = Path(context.target).absolute()
        check_free_file(target, context.overwrite, format)
        return replace(made(target, context.overwrite), path=Path(context.target))
    with Output.create(context.target, context.overwrite) as out:
        executor.check_folder(str(out.folder))
        path = out.folder / MODEL_FILES[format]
        result = made(path, True)  # the model may exist already: a worker that died may have written it
        found = {"orders": result.counts, "fingerprint": result.fingerprint, "versions": {"mgpu-ngram": VERSION}}
        write_manifest(out.folder, made_of | found, kind)
        out.commit()
    return replace(result, path=out.path / path.name)


def open_target(output: str | Path, overwrite: bool, format: str) -> Path:
    """Make the folder of a model to write, and return the model's path. Raises InputError unless it can be written.

    Called before the work, to report errors early.
    """
    check_free_file(output, overwrite, format)
    output = Path(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise InputError(f"cannot write in {output.parent}: {error.strerror}; give another output path") from error
    return output


def absolute(path: str) -> str:
    """Return an absolute path, for workers with another working directory; URLs are unchanged."""
    return path if "://" in path else os.path.abspath(path)


def listed_counts(trie: Trie) -> list[int]:
    """Return the number of n-grams of each order that the model lists."""
    counts = [end - begin for begin, end in pairwise(trie.starts)]
    if trie.filled_F is None:
        return counts
    return [
        n - count_true((trie.filled_F >= a) & (trie.filled_F < a + n))
        for n, a in zip(counts, trie.starts, strict=False)
    ]


def open_on(path: str, device: str, threads: int, watch: Stopwatch) -> tuple[Trie, Words]:
    """Return the trie of a model on the device, without codes, and its words. Raises InputError as `open_model` does,
    and for a model without backoffs or words.
    """
    model = open_model(path, device, threads, watch=watch)
    model.check_scores(path)
    _ = model.words.offsets_V  # refuses hashes of words
    return model.trie.map_arrays(partial(to_device_fast, device=device)).decoded(), model.words
