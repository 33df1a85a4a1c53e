"""Prune and mix jobs: their manifests, and workers that die."""

import contextlib
import json

import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import load_model
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.mix import run as mix
from mgpu_ngram.jobs.mix.config import MixConfig
from mgpu_ngram.jobs.prune import run as prune
from mgpu_ngram.jobs.prune.config import PruneConfig
from tests.support.slow_cases import first_fast


@pytest.fixture
def executor():
    with contextlib.closing(LocalExecutor("cpu", 1)) as made:
        yield made


def test_a_prune_job(arpa, executor, tmp_path):
    config = PruneConfig(str(arpa), max_ngrams=9)
    planned = prune.plan(config, PlanContext(2, "cpu", 1 << 30))
    assert planned == {
        "job": "prune", "model": str(arpa), "max_ngrams": 9, "format": "safetensors", "device": "cpu"
    }  # fmt: skip
    result = prune.run(config, RunContext(executor, tmp_path / "out"))
    assert (result.before, result.counts, result.overfull) == ([5, 4, 1], [5, 3, 1], 0)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["orders"] == [5, 3, 1] and manifest["options"]["max_ngrams"] == 9
    assert manifest["fingerprint"] == load_model(result.path).fingerprint == result.fingerprint
    assert prune.changed_since(config, manifest) == ""
    assert "max_ngrams" in prune.changed_since(PruneConfig(str(arpa), max_ngrams=8), manifest)


@pytest.mark.parametrize(("bomb", "job"), first_fast([("build.before", "prune"), ("build.after", "mix")]))
@pytest.mark.timeout(120)
def test_the_worker_dies(bomb, job, arpa, executor, start, hooks, hooks_folder, contents, tmp_path):
    """Before it has made the model, or after it has written the file."""
    (tmp_path / "text").write_text("a b\nb a\n")
    if job == "prune":
        run, config = prune.run, PruneConfig(str(arpa), entropy=0.001, format="arpa")
    else:
        run, config = mix.run, MixConfig([str(arpa)] * 2, tune=str(tmp_path / "text"))
    run(config, RunContext(executor, tmp_path / "here"))
    hooks(**{bomb: ""})
    run(config, RunContext(start(1), tmp_path / "there"))
    assert not (hooks_folder / bomb).exists(), "the worker died"
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_models_of_lines_on_a_cluster(arpa, executor, start, hooks, hooks_folder, contents, tmp_path):
    """150 lines are three tasks, in which workers die."""
    (tmp_path / "text").write_text("a\nb a\n\n" * 50)
    config = PruneConfig(str(arpa), vocabulary=str(tmp_path / "text"), vocabulary_mode="multiple", format="arpa")
    found = prune.run(config, RunContext(executor, tmp_path / "here"))
    assert (found.models, found.ngrams) == (150, 50 * (4 + 2 + 5 + 4 + 1 + 3))
    hooks(**{"write_lines.before1": "", "write_lines.after1": ""})
    prune.run(config, RunContext(start(2), tmp_path / "there"))
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    manifest = json.loads((tmp_path / "here" / "manifest.json").read_text())
    assert prune.changed_since(config, manifest) == "" and manifest["lines"] == 150
    (tmp_path / "text").write_text("")
    with pytest.raises(InputError, match="is empty; give a text with one line or more"):
        prune.run(config, RunContext(executor, tmp_path / "none"))
