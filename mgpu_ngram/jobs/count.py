"""Count n-grams: a corpus in, sorted Parquet tables of every order out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow

from mgpu_ngram.cluster.executor import Executor, Handle, map_tasks, reduce_tasks, shuffle_tasks
from mgpu_ngram.core.corpus import Chunk, Corpus, open_corpus
from mgpu_ngram.core.crc import combine_crc32
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory import free_host_bytes
from mgpu_ngram.core.output import Output, write_manifest
from mgpu_ngram.core.settings import Bytes
from mgpu_ngram.core.shards import num_shards
from mgpu_ngram.core.tables import Table
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.core.vocabulary import HashCollision, LocalVocabulary
from mgpu_ngram.engine.count import (
    CountedChunk,
    CountOptions,
    count_chunk,
    merge_part,
    split_chunk,
)
from mgpu_ngram.engine.device import Stopwatch, add_seconds, free_bytes
from mgpu_ngram.engine.plan import OrderPlan, choose
from mgpu_ngram.engine.tokenise import SMALL_BYTES, TokenisedChunk, TokeniseOptions, tokenise
from mgpu_ngram.engine.vocabulary import Lexicon, merge_vocabularies, number_symbols
from mgpu_ngram.engine.write import WriteOptions, WrittenFile, write_symbols, write_tables
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.kernels import check

HASH_SEEDS = 8
TOP = 5  # n-grams per order in the summary
BYTES_PER_TOKEN = {"word": 5.5, "byte": 1.0}  # of text; a guess for plans
DEVICE_BYTES_PER_TEXT_BYTE = 40  # of a chunk while it is counted: keys twice, tables, text
KEPT_BYTES_PER_TEXT_BYTE = 12  # of English words' streams and tables until they are merged; more moves to the host
KEPT_SHARE = 0.4  # of a device's memory that they may take


@dataclass(frozen=True)
class CountConfig:
    """Settings of a count job; the keys of its YAML."""

    corpus: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line
    order: int = 5  # highest n-gram order; all orders from 1 are counted
    unit: Literal["word", "byte", "id"] = "word"
    dtype: Literal["uint16", "uint32"] = "uint16"  # of raw token ids
    separator_id: int | None = None  # token id that no n-gram crosses or holds
    sentence_markers: bool = False  # one <s> and one </s> per line
    lowercase: bool = False  # ASCII letters only
    min_count: int = 1  # n-grams that occur less often are not written
    strategy: Literal["auto", "global", "private", "sort", "hash"] = "auto"
    histograms: int = 1  # copies of the histogram in device memory, strategy private
    text_column: str = "text"  # of Parquet inputs
    chunk_bytes: Bytes | None = None  # text per task; auto: by corpus, workers and memory
    name: str = "count"  # folder of the result under the run's output

    def __post_init__(self) -> None:
        if self.order < 1 or (self.unit == "byte" and self.order > 8):
            most = "from 1 to 8 for unit byte" if self.unit == "byte" else "at least 1"
            raise InputError(f"order is {self.order} but must be {most}")
        if self.min_count < 1:
            raise InputError(f"min_count is {self.min_count} but must be at least 1")
        if self.histograms < 1:
            raise InputError(f"histograms is {self.histograms} but must be at least 1")
        if self.chunk_bytes is not None and self.chunk_bytes < 1:
            raise InputError(f"chunk_bytes is {self.chunk_bytes} but must be at least 1")
        if self.separator_id is not None and self.unit != "id":
            raise InputError(f"separator_id needs unit id but unit is {self.unit}; leave it out")
        if self.separator_id is not None and not 0 <= self.separator_id <= np.iinfo(self.dtype).max:
            raise InputError(
                f"separator_id is {self.separator_id} but {self.dtype} holds 0 to {np.iinfo(self.dtype).max}"
            )
        if self.sentence_markers and self.unit != "word":
            raise InputError(f"sentence_markers needs unit word but unit is {self.unit}; leave it out")
        if self.lowercase and self.unit == "id":
            raise InputError("lowercase needs unit word or byte but unit is id; leave it out")
        if not self.name or "/" in self.name or self.name in (".", ".."):
            raise InputError(f"name is {self.name!r} but must be a plain folder name")


@dataclass(frozen=True)
class CountResult:
    """What a run did. `manifest` is also in the output; the rest depends on the cluster and the clock."""

    path: Path
    manifest: dict[str, Any]
    plans: list[OrderPlan]
    top: dict[int, list[tuple[str, int]]]
    seconds: dict[str, float]  # by stage, summed over workers
    wall_seconds: float
    workers: int
    device: str

    @property
    def tokens_per_second(self) -> float:
        return self.manifest["tokens"] / self.wall_seconds


def run(
    config: CountConfig,
    executor: Executor,
    output: str | Path,
    overwrite: bool = False,
    progress: Progress | None = None,
    inputs: Any = None,
) -> CountResult:
    """Count a corpus and write OUT/order=N/part-*.parquet, OUT/vocabulary.parquet, OUT/manifest.json.

    inputs  an in-memory corpus in place of config.corpus
    """
    progress = progress or Progress()
    start = time.perf_counter()
    corpus = open_corpus(config.corpus if inputs is None else inputs, config.unit, config.dtype, config.text_column)
    with Output.create(output, overwrite) as out:
        memory_bytes = executor.gather([executor.call(free_bytes, executor.device)])[0] // executor.sharers
        size = chunk_bytes(config, corpus, executor.workers, executor.device, memory_bytes)
        chunks = corpus.chunks(size) or [Chunk(0, (), 0)]
        text_bytes = sum(c.size_bytes for c in chunks)
        keep = _fits_devices(text_bytes, executor.workers, memory_bytes)
        tokenised, local, lexicon = _tokenise(config, executor, chunks, keep, progress)
        totals = executor.gather([executor.call(_totals, lexicon, local)])[0]
        del local
        piece_tokens = -(-totals["tokens"] // _num_streams(config, corpus, len(chunks)))
        plans = choose(
            config.order, totals["symbols"], piece_tokens, config.strategy, config.histograms, executor.device,
            memory_bytes, config.unit,
        )  # fmt: skip
        counting = tuple(p for p in plans if config.strategy != "auto" or p.order > 1)
        options = CountOptions(
            counting, config.histograms, config.sentence_markers, executor.device, executor.sharers, keep
        )
        seconds = [totals["seconds"]]

        progress.start("count", len(chunks), "chunks")
        counted = map_tasks(executor, count_chunk, tokenised, lexicon, options)
        del tokenised
        executor.wait(counted, lambda _: progress.advance(1))
        seconds += executor.gather(map_tasks(executor, _seconds_of, counted))

        parts = min(executor.workers, totals["num_shards"])
        progress.start("reduce", parts, "parts")
        merged = _merge(executor, counted, lexicon, parts, keep)
        del counted  # before the wait: a chunk's tables go when they are split
        executor.wait(merged, lambda _: progress.advance(1))

        (out.folder / "order=1").mkdir()
        for n in range(2, config.order + 1):
            (out.folder / f"order={n}").mkdir()
        progress.start("write", parts + 1, "parts")
        threads = max(1, executor.threads * executor.workers // parts)
        writing = WriteOptions(str(out.folder), config.min_count, TOP, threads)
        written = [executor.call(_write_part, m, lexicon, writing) for m in merged]
        written.append(executor.call(_write_symbols, lexicon, writing, config.strategy == "auto"))
        executor.wait(written, lambda _: progress.advance(1))
        results = executor.gather(written)
        progress.finish()

        files = [file for part, _ in results for file in part]
        seconds += [s for _, s in results]
        manifest = _manifest(config, corpus, totals, files)
        write_manifest(out.folder, manifest)
        out.commit()
        path = out.path
    wall = time.perf_counter() - start
    top = _top(files, config.order)
    return CountResult(path, manifest, plans, top, add_seconds(*seconds), wall, executor.workers, executor.device)


def chunk_bytes(config: CountConfig, corpus: Corpus, workers: int, device: str, memory_bytes: int) -> int:
    """Text per chunk: what was asked for, else one chunk per worker (the less to merge), bounded by memory."""
    if config.chunk_bytes is not None:
        return config.chunk_bytes
    if device == "gpu":
        limit = min(2 << 30, max(64 << 20, memory_bytes // DEVICE_BYTES_PER_TEXT_BYTE))
        return max(1 << 20, min(limit, -(-corpus.size_bytes // workers)))
    return max(1 << 20, min(64 << 20, -(-corpus.size_bytes // workers)))


def _fits_devices(text_bytes: int, workers: int, memory_bytes: int) -> bool:
    """Whether streams and tables may stay where they are made until they are merged; else they wait on the host."""
    return KEPT_BYTES_PER_TEXT_BYTE * text_bytes / workers < KEPT_SHARE * memory_bytes


def _num_streams(config: CountConfig, corpus: Corpus, chunks: int) -> int:
    """About how many streams are counted one by one: lines are joined by chunk, and so are small files."""
    if config.unit == "word":
        return chunks
    return max(chunks, sum(source.size_bytes >= SMALL_BYTES for source in corpus.sources))


def _tokenise(
    config: CountConfig, executor: Executor, chunks: Sequence[Any], keep: bool, progress: Progress
) -> tuple[list[Handle], Handle, Handle]:
    """Pass 1 over all chunks; again with another hash should two words collide.

    Returns the chunks, their vocabularies merged, and the lexicon.
    """
    for seed in range(HASH_SEEDS):
        options = TokeniseOptions(
            config.unit, config.order, config.dtype, config.separator_id, config.lowercase, executor.device,
            read_threads=executor.threads, keep_on_device=keep, seed=seed,
        )  # fmt: skip
        progress.start("tokenise", len(chunks), "chunks")
        try:
            tokenised = map_tasks(executor, tokenise, chunks, options)
            executor.wait(tokenised, lambda _: progress.advance(1))
            local = reduce_tasks(executor, merge_vocabularies, map_tasks(executor, _vocabulary_of, tokenised))
            lexicon = executor.call(number_symbols, local, config.unit, config.sentence_markers, seed, executor.device)
            executor.wait([lexicon])
            return tokenised, local, lexicon
        except HashCollision:
            continue
    raise RunError(f"words collided under each of {HASH_SEEDS} hash functions; please report this corpus")


def _merge(executor: Executor, counted: list[Handle], lexicon: Handle, parts: int, keep: bool) -> list[Handle]:
    pieces = shuffle_tasks(executor, split_chunk, counted, parts, lexicon, parts)
    return [executor.call(_merge_part, p, executor.device, keep) for p in pieces]


def _vocabulary_of(tokenised: TokenisedChunk) -> LocalVocabulary:
    return tokenised.vocabulary


def _seconds_of(counted: CountedChunk) -> dict[str, float]:
    return counted.seconds


def _totals(lexicon: Lexicon, local: LocalVocabulary) -> dict[str, Any]:
    return {
        "tokens": lexicon.tokens,
        "lines": local.lines,
        "symbols": len(lexicon.vocabulary),
        "num_shards": lexicon.num_shards,
        "size_bytes": local.size_bytes,
        "checksums": local.checksums,
        "seconds": local.seconds,
    }


def _merge_part(
    pieces: list[dict[tuple[int, int], Table]], device: str, keep_on_device: bool
) -> tuple[dict[tuple[int, int], Table], dict[str, float]]:
    watch = Stopwatch(device)
    tables = merge_part(pieces, device, keep_on_device)
    watch.lap("reduce")
    return tables, watch.seconds


def _write_part(
    merged: tuple[dict[tuple[int, int], Table], dict[str, float]], lexicon: Lexicon, options: WriteOptions
) -> tuple[list[WrittenFile], dict[str, float]]:
    start = time.perf_counter()
    tables, seconds = merged
    files = write_tables(tables, lexicon, options)
    return files, seconds | {"write": time.perf_counter() - start}


def _write_symbols(
    lexicon: Lexicon, options: WriteOptions, with_unigrams: bool
) -> tuple[list[WrittenFile], dict[str, float]]:
    start = time.perf_counter()
    files = write_symbols(lexicon, options, with_unigrams)
    return files, {"write": time.perf_counter() - start}


def _top(files: Sequence[WrittenFile], max_order: int) -> dict[int, list[tuple[str, int]]]:
    """The n-grams that occur most, by order; ties by ids."""
    top = {}
    for n in range(1, max_order + 1):
        best = sorted((-count, codes, text) for file in files if file.order == n for count, codes, text in file.top)
        top[n] = [(text, -negative) for negative, _, text in best[:TOP]]
    return top


def _manifest(
    config: CountConfig, corpus: Corpus, totals: dict[str, Any], files: Sequence[WrittenFile]
) -> dict[str, Any]:
    """What the result depends on and what it is: no word of chunks, workers or devices."""
    parts: list[list] = [[] for _ in corpus.sources]
    for part in totals["checksums"]:
        parts[part[0]].append(part)
    inputs = [
        {"name": source.name, "size_bytes": source.size_bytes, "crc32": f"{combine_crc32(mine):08x}"}
        for source, mine in zip(corpus.sources, parts, strict=True)
    ]
    orders = {}
    for n in range(1, config.order + 1):
        mine = [f for f in files if f.order == n]
        orders[str(n)] = {key: sum(getattr(f, key) for f in mine) for key in ("distinct", "rows", "total")}
    options = asdict(config)
    for key in ("corpus", "strategy", "histograms", "chunk_bytes", "name"):
        del options[key]
    return {
        "files": {f.name: {"rows": f.rows, "size_bytes": f.size_bytes, "crc32": f"{f.crc32:08x}"} for f in files},
        "inputs": inputs,
        "lines": totals["lines"],
        "num_shards": totals["num_shards"],
        "options": options,
        "order": config.order,
        "orders": orders,
        "symbols": totals["symbols"],
        "tokens": totals["tokens"],
        "unit": config.unit,
        "versions": {"mgpu-ngram": VERSION, "pyarrow": pyarrow.__version__},
    }


def plan(config: CountConfig, workers: int, device: str, memory_bytes: int) -> dict[str, Any]:
    """What `run` would do, from the sizes of the inputs alone: chunks, shards, strategies, bytes.

    Raises InputError where the run could not fit.
    """
    if device == "cpu":
        memory_bytes //= workers
    corpus = open_corpus(config.corpus, config.unit, config.dtype, config.text_column)
    chunks = corpus.chunks(chunk_bytes(config, corpus, workers, device, memory_bytes))
    text_bytes = sum(c.size_bytes for c in chunks)
    per_token = BYTES_PER_TOKEN.get(config.unit, np.dtype(config.dtype).itemsize)
    tokens = int(text_bytes / per_token)
    most = 1 << 8 * np.dtype(config.dtype).itemsize if config.unit == "id" else tokens
    symbols = (
        256 if config.unit == "byte" else max(1, min(tokens, most, int(30 * tokens**0.55)))
    )  # Heaps' law, about English
    largest = int(max((c.size_bytes for c in chunks), default=0) / per_token)
    plans = choose(
        config.order, symbols, largest, config.strategy, config.histograms, device, memory_bytes, config.unit, False
    )
    bits = check.code_bits(symbols)
    table_bytes = sum(
        min(tokens, symbols**n) * 8 * (check.num_columns(n, bits) + 1) for n in range(2, config.order + 1)
    )
    kept = device == "gpu" and _fits_devices(text_bytes, workers, memory_bytes)
    host_bytes = 0 if kept else tokens * (1 if config.unit == "byte" else 4) + table_bytes  # all n-grams distinct
    if host_bytes > free_host_bytes():
        raise InputError(
            f"{config.name}: up to {host_bytes:,} bytes of host memory are needed for token streams and tables but "
            f"{free_host_bytes():,} are free; lower the order, or count parts of the corpus"
        )
    return {
        "job": config.name,
        "device": device,
        "workers": workers,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "tokens_about": tokens,
        "symbols_about": symbols,
        "chunks": len(chunks),
        "chunk_bytes": max((c.size_bytes for c in chunks), default=0),
        "shards": num_shards(tokens, config.unit),
        "orders": [asdict(p) for p in plans],
        "device_bytes": max(p.device_bytes for p in plans),
        "device_bytes_free": memory_bytes,
        "host_bytes": host_bytes,
    }
