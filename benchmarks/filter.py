"""`mgpu-ngram bench filter`: documents in JSON lines to documents with perplexities, beside CCNet's own classes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult, open_suite
from mgpu_ngram.benchmarks.inputs.corpora import english_like_text
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.documents.json_lines import scan_json
from mgpu_ngram.core.documents.normalize import normalizer
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.typed_config import parse_bytes
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.run import run as estimate
from mgpu_ngram.jobs.filter.config import FilterConfig
from mgpu_ngram.jobs.filter.run import FilterResult
from mgpu_ngram.jobs.filter.run import run as filter_documents
from mgpu_ngram.stages.run_file import ClusterConfig

FLAGS = {"size", "workers", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "filter/": ("jobs.filter.run",),
    "filter/CCNet's classes": (),
}
ROUNDS = 3
SIZE = {"gpu": 1 << 30, "cpu": 64 << 20}  # bytes of text in all documents
MIN_SIZE = 1 << 16
TRAINING_SIZE = {"gpu": 32 << 20, "cpu": 8 << 20}  # bytes of text that models are made of
PIECES_SIZE = 2 << 20  # bytes of text that the SentencePiece model is made of
PIECES = 8_000
MEDIAN_BYTES, SPREAD = 1_600, 1.0  # of a document; its logarithm is normal
SHARDS = {"gpu": 4, "cpu": 2}
PEER_SIZE = 8 << 20  # bytes of the documents that CCNet's classes are given
TARGETS = {"words": 600e6, "pieces": 150e6}  # bytes of JSON lines a second, of one H200 with 16 cores
TARGET_SPEEDUP = {2: 1.9}  # over one H200
PEER_TARGET = 10  # times the rate of CCNet's classes, on two cores
PEER = "CCNet's classes"
PEER_MODULES = ("cc_net", "kenlm", "sentencepiece")
# CCNet's flow of mining: SentencePiece, DocLM and PerplexityBucket are chained, and read and write JSON lines.
PEER_PROGRAM = """
import sys
import time
from pathlib import Path
from cc_net import jsonql, perplexity
source, target, model, pieces = sys.argv[1:]
steps = []
if pieces:
    steps.append(perplexity.SentencePiece(Path(pieces), field="text", output_field="tokenized", normalize=True))
steps.append(perplexity.DocLM({"en": Path(model)}, field="tokenized" if pieces else "text", normalize=not pieces,
                              output_field="perplexity"))
if pieces:
    steps.append(perplexity.DropKeys("tokenized"))
wall, cpu = time.perf_counter(), time.process_time()
jsonql.run_pipes(jsonql.JsonReader(), *steps, file=Path(source), output=Path(target))
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


@dataclass
class DocumentShards:
    """Shards of generated documents."""

    paths: list[str]
    size_bytes: int
    sizes: str


class FilterBench:
    """The rows, and a folder with documents and models."""

    def __init__(self, suite: Suite, size_bytes: int, clusters: list[int], folder: Path):
        self.suite, self.size_bytes, self.clusters, self.folder = suite, size_bytes, clusters, folder

    @cached_property
    def documents(self) -> DocumentShards:
        """Documents whose sizes are log-normal, of English-like text with some letters that are not ASCII."""
        self.suite.say(f"writing documents with {self.size_bytes:,} bytes of text")
        shards = SHARDS[self.suite.device]
        paths = []
        for shard in range(shards):
            path = self.folder / f"documents-{shard}.jsonl"
            write_documents(path, self.size_bytes // shards, shard)
            paths.append(str(path))
        size_bytes = sum(os.path.getsize(path) for path in paths)
        return DocumentShards(paths, size_bytes, f"bytes={size_bytes} shards={shards}")

    @cached_property
    def training(self) -> Path:
        """A text as CCNet normalises it, a line each."""
        path = self.folder / "training.txt"
        normalize = normalizer("ccnet")
        text = english_like_text(TRAINING_SIZE[self.suite.device], seed=1_000).tobytes().decode()
        lines = text.split("\n")
        path.write_text("\n".join(map(normalize, lines) if normalize else lines))
        return path

    @cached_property
    def pieces(self) -> str:
        """The path of a SentencePiece model."""
        from sentencepiece import SentencePieceTrainer

        path = self.folder / "pieces.model"
        part = self.folder / "pieces.txt"
        part.write_bytes(self.training.read_bytes()[:PIECES_SIZE].rpartition(b"\n")[0] + b"\n")
        SentencePieceTrainer.train(
            input=str(part), model_prefix=str(path.with_suffix("")), vocab_size=PIECES, minloglevel=2
        )
        return str(path)

    def model(self, pieces: bool) -> str:
        """Return the path of an ARPA file of order 5, of words or of pieces."""
        path = self.folder / ("pieces.arpa" if pieces else "words.arpa")
        if path.exists():
            return str(path)
        self.suite.say(f"a model of {'pieces' if pieces else 'words'}")
        text = self.training
        if pieces:
            from sentencepiece import SentencePieceProcessor

            text = self.folder / "training.pieces.txt"
            lines = self.training.read_text().split("\n")
            cut = SentencePieceProcessor(model_file=self.pieces).encode(lines, out_type=str, num_threads=cpu_cores())
            text.write_text("\n".join(" ".join(line) for line in cut) + "\n")
        config = EstimateConfig([str(text)], order=5, format="arpa", discount_fallback=[], skip_symbols=True)
        with closing(LocalExecutor(self.suite.device)) as executor:
            made = estimate(config, RunContext(executor, self.folder / "model", overwrite=True))
        os.replace(str(made.path), path)
        return str(path)

    def filter(self, name: str, documents: DocumentShards, **settings: Any) -> tuple[FilterResult, float]:
        """Run a filter; return its result and the CPU seconds of this process."""
        with closing(LocalExecutor(self.suite.device)) as executor:
            start = time.process_time()
            return self.run(executor, name, documents, **settings), time.process_time() - start

    def run(self, executor: Executor, name: str, documents: DocumentShards, **settings: Any) -> FilterResult:
        config = FilterConfig(documents.paths, name=name, report=False, **settings)
        return filter_documents(config, RunContext(executor, self.folder / name, overwrite=True))

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a filter by words or by pieces, as CCNet's classes are used."""
        if name == "pieces":
            return {"model": self.model(True), "tokenizer": self.pieces, "normalize": "ccnet"}
        return {"model": self.model(False), "normalize": "ccnet", "sentences": "line"}


def write_documents(path: Path, size_bytes: int, seed: int) -> None:
    """Write documents with so many bytes of text as JSON lines with the keys url, language and text."""
    rng = np.random.default_rng(seed)
    text = english_like_text(size_bytes, seed)
    odd = rng.random(size_bytes) < 0.004
    data = text.tobytes()
    at = document = 0
    with path.open("w", encoding="utf-8") as file:
        while at < size_bytes:
            end = data.find(b"\n", min(size_bytes - 1, at + int(rng.lognormal(np.log(MEDIAN_BYTES), SPREAD)))) + 1
            part = data[at:end].decode().rstrip("\n")
            if odd[at:end].any():
                part = part.replace("e ", "é ", int(odd[at:end].sum()))
            record = {"url": f"https://example.org/{seed}/{document}", "language": "en", "text": part}
            file.write(json.dumps(record, ensure_ascii=document % 2 == 0) + "\n")
            at, document = end, document + 1


def parse(bench: FilterBench) -> None:
    """Rows: JSON lines to texts, by the compiled scanner and by orjson, which makes Python objects."""
    from orjson import loads

    bench.suite.say("JSON lines to texts")
    documents = bench.documents
    data = np.fromfile(documents.paths[0], np.uint8)[: 32 << 20]
    data = data[: int(np.flatnonzero(data == 10)[-1]) + 1]
    lines = data.tobytes().split(b"\n")[:-1]

    def check(found: Any) -> None:
        wanted = "".join(loads(line)["text"] for line in lines).encode()
        if found.texts.tobytes() != wanted:
            raise WrongResult("the scanner finds other texts than the parser; not timed")

    how: dict[str, Any] = {"items": len(data), "unit": "B/s", "runs": ROUNDS}
    sizes = f"bytes={len(data)}"
    cpu = Suite("cpu")  # without CUDA events
    for row in (
        cpu.run("filter/scan", sizes, lambda: scan_json(data, "text", "language", ()), check=check, **how),
        cpu.run("filter/parse to objects", sizes, lambda: [loads(line)["text"] for line in lines], **how),
    ):
        row.device = bench.suite.name
        row.notes = "one thread"
        row.command = bench.suite.origin["command"]
        bench.suite.rows.append(row)


def files(bench: FilterBench) -> None:
    """Rows: files read from the page cache and written, which nothing can be faster than."""
    documents = bench.documents
    seconds: dict[str, list[float]] = {"read": [], "write": []}
    for _ in range(ROUNDS):
        for path in documents.paths:
            start = time.perf_counter()
            data = Path(path).read_bytes()
            seconds["read"].append(time.perf_counter() - start)
            start = time.perf_counter()
            with open(bench.folder / "copy", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            seconds["write"].append(time.perf_counter() - start)
    items = documents.size_bytes / len(documents.paths)
    for name, taken in seconds.items():
        notes = "page cache, one thread" if name == "read" else "to the disk, one thread"
        bench.suite.add(f"filter/{name} a file", f"bytes={int(items)}", taken, items=items, unit="B/s", notes=notes)


def words(bench: FilterBench) -> None:
    """Rows: a filter by words between white space, and its steps."""
    _filter_rows(bench, "words")


def pieces(bench: FilterBench) -> None:
    """Rows: a filter by SentencePiece's pieces, and its steps."""
    _filter_rows(bench, "pieces")


def _filter_rows(bench: FilterBench, name: str) -> None:
    suite, settings, documents = bench.suite, bench.settings(name), bench.documents
    suite.say(f"documents to perplexities by {name}")
    bench.filter(name, documents, **settings)  # compiles
    runs = [bench.filter(name, documents, **settings) for _ in range(ROUNDS)]
    results = [result for result, _ in runs]
    target = TARGETS[name] if suite.device == "gpu" else None
    how: dict[str, Any] = {"items": documents.size_bytes, "unit": "B/s"}
    notes = f"of JSON lines, end to end; {cpu_cores()} cores"
    suite.add(f"filter/{name}", documents.sizes, [r.wall_seconds for r in results], target=target, notes=notes, **how)
    seconds = [cpu for _, cpu in runs]
    suite.add(f"filter/{name}, CPU time", documents.sizes, seconds, notes="of all threads", **how)
    total = sum(results[0].seconds.values())
    for step in results[0].seconds:
        seconds = [max(result.seconds.get(step, 0.0), 1e-9) for result in results]
        notes = f"summed over threads; {results[0].seconds[step] / total:.0%} of the steps"
        suite.add(f"filter/{name}, {step}", documents.sizes, seconds, notes=notes, **how)


def workers(bench: FilterBench) -> None:
    """A row of each filter and number of workers: a shard of the documents is a task.

    Each worker has its share of the cores of the largest cluster, whatever the others leave idle.
    """
    suite, documents = bench.suite, bench.documents
    threads = max(1, cpu_cores() // max(bench.clusters))
    alone: dict[str, float] = {}
    written: dict[str, list[bytes]] = {}
    for G in bench.clusters:
        suite.say(f"{G} workers filter documents")
        with closing(open_executor(ClusterConfig(device=suite.device, workers=G))) as executor:  # type: ignore[arg-type]
            executor.threads = threads
            for name in TARGETS:
                settings, seconds = bench.settings(name), []
                bench.run(executor, name, documents, **settings)  # loads the model
                for _ in range(ROUNDS):
                    seconds.append(bench.run(executor, name, documents, **settings).wall_seconds)
                shards = [path.read_bytes() for path in sorted((bench.folder / name / "documents").iterdir())]
                if shards != written.setdefault(name, shards):
                    raise WrongResult(f"{G} workers write other documents than {bench.clusters[0]}; not timed")
                notes = f"of JSON lines, end to end; {threads} threads a worker; transport {executor.transport}"
                row = suite.add(
                    f"filter/{name} by workers", f"{documents.sizes} workers={G}", seconds, items=documents.size_bytes,
                    unit="B/s", notes=notes,
                )  # fmt: skip
                if G == 1:
                    alone[name] = row.rate or 0.0
                elif row.rate and alone.get(name):
                    row.baseline, row.speedup = "workers=1", row.rate / alone[name]
                    if suite.device == "gpu" and G in TARGET_SPEEDUP:
                        row.target = TARGET_SPEEDUP[G] * alone[name]


def ccnet(bench: FilterBench) -> None:
    """Rows: CCNet's own classes, and a filter on the same documents, where CCNet is installed."""
    suite = bench.suite
    missing = [name for name in PEER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        suite.say(f"{' and '.join(missing)} not installed, so CCNet's time is left out")
        return
    path = bench.folder / "peer.jsonl"
    write_documents(path, min(PEER_SIZE, bench.size_bytes), 99)
    documents = DocumentShards([str(path)], path.stat().st_size, f"bytes={path.stat().st_size} shards=1")
    for name in ("words", "pieces"):
        suite.say(f"CCNet's classes by {name}")
        settings = bench.settings(name)
        out = bench.folder / "peer.out.jsonl"
        command = [sys.executable, "-c", PEER_PROGRAM, str(path), str(out), _binary(settings["model"])]
        command.append(settings.get("tokenizer", ""))
        peer: list[list[float]] = []
        ours: list[list[float]] = []
        bench.filter("ours", documents, **settings)
        for _ in range(ROUNDS):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RunError(f"CCNet's classes ended with {done.returncode}: {done.stderr.strip()[-300:]}")
            peer.append([float(number) for number in done.stdout.split()[-2:]])
            result, cpu = bench.filter("ours", documents, **settings)
            ours.append([result.wall_seconds, cpu])
        found, wanted = _perplexities(bench.folder / "ours/documents/peer.jsonl"), _perplexities(out)
        close = np.isclose(found, wanted, atol=0.051, rtol=2e-4)
        if len(found) != len(wanted) or not close.all():
            raise WrongResult(f"{np.count_nonzero(~close)} perplexities differ from CCNet's; not timed")
        how: dict[str, Any] = {"items": documents.size_bytes, "unit": "B/s"}
        both = zip(("", ", CPU time"), zip(*peer, strict=True), zip(*ours, strict=True), strict=True)
        for time_of, theirs, own in both:
            notes = "one process, with KenLM's probing file, without its start"
            suite.add(f"filter/{PEER}, {name}{time_of}", documents.sizes, theirs, notes=notes, **how)
            notes = f"in turn; {cpu_cores()} threads" + (f"; at least {PEER_TARGET}x" if not time_of else "")
            suite.add(
                f"filter/{name} beside CCNet{time_of}", documents.sizes, own, baseline=f"filter/{PEER}, {name}",
                baseline_seconds=float(np.median(theirs)), notes=notes, **how,
            )  # fmt: skip


def _binary(model: str) -> str:
    """Return the path of KenLM's probing file of an ARPA file."""
    from mgpu_ngram.cli import main

    path = f"{model}.bin"
    if not os.path.exists(path) and main(["convert", model, "-o", path, "--format", "kenlm-probing"]):
        raise RunError(f"{model} could not be converted; free space in the folder and run again")
    return path


def _perplexities(path: Path) -> np.ndarray:
    def values() -> Iterator[float]:
        with path.open() as file:
            for line in file:
                yield json.loads(line).get("perplexity", np.nan)

    found = np.array(list(values()))
    return found[~np.isnan(found)]


PARTS: dict[str, Callable[[FilterBench], None]] = {
    "parse": parse,
    "files": files,
    "words": words,
    "pieces": pieces,
    "workers": workers,
    "ccnet": ccnet,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure the parts; write filter.csv in the folder of results; return the rows."""
    parts = options.parts(PARTS)
    size_bytes = parse_bytes(SIZE[options.device] if options.size is None else options.size, "size")
    suite = open_suite("filter", options)
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as folder:
        bench = FilterBench(suite, max(MIN_SIZE, size_bytes), options.clusters(), Path(folder))
        for name in parts:
            suite.measure_part(PARTS[name], bench)
    return [asdict(row) for row in suite.rows]
