"""The tasks of a distribution run, from chunks to files."""

from __future__ import annotations

import os
import secrets
import shutil
from bisect import bisect_left
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.cluster.executor import Executor, Handle, windowed
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.models.distributions import array_files, describe_array
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.output import MANIFEST
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.distribution.tasks import (
    GROUP_ROWS,
    DistributeOptions,
    ModelFile,
    count_histories,
    model_facts,
    save_done,
    write_distributions,
    write_words,
)
from mgpu_ngram.jobs.distribution.config import DistributionConfig
from mgpu_ngram.jobs.distribution.sizes import AHEAD, chunk_bytes, row_bytes, rows_for, table_rows, text_bytes
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.saver import Saver

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

STAT_BLOCK_BYTES = 512  # the unit of stat's st_blocks
CHUNKS_AT_ONCE = 64  # chunks whose histories one task counts, at most
COMPACT_HISTORIES = 1 << 16  # histories of a compact block; consecutive histories share many children
MAX_GROUP, PARQUET_GROUPS = 1 << 13, 4  # histories per row group, and row groups per file
WAYS_OUT = "give top_k, fewer orders, dtype float16 or format compact, or a path with more room"


class DistributionPasses:
    """One run: its model, the chunks of its text, and the folder of its growing files."""

    def __init__(
        self,
        config: DistributionConfig,
        executor: Executor,
        corpus: Corpus,
        identity: str,
        checkpoint: Checkpoint,
        progress: Progress,
    ):
        self.config, self.executor, self.checkpoint, self.progress = config, executor, checkpoint, progress
        path = os.path.abspath(config.model)  # workers may have another current directory
        self.model = ModelFile(path, identity, executor.device, executor.threads, config.verify)
        [(self.facts, seconds)] = self._ask(executor.call(model_facts, self.model, label=f"loading {config.model}"))
        self.seconds = [seconds]
        self.rows, V = rows_for(config, self.facts), self.facts.symbols
        chosen, size = checkpoint.chosen, row_bytes(config, self.rows, V)
        auto = chunk_bytes(corpus, chosen["workers"], chosen["device"], size, text_bytes(config))
        self.chunks = corpus.chunks(chosen["chunk_bytes"] or auto)
        self.starts = [0, *accumulate(self._count())]
        self.group = max(1, min(MAX_GROUP, GROUP_ROWS // table_rows(self.rows, V)))
        self.part = {"compact": COMPACT_HISTORIES, "parquet": PARQUET_GROUPS * self.group}.get(config.format, 1)
        self.arrays = _arrays(config, self.rows, self.starts[-1], V)
        self.folder, self.kind = _growing(checkpoint.entries_folder)
        self.done = {item for entry in checkpoint.entries(self.kind) for item in entry.items}

    def _ask(self, *handles: Handle) -> list[Any]:
        self.executor.wait(handles)
        return self.executor.gather(handles)

    def _count(self) -> list[int]:
        """Return the number of histories of each chunk."""
        config, executor, chunks = self.config, self.executor, self.chunks
        size = max(1, min(CHUNKS_AT_ONCE, len(chunks) // (AHEAD * executor.workers)))
        counts: dict[int, list[int]] = {}
        called = {}
        for i in range(0, len(chunks), size):
            batch = chunks[i : i + size]
            handle = executor.call(
                count_histories, batch, config.positions, config.sentence_markers, executor.device, executor.threads,
                label=f"counting the histories of {batch[0]}",
            )  # fmt: skip
            called[handle] = i
        self.progress.start("count", len(chunks), "chunks", "bytes")

        def done(handle: Handle) -> None:
            i = called.pop(handle)
            [(counts[i], seconds)] = executor.gather([handle])
            self.seconds.append(seconds)
            self.progress.advance(len(counts[i]), sum(c.size_bytes for c in chunks[i : i + size]))

        executor.wait(list(called), done)
        return [count for i in sorted(counts) for count in counts[i]]

    def _tasks(self) -> list[tuple[int, list[Chunk], list[int], int, int]]:
        """Return a task per chunk: (chunk, later chunks that it needs, starts of all these, first and last history).

        A part of the output belongs to the chunk in which it begins.
        """
        starts, part, tasks = self.starts, self.part, []
        for c, (begin, end) in enumerate(pairwise(starts)):
            first, last = (min(-(-row // part) * part, starts[-1]) for row in (begin, end))
            if first < last:
                end = bisect_left(starts, last)
                tasks.append((c, self.chunks[c + 1 : end], starts[c : end + 1], first, last))
        return tasks

    def write(self, checkpoint_seconds: float) -> None:
        """Write the files chunk by chunk, with a few chunks in flight."""
        executor, config = self.executor, self.config
        tasks = [task for task in self._tasks() if task[0] not in self.done]
        self._check_room()
        for file in array_files(self.folder, config.format, self.arrays):
            file.create()
        self._ask(executor.call(write_words, self.model, str(self.folder), label="the words"))
        options = DistributeOptions(
            model=self.model, rows=self.rows, format=config.format, positions=config.positions,
            bos=config.sentence_markers, folder=str(self.folder), arrays=self.arrays, part=self.part, group=self.group,
            tasks_per_host=executor.tasks_per_host,
        )  # fmt: skip
        entries = str(self.checkpoint.entries_folder)
        saver = Saver[int](executor, checkpoint_seconds, save_done, entries, self.kind)
        running = dict[Handle, int]()
        self.progress.start("distribution", len(tasks) + len(self.done), "chunks", "histories")
        self.progress.advance(len(self.done))

        def call(task: tuple[int, list[Chunk], list[int], int, int]) -> Handle:
            c, *what = task
            chunk = self.chunks[c]
            label = f"making the distributions of {chunk}"
            handle = executor.call(write_distributions, chunk, *what, options, label=label)
            running[handle] = c
            return handle

        def done(handle: Handle) -> list[Handle]:
            [result] = executor.gather([handle])
            if handle not in running:
                self.seconds.append(result)
                return []
            self.seconds.append(result.seconds)
            self.progress.advance(1, result.histories)
            return saver.add(handle, running.pop(handle))

        windowed(executor, map(call, tasks), AHEAD * executor.workers, done)

    def _check_room(self) -> None:
        """Raise InputError unless the disk has room for all arrays, minus what an earlier run has allocated."""
        files = array_files(self.folder, self.config.format, self.arrays)
        allocated = 0
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):  # tasks of an earlier run may still delete what they could not write
                allocated += path.stat().st_blocks * STAT_BLOCK_BYTES
        needed = sum(file.row_bytes for file in files) * self.starts[-1] - allocated
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            where = self.checkpoint.folder.parent
            raise InputError(f"the output needs {needed:,} bytes but {free:,} are free in {where}; {WAYS_OUT}")

    def described(self) -> dict[str, Any]:
        """Return the manifest's entries about the output, without its inputs."""
        files = [path for path in self.folder.rglob("[!.]*") if path.is_file() and path.name != MANIFEST]
        parts = {"arrays": self.arrays} if self.arrays else {"part_histories": self.part}
        return parts | {
            "histories": self.starts[-1],
            "order": self.facts.order,
            "orders": list(self.rows.orders),
            "symbols": self.facts.symbols,
            "size_bytes": sum(path.stat().st_size for path in files),
            "versions": {"mgpu-ngram": VERSION, "numpy": np.__version__, "pyarrow": pa.__version__},
        }


def _growing(entries: Path) -> tuple[Path, str]:
    """Return (folder of growing files, kind of the checkpoint entries about them); their names share a token.

    If the folder is gone, because a run ended between its last two steps, its entries have no effect.
    """
    folder = next(entries.glob("files_*"), entries / f"files_{secrets.token_hex(8)}")
    folder.mkdir(exist_ok=True)
    return folder, folder.name.replace("files", "done")


def _arrays(config: DistributionConfig, rows: RowOptions, histories: int, symbols: int) -> dict[str, Any]:
    """Return the descriptions of the output's arrays, as in `array_files`; empty for compact blocks and Parquet."""
    if config.format in ("compact", "parquet"):
        return {}
    shape = histories, len(rows.orders), rows.top_k or symbols
    if rows.top_k:
        return {"ids": describe_array(shape, "int32"), "values": describe_array(shape, "float32")}
    return {"rows": describe_array(shape, rows.dtype)}
