"""Documents of JSON lines, and lines with further fields."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.documents.json_records import RecordError, parse_record, with_fields


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b"", "no JSON"),
        (b'{"text": "a"', "no JSON"),
        (b'{"text": "a"} x', "no JSON"),
        (b'{"text": "\xff"}', "no UTF-8 at byte 10"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object but list"),
        (b'{"body": "a"}', "no key 'text'"),
        (b'{"text": 3}', "'text' is int, no text"),
    ],
)
def test_lines_that_are_no_documents(line, wanted):
    with pytest.raises(RecordError) as error:
        parse_record(line, "text")
    assert str(error.value).startswith(wanted)


def test_documents():
    assert parse_record(b'\xef\xbb\xbf{"text": "a"}\r', "text") == ({"text": "a"}, "a")
    assert parse_record(b'{"text": null}', "text")[1] == ""
    found, text = parse_record(b'{"n": 123456789012345678901234567890, "x": NaN, "text": "\\ud800"}', "text")
    assert found["n"] == 123456789012345678901234567890 and text == "\ud800"


def test_fields_by_hand():
    line, new = b'{ "text" :"a\\u00e9", "n": 1.0e0 } \r', {"perplexity": 2.5, "bucket": "é"}
    wanted = '{ "text" :"a\\u00e9", "n": 1.0e0, "perplexity": 2.5, "bucket": "é"} \r'
    assert with_fields(line, {"text": "aé", "n": 1.0}, new) == wanted.encode()
    assert with_fields(b"{}", {}, {"n": 1}) == b'{"n": 1}' and with_fields(line, {}, {}) == line
    assert with_fields(b'{"n":1, "text":"a"}', {"n": 1, "text": "a"}, {"n": 2}) == b'{"text": "a", "n": 2}'
    assert with_fields(b'{"n":1, "text":"a"}', {"n": 1, "text": "a"}, {}, ["n"]) == b'{"text": "a"}'


def test_values_of_records_that_are_serialised_again():
    """Long integers and halves of surrogate pairs stay as they are."""
    line = b'\xef\xbb\xbf{"id": 123456789012345678901234567890, "half": "\\ud800", "n": 1, "text": "\xc3\xa9"}'
    record, text = parse_record(line, "text")
    wanted = '{"id": 123456789012345678901234567890, "half": "\\ud800", "text": "\\u00e9", "n": 2}'
    assert text == "é" and with_fields(line, record, {"n": 2}) == wanted.encode()
    line = b'{"id": 123456789012345678901234567890, "n": 1, "text": "\xc3\xa9"}'
    wanted = '{"id": 123456789012345678901234567890, "text": "é"}'
    assert with_fields(line, parse_record(line, "text")[0], {}, ["n"]) == wanted.encode()


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.dictionaries(st.text(), st.floats(0, 9), min_size=1))
def test_fields_are_read_back(record, fields):
    line = json.dumps(record).encode()
    assert json.loads(with_fields(line, record, fields)) == {**record, **fields}
