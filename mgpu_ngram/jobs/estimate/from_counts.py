"""Make a model from counts instead of text: check the counts, and make the parts of the model."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_ngram.cluster.executor import Handle
from mgpu_ngram.core.counts.counts import Counts, read_counts
from mgpu_ngram.core.counts.parquet import read_vocabulary
from mgpu_ngram.core.counts.shards import PartLimits
from mgpu_ngram.core.counts.srilm_counts import SrilmCounts
from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.core.counts.vocabulary import SPECIALS, Vocabulary
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_list
from mgpu_ngram.core.inputs.verify import counts_checksum
from mgpu_ngram.core.ngrams.smoothing import KNESER_NEY
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.read_counts import read_tables
from mgpu_ngram.engine.count.read_srilm_counts import SrilmTables, read_srilm
from mgpu_ngram.engine.estimate.part import EstimateOptions, Part
from mgpu_ngram.engine.estimate.part_counts import CountedParts
from mgpu_ngram.jobs.count.passes import indexed
from mgpu_ngram.jobs.estimate.assemble import Resources
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.estimation import Estimate, Estimation, part_resources, read_word_file
from mgpu_ngram.jobs.estimate.tasks import PartResources, adjusted
from mgpu_ngram.jobs.estimate.text_parts import Shards, estimate_parts
from mgpu_ngram.jobs.estimate.word_tasks import LastWord


def open_counts(config: EstimateConfig) -> Counts | SrilmCounts:
    """Open the counts that a config names. Raises InputError when no model can be made from them.

    A folder is an output of count; a file has counts of SRILM's ngram-count. In counts of a text, a last line without
    a newline has </s>, unlike in lmplz.
    """
    if _is_file(str(config.counts)):
        return SrilmCounts(str(config.counts))
    counts = read_counts(os.path.abspath(str(config.counts)))  # workers may have another working directory
    check_estimable(counts, config)
    return counts


def check_estimable(counts: Counts, config: EstimateConfig) -> None:
    """Raise InputError when the model of a config cannot be made from counts."""
    path, order, options = counts.path, config.order, counts.manifest.get("options", {})
    if config.vocabulary is not None:
        raise InputError(f"vocabulary is for text and for counts of SRILM, not for {path}; give the text instead")
    if counts.unit != "word":
        raise InputError(f"{path} has counts of unit {counts.unit}, not word; estimate from the corpus, or count words")
    if not options.get("sentence_markers"):
        raise InputError(
            f"{path} was counted without sentence_markers, which a model needs; count again with --sentence-markers "
            "(sentence_markers: true)"
        )
    if options["min_count"] > 1:
        raise InputError(
            f"{path} was counted with min_count {options['min_count']}, but a model needs all n-grams; count again "
            "with min_count 1, and prune the model"
        )
    if order is not None and order > counts.max_order:
        raise InputError(
            f"order is {order} but {path} has orders up to {counts.max_order}; lower it, or count again with "
            f"order {order}"
        )
    if not counts.manifest["lines"]:
        raise InputError(f"{path} has the counts of an empty text; count text with one sentence per line")


def _is_file(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def describe(counts: Counts | SrilmCounts) -> list[dict[str, Any]]:
    """Return the identity of the counts, for manifests."""
    if isinstance(counts, SrilmCounts):
        return open_list(counts.path).described
    size_bytes, crc32 = counts_checksum(counts.manifest)
    return [{"name": str(counts.path), "size_bytes": size_bytes, "crc32": crc32}]


def parts_of_counts(
    config: EstimateConfig, limit: Words | None, counts: Counts | SrilmCounts, resources: Resources,
    part_limits: PartLimits,
) -> tuple[Estimation, list[Handle], Estimate]:  # fmt: skip
    """Read counts and adjust them. Return (the remaining steps, handles of the parts, what estimates them).

    limit   the words of a limited vocabulary; None: the vocabulary is not limited
    """
    if isinstance(counts, SrilmCounts):
        return _parts_of_srilm(config, limit, counts, resources, part_limits)
    order, executor, progress = config.highest, resources.executor, resources.progress
    vocabulary = executor.call(read_vocabulary, counts.path / "vocabulary.parquet", counts.unit, label="the vocabulary")
    [(symbols, specials)] = executor.gather([executor.call(_report_of, vocabulary)])
    _check_specials(counts, specials)
    estimation = Estimation(config, config.options(order), limit, resources, vocabulary, symbols)
    if order == 1:
        return estimation, [], partial(_estimate, estimation, {})
    words = executor.call(indexed, vocabulary)
    S = len(counts.part_paths(2))
    P = min(S, part_limits.num_parts(counts.manifest["tokens"], symbols))
    parts = []
    for p in range(P):
        paths = {n: counts.part_paths(n)[p * S // P : (p + 1) * S // P] for n in range(2, order + 1)}
        parts.append(
            executor.call(
                read_part, paths, words, counts.columns, estimation.options, estimation.bad, estimation.last,
                PartResources(resources.budget, resources.folder, alone=P == 1), executor.threads,
                label=f"reading and adjusting counts of part {p}", affinity=p,
            )
        )  # fmt: skip
    progress.start("adjust", P, "parts")
    executor.wait(iter(list(parts)), lambda _: progress.advance(1))
    return estimation, parts, partial(_estimate, estimation, {part: (p,) for p, part in enumerate(parts)})


def _parts_of_srilm(
    config: EstimateConfig, limit: Words | None, counts: SrilmCounts, resources: Resources, part_limits: PartLimits
) -> tuple[Estimation, list[Handle], Estimate]:
    """Read a file on one worker, and adjust its counts on all: see `parts_of_counts`."""
    executor, inside, order = resources.executor, read_word_file(config.vocabulary, "vocabulary"), config.highest
    is_whole = config.smoothing == KNESER_NEY
    read = executor.call(read_srilm, counts.path, order, inside, part_limits, is_whole, label=f"reading {counts.path}")
    vocabulary = executor.call(_vocabulary_of, read)
    [(symbols, shards)] = executor.gather([executor.call(_sizes_of, read)])
    # The file does not say which word of the text came last, on which lmplz's slip depends.
    exact = replace(config, exact_discounts=config.smoothing == KNESER_NEY)
    estimation = Estimation(exact, config.options(order), limit, resources, vocabulary, symbols)
    parts = []
    for p in range(shards):
        taken = executor.call(_take_part, read, p, colocate_with=read, priority=True)
        parts.append(
            executor.call(
                adjust_part, taken, symbols, estimation.options, estimation.bad, estimation.last,
                PartResources(resources.budget, resources.folder, alone=shards == 1),
                label=f"adjusting counts of part {p}", affinity=p,
            )
        )  # fmt: skip
    resources.progress.start("adjust", shards, "parts")
    executor.wait(iter(list(parts)), lambda _: resources.progress.advance(1))
    return estimation, parts, partial(_estimate, estimation, {part: (p,) for p, part in enumerate(parts)})


def _estimate(estimation: Estimation, parts: dict[Handle, Shards], arguments: tuple[Any, ...]) -> list[Handle]:
    """Estimate parts, and return handles of `Estimated`. Empties `parts`."""
    return estimate_parts(estimation, parts, arguments, part_resources(estimation.resources, len(parts)))


def _vocabulary_of(read: SrilmTables) -> Vocabulary:
    return read.vocabulary


def _sizes_of(read: SrilmTables) -> tuple[int, int]:
    """Return (symbols, shards); no shards of order 1."""
    return len(read.vocabulary), max((len(table.ends_S) for table in read.tables.values()), default=0)


def _take_part(read: SrilmTables, p: int) -> dict[int, ShardedTable]:
    return read.part(p)


def adjust_part(
    tables: dict[int, ShardedTable], symbols: int, options: EstimateOptions, bad_V: Any, last: LastWord | None,
    resources: PartResources,
) -> Part | CountedParts:  # fmt: skip
    """Adjust the counts of a part."""
    return adjusted(lambda n: [tables[n]], symbols, options, bad_V, last, resources)


def _report_of(vocabulary: Vocabulary) -> tuple[int, list[int]]:
    return len(vocabulary), vocabulary.counts_V[: len(SPECIALS)].tolist()


def _check_specials(counts: Counts, specials: Sequence[int]) -> None:
    """Raise InputError when the text held <unk>, <s> or </s> as words."""
    lines = counts.manifest["lines"]
    for word, count, marks in zip(SPECIALS, specials, (0, lines, lines), strict=True):
        if count > marks:
            raise InputError(
                f"{word.decode()} occurs {count - marks:,} times as a word in the text of {counts.path}, but the "
                "text of a model must not contain it; remove it and count again, or estimate from the corpus with "
                "--skip-symbols (skip_symbols: true)"
            )


def read_part(
    paths: dict[int, list[Path]], words: Words, columns: str, options: EstimateOptions, bad_V: Any,
    last: LastWord | None, resources: PartResources, threads: int,
) -> Part | CountedParts:  # fmt: skip
    """Read the shards of a part, given as paths by order, and adjust their counts.

    threads  threads that read
    """

    def read(n: int) -> list[ShardedTable]:
        return read_tables(paths[n], n, words, threads, columns)

    return adjusted(read, len(words), options, bad_V, last, resources)
