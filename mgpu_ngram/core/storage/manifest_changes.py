"""Compare the settings and inputs of a run with those of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

EMPTY_VALUES = "[]", "{}", "null"
NAMED_CHANGES = 3  # most differences that an error lists


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the differences of two identities in words; "" when they are equal."""
    before, after = dict(_leaves(plain_values(old))), dict(_leaves(plain_values(new)))
    changes = []
    for path in {**after, **before}:
        name = ".".join(path)
        side, other_side = (before, after) if path in before else (after, before)
        if side[path] in EMPTY_VALUES and any(other[: len(path)] == path != other for other in other_side):
            continue  # the values inside it are listed as new or gone
        if path not in before:
            changes.append((path[0], f"{name} was absent, is {after[path]}"))
        elif path not in after:
            changes.append((path[0], f"{name} was {before[path]}, is absent"))
        elif before[path] != after[path]:
            changes.append((path[0], f"{name} was {before[path]}, is {after[path]}"))
    if not changes:
        return ""
    what = " and the ".join(dict.fromkeys(top for top, _ in changes))
    more = f" and {len(changes) - NAMED_CHANGES:,} more" if len(changes) > NAMED_CHANGES else ""
    return f"the {what} changed: {'; '.join(text for _, text in changes[:NAMED_CHANGES])}{more}"


def manifest_changes(manifest: Mapping[str, Any], made_of: Mapping[str, Any]) -> str:
    """Return how `made_of` differs from what a manifest says under the same keys; "" if it does not."""
    return what_changed({name: manifest.get(name) for name in made_of}, made_of)


def _leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path of keys, JSON) of each leaf of nested mappings and lists; an empty one is a leaf."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        here = (*path, str(key))
        if isinstance(value, dict | list) and value:
            yield from _leaves(value, here)
        else:
            yield here, json.dumps(value)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as after a round trip through JSON: tuples become lists, and NumPy scalars Python numbers."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=lambda scalar: scalar.item()))
    return plain
