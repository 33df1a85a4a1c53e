"""Config classes are filled strictly."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import yaml

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, fill, parse_bytes, suggest


@dataclass(frozen=True)
class Example:
    name: str
    size: Bytes = 5
    limit: Bytes | None = None
    order: int = 3
    ratio: float = 0.5
    unit: Literal["word", "byte"] = "word"
    paths: list[str] = field(default_factory=list)
    deep: dict[str, Any] = field(default_factory=dict)
    yes: bool = False

    def __post_init__(self):
        check_at_least(self, 1, "order")


def test_a_setting_that_is_too_small_is_refused():
    example = Example("x", size=1, limit=None, order=2)
    check_at_least(example, 1, "size", "limit", "order")
    with pytest.raises(InputError, match=r"^size is 1 but must be at least 2$"):
        check_at_least(example, 2, "order", "size")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (7, 7),
        ("7", 7),
        ("7 B", 7),
        ("64 MiB", 64 * 1024**2),
        ("64MiB", 64 * 1024**2),
        ("2 GB", 2 * 10**9),
        ("1.5 kib", 1536),
        ("3k", 3072),
        (" 1 TiB ", 1 << 40),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_bytes(text, "size") == size_bytes


@pytest.mark.parametrize("text", ["", "big", "5 parsecs", "MiB", "1.2.3", "-5", "1e6", None, True, [], "9" * 400])
def test_invalid_sizes(text):
    with pytest.raises(InputError, match=r"size is .* but must be a size such as 67108864, '64 MiB' or '2 GB'"):
        parse_bytes(text, "size")


def test_fill():
    values = {
        "name": "x",
        "size": "1 KiB",
        "limit": "auto",
        "unit": "byte",
        "paths": "one",
        "deep": {"a": 1},
        "yes": True,
    }
    assert fill(Example, values, "here") == Example("x", 1024, None, 3, 0.5, "byte", ["one"], {"a": 1}, True)
    assert fill(Example, {"name": "x", "limit": "2 B", "paths": ["a", "b"]}, "here").limit == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"^here is \[\] but must be a mapping of settings$"),
        ({}, "^here: key 'name' is missing; add it$"),
        ({"name": "x", "unti": "word"}, "^here: unknown key 'unti'; did you mean 'unit'\\?$"),
        ({"name": "x", "zzz": 1}, "^here: unknown key 'zzz'; known: name, size, limit"),
        ({"name": "x", 5: 1}, "^here: unknown key 5"),
        ({"name": 5}, "^here.name is 5 but must be of type str$"),
        ({"name": "x", "order": "3"}, "^here.order is '3' but must be of type int$"),
        ({"name": "x", "order": True}, "^here.order is True but must be of type int$"),
        ({"name": "x", "order": 0}, "^here: order is 0 but must be at least 1$"),
        ({"name": "x", "yes": 1}, "^here.yes is 1 but must be of type bool$"),
        ({"name": "x", "unit": "bite"}, "^here.unit is 'bite'; did you mean 'byte'\\?$"),
        ({"name": "x", "unit": ["word"]}, "^here.unit is "),
        ({"name": "x", "paths": ["a", 1]}, r"^here.paths\[1\] is 1 but must be of type str$"),
        ({"name": "x", "paths": ["a", "b\0"]}, r"^here.paths\[1\] is 'b.x00' but no path or name has NUL characters;"),
        ({"name": "x", "deep": 1}, "^here.deep is 1 but must be a mapping$"),
        ({"name": "x", "size": "much"}, "^here.size is 'much' but must be a size"),
        ({"name": "x", "size": "auto"}, "^here.size is 'auto' but must be a size"),
    ],
)
def test_fill_refuses(values, message):
    with pytest.raises(InputError, match=message):
        fill(Example, values, "here")


def test_a_whole_number_is_a_ratio():
    assert fill(Example, {"name": "x", "ratio": 1}, "here").ratio == 1


def test_numbers_that_yaml_takes_for_text():
    assert [fill(Example, yaml.safe_load(f"{{name: x, ratio: {n}}}"), "").ratio for n in ("1e-8", "-2E+3")] == [
        1e-8,
        -2000,
    ]
    with pytest.raises(InputError, match="ratio is 'e-8' but must be of type float"):
        fill(Example, {"name": "x", "ratio": "e-8"}, "here")


def test_suggest():
    assert suggest("wrod", ["word", "byte"]) == "did you mean 'word'?"
    assert suggest("xyz", ["word", "byte"]) == "known: word, byte"
