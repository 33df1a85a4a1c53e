"""Metrics: by hand, beside plain Python, and beside sacrebleu's own score of a corpus."""

import random
import sys

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.rescore.text_metrics import import_package, measure_texts, quality, shown_quality

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", ",", ".", "it's", "3.5", "été"]


def sentences(seed, count):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(count)]


def edits(a, b):
    """Return the Levenshtein distance, by the textbook's table."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            last, row[j + 1] = row[j + 1], min(last + (x != y), row[j] + 1, row[j + 1] + 1)
    return row[-1]


def test_error_rates_by_hand():
    pytest.importorskip("rapidfuzz")
    rows = measure_texts("wer", ["a b c", ""], [["a x c d", "b"], ["a  b"]])
    assert rows.tolist() == [[2, 4], [2, 2]]  # both references of the first need two edits: the first counts
    assert measure_texts("cer", [" ab  c"], [["ab d"]]).tolist() == [[1, 4]]
    assert quality("wer", rows.sum(axis=0)[None]).tolist() == [-100 * 4 / 6]
    assert quality("wer", np.array([[3, 0]])).tolist() == [-np.inf]


@pytest.mark.parametrize("metric", ["wer", "cer"])
def test_errors_beside_the_textbook(metric):
    pytest.importorskip("rapidfuzz")
    texts, references = sentences(1, 40), [[a, b] for a, b in zip(sentences(2, 40), sentences(3, 40), strict=True)]
    units = str.split if metric == "wer" else str
    wanted = [
        list(min(((edits(units(t), units(r)), len(units(r))) for r in several), key=lambda pair: pair[0]))
        for t, several in zip(texts, references, strict=True)
    ]
    assert measure_texts(metric, texts, references).tolist() == wanted


def test_bleu_is_that_of_a_corpus():
    sacrebleu = pytest.importorskip("sacrebleu")
    texts, first, second = (sentences(seed, 60) for seed in (4, 5, 6))
    texts = [f"{a} {b}" for a, b in zip(texts, first, strict=True)]
    for columns in [first], [first, second]:
        rows = measure_texts("bleu", texts, list(zip(*columns, strict=True)))
        wanted = sacrebleu.corpus_bleu(texts, columns, use_effective_order=False)
        assert rows.shape == (60, 10) and wanted.score > 1
        assert quality("bleu", rows.sum(axis=0)[None])[0] == pytest.approx(wanted.score, rel=1e-12)


def test_bleu_by_hand():
    """Precisions 4/5, 3/4, 2/3, 1/2 and a text one word short."""
    row = np.array([[4, 3, 2, 1, 5, 4, 3, 2, 5, 6], [4, 3, 2, 0, 5, 4, 3, 2, 5, 6]])
    assert quality("bleu", row) == pytest.approx([100 * 0.2**0.25 * np.exp(-0.2), 0])
    assert shown_quality("bleu", 27.3061) == "BLEU 27.31" and shown_quality("wer", -10.2) == "WER 10.20 %"


@pytest.mark.parametrize(("metric", "package"), [("bleu", "sacrebleu"), ("wer", "rapidfuzz"), ("cer", "rapidfuzz")])
def test_a_package_that_is_missing(metric, package, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"^metric {metric} needs {package}, .*; pip install {package}$") as error:
        import_package(metric)
    assert "\n" not in str(error.value)
