"""CCNet's normaliser beside its own outputs, and the normal forms of Unicode."""

import json
import lzma

import pytest

from mgpu_ngram.core.documents.normalize import normalizer


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        (" \n ", ""),
        (" The Year 1984…\n", "the year 0000..."),
        ("line.\nNext\tword", "line.nextword"),
        ("Ängström „Fuß” — №٣", 'angstrom "fuß"  -  №0'),
        ("한", "\u1112\u1161\u11ab"),  # stays decomposed
    ],
)
def test_ccnet_by_hand(text, wanted):
    normalize = normalizer("ccnet")
    assert normalize(text) == wanted and normalize(text) == wanted, "the second time from the table"


def test_ccnet_beside_its_own_outputs(shared_data):
    lines = lzma.decompress((shared_data / "golden/tools/ccnet/normalizer.jsonl.xz").read_bytes()).splitlines()
    pairs = [(found["in"], found["normalize"]) for found in map(json.loads, lines) if "normalize" in found]
    normalize = normalizer("ccnet")
    assert len(pairs) > 100 and [normalize(text) for text, _ in pairs] == [wanted for _, wanted in pairs]


def test_normal_forms():
    assert normalizer("none") is None
    assert normalizer("nfc")("E\u0301t\u00c9 \ufb01") == "\u00e9t\u00e9 \ufb01"
    assert normalizer("nfkc")("E\u0301 \ufb01 \uff21") == "\u00e9 fi a"
    assert normalizer("nfkc")("\u2122 \u2115 J\u030c \U0001d6ba") == "tm n \u01f0 \u03c3"
