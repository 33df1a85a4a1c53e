"""The folder in which an interrupted run leaves its finished work, so that a later run can resume it.

OUT.checkpoint/
  identity.json     the inputs and settings of the run, the values that it chose, and the path of its entries
  owner.json        the process that runs it; a run that ends by itself deletes this file
  entries-RANDOM/   the entries, KIND-RANDOM.safetensors, written by any process that sees the folder;
                    it may lie elsewhere, such as on a faster disk
  written-.../      finished files of the output of `count` (jobs/count/window_files.py), named after the entries

The folder of entries has a random name. So workers of an abandoned run find their folder gone, and cannot write
among the entries of the run that replaced it. Results do not depend on owner.json: two runs that resume one
checkpoint in the same instant both pass its check. At worst they redo each other's work or stop with an error.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.checkpoint_entries import (
    ENTRY_SUFFIX,
    SPILLED,
    Entry,
    damage_found,
    damage_of,
    delete_entry,
    disjoint,
    read_entry,
)
from mgpu_ngram.core.storage.manifest_changes import plain_values, what_changed
from mgpu_ngram.core.storage.output import TEMPORARY, clear_leftovers, new_file, run_mark
from mgpu_ngram.core.storage.scratch import is_running

FORMAT = "mgpu_ngram checkpoint"
FORMAT_VERSION = 1
IDENTITY_FILE = "identity.json"
OWNER = "owner.json"

_tokens: set[str] = set()  # those in the owner.json files that this process wrote


class Checkpoint:
    """The checkpoint of the run that this process drives.

    folder          OUT.checkpoint
    entries_folder  where `save_entry` writes
    identity        inputs and settings of the run; a run resumes only with equal ones
    chosen          values that the run chose when it first started

    As a context manager it calls `keep` when the block ends.
    """

    def __init__(self, folder: Path, state: dict[str, Any], owner: dict[str, Any]):
        self.folder = folder
        self.entries_folder = folder / state["entries"]  # which may be absolute
        self.identity: dict[str, Any] = state["identity"]
        self.chosen: dict[str, Any] = state["chosen"]
        self._owner = owner

    @classmethod
    def open(
        cls,
        output: str | Path,
        identity: Mapping[str, Any],
        resume: bool,
        restart: bool,
        entries_folder: str | None = None,
        chosen: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Start a checkpoint beside `output`, or resume the existing one.

        identity        JSON values by name; a run is resumed only when they are equal
        resume          resume the existing checkpoint; wins over restart
        restart         delete the existing checkpoint
        entries_folder  the parent of the folder of entries, instead of the checkpoint; a resumed run keeps its
                        first one
        chosen          JSON values that a resumed run takes over from the first one; not compared

        Raises InputError when there is nothing to resume; when an unfinished run exists and neither resume nor
        restart is given; when the identity changed; and when another run uses the checkpoint. A run of this host
        uses it while its process runs. A run of another host uses it until it has ended by itself, or until
        resume or restart is given.
        """
        folder = Path(f"{os.path.realpath(output)}.checkpoint")
        try:
            if not os.path.lexists(folder):
                if resume:
                    raise InputError(f"nothing to resume: {folder} does not exist; leave out --resume")
                return cls._make(folder, identity, chosen, entries_folder)
            state = _read_state(folder)
            _check_owner(folder, resume or restart)
            entries = folder / state["entries"]
            if resume:
                if what := what_changed(state["identity"], identity):
                    raise InputError(
                        f"{folder} cannot be resumed: {what}; undo the change, or start again with --overwrite"
                    )
                if not entries.is_dir():
                    raise InputError(f"{entries}, the entries of {folder}, is missing; start again with --overwrite")
                checkpoint = cls(folder, state, _take(folder))
                for leftover in [*folder.glob(f".*{TEMPORARY}"), *entries.glob(f".*{TEMPORARY}")]:
                    leftover.unlink(missing_ok=True)
                return checkpoint
            if (found := _count(entries)) and not restart:
                started = datetime.fromtimestamp((folder / IDENTITY_FILE).stat().st_mtime).strftime("%Y-%m-%d %H:%M")
                raise InputError(
                    f"{folder} holds an unfinished run of {started} with {found} entries; add --resume (in Python "
                    "resume=True) to go on with it or --overwrite (overwrite=True) to start again"
                )
            _remove(folder, entries)
            return cls._make(folder, identity, chosen, entries_folder)
        except OSError as error:
            at, spill = Path(error.filename or folder), Path(os.path.abspath(entries_folder or folder))
            is_there = bool(entries_folder) and (at.is_relative_to(spill) or at in spill.parents)
            raise InputError(
                f"cannot make checkpoint {folder}: {at}: {error.strerror or error}; give another "
                f"{'spill_dir' if is_there else 'output path'}"
            ) from error

    @classmethod
    def _make(
        cls, folder: Path, identity: Mapping[str, Any], chosen: Mapping[str, Any] | None, entries_folder: str | None
    ) -> Checkpoint:
        """Make the folder with its files, under another name until all are written."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        entries = f"entries-{secrets.token_hex(8)}"
        if entries_folder is not None:
            entries = os.path.join(os.path.realpath(entries_folder), entries)
        state = {"identity": plain_values(identity), "chosen": plain_values(chosen or {}), "entries": entries}
        partial = folder.with_name(f"{folder.name}.partial-{run_mark()}")
        try:
            partial.mkdir()
            (partial / entries).mkdir(parents=True)
            _write_json(partial / IDENTITY_FILE, {**state, "format": FORMAT, "format_version": FORMAT_VERSION})
            owner = _take(partial)
            os.rename(partial, folder)
        except BaseException:
            shutil.rmtree(partial / entries, ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return cls(folder, state, owner)

    def entries(
        self, kind: str, verify: Callable[[list[str]], Iterable[str | None]] = lambda paths: map(damage_of, paths)
    ) -> list[Entry]:
        """Return undamaged entries of a kind, none of which share an item.

        Of entries that share an item, the one with the highest generation is returned, then with the most items, then
        with the first name.

        verify  returns the `damage_of` each of several paths; called again for entries that replace damaged ones

        Deletes a damaged entry that would be returned, and warns.
        """
        found = []
        for path in map(str, self.entries_folder.glob(f"{kind}-*{ENTRY_SUFFIX}")):
            try:
                found.append(read_entry(path))
            except InputError as error:
                delete_entry(path, damage_found(error))
        found.sort(key=lambda entry: (-entry.generation, -len(entry.items), entry.path))
        damages: dict[str, str | None] = {}  # by path, of the entries verified so far
        while unsure := [entry.path for entry in disjoint(found) if entry.path not in damages]:
            damages.update(zip(unsure, verify(unsure), strict=True))
            for path in unsure:
                if damage := damages[path]:
                    delete_entry(path, damage)
            found = [entry for entry in found if not damages.get(entry.path)]
        return disjoint(found)

    def num_entries(self) -> int:
        """Return the number of entries of all kinds, damaged ones included."""
        return _count(self.entries_folder)

    def newest_generation(self, kind: str, items: Iterable[int]) -> list[Entry]:
        """Return the entries of the highest generation whose undamaged entries cover all items; [] if none does.

        Deletes a damaged entry, with a warning.
        """
        needed, by_generation = set(items), dict[int, list[Entry]]()
        for path in map(str, self.entries_folder.glob(f"{kind}-*{ENTRY_SUFFIX}")):
            try:
                entry = read_entry(path)
            except InputError as error:
                delete_entry(path, damage_found(error))
                continue
            by_generation.setdefault(entry.generation, []).append(entry)
        for generation in sorted(by_generation, reverse=True):
            whole = []
            for entry in sorted(by_generation[generation], key=lambda entry: entry.path):
                if damage := damage_of(entry.path):
                    delete_entry(entry.path, damage)
                else:
                    whole.append(entry)
            found = disjoint(whole)
            if needed == {item for entry in found for item in entry.items}:
                return found
        return []

    def keep(self) -> None:
        """Leave the checkpoint for a run that resumes it; delete it when it has no entries."""
        if not self._is_mine():
            return
        if not _count(self.entries_folder):
            self.discard()
            return
        (self.folder / OWNER).unlink(missing_ok=True)
        _tokens.discard(self._owner["token"])

    def discard(self) -> None:
        """Delete the checkpoint: the run is done."""
        if self._is_mine():
            with suppress(OSError):
                _remove(self.folder, self.entries_folder)
        _tokens.discard(self._owner["token"])

    def _is_mine(self) -> bool:
        """Return whether no other run has taken over or replaced the checkpoint."""
        return _read_owner(self.folder) == self._owner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.keep()


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the contents of identity.json; InputError when the folder is not a checkpoint that we can read."""
    try:
        state = json.loads((folder / IDENTITY_FILE).read_bytes())
    except (OSError, ValueError):
        state = None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise InputError(
            f"{folder} is not a checkpoint of mgpu_ngram (it has no {IDENTITY_FILE} of ours), so it is neither resumed "
            "nor "
            "overwritten; delete it yourself or give another output path"
        )
    if state["format_version"] > FORMAT_VERSION:
        raise InputError(
            f"{folder} has format version {state['format_version']} but this mgpu_ngram reads up to {FORMAT_VERSION}; "
            "upgrade mgpu_ngram"
        )
    return state


def _check_owner(folder: Path, insists: bool) -> None:
    """Raise InputError when another run uses the checkpoint."""
    owner = _read_owner(folder)
    if owner is None:
        return
    who = f"process {owner['pid']} on {owner['host']} works on {folder}; wait for it or give another output path"
    if owner["host"] != socket.gethostname():
        if not insists:
            raise InputError(f"{who}, or if it has ended, add --resume or --overwrite")
    elif owner["token"] in _tokens or (owner["pid"] != os.getpid() and is_running(owner["pid"])):
        raise InputError(f"{who}, or if that process is not a run of mgpu_ngram, delete {folder / OWNER}")


def _read_owner(folder: Path) -> dict[str, Any] | None:
    try:
        owner: dict[str, Any] = json.loads((folder / OWNER).read_bytes())
        return owner
    except (OSError, ValueError):
        return None


def _take(folder: Path) -> dict[str, Any]:
    """Write owner.json: this process now runs the checkpoint."""
    owner: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8)}
    _write_json(folder / OWNER, owner)
    _tokens.add(owner["token"])
    return owner


def _count(entries: Path) -> int:
    """Return the number of entries, without spilled results: after an error, other tasks may still write these."""
    return sum(not path.name.startswith(f"{SPILLED}-") for path in entries.glob(f"*{ENTRY_SUFFIX}"))


def _remove(folder: Path, entries: Path) -> None:
    """Remove the entries, then the checkpoint. It is renamed first, so that nobody sees half of it."""
    if re.fullmatch(r"entries-[0-9a-f]{16}", entries.name):  # a wrong identity.json may name any folder
        shutil.rmtree(entries, ignore_errors=True)
    aside = folder.with_name(f"{folder.name}.partial-{run_mark()}")
    os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with new_file(path, durable=True) as sink:
        sink.write(json.dumps(values, indent=2).encode() + b"\n")
