"""Make the parts of a model from its text: every worker holds tokens, and selects the windows of parts from its own.

A worker makes a group of parts, one after another. One pass over the tokens selects the windows of a group for each
worker. A part is made twice: once for its counts, on which discounts depend, and once for its values. That costs less
than to keep its n-grams, which take 20 times the memory of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from mgpu_ngram.cluster.executor import Handle, Share, windowed
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.engine.count.count_chunk import CountOptions
from mgpu_ngram.engine.estimate.part import estimated_bytes
from mgpu_ngram.engine.estimate.stored_parts import load_estimated, load_part, save_parts
from mgpu_ngram.jobs.count.plan import TOKEN_BYTES
from mgpu_ngram.jobs.count.window_groups import window_groups
from mgpu_ngram.jobs.estimate.assemble import Resources
from mgpu_ngram.jobs.estimate.passes import Estimation, part_resources
from mgpu_ngram.jobs.estimate.tasks import (
    TextOptions,
    adjust_parts,
    estimate_of,
    estimate_text_part,
    keep_part,
    make_part,
)
from mgpu_ngram.jobs.saver import Saver
from mgpu_ngram.kernels import check

Shards = tuple[int, ...]
GROUP = 6  # most parts of a group: their windows take a third of the memory of the part that is made beside them


def groups_of(parts: int, workers: int) -> list[tuple[int, int]]:
    """Return (first, past the last) part of each group: equal groups, as many for each worker."""
    n = max(1, min(parts, workers * -(-parts // (GROUP * workers))))
    return list(pairwise(i * parts // n for i in range(n + 1)))


class _Call(NamedTuple):
    """Tasks in flight: the last one's handle, the shards that they make, and their windows, which must live so long."""

    handle: Handle
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

    texts     handles of `TextIds`: all tokens; each worker's in one handle, unless workers share memory
    lexicon   the handle of the `Lexicon`
    shards    number of parts
    counting  how the only part of a model is counted
    saved     where parts are saved
    """

    resources: Resources
    estimation: Estimation
    texts: list[Handle]
    lexicon: Handle
    shards: int
    counting: CountOptions
    saved: PartCheckpoint

    def adjust(self, meanwhile: Callable[[], None]) -> list[Handle]:
        """Make all parts, and return handles of their counts: of the only part itself, else of `tasks.adjust_parts`.

        meanwhile  called once, when the first parts are in flight
        """
        executor, progress = self.resources.executor, self.resources.progress
        estimation, how = self.estimation, self._how()
        of_text = estimation.bad, estimation.last
        if self.shards == 1:
            part = executor.call(make_part, self.texts, self.lexicon, how, *of_text, label="counting n-grams")
            meanwhile()
            executor.wait([part], lambda _: progress.advance(1))
            return [part]

        def calls(wanted: set[int]) -> Iterator[_Call]:
            for groups in self._groups(wanted):
                for group, (shards, windows) in groups.items():
                    task = adjust_parts, windows, self.lexicon, how, shards, *of_text
                    label = f"counting parts {shards[0]} to {shards[-1]}"
                    yield _Call(executor.call(*task, label=label, affinity=group), shards, windows)

        return self._made("summed", load_part, calls, lambda shards: progress.advance(len(shards)), meanwhile)

    def estimate(self, parts: list[Handle], arguments: tuple[Any, ...]) -> list[Handle]:
        """Estimate the parts, and return handles of `Estimated`. Makes several parts again from the text.

        parts      the result of `adjust`; emptied
        arguments  rules, unigrams, the adjusted counts and the probabilities of split bigrams
        """
        executor, progress = self.resources.executor, self.resources.progress
        estimation, how = self.estimation, self._how()
        progress.start("estimate", self.shards, "parts")
        if self.shards == 1:
            rules, unigrams, *split_bigrams = arguments
            task = estimate_of, parts.pop(), rules, unigrams, (), *split_bigrams, estimation.options, how.resources
            made = [executor.call(*task, label="estimating")]
            executor.wait(iter(made), lambda _: progress.advance(1))
            return made
        parts.clear()
        stays = self._stays_on_device()

        def call(windows: Share, shard: int, group: int) -> Handle:
            task = estimate_text_part, windows, self.lexicon, how, shard, estimation.bad, list(arguments), stays
            made = executor.call(*task, label=f"estimating part {shard}", affinity=group)
            if stays:
                return made
            where = self.resources.budget, self.resources.folder
            return executor.call(keep_part, made, *where, label=f"keeping part {shard}", priority=True)

        def calls(wanted: set[int]) -> Iterator[_Call]:
            for groups in self._groups(wanted):
                for shards in zip_longest(*(of_group for of_group, _ in groups.values())):
                    for (group, (_, windows)), shard in zip(groups.items(), shards, strict=True):
                        if shard is not None:
                            yield _Call(call(windows, shard, group), (shard,), windows)

        handles = self._made("estimated", load_estimated, calls, lambda _: progress.advance(1))
        self.texts.clear()  # frees the tokens
        return handles

    def _stays_on_device(self) -> bool:
        """Return whether GPUs keep the values of all parts beside the tokens until the model is assembled."""
        estimation, budget, workers = self.estimation, self.resources.budget, self.resources.executor.workers
        nbytes = TOKEN_BYTES * estimation.tokens
        nbytes += estimated_bytes(estimation.kept, check.code_bits(estimation.symbols), estimation.options)
        return nbytes <= workers * budget.kept_device_share() * budget.device_bytes

    def _how(self) -> TextOptions:
        estimation = self.estimation
        resources = part_resources(self.resources, self.shards)
        return TextOptions(estimation.symbols, estimation.options, self.counting, resources)

    def _groups(self, wanted: set[int]) -> Iterator[dict[int, tuple[Shards, Share]]]:
        """Yield {group: (those of its shards that are wanted, its windows)}, one group for each worker."""
        executor, order = self.resources.executor, self.estimation.options.order
        spans = dict(enumerate(groups_of(self.shards, executor.workers)))
        left = {group: tuple(shard for shard in range(*span) if shard in wanted) for group, span in spans.items()}
        spans = {group: span for group, span in spans.items() if left[group]}
        for windows in window_groups(executor, self.texts, self.lexicon, order, spans):
            yield {group: (left[group], share) for group, share in windows.items()}

    def _made(
        self, step: str, load: Callable[[str], Any], calls: Callable[[set[int]], Iterator[_Call]],
        done: Callable[[Shards], None], meanwhile: Callable[[], None] | None = None,
    ) -> list[Handle]:  # fmt: skip
        """Return handles of all parts: from the checkpoint, or called, two per worker at a time, and saved there.

        calls  calls the tasks of some shards
        done   called with the shards of each finished handle
        """
        executor, saved, kind = self.resources.executor, self.saved, f"{step}_{self.saved.settings}"
        made, running = dict[Shards, Handle](), dict[Handle, _Call]()
        for entry in saved.checkpoint.entries(kind, saved.verify):
            shards = tuple(entry.items)
            made[shards] = executor.call(load, entry.path)
            done(shards)
        left = set(range(self.shards)).difference(*made)
        if step == "estimated":
            self.estimation.resumed_parts = self.shards - len(left)
        saver = Saver[Shards](executor, saved.seconds, save_parts, kind, self.resources.folder)

        def called() -> Iterator[Handle]:
            for call in calls(left):
                running[call.handle] = call
                yield call.handle

        def finished(handle: Handle) -> list[Handle]:
            if handle not in running:
                [(paths, seconds)] = executor.gather([handle])
                self.estimation.seconds.append(seconds)
                made.update({shards: executor.call(load, path) for shards, path in paths.items()})  # frees the parts
                return []
            shards = running.pop(handle).shards
            made[shards] = handle
            done(shards)
            return saver.add(handle, shards)

        windowed(executor, called(), 2 * executor.workers, finished, meanwhile)
        return [made[shards] for shards in sorted(made)]
