"""Count n-grams: a corpus in, sorted Parquet tables of every order out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_ngram.core.counts.counts import FORMAT, Counts
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, open_corpus
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.crc import PartCrc, combine_crc32
from mgpu_ngram.core.storage.manifest_changes import what_changed
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.count.earlier_counts import Earlier
from mgpu_ngram.engine.count.strategy import OrderPlan
from mgpu_ngram.engine.count.write_counts import WrittenFile
from mgpu_ngram.engine.memory.budget import peak_bytes
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.jobs.budget import limited
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.count.earlier import after_sources, as_earlier, inputs_of, open_earlier, shards_of, states_of
from mgpu_ngram.jobs.count.passes import TOP, CountPasses, CountTotals
from mgpu_ngram.jobs.count.plan import (
    budget_of_tokens,
    chunk_bytes,
    count_budget,
    keeps_tokens,
    most_table_bytes,
    num_streams,
    plan,
)
from mgpu_ngram.jobs.count.shuffle import write_parts
from mgpu_ngram.jobs.count.window_files import WindowFiles

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

__all__ = ["FORMAT", "CountConfig", "CountResult", "changed_since", "open_inputs", "plan", "run"]

UNRESERVED_BYTES = 1 << 30  # bytes of a device's budget for allocations of other streams


@dataclass(frozen=True)
class CountResult:
    """The result of a run. `manifest` is also in the output; the other fields depend on the cluster and the clock."""

    path: Path
    manifest: dict[str, Any]
    plans: list[OrderPlan]
    top: dict[int, list[tuple[str, int]]]
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str  # how arrays move between workers
    worker_rates: dict[str, float]  # tokens per second of each worker's share, while chunks were counted
    peak_device_bytes: int  # peak of the worker that took most of its GPU
    peak_host_bytes: int  # peak of the worker process with the most host memory, since its start
    resumed_chunks: int  # chunks that an earlier run had counted, or whose words it had saved
    resumed_shards: int  # shards that an earlier run had written

    @property
    def tokens_per_second(self) -> float:
        return float(self.manifest["tokens"] / self.wall_seconds)

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        return asdict(self) | {"path": str(self.path), "tokens_per_second": self.tokens_per_second}


def open_inputs(config: CountConfig) -> Corpus:
    """Return the corpus that a config names. Raises InputError if it cannot be used."""
    return open_corpus(config.corpus, config.unit, config.dtype, config.text_column)


def changed_since(config: CountConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings and names and sizes of inputs; "" if it does not."""
    given = without_checksums(inputs_of(open_earlier(config))) + open_inputs(config).described
    made_of = {"inputs": given, "options": _settings(config)}
    inputs = without_checksums(manifest.get("inputs", ()))
    return what_changed({"inputs": inputs, "options": manifest.get("options")}, made_of)


def without_checksums(inputs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the names and sizes of the inputs of a manifest."""
    return [{"name": given["name"], "size_bytes": given["size_bytes"]} for given in inputs]


def run(config: CountConfig, context: RunContext, inputs: Corpus | None = None) -> CountResult:
    """Count a corpus and write OUT/order=N/part-*.parquet, OUT/vocabulary.parquet, OUT/manifest.json.

    inputs  an open corpus instead of config.corpus
    """
    corpus = inputs or open_inputs(config)
    with (
        Output.create(context.target, context.overwrite) as out,
        counted(config, context, corpus, out.folder, out.path) as result,
    ):
        out.commit()
    return replace(result, path=out.path)


@contextmanager
def counted(
    config: CountConfig, context: RunContext, corpus: Corpus, folder: Path, path: Path
) -> Iterator[CountResult]:
    """Count a corpus, write the files and the manifest to a folder that exists, and yield the result.

    path  output path, beside which the checkpoint is; the checkpoint is deleted if the block ends without an error
    """
    executor, memory, progress = context.executor, context.memory, context.progress
    start = time.perf_counter()
    earlier = open_earlier(config)
    executor.check_folder(str(folder))
    budget = count_budget(memory, executor, most_table_bytes(config, corpus))
    for_tokens = budget_of_tokens(config, corpus, executor, budget)
    chosen: dict[str, Any] = {"keeps_tokens": keeps_tokens(config, corpus, executor, budget)}
    executor = limited(executor, budget)
    executor.reserve(budget.device_bytes - UNRESERVED_BYTES)
    of_chunks = for_tokens if chosen["keeps_tokens"] else budget
    chosen["chunk_bytes"] = chunk_bytes(config, corpus, executor.workers, of_chunks)
    identity = _identity(config, corpus, earlier)
    with Checkpoint.open(path, identity, context.resume, context.overwrite, memory.spill_dir, chosen) as checkpoint:
        executor.check_folder(str(checkpoint.entries_folder))
        chunks = corpus.chunks(checkpoint.chosen["chunk_bytes"]) or [Chunk(0, (), 0)]
        chunks = after_sources(chunks, len(inputs_of(earlier)))
        tokens_stay = checkpoint.chosen.get("keeps_tokens", False)
        budget = for_tokens if tokens_stay else budget
        context = replace(context, executor=executor)
        job = CountPasses(config, context, chunks, budget, checkpoint, keeps_tokens=tokens_stay)
        before = Earlier(as_earlier(earlier), shards_of(earlier, config.order, len(chunks)))
        found = job.count(num_streams(config, corpus, len(chunks)), before)
        from_tokens = WindowFiles(job) if tokens_stay else None
        for n in range(1, config.order + 1):
            (folder / f"order={n}").mkdir()
        if from_tokens:
            results = from_tokens.write(found)
            from_tokens.link_to(folder, results)
        else:
            runs = job.merge(found)
            job.report(found)
            results = write_parts(job, found, runs, str(folder))
        seconds = [found.totals.seconds, *job.saving, *found.seconds]
        of_device, of_host = map(max, zip(*executor.everywhere(peak_bytes, executor.device), strict=True))
        progress.finish()

        files = sorted((file for part, _ in results for file in part), key=lambda file: file.name)
        manifest = _manifest(config, corpus, earlier, found.totals, files)
        write_manifest(folder, manifest, FORMAT)
        yield CountResult(
            path=folder,
            manifest=manifest,
            plans=found.totals.plans,
            top=_top(files, config.order),
            seconds=add_seconds(*seconds, *(run.seconds for run in found.stored), *(s for _, s in results)),
            wall_seconds=time.perf_counter() - start,
            workers=executor.workers,
            device=executor.device,
            transport=executor.transport,
            worker_rates=job.worker_rates(manifest["tokens"]),
            peak_device_bytes=of_device,
            peak_host_bytes=of_host,
            resumed_chunks=len(job.resumed_words if from_tokens else job.resumed),
            resumed_shards=from_tokens.resumed_shards if from_tokens else 0,
        )
        checkpoint.discard()


def _identity(config: CountConfig, corpus: Corpus, earlier: Sequence[Counts]) -> dict[str, Any]:
    """Return what a run must have in common with the run that it resumes."""
    inputs = states_of(earlier) + corpus.states
    return {"corpus": {"inputs": inputs}, "settings": _settings(config), "versions": {"mgpu-ngram": VERSION}}


def _settings(config: CountConfig) -> dict[str, Any]:
    """Return the settings that affect the result."""
    settings = asdict(config)
    for key in ("corpus", "add", "strategy", "histograms", "chunk_bytes", "name"):
        del settings[key]
    return settings


def _top(files: Sequence[WrittenFile], max_order: int) -> dict[int, list[tuple[str, int]]]:
    """Return the most frequent n-grams by order; ties by ids."""
    top = {}
    for n in range(1, max_order + 1):
        best = sorted((-count, codes, text) for file in files if file.order == n for count, codes, text in file.top)
        top[n] = [(text, -negative) for negative, _, text in best[:TOP]]
    return top


def _manifest(
    config: CountConfig,
    corpus: Corpus,
    earlier: Sequence[Counts],
    totals: CountTotals,
    files: Sequence[WrittenFile],
) -> dict[str, Any]:
    """Return the manifest: the result and what it depends on, nothing about chunks, workers or devices."""
    before = inputs_of(earlier)
    parts: list[list[PartCrc]] = [[] for _ in corpus.sources]
    for part in totals.checksums:
        parts[part[0] - len(before)].append(part)
    inputs = before + [
        named | {"crc32": f"{combine_crc32(mine):08x}"} for named, mine in zip(corpus.described, parts, strict=True)
    ]
    orders = {}
    for n in range(1, config.order + 1):
        mine = [f for f in files if f.order == n]
        orders[str(n)] = {key: sum(getattr(f, key) for f in mine) for key in ("distinct", "rows", "total")}
    return {
        "files": {f.name: {"rows": f.rows, "size_bytes": f.size_bytes, "crc32": f"{f.crc32:08x}"} for f in files},
        "inputs": inputs,
        "lines": totals.lines,
        "num_shards": totals.num_shards,
        "options": _settings(config),
        "order": config.order,
        "orders": orders,
        "symbols": totals.symbols,
        "tokens": totals.tokens,
        "unit": config.unit,
        "versions": {"mgpu-ngram": VERSION, "pyarrow": pa.__version__},
    }
