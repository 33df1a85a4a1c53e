"""Write counts from the tokens of a text: groups of shards, each counted from its windows. A written group is final."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from mgpu_ngram.cluster.executor import Handle, Share, windowed
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.checkpoint_entries import delete_entry, save_entry
from mgpu_ngram.engine.count.sorted_runs import bundle_runs
from mgpu_ngram.engine.count.write_counts import WrittenFile, write_windows
from mgpu_ngram.jobs.count.passes import Counted, CountPasses
from mgpu_ngram.jobs.count.shuffle import share_of_part
from mgpu_ngram.jobs.count.window_groups import spans_of, tokens_of_group, window_groups

WRITTEN_ENTRY = "written"  # kind of checkpoint entry: files, whose shards are its items
READ_BYTES = 1 << 24  # of a file that is verified

Results = list[tuple[list[WrittenFile], dict[str, float]]]


class ShardGroup(NamedTuple):
    """A group of shards that one task counts.

    shards   (first, past the last)
    windows  the group's `WindowKeys` of all tokens
    added    runs of earlier counts: the group's share of those in memory, and handles of all stored runs
    """

    number: int
    shards: tuple[int, int]
    windows: Share
    added: list[Share | Handle]


def groups_of_shards(
    passes: CountPasses, counted: Counted, done: Collection[int] = ()
) -> tuple[list[tuple[int, int]], Iterator[ShardGroup]]:
    """Return ((first, past the last) shard of each group, the groups: drawing one calls the tasks of its windows).

    done  shards that are not counted again
    """
    executor, tokens_S = passes.executor, counted.totals.shard_tokens
    room = tokens_of_group(passes.budget, executor.transport, passes.config.order, counted.totals.symbols)
    spans = spans_of(tokens_S, done, room, executor.workers)
    large = {group for group, span in enumerate(spans) if sum(tokens_S[slice(*span)]) > room}
    runs, texts = passes.merge(counted), passes.texts(counted, passes.budget)
    files = [executor.call(bundle_runs, *passes.stored)] if passes.stored else []  # spilled runs of earlier counts

    def groups() -> Iterator[ShardGroup]:
        how = passes.config.order, dict(enumerate(spans)), large, passes.folder
        earlier = executor.offer(runs)
        for pieces in window_groups(executor, texts, counted.lexicon, *how):
            for group, windows in pieces.items():
                yield ShardGroup(group, spans[group], windows, [share_of_part(executor, earlier, spans[group]), *files])
        texts.clear()  # frees the tokens

    return spans, groups()


class WindowFiles:
    """Calls the tasks that write the files of a count from its tokens.

    folder          where the files are until all are written: order=N/part-SSSSS.parquet, vocabulary.parquet
    resumed_shards  shards that an earlier run had written
    """

    def __init__(self, passes: CountPasses):
        self.passes = passes
        checkpoint = passes.checkpoint
        # Beside the output, where links are possible, also if entries are elsewhere; with their random name.
        self.folder = checkpoint.folder / f"written-{checkpoint.entries_folder.name}"
        self.resumed_shards = 0

    def write(self, counted: Counted) -> Results:
        """Write all files; return them and the seconds of each group. Files of an earlier run stay."""
        passes, executor, order = self.passes, self.passes.executor, self.passes.config.order
        for n in range(1, order + 1):
            (self.folder / f"order={n}").mkdir(parents=True, exist_ok=True)
        executor.check_folder(str(self.folder))
        results, done = self._resume()
        spans, groups = groups_of_shards(passes, counted, done)
        options = passes.write_options(str(self.folder), len(spans))
        progress, running, unsaved, saved_at = passes.progress, dict[Handle, ShardGroup](), Results(), time.monotonic()

        def call(group: ShardGroup) -> Handle:
            first, past = group.shards
            handle = executor.call(
                write_windows, group.windows, group.added, group.shards, counted.lexicon, order, counted.vocabulary,
                options, label=f"writing shards {first} to {past - 1}", affinity=group.number,
            )  # fmt: skip
            running[handle] = group  # keeps its shares
            return handle

        def finished(handle: Handle) -> list[Handle]:
            nonlocal unsaved, saved_at
            if handle not in running:
                return []
            found = executor.gather([handle])[0]
            del running[handle]  # frees the result: a group is final once its files are written
            results.append(found)
            unsaved.append(found)
            progress.advance(1)
            if time.monotonic() - saved_at < passes.checkpoint_seconds:
                return []
            group, unsaved, saved_at = unsaved, Results(), time.monotonic()
            saving = save_files, group, str(self.folder), passes.folder
            return [executor.call(*saving, label="a checkpoint", priority=True)]

        progress.start("write", len(spans), "groups")
        windowed(executor, map(call, groups), 2 * executor.workers, finished, lambda: passes.report(counted))
        return results

    def link_to(self, folder: Path, results: Results) -> None:
        """Give written files names in another folder of the same disk, too: they stay in the checkpoint until it ends.

        results  the result of `write`
        """
        for file in (file for files, _ in results for file in files):
            try:
                os.link(self.folder / file.name, folder / file.name)
            except OSError:  # a file system without links
                os.rename(self.folder / file.name, folder / file.name)

    def _resume(self) -> tuple[Results, set[int]]:
        """Return the files that an earlier run has written and saved, and their shards; delete all other files."""
        passes, executor = self.passes, self.passes.executor
        entries = passes.checkpoint.entries(WRITTEN_ENTRY, passes.verify)
        checks = [executor.call(damage_of_files, str(self.folder), e.metadata["files"]) for e in entries]
        found, shards, names = Results(), set[int](), set[str]()
        for entry, damage in zip(entries, executor.gather(checks), strict=True):
            if damage:
                delete_entry(entry.path, damage)
                continue
            shards |= set(entry.items)
            files = [_as_file(saved) for saved in entry.metadata["files"]]
            names |= {file.name for file in files}
            found.append((files, {}))
        for path in self.folder.rglob("*"):
            if path.is_file() and str(path.relative_to(self.folder)) not in names:
                path.unlink()
        self.resumed_shards = len(shards)
        return found, shards


def save_files(results: Results, folder: str, entries_folder: str) -> None:
    """Wait until the files of finished groups are on disk, and save which files they are."""
    files = [file for written, _ in results for file in written]
    for file in files:
        with open(os.path.join(folder, file.name), "rb") as opened:
            os.fsync(opened.fileno())
    shards = sorted({shard_of(file.name) for file in files if file.order > 1})
    save_entry(entries_folder, WRITTEN_ENTRY, shards, {}, {"files": [asdict(file) for file in files]})


def shard_of(name: str) -> int:
    """Return the shard of a file order=N/part-SSSSS.parquet."""
    return int(Path(name).stem.removeprefix("part-"))


def damage_of_files(folder: str, files: Sequence[dict[str, Any]]) -> str:
    """Return which of the files is missing or has other bytes than were written, or "". Raises InputError if a file
    cannot be read now, because it may still be undamaged.
    """
    for file in files:
        path, crc = os.path.join(folder, file["name"]), 0
        try:
            with open(path, "rb") as opened:
                while data := opened.read(READ_BYTES):
                    crc = zlib.crc32(data, crc)
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; make it readable, then resume again") from error
        if crc != file["crc32"]:
            return f"{path} has CRC-32 {crc:08x} but was written with {file['crc32']:08x}"
    return ""


def _as_file(saved: dict[str, Any]) -> WrittenFile:
    file = WrittenFile(**saved)
    return replace(file, top=tuple((count, codes, text) for count, codes, text in file.top))
