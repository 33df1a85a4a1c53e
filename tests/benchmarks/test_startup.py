"""`mgpu-ngram bench startup` runs whole, and a command that fails is no row."""

import csv

import pytest

from mgpu_ngram.benchmarks import startup
from mgpu_ngram.benchmarks.options import BenchOptions
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.errors import RunError


def test_whole_suite(tmp_path, monkeypatch, device):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(startup, "RUNS", 1)
    monkeypatch.setitem(startup.SCORED_TOKENS, device, 1_000)
    rows = startup.bench(BenchOptions(device, tmp_path, tokens=2_000))
    assert {row["kernel"] for row in rows} == {
        "startup/--help", "startup/score --help", "startup/estimate --help", "startup/info", "startup/count",
        "startup/estimate", "startup/trie", "startup/score", "startup/distribution", "startup/score -v summary",
    }  # fmt: skip
    assert all(row["runs"] == 1 and row["median_seconds"] > 0 for row in rows)
    with open(tmp_path / "startup.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows) == 2 * 11
    help_row = next(row for row in rows if row["kernel"] == "startup/--help" and row["sizes"].endswith("CPU time"))
    assert help_row["target"] == 5 and help_row["notes"] == "at most 0.2 s"


def test_a_command_that_fails(tmp_path):
    bench = startup.StartupBench(Suite("cpu"), 1_000, tmp_path)
    with pytest.raises(RunError, match=r"'mgpu-ngram info nothing' ended with 2: mgpu-ngram: "):
        bench.run("info", "nothing")
