"""The compiled scanner of JSON lines beside the parser of Python objects, also on lines with errors."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.documents.json_lines import KIND, NUMBER, PLAIN, join_lines, scan_json
from mgpu_ngram.core.documents.json_records import RecordError, parse_record, with_fields
from mgpu_ngram.core.documents.new_fields import NewField, fields_of, json_fields

NOTHING = np.zeros(1, np.int64), np.empty(0, np.uint8)


def scan(*lines):
    """Return the lines, and the text of each that is PLAIN (others None)."""
    found = scan_json(np.frombuffer(b"\n".join([*lines, b""]), np.uint8), "text", "lang", ("words",))
    ends = found.table_DC[:, 4].tolist()
    spans = zip([0, *ends], ends, found.table_DC[:, KIND] == PLAIN, strict=False)
    return found, [found.texts[a:b].tobytes().decode() if plain else None for a, b, plain in spans]


def added(found, field=b'"n": 1'):
    """Return the lines with the same new field each; odd lines become empty."""
    D = len(found.table_DC)
    offsets = np.arange(D + 1) * len(field)
    fields = offsets, np.frombuffer(field * D, np.uint8)
    odd = np.zeros(D + 1, np.int64), np.empty(0, np.uint8)
    return join_lines(found, np.ones(D, bool), fields, odd).tobytes().split(b"\n")[:-1]


def test_by_hand():
    lines = [
        b'{"text": "a b", "lang": "en"}',
        b" \t ",
        b'\t{"x" :[1, -0.5e+3 ,{"y":null}] , "text":"\\u00e9\\n\\ud83d\\ude00\\"/\\/"  } \r',
        '{"lang": 3, "text": "é中😀"}'.encode(),
        b'{"text": null, "lang": "d\\u0065"}',
        b'{"text": null, "lang": "de"}',
    ]
    found, texts = scan(*lines)
    assert texts == ["a b", 'é\n😀"//', "é中😀", None, ""]
    assert found.tags() == ["en", None, None, None, "de"] and found.lines == 6
    assert found.table_DC[:, NUMBER].tolist() == [0, 2, 3, 4, 5]
    assert added(found)[:2] == [
        b'{"text": "a b", "lang": "en", "n": 1}',
        b'\t{"x" :[1, -0.5e+3 ,{"y":null}] , "text":"\\u00e9\\n\\ud83d\\ude00\\"/\\/", "n": 1} \r',
    ]
    assert added(found, b"")[0] == lines[0], "a line without a new field stays as it is"


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[1]", b'{"text": 3}', b'{"body": "a"}', b'{"text": "a"', b'{"text": "a"} x', b'{"text": "\xff"}',
        b'{"text": "\xed\xa0\x80"}', b'{"text": "\\ud800"}', b'{"text": "\\x"}', b'{"text": "a\x01"}',
        b'{"text": "a", "text": "b"}', b'{"te\\u0078t": "a"}', b'{"text": "a", "words": 1}',
        b'\xef\xbb\xbf{"text": "a"}',
        b'{"text": "a", "n": 01}', b'{"text": "a", "n": 1.}', b'{"text": "a", "n": NaN}', b'{"text": "a", "n": +1}',
        b'{"text": "a", "n": ' + b"[" * 90 + b"]" * 90 + b"}", b'{"text": "a", "n": ' + b"1" * 400 + b"}",
        b'{"text": "a",}', b'{"text": "a", "n": [1,]}', b'{"text": "a", "n": {"x" 1}}', b'{"text": "a", "n": tru}',
        b'{"text": "\xc0\xaf"}', b'{"text": "\xf5\x80\x80\x80"}', b'{"text": "\xe2\x82"}',
        b'{"text": "a", "x": "\xe2"}',
        b'{"text": "\xe0\x80\xaf"}', b'{"text": "\xf0\x80\x80\xaf"}', b'{"text": "\xf4\x90\x80\x80"}',
    ],
)  # fmt: skip
def test_lines_that_are_left_to_the_parser(line):
    """They are at the end of the block, and before another line."""
    assert scan(line)[1] == [None] and scan(line, b'{"text": "b"}')[1] == [None, "b"]


def test_random_lines():
    """A line that the scanner takes has the parser's text, and gets new fields as from the parser."""
    rng = random.Random(0)
    letters = ["a", " ", "é", "中", "😀", "\\", '"', "\n", "\x00", "\x1f", "/", "\x7f", "\ufeff"]

    def word():
        return "".join(rng.choice(letters) for _ in range(rng.randrange(12)))

    def value(depth=0):
        kind = rng.randrange(7 if depth < 3 else 5)
        if kind == 5:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        if kind == 6:
            return {word(): value(depth + 1) for _ in range(rng.randrange(3))}
        return [word(), rng.randrange(-9, 999), rng.random() * 10 ** rng.randrange(-20, 20), None, True][kind]

    taken = clean = 0
    for _ in range(12_000):
        record = {word(): value() for _ in range(rng.randrange(3))}
        record[rng.choice(["text", "text", "text", "body"])] = rng.choice([word(), word(), word(), None, 3])
        line = json.dumps(record, ensure_ascii=rng.random() < 0.5, separators=rng.choice([(", ", ": "), (",", ":")]))
        data = bytearray(line.encode())
        if rng.random() < 0.6:
            for _ in range(rng.randrange(1, 3)):
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(2)] = rng.choice([b"", b'"', b"\\", b",", b"}", b"0", b"\xe9", b" "])
        found, texts = scan(bytes(data))
        if not texts or texts[0] is None:
            continue
        taken += 1
        parsed, text = parse_record(bytes(data), "text")
        assert texts[0] == text
        assert added(found)[0] == with_fields(bytes(data), parsed, {"n": 1})
    assert taken > 1_000
    for _ in range(2_000):
        text = word()
        clean += scan(json.dumps({"id": value(), "text": text}, ensure_ascii=False).encode())[1] == [text]
    assert clean == 2_000


def test_errors_are_the_parsers():
    """No line that the parser refuses is taken, wherever a byte is lost."""
    line = b'{"id": [1, 2.5], "text": "a\\u00e9 \xc3\xa9", "x": {"y": true}}'
    for at in range(len(line)):
        for new in b"", b'"', b"}", b"\xff":
            broken = line[:at] + new + line[at + 1 :]
            try:
                wanted = parse_record(broken, "text")[1]
            except RecordError:
                wanted = None
            assert scan(broken)[1] in ([None], [wanted])


numbers = st.floats(allow_nan=False) | st.integers(-9, 9).map(float)  # in lists, infinity becomes null
finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9).map(float)


@given(st.lists(st.tuples(st.booleans(), finite, st.integers(0, 9), st.lists(numbers, max_size=3)), max_size=6))
def test_new_fields_are_those_of_json(documents):
    has = np.array([d[0] for d in documents], bool)
    lists = [d[3] if d[0] else [] for d in documents]
    ends = np.cumsum([len(some) for some in lists], dtype=np.int64)
    fields = {
        "a": NewField(np.array([d[1] for d in documents], float), has),
        "é": NewField(np.array([d[2] for d in documents], np.int64), has),
        "bucket": NewField(np.array([d[2] % 2 for d in documents], np.int64), ~has, names=('x, "', "中")),
        "lines": NewField(np.array([value for some in lists for value in some]), has, ends),
    }
    offsets, data = json_fields(fields, len(documents))
    for d in range(len(documents)):
        found = data[offsets[d] : offsets[d + 1]].tobytes().decode()
        assert found == json.dumps(fields_of(fields, d), ensure_ascii=False)[1:-1]
