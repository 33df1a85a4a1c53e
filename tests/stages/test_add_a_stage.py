"""A stage is its own files and one line in the registry: the toy stage of docs/add-a-stage.md works everywhere."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.stages.contract import Stage
from mgpu_ngram.stages.registry import ENTRIES, STAGES, StageEntry
from tests.support.slowness import wait_until

HERE = ["--workers", "0"]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Register the toy stage, and write three files of 3, 5 and 0 bytes."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    monkeypatch.setitem(ENTRIES, "lengths", StageEntry("lengths_stage", "write the length of each file", ("lengths",)))
    monkeypatch.chdir(tmp_path)
    for name, data in ("a", "x\ny"), ("b", "1\n2\n\n"), ("c", ""):
        Path(name).write_text(data)
    return STAGES["lengths"]


def test_on_the_command_line(toy, mgpu_ngram):
    assert "lengths       write the length of each file" in mgpu_ngram("--help")[1]
    assert "mgpu-ngram lengths a.txt" in mgpu_ngram("lengths", "--help")[1]
    assert mgpu_ngram("lengths", "a", "b", "-o", "out", *HERE)[:2] == (0, "out: [3, 5] bytes, 0 resumed\n")
    assert mgpu_ngram("lengths", "a", "-o", "out", *HERE)[0] == 2  # the output exists
    status, out, _ = mgpu_ngram("lengths", "--unit", "lines", "-o", "out", "b", "--overwrite", "--json", *HERE)
    assert status == 0 and json.loads(out)["lengths"] == [3]
    assert mgpu_ngram("info", "out")[1] == "out: 3 lines\n"
    assert json.loads(mgpu_ngram("info", "out", "--json")[1])["total"] == 3
    assert mgpu_ngram("lengths", "b", "--unit", "lines", "-o", "out", "--resume", *HERE)[2] == "out: finished before\n"
    status, _, err = mgpu_ngram("lengths", "b", "-o", "out", "--resume", *HERE)
    assert status == 2 and "options.unit was" in err


def test_in_a_yaml_file(toy, mgpu_ngram):
    text = "output: runs\ncluster: {workers: 0}\njobs:\n- lengths: {text: [a, b, c]}\n- lengths: {name: n, text: a}\n"
    Path("run.yaml").write_text(text)
    assert mgpu_ngram("plan", "run.yaml")[1].endswith("lengths: 3 files\n\nn: 1 files\n\n")
    status, out, err = mgpu_ngram("run", "run.yaml")
    assert (status, out, err) == (0, "lengths: [3, 5, 0] bytes, 0 resumed\n\nn: [3] bytes, 0 resumed\n", "")
    assert mgpu_ngram("run", "run.yaml", "--resume")[2].count("finished before") == 2
    status, _, err = mgpu_ngram("run", "run.yaml", "jobs.0.lengths.unit=words", "--overwrite")
    assert status == 2 and "jobs[0].lengths.unit is 'words'" in err


def test_memory_limits_without_effect_are_refused(toy, mgpu_ngram):
    Path("run.yaml").write_text("output: runs\nmemory: {host_bytes: 1 GiB}\njobs:\n- lengths: {text: a}\n")
    for verb in "run", "plan":
        status, _, err = mgpu_ngram(verb, "run.yaml")
        assert status == 2 and "memory.host_bytes is 1073741824 but has no effect on job 'lengths'" in err
    with pytest.raises(InputError, match="has no effect on job 'j' of stage lengths"):
        toy.check_memory(MemoryConfig(spill_dir="x"), "j")
    STAGES["count"].check_memory(MemoryConfig(spill_dir="x"), "j")


def test_on_a_cluster(toy):
    cluster = start_cluster("cpu", 2)
    try:
        config = toy.config(["a", "b", "c"])
        result = toy.run(config, RunContext(cluster, "out"), toy.open_inputs(config))
        assert (result.lengths, result.resumed) == ([3, 5, 0], 0)
    finally:
        cluster.close()


class Interrupt(Progress):
    """Send Ctrl-C at the second finished file, when the first is saved."""

    finished = 0

    def advance(self, done, amount=0):
        self.finished += 1
        if self.finished == 2:
            wait_until(lambda: list(Path().glob("out.checkpoint/*/length-*.safetensors")))
            raise KeyboardInterrupt


def test_resume(toy, mgpu_ngram):
    config, executor = toy.config(["a", "b", "c"]), LocalExecutor("cpu", 1)
    with pytest.raises(KeyboardInterrupt):
        context = RunContext(executor, "out", progress=Interrupt(), checkpoint_seconds=0)
        toy.run(config, context, toy.open_inputs(config))
    executor.close()
    assert Path("out.checkpoint").is_dir() and not Path("out").exists()
    status, out, _ = mgpu_ngram("lengths", "a", "b", "c", "-o", "out", "--resume", "--json", *HERE)
    found = json.loads(out)
    assert status == 0 and found["lengths"] == [3, 5, 0] and found["resumed"] >= 1
    assert not Path("out.checkpoint").exists()


def test_every_stage_keeps_the_contract():
    """The contract contains no Any; each stage has every field, and its settings have a name."""
    source = Path(importlib.import_module("mgpu_ngram.stages.contract").__file__).read_text()
    assert not re.search(r"\bAny\b", source)
    for name, stage in STAGES.items():
        assert isinstance(stage, Stage) and stage.name == name and stage.format.startswith("mgpu_ngram ")
        assert "name" in stage.config.__dataclass_fields__ and set(stage.needs) <= set(
            stage.config.__dataclass_fields__
        )
        assert stage.examples.startswith("example")
        assert f"mgpu-ngram {ENTRIES[name].verbs[0]}" in stage.examples
    assert len({stage.format for stage in STAGES.values()}) == len(STAGES)
    made = {name: stage.makes for name, stage in STAGES.items()}
    assert [name for name in made if made[name] == "model"] == ["estimate", "adapt", "convert", "prune", "mix"]
    assert [name for name in made if made[name] == "counts"] == ["count"]


def test_jobs_take_and_return_the_types_of_their_stages():
    """`Stage` finds `plan`, `run` and `changed_since` of a job by name, so mypy does not compare these types."""
    compared = 0
    for name, stage in STAGES.items():
        config, result = type(stage).__orig_bases__[0].__args__
        types = {
            "plan": [config.__name__, "PlanContext", "dict[str, Any]"],
            "run": [config.__name__, "RunContext", "Corpus | None", result.__forward_arg__],
            "changed_since": [config.__name__, "dict[str, Any]", "str"],
        }
        for method, expected in types.items():
            if getattr(type(stage), method) is getattr(Stage, method):
                function = getattr(importlib.import_module(f"mgpu_ngram.jobs.{name}.run"), method)
                assert list(function.__annotations__.values()) == expected, f"{name}.{method}"
                compared += 1
    assert compared == 35
