"""Codes on the device to a trie on the device: the steps of an estimate on one device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.count.codes import count_codes
from mgpu_ngram.benchmarks.count.traffic import sort_bytes
from mgpu_ngram.benchmarks.estimate.checks import check_entries, check_sizes, check_sums, entries_of, sentences_of
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.frequency_models import VOCABULARY, seen_words, zipf_codes, zipf_words
from mgpu_ngram.benchmarks.inputs.oracles import kneser_ney
from mgpu_ngram.benchmarks.inputs.scoring_subjects import head
from mgpu_ngram.core.ngrams.kneser_ney_discounts import FALLBACK, discounts_of
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.count_chunk import Codes
from mgpu_ngram.engine.count.sentence_markers import mark_sentences
from mgpu_ngram.engine.count.strategy import OrderPlan
from mgpu_ngram.engine.estimate.adjusted_counts import (
    MAX_COUNTED,
    adjust_counts,
    adjust_unigrams,
    linked_part,
    narrowed,
    with_suffixes,
)
from mgpu_ngram.engine.estimate.assemble import assemble
from mgpu_ngram.engine.estimate.part import EstimateOptions
from mgpu_ngram.engine.estimate.probabilities import estimate_part, estimate_unigrams
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.count_counts import count_counts

ORDER = 5
ROUNDS = 3
STEPS = ("count", "adjust", "estimate", "assemble")
ORACLE_TOKENS = 20_000  # tokens of a text whose model plain Python makes, too
TARGET = 1.3e9  # tokens/s on one H200
MAX_BYTES = 70  # bytes of the device for each token, without the finished model


@dataclass
class Made:
    """A model of codes, and the resources that it took.

    seconds      seconds of each step
    bytes_moved  bytes that each step must read and write once; for `count`, in each pass of the sort
    peak_bytes   most bytes of the device in use, without the finished trie; 0 on a CPU
    """

    trie: Trie
    seconds: dict[str, float]
    bytes_moved: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0


def make_model(marked_T: Any, symbols: int, budget: Budget) -> Made:
    """Return the model of a stream of codes, made as the tasks of an estimate make a model of one part.

    marked_T  (T,) uint32 of `engine.count.count_chunk.mark_sentences`, which contains each of the `symbols` words
              except <unk>
    """
    watch, bits, moved = Stopwatch(budget.device), check.code_bits(symbols), dict[str, int]()
    xp, options = array_module(marked_T), EstimateOptions(ORDER, (0,) * ORDER)
    plans = [OrderPlan(n, "sort", "asked for", 0) for n in range(2, ORDER + 1)]
    tables = {table.order: table for table in count_codes(Codes(marked_T, len(marked_T)), symbols, plans, budget)}
    counts_V = xp.bincount(marked_T, minlength=symbols + 1)[1:]
    table_bytes = sum(t.keys.nbytes + t.counts.nbytes for t in tables.values())
    moved["count"] = sort_bytes(len(marked_T), 4, ORDER, bits) + table_bytes
    watch.lap("count")

    tables = {n: narrowed(tables.pop(n)) for n in sorted(tables)}  # frees one table after another
    part = adjust_counts(with_suffixes(linked_part(tables, symbols, options)), symbols)
    moved["adjust"] = _nbytes(part.arrays())
    watch.lap("adjust")

    count_V, kept_V = adjust_unigrams(part.left_V, counts_V, options, None)
    counts = part.counts_of_counts | {1: count_counts(count_V, MAX_COUNTED)}
    discounts = {n: discounts_of(n, of_order, FALLBACK)[0] for n, of_order in counts.items()}
    unigrams = estimate_unigrams(count_V, kept_V, discounts[1], options)
    read_bytes = sum(order.count_R.nbytes + order.suffix_R.nbytes for order in part.orders.values())
    part.drop_raw_counts()
    estimated = estimate_part(part, discounts, unigrams)
    del part
    # Keys are read, too, and become those of the result as they are.
    moved["estimate"] = read_bytes + _nbytes(estimated.arrays())
    watch.lap("estimate")
    taken_bytes = _taken_bytes(xp)

    moved["assemble"] = _nbytes(estimated.arrays())
    trie = assemble(unigrams, [estimated], bits)
    moved["assemble"] += _nbytes(trie.arrays())
    watch.lap("assemble")
    peak_bytes = max(taken_bytes, _taken_bytes(xp) - _nbytes(trie.arrays()))
    return Made(trie, watch.seconds, moved, peak_bytes)


def _taken_bytes(xp: Any) -> int:
    """What CuPy's pool has taken of the device since it was empty: it gives nothing back by itself."""
    return 0 if xp is np else xp.get_default_memory_pool().total_bytes()


def _nbytes(arrays: dict[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values())


def zipf_stream(tokens: int, xp: Any) -> tuple[Any, Words]:
    """Codes of a generated text, a 0 after each sentence, and its words."""
    codes_T = zipf_codes(tokens, VOCABULARY, xp=xp)
    code_V, words = seen_words(codes_T, zipf_words(VOCABULARY))
    return code_V[codes_T], words


def ids(suite: Suite, tokens: int) -> None:
    """Rows: the whole, its steps, and the memory that it takes."""
    suite.say(f"ids to a model, {tokens:,} words")
    codes_T, words = zipf_stream(tokens, suite.xp)
    _check_beginning(suite, head(codes_T, min(ORACLE_TOKENS, tokens)), words)
    marked_T, T = mark_sentences(codes_T), int((codes_T > 0).sum())
    del codes_T
    suite.release()
    made = make_model(marked_T, len(words), suite.budget())
    check_sizes(made.trie.starts, marked_T, ORDER)
    check_sums(made.trie)
    model_bytes, ngrams = _nbytes(made.trie.arrays()), len(made.trie)
    rounds = []
    for _ in range(ROUNDS):
        del made
        suite.release()
        made = make_model(marked_T, len(words), suite.budget())
        rounds.append(made.seconds)
    sizes = f"tokens={T} V={len(words)} n=1..{ORDER}"
    row: dict[str, Any] = {"items": T, "unit": TOKENS_PER_SECOND, "ceiling": "copy"}
    suite.add(
        "estimate/ids to model", sizes, [sum(seconds.values()) for seconds in rounds],
        bytes_moved=sum(made.bytes_moved.values()), target=TARGET if suite.device == "gpu" else None,
        notes=f"{ngrams:,} n-grams; {model_bytes / T:.0f} bytes of model for each token", **row,
    )  # fmt: skip
    for step in STEPS:
        seconds = [one[step] for one in rounds]
        notes = _beside_sort(suite, len(marked_T), len(words), min(seconds)) if step == "count" else ""
        suite.add(f"estimate/ids, {step}", sizes, seconds, bytes_moved=made.bytes_moved[step], notes=notes, **row)
    if suite.device == "gpu":
        memory = suite.add_note("estimate/ids memory", sizes, "target: at most; the codes are in it, the model is not")
        memory.rate, memory.rate_unit, memory.target = made.peak_bytes / T, "B/token", MAX_BYTES


def _beside_sort(suite: Suite, T: int, symbols: int, seconds: float) -> str:
    """What share of the time another sort of as many columns of keys would take."""
    name = f"ceiling/{suite.xp.__name__}.sort"
    rate = next((row.rate for row in suite.rows if row.kernel == name), None)
    if not rate:
        return ""
    columns = check.num_columns(ORDER, check.code_bits(symbols))
    return f"{name.split('/')[1]} of {columns} columns of keys would take {columns * T / rate / seconds:.0%} of it"


def _check_beginning(suite: Suite, codes_T: Any, words: Words) -> None:
    """A short stream beside plain Python, n-gram by n-gram."""
    code_V, words = seen_words(codes_T, words)
    codes_T = code_V[codes_T]
    made = make_model(mark_sentences(codes_T), len(words), suite.budget())
    expected = kneser_ney(sentences_of(to_host(codes_T), words), ORDER, FALLBACK)
    check_entries(entries_of(made.trie, words), expected, "ids")
