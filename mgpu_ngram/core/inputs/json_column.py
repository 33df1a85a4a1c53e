"""Read the values of one key of JSON lines."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterator
from typing import Any

from mgpu_ngram.core.errors import DamagedInput, InputError
from mgpu_ngram.core.storage.file_heads import is_utf8
from mgpu_ngram.core.utf8 import to_bytes, without_mark

Place = Callable[[int], str]
Report = Callable[[str], None]


def json_column(lines: bytes, key: str, place: Place, lists: bool = False, report: Report | None = None) -> Any:
    """Return the values of a key of JSON lines, an Arrow array of texts, or of lists of them; a null has no value.

    lines  each ends with a newline; blank lines are skipped
    place  place(offset) is the place of a byte of `lines` for messages
    lists  values may be lists of texts, all of them
    report  report(reason) is called for each line that is no object with this key, and the line is left out; None:
            DamagedInput is raised

    Bytes that are not UTF-8 stay as they are. Raises InputError for texts and lists among each other.
    """
    import pyarrow as pa
    from pyarrow import json as pj

    kind = pa.list_(pa.string()) if lists and _begins_with_list(lines, key) else pa.string()
    parse = pj.ParseOptions(pa.schema([(key, kind)]), unexpected_field_behavior="ignore")
    try:
        read = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        values = pj.read_json(pa.BufferReader(lines), read, parse).column(0).combine_chunks()
        if len(values) == lines.count(b"\n") and _are_given(values, lines, key):
            return values
    except pa.ArrowException:
        pass  # json.loads finds the line that is wrong
    plain = list(_plain_json(lines, key, place, lists, report))
    is_list = any(isinstance(value, list) for value in plain)
    return pa.array(plain, pa.list_(pa.binary()) if is_list else pa.binary())


def _are_given(values: Any, lines: bytes, key: str) -> bool:
    """Return whether the nulls among values, one for each line, are nulls of the key: a line may lack it."""
    if not values.null_count:
        return True
    split = lines.split(b"\n")
    try:
        return all(key in load_line(split[i]) for i in values.is_null().to_numpy(zero_copy_only=False).nonzero()[0])
    except (ValueError, RecursionError, TypeError):  # TypeError: no object
        return False


def load_line(line: bytes, errors: str = "surrogateescape") -> Any:
    """Return the JSON value on a line; bytes that are not UTF-8 are decoded as `errors` says.

    Raises ValueError or RecursionError for a line that is no JSON.
    """
    return json.loads(without_mark(line).decode("utf-8", errors))


def _begins_with_list(lines: bytes, key: str) -> bool:
    first = next((line for line in lines.split(b"\n", 64) if line.strip()), b"{}")
    try:
        return isinstance(load_line(first).get(key), list)
    except (ValueError, RecursionError, AttributeError):
        return False


def read_record(line: bytes, key: str, lists: bool, place: str, errors: str = "surrogateescape") -> dict[str, Any]:
    """Return the object on a line, whose value of `key` is a text, null or, if `lists`, a list of texts.

    place, errors  the place of the line for messages; see `load_line`

    Raises DamagedInput for other lines.
    """
    try:
        found = load_line(line, errors)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deep")
        raise DamagedInput(f"{place} is not a JSON object: {reason}; correct the line, or leave it out") from None
    if not isinstance(found, dict) or key not in found:
        what = f"lacks the key {key!r}" if isinstance(found, dict) else f"is {type(found).__name__}, not an object"
        raise DamagedInput(f"{place} {what}; give each line an object with this key, null for an empty document")
    value = found[key]
    tokens = value if isinstance(value, list) and lists else [value if value is not None else ""]
    if not all(isinstance(token, str) for token in tokens):
        raise DamagedInput(f"{place} has {reprlib.repr(value)} in {key!r}; {_wanted(lists)}")
    return found


def _wanted(lists: bool) -> str:
    return "give a text, or a list of str, on every line" if lists else "give a text on every line"


def _plain_json(lines: bytes, key: str, place: Place, lists: bool, report: Report | None) -> Iterator[Any]:
    """Yield the value of each line that `read_record` reads."""
    kinds, offset = set(), 0
    for line in lines.split(b"\n")[:-1]:
        at, offset = offset, offset + len(line) + 1
        if not line.strip():
            continue
        try:
            value = read_record(line, key, lists, place(at))[key]
        except DamagedInput as error:
            if report is None:
                raise
            report(str(error))
            continue
        kinds |= {type(value)} - {type(None)}
        if len(kinds) > 1:
            raise InputError(f"{place(at)} has {reprlib.repr(value)} in {key!r}; {_wanted(lists)}")
        encode = to_bytes if not is_utf8(line) else _with_halves  # escapes may give halves of surrogate pairs
        yield [encode(token) for token in value] if isinstance(value, list) else value and encode(value)


def _with_halves(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
