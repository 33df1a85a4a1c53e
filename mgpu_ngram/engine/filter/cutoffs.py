"""Find the cut-offs of buckets: exact percentiles of the figures of all documents, sorted on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgpu_ngram.core.documents.buckets import percentile_cutoffs
from mgpu_ngram.engine.filter.shard import load_scores
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.out_of_memory import memory_guard

LESS_TO_SORT = "take the percentiles of a sample (--sample 1000000)"


def find_cutoffs(
    paths: Sequence[str], percentiles: Sequence[float], by: str, has_languages: bool, device: str
) -> dict[str | None, tuple[float, ...]]:
    """Return the percentiles of the documents of several shards, by language; the key None stands for all documents.

    paths          paths of the entries that `score_shard` saved
    by             "perplexity" or "difference"
    has_languages  whether each language has percentiles of its own; then documents without a language are left out
    """
    parts: dict[str | None, list[np.ndarray]] = {}
    with memory_guard("finding percentiles", device, LESS_TO_SORT):
        for path in paths:
            scores, languages = load_scores(path)
            totals = scores.totals()
            figure_D = totals.perplexity_D if by == "perplexity" else totals.cross_entropy_difference_D
            if not has_languages:
                parts.setdefault(None, []).append(figure_D)
                continue
            language_D = np.array(languages, object)
            for name in {name for name in languages if name is not None}:
                parts.setdefault(name, []).append(figure_D[language_D == name])
        found = {
            name: percentile_cutoffs(move_to(np.concatenate(some), device), percentiles)
            for name, some in sorted(parts.items(), key=lambda part: part[0] or "")
        }
    return {name: values for name, values in found.items() if values}
