"""Make the parts of a model from its text: every worker holds tokens, and selects the windows of parts from its own.

A worker makes a group of parts, one after another. One pass over the tokens selects the windows of a group for each
worker. A part is made twice: once for its counts, on which discounts depend, and once for its values. That costs less
than to keep its n-grams, which take 20 times the memory of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap, zip_longest
from typing import Any

from mgpu_ngram.cluster.executor import Handle, windowed
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.engine.count.count_chunk import CountOptions
from mgpu_ngram.engine.estimate.stored_parts import load_estimated, load_part, save_parts
from mgpu_ngram.jobs.count.window_groups import window_groups
from mgpu_ngram.jobs.estimate.assemble import Resources
from mgpu_ngram.jobs.estimate.passes import Estimation, part_resources
from mgpu_ngram.jobs.estimate.tasks import TextPart, estimate_of, estimate_text_part, keep_part, make_part
from mgpu_ngram.jobs.saver import Saver

GROUP = 6  # most parts of a group: their windows take a third of the memory of the part that is made beside them


def groups_of(parts: int, workers: int) -> list[tuple[int, int]]:
    """Return (first, past the last) part of each group: equal groups, as many for each worker."""
    n = min(parts, workers * -(-parts // (GROUP * workers)))
    return list(pairwise(i * parts // n for i in range(n + 1)))


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
        """Make all parts, and return handles of their counts: of the only part itself, else of `tasks.summary`.

        meanwhile  called once, when the first parts are in flight
        """
        estimation, progress = self.estimation, self.resources.progress

        def call(shard: int, pieces: list[Handle], affinity: int) -> Handle:
            return self.resources.executor.call(
                make_part, pieces, self.lexicon, self._how(shard), estimation.bad, estimation.last,
                label=f"counting part {shard}", affinity=affinity,
            )  # fmt: skip

        return self._made("adjusted", load_part, call, lambda _: progress.advance(1), meanwhile)

    def estimate(self, parts: list[Handle], arguments: tuple[Any, ...], done: Callable[[Handle], None]) -> list[Handle]:
        """Estimate the parts, and return handles of `Estimated`. Makes several parts again from the text.

        parts      the result of `adjust`; emptied
        arguments  rules, unigrams, the adjusted counts and the probabilities of split bigrams
        """
        executor, estimation = self.resources.executor, self.estimation
        rules, unigrams, split_left, split_probs = arguments
        if self.shards > 1:
            parts.clear()

        def call(shard: int, pieces: list[Handle], affinity: int) -> Handle:
            label = f"estimating part {shard}"
            if self.shards == 1:
                how = (), split_left, split_probs, estimation.options, self._how(shard).resources
                return executor.call(estimate_of, parts.pop(), rules, unigrams, *how, label=label)
            own = pieces, self.lexicon, self._how(shard), estimation.bad
            made = executor.call(estimate_text_part, *own, *arguments, label=label, affinity=affinity)
            where = self.resources.budget, self.resources.folder
            return executor.call(keep_part, made, *where, label=f"keeping part {shard}", priority=True)

        handles = self._made("estimated", load_estimated, call, done)
        self.texts.clear()  # frees the tokens
        return handles

    def _how(self, shard: int) -> TextPart:
        estimation = self.estimation
        resources = part_resources(self.resources, self.shards)
        return TextPart(shard, estimation.symbols, estimation.options, self.counting, resources)

    def _groups(self, wanted: set[int]) -> Iterator[tuple[int, int, list[Handle]]]:
        """Yield (part, group, handles of what it is made of) for some parts, by turns those of a group for each worker.

        The only part of a model is made of the tokens. Several parts are made of windows.
        """
        if self.shards <= 1:
            yield from ((shard, shard, list(self.texts)) for shard in wanted)
            return
        executor, order = self.resources.executor, self.estimation.options.order
        spans = dict(enumerate(groups_of(self.shards, executor.workers)))
        left = {group: [shard for shard in range(*span) if shard in wanted] for group, span in spans.items()}
        spans = {group: span for group, span in spans.items() if left[group]}
        for pieces in window_groups(executor, self.texts, self.lexicon, order, spans):
            for shards in zip_longest(*(left[group] for group in pieces)):
                for group, shard in zip(pieces, shards, strict=True):
                    if shard is not None:
                        yield shard, group, pieces[group]

    def _made(
        self, step: str, load: Callable[[str], Any], call: Callable[[int, list[Handle], int], Handle],
        done: Callable[[Handle], None], meanwhile: Callable[[], None] | None = None,
    ) -> list[Handle]:  # fmt: skip
        """Return handles of all parts: from the checkpoint, or called, two per worker at a time, and saved there."""
        executor, saved, kind = self.resources.executor, self.saved, f"{step}_{self.saved.settings}"
        made = dict[int, Handle]()
        for entry in saved.checkpoint.entries(kind, saved.verify) if self.shards > 1 else ():
            made[entry.items[0]] = executor.call(load, entry.path)
            done(made[entry.items[0]])
        if step == "estimated":
            self.estimation.resumed_parts = len(made)
        running = dict[Handle, int]()
        saver = Saver(executor, saved.seconds, save_parts, kind, self.resources.folder)

        def called(shard: int, group: int, pieces: list[Handle]) -> Handle:
            handle = call(shard, pieces, group)
            running[handle] = shard
            return handle

        def finished(handle: Handle) -> list[Handle]:
            if handle not in running:
                [(paths, seconds)] = executor.gather([handle])
                self.estimation.seconds.append(seconds)
                made.update({shard: executor.call(load, path) for shard, path in paths.items()})  # frees the parts
                return []
            shard = running.pop(handle)
            made[shard] = handle
            done(handle)
            return saver.add(handle, shard) if self.shards > 1 else []

        left = {shard for shard in range(self.shards) if shard not in made}
        windowed(executor, starmap(called, self._groups(left)), 2 * executor.workers, finished, meanwhile)
        return [made[shard] for shard in range(self.shards)]
