"""Open the counts of an earlier run, to which a run adds the counts of more text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mgpu_ngram.core.counts.counts import Counts, read_counts
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.verify import counts_checksum
from mgpu_ngram.engine.count.earlier_counts import EarlierCounts, EarlierShard, earlier_shards
from mgpu_ngram.jobs.count.config import CountConfig

SAME_OPTIONS = ("sentence_markers", "lowercase")  # options of both counts


def open_earlier(config: CountConfig) -> list[Counts]:
    """Open the earlier counts of a config. Raises InputError if counts of the corpus cannot be added to them."""
    opened = []
    for path in config.add:
        counts = read_counts(os.path.abspath(path))  # workers may have another working directory
        options = counts.manifest.get("options", {})
        if counts.unit != "word":
            raise InputError(f"{path} has counts of unit {counts.unit}, but add needs counts of words; leave it out")
        for name in SAME_OPTIONS:
            if options.get(name) != getattr(config, name):
                raise InputError(
                    f"{path} was counted with {name} {str(options.get(name)).lower()}, but this run has "
                    f"{str(getattr(config, name)).lower()}; count with the same setting"
                )
        if options["min_count"] > 1:
            raise InputError(
                f"{path} was counted with min_count {options['min_count']} and lacks n-grams; count again with "
                "min_count 1"
            )
        if config.order > counts.max_order:
            raise InputError(
                f"order is {config.order} but {path} has orders up to {counts.max_order}; lower it, or count again "
                f"with order {config.order}"
            )
        opened.append(counts)
    if len({counts.path for counts in opened}) < len(opened):
        raise InputError(f"add is {', '.join(config.add)}, which has a folder twice; name each folder once")
    return opened


def inputs_of(earlier: Sequence[Counts]) -> list[dict[str, Any]]:
    """Return the inputs of earlier counts, as manifests describe them."""
    return [given for counts in earlier for given in counts.manifest["inputs"]]


def states_of(earlier: Sequence[Counts]) -> list[dict[str, Any]]:
    """Return the identity of earlier counts, for checkpoints."""
    found = [(str(counts.path), *counts_checksum(counts.manifest)) for counts in earlier]
    return [{"name": name, "size_bytes": size_bytes, "crc32": crc32} for name, size_bytes, crc32 in found]


def as_earlier(earlier: Sequence[Counts]) -> list[EarlierCounts]:
    """Return earlier counts in the form that tasks take."""
    made: list[EarlierCounts] = []
    sources = 0
    for counts in earlier:
        manifest = counts.manifest
        markers, lines = manifest["options"]["sentence_markers"], manifest["lines"]
        tokens = manifest["tokens"] - 2 * lines * markers
        made.append(EarlierCounts(str(counts.path), tokens, lines, markers, sources, counts.columns))
        sources += len(manifest["inputs"])
    return made


def shards_of(earlier: Sequence[Counts], order: int, first: int) -> list[EarlierShard]:
    """Return the shards of earlier counts, numbered from `first` on."""
    sizes = [counts.manifest["num_shards"] for counts in earlier]
    return earlier_shards(list(zip(as_earlier(earlier), sizes, strict=True)), order, first)


def after_sources(chunks: Sequence[Chunk], sources: int) -> list[Chunk]:
    """Return chunks whose inputs are numbered after those of earlier counts."""
    return [
        replace(chunk, pieces=tuple(replace(p, source_index=p.source_index + sources) for p in chunk.pieces))
        for chunk in chunks
    ]
