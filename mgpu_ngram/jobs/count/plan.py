"""Plan the memory of a count run and the chunks of its corpus, before the run and for `mgpu-ngram plan`."""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.counts.shards import num_shards
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.memory_config import AUTO_DEVICE_SHARE, AUTO_HOST_SHARE, MemoryConfig, free_host_bytes
from mgpu_ngram.engine.count.strategy import TextFacts, choose, plans_of_shards
from mgpu_ngram.engine.count.text_ids import TOKEN_BYTES
from mgpu_ngram.engine.count.token_streams import SMALL_BYTES
from mgpu_ngram.engine.memory.blocks import RING_SLOTS
from mgpu_ngram.engine.memory.budget import KEPT_SHARE, Budget
from mgpu_ngram.jobs.budget import (
    TEXT_WORD_BYTES,
    is_spilling,
    make_budget,
    text_within,
)
from mgpu_ngram.jobs.context import PlanContext
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.count.window_groups import spans_of, tokens_of_group
from mgpu_ngram.kernels import check

BYTES_PER_TOKEN = {"word": TEXT_WORD_BYTES, "byte": 1.0}  # bytes of text per token; an estimate for plans
CODE_BITS = {"word": 21, "byte": 9}  # an estimate for words
BLOCK_BYTES = {"cpu": 64 << 20, "gpu": 128 << 20}  # bytes of text that are copied to the device at once
MIN_BLOCK_BYTES = 1 << 16
BYTES_PER_TEXT_BYTE = {"gpu": 24, "cpu": 40}  # bytes of memory until a chunk is counted and cut; a GPU took 17
TOKENS = "tokens"  # what a run keeps between the passes
DISTINCT_SHARE = 2 / 3  # of the rows of tables, if all n-grams were distinct, that text has
# Seconds of a worker for 1 G tokens in plans, for orders 1 to 5, as measured on an H200 and on a core of a Xeon: to
# count them; to read them in a pass, from the device and from elsewhere.
COUNT_SECONDS, PASS_SECONDS = {"gpu": 1.0, "cpu": 1100.0}, {"gpu": (0.03, 0.2), "cpu": (33.0, 33.0)}
MAX_CHUNK_BYTES = {"cpu": 64 << 20, "gpu": 4 << 30}  # most text of a chunk


def chunk_bytes(config: CountConfig, corpus: Corpus, workers: int, budget: Budget) -> int:
    """Return the bytes of text per chunk: the setting, else those of M x G chunks for G workers, M as small as fits."""
    if config.chunk_bytes is not None:
        return config.chunk_bytes
    most, total = text_bytes(budget), corpus.text_bytes
    if budget.device == "cpu":  # a GPU that runs out of memory continues with smaller parts of the chunk
        most = max(1, min(most, int(budget.host_working_bytes() / _bytes_per_text_byte(config))))
    else:
        alone = _text_bytes_alone(config, budget)
        most = alone if total <= workers * alone else most
    M = -(-total // (workers * most))
    return max(min(most, 1 << 20), -(-total // max(1, M * workers)))


def _bytes_per_text_byte(config: CountConfig) -> float:
    """Return the bytes of a chunk's tables per byte of text if all n-grams are distinct: in parts, and summed."""
    itemsize = np.dtype(config.dtype).itemsize
    bits = CODE_BITS.get(config.unit, 8 * itemsize)
    row_bytes = sum(8 * (check.num_columns(n, bits) + 1) for n in range(2, config.order + 1))
    return max(1.0, 2 * row_bytes / BYTES_PER_TOKEN.get(config.unit, itemsize))


def count_budget(memory: MemoryConfig, executor: Executor, table_bytes: int = 0) -> Budget:
    """Return the budget of each process of a run that counts; `table_bytes` is the result of `most_table_bytes`."""
    return make_budget(memory, executor, table_bytes, _ring_bytes)


def _ring_bytes(budget: Budget) -> int:
    """Return the bytes of the device buffers through which text is read; they are outside CuPy's pool."""
    return RING_SLOTS * min(BLOCK_BYTES[budget.device], text_bytes(budget))


def text_bytes(budget: Budget) -> int:
    """Return the greatest size of a chunk for which all data up to its counts fits the budget."""
    return text_within(budget, BYTES_PER_TEXT_BYTE[budget.device], MAX_CHUNK_BYTES[budget.device])


def _text_bytes_alone(config: CountConfig, budget: Budget) -> int:
    """Return the greatest size of a chunk that is the only one of its GPU, where no counts of other chunks wait.

    Its counts stay on the GPU: even if all n-grams are distinct, they take half of the budget, or less.
    """
    bytes_per_text_byte = max(BYTES_PER_TEXT_BYTE["gpu"], _bytes_per_text_byte(config))
    return min(MAX_CHUNK_BYTES["gpu"], int(budget.device_bytes / bytes_per_text_byte))


def keeps_tokens(config: CountConfig, corpus: Corpus, where: Executor | PlanContext, budget: Budget) -> bool:
    """Return whether a run keeps the tokens of its text, and counts shards from them one group after another. It does
    so between processes, and where memory could not keep the tables of all chunks until they are merged.

    Tables of chunks are better for bytes, of whose n-grams few are distinct, and for the strategies without a sort.
    """
    if config.unit == "byte" or config.order == 1 or config.strategy not in ("auto", "sort"):
        return False
    kept = budget.kept_host_bytes() if where.device == "cpu" else KEPT_SHARE["gpu"] * budget.device_bytes
    return where.transport != "memory" or DISTINCT_SHARE * most_table_bytes(config, corpus) > kept


def budget_of_tokens(config: CountConfig, corpus: Corpus, where: Executor | PlanContext, budget: Budget) -> Budget:
    """Return the budget of a run that keeps only the tokens of its text."""
    token_bytes = TOKEN_BYTES * guess(config, corpus)[0]
    return replace(budget, spills=is_spilling(token_bytes, where.device, budget.device_bytes, where.workers))


def planned_budget(context: PlanContext, result_bytes: int) -> Budget:
    """Return the budget that each process would have.

    result_bytes  as for `make_budget`
    """
    device, memory, workers = context.device, context.memory, context.workers
    host_bytes = memory.host_bytes or int(AUTO_HOST_SHARE * free_host_bytes())
    device_bytes = (memory.device_bytes or int(AUTO_DEVICE_SHARE * context.free_bytes)) if device == "gpu" else 0
    spills = is_spilling(result_bytes, device, device_bytes, workers)
    return Budget(device, device_bytes, host_bytes // workers, spills=spills)


def num_streams(config: CountConfig, corpus: Corpus, chunks: int) -> int:
    """Return the approximate number of streams that are counted separately; lines and small files are joined."""
    if config.unit == "word":
        return chunks
    return max(chunks, sum(source.size_bytes >= SMALL_BYTES for source in corpus.sources))


def plan(config: CountConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone: chunks, shards, strategies, bytes, spills; what is
    `kept` between the passes over the text, and how often its tokens are read.

    Raises InputError if the run could not fit.
    """
    workers, device = context.workers, context.device
    corpus = open_corpus(config.corpus, config.unit, config.dtype, config.text_column)
    budget = planned_budget(context, most_table_bytes(config, corpus))
    from_tokens = keeps_tokens(config, corpus, context, budget)
    if from_tokens:
        budget = budget_of_tokens(config, corpus, context, budget)
    chunks = corpus.chunks(chunk_bytes(config, corpus, workers, budget))
    tokens, symbols = guess(config, corpus)
    work_bytes = budget.device_bytes if device == "gpu" else budget.host_bytes
    shards = num_shards(tokens, config.unit)
    if from_tokens:
        room = tokens_of_group(budget, context.transport, config.order, symbols)
        spans = spans_of([tokens // shards] * shards, (), room, workers)
        plans = plans_of_shards(symbols, config.order, budget.task_bytes())
        kept_bytes = held_bytes = TOKEN_BYTES * tokens
    else:
        largest = int(max((c.size_bytes for c in chunks), default=0) / _token_bytes(config))
        text = TextFacts(config.unit, symbols, largest, symbols_are_known=False)
        plans = choose(config.order, text, config.strategy, config.histograms, device, work_bytes)
        kept_bytes = _table_bytes(tokens, symbols, config.order, len(chunks))  # if all n-grams are distinct
        held_bytes = kept_bytes + tokens * (1 if config.unit == "byte" else 4)
    kept, passes = TOKENS if from_tokens else "sorted runs", -(-len(spans) // workers) if from_tokens else 0
    places = places_of(config.name, kept, kept_bytes, context, budget)
    on_device = min(1.0, places.device_room / max(1, kept_bytes))
    return {
        "job": config.name,
        "device": device,
        "workers": workers,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "tokens_about": tokens,
        "symbols_about": symbols,
        "chunks": len(chunks),
        "chunks_per_worker": -(-len(chunks) // workers),
        "chunk_bytes": max((c.size_bytes for c in chunks), default=0),
        "shards": shards,
        "kept": kept,
        "passes": passes,
        "seconds_about": seconds_about(COUNT_SECONDS[device], tokens, config.order, passes, on_device, context),
        "orders": [asdict(p) for p in plans],
        "device_bytes": max(p.device_bytes for p in plans),
        "device_bytes_free": work_bytes,
        "host_bytes": min(places.host_room, max(0, held_bytes - places.device_room)),
        "host_bytes_free": workers * budget.host_bytes,
        "spill_bytes": places.spill_bytes,
    }


class Places(NamedTuple):
    """Bytes that all devices and hosts have for intermediate results, and the bytes that go to files."""

    device_room: int
    host_room: int
    spill_bytes: int


def places_of(job: str, what: str, nbytes: int, context: PlanContext, budget: Budget) -> Places:
    """Return where `nbytes` bytes of intermediate results would stay; `what` names them in errors.

    Raises InputError if the disk is too small, with the host_bytes that would suffice.
    """
    workers, memory = context.workers, context.memory
    device_room = int(budget.kept_device_share() * workers * budget.device_bytes) if context.device == "gpu" else 0
    host_room = replace(budget, host_bytes=workers * budget.host_bytes).kept_host_bytes()
    spill_bytes = max(0, nbytes - device_room - host_room)
    folder = Path(memory.spill_dir or context.output).absolute()
    disk_bytes = shutil.disk_usage(next(p for p in [folder, *folder.parents] if p.exists())).free
    if spill_bytes > disk_bytes:
        less = "" if what == TOKENS else "lower the order, "
        enough = math.ceil((nbytes - disk_bytes - device_room) / host_room * workers * budget.host_bytes)
        raise InputError(
            f"{job}: up to {spill_bytes:,} bytes of {what} may be spilled to {folder}, which has {disk_bytes:,} free; "
            f"give another memory.spill_dir, raise memory.host_bytes to {enough:,}, {less}or take parts of the corpus"
        )
    return Places(device_room, host_room, spill_bytes)


def seconds_about(
    seconds: float, tokens: int, order: int, passes: int, on_device: float, context: PlanContext
) -> float:
    """Return about how long a run takes without writing, in seconds.

    seconds    of a worker for 1 G tokens of orders 1 to 5, without passes over the tokens
    passes     over the tokens
    on_device  share of the tokens that are on devices
    """
    here, elsewhere = PASS_SECONDS[context.device]
    of_passes = passes * (on_device * here + (1 - on_device) * elsewhere)
    return tokens / 1e9 / context.workers * (seconds * max(1, order - 1) / 4 + of_passes)


def _token_bytes(config: CountConfig) -> float:
    return BYTES_PER_TOKEN.get(config.unit, np.dtype(config.dtype).itemsize)


def guess(config: CountConfig, corpus: Corpus) -> tuple[int, int]:
    """Return estimated (tokens, symbols) of a corpus that is not read yet."""
    tokens = int(corpus.text_bytes / _token_bytes(config))
    if config.unit == "byte":
        return tokens, 256
    most = 1 << 8 * np.dtype(config.dtype).itemsize if config.unit == "id" else tokens
    return tokens, max(1, min(tokens, most, int(30 * tokens**0.55)))  # Heaps' law, approximately for English


def most_table_bytes(config: CountConfig, corpus: Corpus) -> int:
    """Return the bytes of the tables of a corpus if all its n-grams are distinct."""
    return _table_bytes(*guess(config, corpus), config.order, 1)


def _table_bytes(tokens: int, symbols: int, order: int, chunks: int) -> int:
    """Return the bytes of the tables of all chunks if all n-grams of each chunk are distinct."""
    bits = check.code_bits(symbols)
    return sum(min(tokens, chunks * symbols**n) * 8 * (check.num_columns(n, bits) + 1) for n in range(2, order + 1))
