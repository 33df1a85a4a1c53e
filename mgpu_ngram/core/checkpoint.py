"""What an interrupted run leaves beside its output, and a resumed one finds.

OUT.checkpoint/
  identity.json     what the run is, what it chose, and where its entries lie
  owner.json        the process that works on it; a run that ends by itself takes it away
  entries-RANDOM/   the entries, KIND-RANDOM.safetensors, written by any process that sees the folder;
                    it may lie elsewhere, as on a faster disk

The folder of entries has a name of its own, so that workers of a run that was given up find it gone: they cannot
write among the entries of the run that took its place. Results do not rest on owner.json: two runs that resume one
checkpoint in the same instant pass it, and at worst redo each other's work or stop with an error.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mgpu_ngram.core.arrays import load_arrays, save_arrays
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.output import TEMPORARY, clear_leftovers, new_file, run_mark
from mgpu_ngram.core.scratch import is_running

FORMAT = "mgpu_ngram checkpoint"
FORMAT_VERSION = 1
IDENTITY = "identity.json"
OWNER = "owner.json"
ENTRY = ".safetensors"  # how the name of an entry ends
NOTHING = "[]", "{}", "null"
NAMED_CHANGES = 3  # differences that a refusal spells out

_tokens: set[str] = set()  # of the checkpoints that this process works on


@dataclass(frozen=True)
class Entry:
    """A file of arrays (`load_arrays` opens it) and which items of the run it covers."""

    path: str
    items: tuple[int, ...]
    metadata: dict[str, Any]


def save_entry(
    folder: str,
    kind: str,
    items: Sequence[int],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any] | None = None,
    durable: bool = True,
) -> str:
    """Write one entry to the `entries_folder` of a checkpoint; return its path.

    kind      what it is, of letters, digits and _
    items     numbers of what it covers, as chunks
    metadata  JSON values, returned with the entry
    durable   as in `save_arrays`; what a crash of the host damages is found when a run is resumed, and done again

    Raises RunError when the disk is full or the folder is gone.
    """
    if not re.fullmatch(r"\w+", kind):
        raise ValueError(f"kind is {kind!r} but must be of letters, digits and _")
    path = f"{folder}/{kind}-{secrets.token_hex(8)}{ENTRY}"
    save_arrays(path, arrays, {**(metadata or {}), "kind": kind, "items": [int(i) for i in items]}, durable)
    return path


def damage_of(path: str) -> str | None:
    """What is wrong with an entry, of which this reads every byte; None when it is whole.

    Raises InputError when it cannot be read now, and may be whole.
    """
    try:
        load_arrays(path)
    except InputError as error:
        return _damage(error)
    return None


class Checkpoint:
    """The checkpoint of the run that this process drives.

    folder          OUT.checkpoint
    entries_folder  where `save_entry` writes
    identity        what the run is
    chosen          what the run chose for itself when it started first

    As a context manager it keeps what can be resumed when the block ends, unless `discard` was called.
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
        """Start a checkpoint beside `output`, or go on with the one that is there.

        identity        JSON values by name; a run is resumed only when they are equal
        resume          go on; wins over restart
        restart         drop what is there
        entries_folder  where to make the folder of entries, in place of the checkpoint; a resumed run stays
                        where it was
        chosen          JSON values that a resumed run takes over from the first one; not compared

        Raises InputError when there is nothing to resume, when an unfinished run is there and neither
        resume nor restart is given, when the identity changed, and when another run works on it: on this
        host one whose process runs; on another host any that did not end by itself, unless resume or
        restart says that it did.
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
                        f"{folder} cannot be resumed: {what}; put back what changed or start again with --overwrite"
                    )
                if not entries.is_dir():
                    raise InputError(f"{entries}, the entries of {folder}, is gone; start again with --overwrite")
                checkpoint = cls(folder, state, _take(folder))
                for leftover in [*folder.glob(f".*{TEMPORARY}"), *entries.glob(f".*{TEMPORARY}")]:
                    leftover.unlink(missing_ok=True)
                return checkpoint
            if (found := _count(entries)) and not restart:
                started = datetime.fromtimestamp((folder / IDENTITY).stat().st_mtime).strftime("%Y-%m-%d %H:%M")
                raise InputError(
                    f"{folder} holds an unfinished run of {started} with {found} entries; add --resume (in Python "
                    "resume=True) to go on with it or --overwrite (overwrite=True) to start again"
                )
            _remove(folder, entries)
            return cls._make(folder, identity, chosen, entries_folder)
        except OSError as error:
            at, spill = Path(error.filename or folder), Path(entries_folder or folder)
            is_there = bool(entries_folder) and (at.is_relative_to(spill) or at in spill.parents)
            raise InputError(
                f"cannot make checkpoint {folder}: {at}: {error.strerror or error}; give another "
                f"{'spill_dir' if is_there else 'output path'}"
            ) from error

    @classmethod
    def _make(
        cls, folder: Path, identity: Mapping[str, Any], chosen: Mapping[str, Any] | None, entries_folder: str | None
    ) -> Checkpoint:
        """Make the folder with all that belongs there, under another name until it is whole."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        entries = f"entries-{secrets.token_hex(8)}"
        if entries_folder is not None:
            entries = os.path.join(os.path.realpath(entries_folder), entries)
        state = {"identity": _plain(identity), "chosen": _plain(chosen or {}), "entries": entries}
        partial = folder.with_name(f"{folder.name}.partial-{run_mark()}")
        try:
            partial.mkdir()
            (partial / entries).mkdir(parents=True)
            _write_json(partial / IDENTITY, {**state, "format": FORMAT, "format_version": FORMAT_VERSION})
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
        """Return whole entries of a kind that share no item: most items first, ties by name.

        verify  gives the `damage_of` each of some paths; called again for entries that replace damaged ones

        A damaged entry that would be among them is deleted with a warning.
        """
        found = []
        for path in map(str, self.entries_folder.glob(f"{kind}-*{ENTRY}")):
            try:
                metadata = load_arrays(path, verify=False)[1]
                found.append(Entry(path, tuple(metadata["items"]), metadata))
            except InputError as error:
                _delete(path, _damage(error))
        found.sort(key=lambda entry: (-len(entry.items), entry.path))
        damages: dict[str, str | None] = {}  # of those verified so far
        while unsure := [entry.path for entry in _disjoint(found) if entry.path not in damages]:
            damages.update(zip(unsure, verify(unsure), strict=True))
            for path in unsure:
                if damage := damages[path]:
                    _delete(path, damage)
            found = [entry for entry in found if not damages.get(entry.path)]
        return _disjoint(found)

    def keep(self) -> None:
        """Leave the checkpoint for a run that resumes; without entries nothing is left."""
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
        """Whether no other run has taken the checkpoint, or its place, from this one."""
        return _read_owner(self.folder) == self._owner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.keep()


def _damage(error: InputError) -> str:
    """What `load_arrays` found wrong with an entry; an entry that could not be read may be whole, so that is raised."""
    if isinstance(error.__context__, OSError):
        raise error
    return str(error)


def _delete(path: str, damage: str) -> None:
    """Delete a damaged entry, with a warning to the caller of `entries`."""
    warnings.warn(f"{damage} (what it covers is done again)", stacklevel=3)
    with suppress(OSError):
        os.unlink(path)


def _disjoint(entries: Iterable[Entry]) -> list[Entry]:
    """Each entry that shares no item with those taken before it."""
    covered: set[int] = set()
    taken = []
    for entry in entries:
        if covered.isdisjoint(entry.items):
            covered.update(entry.items)
            taken.append(entry)
    return taken


def _read_state(folder: Path) -> dict[str, Any]:
    """Return what identity.json holds; InputError when the folder is not a checkpoint that we can read."""
    try:
        state = json.loads((folder / IDENTITY).read_bytes())
    except (OSError, ValueError):
        state = None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise InputError(
            f"{folder} is no checkpoint of mgpu_ngram (no {IDENTITY} of ours in it), so it is neither resumed nor "
            "overwritten; delete it yourself or give another output path"
        )
    if state["format_version"] > FORMAT_VERSION:
        raise InputError(
            f"{folder} has format version {state['format_version']} but this mgpu_ngram reads up to {FORMAT_VERSION}; "
            "upgrade mgpu_ngram"
        )
    return state


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """In words, what differs between two descriptions of what something is made of; "" for nothing."""
    before, after = dict(_leaves(_plain(old))), dict(_leaves(_plain(new)))
    changes = []
    for path in {**after, **before}:
        name = ".".join(path)
        here, there = (before, after) if path in before else (after, before)
        if here[path] in NOTHING and any(other[: len(path)] == path != other for other in there):
            continue  # its contents tell that they came or went
        if path not in before:
            changes.append((path[0], f"{name} was not there, is {after[path]}"))
        elif path not in after:
            changes.append((path[0], f"{name} was {before[path]}, is gone"))
        elif before[path] != after[path]:
            changes.append((path[0], f"{name} was {before[path]}, is {after[path]}"))
    if not changes:
        return ""
    what = " and the ".join(dict.fromkeys(top for top, _ in changes))
    more = f" and {len(changes) - NAMED_CHANGES:,} more" if len(changes) > NAMED_CHANGES else ""
    return f"the {what} changed: {'; '.join(text for _, text in changes[:NAMED_CHANGES])}{more}"


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """(keys that lead there, JSON) of each value inside nested ones that holds no others."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        here = (*path, str(key))
        if isinstance(value, dict | list) and value:
            yield from _leaves(value, here)
        else:
            yield here, json.dumps(value)


def _check_owner(folder: Path, insists: bool) -> None:
    """Raise InputError when another run works on the checkpoint."""
    owner = _read_owner(folder)
    if owner is None:
        return
    who = f"process {owner['pid']} on {owner['host']} works on {folder}; wait for it or give another output path"
    if owner["host"] != socket.gethostname():
        if not insists:
            raise InputError(f"{who}, or when it is gone add --resume or --overwrite")
    elif owner["token"] in _tokens or (owner["pid"] != os.getpid() and is_running(owner["pid"])):
        raise InputError(f"{who}, or when that process is no run of mgpu_ngram delete {folder / OWNER}")


def _read_owner(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / OWNER).read_bytes())
    except (OSError, ValueError):
        return None


def _take(folder: Path) -> dict[str, Any]:
    """Write down that this process works on the checkpoint."""
    owner: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8)}
    _write_json(folder / OWNER, owner)
    _tokens.add(owner["token"])
    return owner


def _count(entries: Path) -> int:
    return sum(1 for _ in entries.glob(f"*{ENTRY}"))


def _remove(folder: Path, entries: Path) -> None:
    """Remove the entries, then the folder that says where they lie, out of the way first: never half of it is seen."""
    if re.fullmatch(r"entries-[0-9a-f]{16}", entries.name):  # never what a wrong identity.json may name
        shutil.rmtree(entries, ignore_errors=True)
    aside = folder.with_name(f"{folder.name}.partial-{run_mark()}")
    os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON gives them back: tuples as lists, NumPy's scalars as Python's."""
    return json.loads(json.dumps(values, default=lambda scalar: scalar.item()))


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with new_file(path, durable=True) as sink:
        sink.write(json.dumps(values, indent=2).encode() + b"\n")
