"""Whole runs of distributions: the same files for any cut, after worker deaths, and after a resume."""

import errno
import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

import mgpu_ngram as ng
from mgpu_ngram.cluster.dask import connect, start_cluster
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.models import distributions
from mgpu_ngram.core.storage import output
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.distribution import tasks as distribute
from mgpu_ngram.engine.memory import copies
from mgpu_ngram.engine.trie import replicas
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.convert import run as convert
from mgpu_ngram.jobs.distribution import passes as distribution_passes
from mgpu_ngram.jobs.distribution import sizes as distribution_sizes
from mgpu_ngram.jobs.distribution.run import DistributionConfig, plan, run
from mgpu_ngram.jobs.progress import Progress
from tests.support.slow_cases import first_fast
from tests.support.slowness import scaled, wait_until
from tests.support.told_progress import Told

HOOKS = Path(__file__).parents[2] / "support" / "task_hooks.py"
pytestmark = pytest.mark.timeout(120)
WORDS = ["<unk>", "<s>", "</s>", "a", "b"]
NGRAMS = {  # of the fixture arpa_text: log10 probability and backoff
    ("<unk>",): (-2, 0), ("<s>",): (0, -0.5), ("</s>",): (-1, 0), ("a",): (-0.75, -0.25), ("b",): (-1.25, -0.125),
    ("<s>", "a"): (-0.5, -0.0625), ("a", "b"): (-0.375, -0.03125), ("b", "</s>"): (-0.625, 0),
    ("a", "</s>"): (-0.875, 0), ("<s>", "a", "b"): (-0.25, 0),
}  # fmt: skip
LACKING = {g: v for g, v in NGRAMS.items() if g != ("b", "</s>")} | {  # a filled n-gram
    ("b", "a"): (-1.5, 0), ("a", "b", "</s>"): (-0.125, 0),
}  # fmt: skip
FORMATS = {
    "zarr": {},
    "npy": {"top_k": 3},
    "compact": {},
    "parquet": {"mode": "stored"},
}


def rows(history, mode, ngrams):
    """Return (3, 5) float32, log10: for each order, the value of each word."""
    known = [word if word in WORDS else "<unk>" for word in history]
    row = np.array([ngrams[word,][0] for word in WORDS], np.float32)
    made = [row]
    for n in 2, 3:
        context = tuple(known[len(known) - n + 1 :]) if len(known) >= n - 1 else None
        row = np.full(5, -np.inf, np.float32) if mode == "stored" else row + np.float32(ngrams.get(context, (0, 0))[1])
        for v, word in enumerate(WORDS):
            if context and (*context, word) in ngrams:
                row[v] = ngrams[*context, word][0]
        made.append(row)
    return made


def histories(lines, bos=True, positions="every"):
    begin = ["<s>"] * bos
    for line in lines:
        words = line.split()
        if positions == "last":
            yield [*begin, *words]
        else:
            yield from ([*begin, *words[:i]] for i in range(len(words) + bos))


def expected(lines, mode="smoothed", bos=True, positions="every", ngrams=NGRAMS):
    return np.array([rows(history, mode, ngrams) for history in histories(lines, bos, positions)])


@pytest.fixture
def lines():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(["a", "b", "x"], rng.integers(0, 9))) for _ in range(300)]


@pytest.fixture
def text(lines, tmp_path):
    path = tmp_path / "text"
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def small_files(monkeypatch):
    """Small chunks: several files of each format, and several row groups."""
    monkeypatch.setattr(distributions, "CHUNK_BYTES", 60 * 70)
    monkeypatch.setattr(distribution_passes, "COMPACT_HISTORIES", 70)
    monkeypatch.setattr(distribution_passes, "MAX_GROUP", 25)


def config(arpa, text, **more):
    return DistributionConfig(str(arpa), [str(text)], **more)


def read(path):
    return np.asarray(ng.open_distributions(path))


# The output


@pytest.mark.parametrize("positions", ["every", "last"])
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("mode", ["smoothed", "stored"])
@pytest.mark.parametrize("format", ["npy", "zarr"])
def test_rows(format, mode, bos, positions, arpa, text, lines, here, tmp_path, small_files):
    lines = [line or "b" for line in lines]
    text.write_text("\n".join(lines))
    settings = {"format": format, "mode": mode, "sentence_markers": bos, "positions": positions, "scale": "log10"}
    result = run(config(arpa, text, **settings), RunContext(here, tmp_path / "out"))
    wanted = expected(lines, mode, bos, positions)
    assert np.array_equal(read(result.path), wanted) and len(wanted) == result.manifest["histories"]


def test_rows_by_hand(arpa, here, tmp_path):
    """After "<s> a": b is stored; </s> backs off to a; the other words back off twice."""
    (tmp_path / "text").write_text("a\n")
    settings = {"positions": "last", "scale": "log10", "format": "npy"}
    run(config(arpa, tmp_path / "text", **settings), RunContext(here, tmp_path / "out"))
    single = [-2, 0, -1, -0.75, -1.25]
    pairs = [-2.25, -0.25, -0.875, -1, -0.375]
    triples = [-2.3125, -0.3125, -0.9375, -1.0625, -0.25]
    assert np.load(tmp_path / "out" / "rows.npy").tolist() == [[single, pairs, triples]]
    settings |= {"mode": "stored", "orders": "max"}
    run(config(arpa, tmp_path / "text", **settings), RunContext(here, tmp_path / "stored"))
    assert np.load(tmp_path / "stored" / "rows.npy").tolist() == [[[-np.inf] * 4 + [-0.25]]]


@pytest.mark.parametrize("orders", ["all", "max", 2, "1,3", [3, 1]])
@pytest.mark.parametrize("scale", ["prob", "ln"])
def test_scales_and_orders(scale, orders, arpa, text, lines, here, tmp_path):
    run(config(arpa, text, scale=scale, orders=orders), RunContext(here, tmp_path / "out"))
    kept = {"all": [0, 1, 2], "max": [2], 2: [1]}.get(orders if isinstance(orders, (str, int)) else "", [0, 2])
    log10 = expected(lines)[:, kept].astype(np.float64)
    wanted = 10.0**log10 if scale == "prob" else log10 * np.log(10)
    np.testing.assert_allclose(read(tmp_path / "out"), wanted, rtol=1e-6)


@pytest.mark.parametrize("format", ["npy", "zarr"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types(dtype, format, arpa, text, lines, here, tmp_path):
    run(config(arpa, text, scale="log10", dtype=dtype, format=format), RunContext(here, tmp_path / "out"))
    wanted = expected(lines)
    if dtype == "bfloat16":
        bits = wanted.view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16  # to nearest, ties to even
        wanted = bits.view(np.float32)
    else:
        wanted = wanted.astype(np.float16)
    found = read(tmp_path / "out")
    assert np.array_equal(found, wanted) and found.dtype == (np.float16 if dtype == "float16" else np.float32)


def ranked(wanted, k, mode):
    """Return (ids, values) of the greatest of each row except <s>, ties by id; -1 where nothing is stored."""
    wanted = wanted.copy()
    wanted[:, :, 1] = -np.inf
    ids = np.argsort(-wanted, axis=2, kind="stable")[:, :, :k]
    values = np.take_along_axis(wanted, ids, axis=2)
    none = np.isneginf(values)
    return np.where(none, -1, ids), values


@pytest.mark.parametrize("mode", ["smoothed", "stored"])
@pytest.mark.parametrize("format", ["npy", "zarr", "parquet"])
def test_top_k(format, mode, arpa, text, lines, here, tmp_path, small_files):
    settings = {"top_k": 3, "scale": "log10", "mode": mode, "format": format}
    result = run(config(arpa, text, **settings), RunContext(here, tmp_path / "out"))
    ids, values = ranked(expected(lines, mode), 3, mode)
    if format != "parquet":
        found_ids, found_values = (np.asarray(array) for array in ng.open_distributions(result.path))
        assert np.array_equal(found_ids, ids) and np.array_equal(found_values, values)
        assert found_ids.dtype == np.int32
        return
    table = {name: [] for name in ("history", "order", "rank", "id", "word", "value")}
    for h, n, r in np.ndindex(ids.shape):
        if (v := int(ids[h, n, r])) >= 0:
            for name, x in zip(table, (h, n + 1, r + 1, v, WORDS[v], float(values[h, n, r])), strict=True):
                table[name].append(x)
    files = sorted(result.path.glob("*.parquet"))
    assert len(files) > 5 and tables(files) == table


def tables(files):
    parts = [pq.read_table(file).to_pydict() for file in files]
    return {name: [x for part in parts for x in part[name]] for name in parts[0]}


def stored_table(wanted, lowest=0):
    """Return the columns of rows in mode stored."""
    table = {name: [] for name in ("history", "order", "id", "word", "value")}
    for h, n, v in np.ndindex(wanted.shape):
        if wanted[h, n, v] > -np.inf and n >= lowest:
            for name, x in zip(table, (h, n + 1, v, WORDS[v], float(wanted[h, n, v])), strict=True):
                table[name].append(x)
    return table


@pytest.mark.parametrize("orders", ["all", "2,3"])
def test_stored_rows_as_parquet(orders, arpa, text, lines, here, tmp_path, small_files):
    settings = {"orders": orders, "scale": "log10", "mode": "stored", "format": "parquet"}
    result = run(config(arpa, text, **settings), RunContext(here, tmp_path / "out"))
    wanted = expected(lines, "stored")
    table = stored_table(wanted, 0 if orders == "all" else 1)
    files = sorted(result.path.glob("part-*.parquet"))
    assert tables(files) == table and pq.ParquetFile(files[0]).num_row_groups == 4
    for scale, value in ("prob", 10 ** np.array(table["value"])), ("ln", np.log(10) * np.array(table["value"])):
        run(config(arpa, text, **settings | {"scale": scale}), RunContext(here, tmp_path / scale))
        found = tables(sorted((tmp_path / scale).glob("part-*.parquet")))
        np.testing.assert_allclose(found.pop("value"), value, rtol=1e-6)
        assert found == {name: column for name, column in table.items() if name != "value"}
    with pytest.raises(
        InputError, match=r"out is of format parquet; read .*out/part-\*\.parquet with a Parquet reader"
    ):
        ng.open_distributions(result.path)


def test_compact_blocks_are_whole(arpa, text, lines, here, tmp_path, small_files):
    """Each output holds all data that its rows need, exactly."""
    run(config(arpa, text, format="compact"), RunContext(here, tmp_path / "out"))
    blocks = ng.open_distributions(tmp_path / "out")
    wanted = expected(lines)
    assert len(blocks) == -(-len(wanted) // 70) and blocks.words.id("b") == 4 and blocks.begin == 1
    found = [ng.compact.densify(block, "cpu", scale="log10") for block in blocks]
    assert [len(rows) for rows in found] == [70] * (len(wanted) // 70) + [len(wanted) % 70]
    assert np.array_equal(np.concatenate(found), wanted)


def write_lacking(path):
    text = "\\data\\\n" + "".join(f"ngram {n}={sum(len(g) == n for g in LACKING)}\n" for n in (1, 2, 3))
    for n in 1, 2, 3:
        lines = ["\t".join(map(str, (p, " ".join(g), *[b] * (n < 3)))) for g, (p, b) in LACKING.items() if len(g) == n]
        text += "\n".join([f"\n\\{n}-grams:", *lines, ""])
    path.write_text(text + "\n\\end\\\n")
    return path


def check_lacking(executor, text, lines, tmp_path):
    """Every format holds the stored values; smoothed rows equal those of a model without filled n-grams."""
    model, wanted = write_lacking(tmp_path / "lacking.arpa"), expected(lines, "stored", ngrams=LACKING)
    assert len(ng.Model.load(model, "cpu").arrays.trie.filled_F) == 1 and (wanted[:, 2, 2] == -0.125).any()
    for format, more in FORMATS.items():
        settings = {"format": format, "scale": "log10", "mode": "stored", "chunk_bytes": 500, **more}
        if format == "compact":
            del settings["mode"], settings["scale"]
        run(config(model, text, **settings), RunContext(executor, tmp_path / format))
    assert np.array_equal(read(tmp_path / "zarr"), wanted)
    for array, best in zip(ng.open_distributions(tmp_path / "npy"), ranked(wanted, 3, "stored"), strict=True):
        assert np.array_equal(np.asarray(array), best)
    assert tables(sorted((tmp_path / "parquet").glob("part-*.parquet"))) == stored_table(wanted)
    blocks = ng.open_distributions(tmp_path / "compact")
    found = [ng.compact.densify(block, "cpu", mode="stored", scale="log10") for block in blocks]
    assert np.array_equal(np.concatenate(found), wanted)
    smoothed = expected(lines, ngrams=LACKING)
    found = [ng.compact.densify(block, "cpu", scale="log10") for block in blocks]
    assert np.array_equal(np.concatenate(found), smoothed)
    run(config(model, text, scale="log10"), RunContext(executor, tmp_path / "smoothed"))
    assert np.array_equal(read(tmp_path / "smoothed"), smoothed)


def test_a_model_with_missing_ngrams(text, lines, here, tmp_path, small_files):
    check_lacking(here, text, lines, tmp_path)


def test_words_that_are_not_utf8(arpa_text, here, tmp_path):
    (tmp_path / "model.arpa").write_bytes(arpa_text.encode().replace(b"\tb", b"\t\xff").replace(b"a b", b"a \xff")
                                          .replace(b"b </s>", b"\xff </s>"))  # fmt: skip
    (tmp_path / "text").write_bytes(b"a \xff\n")
    settings = {"mode": "stored", "format": "parquet", "orders": 3}
    result = run(config(tmp_path / "model.arpa", tmp_path / "text", **settings), RunContext(here, tmp_path / "out"))
    assert tables(result.path.glob("*.parquet"))["word"] == ["\ufffd"]
    assert distributions.read_words(result.path)[0].symbol(4) == b"\xff"


def test_dask_reads_only_the_requested_rows(arpa, text, lines, here, tmp_path, small_files):
    run(config(arpa, text, scale="log10"), RunContext(here, tmp_path / "out"))
    array, wanted = ng.open_distributions(tmp_path / "out"), expected(lines)
    assert array.shape == wanted.shape and len(array.chunks[0]) == -(-len(wanted) // 70) and array.dtype == np.float32
    assert np.array_equal(array[65:75, -1].compute(), wanted[65:75, -1])
    assert array[:, 2, [0, 3]].sum().compute() == pytest.approx(wanted[:, 2, [0, 3]].sum())


def test_no_text(arpa, here, tmp_path):
    (tmp_path / "text").write_text("")
    for format, more in FORMATS.items():
        result = run(config(arpa, tmp_path / "text", format=format, **more), RunContext(here, tmp_path / format))
        assert result.manifest["histories"] == 0
    assert read(tmp_path / "zarr").shape == (0, 3, 5) and len(ng.open_distributions(tmp_path / "compact")) == 0
    assert [array.shape for array in ng.open_distributions(tmp_path / "npy")] == [(0, 3, 3)] * 2


def test_a_model_without_backoffs(arpa, text, lines, here, tmp_path):
    model = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(arpa), backoff=False), model)
    run(config(model, text, mode="stored", scale="log10"), RunContext(here, tmp_path / "out"))
    assert np.array_equal(read(tmp_path / "out"), expected(lines, "stored"))
    with pytest.raises(InputError, match=r"m\.safetensors has no backoffs, which smoothed rows need; .* mode stored$"):
        run(config(model, text), RunContext(here, tmp_path / "out", overwrite=True))


def test_a_damaged_model(arpa, text, here, tmp_path):
    """Checksums find the damage, unless verify is off."""
    model = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(arpa)), model)
    data, value = model.read_bytes(), np.float32(-0.375).tobytes()
    assert data.count(value) == 1
    model.write_bytes(data.replace(value, np.float32(-0.25).tobytes()))
    with pytest.raises(InputError, match=r"m\.safetensors is damaged: "):
        run(config(model, text), RunContext(here, tmp_path / "out"))
    run(config(model, text, verify=False), RunContext(here, tmp_path / "out"))


def test_the_manifest(arpa, text, lines, here, tmp_path):
    result = run(config(arpa, text, orders="1,3", dtype="float16"), RunContext(here, tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())
    H = len(expected(lines))
    assert found["arrays"] == {"rows": {"shape": [H, 2, 5], "dtype": "float16", "chunk_rows": H}}
    assert (found["order"], found["orders"], found["symbols"], found["histories"]) == (3, [1, 3], 5, H)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert found["size_bytes"] == sum(path.stat().st_size for path in files) > H * 2 * 5 * 2
    assert found["inputs"] == [{"name": str(text), "size_bytes": text.stat().st_size}]
    assert result.bytes_per_second > 0 and {"load", "find", "rows", "write"} <= result.seconds.keys()
    json.dumps(result.as_json())


# Any cut


@pytest.fixture
def whole(arpa, text, here, contents, tmp_path, small_files):
    """The files of each format, from one chunk and one process."""
    found = {}
    for format, more in FORMATS.items():
        result = run(
            config(arpa, text, format=format, chunk_bytes=1 << 20, **more),
            RunContext(here, tmp_path / f"whole {format}"),
        )
        found[format] = contents(result.path)
    return found


@pytest.mark.parametrize("chunk_bytes", first_fast([100, 1, 1500]))
@pytest.mark.parametrize("format", FORMATS)
def test_cuts_change_nothing(format, chunk_bytes, arpa, text, here, contents, whole, tmp_path, monkeypatch):
    """Cuts of the text; cuts of the rows, down to blocks of one history; and cuts of the bytes written to the disk."""
    monkeypatch.setattr(distribute, "MIN_TEXT_BYTES", 50)
    monkeypatch.setattr(copies, "COPY_SLICE_BYTES", 17)
    monkeypatch.setattr(distribute, "free_bytes", lambda device: 0)
    cut = config(arpa, text, format=format, chunk_bytes=chunk_bytes, **FORMATS[format])
    assert contents(run(cut, RunContext(here, tmp_path / "out")).path) == whole[format]


def test_compressed_text(arpa, text, here, contents, whole, tmp_path):
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    result = run(config(arpa, packed), RunContext(here, tmp_path / "out"))
    assert without_inputs(contents(result.path)) == without_inputs(whole["zarr"])


def without_inputs(files):
    return {name: data for name, data in files.items() if name != "manifest.json"}


def test_chunks_follow_the_output_size(text):
    """A task writes about the same number of bytes for any vocabulary, and every worker gets tasks."""
    corpus = open_corpus([str(text)])
    assert distribution_sizes.chunk_bytes(corpus, 1, "cpu", 1, 5.5) == distribution_sizes.MIN_CHUNK_BYTES
    large = replace(corpus, sources=(replace(corpus.sources[0], size_bytes=1 << 40),))
    most = distribution_sizes.MAX_CHUNK_BYTES
    assert distribution_sizes.chunk_bytes(large, 1, "cpu", 1, 5.5) == most
    assert distribution_sizes.chunk_bytes(large, 1 << 20, "cpu", 1, 5.5) == 1 << 18
    for positions in "every", "last":
        length = distribution_sizes.text_bytes(DistributionConfig("m", ["t"], positions=positions))
        rows = distribution_sizes.chunk_bytes(large, 1, "gpu", 1 << 20, length) / length
        assert 1000 < rows < 1025, "of 1 MiB each"


def test_tasks_of_a_host_share_its_memory(arpa, text, here, tmp_path, monkeypatch):
    real, told = distribute.block_rows, set()
    monkeypatch.setattr(distribute, "free_bytes", lambda device: 900)
    monkeypatch.setattr(distribute, "block_rows", lambda *more: (told.add(more[-1]), real(*more))[1])
    run(config(arpa, text), RunContext(here, tmp_path / "out"))
    assert told == {300}, "of three tasks"


def test_few_tasks_are_submitted_ahead(arpa, text, here, tmp_path, monkeypatch):
    """Only as many tasks are submitted as keep the workers busy, so the scheduler need not hold all of them."""
    real, under_way = here.call, []

    def call(fn, *more, **named):
        if fn is distribution_passes.write_distributions:
            under_way.append(len(under_way) + 1 - told.phases[-1][4])
        return real(fn, *more, **named)

    told = Told()
    monkeypatch.setattr(here, "call", call)
    run(config(arpa, text, chunk_bytes=60), RunContext(here, tmp_path / "out", progress=told or Progress()))
    assert max(under_way) == 3 * distribution_sizes.AHEAD < len(under_way) == told.phases[-1][4]


def test_parts_are_written_by_one_task(arpa, text, here, whole, tmp_path, monkeypatch):
    """Each part is written by the task of the chunk in which it begins."""
    real, ranges = distribution_passes.write_distributions, []

    def follow(chunk, following, starts, first, last, options):
        ranges.append((first, last))
        assert len(starts) == len(following) + 2 and starts[0] <= first and starts[-2] < last <= starts[-1]
        return real(chunk, following, starts, first, last, options)

    monkeypatch.setattr(distribution_passes, "write_distributions", follow)
    result = run(config(arpa, text, format="compact", chunk_bytes=100), RunContext(here, tmp_path / "out"))
    ranges.sort()
    assert len(ranges) > 15 and all(first % 70 == 0 for first, _ in ranges)
    assert [last for _, last in ranges] == [first for first, _ in ranges[1:]] + [result.manifest["histories"]]


# On a cluster


@pytest.mark.slow
def test_on_a_cluster(cluster, arpa, text, contents, whole, hooks, tmp_path):
    for format, chunk_bytes in itertools.product(FORMATS, (300, 2000)):
        cut = config(arpa, text, format=format, chunk_bytes=chunk_bytes, **FORMATS[format])
        result = run(cut, RunContext(cluster, tmp_path / "out", overwrite=True))
        assert contents(result.path) == whole[format]


@pytest.mark.slow
def test_a_model_with_missing_ngrams_on_a_cluster(cluster, text, lines, hooks, tmp_path, small_files):
    check_lacking(cluster, text, lines, tmp_path)


@pytest.mark.parametrize(
    ("format", "deaths"),
    first_fast(
        [("zarr", ["write_distributions.after", "save_done.after"]), ("compact", ["write_distributions.before"])]
    ),
)
def test_workers_die(format, deaths, cluster, arpa, text, contents, whole, hooks, hooks_folder, tmp_path):
    """Before and after chunks, and after they have recorded the finished chunks."""
    hooks(**dict.fromkeys(deaths, ""))
    cut = config(arpa, text, format=format, chunk_bytes=300)
    result = run(cut, RunContext(cluster, tmp_path / "out", checkpoint_seconds=0))
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"
    assert contents(result.path) == whole[format]
    assert [name for name in os.listdir(tmp_path) if name.startswith("out")] == ["out"]


def test_a_chunk_that_always_kills_its_worker(cluster, arpa, text, hooks, tmp_path):
    hooks(**{"write_distributions.chunk": 3})
    cut = config(arpa, text, chunk_bytes=300)
    with pytest.raises(
        RunError, match=r"^making the distributions of chunk 3: .*text, bytes [\d,]+ to [\d,]+ killed ev"
    ):
        run(cut, RunContext(cluster, tmp_path / "out"))
    cluster._watch.error = None  # other tests share these workers


@pytest.mark.slow
def test_workers_with_another_current_folder(cluster, arpa, text, lines, hooks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(DistributionConfig(arpa.name, [text.name], scale="log10"), RunContext(cluster, "out"))
    assert np.array_equal(read("out"), expected(lines))


@pytest.mark.multigpu
@pytest.mark.parametrize("gpus", [2, 4])
def test_several_gpus(gpus, arpa, text, here, contents, tmp_path, monkeypatch):
    if visible_gpus() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    monkeypatch.setattr(distribution_passes, "COMPACT_HISTORIES", 70)
    executor = start_cluster("gpu", gpus)
    try:
        for format, more in FORMATS.items():
            settings = {"format": format, **more}
            alone = run(config(arpa, text, **settings), RunContext(here, tmp_path / f"alone {format}"))
            cut = run(config(arpa, text, chunk_bytes=300, **settings), RunContext(executor, tmp_path / format))
            assert contents(cut.path) == contents(alone.path)
    finally:
        executor.close()


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS)
def test_on_a_gpu(format, arpa, text, here, contents, whole, tmp_path):
    executor = LocalExecutor("gpu")
    try:
        settings = {"format": format, **FORMATS[format]}
        assert (
            contents(run(config(arpa, text, **settings), RunContext(executor, tmp_path / "out")).path) == whole[format]
        )
    finally:
        executor.close()


# Early ends


class Interrupt(Progress):
    """Send Ctrl-C when `done` chunks are written and `least` of them are recorded below a folder."""

    def __init__(self, done, folder=None, least=0):
        self.left, self.folder, self.least, self.phase = done, folder, least, ""

    def start(self, phase, total, unit="", rate=""):
        self.phase = phase

    def advance(self, done, amount=0):
        if self.phase == "distribution":
            self.left -= done
            if self.left <= 0:
                wait_until(lambda: not self.least or len(noted(self.folder)) >= self.least)
                raise KeyboardInterrupt
            time.sleep(0.02)  # for chunks recorded meanwhile


CUT = {"chunk_bytes": 60}


def noted(folder):
    """Return the finished chunks, from the checkpoint below a folder."""
    files = folder.glob("out.checkpoint/entries-*/done_*.safetensors")
    return {item for file in files for item in load_arrays(file)[1]["items"]}


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("out"))


def unfinished(arpa, text, tmp_path, format="zarr"):
    executor = LocalExecutor(workers=3)
    try:
        with pytest.raises(KeyboardInterrupt):
            cut = config(arpa, text, format=format, **CUT, **FORMATS[format])
            run(cut, RunContext(executor, tmp_path / "out", progress=Interrupt(8, tmp_path, 4), checkpoint_seconds=0))
    finally:
        executor.close()  # a running task records one more chunk
    assert names(tmp_path) == ["out.checkpoint"] and len(noted(tmp_path)) >= 4
    return noted(tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_resumed(format, arpa, text, here, whole, contents, tmp_path, monkeypatch):
    """Recorded chunks are not computed again, with any number of workers."""
    done = unfinished(arpa, text, tmp_path, format)
    real, made = distribution_passes.write_distributions, []
    monkeypatch.setattr(
        distribution_passes,
        "write_distributions",
        lambda chunk, *more: (made.append(chunk.index), real(chunk, *more))[1],
    )
    other, told = LocalExecutor(workers=1), Told()
    try:
        again = config(arpa, text, format=format, **FORMATS[format])
        result = run(again, RunContext(other, tmp_path / "out", progress=told or Progress(), resume=True))
    finally:
        other.close()
    assert [phase[1] for phase in told.phases] == [phase[4] for phase in told.phases], "bars reach their ends"
    assert result.resumed_chunks == len(done) and done.isdisjoint(made) and made
    assert contents(result.path) == whole[format] and names(tmp_path) == ["out"]


def test_missing_files_are_written_again(arpa, text, here, whole, contents, tmp_path):
    """As after a run that ended between moving the files and renaming the folder."""
    unfinished(arpa, text, tmp_path)
    [files] = tmp_path.glob("out.checkpoint/entries-*/files_*")
    shutil.rmtree(files)
    result = run(config(arpa, text), RunContext(here, tmp_path / "out", resume=True))
    assert result.resumed_chunks == 0 and contents(result.path) == whole["zarr"]


def test_an_output_that_appears_during_the_run(arpa, text, here, whole, contents, tmp_path):
    """No recorded chunk is lost."""

    class Appear(Progress):
        def finish(self):
            (tmp_path / "out").mkdir()

    with pytest.raises(InputError, match="out exists; add --overwrite"):
        run(config(arpa, text, **CUT), RunContext(here, tmp_path / "out", progress=Appear(), checkpoint_seconds=0))
    done = noted(tmp_path)
    (tmp_path / "out").rmdir()
    result = run(config(arpa, text), RunContext(here, tmp_path / "out", resume=True))
    assert result.resumed_chunks == len(done) > 0 and contents(result.path) == whole["zarr"]


def test_an_interrupt_after_the_rename(arpa, text, here, whole, contents, tmp_path, monkeypatch):
    """While the old output, which may be large, is removed."""
    real = shutil.rmtree

    def interrupt(path, *more, **named):
        if ".old-" in str(path):
            raise KeyboardInterrupt
        real(path, *more, **named)

    run(config(arpa, text, scale="ln"), RunContext(here, tmp_path / "out"))
    with monkeypatch.context() as slow:
        slow.setattr(output.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config(arpa, text, **CUT), RunContext(here, tmp_path / "out", overwrite=True, checkpoint_seconds=0))
    assert contents(tmp_path / "out") == whole["zarr"]
    old = [name for name in names(tmp_path) if name != "out"]
    assert len(old) == 1 and ".old-" in old[0]


def test_existing_output_needs_resume_or_overwrite(arpa, text, here, whole, contents, tmp_path):
    unfinished(arpa, text, tmp_path)
    with pytest.raises(InputError, match=r"holds an unfinished run of .* add --resume .* or --overwrite"):
        run(config(arpa, text), RunContext(here, tmp_path / "out"))
    result = run(config(arpa, text), RunContext(here, tmp_path / "out", overwrite=True))
    assert result.resumed_chunks == 0 and contents(result.path) == whole["zarr"] and names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arpa, text: {"scale": "ln"}, 'the options changed: options.scale was "prob", is "ln"; undo'),
        (lambda arpa, text: {"orders": "max"}, 'the options changed: options.orders was "all", is "max"; undo'),
        (lambda arpa, text: {"mode": "stored"}, 'options.mode was "smoothed", is "stored"; undo'),
        (lambda arpa, text: {"dtype": "float16"}, 'options.dtype was "float32", is "float16"; undo'),
        (lambda arpa, text: {"top_k": 3}, "options.top_k was null, is 3; undo"),
        (lambda arpa, text: {"format": "npy"}, 'options.format was "zarr", is "npy"; undo'),
        (lambda arpa, text: {"positions": "last"}, 'options.positions was "every", is "last"; undo'),
        (lambda arpa, text: {"sentence_markers": False}, "options.sentence_markers was true, is false; undo"),
        (lambda arpa, text: text.write_text("a\n") and {}, r"the text changed: text.inputs.0.size_bytes was \d+, is 2"),
        (lambda arpa, text: os.utime(text, (1, 1)) or {}, r"the text changed: text.inputs.0.modified was"),
        (lambda arpa, text: os.utime(arpa, (1, 1)) or {}, r"the model changed: model.identity was"),
    ],
)
def test_another_run_is_refused(change, message, arpa, text, here, tmp_path):
    unfinished(arpa, text, tmp_path)
    more = change(arpa, text)
    with pytest.raises(InputError, match=message):
        run(config(arpa, text, **more), RunContext(here, tmp_path / "out", resume=True))
    assert names(tmp_path) == ["out.checkpoint"]


def test_a_run_without_recorded_chunks_leaves_nothing(arpa, text, here, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(config(arpa, text, **CUT), RunContext(here, tmp_path / "out", progress=Interrupt(3)))
    here.close()
    assert names(tmp_path) == []


@pytest.mark.slow
def test_the_driver_is_killed(arpa, text, here, contents, hooks, tmp_path):
    """Together with its two workers; recorded chunks are kept."""
    hooks(**{"write_distributions.slow": 0.1})
    command = [sys.executable, str(HOOKS), "distribution", str(arpa), str(text), "-o", str(tmp_path / "out")]
    command += ["--chunk-bytes", "300", "--checkpoint-seconds", "0", "--workers", "2", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(noted(tmp_path)) >= 4 or process.poll() is not None)
        assert process.poll() is None and len(noted(tmp_path)) >= 4, process.communicate()
        started = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
    process.communicate()
    assert len(started) >= 2
    psutil.wait_procs(started, timeout=scaled(30))
    done = noted(tmp_path)
    result = run(config(arpa, text), RunContext(here, tmp_path / "out", resume=True))
    assert result.resumed_chunks == len(done) >= 4 and names(tmp_path) == ["out"]
    assert contents(result.path) == contents(run(config(arpa, text), RunContext(here, tmp_path / "again")).path)


@pytest.mark.slow
def test_the_scheduler_is_lost(dask_processes, arpa, text, here, whole, contents, hooks, tmp_path):
    file, processes = dask_processes(2)
    hooks(**{"write_distributions.slow": 0.05})

    class Lose(Progress):
        def advance(self, done, amount=0):
            if noted(tmp_path):
                processes[0].kill()

    executor = connect(None, str(file), "cpu", 2)
    try:
        with pytest.raises(RunError, match=r"^the Dask scheduler \S+ was lost; start one, then run again"):
            run(
                config(arpa, text, **CUT), RunContext(executor, tmp_path / "out", progress=Lose(), checkpoint_seconds=0)
            )
    finally:
        executor.close()
    assert names(tmp_path) == ["out.checkpoint"]
    result = run(config(arpa, text), RunContext(here, tmp_path / "out", resume=True))
    assert result.resumed_chunks > 0 and contents(result.path) == whole["zarr"]


# Disks


@pytest.mark.parametrize("format", ["zarr", "npy"])
def test_an_output_larger_than_the_disk(format, arpa, text, lines, here, tmp_path, monkeypatch):
    needed = expected(lines).nbytes
    for free in needed, needed - 1:
        usage = type(shutil.disk_usage(tmp_path))(1 << 40, 0, free)
        monkeypatch.setattr(distribution_passes.shutil, "disk_usage", lambda path, usage=usage: usage)
        if free == needed:
            run(config(arpa, text, format=format), RunContext(here, tmp_path / "out"))
            shutil.rmtree(tmp_path / "out")
            continue
        message = (
            rf"^the output needs {needed:,} bytes but {free:,} are free in {tmp_path}; give top_k, .* or a path with"
        )
        with pytest.raises(InputError, match=message):
            run(config(arpa, text, format=format), RunContext(here, tmp_path / "out"))
    assert names(tmp_path) == []


def test_existing_files_need_no_further_space(arpa, text, here, whole, contents, tmp_path, monkeypatch):
    unfinished(arpa, text, tmp_path)
    sparse = sum(path.stat().st_blocks for path in tmp_path.rglob("c.*"))
    assert sparse > 0, "this file system has no blocks"
    needed = whole_bytes(whole) - 512 * sum(p.stat().st_blocks for p in tmp_path.glob("out.checkpoint/*/*/**/*"))
    usage = type(shutil.disk_usage(tmp_path))(1 << 40, 0, max(0, needed))
    monkeypatch.setattr(distribution_passes.shutil, "disk_usage", lambda path: usage)
    assert contents(run(config(arpa, text), RunContext(here, tmp_path / "out", resume=True)).path) == whole["zarr"]


def whole_bytes(files):
    return json.loads(files["zarr"]["manifest.json"])["histories"] * 3 * 5 * 4


@pytest.mark.parametrize("format", first_fast(FORMATS))
def test_a_full_disk(format, arpa, text, here, whole, contents, tmp_path, monkeypatch):
    """Some chunks are recorded already: one line reports the full disk, and the run resumes when space is free."""

    def until_some_are_noted(real, is_output):
        def write(file, *more):
            if is_output(file) and noted(tmp_path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            time.sleep(0.01)
            return real(file, *more)

        return write

    cut = config(arpa, text, format=format, **CUT, **FORMATS[format])
    with monkeypatch.context() as full:
        full.setattr(distributions, "write_at", until_some_are_noted(distributions.write_at, lambda file: True))
        full.setattr(output, "open_file", until_some_are_noted(output.open_file, lambda path: "files_" in str(path)))
        with pytest.raises(RunError, match=r"^cannot write .* after [\d,]+ bytes: No space left on device; free space"):
            run(cut, RunContext(here, tmp_path / "out", checkpoint_seconds=0))
    assert names(tmp_path) == ["out.checkpoint"]
    result = run(cut, RunContext(here, tmp_path / "out", resume=True))
    assert result.resumed_chunks > 0 and contents(result.path) == whole[format]


def test_a_disk_that_is_full_at_fsync(arpa, text, here, tmp_path, monkeypatch):
    """Written data is still on its way to the disk."""

    def fail(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(distribute.os, "fsync", fail)
    with pytest.raises(RunError, match=r"^cannot write .*: No space left on device; free space there or give another"):
        distribute.save_done([distribute.WrittenRows(1, (str(text),), {})], [0], str(tmp_path), "done")
    assert list(tmp_path.glob("done*")) == []


def test_data_is_on_disk_before_it_is_recorded(tmp_path, monkeypatch):
    """Files, and the folders that contain new files."""
    told = []
    monkeypatch.setattr(distribute.os, "fsync", lambda file: told.append(os.fstat(file).st_ino))
    monkeypatch.setattr(distribute, "save_entry", lambda *entry: told.append(entry))
    (tmp_path / "rows.zarr").mkdir()
    paths = [tmp_path / "one", tmp_path / "rows.zarr" / "c.0.0.0", tmp_path / "rows.zarr" / "c.1.0.0"]
    for path in paths:
        path.touch()
    one, zero, first = map(str, paths)
    written = [distribute.WrittenRows(1, (one, zero), {}), distribute.WrittenRows(1, (zero, first), {})]
    distribute.save_done(written, [3, 4], "entries", "done")
    wanted = {path.stat().st_ino for path in (*paths, tmp_path, tmp_path / "rows.zarr")}
    assert {*told[:-1]} == wanted and told[-1] == ("entries", "done", [3, 4], {})


@pytest.mark.parametrize("format", FORMATS)
def test_a_task_names_all_files_that_it_writes(format, arpa, text, here, small_files, tmp_path, monkeypatch):
    real, named = distribution_passes.save_done, set()

    def follow(written, *more):
        named.update(Path(file).name for one in written for file in one.files)
        return real(written, *more)

    monkeypatch.setattr(distribution_passes, "save_done", follow)
    result = run(
        config(arpa, text, format=format, **FORMATS[format]), RunContext(here, tmp_path / "out", checkpoint_seconds=0)
    )
    files = {path.name for path in result.path.rglob("*") if path.is_file()}
    assert named == files - {"manifest.json", "words.safetensors", "zarr.json"} and named


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("data", ["a\n" * 10 + " " * 10_000, "\n" * 10_000], ids=["fewer", "more"])
def test_text_that_changes_during_the_run(data, format, arpa, text, here, tmp_path, small_files):
    """Between the two reads: the same number of bytes, with fewer histories or more."""

    class Change(Progress):
        def start(self, phase, total, unit="", rate=""):
            if phase == "distribution":
                text.write_text(data[: text.stat().st_size])

    message = r"^chunk \d: .*text, bytes .* has \d+ histories but had \d+ at first: the file has changed; run again$"
    cut = config(arpa, text, format=format, chunk_bytes=500, **FORMATS[format])
    with pytest.raises(RunError, match=message):
        run(cut, RunContext(here, tmp_path / "out", progress=Change()))
    here.close()
    assert names(tmp_path) == []


def test_a_model_that_changes_during_the_run(arpa, text, here, tmp_path):
    class Change(Progress):
        def start(self, phase, total, unit="", rate=""):
            arpa.write_text(arpa.read_text() + "\n")
            replicas._held.clear()

    with pytest.raises(
        RunError, match=rf"^{arpa} is [\d,]+ bytes of \d+ on this worker but was .* at the start; run again with the"
    ):
        run(config(arpa, text), RunContext(here, tmp_path / "out", progress=Change()))


def test_progress(arpa, text, lines, here, tmp_path):
    run(config(arpa, text, **CUT), RunContext(here, tmp_path / "out", progress=(progress := Told())))
    told = progress.phases
    chunks = told[0][1]
    assert told[0] == ["count", chunks, "chunks", "bytes", chunks, text.stat().st_size]
    assert told[1] == ["distribution", chunks, "chunks", "histories", chunks, len(expected(lines))] and chunks > 10


# Invalid input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k is 0 but must be 1 to 1,024; leave it out for all words"),
        ({"top_k": 1025}, "top_k is 1025 but must be 1 to 1,024"),
        ({"top_k": 3, "dtype": "float16"}, "dtype is float16 but the values of top_k are float32; leave dtype out"),
        (
            {"format": "compact", "top_k": 3},
            "top_k is 3 but format compact is exact .*; leave top_k out, or give format z",
        ),
        ({"format": "compact", "orders": "all"}, "orders is all but format compact is exact"),
        ({"format": "compact", "mode": "stored"}, "mode is stored but format compact"),
        ({"format": "compact", "dtype": "float32"}, "dtype is float32 but format compact"),
        ({"format": "compact", "scale": "prob"}, "scale is prob but format compact"),
        (
            {"format": "parquet"},
            "format parquet has a row for each word, but smoothed .*; give top_k, mode stored, or form",
        ),
        (
            {"format": "parquet", "mode": "stored", "dtype": "float16"},
            "dtype is float16 but the values of format parquet",
        ),
        ({"chunk_bytes": 0}, "chunk_bytes is 0 but must be at least 1"),
        ({"name": "a/b"}, "name is 'a/b' but must be a plain folder name"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(InputError, match=message) as error:
        DistributionConfig("m", ["t"], **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("orders", [4, 0, "2,4", [], "x", "1;2"])
def test_orders_that_the_model_lacks(orders, arpa, text, here, tmp_path):
    with pytest.raises(
        InputError, match=r"^orders is .* but (the model has orders 1 to 3; give some|must be all, max or)"
    ):
        run(config(arpa, text, orders=orders), RunContext(here, tmp_path / "out"))
    model = tmp_path / "m.safetensors"
    convert.build(convert.ConvertConfig(str(arpa)), model)
    with pytest.raises(InputError, match=r"^orders is "):
        plan(config(model, text, orders=orders), PlanContext(1, "cpu", 1 << 30))
    assert names(tmp_path) == []


def test_a_line_without_words_has_no_history(arpa, here, tmp_path):
    for name, data, at in ("first", b"\na\n", 0), ("later", b"a b\n \t\nb\n", 6), ("last", b"a\nb\n\n", 4):
        (tmp_path / name).write_bytes(data)
        bare = config(arpa, tmp_path / name, positions="last", sentence_markers=False)
        message = rf"^'.*{name}': the line that ends at byte {at} is empty, and an empty history needs <s>; remove the"
        with pytest.raises(InputError, match=message):
            run(bare, RunContext(here, tmp_path / "out"))
        result = run(
            config(arpa, tmp_path / name, positions="last"), RunContext(here, tmp_path / "out", overwrite=True)
        )
        assert result.manifest["histories"] == data.count(b"\n")
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), TimeoutError("too late")])
def test_system_errors_in_a_task(error, arpa, text, here, monkeypatch, tmp_path):
    def fail(*options):
        raise error

    monkeypatch.setattr(distribute, "_find", fail)
    message = f"^making the distributions of chunk \\d: .* failed: {type(error).__name__}: .*{error.args[-1]}"
    with pytest.raises(RunError, match=message):
        run(config(arpa, text), RunContext(here, tmp_path / "out"))
