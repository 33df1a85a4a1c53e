"""Assemble the estimated parts, which are on the workers, into one model, and write its file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.cluster.executor import Executor, Handle, Offer, windowed
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.estimate.assemble import (
    Places,
    Stretch,
    add_suffixes,
    assemble,
    assemble_stretch,
    cut_words,
    join_stretches,
    places_of,
    sample_first_words,
    take_stretch,
)
from mgpu_ngram.engine.estimate.part import Estimated, EstimateOptions, Unigrams
from mgpu_ngram.engine.estimate.part_rows import PartRows, rows_of, rows_of_parts
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to, to_host_fast
from mgpu_ngram.engine.memory.device import return_unused_memory
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host, on_device_or_none
from mgpu_ngram.engine.memory.spill import leave_device, result_to_device, spill
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.engine.trie.levels import trie_with_one_unknown
from mgpu_ngram.engine.trie.row_sums import check_row_sums
from mgpu_ngram.engine.trie.write_model import write_model
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

STRETCH_COPIES = 4.5  # copies of an n-gram in memory while its stretch is assembled, its part among them
# More do not help: all n-grams of one first word, such as <s>, are in one stretch. Each stretch reads from each part.
MAX_STRETCHES = 32


@dataclass
class Estimate:
    """A finished model: its words and its trie, on the device or, if that is full, in host memory."""

    trie: Any
    words: Words
    seconds: dict[str, float]


@dataclass(frozen=True)
class Resources:
    """The resources of a job's tasks.

    folder  folder for spilled results
    """

    executor: Executor
    budget: Budget
    folder: str
    progress: Progress


@dataclass(frozen=True)
class Assembly:
    """Assembles the estimated parts of one model.

    unigrams    the handle of `Unigrams`, and
    vocabulary  the handle of the `Vocabulary`, which has `symbols` words
    options     settings of the estimate
    split       split words of the parts
    """

    resources: Resources
    unigrams: Handle
    vocabulary: Handle
    symbols: int
    options: EstimateOptions
    split: tuple[int, ...]

    def assembled(self, parts: list[Handle]) -> tuple[Handle, list[dict[str, float]]]:
        """Return (the handle of the `Estimate`, timings that the `Estimate` does not store).

        One task assembles all parts; or, if the model has several parts and is not collapsed, each worker assembles one
        stretch of the n-grams, or several if memory is short. If a stretch does not fit a device after all, the parts
        leave GPUs; then twice as many stretches are made. If no more can be made, they are made in host memory.

        parts  finished handles of `Estimated`; the list is emptied, so that each part is freed when it has been used
        """
        executor, is_gpu = self.resources.executor, self.resources.budget.device == "gpu"
        reports = list[Report]()
        if len(parts) > 1 and not self.options.collapse:
            reports = executor.gather([executor.call(_report_of, part, self._bits) for part in parts])
        samples, rows = [report.sample for report in reports], [report.rows for report in reports]
        stretches = self._stretches(reports) if reports else 1
        while True:
            words_of = cut_words(samples, self.symbols, stretches) if reports else []
            can_leave = any(report.gpu_bytes for report in reports)
            has_more = is_gpu and len(reports) > 0 and (can_leave or len(words_of) == stretches < MAX_STRETCHES)
            if len(words_of) > 1:
                model = self._in_stretches(parts, words_of, rows, may_leave=not has_more)
            else:
                model = self._at_once(parts, may_leave=not has_more)
            if model is not None:
                return model, [report.seconds for report in reports] if len(words_of) > 1 else []
            if can_leave:
                reports = self._off_gpus(parts)
                stretches = max(stretches, self._stretches(reports))
            else:
                stretches *= 2

    def _off_gpus(self, parts: list[Handle]) -> list[Report]:
        """Move parts to host memory, because the gaps between them may be what large arrays lack; return reports."""
        executor, where = self.resources.executor, (self.resources.budget, self.resources.folder)
        parts[:] = [executor.call(leave_device, part, *where, colocate_with=part) for part in parts]
        executor.wait(iter(list(parts)))
        return executor.gather([executor.call(_report_of, part, self._bits) for part in parts])

    def _at_once(self, parts: list[Handle], may_leave: bool) -> Handle | None:
        """Assemble all parts in one task, and empty the list.

        may_leave  if the device has no room, assemble them in host memory; False: return None, with the list as it was
        """
        resources, device = self.resources, self.resources.budget.device
        resources.progress.start("assemble", 1, "steps")
        how = self._bits, self.options.collapse, self.split, device, may_leave
        model = resources.executor.call(finish, list(parts), self.unigrams, self.vocabulary, *how, label="the model")
        if may_leave:
            parts.clear()
        resources.executor.wait([model], self._advance)
        if not may_leave and not self._fits(model):
            return None
        parts.clear()
        return model

    def _in_stretches(
        self, parts: list[Handle], words_of: list[tuple[int, int]], rows: list[dict[int, int]], may_leave: bool
    ) -> Handle | None:
        """Assemble stretches, empty the list of parts, add the suffixes of stretches, and join them.

        words_of   (first, past the last) first word of the n-grams of each stretch
        rows       `rows_of` each part
        may_leave  as in `_at_once`
        """
        executor, budget, folder = self.resources.executor, self.resources.budget, self.resources.folder
        steps = len(words_of) * (1 + (self.options.suffixed_order > 2)) + 1
        self.resources.progress.start("assemble", steps, "steps")
        stays = len(words_of) <= executor.workers  # else the next stretch of a worker needs the room
        of_parts = rows_of_parts(rows, self.symbols, self.split)
        made = self._made(parts, words_of, _StretchOptions(self._bits, of_parts, budget, folder, may_leave, stays))
        if made is None:
            return None
        parts.clear()
        stretches, linked = list(made), list[Handle]()
        if self.options.suffixed_order > 2:
            places = [executor.call(places_of, stretch) for stretch in made]
            stretches = [
                executor.call(link_stretch, stretch, places, budget, folder, label="the model's suffixes", affinity=i)
                for i, stretch in enumerate(made)
            ]
            linked = list(stretches)
            del places
        made.clear()  # frees each one when it has been linked
        model = executor.call(join, stretches, self.unigrams, self.vocabulary, budget.device, label="the model")
        del stretches
        executor.wait(iter(linked), self._advance)
        linked.clear()
        executor.wait([model], self._advance)
        return model

    def _made(
        self, parts: Sequence[Handle], words_of: Sequence[tuple[int, int]], how: _StretchOptions
    ) -> list[Handle] | None:
        """Return the stretches, without suffixes; None if one does not fit its device and may not leave it."""
        executor, made, failed = self.resources.executor, list[Handle](), list[Handle]()
        offer = executor.offer(parts)

        def calls() -> Iterator[Handle]:
            for i, words in enumerate(words_of):
                if failed:
                    return
                made.append(self._stretch(offer, i, words, how))
                yield made[-1]

        def done(handle: Handle) -> None:
            if not how.may_leave and not failed and not self._fits(handle):
                failed.append(handle)
            self._advance(handle)

        windowed(executor, calls(), 2 * executor.workers, done)
        return None if failed else made

    def _fits(self, made: Handle) -> bool:
        """Return whether a finished task had room on its device."""
        [is_made] = self.resources.executor.gather([self.resources.executor.call(_is_made, made)])
        return bool(is_made)

    def _stretch(self, parts: Offer, i: int, words: tuple[int, int], how: _StretchOptions) -> Handle:
        """Call the task that assembles stretch i."""
        return self.resources.executor.call(
            make_stretch, parts.share(take_stretch, self._bits, words), self.unigrams, words, how,
            label=f"the model's n-grams from word {words[0]:,} to {words[1] - 1:,}", affinity=i,
        )  # fmt: skip

    def _stretches(self, reports: Sequence[Report]) -> int:
        """Return the number of stretches: one for each of up to `MAX_STRETCHES` workers, or several where all parts'
        bytes need more.
        """
        budget, workers = self.resources.budget, self.resources.executor.workers
        here_bytes = sum(report.gpu_bytes for report in reports)  # need not be copied
        work_bytes = STRETCH_COPIES * sum(report.nbytes for report in reports) - here_bytes
        room = max(1, budget.alone_bytes() - here_bytes // workers)
        needed, makers = min(math.ceil(work_bytes / room), MAX_STRETCHES), min(workers, MAX_STRETCHES)
        return max(1, -(-needed // makers)) * makers

    @property
    def _bits(self) -> int:
        return check.code_bits(self.symbols)

    def _advance(self, _: Handle) -> None:
        self.resources.progress.advance(1)


class Report(NamedTuple):
    """Facts about a part, for the driver: `sample_first_words`, `rows_of`, its bytes, those of them that are on a GPU,
    and its seconds by step.
    """

    sample: np.ndarray
    rows: dict[int, int]
    nbytes: int
    gpu_bytes: int
    seconds: dict[str, float]


def _report_of(part: Estimated, bits: int) -> Report:
    arrays = part.arrays().values()
    nbytes, gpu_bytes = sum(a.nbytes for a in arrays), sum(a.nbytes for a in arrays if on_gpu(a))
    return Report(sample_first_words(part, bits), rows_of(part), nbytes, gpu_bytes, part.seconds)


class _StretchOptions(NamedTuple):
    """How stretches are made.

    may_leave  as in `Assembly`
    stays      a stretch may stay on its GPU
    """

    bits: int
    rows: PartRows
    budget: Budget
    folder: str
    may_leave: bool
    stays: bool


def make_stretch(
    parts: list[Estimated], unigrams: Unigrams, words: tuple[int, int], how: _StretchOptions
) -> Stretch | None:
    """Assemble a stretch of all parts, and spill it. Return None if it does not fit the device and may not leave it."""
    device = how.budget.device
    watch = Stopwatch(device)

    def made(device: str) -> Stretch:
        moved = [result_to_device(part, device) for part in parts]
        return assemble_stretch(_moved(unigrams, device), moved, how.bits, words, how.rows)

    stretch = (on_device_or_host if how.may_leave else on_device_or_none)(made, device, return_unused_memory)
    if stretch is None:
        return None
    watch.lap("assemble")
    stretch.seconds = watch.seconds
    return (spill if how.stays else leave_device)(stretch, how.budget, how.folder)


def _is_made(made: Stretch | Estimate | None) -> bool:
    return made is not None


def link_stretch(stretch: Stretch, places: list[Places], budget: Budget, folder: str) -> Stretch:
    """Return a stretch with its suffixes, from the places of the nodes of all stretches; spill it."""
    watch = Stopwatch(budget.device)

    def linked(device: str) -> Stretch:
        return add_suffixes(stretch, places, partial(move_to, device=device))

    stretch = on_device_or_host(linked, budget.device)
    watch.lap("assemble")
    stretch.seconds = add_seconds(stretch.seconds, watch.seconds)
    return spill(stretch, budget, folder)


def join(stretches: list[Stretch], unigrams: Unigrams, vocabulary: Vocabulary, device: str) -> Estimate:
    """Return the model of all stretches, on the device or, if that is full, in host memory."""
    watch = Stopwatch(device)

    def joined(device: str) -> Any:
        return join_stretches(stretches, partial(move_to, device=device))

    trie = on_device_or_host(joined, device)
    words = Words(vocabulary.offsets_V, vocabulary.data).kept(to_host(unigrams.kept_V))
    watch.lap("assemble")
    return Estimate(trie, words, add_seconds(watch.seconds, *(s.seconds for s in stretches)))


def finish(
    parts: list[Estimated], unigrams: Unigrams, vocabulary: Vocabulary, bits: int, collapse: bool,
    split: Sequence[int], device: str, may_leave: bool,
) -> Estimate | None:  # fmt: skip
    """Return the model of all parts, on the device; if that is full, in host memory, or None if it may not go there."""
    watch = Stopwatch(device)

    def made(device: str) -> Any:
        moved = [result_to_device(part, device) for part in parts]
        return assemble(_moved(unigrams, device), moved, bits, collapse, split)

    trie = (on_device_or_host if may_leave else on_device_or_none)(made, device, return_unused_memory)
    if trie is None:
        return None
    words = Words(vocabulary.offsets_V, vocabulary.data).kept(to_host(unigrams.kept_V))
    watch.lap("assemble")
    return Estimate(trie, words, add_seconds(watch.seconds, *(p.seconds for p in parts)))


def _moved(unigrams: Unigrams, device: str) -> Unigrams:
    prob_V, kept_V = move_to(unigrams.prob_V, device), move_to(unigrams.kept_V, device)
    return replace(unigrams, prob_V=prob_V, kept_V=kept_V)


def save(
    model: Estimate,
    path: str | Path,
    format: str,
    header: Sequence[str] | None,
    threads: int,
    closed: bool = False,
    is_normal: bool = True,
) -> tuple[int, str, dict[str, float]]:
    """Write a model. Return (bytes, fingerprint, seconds by step). The file appears at `path` when it is complete.

    closed     leave <unk> out of an ARPA file
    is_normal  check that probabilities sum to 1
    """
    watch = Stopwatch("cpu")
    size_bytes, fingerprint = write_model(
        path, model.trie, model.words, format, threads, header=header, closed=closed, is_normal=is_normal
    )
    watch.lap("write")
    return size_bytes, fingerprint, add_seconds(model.seconds, watch.seconds)


def in_host_memory(model: Estimate, is_normal: bool) -> BackoffModel:
    """Return the model in host memory, for the Python interface; `is_normal` as in `save`."""
    trie = model.trie.map_arrays(to_host_fast)
    if is_normal:
        check_row_sums(trie, model.words)
    return BackoffModel.of(*trie_with_one_unknown(trie, model.words))
