"""Plan an estimate from the sizes of its inputs: parts, the groups that one pass makes, memory, and time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.counts.shards import USUAL_KEY, PartLimits, sort_bytes_per_token
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.engine.count.strategy import MEMORY_SHARE
from mgpu_ngram.engine.count.text_ids import TOKEN_BYTES
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs.context import PlanContext
from mgpu_ngram.jobs.count.plan import (
    TOKENS,
    chunk_bytes,
    guess,
    places_of,
    planned_budget,
    seconds_about,
)
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.text_parts import groups_of

# Memory of a part that is made, per token of the text in its shards. A GPU took 140; its pool of memory has gaps.
PART_TOKEN_BYTES = {"gpu": 200, "cpu": 190}
LONE_PART_TOKEN_BYTES = 160  # the same in host memory for the only part of a model: nothing waits beside it
WINDOW_BYTES = 16  # of a window that waits for its part
GROUP = 6  # parts that memory allows in a group: their windows take a third of the memory of the part beside them
MAX_GROUP = 16  # a group is the unit of checkpoints
KEPT_TOKEN_BYTES = 40  # bytes of all results that wait for the model: its code, and the values of about 3 n-grams
TOKENS_AND_WORDS = 1.1  # bytes that tokens and the vocabulary take, over those of tokens
MOST_TOKEN_SHARE = 0.5  # of a GPU: more tokens do not stay there
FEW_TOKEN_SHARE = 0.4  # of a GPU: so few tokens stay there all the time, and values of the model beside them
NUMBERING_SHARE, VALUE_SHARE = 0.55, 0.6  # of this GPU for what stays: while words are numbered, and after that
# Seconds of a worker for 1 G tokens in plans, as `COUNT_SECONDS`: for the only part of a model, which one worker makes;
# for several parts.
ESTIMATE_SECONDS = {"gpu": (1.7, 2.0), "cpu": (1000.0, 1000.0)}
# Most tokens of a part in host memory, or as many as words: caches miss in larger parts, and each part has a vector
# over the vocabulary.
CPU_PART_TOKENS = 4 << 20


def model_file(config: EstimateConfig) -> str:
    """Return the name of the model in the folder of a run."""
    return "model.arpa" if config.format == "arpa" else "model.safetensors"


def plan(config: EstimateConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone: the number of parts (`shards`), how often the tokens
    are read (`passes`), and where the tokens stay.

    Raises InputError if the run could not fit.
    """
    where = {"device": context.device, "workers": context.workers}
    if config.counts:
        return {"job": config.name, "counts": config.counts, "smoothing": config.smoothing, **where}
    counting = config.counting()
    corpus = open_corpus(config.corpus, config.unit, config.dtype, config.text_column)
    tokens, symbols = guess(counting, corpus)
    budget, part_budget = plan_budgets(planned_budget(context, KEPT_TOKEN_BYTES * tokens), tokens, context.workers)
    chunks = corpus.chunks(chunk_bytes(counting, corpus, context.workers, budget))
    parts = limits_of_parts(context, part_budget, symbols, config.highest).num_parts(tokens, symbols)
    token_bytes = TOKEN_BYTES * tokens
    places = places_of(config.name, TOKENS, token_bytes, context, part_budget)
    on_devices = min(token_bytes, places.device_room)
    groups = groups_of(parts, context.workers, most_in_group(context, part_budget, tokens // parts))
    passes = 1 if parts == 1 else -(-len(groups) // context.workers)
    seconds = ESTIMATE_SECONDS[context.device][parts > 1]
    if parts == 1 and context.device == "gpu":
        seconds *= context.workers
    reading = tokens, config.highest, passes if parts > 1 else 0, on_devices / max(1, token_bytes)
    return {
        "job": config.name,
        **where,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "tokens_about": tokens,
        "symbols_about": symbols,
        "chunks": len(chunks),
        "chunks_per_worker": -(-len(chunks) // context.workers),
        "chunk_bytes": max((c.size_bytes for c in chunks), default=0),
        "shards": parts,
        "passes": passes,
        "seconds_about": seconds_about(seconds, *reading, context),
        "token_bytes": token_bytes,
        "device_bytes": on_devices,
        "host_bytes": token_bytes - on_devices - places.spill_bytes,
        "spill_bytes": places.spill_bytes,
        "model": model_file(config),
        "smoothing": config.smoothing,
    }


def plan_budgets(budget: Budget, tokens: int, workers: int) -> tuple[Budget, Budget]:
    """Return the budgets until words are numbered, and after that, when GPUs keep up to `MOST_TOKEN_SHARE` of tokens.

    Few tokens stay on their GPU all the time, and values of the model beside them. To number words takes more memory
    than to make parts, so more tokens leave it meanwhile.
    """
    token_bytes = TOKEN_BYTES * tokens // workers
    if token_bytes <= FEW_TOKEN_SHARE * budget.device_bytes:
        shares = NUMBERING_SHARE, VALUE_SHARE
        numbering, making = (replace(budget, kept_bytes=int(share * budget.device_bytes)) for share in shares)
        return numbering, making
    kept_bytes = TOKENS_AND_WORDS * token_bytes if token_bytes <= MOST_TOKEN_SHARE * budget.device_bytes else 0
    return budget, replace(budget, kept_bytes=int(kept_bytes))


def _least_parts(where: Executor | PlanContext) -> int:
    """Return the least number of parts: one on GPUs, because one GPU makes a whole model faster than two GPUs make two
    parts.
    """
    return 1 if where.device == "gpu" else where.workers


def limits_of_parts(where: Executor | PlanContext, budget: Budget, symbols: float, order: int) -> PartLimits:
    """Return how large parts may be in the memory of each process.

    symbols  number of words; inf: no part is made smaller than memory requires
    order    highest order
    """
    part_tokens = _part_tokens(where, budget, symbols)
    return PartLimits(_least_parts(where), where.workers, part_tokens, _lone_part_tokens(budget), order)


def _part_tokens(where: Executor | PlanContext, budget: Budget, symbols: float) -> int:
    """Return the tokens of text per part."""
    most = _largest_part(where, budget)
    return most if budget.device == "gpu" else int(min(most, max(CPU_PART_TOKENS, symbols)))


def most_in_group(where: Executor | PlanContext, budget: Budget, part_tokens: int) -> int:
    """Return the number of parts of a group for whose windows memory suffices, if they have so many tokens."""
    fits = GROUP * _largest_part(where, budget) // max(1, part_tokens)
    return max(1, min(GROUP if budget.device == "gpu" else MAX_GROUP, fits))


def _largest_part(where: Executor | PlanContext, budget: Budget) -> int:
    """Return the tokens per part for which memory suffices while it is made beside the windows of its group."""
    copies = 1 if where.transport == "memory" else 2  # of windows: selected, and received
    return _tokens_within(budget, PART_TOKEN_BYTES[budget.device] + copies * GROUP * WINDOW_BYTES)


def _lone_part_tokens(budget: Budget) -> int:
    """Return the same for the only part of a model: on a GPU, one sort counts its whole text, because tables of pieces
    would take as much memory again while they are summed.
    """
    if budget.device == "cpu":
        return _tokens_within(budget, LONE_PART_TOKEN_BYTES)
    token_bytes = sort_bytes_per_token(*USUAL_KEY) + TOKENS_AND_WORDS * TOKEN_BYTES
    return int(MEMORY_SHARE * budget.device_bytes / token_bytes)


def _tokens_within(budget: Budget, token_bytes: int) -> int:
    memory_bytes = budget.task_bytes() if budget.device == "gpu" else budget.host_bytes // budget.tasks
    return max(1 << 16, memory_bytes // token_bytes)
