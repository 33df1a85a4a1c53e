"""Whole rescoring runs: beside plain Python, the same lines for any cut, and after worker deaths."""

import math

import numpy as np
import pytest

from mgpu_ngram import kenlm
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.rescore import rescore_chunk as engine
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.rescore import lattices as lattices_job
from mgpu_ngram.jobs.rescore import run as rescore_job
from mgpu_ngram.jobs.rescore.config import RescoreConfig
from mgpu_ngram.jobs.rescore.run import run
from mgpu_ngram.jobs.tune import run as tune_job
from mgpu_ngram.jobs.tune.config import TuneConfig
from tests.support.slow_cases import first_fast
from tests.support.told_progress import Told

pytestmark = pytest.mark.timeout(120)
WEIGHTS = {"F0": 0.75, "TM": [0.5, -0.25], "model": 0.375}
LINES = 600


@pytest.fixture
def hypotheses(tmp_path):
    """Hypotheses (id, text, features, total) in lists of 1 to 40, one of 200; many have equal totals."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(1000), np.where(np.arange(1000) == 3, 200, rng.integers(1, 41, 1000)))[:LINES]
    made = []
    for i in ids.tolist():
        text = " ".join(rng.choice(["a", "b", "x", "a|||b"], rng.integers(0, 4)))
        f0, tm = int(rng.integers(-2, 2)), rng.integers(-1, 2, 2).tolist()
        made.append((f"s{i}", text, f"F0= {f0} Sparse= 1 TM= {tm[0]} {tm[1]}", f0, tm))
    (tmp_path / "nbest").write_text("".join(f"{i} ||| {text} ||| {f} ||| 7\n" for i, text, f, *_ in made))
    return made


def shown(value):
    return np.format_float_positional(np.float32(value), trim="-")


@pytest.fixture
def wanted(hypotheses, arpa):
    """Return (lines of the whole lists, texts of the best) by plain Python and the drop-in of KenLM's module."""
    model = kenlm.Model(str(arpa))
    lists = {}
    for i, text, features, f0, tm in hypotheses:
        score = np.float32(np.float64(np.float32(model.score(text))) * math.log(10))
        total = np.float32(0.75 * f0 + 0.5 * tm[0] - 0.25 * tm[1] + 0.375 * float(score))
        line = f"{i} ||| {text} ||| {features} model= {shown(score)} ||| {shown(total)}\n"
        lists.setdefault(i, []).append((-total, line, f"{text}\n"))
    ordered = [sorted(lines, key=lambda line: line[0]) for lines in lists.values()]
    assert len(ordered) > 15 and any(a[0] == b[0] for lines in ordered for a, b in zip(lines, lines[1:], strict=False))
    return "".join(line for lines in ordered for _, line, _ in lines), "".join(lines[0][2] for lines in ordered)


def config(arpa, **more):
    return RescoreConfig([str(arpa.parent / "nbest")], [str(arpa)], ["model"], weights=WEIGHTS, **more)


def rescored(config, executor, **more):
    """Return the lines of a run."""
    out = []
    context = RunContext(executor, None, **more)
    run(config, context, take=lambda lines: out.append(lines.tobytes().decode()))
    return "".join(out)


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize(
    ("chunk_bytes", "threads"), first_fast([(40, 1), (9000, 3), (None, 1), (None, 5), (1000, 1)], 2)
)
def test_cuts_change_nothing(best, chunk_bytes, threads, arpa, wanted, here, monkeypatch):
    """Cuts into chunks, blocks and pieces of threads."""
    monkeypatch.setattr(engine, "MIN_PIECE_BYTES", 50)
    here.threads = threads
    assert rescored(config(arpa, chunk_bytes=chunk_bytes, best=best), here) == wanted[best]


def test_a_limit_of_memory(arpa, wanted, here):
    cut = config(arpa, chunk_bytes=1000)
    assert rescored(cut, here, memory=MemoryConfig(host_bytes=64 << 20)) == wanted[0]


@pytest.mark.slow
def test_on_a_cluster(cluster, arpa, wanted, hooks, hooks_folder, tmp_path):
    """Workers die before and after chunks, and load their replica again."""
    hooks(**{f"rescore_chunk.{when}": "" for when in ("before1", "before2", "after1", "after2")})
    cut = config(arpa, chunk_bytes=1000)
    result = run(cut, RunContext(cluster, tmp_path / "out"))
    assert (tmp_path / "out" / "nbest.txt").read_text() == wanted[0]
    assert result.totals.hypotheses == LINES and result.path == tmp_path / "out"
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"


@pytest.mark.gpu
@pytest.mark.parametrize("best", [False, True])
def test_on_a_gpu(best, arpa, wanted):
    from mgpu_ngram.cluster.local import LocalExecutor

    executor = LocalExecutor("gpu")
    try:
        for chunk_bytes in None, 1000:
            assert rescored(config(arpa, chunk_bytes=chunk_bytes, best=best), executor) == wanted[best]
    finally:
        executor.close()


def test_few_chunks_wait_for_the_first(arpa, wanted, here, slow_first_chunk):
    """Chunks are consumed in order; while the first one is slow, only a window of others is computed."""
    window = rescore_job.AHEAD * here.workers
    started, _ = slow_first_chunk(rescore_job, "rescore_chunk", window)
    assert rescored(config(arpa, chunk_bytes=1000), here) == wanted[0]
    assert len(started) > window


def test_progress(arpa, wanted, here):
    told = Told()
    rescored(config(arpa, chunk_bytes=1000), here, progress=told)
    [[phase, chunks, unit, rate, done, amount]] = told.phases
    assert (phase, unit, rate) == ("rescore", "chunks", "hypotheses")
    assert (done, amount) == (chunks, LINES)


def test_the_time_of_each_step(arpa, hypotheses, here, tmp_path):
    result = run(config(arpa), RunContext(here, tmp_path / "out"))
    assert result.seconds.keys() == {"load", "read", "parse", "score", "write"} and min(result.seconds.values()) >= 0


def test_system_errors_in_a_task(arpa, wanted, here, monkeypatch):
    """They are not errors of the driver's output: there, a broken pipe would end the run as if it were done."""

    def fail(options):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(engine, "replica_of", fail)
    with pytest.raises(RunError, match=r"^rescoring chunk 0: .* failed: BrokenPipeError: .*Broken pipe"):
        rescored(config(arpa), here)


def test_tuned_weights_do_not_depend_on_workers(cluster, arpa, hypotheses, here, tmp_path):
    pytest.importorskip("rapidfuzz")
    (tmp_path / "right").write_text("a b\n" * 1000)
    ids = list(dict.fromkeys(i for i, *_ in hypotheses))
    text = "".join(f"{ids.index(i)} ||| {text} ||| {features} ||| 7\n" for i, text, features, *_ in hypotheses)
    (tmp_path / "nbest").write_text(text)
    files = {"text": [str(tmp_path / "nbest")], "references": [str(tmp_path / "right")]}
    settings = {"lm": [str(arpa)], "names": ["LM"], "weights": {"F0": 1, "TM": [0, 0]}, "metric": "wer", "restarts": 1}
    found = []
    for executor, chunk_bytes in (here, None), (cluster, 1000):
        tuned = TuneConfig(**files, **settings, chunk_bytes=chunk_bytes)
        result = tune_job.run(tuned, RunContext(executor, tmp_path / "out", overwrite=True))
        found.append((result.weights, result.before, result.after, result.totals))
    assert found[0] == found[1] and found[0][2] > found[0][1]


def test_lattices_on_a_cluster(cluster, arpa, here, tmp_path, monkeypatch):
    """Several tasks give the same texts as one."""
    rng = np.random.default_rng(0)
    lattices = []
    for u in range(30):
        arcs = [(s, s + rng.integers(1, 3), rng.choice(["a", "b", "x"]), rng.integers(9)) for s in range(6)]
        arcs += [(s, s + 1, "b", 4) for s in range(6)]
        lattices.append(f"u{u}\n" + "".join(f"{s} {t} {w} 0,{c}\n" for s, t, w, c in arcs) + "6\n7\n")
    (tmp_path / "nbest").write_text("\n".join(lattices))
    settings = {"names": ["LM"], "weights": {"ac": 0.25, "LM": 1}, "lattices": "kaldi", "n_best": 5}
    made = RescoreConfig([str(tmp_path / "nbest")], [str(arpa)], **settings)
    wanted = rescored(made, here)
    assert len(wanted.splitlines()) > 50
    monkeypatch.setattr(lattices_job, "TASK_BYTES", 300)
    assert rescored(made, cluster) == rescored(made, here) == wanted


@pytest.mark.gpu
def test_lattices_on_a_gpu(arpa, here, tmp_path):
    from mgpu_ngram.cluster.local import LocalExecutor

    (tmp_path / "nbest").write_text("u\n0 1 a 0,1\n0 1 x 0,0.5\n1 2 b 0,2\n1 2 a\n2\n")
    settings = {"names": ["LM"], "weights": {"ac": 0.25, "LM": 1}, "lattices": "kaldi", "n_best": 5}
    made = RescoreConfig([str(tmp_path / "nbest")], [str(arpa)], **settings)
    executor = LocalExecutor("gpu")
    try:
        assert rescored(made, executor) == rescored(made, here) and len(rescored(made, here).splitlines()) == 4
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kaldi": True, "costs": {"ac": 3}}, "the costs ac are 3 but must be the path of an archive"),
        ({"weights": {"model": 10**400}}, "the weight of model is 1000.* but must be a finite number, or a list"),
        ({"weights": {"model": float("inf")}}, "the weight of model is inf but must be a finite number"),
    ],
)
def test_values_of_yaml_that_do_not_fit(settings, message):
    with pytest.raises(InputError, match=message):
        RescoreConfig(["nbest"], ["model.arpa"], ["model"], **settings)


def test_names_of_files_of_models():
    files = ["a.safetensors", "b.arpa.gz", "c.arpa.bin", "runs/trie/model.binary", "d.v2"]
    assert RescoreConfig(["nbest"], files, weights={}, best=True).feature_names == ("a", "b", "c", "trie", "d.v2")
