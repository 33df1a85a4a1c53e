"""Parts of a model as entries of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.estimate.adjusted_counts import LastNgram
from mgpu_ngram.engine.estimate.part import Part
from mgpu_ngram.engine.estimate.part_counts import CountedParts, OrderCounts, PartCounts
from mgpu_ngram.engine.memory.copies import to_host_fast


def save_parts(
    made: Sequence[CountedParts], items: Sequence[tuple[int, ...]], kind: str, folder: str
) -> tuple[dict[tuple[int, ...], str], dict[str, float]]:
    """Write an entry for each of several results. Return (the path of each item's entry, seconds).

    items  the numbers of their shards
    """
    start, paths = time.perf_counter(), {}
    for counted, item in zip(made, items, strict=True):
        arrays = {name: to_host_fast(array) for name, array in counted.arrays().items()}
        paths[item] = save_entry(folder, kind, list(item), arrays, _metadata(counted))
        del arrays  # copies
    return paths, {"checkpoint": time.perf_counter() - start}


def _metadata(counted: CountedParts) -> dict[str, Any]:
    totals = counted.totals
    return {
        "bits": [part.bits for part in counted.parts],
        "orders": sorted(totals.sizes),
        "counts_of_counts": totals.counts_of_counts,
        "sizes": totals.sizes,
        "last": totals.last,
    }


def load_counted(path: str) -> CountedParts:
    """Return the parts of an entry, as views of its file."""
    arrays, metadata = load_arrays(path, verify=False)
    parts = [PartCounts(bits, {n: OrderCounts(*[None] * 8) for n in metadata["orders"]}) for bits in metadata["bits"]]
    counted = CountedParts(Part({}, None), parts).with_arrays(arrays)
    totals = counted.totals
    totals.counts_of_counts, sizes, last = (
        {int(key): value for key, value in metadata[name].items()} for name in ("counts_of_counts", "sizes", "last")
    )
    totals.sizes = {n: (kept, total) for n, (kept, total) in sizes.items()}
    totals.last = {first: [LastNgram(*ngram) for ngram in ngrams] for first, ngrams in last.items()}
    return counted
