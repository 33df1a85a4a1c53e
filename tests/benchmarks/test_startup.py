"""`mgpu-ngram bench startup` runs completely, and a command that fails gives no row."""

import contextlib
import csv
import os

import pytest

from mgpu_ngram import cli
from mgpu_ngram.benchmarks import startup
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.stages.registry import STAGES

pytestmark = pytest.mark.slow


def run_here(bench, *words):
    """As `StartupBench.run`, in this process."""
    with contextlib.chdir(bench.folder):
        assert cli.main(list(words)) == 0
    return 1.0, 0.5


@pytest.mark.parametrize(
    ("part", "kernels"),
    [
        ("commands", {"--help", "score --help", "estimate --help", "info"}),
        (
            "stages",
            {"count", "estimate", "adapt", "trie", "prune", "mix", "score", "compare", "distribution", "filter"},
        ),
        ("topics", {"lda", "topics"}),
        ("decoders", {"decode", "rescore", "tune"}),
        ("estimate", {"estimate"}),
        ("score", {"score -v summary"}),
    ],
)
def test_whole_suite(part, kernels, tmp_path, monkeypatch, device):
    pytest.importorskip("matplotlib")
    if part == "decoders":
        pytest.importorskip("rapidfuzz")
    monkeypatch.setattr(startup, "RUNS", 1)
    monkeypatch.setattr(startup.shutil, "which", lambda name: None)
    monkeypatch.setitem(startup.SCORED_TOKENS, device, 1_000)
    if part != "commands":  # processes are slow to start
        monkeypatch.setattr(startup.StartupBench, "run", run_here)
    rows = startup.bench(BenchOptions(device, tmp_path, tokens=2_000, only=part))
    assert {row["kernel"] for row in rows} == {f"startup/{kernel}" for kernel in kernels}
    assert all(row["runs"] == 1 and row["median_seconds"] > 0 for row in rows)
    with open(tmp_path / "startup.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    by_default = device == "gpu" and part not in ("commands", "estimate")  # beside the rows that ask for the GPU
    assert len(rows) == (4 if by_default else 2) * len(kernels)
    if part == "commands":
        [row] = [row for row in rows if row["kernel"] == "startup/--help" and row["sizes"].endswith("CPU time")]
        assert row["target"] == 5 and row["notes"] == "at most 0.2 s"


def test_first_runs(tmp_path, monkeypatch, device):
    monkeypatch.setattr(startup, "FIRST_RUNS", 1)
    monkeypatch.setattr(startup, "FIRST_TOKENS", 300)
    rows = startup.bench(BenchOptions(device, tmp_path, only="first"))
    for stage in ("count", "estimate", "score"):
        of_stage = {row["sizes"].split(", ")[-1]: row for row in rows if row["kernel"] == f"startup/first {stage}"}
        assert set(of_stage) == {"wall", "CPU time"} | ({"to the first kernel"} if device == "gpu" else set())
        for row in of_stage.values():
            assert 0 < row["median_seconds"] <= max(r["median_seconds"] for r in of_stage.values())
        if device == "gpu":
            assert of_stage["to the first kernel"]["median_seconds"] < of_stage["wall"]["median_seconds"]


def test_stages_have_one_row_each(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(startup, "find_spec", lambda name: True)
    monkeypatch.setattr(startup.StartupBench, "measure_default", lambda self, name, *rest: measured.append(name))
    monkeypatch.setattr(startup.StartupBench, "run", run_here)
    bench = startup.StartupBench(Suite("cpu"), 1_000, tmp_path)
    for part in (startup.stages, startup.topics, startup.decoders):
        part(bench)
    stages = {name.replace("convert", "trie") for name in STAGES}  # stored rows have the older name
    assert sorted(measured) == sorted(stages), "a new stage adds a row"


def test_a_command_that_fails(tmp_path):
    bench = startup.StartupBench(Suite("cpu"), 1_000, tmp_path)
    with pytest.raises(RunError, match=r"'mgpu-ngram info nothing' ended with 2: mgpu-ngram: "):
        bench.run("info", "nothing")


PROGRAMS = {
    "build_binary": "cp $2 $3",
    "query": "cat > /dev/null; echo Perplexity including OOVs:; echo Name:query",
}


def test_query_prints_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(startup, "RUNS", 2)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, does in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    suite = Suite("cpu")
    bench = startup.StartupBench(suite, 1_000, tmp_path)
    (tmp_path / "scored.txt").write_text("the cat\n")
    monkeypatch.setattr(bench, "run", lambda *words: (tmp_path / "large.arpa").touch())
    program = bench.program

    def prints(what):
        return lambda command, name, *stdin: (
            ((1, 1), what, "") if name == "mgpu-ngram score" else program(command, name, *stdin)
        )

    monkeypatch.setattr(bench, "text", "text.txt", raising=False)
    monkeypatch.setattr(bench, "program", prints("Perplexity including OOVs:\n"))
    wall, cpu = startup.query(bench, 2, [])
    assert wall > 0 <= cpu and [row.kernel for row in suite.rows] == ["startup/peer query"] * 2
    monkeypatch.setattr(bench, "program", prints("Perplexity including OOVs:\t2\n"))
    with pytest.raises(WrongResult, match="not timed"):
        startup.query(bench, 2, [])
