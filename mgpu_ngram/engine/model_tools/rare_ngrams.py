"""Find the n-grams of a model that are rare in counts of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mgpu_ngram.core.counts.counts import Counts
from mgpu_ngram.core.counts.vocabulary import words_from_arrow
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.trie.find_children import find_children


def check_rare_counts(counts: Counts, least: Sequence[int]) -> None:
    """Raise InputError unless counts are complete enough to find n-grams that occur less often than `least`."""
    path, options = counts.path, counts.manifest.get("options", {})
    if counts.unit != "word" or not options.get("sentence_markers"):
        raise InputError(f"{path} must have counts of words with sentence markers; count again with --sentence-markers")
    highest = max((n for n, k in enumerate(least, 2) if k > 1), default=1)
    if highest > counts.max_order:
        raise InputError(
            f"{path} has orders up to {counts.max_order} but min_count has a threshold for order {highest}; count "
            f"again with --order {highest}"
        )
    missing = int(options.get("min_count", 1))
    low = [k for k in least if 1 < k < missing]
    if low:
        raise InputError(f"{path} lacks counts below {missing}, so min_count cannot be {low[0]}; raise it")


def rare_ngrams(trie: Trie, words: Words, counts: Counts, least: Sequence[int]) -> Any:
    """Return (G,) bool, whether an n-gram of the model occurs less often than the threshold of its order.

    least  thresholds by order, from 2 on; 0 and 1 keep all n-grams of an order
    """
    xp, device = array_module(trie.word_G), device_of(trie.word_G)
    rare_G = xp.zeros(len(trie), bool)
    for n, k in zip(range(2, trie.order + 1), least, strict=True):
        if k <= 1:
            continue
        rare_G[trie.starts[n - 1] : trie.starts[n]] = True
        for batch in counts.order(n).batches():
            frequent = batch.filter(pc.greater_equal(batch["count"], k))["ngram"].cast(pa.large_binary())
            ids = to_device(words.ids_of_ngrams(*words_from_arrow(frequent), n), device)
            nodes = ids[:, 0].astype(np.int64)
            for i in range(1, n):
                nodes = find_children(*index_of(trie), nodes, xp.ascontiguousarray(ids[:, i]))
            rare_G[nodes[nodes >= 0]] = False
    return rare_G
