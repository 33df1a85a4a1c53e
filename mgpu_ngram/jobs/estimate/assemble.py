"""From estimated parts, spread over workers, to one model, and to its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.cluster.executor import Executor, Handle, windowed
from mgpu_ngram.core.arpa import write_arpa
from mgpu_ngram.core.model_file import BackoffModel, identify, save_trie
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.assemble import (
    Stretch,
    assemble,
    assemble_stretch,
    cut_words,
    find_suffixes,
    join_stretches,
    sample_first_words,
    searched_keys,
    take_stretch,
)
from mgpu_ngram.engine.budget import Budget
from mgpu_ngram.engine.device import Stopwatch, add_seconds, move_to, on_device_or_host, to_host_fast
from mgpu_ngram.engine.estimate import Estimated, Unigrams
from mgpu_ngram.engine.spill import result_to_device, spill
from mgpu_ngram.engine.trie_levels import levels_of
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import to_host

STRETCH_COPIES = 3  # of an n-gram of a stretch while it is put together
MAX_STRETCHES = 32  # more do not help: the n-grams of one first word, such as <s>, are in one


@dataclass
class Estimate:
    """A finished model where it was made: a trie on a device, in host memory where that is full, and its words."""

    trie: Any
    words: Words
    seconds: dict[str, float]


def assembled(
    executor: Executor, parts: list[Handle], unigrams: Handle, vocabulary: Handle, symbols: int, order: int,
    collapse: bool, budget: Budget, folder: str, progress: Progress,
) -> tuple[Handle, list[dict[str, float]]]:  # fmt: skip
    """(the model, seconds that it does not tell itself): put together by one task, or in stretches, one of each worker
    or more where these would not fit its memory.

    `parts`, which may still be on their way, is emptied, so that each goes when it has been used.
    """
    bits, device = check.code_bits(symbols), budget.device
    seconds, words_of, samples = list[dict[str, float]](), list[tuple[int, int]](), list[Handle]()
    if len(parts) > 1 and not collapse:
        samples = [executor.call(_sample, part, bits) for part in parts]
    executor.wait(iter(list(parts)), lambda _: progress.advance(1))
    if samples:
        reports = executor.gather(samples)
        work_bytes = STRETCH_COPIES * sum(size for _, size, _ in reports)
        needed = min(-(-work_bytes // max(1, budget.task_bytes())), MAX_STRETCHES)
        rounds = max(1, -(-needed // executor.workers))
        words_of = cut_words([sample for sample, *_ in reports], symbols, rounds * executor.workers)
        samples.clear()
    window = 2 * executor.workers
    in_windows, linked = len(words_of) > window, order > 3  # else no node has a suffix that is told
    steps = len(words_of) * (1 + (in_windows and linked)) if len(words_of) > 1 else 0
    progress.start("assemble", steps + 1, "steps")
    if len(words_of) > 1:
        seconds, stretches = [of_part for *_, of_part in reports], list[Handle]()

        def call(i: int) -> Handle:
            words = words_of[i]
            taken = [
                executor.call(take_stretch, part, bits, words, colocate_with=part, priority=True) for part in parts
            ]
            stretches.append(
                executor.call(
                    make_stretch, taken, unigrams, bits, words, budget, folder,
                    label=f"the model's n-grams from word {words[0]:,} to {words[1] - 1:,}", affinity=i,
                )
            )  # fmt: skip
            return stretches[-1]

        calls = map(call, range(len(words_of)))
        if in_windows:
            windowed(executor, calls, window, lambda _: progress.advance(1))
        else:  # nobody need wait here
            for _ in calls:
                pass
        if linked:
            searched = [executor.call(searched_keys, stretch) for stretch in stretches]
            stretches = [
                executor.call(link_stretch, s, searched, bits, budget, folder, label="the model's suffixes", affinity=i)
                for i, s in enumerate(stretches)
            ]
            del searched
        model = executor.call(join, stretches, unigrams, vocabulary, device, label="the model")
        if linked or not in_windows:
            executor.wait(stretches, lambda _: progress.advance(1))
        del stretches
    else:
        model = executor.call(finish, list(parts), unigrams, vocabulary, bits, collapse, device, label="the model")
    parts.clear()
    executor.wait([model])
    progress.advance(1)
    return model, seconds


def _sample(part: Estimated, bits: int) -> tuple[np.ndarray, int, dict[str, float]]:
    return sample_first_words(part, bits), sum(array.nbytes for array in part.arrays().values()), part.seconds


def make_stretch(
    parts: list[Estimated], unigrams: Unigrams, bits: int, words: tuple[int, int], budget: Budget, folder: str
) -> Stretch:
    """A stretch, of what all parts have of it: made on the device, or in host memory where that has no room for it; it
    waits where there is room."""
    watch = Stopwatch(budget.device)

    def made(device: str) -> Stretch:
        return assemble_stretch(
            _moved(unigrams, device), [result_to_device(part, device) for part in parts], bits, words
        )

    stretch = on_device_or_host(made, budget.device)
    watch.lap("assemble")
    stretch.seconds = watch.seconds
    return spill(stretch, budget, folder)


def link_stretch(stretch: Stretch, searched: list[dict[int, Any]], bits: int, budget: Budget, folder: str) -> Stretch:
    """The stretch with its suffixes, sought among the keys of all stretches."""
    watch = Stopwatch(budget.device)

    def linked(device: str) -> Stretch:
        return find_suffixes(stretch, searched, bits, partial(move_to, device=device))

    stretch = on_device_or_host(linked, budget.device)
    watch.lap("assemble")
    stretch.seconds = add_seconds(stretch.seconds, watch.seconds)
    return spill(stretch, budget, folder)


def join(stretches: list[Stretch], unigrams: Unigrams, vocabulary: Vocabulary, device: str) -> Estimate:
    """The model of all stretches, on the device, or in host memory where that has no room for it."""
    watch = Stopwatch(device)

    def joined(device: str) -> Any:
        return join_stretches([stretch.moved(partial(move_to, device=device)) for stretch in stretches])

    trie = on_device_or_host(joined, device)
    words = _kept_words(vocabulary, unigrams)
    watch.lap("assemble")
    return Estimate(trie, words, add_seconds(watch.seconds, *(s.seconds for s in stretches)))


def finish(
    parts: list[Estimated], unigrams: Unigrams, vocabulary: Vocabulary, bits: int, collapse: bool, device: str
) -> Estimate:
    """The model of all parts, on the device, or in host memory where that has no room for it."""
    watch = Stopwatch(device)

    def made(device: str) -> Any:
        return assemble(_moved(unigrams, device), [result_to_device(part, device) for part in parts], bits, collapse)

    trie = on_device_or_host(made, device)
    words = _kept_words(vocabulary, unigrams)
    watch.lap("assemble")
    return Estimate(trie, words, add_seconds(watch.seconds, *(p.seconds for p in parts)))


def _moved(unigrams: Unigrams, device: str) -> Unigrams:
    return Unigrams(move_to(unigrams.prob_V, device), move_to(unigrams.kept_V, device))


def _kept_words(vocabulary: Vocabulary, unigrams: Unigrams) -> Words:
    words, kept_V = Words(vocabulary.offsets_V, vocabulary.data), to_host(unigrams.kept_V)
    return words if kept_V.all() else Words.of([words.symbol(v) for v in np.flatnonzero(kept_V).tolist()])


def save(
    model: Estimate, path: str | Path, format: str, header: Sequence[str] | None, threads: int
) -> tuple[int, str, dict[str, float]]:
    """Write a model; (bytes, fingerprint, seconds). It stands at `path` when it is whole."""
    watch = Stopwatch("cpu")
    trie, fingerprint = model.trie.moved(to_host_fast), ""
    if format == "arpa":
        write_arpa(path, model.words, levels_of(trie), header, threads)
        size_bytes = Path(path).stat().st_size
    else:
        size_bytes = save_trie(path, trie, model.words)
        fingerprint = identify(str(path))
    watch.lap("write")
    return size_bytes, fingerprint, add_seconds(model.seconds, watch.seconds)


def in_host_memory(model: Estimate) -> BackoffModel:
    """As the Python interface takes it."""
    return BackoffModel.of(model.trie.moved(to_host_fast), model.words)
