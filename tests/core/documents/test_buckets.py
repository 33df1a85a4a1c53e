"""Buckets by hand, and the tables and percentiles that make them."""

import re

import numpy as np
import pytest

from mgpu_ngram.core.documents.buckets import Rules, parse_buckets, percentile_cutoffs, read_cutoffs
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.memory.copies import move_to

NAN = float("nan")  # the figure of a document without words


def bucket(rules, perplexity, difference, language):
    """Return the name of a document's bucket."""
    found = rules.bucket_of(np.array([perplexity]), np.array([difference]), [language])
    return rules.buckets[found[0]]


def keeps(rules, perplexity, difference, name="all"):
    """Return whether a document is kept."""
    number = np.array([rules.buckets.index(name)])
    return rules.keeps(np.array([perplexity]), np.array([difference]), number).tolist()[0]


def test_buckets_by_hand():
    rules = Rules(("head", "middle"), {"en": (10.0, 20.0), "fr": (5.0, 5.0)}, "language")
    found = [bucket(rules, p, NAN, "en") for p in (1.0, 9.9, 10.0, 19.9, 20.0, 1e9, NAN)]
    assert found == ["head", "head", "middle", "middle", "tail", "tail", "all"]
    assert [bucket(rules, 4.0, NAN, language) for language in ("fr", "de", None, 7, ["en"])] == ["head", *["all"] * 4]
    assert rules.bucket_of(np.array([4.0, 4.0, 30.0]), np.full(3, NAN), ["fr", "it", "en"]).tolist() == [0, 3, 2]
    assert bucket(Rules(), 3.0, NAN, "en") == "all"
    by_difference = Rules(("near",), {None: (-0.5,)}, by="difference")
    assert [bucket(by_difference, 9.0, d, "en") for d in (-0.6, -0.5, NAN)] == ["near", "tail", "all"]


def test_documents_that_are_kept():
    limits = Rules(least=2.0, most=4.0)
    assert [keeps(limits, p, NAN) for p in (1.9, 2.0, 4.0, 4.1, NAN)] == [False, True, True, False, False]
    assert keeps(Rules(), NAN, NAN) and keeps(Rules(most=3.0), 1.0, NAN)
    limits = Rules(least_difference=-1.0, most_difference=0.5, most=9.0)
    assert [keeps(limits, 3.0, d) for d in (-1.1, -1.0, 0.5, 0.6, NAN)] == [False, True, True, False, False]
    assert not keeps(limits, 9.1, 0.0)
    only = Rules(names=("head",), only=("head",))
    assert [keeps(only, 1.0, NAN, name) for name in ("head", "tail")] == [True, False]


def test_percentiles_of_buckets():
    assert parse_buckets(["head:30", "middle:60.5"]) == {"head": 30, "middle": 60.5}
    limits = parse_buckets(["near:-0.5", "far:340"], percentiles=False)
    assert limits == {"near": -0.5, "far": 340}
    with pytest.raises(InputError, match="NAME:LIMIT"):
        parse_buckets(["near:inf"], percentiles=False)
    for wrong in ["head"], ["head:x"], [":3"], ["tail:30"], ["a:30", "a:40"], ["a:101"], ["a:nan"], ["a:30", "b:30"]:
        with pytest.raises(InputError, match="PERCENTILE|percentile|above"):
            parse_buckets(wrong)
    with pytest.raises(
        InputError, match="'all:30' has the name of the documents without a perplexity; give it another"
    ):
        parse_buckets(["all:30"])


def test_exact_percentiles():
    """Between the neighbours of ranks 0.3 * 4 and 0.6 * 4."""
    values = np.array([50.0, np.nan, 10.0, 30.0, 20.0, 40.0])
    assert percentile_cutoffs(values, [30, 60]) == pytest.approx((22.0, 34.0))
    assert percentile_cutoffs(np.array([np.nan]), [30]) == ()
    inf = np.inf
    assert percentile_cutoffs(np.array([3.0, inf, inf]), [0, 20, 40, 50, 90, 100]) == (3, inf, inf, inf, inf, inf)
    assert percentile_cutoffs(np.array([-inf, 3.0, 5.0]), [0, 40, 50, 75]) == (-inf, -inf, 3, 4)
    assert percentile_cutoffs(np.array([7.0]), [0, 30, 100]) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_percentiles_are_those_of_numpy(device):
    """To the bit, for any number of figures."""
    rng = np.random.default_rng(0)
    for documents in (1, 2, 3, 10, 1001):
        for percentiles in ([30, 60], [0, 0.1, 33.3, 50, 99.99, 100]):
            values = np.round(rng.lognormal(6, 2, documents), 1)
            assert percentile_cutoffs(move_to(values, device), percentiles) == tuple(np.percentile(values, percentiles))


def test_a_table(tmp_path):
    table = tmp_path / "cutoff.csv"
    table.write_text(",en,de\n0,10,20\n30,250,370\n60,400,\n")
    assert read_cutoffs(str(table), [30]) == {"en": (250.0,), "de": (370.0,)}
    assert read_cutoffs(str(table), [30, 60]) == {"en": (250.0, 400.0)}, "without a language that lacks a value"
    for text, wanted in [
        (",en\n0,10\n", "30.* has no row"), (",en\nx,10\n", "not a table"), (",en,de\n30,1\n", "not a table"),
        (",en,de,en\n30,1,2,3\n", "'en' stands twice among the languages; leave one of them out"),
        (",en\n0,1\n30,2\n0,2\n", "'0' stands twice among the percentiles"),
        ("", "percentile 30.* has no row"), ("x" * 200_000, "cannot be read .it is not CSV in UTF-8."),
    ]:  # fmt: skip
        table.write_text(text)
        with pytest.raises(InputError, match=wanted):
            read_cutoffs(str(table), [30])
    table.write_text(",en,de\n30,300,100\n60,200,100\n")
    with pytest.raises(InputError, match=re.escape("the cut-offs of 'en' are (300.0, 200.0) but must rise;")):
        read_cutoffs(str(table), [30, 60])
    with pytest.raises(InputError, match=re.escape("none.csv: cannot be read (No such file or directory)")):
        read_cutoffs("none.csv", [30])
