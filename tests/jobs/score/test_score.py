"""Whole scoring runs: the same scores in the same order for any cut, and after worker deaths."""

import gzip
import json
import math
import re
from collections import OrderedDict

import numpy as np
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.models.model_head import ModelHead, read_head
from mgpu_ngram.core.storage.output import check_free
from mgpu_ngram.engine.score import replica, score_chunk
from mgpu_ngram.engine.trie import replicas
from mgpu_ngram.jobs import chunk_tasks
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.convert import run as convert
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.score import run as score_job
from mgpu_ngram.jobs.score.run import Printing, ScoreConfig, run
from tests.support.slow_cases import first_fast
from tests.support.told_progress import Told

pytestmark = pytest.mark.timeout(120)
CHUNKS = 40


@pytest.fixture
def lines(tmp_path):
    """A file of 2,000 lines of a, b and an unknown word."""
    rng = np.random.default_rng(0)
    path = tmp_path / "text"
    path.write_text("".join(" ".join(rng.choice(["a", "b", "x"], rng.integers(0, 9))) + "\n" for _ in range(2000)))
    return path


def config(arpa, text, **more):
    return ScoreConfig(str(arpa), [str(text)], **more)


def score(config, executor, file=None, take=None, progress=None):
    """Score to a Parquet file, or only to totals; `take` receives the scores of each chunk."""
    context = RunContext(executor, None, progress=progress or Progress())
    printing = Printing(take) if take else None
    return score_job.score(config, context, score_job.open_inputs(config), file, printing)


def table(path):
    return pq.read_table(path).to_pydict()


@pytest.fixture
def whole(arpa, lines, here, tmp_path):
    """Return (totals, tables by level) of one chunk; sums are exact, because values are multiples of 2**-5."""
    results = {level: score(config(arpa, lines, level=level), here, tmp_path / level) for level in ("word", "sentence")}
    totals = results["word"].totals
    assert totals == results["sentence"].totals
    tables = {level: table(tmp_path / level) for level in results}
    assert totals.log10 == math.fsum(tables["sentence"]["prob_log10"]) == math.fsum(tables["word"]["prob_log10"])
    unknown = [prob for prob, v in zip(tables["word"]["prob_log10"], tables["word"]["id"], strict=True) if v == 0]
    assert (totals.oovs, totals.oov_log10) == (len(unknown), math.fsum(unknown)) and len(unknown) > 1000
    assert (totals.sentences, totals.tokens) == (2000, sum(tables["sentence"]["words"])) and totals.tokens > 8000
    assert tables["word"]["sentence"] == [s for s, n in enumerate(tables["sentence"]["words"]) for _ in range(n)]
    return totals, tables


@pytest.mark.parametrize(
    ("level", "chunk_bytes"),
    first_fast([("word", 5000), ("sentence", 100), ("word", 100), ("sentence", 1), ("sentence", 5000)], 2),
)
def test_cuts_change_nothing(level, chunk_bytes, arpa, lines, here, whole, tmp_path):
    cut = config(arpa, lines, level=level, chunk_bytes=chunk_bytes)
    assert score(cut, here, tmp_path / "cut").totals == whole[0]
    assert table(tmp_path / "cut") == whole[1][level]


@pytest.mark.parametrize("level", ["word", "sentence"])
def test_compressed_files(level, arpa, lines, here, whole, tmp_path, monkeypatch):
    """A small file is one task; a large one is read in parts that go to all workers."""
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    tasks, call = [], here.call

    def follow(fn, chunk, *args, **more):
        tasks.append(chunk)
        return call(fn, chunk, *args, **more)

    monkeypatch.setattr(here, "call", follow)
    for chunk_bytes, least, most in (100_000, 1, 1), (500, 20, 60):
        tasks.clear()
        told = Told()
        cut = config(arpa, packed, level=level, chunk_bytes=chunk_bytes)
        assert score(cut, here, tmp_path / "cut", progress=told).totals == whole[0]
        assert table(tmp_path / "cut") == whole[1][level]
        assert least <= len(tasks) <= most and told.phases[-1][4] == len({chunk.index for chunk in tasks})
        assert all(chunk.size_bytes < 4 * chunk_bytes or not chunk.pieces for chunk in tasks)
    assert re.match("chunk 0: .*text.gz, bytes 0 to 4[0-9]{2}$", str(tasks[0]))
    assert re.match("chunk 0: .*text.gz, bytes 4[0-9]{2} to [0-9]{3}$", str(tasks[1]))


def test_on_a_cluster(cluster, arpa, lines, here, whole, hooks, hooks_folder, tmp_path):
    """Workers die before and after chunks, and load their replica again."""
    hooks(**{"score_chunk.before1": "", "score_chunk.before2": "", "score_chunk.after1": "", "score_chunk.after2": ""})
    cut = config(arpa, lines, level="word", chunk_bytes=lines.stat().st_size // CHUNKS)
    assert score(cut, cluster, tmp_path / "cut").totals == whole[0]
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert table(tmp_path / "cut") == whole[1]["word"]


@pytest.mark.multigpu
@pytest.mark.parametrize("gpus", [2, 4])
def test_several_gpus(gpus, arpa, lines, whole, tmp_path):
    if visible_gpus() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    executor = start_cluster("gpu", gpus)
    try:
        for index in "edge", "btree":
            for level in "word", "sentence":
                cut = config(arpa, lines, level=level, index=index, chunk_bytes=500)
                assert score(cut, executor, tmp_path / f"{index} {level}").totals == whole[0]
                assert table(tmp_path / f"{index} {level}") == whole[1][level]
    finally:
        executor.close()


def test_a_chunk_that_always_kills_its_worker(cluster, arpa, lines, hooks, tmp_path):
    hooks(**{"score_chunk.chunk": 7})
    cut = config(arpa, lines, chunk_bytes=lines.stat().st_size // CHUNKS)
    with pytest.raises(RunError, match=r"^scoring chunk 7: .*text, bytes [\d,]+ to [\d,]+ killed every worker"):
        score(cut, cluster, tmp_path / "cut")
    assert not list(tmp_path.glob("*cut*"))
    cluster._watch.error = None  # other tests share these workers


def test_few_chunks_wait_for_the_first(arpa, lines, here, monkeypatch, slow_first_chunk):
    """Chunks are consumed in order; while the first one is slow, only a window of others is computed."""
    real, taken = score_job.score_chunk, []
    window = score_job.AHEAD * here.workers
    started, first = slow_first_chunk(score_job, "score_chunk", window)

    def take(scores):
        assert first.is_set()
        taken.append(float(scores.sentences["prob_log10"].sum()))

    cut = config(arpa, lines, chunk_bytes=lines.stat().st_size // CHUNKS)
    score(cut, here, take=take)
    assert len(taken) == len(started) >= CHUNKS > window
    in_order = []
    monkeypatch.setattr(score_job, "score_chunk", real)
    score(cut, here, take=lambda scores: in_order.append(float(scores.sentences["prob_log10"].sum())))
    assert taken == in_order


def test_progress(arpa, lines, here, whole):
    told = Told()
    score(config(arpa, lines, chunk_bytes=5000), here, progress=told)
    [[phase, chunks, unit, rate, done, amount]] = told.phases
    assert (phase, unit, rate) == ("score", "chunks", "tokens")
    assert (done, amount) == (chunks, whole[0].tokens)


def test_a_model_that_changes_during_the_run(arpa, lines, here, monkeypatch):
    """Between the driver's read and a worker's."""
    before = read_head(str(arpa))
    arpa.write_text(arpa.read_text() + "\n")
    monkeypatch.setattr(score_job, "read_head", lambda path: before)
    with pytest.raises(
        RunError, match=rf"^{arpa} is [\d,]+ bytes of \d+ on this worker but was .* at the start; run again with the"
    ):
        score(config(arpa, lines), here)


def test_a_folder(arpa, lines, here, whole, tmp_path):
    result = run(config(arpa, lines), RunContext(here, tmp_path / "out"))
    assert result.path == tmp_path / "out" and result.totals == whole[0]
    assert table(tmp_path / "out" / "scores.parquet") == whole[1]["sentence"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format"] == "mgpu_ngram scores" and manifest["totals"]["tokens"] == whole[0].tokens
    check_free(tmp_path / "out", overwrite=True)
    json.dumps(result.as_json())


def test_invalid_settings():
    with pytest.raises(InputError, match="chunk_bytes is 0 but must be at least 1"):
        ScoreConfig("m", ["t"], chunk_bytes=0)
    with pytest.raises(InputError, match="name is 'a/b' but must be a plain folder name"):
        ScoreConfig("m", ["t"], name="a/b")


def test_sums_do_not_depend_on_the_order(monkeypatch):
    values = -np.random.default_rng(0).random(1000, np.float32) * 10
    exact = math.fsum(values.tolist())
    assert score_job._in_units(values) * score_job.SUM_UNIT == exact
    monkeypatch.setattr(score_job, "MAX_ADDED", 7)
    assert score_job._in_units(values[::-1]) * score_job.SUM_UNIT == exact
    assert score_job._in_units(np.array([-np.inf, -1])) == -np.inf
    assert score_job._in_units(np.array([-(2.0**60), -(2.0**62)])) * score_job.SUM_UNIT == -(2.0**60) - 2.0**62


@pytest.mark.parametrize("level", ["word", "sentence"])
def test_a_chunk_of_many_blocks(level, arpa, lines, here, whole, tmp_path, monkeypatch):
    """As with little memory: positions in the chunk continue from block to block."""
    real, blocks = score_chunk.device_blocks, []
    monkeypatch.setattr(score_chunk, "MIN_BLOCK_BYTES", 100)
    monkeypatch.setattr(score_chunk, "free_bytes", lambda device: 0)
    monkeypatch.setattr(score_chunk, "device_blocks", lambda *a: (blocks.append(a[0].index) or b for b in real(*a)))
    result = score(config(arpa, lines, level=level), here, tmp_path / "x")
    assert result.totals == whole[0] and table(tmp_path / "x") == whole[1][level]
    assert set(blocks) == {0} and len(blocks) > 50


def test_blocks_are_smaller_with_little_memory(arpa, lines, here, whole, monkeypatch):
    """The tasks of a CPU host share its memory."""
    real, sizes = score_chunk.device_blocks, []
    monkeypatch.setattr(score_chunk, "MIN_BLOCK_BYTES", 1)
    monkeypatch.setattr(
        score_chunk, "free_bytes", lambda device: score_chunk.BYTES_PER_TEXT_BYTE * here.tasks_per_host * 1000
    )
    monkeypatch.setattr(score_chunk, "device_blocks", lambda c, u, size, *a: sizes.append(size) or real(c, u, size, *a))
    assert score(config(arpa, lines), here).totals == whole[0]
    assert set(sizes) == {1000}


def test_a_limit_of_host_memory(arpa, lines, here, whole, tmp_path, monkeypatch):
    """The limit bounds chunks and the number in flight: 0.8 of 96 MiB for three tasks."""
    size, real, windows, sizes = lines.stat().st_size, chunk_tasks.in_order, [], []

    def in_order(executor, calls, window):
        windows.append(window)
        calls = list(calls)
        sizes.append(len(calls))
        return real(executor, iter(calls), window)

    monkeypatch.setattr(chunk_tasks, "in_order", in_order)
    most = int(0.8 * (96 << 20)) // 3
    monkeypatch.setattr(score_job, "BYTES_PER_TEXT_BYTE", most // (size // 10))
    for i, (memory, result_bytes) in enumerate([(None, 1), (96 << 20, 1), (96 << 20, 1 << 30)]):
        monkeypatch.setattr(score_job, "RESULT_BYTES", {False: result_bytes})
        context = RunContext(here, tmp_path / str(i), memory=MemoryConfig(host_bytes=memory))
        assert run(config(arpa, lines), context).totals == whole[0]
    assert windows == [12, 12, 3]
    assert sizes[0] == 1 and sizes[1] == sizes[2] >= 10


def test_a_process_keeps_several_models(arpa, lines, here, tmp_path, monkeypatch):
    """One replica for each file and index; each is loaded once."""
    opened, real = [], replicas.open_model
    monkeypatch.setattr(replicas, "_held", OrderedDict())
    monkeypatch.setattr(replicas, "open_model", lambda head, *a, **o: opened.append(head.path) or real(head, *a, **o))
    other = tmp_path / "other.arpa"
    other.write_text(arpa.read_text())
    for path, index in 2 * [(arpa, "edge"), (arpa, "btree"), (other, "edge")]:
        score(config(path, lines, index=index), here)
    assert opened == [str(arpa), str(arpa), str(other)]


def test_the_edge_table_of_a_file_is_used(arpa, lines, here, whole, tmp_path, monkeypatch):
    convert.build(convert.ConvertConfig(str(arpa), "edge"), tmp_path / "m.safetensors")
    monkeypatch.setattr(replica, "edges_of", None)  # so it is not built
    assert score(config(tmp_path / "m.safetensors", lines), here).totals == whole[0]


def test_checksums_are_compared_unless_verify_is_off(arpa, lines, here, tmp_path):
    path = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(arpa)), path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last letter of a word
    path.write_bytes(data)
    with pytest.raises(InputError, match="is damaged: array"):
        score(config(path, lines), here)
    assert score(config(path, lines, verify=False), here).totals.sentences == 2000


def test_options_of_a_model(arpa, here, tmp_path, monkeypatch):
    """Those of the executor; without one, of a single CPU thread. Workers may have another current directory. An index
    that is named is used, though another one is faster.
    """
    monkeypatch.chdir(tmp_path)
    here.threads, here.tasks_per_host = 5, 7
    found = score_job.model_options(arpa.name, 9, here, False, words="lines", block_bytes=11)
    assert (found.model, found.identity) == (str(arpa), read_head(arpa).identity)
    assert (found.device, found.read_threads, found.tasks_per_host) == ("cpu", 5, 7)
    assert (found.index, found.verify, found.words, found.block_bytes) == ("edge", False, "lines", 11)
    alone = score_job.model_options(arpa.name, 9, None, True, "btree")
    assert (alone.model, alone.index, alone.verify) == (str(arpa), "btree", True)
    assert (alone.device, alone.read_threads, alone.tasks_per_host) == ("cpu", 1, 1)
    convert.build(convert.ConvertConfig(str(arpa)), tmp_path / "m.safetensors")
    indexes = [score_job.model_options("m.safetensors", 1, here, True, index).index for index in ("auto", "edge")]
    assert indexes == ["btree", "edge"]


def test_chunks_are_as_few_as_possible(arpa, lines, monkeypatch):
    """Tasks get less text if word scores are returned, or if workers would get too few tasks."""
    corpus = score_job.open_inputs(config(arpa, lines))
    size = corpus.size_bytes
    monkeypatch.setattr(score_job, "MIN_CHUNK_BYTES", 10)
    monkeypatch.setattr(score_job, "CHUNK_BYTES", {"cpu": size})
    monkeypatch.setattr(score_job, "AHEAD", 1)
    assert score_job.text_per_task(corpus, 1, "cpu", words=False) == size
    assert score_job.text_per_task(corpus, 3, "cpu", words=False) == size // 3
    assert score_job.text_per_task(corpus, 3, "cpu", words=True) == size // score_job.WORDS_SHARE
    assert score_job.text_per_task(corpus, size, "cpu", words=True) == 10


def test_sums_are_rounded_to_the_nearest_unit():
    value = -1.25 * score_job.SUM_UNIT
    assert score_job._in_units(np.array([value])) == -1


def test_blocks_have_positions_of_32_bits(arpa, lines, here, whole, monkeypatch):
    """This holds for chunks of any size."""
    real, sizes = score_chunk.device_blocks, []
    monkeypatch.setattr(score_chunk, "free_bytes", lambda device: 1 << 50)
    monkeypatch.setattr(score_chunk, "device_blocks", lambda c, u, size, *a: sizes.append(size) or real(c, u, size, *a))
    assert score(config(arpa, lines, chunk_bytes=1 << 40), here).totals == whole[0]
    assert len(sizes) == 1 and sizes[0] < 1 << 32


def test_workers_with_another_current_folder(cluster, arpa, lines, whole, tmp_path, monkeypatch):
    """A relative path of a model is relative to this process, like paths of texts."""
    monkeypatch.chdir(tmp_path)
    assert score(config(arpa.name, lines.name), cluster).totals == whole[0]
    made = convert.run(convert.ConvertConfig(arpa.name), RunContext(cluster, "made"))
    assert score(config(made.path.relative_to(tmp_path), lines.name), cluster).totals == whole[0]


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), TimeoutError("too late")])
def test_system_errors_in_a_task(error, arpa, lines, here, monkeypatch, tmp_path):
    """They are not errors of the driver's output: there, a broken pipe would end the run as if it were done."""

    def fail(options):
        raise error

    monkeypatch.setattr(score_chunk, "replica_of", fail)
    with pytest.raises(RunError, match=f"^scoring chunk 0: .* failed: {type(error).__name__}: .*{error.args[-1]}"):
        score(config(arpa, lines), here, tmp_path / "x")


def test_the_manifest_names_the_model_that_scored(arpa, lines, here, tmp_path):
    before = score_job.identify(str(arpa))

    class Changes(Progress):
        def finish(self):
            arpa.write_text("another")

    run(config(arpa, lines), RunContext(here, tmp_path / "out", progress=Changes()))
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["model"]["identity"] == before
    assert arpa.read_text() == "another"


def test_perplexities_beyond_the_largest_double():
    totals = score_job.ScoreTotals(sentences=1, tokens=2, oovs=1, log10=-900.0, oov_log10=-500.0)
    assert totals.perplexity == totals.perplexity_without_oovs == math.inf
    assert score_job.ScoreTotals(1, 2, 2, -900.0, -900.0).summary()["perplexity"] is None


def test_a_table_of_sentences_needs_no_words(arpa, lines, here, tmp_path):
    made = []
    score(config(arpa, lines), here, tmp_path / "x", take=made.append)
    assert made and not any(scores.words or scores.lines for scores in made)


@pytest.mark.parametrize(
    ("device", "tokens", "edge_table", "expected"),
    [("cpu", 299, False, "btree"), ("cpu", 300, False, "edge"), ("cpu", 49, True, "edge"), ("gpu", 1, False, "edge")],
)
def test_a_short_text_with_a_large_model_builds_no_edge_table(device, tokens, edge_table, expected, monkeypatch):
    head = ModelHead("model", head=bytes(8) + b"{")
    monkeypatch.setattr(score_job, "describe_model", lambda _: {"orders": [30, 70], "edge_table": edge_table})
    assert score_job.fastest_index(head, int(tokens * score_job.TEXT_WORD_BYTES), device) == expected


def test_the_index_of_an_arpa_file_is_the_edge_table(arpa):
    assert score_job.fastest_index(read_head(arpa), 1, "cpu") == "edge"
