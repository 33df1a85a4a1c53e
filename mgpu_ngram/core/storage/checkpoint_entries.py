"""The entries of a checkpoint: files of arrays, each of which covers some items of a run."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.storage.safetensors import load_arrays, save_arrays

ENTRY_SUFFIX = ".safetensors"  # the suffix of an entry's file name
SPILLED = "waiting"  # kind of a spilled result: a file for a moment, from which no run resumes


@dataclass(frozen=True)
class Entry:
    """A file of arrays, which `load_arrays` opens, and the items of the run that it covers.

    generation  number of the save of these items; the highest one is used
    """

    path: str
    items: tuple[int, ...]
    generation: int
    metadata: dict[str, Any]


def save_entry(
    folder: str,
    kind: str,
    items: Sequence[int],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any] | None = None,
    durable: bool = True,
    generation: int = 0,
    keep_older: bool = False,
) -> str:
    """Write one entry to the `entries_folder` of a checkpoint; return its path.

    kind        the kind of result, in letters, digits and _
    items       numbers of the items (such as chunks) whose results the entry holds
    metadata    JSON values, returned with the entry
    durable     as in `save_arrays`; a resumed run finds entries that a crash of the host damaged, and deletes them
    generation  0 or more: number of the save of these items, such as the iteration. A durable entry replaces entries of
                this kind with lower generations if it covers all their items: they are deleted once it is written
    keep_older  keep the replaced entries; `delete_older` deletes them when all items have an entry of this generation

    Raises RunError when the disk is full or the folder is gone.
    """
    if not re.fullmatch(r"\w+", kind):
        raise ValueError(f"kind is {kind!r} but must consist of letters, digits and _")
    if generation < 0:
        raise ValueError(f"generation is {generation} but must be 0 or more")
    path = f"{folder}/{kind}-{secrets.token_hex(8)}{ENTRY_SUFFIX}"
    numbers = [int(i) for i in items]
    own = {"kind": kind, "items": numbers, "generation": int(generation)}
    save_arrays(path, arrays, {**(metadata or {}), **own}, durable)
    if durable and generation > 0 and not keep_older:
        _delete_superseded(folder, kind, set(numbers), generation)
    return path


def _delete_superseded(folder: str, kind: str, items: set[int], generation: int) -> None:
    """Delete the entries of a kind with lower generations, all of whose items are among `items`."""
    for path in map(str, Path(folder).glob(f"{kind}-*{ENTRY_SUFFIX}")):
        try:
            entry = read_entry(path)
        except InputError:  # damaged, or another process has just deleted it
            continue
        if entry.generation < generation and items.issuperset(entry.items):
            with suppress(OSError):
                os.unlink(path)


def delete_older(folder: str, kind: str, generation: int) -> None:
    """Delete the entries of a kind with lower generations: all items have durable entries of this generation."""
    for path in map(str, Path(folder).glob(f"{kind}-*{ENTRY_SUFFIX}")):
        with suppress(InputError, OSError):
            if read_entry(path).generation < generation:
                os.unlink(path)


def damage_of(path: str) -> str | None:
    """Read every byte of an entry. Return a description of its damage, or None if it is undamaged.

    Raises InputError if the file cannot be read now, because it may still be undamaged.
    """
    try:
        load_arrays(path)
    except InputError as error:
        return damage_found(error)
    return None


def read_entry(path: str) -> Entry:
    """Read the header of an entry. An entry without a generation, as earlier releases wrote it, has generation 0."""
    metadata = load_arrays(path, verify=False)[1]
    return Entry(path, tuple(metadata["items"]), metadata.get("generation", 0), metadata)


def damage_found(error: InputError) -> str:
    """Return the damage that `load_arrays` found.

    Raise the error of an unreadable entry, because it may be undamaged.
    """
    if isinstance(error.__context__, OSError):
        raise error
    return str(error)


def delete_entry(path: str, damage: str) -> None:
    """Delete a damaged entry, with a warning to the caller of `entries`."""
    warn(f"{damage} (its items are computed again)")
    with suppress(OSError):
        os.unlink(path)


def disjoint(entries: Iterable[Entry]) -> list[Entry]:
    """Return each entry that shares no item with the entries returned before it."""
    covered: set[int] = set()
    taken = []
    for entry in entries:
        if covered.isdisjoint(entry.items):
            covered.update(entry.items)
            taken.append(entry)
    return taken
