"""The count job as a whole, compared with plain Python: chunks, workers and strategies change nothing."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import re
import sys
import tempfile
import weakref
import zlib
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts import shards
from mgpu_ngram.core.counts.counts import read_counts
from mgpu_ngram.core.counts.vocabulary import HashCollision
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.count import tokenise_words
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.count import plan as count_plan
from mgpu_ngram.jobs.count.run import CountConfig, plan, run
from mgpu_ngram.kernels.count.hash_words import hash_words
from tests.support.slow_cases import first_fast, slow_cases

STRATEGIES = ["auto", "global", "private", "sort", "hash"]
TEXT = b"of the people\nby the people for the people\n\nthe end of the end"


# The plain Python reference. An n-gram is a tuple of symbols: bytes of a word, a byte value, or a token id.


def words_of(text, lowercase=False):
    """Return the words of each line, split as lmplz splits."""
    text = text.lower() if lowercase else text
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [[word for word in re.split(rb"[\0\t\r ]+", line) if word] for line in lines]


def count_windows(sequences, order):
    return {
        n: Counter(tuple(s[i : i + n]) for s in sequences for i in range(len(s) - n + 1)) for n in range(1, order + 1)
    }


def expected(texts, unit="word", order=5, lowercase=False, sentence_markers=False, dtype="uint16", separator_id=None):
    """Return order -> Counter over the texts of several files."""
    if unit == "word":
        sequences = [line for text in texts for line in words_of(text, lowercase)]
        if sentence_markers:
            sequences = [[b"<s>", *line, b"</s>"] for line in sequences]
    elif unit == "byte":
        sequences = [list(text.lower() if lowercase else text) for text in texts]
    else:
        sequences = []
        for text in texts:
            ids = np.frombuffer(text, dtype).tolist()
            runs = itertools.groupby(ids, lambda i: i == separator_id)
            sequences += [list(ids) for separator, ids in runs if not separator]
    return count_windows(sequences, order)


# The contents of an output folder, read by Arrow alone.


def rows(folder, order, pattern="part-*.parquet"):
    """Return (n-gram, count) of every row, in the order of the files; ids of words become text."""
    found, words = [], None
    for path in sorted((folder / f"order={order}").glob(pattern)):
        table = pq.read_table(path, partitioning=None)
        assert table.schema.names[-1] == "count" and table.schema.field("count").type == pa.int64()
        if table.schema.names == ["ngram", "count"]:
            ngrams = table["ngram"].to_pylist()
        else:
            assert table.schema.names[:-1] == [f"id{n}" for n in range(1, order + 1)]
            words = words or pq.read_table(folder / "vocabulary.parquet")["symbol"].cast(pa.binary()).to_pylist()
            ids = zip(*(column.to_pylist() for column in table.columns[:-1]), strict=True)
            ngrams = [b" ".join(words[i] for i in ngram) for ngram in ids]
        found += zip(ngrams, table["count"].to_pylist(), strict=True)
    return found


def symbols(ngram, unit):
    if unit == "word":
        return tuple((ngram.encode() if isinstance(ngram, str) else ngram).split(b" "))
    return tuple(ngram)


def counted(folder, order, unit="word"):
    """Return order -> Counter of an output, in which each n-gram occurs once."""
    result = {}
    for n in range(1, order + 1):
        pairs = [(symbols(ngram, unit), count) for ngram, count in rows(folder, n)]
        result[n] = Counter(dict(pairs))
        assert len(result[n]) == len(pairs), f"an n-gram of order {n} has two rows"
    return result


def contents(folder):
    """Return every file of an output: name -> bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run_here(output, corpus, workers=2, **options):
    executor = LocalExecutor(workers=workers)
    in_memory = isinstance(corpus, Lines)
    try:
        config = CountConfig([] if in_memory else [str(c) for c in corpus], **options)
        return run(
            config, RunContext(executor, output), open_corpus(corpus, config.unit, config.dtype) if in_memory else None
        )
    finally:
        executor.close()


def check(output, texts, corpus, order=5, unit="word", **options):
    """Count, compare every order with plain Python, and return the result."""
    result = run_here(output, corpus, order=order, unit=unit, **options)
    for key in ("strategy", "chunk_bytes", "histograms", "workers"):
        options.pop(key, None)
    want = expected(texts, unit, order, **options)
    assert counted(output, order, unit) == want
    for n in range(1, order + 1):
        got = result.manifest["orders"][str(n)]
        assert got == {"distinct": len(want[n]), "rows": len(want[n]), "total": want[n].total()}
    return result


@pytest.fixture(scope="module")
def cluster():
    executor = start_cluster("cpu", 2)
    yield executor
    executor.close()


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    return path


# By hand


def test_by_hand(tmp_path):
    text = b"a b a b\nb a\n"
    (tmp_path / "text").write_bytes(text)
    result = run_here(tmp_path / "out", [tmp_path / "text"], order=3)
    assert sorted(rows(tmp_path / "out", 1)) == [("a", 3), ("b", 3)]
    assert sorted(rows(tmp_path / "out", 2)) == [("a b", 2), ("b a", 2)]
    assert sorted(rows(tmp_path / "out", 3)) == [("a b a", 1), ("b a b", 1)]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["tokens"], manifest["lines"], manifest["order"], manifest["unit"]) == (6, 2, 3, "word")
    assert manifest["inputs"] == [
        {
            "name": str(tmp_path / "text"),
            "size_bytes": 12,
            "crc32": f"{zlib.crc32(text):08x}",
        }
    ]
    assert result.top[2] == [("a b", 2), ("b a", 2)] and result.top[3][0][1] == 1


def test_bytes_by_hand(tmp_path):
    (tmp_path / "text").write_bytes(b"ab\nab")
    run_here(tmp_path / "out", [tmp_path / "text"], order=2, unit="byte")
    assert rows(tmp_path / "out", 1) == [(b"\n", 1), (b"a", 2), (b"b", 2)]
    assert rows(tmp_path / "out", 2) == [(b"\na", 1), (b"ab", 2), (b"b\n", 1)]


def test_ids_by_hand(tmp_path):
    (tmp_path / "ids").write_bytes(np.array([7, 8, 0, 8, 7, 8], "<u2").tobytes())
    run_here(tmp_path / "out", [tmp_path / "ids"], order=2, unit="id", separator_id=0)
    assert rows(tmp_path / "out", 1) == [([7], 2), ([8], 3)]
    assert rows(tmp_path / "out", 2) == [([7, 8], 2), ([8, 7], 1)]
    type_ = pq.read_schema(tmp_path / "out" / "order=2" / "part-00000.parquet").field("ngram").type
    assert pa.types.is_list(type_) and type_.value_type == pa.uint32()


# Golden


def golden_text(folder, name):
    plain = folder / "inputs" / f"{name}.txt"
    return (
        plain.read_bytes() if plain.exists() else lzma.decompress((folder / "inputs" / f"{name}.txt.xz").read_bytes())
    )


def golden_counts(folder, name):
    lines = lzma.decompress((folder / "counts" / f"{name}.tsv.xz").read_bytes()).split(b"\n")
    pairs = (line.rpartition(b"\t") for line in lines if line)
    return Counter({tuple(ngram.split(b" ")): int(count) for ngram, _, count in pairs})


@pytest.mark.parametrize(
    ("padded", "name"),
    [(False, "small"), (False, "tiny"), (True, "tiny"), *slow_cases((True, "small"))],
)
def test_golden_words(padded, name, tmp_path, shared_data):
    golden = shared_data / "golden"
    facts = json.loads((golden / "counts" / f"{name}.json").read_text())
    (tmp_path / "text").write_bytes(golden_text(golden, name))
    result = run_here(tmp_path / "out", [tmp_path / "text"], sentence_markers=padded, chunk_bytes=300_000)
    assert result.manifest["lines"] == facts["sentences"]
    assert result.manifest["tokens"] == facts["tokens"] + 2 * facts["sentences"] * padded
    kind, got, seen = "padded" if padded else "plain", counted(tmp_path / "out", 5), 0
    for n in range(1, 6):
        want = facts[f"{kind}.{n}"]
        assert (len(got[n]), got[n].total()) == (want["types"], want["tokens"])
        assert [sum(c == k for c in got[n].values()) for k in (1, 2, 3, 4)] == want["coc"]
        if (golden / "counts" / f"{name}.{kind}.{n}.tsv.xz").exists():
            seen += 1
            assert got[n] == golden_counts(golden, f"{name}.{kind}.{n}")
    assert seen >= 3


def test_golden_text_that_contains_unk(tmp_path, shared_data):
    """The golden counts are of the text without <unk>; here <unk> is an ordinary word with id 0."""
    golden = shared_data / "golden"
    facts = json.loads((golden / "counts" / "small_unk.json").read_text())
    text = golden_text(golden, "small_unk")
    without = re.sub(rb"(?<!\S)<unk>(?!\S)", b" ", text)
    (tmp_path / "with").write_bytes(text)
    (tmp_path / "without").write_bytes(without)
    run_here(tmp_path / "out", [tmp_path / "with"], order=1)
    unigrams = counted(tmp_path / "out", 1)[1]
    assert unigrams.pop((b"<unk>",)) == text.count(b"<unk>") == 11_718
    for kind, order in ("plain", 1), ("padded", 3):
        run_here(tmp_path / kind, [tmp_path / "without"], order=order, sentence_markers=kind == "padded")
        got = counted(tmp_path / kind, order)
        for n in range(1, order + 1):
            want = facts[f"{kind}.{n}"]
            assert (len(got[n]), got[n].total()) == (want["types"], want["tokens"])
            assert [sum(c == k for c in got[n].values()) for k in (1, 2, 3, 4)] == want["coc"]
        if kind == "plain":
            assert got[1] == unigrams


@pytest.mark.parametrize(("strategy", "order"), [("auto", 4), ("global", 3), ("private", 3), ("sort", 4), ("hash", 4)])
def test_golden_bytes(strategy, order, tmp_path, shared_data):
    golden = np.load(shared_data / "golden" / "counts" / "bytes.npz")
    data = lzma.decompress((shared_data / "golden" / "inputs" / "bytes.bin.xz").read_bytes())
    (tmp_path / "data").write_bytes(data)
    run_here(tmp_path / "out", [tmp_path / "data"], unit="byte", order=order, strategy=strategy, chunk_bytes=200_000)
    for n in range(1, order + 1):
        found = rows(tmp_path / "out", n)
        keys = [int.from_bytes(ngram, "big") for ngram, _ in found]
        assert keys == golden[f"keys{n}"].tolist(), n  # sorted, too
        assert [c for _, c in found] == golden[f"counts{n}"].tolist(), n


# Properties

WORDS = st.sampled_from(
    [b"a", b"b", b"the", b"<s>", b"</s>", b"<unk>", b"A", "é".encode(), b"longer-than-eight", b"\xff"]
)
GAPS = st.sampled_from([b" ", b"\n", b"\n", b"\t", b"\r\n", b"\0", b"  ", b"\n\n"])
TEXTS = st.lists(st.one_of(WORDS, GAPS), max_size=40).map(b"".join)


@settings(max_examples=150, derandomize=True)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3),
    unit=st.sampled_from(["word", "byte"]),
    strategy=st.sampled_from(STRATEGIES),
    chunk_bytes=st.one_of(st.integers(1, 12), st.just(1000)),
    workers=st.integers(1, 3),
    lowercase=st.booleans(),
    order=st.integers(1, 4),
)
@example([b""], "word", "auto", 1, 1, False, 4)
@example([b"\n\n", b""], "word", "sort", 1, 2, False, 2)
@example([b"a b", b"a b"], "byte", "global", 1, 3, False, 3)
@example([b"aaa", b"aa"], "byte", "auto", 2, 1, False, 2)
def test_neither_chunks_nor_workers_nor_strategy_change_a_count(
    texts, unit, strategy, chunk_bytes, workers, lowercase, order
):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"text{i}" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        check(
            Path(folder) / "out", texts, paths, order, unit,
            strategy=strategy, chunk_bytes=chunk_bytes, workers=workers, lowercase=lowercase,
        )  # fmt: skip


@settings(max_examples=30, derandomize=True)
@given(text=TEXTS, chunk_bytes=st.integers(1, 20), strategy=st.sampled_from(STRATEGIES))
def test_sentence_markers(text, chunk_bytes, strategy):
    with tempfile.TemporaryDirectory() as folder:
        options = {"sentence_markers": True, "strategy": strategy, "chunk_bytes": chunk_bytes}
        (Path(folder) / "text").write_bytes(text)
        check(Path(folder) / "out", [text], [Path(folder) / "text"], 3, **options)


@settings(max_examples=40, derandomize=True)
@given(
    files=st.lists(st.lists(st.sampled_from([0, 1, 2, 255, 256, 65535]), max_size=20), min_size=1, max_size=3),
    dtype=st.sampled_from(["uint16", "uint32"]),
    separator_id=st.sampled_from([None, 0, 65535]),
    strategy=st.sampled_from(STRATEGIES),
    chunk_bytes=st.integers(1, 30),
    workers=st.integers(1, 3),
)
def test_ids(files, dtype, separator_id, strategy, chunk_bytes, workers):
    with tempfile.TemporaryDirectory() as folder:
        texts = [np.array(ids, np.dtype(dtype).newbyteorder("<")).tobytes() for ids in files]
        paths = [Path(folder) / f"ids{i}" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        check(
            Path(folder) / "out", texts, paths, 3, "id", dtype=dtype, separator_id=separator_id,
            strategy=strategy, chunk_bytes=chunk_bytes, workers=workers,
        )  # fmt: skip


# Byte for byte

CORPORA = {
    "word": (b"the cat sat on the mat\n" * 30 + b"\xff odd bytes \xc3\xa9\n" + TEXT) * 2,
    "byte": bytes(range(256)) * 4 + TEXT * 5,
    "id": (np.arange(3000) % 77).astype("<u2").tobytes(),
}


@pytest.mark.parametrize(
    ("unit", "columns"), first_fast([("word", "text"), ("word", "ids"), ("byte", "text"), ("id", "text")])
)
def test_output_is_the_same_byte_for_byte_on_any_cluster(unit, columns, tmp_path, cluster):
    text = CORPORA[unit]
    paths = [tmp_path / "one", tmp_path / "two"]
    paths[0].write_bytes(text)
    paths[1].write_bytes(gzip.compress(text[: len(text) // 4 * 2]))
    options = {"unit": unit, "order": 3, "separator_id": 5 if unit == "id" else None, "columns": columns}
    run_here(tmp_path / "out", paths, workers=1, **options)
    first = contents(tmp_path / "out")
    assert {"manifest.json", "vocabulary.parquet", "order=3/part-00000.parquet"} <= set(first)
    texts = [text, text[: len(text) // 4 * 2]]
    assert counted(tmp_path / "out", 3, unit) == expected(texts, unit, 3, separator_id=options["separator_id"])
    for workers, chunk_bytes, strategy in [(1, 7, "auto"), (2, 64, "hash"), (3, 100, "sort"), (3, 1 << 20, "global")]:
        folder = tmp_path / f"{workers}-{chunk_bytes}"
        run_here(folder, paths, workers, chunk_bytes=chunk_bytes, strategy=strategy, **options)
        assert contents(folder) == first, (workers, chunk_bytes, strategy)
    for chunk_bytes in (None, 97):
        config = CountConfig([str(p) for p in paths], chunk_bytes=chunk_bytes, **options)
        run(config, RunContext(cluster, tmp_path / f"dask-{chunk_bytes}"))
        assert contents(tmp_path / f"dask-{chunk_bytes}") == first, chunk_bytes


# The data model, with several shards (only a large corpus needs them, so the limit is lowered)


def deal(counts, num_shards):
    """Assign words to shards by count: heaviest first, each to the lightest shard so far; light ones in bundles."""
    if num_shards == 1:
        return dict.fromkeys(range(len(counts)), 0)
    ranked = sorted(range(len(counts)), key=lambda w: (-counts[w], w))
    alone = 16 * num_shards
    items = [[w] for w in ranked[:alone]]
    items += [[] for _ in range(alone - len(items))] + [ranked[alone + i :: alone] for i in range(alone)]
    weigh = [sum(counts[w] for w in item) for item in items]
    mass, shard_of = [0] * num_shards, {}
    for item in sorted(range(len(items)), key=lambda i: (-weigh[i], i)):
        shard = min(range(num_shards), key=lambda s: (mass[s], s))
        mass[shard] += weigh[item]
        shard_of |= dict.fromkeys(items[item], shard)
    return shard_of


def first_places(texts):
    """Return word -> (input, byte offset) of its first occurrence."""
    places = {}
    for source, text in enumerate(texts):
        for match in re.finditer(rb"[^\0\t\n\r ]+", text):
            places.setdefault(match[0], (source, match.start()))
    return places


def check_data_model(folder, texts, order, num_shards, markers=False):
    """Check every promise of section "data model" for an output of words, in plain Python."""
    lines = [line for text in texts for line in words_of(text)]
    count = Counter(word for line in lines for word in line)
    specials = [b"<unk>", b"<s>", b"</s>"]
    ordinary = sorted(count.keys() - set(specials), key=lambda w: (-count[w], w))
    if markers:
        count[b"<s>"] += len(lines)
        count[b"</s>"] += len(lines)
    places = first_places(texts)
    vocabulary = [(i, word, count[word], *places.get(word, (-1, -1))) for i, word in enumerate(specials + ordinary)]
    table = pq.read_table(folder / "vocabulary.parquet", partitioning=None)
    found = [
        (i, w if isinstance(w, bytes) else w.encode(), *rest)
        for i, w, *rest in zip(*(c.to_pylist() for c in table.columns), strict=True)
    ]
    assert found == vocabulary
    id_of = {word: i for i, word, *_ in vocabulary}
    owner = deal([row[2] for row in vocabulary], num_shards)
    want = expected(texts, "word", order, sentence_markers=markers)
    assert counted(folder, order) == want
    assert [p.name for p in (folder / "order=1").iterdir()] == ["part-00000.parquet"]
    for n in range(1, order + 1):
        if n > 1:
            parts = sorted(p.name for p in (folder / f"order={n}").iterdir())
            assert parts == [f"part-{s:05d}.parquet" for s in range(num_shards)]
        for shard in range(num_shards if n > 1 else 1):
            part = [symbols(g, "word") for g, _ in rows(folder, n, f"part-{shard:05d}.parquet")]
            ids = [tuple(id_of[w] for w in ngram) for ngram in part]
            assert ids == sorted(ids), "rows of a part are sorted by their word ids"
            if n > 1:
                assert all(owner[i[-2]] == shard for i in ids), "an n-gram is in the shard of its last context word"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["num_shards"] == num_shards
    assert manifest["tokens"] == sum(count.values())
    assert not {"workers", "device", "chunk_bytes", "strategy", "output"} & (
        manifest.keys() | manifest["options"].keys()
    )


MODEL_TEXTS = [b"b a a <s> c\na a c b\n\nz <unk> y x a b c\n", b"y x w v u t s r q p a b a c\nlast line of all"]


@pytest.mark.parametrize("markers", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_data_model_with_several_shards(markers, workers, tmp_path, monkeypatch):
    monkeypatch.setitem(shards.SHARD_TOKENS, "word", 10)
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, text in zip(paths, MODEL_TEXTS, strict=True):
        path.write_bytes(text)
    tokens = sum(len(line) + 2 * markers for text in MODEL_TEXTS for line in words_of(text))
    num_shards = -(-tokens // 10)
    assert num_shards >= 4
    run_here(tmp_path / "out", paths, workers, order=4, chunk_bytes=9, sentence_markers=markers)
    check_data_model(tmp_path / "out", MODEL_TEXTS, 4, num_shards, markers)


def set_shard_tokens(unit, tokens):
    from mgpu_ngram.core.counts import shards

    shards.SHARD_TOKENS[unit] = tokens


def test_data_model_on_two_worker_processes(tmp_path, cluster):
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, text in zip(paths, MODEL_TEXTS, strict=True):
        path.write_bytes(text)
    normal = shards.SHARD_TOKENS["word"]
    cluster.client.run(set_shard_tokens, "word", 7)
    try:
        for chunk_bytes in (9, 1000):
            config = CountConfig([str(p) for p in paths], order=4, chunk_bytes=chunk_bytes)
            run(config, RunContext(cluster, tmp_path / f"out-{chunk_bytes}"))
            tokens = sum(len(line) for text in MODEL_TEXTS for line in words_of(text))
            check_data_model(tmp_path / f"out-{chunk_bytes}", MODEL_TEXTS, 4, -(-tokens // 7))
        assert contents(tmp_path / "out-9") == contents(tmp_path / "out-1000")
    finally:
        cluster.client.run(set_shard_tokens, "word", normal)
    assert len(set(cluster.client.run(os.getpid).values())) == 2, "two worker processes"


@pytest.mark.parametrize("unit", ["byte", "id"])
def test_several_shards_of_bytes_and_ids(unit, tmp_path, monkeypatch):
    text = CORPORA[unit]
    (tmp_path / "text").write_bytes(text)
    monkeypatch.setitem(shards.SHARD_TOKENS, unit, len(text) // 4)
    run_here(tmp_path / "one", [tmp_path / "text"], 1, unit=unit, order=3)
    num_shards = json.loads((tmp_path / "one" / "manifest.json").read_text())["num_shards"]
    assert num_shards == len(list((tmp_path / "one" / "order=2").iterdir())) > 1
    want = expected([text], unit, 3)
    assert counted(tmp_path / "one", 3, unit) == want
    values = sorted(symbol for (symbol,) in want[1])
    owner = deal([want[1][v,] for v in values], num_shards)
    for n, s in itertools.product((2, 3), range(num_shards)):
        part = [symbols(g, unit) for g, _ in rows(tmp_path / "one", n, f"part-{s:05d}.parquet")]
        assert part == sorted(part)
        assert all(owner[values.index(g[-2])] == s for g in part)
    run_here(tmp_path / "three", [tmp_path / "text"], 3, unit=unit, order=3, chunk_bytes=101)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


@pytest.mark.parametrize("unit", ["id", "byte", "word"])
def test_first_positions_in_a_large_file_before_small_ones(unit, tmp_path):
    """Large and small files of a block are tokenised by different code; the first position is the first of all."""
    large = np.full(800_000, 0x2020, "<u2")
    large[[10, 20]] = 0x6161, 0x6262
    (tmp_path / "large").write_bytes(large.tobytes())
    (tmp_path / "small").write_bytes(b"bb aa zz")
    (tmp_path / "other").write_bytes(b"zzbb")
    for i, chunk_bytes in enumerate((100_000_000, 10_000)):
        corpus = [tmp_path / name for name in ("large", "small", "other")]
        run_here(tmp_path / str(i), corpus, unit=unit, order=2, chunk_bytes=chunk_bytes)
    table = pq.read_table(tmp_path / "0" / "vocabulary.parquet", partitioning=None)
    columns = [table[name].to_pylist() for name in ("symbol", "first_source", "first_offset")]
    places = {symbol: place for symbol, *place in zip(*columns, strict=True)}
    a, b, z = {"id": (0x6161, 0x6262, 0x7A7A), "byte": (b"a", b"b", b"z"), "word": ("aa", "bb", "zz")}[unit]
    assert (places[a], places[b]) == ([0, 20], [0, 40])
    assert places[z] == [1, 6]
    assert contents(tmp_path / "0") == contents(tmp_path / "1")


# Edge cases


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"\n\n\n",
        b" ",
        b"a",
        b"no newline at the end",
        b"of the\r\nin the\r\n",
        b"nul\0splits words\0\0like spaces\n",
        b"\0",
        b"\xff\xfe not utf8 \xc3\n\xff\xfe\n",
        b"<s> words that look <s> special </s> <unk>\n<unk> <unk>\n",
        b"\x0b\x0c\x85\xa0 are no delimiters\x0b\n",
        "na\u00efve \u00c9t\u00e9 \u2028 \u00a0\n".encode(),
    ],
)
@pytest.mark.parametrize("unit", ["word", "byte"])
def test_odd_texts(text, unit, tmp_path):
    (tmp_path / "text").write_bytes(text)
    for i, chunk_bytes in enumerate((None, 1, 3)):
        check(tmp_path / f"out{i}", [text], [tmp_path / "text"], 3, unit, chunk_bytes=chunk_bytes)
    assert contents(tmp_path / "out0") == contents(tmp_path / "out1") == contents(tmp_path / "out2")
    text_column = unit == "word" and text.decode("utf-8", "replace").encode() == text
    for path in (tmp_path / "out0").glob("order=*/*.parquet"):
        assert pq.read_schema(path).field("ngram").type == (pa.string() if text_column else pa.binary())


def test_words_that_are_not_utf8_are_kept(tmp_path):
    (tmp_path / "text").write_bytes(b"\xff\xfe caf\xe9\n")
    run_here(tmp_path / "out", [tmp_path / "text"], order=2)
    assert rows(tmp_path / "out", 2) == [(b"\xff\xfe caf\xe9", 1)]


def test_chunks_without_words(tmp_path):
    """A long word spans many chunks. Nearly all own no line start, so they hold nothing."""
    text = b"a" * 100 + b" b\n" + b"\n" * 50
    (tmp_path / "text").write_bytes(text)
    check(tmp_path / "out", [text], [tmp_path / "text"], 2, chunk_bytes=1)


@pytest.mark.slow
def test_a_line_of_100_mb(tmp_path):
    words = [b"x" * 499, b"y" * 499]
    with open(tmp_path / "text", "wb") as file:
        for _ in range(100):
            file.write(b" ".join(words * 1000) + b" ")
    run_here(tmp_path / "out", [tmp_path / "text"], order=3, chunk_bytes=1 << 20)
    x, y = (w.decode() for w in words)
    assert dict(rows(tmp_path / "out", 1)) == {x: 100_000, y: 100_000}
    assert dict(rows(tmp_path / "out", 3)) == {f"{x} {y} {x}": 99_999, f"{y} {x} {y}": 99_999}


def test_order_12_of_words_and_8_of_bytes(text_file, tmp_path):
    text = b"one two three four five six seven eight nine ten eleven twelve thirteen\n" * 2 + TEXT
    text_file.write_bytes(text)
    for strategy in ("auto", "sort", "hash"):
        check(tmp_path / f"w{strategy}", [text], [text_file], 12, strategy=strategy, chunk_bytes=50)
        check(tmp_path / f"b{strategy}", [text], [text_file], 8, "byte", strategy=strategy, chunk_bytes=50)


def test_words_of_any_order(text_file, tmp_path):
    text = b"a b c " * 110 + b"\n" + TEXT
    text_file.write_bytes(text)
    for strategy in ("sort", "hash"):
        check(tmp_path / strategy, [text], [text_file], 300, strategy=strategy)


def test_every_compression_under_any_name(tmp_path):
    text = TEXT + b"\n"
    stored = {
        "a.txt": gzip.compress(text),
        "b.gz": text,
        "c.gz": bz2.compress(text),
        "d.bz2": lzma.compress(text),
        "e": zstandard.compress(text),
        "f.xz": gzip.compress(text[:9]) + gzip.compress(text[9:]),
    }
    (tmp_path / "in").mkdir()
    for name, data in stored.items():
        (tmp_path / "in" / name).write_bytes(data)
    want = expected([text] * 6, order=3)
    for name, corpus in {"folder": [tmp_path / "in"], "glob": [f"{tmp_path}/in/*"]}.items():
        result = run_here(tmp_path / name, corpus, order=3, chunk_bytes=40)
        assert counted(tmp_path / name, 3) == want
        assert [i["size_bytes"] for i in result.manifest["inputs"]] == [len(d) for _, d in sorted(stored.items())]
    assert contents(tmp_path / "folder") == contents(tmp_path / "glob")


@pytest.mark.parametrize("unit", ["word", "byte"])
def test_parquet_column(unit, tmp_path):
    lines = ["of the people", None, "by the people", "", "for the people"] * 3
    pq.write_table(pa.table({"id": range(15), "story": lines}), tmp_path / "text", row_group_size=4)
    text = b"".join((line or "").encode() + b"\n" for line in lines)
    check(tmp_path / "out", [text], [tmp_path / "text"], 3, unit, chunk_bytes=1)
    run_here(tmp_path / "named", [tmp_path / "text"], order=3, unit=unit, text_column="story")
    assert counted(tmp_path / "named", 3, unit) == expected([text], unit, 3)


def test_url(tmp_path):
    fsspec.filesystem("memory").pipe("/books/one.txt", TEXT)
    try:
        check(tmp_path / "out", [TEXT], ["memory://books/one.txt"], 3, chunk_bytes=8)
    finally:
        fsspec.filesystem("memory").rm("/books", recursive=True)


def test_bytes_cross_lines_but_not_files(tmp_path):
    (tmp_path / "one").write_bytes(b"x\ny")
    (tmp_path / "two").write_bytes(b"z")
    run_here(tmp_path / "out", [tmp_path / "one", tmp_path / "two"], unit="byte", order=3)
    assert dict(rows(tmp_path / "out", 2)) == {b"x\n": 1, b"\ny": 1}
    assert dict(rows(tmp_path / "out", 3)) == {b"x\ny": 1}


def test_lowercase_is_ascii_only(tmp_path):
    (tmp_path / "text").write_bytes("THE É The @[`{ÀZ\n".encode())
    for unit in ("word", "byte"):
        check(tmp_path / unit, ["THE É The @[`{ÀZ\n".encode()], [tmp_path / "text"], 2, unit, lowercase=True)
    assert dict(rows(tmp_path / "word", 1)) == {"the": 2, "É": 1, "@[`{Àz": 1}


def test_min_count_drops_rows_but_not_totals(text_file, tmp_path):
    result = run_here(tmp_path / "out", [text_file], order=3, min_count=2)
    want = expected([TEXT], order=3)
    for n in (1, 2, 3):
        kept = Counter({g: c for g, c in want[n].items() if c >= 2})
        assert counted(tmp_path / "out", 3)[n] == kept
        assert result.manifest["orders"][str(n)] == {
            "distinct": len(want[n]),
            "rows": len(kept),
            "total": want[n].total(),
        }


def test_lines_in_memory_count_like_a_file(text_file, tmp_path):
    run_here(tmp_path / "file", [text_file], order=3)
    run_here(tmp_path / "memory", Lines(TEXT.split(b"\n")), order=3, chunk_bytes=5)
    a, b = contents(tmp_path / "file"), contents(tmp_path / "memory")
    assert {k: v for k, v in a.items() if k != "manifest.json"} == {k: v for k, v in b.items() if k != "manifest.json"}


# Hash collisions


@pytest.mark.parametrize("chunk_bytes", [1, None], ids=["between chunks", "within a chunk"])
def test_a_hash_collision_restarts_with_another_hash(chunk_bytes, text_file, tmp_path, monkeypatch):
    real, seeds = tokenise_words.hash_words, set()

    def collide_under_seed_0(text_B, positions_T, seed=0):
        seeds.add(int(seed))
        hash_T = real(text_B, positions_T, seed)
        return np.where(hash_T == 0, 0, 1 + hash_T % np.uint64(3)).astype(np.uint64) if seed == 0 else hash_T

    run_here(tmp_path / "real", [text_file], order=3)
    monkeypatch.setattr(tokenise_words, "hash_words", collide_under_seed_0)
    check(tmp_path / "out", [TEXT], [text_file], 3, chunk_bytes=chunk_bytes)
    assert seeds == {0, 1}
    assert contents(tmp_path / "out") == contents(tmp_path / "real")


def test_a_word_with_the_hash_of_a_special_is_another_word(tmp_path):
    """The word was computed by inverting the hash of <s>."""
    word = b"00000000gC\x1a!\xa7I=]"
    words = np.frombuffer(b"<s> " + word, np.uint8)
    both = hash_words(words, np.array([0, 4], np.uint32), 0)
    assert both[0] == both[1], "they collide under the first hash"
    (tmp_path / "text").write_bytes(b"a " + word + b" b\n")
    result = run_here(tmp_path / "out", [tmp_path / "text"], order=2)
    counts = read_counts(result.path)
    assert counts[(word,)] == 1 and counts[(b"a", word)] == 1 and counts[("<s>",)] == 0


def test_collisions_under_every_hash_fail_the_run(text_file, tmp_path, monkeypatch):
    real = tokenise_words.hash_words
    monkeypatch.setattr(tokenise_words, "hash_words", lambda *a: (real(*a) != 0).astype(np.uint64))
    with pytest.raises(RunError, match="collided with each of 8"):
        run_here(tmp_path / "out", [text_file])
    assert [p.name for p in tmp_path.iterdir()] == ["text"]


def test_a_collision_in_a_worker_process_is_handled(cluster, tmp_path):
    """The exception that requests another hash reaches the driver with its type."""

    def collide():
        raise HashCollision(0)

    with pytest.raises(HashCollision):
        cluster.gather([cluster.call(collide)])


# Plans and settings


def test_plan_describes_the_run_without_reading(tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 28)
    planned = plan(CountConfig([str(tmp_path / "huge")], order=5), PlanContext(4, "cpu", 64 << 30))
    assert planned["input_bytes"] == 1 << 28 and planned["chunks"] == 4 * planned["chunks_per_worker"] >= 4
    assert planned["shards"] == -(-planned["tokens_about"] // (4 << 20)) > 10
    for i in range(8):  # files that are never cut: chunks have equal numbers of them
        (tmp_path / f"{i}.gz").write_bytes(gzip.compress(os.urandom(4 << 20), 1))
    planned_gz = plan(CountConfig([str(tmp_path / "*.gz")]), PlanContext(2, "cpu", 64 << 30))
    assert planned_gz["chunks"] == 2 == 2 * planned_gz["chunks_per_worker"]
    assert planned["kept"] == "tokens" and planned["passes"] == 1
    assert planned["seconds_about"] == pytest.approx(planned["tokens_about"] / 4e9 * (1100 + 33))  # 4 cores, one pass
    assert planned["host_bytes"] + planned["spill_bytes"] == 4 * planned["tokens_about"]
    for host_bytes, passes in (512 << 20, 12), (8 << 30, 1):  # 12: each shard is a group
        context = PlanContext(1, "cpu", 1 << 30, memory=MemoryConfig(host_bytes=host_bytes))
        assert plan(CountConfig([str(tmp_path / "huge")], order=5), context)["passes"] == passes
    of_tables = plan(CountConfig([str(tmp_path / "huge")], strategy="hash"), PlanContext(4, "cpu", 64 << 30))
    held = 50 * planned["tokens_about"]
    assert of_tables["kept"] == "sorted runs" and held > 2e9
    assert of_tables["spill_bytes"] > held / 2 or of_tables["host_bytes"] > held / 2
    assert [p["order"] for p in planned["orders"]] == [1, 2, 3, 4, 5]
    assert all(p["strategy"] in STRATEGIES and p["reason"] for p in planned["orders"])
    assert planned["device_bytes"] == max(p["device_bytes"] for p in planned["orders"])
    with pytest.raises(InputError, match=r"global at order 4 needs 17,179,869,184 bytes"):
        plan(
            CountConfig([str(tmp_path / "huge")], order=8, unit="byte", strategy="global"),
            PlanContext(4, "cpu", 64 << 30),
        )
    os.truncate(tmp_path / "huge", 1 << 40)  # a sparse file: a terabyte could not be read in the time of a test
    with pytest.raises(InputError, match="bytes of tokens may be spilled") as error:
        plan(CountConfig([str(tmp_path / "huge")], order=5), PlanContext(4, "cpu", 64 << 30))
    enough = int(re.search(r"raise memory.host_bytes to ([0-9,]+), or", str(error.value))[1].replace(",", ""))
    # Other programs may write or remove files meanwhile.
    less, more = (MemoryConfig(host_bytes=int(share * enough)) for share in (0.97, 1.03))
    with pytest.raises(InputError, match="bytes of tokens may be spilled"):
        plan(CountConfig([str(tmp_path / "huge")], order=5), PlanContext(4, "cpu", 64 << 30, memory=less))
    planned = plan(CountConfig([str(tmp_path / "huge")], order=5), PlanContext(4, "cpu", 64 << 30, memory=more))
    assert planned["spill_bytes"] > 0
    with pytest.raises(InputError, match="missing"):
        plan(CountConfig([str(tmp_path / "missing")]), PlanContext(4, "cpu", 64 << 30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "order is 0 but must be from 1 to 1000"),
        ({"order": 9, "unit": "byte"}, "order is 9 but must be from 1 to 8 for unit byte"),
        ({"min_count": 0}, "min_count is 0"),
        ({"histograms": 0}, "histograms is 0"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
        ({"separator_id": 3}, "separator_id needs unit id"),
        ({"separator_id": 65536, "unit": "id"}, "ids of uint16 are 0 to 65535"),
        ({"separator_id": -1, "unit": "id"}, "separator_id is -1"),
        ({"sentence_markers": True, "unit": "byte"}, "sentence_markers needs unit word"),
        ({"lowercase": True, "unit": "id"}, "lowercase needs unit word or byte"),
        ({"name": "a/b"}, "name is 'a/b'"),
    ],
)
def test_invalid_settings(options, message):
    with pytest.raises(InputError, match=message):
        CountConfig([], **options)


def test_a_budget_waits_until_workers_have_freed_earlier_results(cluster, monkeypatch):
    monkeypatch.setattr(cluster.client.scheduler_comm, "interval", 0.3)  # messages are slow

    def make():
        made = np.ones(10)
        sys.mgpu_ngram_made = weakref.ref(made)  # one object on each worker process
        return made

    def is_held():
        return getattr(sys, "mgpu_ngram_made", lambda: None)() is not None

    for _ in range(3):
        handles = [cluster.call(make, affinity=k) for k in range(2)]
        cluster.wait(list(handles))
        assert any(cluster.everywhere(is_held))
        del handles
        count_plan.count_budget(MemoryConfig(), cluster)
        assert not any(cluster.everywhere(is_held))
