"""Config classes: dataclasses that are filled from YAML or flags and checked strictly."""

from __future__ import annotations

import difflib
import numbers
import operator
import re
import types
import typing
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar

from mgpu_ngram.core.errors import InputError

T = TypeVar("T")
Bytes = Annotated[int, "bytes"]  # an int, or text such as "64 MiB"
BYTE_UNITS = {"": 1, "b": 1}
for _i, _p in enumerate("kmgt", 1):
    BYTE_UNITS |= {f"{_p}ib": 1024**_i, f"{_p}b": 1000**_i, _p: 1024**_i}
EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")  # YAML 1.1 takes 1e-8 for text, but 1.0e-8 for a number


def parse_bytes(text: Any, where: str) -> int:
    """Return the bytes of a number or of text such as "64 MiB" (1024s) or "2 GB" (1000s)."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    digits = str(text).strip()
    unit = digits.lstrip("0123456789. ")
    number = digits[: len(digits) - len(unit)].strip()
    try:
        return int(float(number) * BYTE_UNITS[unit.strip().lower()])
    except (ValueError, KeyError, OverflowError):
        raise InputError(f"{where} is {text!r} but must be a size such as 67108864, '64 MiB' or '2 GB'") from None


def check_whole(value: Any, name: str, least: int = 0) -> int:
    """Return a whole number. Raises InputError, which names `name`, for other values and numbers below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name} is {value!r} but must be a whole number from {least} on")
    return number


def check_at_least(settings: Any, least: int, *names: str) -> None:
    """Raise InputError if a setting is less than `least`; None, a setting that is not given, passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise InputError(f"{name} is {value} but must be at least {least}")


def check_files(paths: list[str]) -> None:
    """Raise InputError if documents come from standard input, because they are read more than once."""
    if "-" in paths:
        raise InputError(
            "documents are read more than once, so standard input cannot be used; give files instead of '-'"
        )


def check_name(name: str) -> None:
    """Raise InputError if a job's name cannot be the name of its folder."""
    if not name or "/" in name or name in (".", ".."):
        raise InputError(f"name is {name!r} but must be a plain folder name")


def suggest(wrong: str, known: typing.Iterable[str]) -> str:
    """Return "did you mean ...?" if a known name is close, else the list of known names."""
    known = list(known)
    close = difflib.get_close_matches(wrong, known, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def fill(cls: type[T], values: Any, where: str) -> T:
    """Make a config dataclass from a mapping. Unknown keys, wrong types and missing keys raise InputError.

    where  the place for messages, such as "jobs[0].count"
    """
    if not isinstance(values, dict):
        raise InputError(f"{where} is {values!r} but must be a mapping of settings")
    hints = typing.get_type_hints(cls, include_extras=True)
    names = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]  # a dataclass
    for key in values:
        if key not in names:
            raise InputError(f"{where}: unknown key {key!r}; {suggest(str(key), names)}")
    missing = [n for n, f in names.items() if n not in values and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise InputError(f"{where}: key {missing[0]!r} is missing; add it")
    converted = {key: _convert(value, hints[key], f"{where}.{key}") for key, value in values.items()}
    try:
        return cls(**converted)
    except InputError as error:  # raised by the class itself, which does not know the place
        raise InputError(f"{where}: {error}") from None


def _convert(value: Any, hint: Any, where: str) -> Any:
    if hint == Bytes:
        return parse_bytes(value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value in (None, "auto") and type(None) in arguments:
            return None
        kinds = [a for a in arguments if a is not type(None)]
        if kinds == [int, float]:  # a whole number and a float mean different things, such as 1 and 1.0
            return _convert(value, int if isinstance(value, numbers.Integral) else float, where)
        fitting = (a for a in kinds if (typing.get_origin(a) is list) == isinstance(value, list))
        return _convert(value, next(fitting, kinds[0]), where)
    if origin is typing.Literal:
        if value not in arguments:
            raise InputError(f"{where} is {value!r}; {suggest(str(value), map(str, arguments))}")
        return value
    if origin is list:
        values = value if isinstance(value, list) else [value]
        return [_convert(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(values)]
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise InputError(f"{where} is {value!r} but must be a mapping")
        return value
    if hint is Any:
        return value
    if hint is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)  # also of a NumPy integer
    if hint is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str) and EXPONENT.fullmatch(value):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where} is {value!r} but must be of type {hint.__name__}")
    if isinstance(value, str) and "\0" in value:
        raise InputError(f"{where} is {value!r:.60} but no path or name has NUL characters; correct it")
    return value


def number_or_share(value: Any, name: str) -> int | float:
    """Return a number of documents as int, or a share of them as float. Raises InputError, which names `name`."""
    if is_count(value):
        return int(value)
    is_share = isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    if not (is_share and 0 <= float(value) <= 1):
        raise InputError(f"{name} is {value!r} but must be a whole number from 1 on, or a share from 0.0 to 1.0")
    return float(value)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 1 on, of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1
