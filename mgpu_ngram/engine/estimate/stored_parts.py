"""Parts of a model as entries of a checkpoint: their counts, and their estimated values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.estimate.adjusted_counts import LastNgram
from mgpu_ngram.engine.estimate.part import Contexts, Estimated, Order, Part
from mgpu_ngram.engine.memory.spill import result_to_device


def save_parts(
    parts: Sequence[Part | Estimated], items: Sequence[tuple[int, ...]], kind: str, folder: str
) -> tuple[dict[tuple[int, ...], str], dict[str, float]]:
    """Write an entry for each part, without raw counts. Return (the path of each item's entry, seconds).

    parts  estimated parts, or sums of parts whose only n-grams are split bigrams (`adjust_parts` of
           jobs.estimate.tasks)
    items  the numbers of their shards
    """
    start, paths = time.perf_counter(), {}
    for part, item in zip(parts, items, strict=True):
        arrays = result_to_device(part, "cpu").arrays()
        paths[item] = save_entry(folder, kind, list(item), arrays, _metadata(part))
    return paths, {"checkpoint": time.perf_counter() - start}


def _metadata(part: Part | Estimated) -> dict[str, Any]:
    if isinstance(part, Estimated):
        return {"orders": sorted(part.probabilities), "suffixed": sorted(part.suffixes)}
    bits = [order.bits for order in part.orders.values()]
    return {
        "bits": bits[0] if bits else None,
        "counts_of_counts": part.counts_of_counts,
        "sizes": part.sizes,
        "last": part.last,
    }


def load_part(path: str) -> Part:
    """Return the counts of one or more parts, as views of their file."""
    arrays, metadata = load_arrays(path, verify=False)
    orders = {}
    if metadata["bits"] is not None:
        orders = {2: Order(2, metadata["bits"], *[None] * 4)}
    part = Part(orders, None, None).with_arrays(arrays)
    part.counts_of_counts, sizes, last = (
        {int(key): value for key, value in metadata[name].items()} for name in ("counts_of_counts", "sizes", "last")
    )
    part.sizes = {n: (kept, total) for n, (kept, total) in sizes.items()}
    part.last = {first: [LastNgram(*ngram) for ngram in ngrams] for first, ngrams in last.items()}
    return part


def load_estimated(path: str) -> Estimated:
    """Return an estimated part, as views of its file."""
    arrays, metadata = load_arrays(path, verify=False)
    orders = metadata["orders"]
    contexts = {n - 1: Contexts(None, None) for n in orders}
    named = dict.fromkeys(orders), dict.fromkeys(orders), contexts
    return Estimated(*named, suffixes=dict.fromkeys(metadata["suffixed"])).with_arrays(arrays)
