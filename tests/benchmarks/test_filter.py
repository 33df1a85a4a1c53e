"""`mgpu-ngram bench filter` runs completely, and times no wrong result."""

import json

import numpy as np
import pytest

from mgpu_ngram.benchmarks import filter as bench_filter
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.core.documents.json_lines import scan_json

pytestmark = pytest.mark.slow

STEPS = ("parse", "load", "normalize", "score", "render", "write", "save", "CPU time")


@pytest.fixture(autouse=True)
def small(monkeypatch, device):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(bench_filter, "ROUNDS", 1)
    monkeypatch.setitem(bench_filter.TRAINING_SIZE, device, 100_000)
    monkeypatch.setattr(bench_filter, "PIECES", 500)
    monkeypatch.setattr(bench_filter, "PIECES_SIZE", 100_000)


def run(device, folder, part):
    return bench_filter.bench(BenchOptions(device, folder, size="64 KiB", only=part))


@pytest.mark.parametrize(
    ("part", "kernels"),
    [
        ("parse", {"scan", "parse to objects"}),
        ("files", {"read a file", "write a file"}),
        (
            "words",
            {"words", *(f"words, {step}" for step in STEPS)},
        ),
        ("pieces", {"pieces", "pieces, tokenize"}),
        ("workers", {"words by workers", "pieces by workers"}),
        ("ccnet", set()),
    ],
)
def test_parts(part, kernels, device, tmp_path, monkeypatch):
    if part in ("pieces", "workers"):
        pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    monkeypatch.setattr(bench_filter, "PEER_MODULES", ("no_such_module",))
    if part == "words" and device == "gpu":
        kernels = kernels | {"words, wait"}
    rows = run(device, tmp_path, part)
    found = {row["kernel"].removeprefix("filter/") for row in rows}
    assert found >= kernels and (found == kernels or part == "pieces")
    if part == "workers" and device == "cpu":
        assert [row["speedup"] is not None for row in rows] == [False, False, True, True]
    assert all(row["rate"] > 0 and row["rate_unit"] == "B/s" for row in rows)


def test_a_scanner_with_other_texts_is_not_timed(device, tmp_path, monkeypatch):
    def without_the_last(data, *arguments):
        found = scan_json(data, *arguments)
        found.texts = found.texts[:-1]
        return found

    monkeypatch.setattr(bench_filter, "scan_json", without_the_last)
    with pytest.raises(WrongResult, match="finds other texts"):
        run(device, tmp_path, "parse")


def test_documents(tmp_path):
    """Texts follow each other in the generated text, some with letters that are not ASCII."""
    bench_filter.write_documents(tmp_path / "d.jsonl", 200_000, 0)
    documents = [json.loads(line) for line in (tmp_path / "d.jsonl").open()]
    sizes = [len(document["text"]) for document in documents]
    assert 190_000 < sum(sizes) <= 200_000 and 800 < np.median(sizes) < 3_000
    assert any(not document["text"].isascii() for document in documents)
