"""Where device auto runs a stage on a host with a GPU: small work on the CPU."""

import json
import math
from pathlib import Path

import pytest

from mgpu_ngram.api import executors
from mgpu_ngram.cluster import placement
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.cluster.placement import GPU_START_SECONDS
from mgpu_ngram.commands.run import work_of
from mgpu_ngram.core.kenlm.binary_file import Header
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.stages.cpu_rates import opening_seconds
from mgpu_ngram.stages.registry import STAGES

LINES = "the cat sat on the mat\nthe dog sat on the log\nthe cat ate the dog\n"
G2P = Path(__file__).resolve().parents[2] / "examples" / "g2p"
MODEL = "runs/estimate/model.safetensors"
STAGE_SETTINGS = {
    "count": {"corpus": "text.txt"},
    "estimate": {"corpus": "text.txt", "discount_fallback": []},
    "score": {"model": MODEL, "text": "text.txt"},
    "rescore": {"lm": MODEL, "text": "text.txt"},
    "distribution": {"model": MODEL, "text": "text.txt", "format": "npy"},
    "decode": {
        "models": f"{G2P}/model.npz",
        "text": "text.txt",
        "source_vocab": f"{G2P}/letters.json",
        "target_vocab": f"{G2P}/phonemes.json",
    },
}
LARGE = 100 << 20


@pytest.fixture
def gpu_host(tmp_path, mgpu_ngram, monkeypatch):
    """A folder with a text of three lines and its model, on a host that seems to have a GPU."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(LINES)
    write_jobs(estimate=STAGE_SETTINGS["estimate"])
    assert mgpu_ngram("run", "jobs.yaml", "cluster.device=cpu")[0] == 0
    monkeypatch.setattr(placement, "visible_gpus", lambda: 1)
    monkeypatch.setattr(placement, "resolve_device", lambda wanted: "gpu" if wanted == "auto" else wanted)
    monkeypatch.setattr(executors, "free_memory", lambda device: 64 << 30)


def write_jobs(cluster="{}", memory="{}", **jobs):
    lines = "".join(f"- {name}: {json.dumps(settings)}\n" for name, settings in jobs.items())
    Path("jobs.yaml").write_text(f"output: runs\ncluster: {cluster}\nmemory: {memory}\njobs:\n{lines}")


def placed(mgpu_ngram):
    """Return the notice of a plan."""
    status, out, err = mgpu_ngram("plan", "jobs.yaml")
    assert status == 0, err
    return out.splitlines()[0]


@pytest.mark.parametrize("stage", STAGE_SETTINGS)
def test_three_lines_run_on_the_cpu_and_100_mib_on_the_gpu(stage, gpu_host, mgpu_ngram):
    write_jobs(**{stage: STAGE_SETTINGS[stage]})
    notice = "runs in this process, on the CPU: about 0.0 s of work for 2 cores, a GPU takes 0.8 s to open"
    assert placed(mgpu_ngram) == notice
    with open("text.txt", "ab") as file:
        file.truncate(LARGE)
    assert placed(mgpu_ngram) == "runs in this process: 1 GPU"


@pytest.mark.parametrize(
    "given", [{"cluster": "{device: gpu}"}, {"cluster": "{workers: 0}"}, {"memory": "{device_bytes: 1GiB}"}]
)
def test_what_names_a_gpu_or_workers_is_obeyed(given, gpu_host, mgpu_ngram):
    write_jobs(**given, count=STAGE_SETTINGS["count"])
    assert "on the CPU" not in placed(mgpu_ngram)


def test_a_run_goes_where_the_plan_says(gpu_host, mgpu_ngram, monkeypatch):
    opened = []
    monkeypatch.setattr(executors, "LocalExecutor", lambda device: opened.append(device) or LocalExecutor("cpu"))
    write_jobs(count=STAGE_SETTINGS["count"])
    assert mgpu_ngram("run", "jobs.yaml")[0] == 0
    assert mgpu_ngram("run", "jobs.yaml", "cluster.device=gpu", "--overwrite")[0] == 0
    assert opened == ["cpu", "gpu"]


def test_jobs_add_up(gpu_host, mgpu_ngram):
    with open("text.txt", "ab") as file:
        file.truncate(5 << 20)
    count = STAGE_SETTINGS["count"]
    write_jobs(count=count)
    assert "about 0.7 s of work" in placed(mgpu_ngram)
    lines = "".join(f"- count: {json.dumps(count | {'name': name})}\n" for name in "ab")
    Path("jobs.yaml").write_text(f"output: runs\njobs:\n{lines}")
    assert placed(mgpu_ngram) == "runs in this process: 1 GPU"


def of(stage, **settings):
    """Return the seconds that a stage expects on the CPU."""
    stage = STAGES[stage]
    config = stage.config(**settings)
    return stage.cpu_seconds(config, stage.open_inputs(config))


def test_the_size_of_a_model(gpu_host):
    Path("large.safetensors").write_bytes(Path(MODEL).read_bytes())
    with open("large.safetensors", "ab") as file:
        file.truncate(LARGE)
    Path("large.arpa").write_bytes(b"\\data\\\n")
    with open("large.arpa", "ab") as file:
        file.truncate(LARGE)
    text = ["text.txt"]
    assert of("score", model="large.safetensors", text=text) < 0.001  # it is mapped
    assert of("score", model="large.arpa", text=text) > GPU_START_SECONDS  # it is parsed, built and indexed
    assert of("distribution", model="large.arpa", text=text, top_k=5) > GPU_START_SECONDS
    assert math.isinf(of("distribution", model="large.arpa", text=text))  # rows of unknown size
    assert of("convert", model="large.arpa") > GPU_START_SECONDS > 0.1 > of("convert", model=MODEL)


def test_what_an_earlier_job_makes_has_no_size_yet(gpu_host):
    assert math.isinf(of("score", model="runs/later/model.safetensors", text=["text.txt"]))
    assert math.isinf(of("distribution", model="runs/later/model.safetensors", text=["text.txt"]))
    assert math.isinf(of("convert", model="runs/later/model.safetensors"))
    assert math.isinf(of("estimate", counts="runs/later"))
    assert work_of([], MemoryConfig()).cpu_seconds == 0


def test_counts_have_the_size_of_their_text(gpu_host, mgpu_ngram):
    assert mgpu_ngram("count", "text.txt", "-o", "counts", "--device", "cpu", "--sentence-markers")[0] == 0
    assert 0 < of("estimate", counts="counts") < 0.001


def test_sweeps_count(gpu_host):
    Path("documents.txt").write_text("a document\n" * 40_000)
    assert of("lda", corpus=["documents.txt"], sweeps=10) < GPU_START_SECONDS < of("lda", corpus=["documents.txt"])


def test_a_probing_model_of_many_words_is_opened_on_the_gpu(tmp_path):
    """The headers of KenLM binary models: 65,000 words have 4.2 billion pairs, of which a trie tests none."""
    for kind, seconds in (0, 10.5625), (2, 0):
        path = tmp_path / f"{kind}.binary"
        path.write_bytes(Header(kind, (65_000, 10, 10), 1.5, True).pack())
        assert opening_seconds(str(path)) == pytest.approx(seconds, abs=1e-4)
        config = STAGES["convert"].config(str(path))
        assert (STAGES["convert"].cpu_seconds(config, None) > GPU_START_SECONDS) == (kind == 0)
