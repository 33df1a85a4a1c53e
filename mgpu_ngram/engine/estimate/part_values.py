"""Estimate one of several parts of a model from its adjusted counts in text order (part_counts)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.ngrams.kneser_ney_discounts import Discounts
from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.estimate.adjusted_counts import narrow
from mgpu_ngram.engine.estimate.part import Contexts, Estimated, EstimateOptions
from mgpu_ngram.engine.estimate.part_counts import OrderCounts, PartCounts, first_rows
from mgpu_ngram.engine.estimate.probabilities import log10_backoffs, probs_of_words, weighed
from mgpu_ngram.engine.memory.copies import move_to, to_device_together
from mgpu_ngram.engine.memory.device import device_of
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host, on_device_or_none
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.interpolate import interpolate
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule, smooth_contexts


def values_of_part(
    counts: PartCounts, rules: Mapping[int, Discounts | Rule], prob_V: Any, split: Sequence[int], left_L: Any,
    split_L: Any, device: str,
) -> Estimated:  # fmt: skip
    """Return probabilities and backoffs of a part, without the arrays that `with_names` takes from its counts.

    rules    order -> Kneser-Ney discounts, or the rule of a smoothing of plain counts
    prob_V   (V,) float32, probabilities of words
    left_L   (H * V,) int64, adjusted counts of split bigrams; None if no word is split, or counts are plain
    split_L  (H * V,) float32, probabilities of split bigrams; None if no word is split

    An order for which the device has no room is estimated in host memory.
    """

    def of_order(n: int, lower_L: Any, device: str) -> tuple[Any, Any, Any, Contexts]:
        order = counts.orders[n]
        if n == 2:
            lower_L = probs_of_words(move_to(lower_L, device), rules[1])
            order = _with_split_counts(order, counts.bits, split, len(prob_V), left_L, device)
        if n == 3 and counts.place_P is not None:
            lower_L = _followed_by(lower_L, split_L, counts.place_P, device)
        lower_L, log10_R, value_C = _values(order, lower_L, rules[n], device)
        if order.marked_R is None:
            return lower_L, None, log10_R, Contexts(None, value_C)
        return lower_L, *_kept(order, log10_R, value_C)

    made, lower_L = Estimated({}, {}, {}), prob_V
    if device == "gpu":
        counts = on_device_or_none(partial(_read_together, counts), device) or counts
    for n in counts.orders:
        lower_L, words_R, *rest = on_device_or_host(partial(of_order, n, lower_L), device)
        made.probabilities[n], made.contexts[n - 1] = rest
        if words_R is not None:
            made.words[n] = words_R
    return made


def _read_together(counts: PartCounts, device: str) -> PartCounts:
    """Return counts whose arrays that `_values` reads are on the device: one copy takes less time than many."""
    named, ends = counts.arrays(), (".count_R", ".suffix_R", ".first_C1", ".pruned_C", ".marked_R", "2.words_R")
    read = [name for name in named if name.endswith(ends)]
    moved = to_device_together([named[name] for name in read], device)
    return counts.with_arrays(named | dict(zip(read, moved, strict=True)))


def with_names(values: Estimated, counts: PartCounts, options: EstimateOptions) -> Estimated:
    """Return the result of `values_of_part` with all its arrays."""
    contexts = {
        n - 1: found if found.columns is not None else Contexts(order.columns, found.values, order.first_C1)
        for n, order in counts.orders.items()
        for found in [values.contexts[n - 1]]
    }
    words = {n: values.words.get(n, order.words_R) for n, order in counts.orders.items()}
    suffixes = {}
    for n in range(3, options.suffixed_order + 1):
        order = counts.orders[n]
        suffixes[n] = order.suffix_R if order.node_K is None else order.node_K
    return replace(values, contexts=contexts, words=words, suffixes=suffixes)


def lasting_arrays(counts: PartCounts, options: EstimateOptions) -> set[str]:
    """Return the names of the arrays that `with_names` takes. The others are free when the values of all parts
    of a group are known.
    """
    names = set[str]()
    for n, order in counts.orders.items():
        if order.marked_R is None:
            names |= {f"{n}.columns", f"{n}.first_C1", f"{n}.words_R"}
        if 2 < n <= options.suffixed_order:
            names.add(f"{n}.suffix_R" if order.node_K is None else f"{n}.node_K")
    return names


def split_probs(
    counts: PartCounts, rule: Discounts | Rule, prob_V: Any, split: Sequence[int], left_L: Any, device: str
) -> tuple[Any, Any]:
    """Return (places among split bigrams, probabilities (P,) float32) of a part's split bigrams; parameters as for
    `values_of_part`.
    """
    bigrams, symbols = counts.orders[2], len(prob_V)
    found = _split_rows(bigrams, counts.bits, split)
    if not found:  # vectors over the vocabulary need not be moved
        return np.empty(0, np.int64), np.empty(0, np.float32)

    def made(device: str) -> tuple[Any, Any]:
        counted = _with_split_counts(bigrams, counts.bits, split, symbols, left_L, device)
        of_split = _of_contexts(counted, [(c, rows) for _, c, rows in found])
        words = [bigrams.words_R[rows] for _, _, rows in found]
        places = [h * symbols + some_R.astype(np.int64) for (h, _, _), some_R in zip(found, words, strict=True)]
        lower_L = probs_of_words(move_to(prob_V, device), rule)
        return array_module(places[0]).concatenate(places), _values(of_split, lower_L, rule, device)[0]

    return on_device_or_host(made, device)


def _of_contexts(bigrams: OrderCounts, wanted: Sequence[tuple[int, slice]]) -> OrderCounts:
    """Return the bigrams of some contexts, given with their rows."""
    contexts = [c for c, _ in wanted]

    def taken(array_R: Any) -> Any:
        return None if array_R is None else array_module(array_R).concatenate([array_R[rows] for _, rows in wanted])

    return OrderCounts(
        columns=bigrams.columns[:, contexts],
        first_C1=np.cumsum([0, *(rows.stop - rows.start for _, rows in wanted)]),
        words_R=taken(bigrams.words_R),
        count_R=taken(bigrams.count_R),
        suffix_R=None,
        node_K=None,
        pruned_C=None if bigrams.pruned_C is None else bigrams.pruned_C[contexts],
        marked_R=taken(bigrams.marked_R),
    )


def _values(order: OrderCounts, lower_L: Any, rule: Discounts | Rule, device: str) -> tuple[Any, Any, Any]:
    """Return (probabilities for the order above, log10 probabilities, log10 backoffs of contexts)."""
    suffix_R = order.words_R if order.suffix_R is None else order.suffix_R
    arrays = order.count_R, suffix_R, order.first_C1, lower_L
    count_R, suffix_R, first_C1, lower_L = (move_to(array, device) for array in arrays)
    if isinstance(rule, Rule):
        marked_R = None if order.marked_R is None else move_to(order.marked_R, device)
        prob_R, value_C = smooth_contexts(count_R, marked_R, suffix_R, lower_L, first_C1.astype(np.int64), rule)
        return prob_R, prob_R, value_C
    pruned_C = None if order.pruned_C is None else move_to(order.pruned_C, device)
    context_R = _context_rows(first_C1)
    total_C, gamma_C = weighed(context_R, count_R, None, len(first_C1) - 1, rule, pruned_C)
    prob_R = interpolate(count_R, context_R, suffix_R, total_C, gamma_C, lower_L, rule)
    return prob_R, log10_values(prob_R), log10_backoffs(gamma_C)


def _context_rows(first_C1: Any) -> Any:
    """Return (R,) uint32, the context of each n-gram; each context has some."""
    xp = array_module(first_C1)
    context_R = xp.zeros(int(first_C1[-1]), np.uint32)
    context_R[first_C1[1:-1]] = 1
    return xp.cumsum(context_R, dtype=np.uint32, out=context_R)


def _kept(order: OrderCounts, log10_R: Any, value_C: Any) -> tuple[Any, Any, Contexts]:
    """Return (last words, log10 probabilities, contexts) of the n-grams that are not pruned."""
    device = device_of(log10_R)
    marked_R, words_R, columns, first_C1 = (
        move_to(array, device) for array in (order.marked_R, order.words_R, order.columns, order.first_C1)
    )
    kept = array_module(marked_R).flatnonzero(~marked_R)
    context_K = _context_rows(first_C1)[kept]
    first_C1 = first_rows(context_K)
    context_C = context_K[first_C1[:-1]]
    contexts = Contexts(columns.take(context_C, axis=1), value_C[context_C], first_C1.astype(node_dtype(len(kept))))
    return words_R[kept], log10_R[kept], contexts


def _followed_by(lower_L: Any, split_L: Any, place_P: Any, device: str) -> Any:
    """Return probabilities with those of some split bigrams behind them, whose whole vector stays where it is."""
    prob_P = move_to(split_L[move_to(place_P, device_of(split_L))], device)
    lower_L = move_to(lower_L, device)
    return array_module(lower_L).concatenate([lower_L, prob_P])


def _split_rows(bigrams: OrderCounts, bits: int, split: Sequence[int]) -> list[tuple[int, int, slice]]:
    """Return (the number of a split word, its context, its rows) of each split word whose bigrams are here."""
    keys_C, found = bigrams.columns[0], list[tuple[int, int, slice]]()
    xp = array_module(keys_C)
    codes_H = xp.asarray([(word + 1) << (64 - bits) for word in split], np.uint64)
    at_H = xp.searchsorted(keys_C, codes_H)
    here_H = (xp.searchsorted(keys_C, codes_H, side="right") > at_H).tolist()
    for h, c in enumerate(at_H.tolist()):
        if here_H[h]:
            found.append((h, c, slice(int(bigrams.first_C1[c]), int(bigrams.first_C1[c + 1]))))
    return found


def _with_split_counts(
    bigrams: OrderCounts, bits: int, split: Sequence[int], symbols: int, left_L: Any, device: str
) -> OrderCounts:
    """Return bigrams with the adjusted counts of the split ones, on the device if there are some. The part has all
    bigrams that a split word begins. `left_L` as in `values_of_part`.
    """
    found = [] if left_L is None else _split_rows(bigrams, bits, split)
    if not found:
        return bigrams
    count_R, pruned_C = move_to(bigrams.count_R, device).copy(), bigrams.pruned_C
    if pruned_C is not None:
        pruned_C = move_to(pruned_C, device).astype(np.int64)
    for h, c, rows in found:
        # Vectors over the vocabulary stay where they are.
        left_V = left_L[h * symbols : (h + 1) * symbols]
        left_P = left_V[move_to(bigrams.words_R[rows], device_of(left_L))]
        narrow_P = narrow(left_P)
        count_R = count_R.astype(np.promote_types(count_R.dtype, narrow_P.dtype), copy=False)
        count_R[rows] = move_to(narrow_P, device)
        if pruned_C is not None:
            pruned_C[c] = int(left_V.sum()) - int(left_P.sum())
    return replace(bigrams, count_R=count_R, pruned_C=pruned_C)
