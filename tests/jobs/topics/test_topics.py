"""Whole runs of the topics job: files of each format, and the same bytes from any workers."""

import gzip
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel, save_topic_model
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.topics import files, infer
from mgpu_ngram.jobs.topics.config import TopicsConfig
from mgpu_ngram.jobs.topics.run import Wanted, changed_since, run

pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="module")
def model(planted, tmp_path_factory):
    return planted.save_planted(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture(scope="module")
def parquet(planted, tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "docs.parquet"
    return planted.write_parquet(path, planted.documents(700), rows=50)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(infer, "MIN_CHUNK_BYTES", 1 << 10)


def run_topics(executor, model, documents, output, single=True, wanted=None, **how):
    format = output.suffix[1:] if output.suffix else "parquet"
    config = TopicsConfig(model, [str(documents)] if documents else [], format=format, **how)
    return run(config, RunContext(executor, output, single_file=single), wanted)


def test_a_folder_with_rows_a_table_and_a_page(model, parquet, here, tmp_path, planted):
    result = run_topics(here, model, parquet, tmp_path / "out", False, time="day", by="year", html=True)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"doc_topics.parquet", "topics.json", "topics.html", "manifest.json"}
    rows = pq.read_table(tmp_path / "out" / "doc_topics.parquet").to_pylist()
    assert [row["document"] for row in rows] == list(range(700))
    for d, (row, (text, *_)) in enumerate(zip(rows, planted.documents(700), strict=True)):
        words = text.split()
        assert (row["tokens"], row["unknown"]) == (max(0, len(words) - 1), int(bool(words))), "zebra is unknown"
        assert not words or row["topics"][0] == d % 3
        assert row["weights"] == sorted(row["weights"], reverse=True)
    assert (result.found.documents, result.found.empty) == (700, 70)
    table = json.loads((tmp_path / "out" / "topics.json").read_text())
    assert sum(topic["documents"] for topic in table["topics"]) == 630
    assert [group["group"] for group in table["groups"]] == ["2019", "2020"]
    assert sum(table["groups"][0]["shares"]) == pytest.approx(1)
    examples = [document for topic in table["topics"] for document, _ in topic["examples"]]
    assert len(examples) == 9 and planted.documents(700)[examples[0]][0][:20] in (
        tmp_path / "out" / "topics.html"
    ).read_text("utf-8")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "npz"])
def test_sparse_files_hold_the_shares_of_the_dense_one(suffix, model, parquet, here, tmp_path):
    run_topics(here, model, parquet, tmp_path / "all.npy")
    dense = np.load(tmp_path / "all.npy")
    assert dense.shape == (700, 3) and dense.dtype == np.float32 and dense.sum(1) == pytest.approx(np.ones(700))
    expected = np.where(dense >= np.float32(0.1), dense, 0)
    path = tmp_path / f"rows.{suffix}"
    run_topics(here, model, parquet, path, threshold=0.1)
    if suffix == "npz":
        matrix = sp.load_npz(path)
        assert matrix.has_sorted_indices and np.array_equal(matrix.toarray(), expected)
        return
    lines = path.read_text().splitlines() if suffix == "jsonl" else []
    rows = [json.loads(line) for line in lines] or pq.read_table(path).to_pylist()
    found = np.zeros_like(dense)
    for row in rows:
        found[row["document"], row["topics"]] = row["weights"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_dense_rows(suffix, model, parquet, here, tmp_path):
    run_topics(here, model, parquet, tmp_path / "all.npy")
    path = tmp_path / f"rows.{suffix}"
    run_topics(here, model, parquet, path, dense=True)
    lines = path.read_text().splitlines() if suffix == "jsonl" else []
    rows = [json.loads(line) for line in lines] or pq.read_table(path).to_pylist()
    assert np.array([row["weights"] for row in rows]) == pytest.approx(np.load(tmp_path / "all.npy"), rel=1e-5)
    assert "topics" not in rows[0]


@pytest.mark.parametrize("dense", [False, True])
def test_rows_of_several_row_groups(dense, model, parquet, here, tmp_path, monkeypatch):
    """Chunks are gathered until they have GROUP_BYTES; each is written once."""
    run_topics(here, model, parquet, tmp_path / "one.parquet", dense=dense)
    monkeypatch.setattr(files, "GROUP_BYTES", 4000)
    run_topics(here, model, parquet, tmp_path / "several.parquet", dense=dense)
    one, several = (pq.ParquetFile(tmp_path / f"{name}.parquet") for name in ("one", "several"))
    assert one.num_row_groups == 1 < several.num_row_groups < 50, "a group has more than one chunk"
    assert several.read().equals(one.read())


@pytest.mark.parametrize("suffix", ["npy", "npz", "jsonl", "parquet"])
def test_files_of_no_documents(suffix, model, here, tmp_path):
    (tmp_path / "none.txt").write_text("")
    path = tmp_path / f"rows.{suffix}"
    assert run_topics(here, model, tmp_path / "none.txt", path).found.documents == 0
    read = {"npy": np.load, "npz": sp.load_npz, "parquet": lambda p: np.zeros((pq.read_table(p).num_rows, 3))}
    assert suffix == "jsonl" or read[suffix](path).shape == (0, 3)


def test_two_workers_and_a_killed_one_write_the_same(start, hooks, model, parquet, here, tmp_path, monkeypatch):
    how = {"time": "day", "by": "month"}
    expected = run_topics(here, model, parquet, tmp_path / "here.parquet", **how)
    alone = LocalExecutor(workers=1)
    run_topics(alone, model, parquet, tmp_path / "alone.parquet", **how)
    alone.close()
    hooks(**{"infer_chunk.after": 0})
    result = run_topics(start(2), model, parquet, tmp_path / "cluster.parquet", **how)
    written = (tmp_path / "here.parquet").read_bytes()
    assert (tmp_path / "alone.parquet").read_bytes() == written == (tmp_path / "cluster.parquet").read_bytes()
    assert result.as_json()["topics"] == expected.as_json()["topics"]
    assert result.as_json()["groups"] == expected.as_json()["groups"] and len(result.groups.groups) == 6


@pytest.mark.gpu
@pytest.mark.parametrize("suffix", ["parquet", "npy"])
def test_a_gpu_writes_the_same(suffix, model, parquet, here, tmp_path):
    how = {"time": "day", "by": "month"}
    expected = run_topics(here, model, parquet, tmp_path / f"cpu.{suffix}", **how)
    gpu = LocalExecutor("gpu")
    result = run_topics(gpu, model, parquet, tmp_path / f"gpu.{suffix}", **how)
    gpu.close()
    assert (tmp_path / f"gpu.{suffix}").read_bytes() == (tmp_path / f"cpu.{suffix}").read_bytes()
    assert result.as_json()["groups"] == expected.as_json()["groups"]


class Recorded(Progress):
    def __init__(self):
        self.total, self.done, self.tokens = None, 0, 0

    def start(self, phase, total, unit="", rate=""):
        self.total = total

    def advance(self, done, amount=0):
        self.done, self.tokens = self.done + done, self.tokens + amount


def test_a_large_compressed_file_is_read_in_parts(model, planted, here, tmp_path, monkeypatch):
    found = planted.documents(700)
    text = "".join(json.dumps({"text": text, "kind": kind}) + "\n" for text, kind, _ in found)
    (tmp_path / "docs.jsonl").write_text(text)
    (tmp_path / "docs.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    plain = run_topics(here, model, tmp_path / "docs.jsonl", tmp_path / "plain.jsonl", group_by="kind")
    parts = []
    real = infer.infer_chunk
    monkeypatch.setattr(infer, "infer_chunk", lambda chunk, options: parts.append(chunk) or real(chunk, options))
    config = TopicsConfig(model, [str(tmp_path / "docs.jsonl.gz")], format="jsonl", group_by="kind")
    progress = Recorded()
    context = RunContext(here, tmp_path / "parts.jsonl", single_file=True, progress=progress)
    result = run(config, context)
    sizes = [piece.size_bytes for chunk in parts for piece in chunk.pieces]
    assert len(sizes) > 5 and max(sizes) < 10_000, "memory is bounded"
    assert (tmp_path / "plain.jsonl").read_bytes() == (tmp_path / "parts.jsonl").read_bytes()
    assert result.groups.documents_G.tolist() == plain.groups.documents_G.tolist() == [233, 234, 233]
    assert (progress.total, progress.done, progress.tokens) == (1, 1, result.found.tokens)


def test_matrices(model, planted, here, tmp_path):
    counts = np.zeros((40, 13), np.int64)
    counts[np.arange(39), 1 + np.arange(39) % 12] = 3
    sp.save_npz(tmp_path / "counts.npz", sp.csr_array(counts))
    result = run_topics(here, model, tmp_path / "counts.npz", tmp_path / "rows.npy")
    shares = np.load(tmp_path / "rows.npy")
    assert (result.found.documents, result.found.empty, result.found.tokens) == (40, 1, 117)
    assert shares.argmax(1).tolist()[:39] == [d % 12 // 4 for d in range(39)]
    assert shares[39] == pytest.approx([1 / 3] * 3), "an empty document has the prior"
    words = ["cherry", "yak", "horse"]
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    sp.save_npz(tmp_path / "other.npz", sp.csr_array(np.array([[1, 2, 0], [0, 0, 4]])))
    result = run_topics(
        here, model, tmp_path / "other.npz", tmp_path / "other.jsonl", vocabulary=str(tmp_path / "words.txt")
    )
    rows = [json.loads(line) for line in (tmp_path / "other.jsonl").read_text().splitlines()]
    assert [(row["tokens"], row["unknown"], row["topics"][0]) for row in rows] == [(1, 2, 0), (4, 0, 2)]
    with pytest.raises(InputError, match="has 3 columns but the model has 13 words; give the words of its columns"):
        run_topics(here, model, tmp_path / "other.npz", tmp_path / "no.npy")
    assert not (tmp_path / "no.npy").exists()


def test_a_model_of_ids_takes_matrices_alone(planted, here, tmp_path):
    model = planted.save_planted(tmp_path / "ids.safetensors", words=False)
    sp.save_npz(tmp_path / "counts.npz", sp.csr_array(np.eye(13, dtype=np.int64)))
    sp.save_npz(tmp_path / "wrong.npz", sp.csr_array(np.eye(12, dtype=np.int64)))
    result = run_topics(here, model, tmp_path / "counts.npz", tmp_path / "rows.npz")
    assert result.found.documents == 13 and result.table.topics[0].words[0].startswith("#")
    with pytest.raises(InputError, match="the model has 13 words but .* has 12 columns"):
        run_topics(here, model, tmp_path / "wrong.npz", tmp_path / "no.npz")


def test_many_groups_are_refused(model, parquet, here, tmp_path, monkeypatch):
    monkeypatch.setattr(infer, "MAX_GROUPS", 2)
    with pytest.raises(InputError, match="over 2 groups; group them by another column or period"):
        run_topics(here, model, parquet, tmp_path / "out.parquet", group_by="kind")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "npy", "npz"])
def test_a_full_disk_leaves_no_file(suffix, model, parquet, here, tmp_path, full_disk):
    full_disk(room=300, of=f"rows.{suffix}")
    with pytest.raises(RunError, match=re.escape(f"rows.{suffix}")):
        run_topics(here, model, parquet, tmp_path / f"rows.{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_totals_of_documents_by_hand(model, here, tmp_path):
    (tmp_path / "docs.txt").write_text("apple\n\nzebra yak\napple oak zebra\n")
    found = run_topics(here, model, tmp_path / "docs.txt", tmp_path / "rows.npy").found
    assert (found.documents, found.empty, found.tokens, found.unknown) == (4, 2, 3, 3)


def test_any_other_setting_makes_another_output(model, here, tmp_path):
    (tmp_path / "docs.txt").write_text("apple oak\n")
    documents = [str(tmp_path / "docs.txt")]
    run_topics(here, model, documents[0], tmp_path / "out", False)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert changed_since(TopicsConfig(model, documents), manifest) == ""
    others = {
        "text_column": "body", "vocabulary": "words.txt", "format": "jsonl", "dense": True, "threshold": 0.02,
        "group_by": "kind", "time": "day", "by": "year", "top": 11, "order": "frex", "relevance_lambda": 0.5,
        "examples": 4, "nearest": 1, "html": True,
    }  # fmt: skip
    assert {*others} == TopicsConfig.__dataclass_fields__.keys() - {"model", "documents", "name"}
    for name, value in others.items():
        assert f"options.{name} was" in changed_since(TopicsConfig(model, documents, **{name: value}), manifest)


def test_shares_of_groups_are_means_of_the_documents_with_a_known_word():
    groups = {"one": (1, np.array([0.25, 0.75])), "empty": (2, np.zeros(2)), "more": (4, np.array([1.0, 2.0]))}
    summary = infer.InferredTotals(np.zeros(2), infer.no_examples(2, 0), groups=groups)
    found = summary.group_shares()
    assert found.groups == ["empty", "more", "one"] and found.documents_G.tolist() == [2, 4, 1]
    assert found.shares_GZ == pytest.approx(np.array([[0, 0], [1 / 3, 2 / 3], [0.25, 0.75]]))


def test_groups_ascend_as_numbers_then_as_names():
    names = ["10", "9", "-1", "2.5", "b", "", "a", "007", "1e3", "1e-05", "2019-03", "nan"]
    summary = infer.InferredTotals(np.zeros(1), infer.no_examples(1, 0), groups={n: (1, np.ones(1)) for n in names})
    assert summary.group_shares().groups == [
        "",
        "-1",
        "1e-05",
        "2.5",
        "007",
        "9",
        "10",
        "1e3",
        "2019-03",
        "a",
        "b",
        "nan",
    ]


def test_snippets_are_kept_of_the_representative_documents_alone(model, planted, here, tmp_path, monkeypatch):
    """Each chunk has examples of its own, so memory would grow with the documents."""
    (tmp_path / "docs.txt").write_text("".join(f"{text}\n" for text, *_ in planted.documents(700)))
    sizes, add = [], infer.InferredTotals.add
    monkeypatch.setattr(
        infer.InferredTotals, "add", lambda self, found: (add(self, found), sizes.append(len(self.snippets)))
    )
    result = run_topics(here, model, tmp_path / "docs.txt", tmp_path / "rows.npy", wanted=Wanted(topic=1), examples=2)
    assert len(sizes) > 5 and sizes[-1] == max(sizes) == 3 * 2
    assert {number for number, _ in result.table.topics[0].examples} <= result.snippets.keys()


def test_an_export_of_seed_words_has_their_tokens_alone_as_counts(here, tmp_path):
    """Their priors are part of the probabilities."""
    counts_VZ, seed_Z = np.array([[3, 0], [0, 2]], np.uint32), np.array([9.5, 0.5], np.float32)
    save_topic_model(tmp_path / "m", TopicModel.of_counts(counts_VZ, Priors(np.ones(2), 0.5, {1: seed_Z})))
    run_topics(here, str(tmp_path / "m"), None, tmp_path / "rows.npy", wanted=Wanted(export=str(tmp_path / "plain")))
    assert np.load(tmp_path / "plain" / "counts.npy").tolist() == counts_VZ.T.tolist()
    assert np.load(tmp_path / "plain" / "probabilities.npy") == pytest.approx(
        np.array([[3.5 / 13, 9.5 / 13], [0.5 / 3, 2.5 / 3]])
    )


def test_one_topic_and_its_neighbours(model, here):
    context = RunContext(here, None)
    result = run(TopicsConfig(model), context, Wanted(topic=1))
    [row] = result.table.topics
    assert row.topic == 1 and [topic for topic, _ in row.nearest] == [0, 2] and row.documents is None
    assert set(row.words[:4]) == {"oak", "elm", "birch", "willow"} and "found" not in result.as_json()
    with pytest.raises(InputError, match="topic is 3 but the model has topics 0 to 2"):
        run(TopicsConfig(model), context, Wanted(topic=3))
