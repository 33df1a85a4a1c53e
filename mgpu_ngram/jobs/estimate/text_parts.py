"""Make the parts of a model from its text: every worker holds tokens, and selects the windows of parts from its own.

A worker makes a group of parts, one after another. One pass over the tokens selects the windows of a group for each
worker. The adjusted counts of a part wait for those of all others, on which the discounts depend.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from mgpu_ngram.cluster.executor import Handle, Share, windowed
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.engine.count.count_chunk import CountOptions
from mgpu_ngram.engine.estimate.stored_parts import load_counted, save_parts
from mgpu_ngram.jobs.count.window_groups import window_groups
from mgpu_ngram.jobs.estimate.assemble import Resources
from mgpu_ngram.jobs.estimate.estimation import Estimation, part_resources
from mgpu_ngram.jobs.estimate.tasks import (
    PartResources,
    TextOptions,
    adjust_parts,
    estimate_one,
    estimate_whole,
    make_part,
)
from mgpu_ngram.jobs.saver import Saver

Shards = tuple[int, ...]


def groups_of(parts: int, workers: int, most: int) -> list[tuple[int, int]]:
    """Return (first, past the last) part of each group: equal groups of at most `most`, as many for each worker."""
    n = max(1, min(parts, workers * -(-parts // (most * workers))))
    return list(pairwise(i * parts // n for i in range(n + 1)))


class _Call(NamedTuple):
    """A task in flight: the shards that it makes, and their windows, which must live so long."""

    shards: Shards
    windows: Share


@dataclass
class PartCheckpoint:
    """Where finished parts are saved.

    settings  a name of all settings that parts depend on
    seconds   between two saves
    verify    returns the damage of each of several files, or None
    """

    checkpoint: Checkpoint
    settings: str
    seconds: float
    verify: Callable[[list[str]], Sequence[str | None]]


@dataclass
class TextParts:
    """Calls the tasks of the parts of a text.

    texts     handles of `TextIds`: all tokens; each worker's in one handle, unless workers are threads of CPU cores
    lexicon   the handle of the `Lexicon`
    shards    number of parts
    group     most parts of a group
    counting  how the only part of a model is counted
    saved     where parts are saved
    made      {handle: the shards that it has} of the result of `adjust`
    """

    resources: Resources
    estimation: Estimation
    texts: list[Handle]
    lexicon: Handle
    shards: int
    group: int
    counting: CountOptions
    saved: PartCheckpoint
    made: dict[Handle, Shards] = field(default_factory=dict)

    def adjust(self, meanwhile: Callable[[], None]) -> list[Handle]:
        """Make all parts, and return handles of the only part, or of `CountedParts`. Frees the tokens.

        meanwhile  called once, when the first parts are in flight
        """
        executor, progress = self.resources.executor, self.resources.progress
        estimation, how = self.estimation, self._how()
        of_text = estimation.bad, estimation.last
        if self.shards == 1:
            part = executor.call(make_part, self.texts, self.lexicon, how, *of_text, label="counting n-grams")
            meanwhile()
            executor.wait([part], lambda _: progress.advance(1))
            made: dict[Shards, Handle] = {(0,): part}
        else:
            made = self._made(how, of_text, meanwhile)
        self.texts.clear()
        self.made = {made[shards]: shards for shards in sorted(made)}
        return list(self.made)

    def estimate(self, arguments: tuple[Any, ...]) -> list[Handle]:
        """Estimate the parts of `adjust`, and return handles of `Estimated`, one for each part. Frees their counts.

        arguments  rules, unigrams, the adjusted counts and the probabilities of split bigrams
        """
        estimation, resources = self.estimation, part_resources(self.resources, self.shards)
        return estimate_parts(estimation, self.made, arguments, resources)

    def _how(self) -> TextOptions:
        estimation = self.estimation
        resources = part_resources(self.resources, self.shards)
        return TextOptions(estimation.symbols, estimation.options, self.counting, resources)

    def _groups(self, wanted: set[int]) -> Iterator[dict[int, tuple[Shards, Share]]]:
        """Yield {group: (those of its shards that are wanted, its windows)}, one group for each worker."""
        executor, order = self.resources.executor, self.estimation.options.order
        spans = dict(enumerate(groups_of(self.shards, executor.workers, self.group)))
        left = {group: tuple(shard for shard in range(*span) if shard in wanted) for group, span in spans.items()}
        spans = {group: span for group, span in spans.items() if left[group]}
        for windows in window_groups(executor, self.texts, self.lexicon, order, spans):
            yield {group: (left[group], share) for group, share in windows.items()}

    def _made(
        self, how: TextOptions, of_text: tuple[Any, ...], meanwhile: Callable[[], None]
    ) -> dict[Shards, Handle]:  # fmt: skip
        """Return handles of `CountedParts` by their shards: from the checkpoint, or made, two per worker at a time, and
        saved there.
        """
        executor, saved, kind = self.resources.executor, self.saved, f"counted_{self.saved.settings}"
        progress = self.resources.progress
        made, running = dict[Shards, Handle](), dict[Handle, _Call]()
        places = itertools.count()  # so that all workers load about as many

        def loaded(path: str) -> Handle:
            return executor.call(load_counted, path, affinity=next(places))

        for entry in saved.checkpoint.entries(kind, saved.verify):
            made[tuple(entry.items)] = loaded(entry.path)
        left = set(range(self.shards)).difference(*made)
        self.estimation.resumed_parts = self.shards - len(left)
        progress.advance(self.estimation.resumed_parts)
        saver = Saver[Shards](executor, saved.seconds, save_parts, kind, self.resources.folder)

        def called() -> Iterator[Handle]:
            for groups in self._groups(left):
                for group, (shards, windows) in groups.items():
                    label = f"counting parts {shards[0]} to {shards[-1]}"
                    task = adjust_parts, windows, self.lexicon, how, shards, *of_text
                    handle = executor.call(*task, label=label, affinity=group)
                    running[handle] = _Call(shards, windows)
                    yield handle

        def finished(handle: Handle) -> list[Handle]:
            if handle not in running:
                [(paths, seconds)] = executor.gather([handle])
                self.estimation.seconds.append(seconds)
                made.update({shards: loaded(path) for shards, path in paths.items()})  # frees the parts
                return []
            shards = running.pop(handle).shards
            made[shards] = handle
            progress.advance(len(shards))
            return saver.add(handle, shards)

        windowed(executor, called(), 2 * executor.workers, finished, meanwhile)
        return made


def estimate_parts(
    estimation: Estimation, made: dict[Handle, Shards], arguments: tuple[Any, ...], resources: PartResources
) -> list[Handle]:
    """Estimate parts, and return handles of `Estimated`, one for each part.

    made       {handle of the only part or of `CountedParts`: their numbers}; emptied, so that counts are freed
    arguments  rules, unigrams, the adjusted counts and the probabilities of split bigrams
    """
    executor, progress = estimation.executor, estimation.resources.progress

    def calls(handle: Handle, shards: Shards) -> list[Handle]:
        if resources.alone:
            return [executor.call(estimate_whole, handle, *arguments[:2], resources, label="estimating")]
        how = list(arguments), estimation.split, estimation.options, resources
        return [
            executor.call(estimate_one, handle, i, *how, label=f"estimating part {shard}", colocate_with=handle)
            for i, shard in enumerate(shards)
        ]

    progress.start("estimate", sum(map(len, made.values())), "parts")
    estimated = [call for handle, shards in made.items() for call in calls(handle, shards)]
    made.clear()
    executor.wait(iter(list(estimated)), lambda _: progress.advance(1))
    return estimated
