"""`mgpu-ngram bench startup` runs completely, and a command that fails gives no row."""

import csv

import pytest

from mgpu_ngram.benchmarks import startup
from mgpu_ngram.benchmarks.options import BenchOptions
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.errors import RunError


@pytest.mark.parametrize(
    ("part", "kernels"),
    [
        ("commands", {"--help", "score --help", "estimate --help", "info"}),
        ("stages", {"count", "estimate", "trie", "score", "distribution"}),
        ("estimate", {"estimate"}),
        ("score", {"score -v summary"}),
    ],
)
def test_whole_suite(part, kernels, tmp_path, monkeypatch, device):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(startup, "RUNS", 1)
    monkeypatch.setitem(startup.SCORED_TOKENS, device, 1_000)
    rows = startup.bench(BenchOptions(device, tmp_path, tokens=2_000, only=part))
    assert {row["kernel"] for row in rows} == {f"startup/{kernel}" for kernel in kernels}
    assert all(row["runs"] == 1 and row["median_seconds"] > 0 for row in rows)
    with open(tmp_path / "startup.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows) == 2 * len(kernels)
    if part == "commands":
        [row] = [row for row in rows if row["kernel"] == "startup/--help" and row["sizes"].endswith("CPU time")]
        assert row["target"] == 5 and row["notes"] == "at most 0.2 s"


def test_a_command_that_fails(tmp_path):
    bench = startup.StartupBench(Suite("cpu"), 1_000, tmp_path)
    with pytest.raises(RunError, match=r"'mgpu-ngram info nothing' ended with 2: mgpu-ngram: "):
        bench.run("info", "nothing")
