"""A YAML file is parsed strictly into jobs."""

from pathlib import Path

import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.jobs.count.run import CountConfig
from mgpu_ngram.stages.run_file import ClusterConfig, load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return tmp_path / "run.yaml"

    return write


def test_everything(write):
    run = load(
        write("""
output: runs/books
cluster: {kind: local, device: cpu, workers: 3}
memory: {device_bytes: 2 GiB, host_bytes: auto, spill_dir: /fast}
checkpoint_seconds: 60
dask: {distributed.scheduler.allowed-failures: 5}
jobs:
  - count: {corpus: [a.txt, "b/*.gz"], order: 3, chunk_bytes: 2 MiB, name: words}
  - count: {corpus: tokens.bin, unit: id, dtype: uint32, separator_id: 0}
""")
    )
    assert run.output == Path("runs/books")
    assert run.cluster == ClusterConfig("local", "cpu", 3)
    assert run.memory == MemoryConfig(2 << 30, None, "/fast") and run.checkpoint_seconds == 60
    assert run.dask == {"distributed.scheduler.allowed-failures": 5}
    assert run.jobs == [
        ("count", CountConfig(["a.txt", "b/*.gz"], order=3, chunk_bytes=2 << 20, name="words")),
        ("count", CountConfig(["tokens.bin"], unit="id", dtype="uint32", separator_id=0)),
    ]


def test_defaults_and_auto(write):
    run = load(
        write("output: out\ncluster: {workers: auto, device: auto}\njobs: [count: {corpus: text, chunk_bytes: auto}]")
    )
    assert run.cluster == ClusterConfig() and run.cluster.workers is None
    assert run.memory == MemoryConfig() and run.checkpoint_seconds == 120
    assert run.jobs == [("count", CountConfig(["text"]))]


def test_overrides(write):
    path = write("output: out\njobs: [count: {corpus: text}]")
    overrides = ["output=other", "cluster.workers=4", "jobs.0.count.order=2", "jobs.0.count.corpus=[a, b]"]
    run = load(path, [*overrides, "jobs.0.count.lowercase=true"])
    assert (run.output, run.cluster.workers) == (Path("other"), 4)
    assert run.jobs[0][1] == CountConfig(["a", "b"], order=2, lowercase=True)
    assert load(path).jobs[0][1].order == 5, "the file itself is unchanged"
    assert load(path, ["jobs.0.count.name=a=b"]).jobs[0][1].name == "a=b"


def test_an_override_of_dask_is_one_key_with_dots(write):
    path = write("output: out\njobs: [count: {corpus: text}]\ndask: {distributed.comm.retry.count: 1}")
    run = load(path, ["dask.distributed.comm.retry.count=3", "dask.distributed.comm.timeouts.connect=60s"])
    assert run.dask == {"distributed.comm.retry.count": 3, "distributed.comm.timeouts.connect": "60s"}
    path = write("output: out\njobs: [count: {corpus: text}]")
    assert load(path, ["dask.distributed.scheduler.allowed-failures=7"]).dask == {
        "distributed.scheduler.allowed-failures": 7
    }


def test_a_merge_key_is_no_duplicate(write):
    run = load(
        write("""
output: out
jobs:
  - count: &first {corpus: text, order: 3}
  - count: {<<: *first, order: 4, name: other}
""")
    )
    assert [settings.order for _, settings in run.jobs] == [3, 4]


def test_yaml_runs_no_code(write):
    with pytest.raises(InputError, match="is not YAML"):
        load(write("output: !!python/object/apply:os.getcwd []\njobs: []"))


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.name)
def test_the_files_in_configs_load(path):
    assert load(path).jobs


def test_an_alias_of_a_stage_names_its_job(write):
    """So YAML files from the time when `convert` was called `trie` write the same folders."""
    path = write(
        "output: out\njobs: [convert: {model: m.arpa}, trie: {model: m.arpa}, score: {model: trie, text: text}]"
    )
    (first, _), (second, _), _ = jobs = load(path).jobs
    assert first == second == "convert" and [settings.name for _, settings in jobs] == ["convert", "trie", "score"]
    assert jobs[2][1].model == "out/trie/model.safetensors"
    path = write("output: out\njobs: [trie: {model: m.arpa, name: small}]")
    assert load(path).jobs[0][1].name == "small"
    with pytest.raises(InputError, match=r"jobs\[0\].trie.fanout is 'x' but must be"):
        load(write("output: out\njobs: [trie: {model: m.arpa, fanout: x}]"))
    with pytest.raises(InputError, match=r"jobs\[0\].trie is None but must be a mapping"):
        load(write("output: out\njobs: [trie: ]"))
