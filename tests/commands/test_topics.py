"""`mgpu-ngram topics` for a user: what it prints and writes, and one clear line for each error."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import mgpu_ngram as ng
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel, load_topic_model, save_topic_model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.safetensors import save_arrays
from mgpu_ngram.engine.topics import distances as topic_distances
from mgpu_ngram.engine.topics.page import PageOptions
from mgpu_ngram.jobs.topics import run as topics_job
from mgpu_ngram.stages.run_file import load

HERE = ["--workers", "0"]


@pytest.fixture
def folder(planted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topics.lda").mkdir()
    (tmp_path / "topics.lda" / "manifest.json").write_text('{"format": "mgpu_ngram topics"}')
    planted.save_planted("topics.lda/model.safetensors")
    planted.write_parquet("docs.parquet", planted.documents(60))
    return tmp_path


@pytest.fixture
def topics(folder, mgpu_ngram):
    """Return topics(*flags) of the model in this process: (status, stdout, stderr)."""
    return lambda *flags, model="topics.lda": mgpu_ngram("topics", model, *flags, *HERE)


def lines_of(result):
    status, out, err = result
    assert (status, err) == (0, ""), err
    return out.splitlines()


def test_a_table_of_topics(topics):
    head, *rows = lines_of(topics("--top", 2))
    assert head.split() == ["topic", "share", "words"] and [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert rows[1].split()[1:] == ["33.33%", "oak", "elm"]
    assert lines_of(topics("--limit", 1))[-1] == "2 smaller topics not shown"
    by_lift = lines_of(topics("--order", "relevance", "--lambda", 0, "--top", 5))
    assert all("and" in row for row in lines_of(topics("--top", 5))[1:])
    assert all(row.split()[-1] == "and" for row in by_lift[1:]), "all topics share the word"
    assert lines_of(topics("--order", "frex", "--top", 1))[1].split()[2] in ("apple", "pear", "plum", "cherry")


def test_a_column_of_nearest_topics(topics):
    head, *rows = lines_of(topics("--nearest", 2, "--top", 1))
    assert head.split() == ["topic", "share", "nearest", "words"]
    table = json.loads("\n".join(lines_of(topics("--nearest", 2, "--json", "--limit", 2))))["topics"]
    for row, topic in zip(rows, table, strict=False):
        assert row.split()[2:4] == [str(other) for other, _ in topic["nearest"]]
        assert {other for other, _ in topic["nearest"]} == {0, 1, 2} - {topic["topic"]}
    (alone,) = [line for line in lines_of(topics("--topic", 1, "--nearest", 1)) if line.startswith("nearest: ")]
    other, distance = table[1]["nearest"][0]
    assert alone == f"nearest: {other} ({distance:.3f})"
    assert not [line for line in lines_of(topics("--topic", 1, "--nearest", 0)) if line.startswith("nearest: ")]


def test_too_many_topics_for_distances_are_an_error_before_the_documents_are_read(topics, monkeypatch):
    monkeypatch.setattr(topic_distances, "MAX_COMPARED_TOPICS", 2)
    status, out, err = topics("docs.parquet", "--nearest", 1, "--json", "-o", "rows.parquet")
    assert (status, out) == (2, "") and "--limit N" in err and err.count("\n") == 1
    assert not Path("rows.parquet").exists()


def test_the_table_as_json(topics, folder):
    found = json.loads("\n".join(lines_of(topics("--json", "--top", 3))))
    assert found["lambda"] == 0.6 and [topic["topic"] for topic in found["topics"]] == [0, 1, 2]
    topic = found["topics"][2]
    assert (topic["tokens"], len(topic["words"])) == (450, 3) and topic.keys() >= {"relevant_words", "frex_words"}
    assert "documents" not in found and "wall_seconds" not in found
    with_documents = json.loads("\n".join(lines_of(topics("docs.parquet", "--json", "--group-by", "kind"))))
    assert (with_documents["documents"], with_documents["empty"]) == (60, 6)
    assert [group["group"] for group in with_documents["groups"]] == ["beasts", "fruit", "trees"]
    assert len(with_documents["topics"][0]["examples"]) == 3 and with_documents["tokens_per_second"] > 0


def test_the_table_has_what_is_shown(topics, folder):
    found = json.loads("\n".join(lines_of(topics("--json", "--limit", 2))))
    assert [topic["topic"] for topic in found["topics"]] == [0, 1] and found["topics"][1]["frex_words"]
    lines = lines_of(topics("docs.parquet", "--limit", 2, "--order", "frex", "--time", "day", "--by", "year"))
    assert lines[4] == "1 smaller topic not shown" and len(lines[-4].split()) > 3, "words of the groups"


def test_a_model_of_python_and_its_transform(folder, mgpu_ngram, planted):
    texts = [text for text, *_ in planted.documents(60)]
    lda = ng.LDA(n_components=3, max_iter=20, random_state=1, device="cpu").fit(texts)
    lda.save("python.lda")
    status, _, err = mgpu_ngram("topics", "python.lda", "docs.parquet", "-o", "rows.npy", *HERE)
    assert (status, err) == (0, "")
    assert np.load("rows.npy").tolist() == lda.transform(texts).tolist(), "the same bits"


def test_one_topic_in_detail(topics, planted):
    lines = lines_of(topics("--topic", 1, "--top", 4))
    assert lines[0] == "topic 1: 33.33% of tokens"
    assert lines[1] == "probability: oak elm birch willow" and lines[4].startswith("nearest: 0 (0.")
    lines = lines_of(topics("docs.parquet", "--topic", 1, "--examples", 1))
    assert lines[1] == "topic 1: 33.33% of tokens, 18 documents"
    number, text = re.match(r"document (\d+) \(\d\d%\): (.*)", lines[6]).groups()
    assert int(number) % 3 == 1 and planted.documents(60)[int(number)][0].startswith(text)


def test_rows_of_documents(topics, folder, planted):
    tokens = sum(len(text.split()) for text, *_ in planted.documents(60))
    lines = lines_of(topics("docs.parquet", "-o", "rows.parquet"))
    totals = f"{tokens} tokens, 54 unknown ({54 / tokens:.1%})"
    assert lines[0] == f"rows.parquet: 60 documents, {totals}, 6 documents without a known word"
    assert lines[1].split() == ["topic", "share", "documents", "such", "as", "words"]
    assert lines[2].split()[2] == "18" and " tokens/s" in lines[5] and lines[6].startswith("time went to ")
    table = pq.read_table("rows.parquet")
    assert table.num_rows == 60 and table.column_names == ["document", "tokens", "unknown", "topics", "weights"]
    about = json.loads(table.schema.metadata[b"mgpu_ngram"])
    assert about["threshold"] == 0.01 and about["topics"] == 3
    assert topics("docs.parquet", "-o", "rows.parquet", "--overwrite", "--threshold", 0.5)[0] == 0
    assert max(len(row) for row in pq.read_table("rows.parquet")["topics"].to_pylist()) == 1
    for name, kind in [("rows.jsonl", "jsonl"), ("rows.npy", "npy"), ("rows.npz", "npz"), ("rows", "parquet")]:
        assert topics("docs.parquet", "-o", name)[0] == 0 == topics("docs.parquet", "-o", name, "--overwrite")[0]
        assert kind != "npy" or np.load(name).shape == (60, 3)
        assert kind != "npz" or sp.load_npz(name).shape == (60, 3)


def test_shares_over_time_and_by_class(topics, folder, planted):
    lines = lines_of(topics("docs.parquet", "--time", "day", "--by", "year"))
    at = lines.index("")
    assert lines[at + 1].split() == ["topic", "2019", "2020", "words"]
    assert all(20 < float(lines[at + 2].split()[i].rstrip("%")) < 50 for i in (1, 2))
    lines = lines_of(topics("docs.parquet", "--group-by", "kind"))
    assert lines[lines.index("") + 1].split() == ["topic", "beasts", "fruit", "trees", "words"]
    lines = lines_of(topics("docs.parquet", "--time", "day", "--by", "day"))
    [drawn] = [line for line in lines if line.endswith(" is a full block")]
    assert drawn.startswith("60 groups, 2019-01-01 to 2020-03-26, the last 48 drawn; the largest share")
    several = [(text, kind, f"{1900 + d % 9}") for d, (text, kind, _) in enumerate(planted.documents(60))]
    planted.write_parquet("several.parquet", several)
    lines = lines_of(topics("several.parquet", "--time", "day", "--by", "year"))
    assert "9 groups, 1900 to 1908; the largest share of each topic is a full block" in lines
    many = [(text, f"class {d % 30}", day) for d, (text, _, day) in enumerate(planted.documents(60))]
    planted.write_parquet("many.parquet", many)
    lines = lines_of(topics("many.parquet", "--group-by", "kind", "--limit", 2))
    assert lines[lines.index("") + 1].split() == ["documents", "group", "largest", "topics"]
    assert re.match(r" +2  class 0 +0 \(\d\d%\)  [12] \(\d+%\)", lines[lines.index("") + 2])
    assert "28 smaller groups not shown" in lines


def test_a_page(topics, folder):
    assert lines_of(topics("--html", "page.html"))[-1] == "page.html: a page of 3 topics"
    alone = Path("page.html").read_text("utf-8")
    assert '"lambda":0.6,' in alone
    assert lines_of(topics("--html", "quarter.html", "--lambda", 0.25))
    assert '"lambda":0.25,' in Path("quarter.html").read_text("utf-8")
    assert lines_of(topics("docs.parquet", "--html", "page.html", "--overwrite", "--time", "day", "--by", "year"))
    page = Path("page.html").read_text("utf-8")
    assert "<title>topics.lda</title>" in page and '"2019"' in page and '"2019"' not in alone
    assert "zebra" in page and "zebra" not in alone, "the text of a representative document"


def test_a_page_of_many_topics_has_the_largest(folder, topics, monkeypatch):
    monkeypatch.setattr(topics_job, "PageOptions", partial(PageOptions, max_topics=20))
    rng = np.random.default_rng(0)
    counts_VZ = np.zeros((40, 2000), np.uint32)
    counts_VZ[rng.integers(0, 40, 2000), np.arange(2000)] = 1 + np.arange(2000)
    save_topic_model("large.safetensors", TopicModel.of_counts(counts_VZ, Priors(np.full(2000, 0.1), 0.01)))
    lines = lines_of(topics("--html", "page.html", "--limit", 1, model="large.safetensors"))
    assert lines[1].split()[0] == "1999" and "page.html: a page of 2,000 topics, the 20 largest" in lines


def test_an_export(topics, folder, mgpu_ngram):
    assert lines_of(topics("--export", "plain", "--top", 2))[-1].startswith("plain: topics.csv, words.txt")
    model = load_topic_model("topics.lda/model.safetensors")
    assert np.array_equal(np.load("plain/counts.npy"), model.counts_VZ().T)
    expected = model.pseudocounts_ZV()
    assert np.load("plain/probabilities.npy") == pytest.approx(expected / expected.sum(1, keepdims=True), rel=1e-6)
    assert Path("plain/words.txt").read_text().split() == list(model.words)
    rows = Path("plain/topics.csv").read_text().splitlines()
    assert rows[0] == "topic,share,rank,word,probability" and rows[4].startswith("1,0.333333,2,elm,0.22")
    assert np.load("plain/alpha.npy").tolist() == [0.5] * 3
    assert topics("--export", "plain", "--overwrite")[0] == 0


def test_gensim_reads_an_export_as_the_docs_say(topics, folder):
    pytest.importorskip("gensim", reason="gensim is not installed; pip install gensim")
    page = (Path(__file__).resolve().parents[2] / "docs" / "topics.md").read_text("utf-8")
    [code] = [
        code for code in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if "gensim" in code
    ]
    assert topics("--export", "plain")[0] == 0
    names = {}
    exec(code, names)
    theirs = names["lda"]
    assert theirs.get_topics() == pytest.approx(np.load("plain/probabilities.npy"), rel=1e-5)
    for topic, tree in (0, "apple"), (1, "oak"), (2, "horse"):
        shares = dict(theirs.get_document_topics([(names["words"].index(tree), 5)]))
        assert max(shares, key=shares.get) == topic


def test_info_of_a_model_and_of_rows(topics, folder, mgpu_ngram):
    lines = lines_of(mgpu_ngram("info", "topics.lda/model.safetensors"))
    assert lines[0].endswith(": a topic model, 3 topics of 13 words, 9 sweeps over 1,350 tokens")
    assert lines[1:3] == [
        "priors: alpha 0.5 (sum 1.5), beta 0.01",
        "metrics: joint -3, plugin -2.5, perplexity 12.2, changed 0.1",
    ]
    found = json.loads("\n".join(lines_of(mgpu_ngram("info", "topics.lda/model.safetensors", "--json"))))
    assert (found["format"], found["topics"], found["vocabulary"]) == ("mgpu_ngram topic model", 3, True)


def test_a_yaml_file_trains_and_infers(folder, mgpu_ngram):
    Path("run.yaml").write_text(
        "output: out\ncluster: {workers: 0}\njobs:\n"
        "- lda: {corpus: docs.parquet, topics: 3, sweeps: 20, seed: 3, text_column: text}\n"
        "- topics: {model: lda, documents: docs.parquet, time: day, by: year, html: true, top: 4}\n"
        "- topics: {model: lda, name: alone}\n"
    )
    lines = lines_of(mgpu_ngram("plan", "run.yaml"))
    assert any(re.match(r"topics: topics of 1 input of [\d,]+ bytes, by out/lda/model.safetensors", x) for x in lines)
    assert any(line.startswith("alone: the topics alone, by out/lda") for line in lines)
    lines = lines_of(mgpu_ngram("run", "run.yaml"))
    assert any(line.startswith("out/topics: 60 documents, ") for line in lines) and "out/alone: the topics" in lines
    assert {path.name for path in Path("out/alone").iterdir()} == {"topics.json", "manifest.json"}
    lines = lines_of(mgpu_ngram("info", "out/topics"))
    assert lines[0].startswith("out/topics: 60 documents, ") and lines[0].endswith("by out/lda/model.safetensors")
    assert len(lines) == 4 and lines[1].startswith("topic ")
    assert json.loads("\n".join(lines_of(mgpu_ngram("info", "out/topics", "--json"))))["table"]["groups"]
    status, _, err = mgpu_ngram("run", "run.yaml", "--resume")
    assert status == 0 and err.count("finished before") == 3
    status, _, err = mgpu_ngram("run", "run.yaml", "jobs.1.topics.top=5", "--resume")
    assert status == 2 and "out/topics is finished, but the options changed: options.top was 4, is 5" in err
    assert load("run.yaml").jobs[1][1].model == "out/lda/model.safetensors"


def test_a_plan_has_the_memory_of_counts(folder, mgpu_ngram):
    """Two tables of 4 bytes for 13 words and 8 topics; the words of text are known when it is read."""
    sp.save_npz("counts.npz", sp.csr_array(np.eye(13, dtype=int)))
    said = "counts of 13 words: 832 bytes of memory for each GPU, or process of CPU workers"
    for name, expected in ("counts.npz", [said]), ("docs.parquet", []):
        Path("run.yaml").write_text(f"output: out\njobs: [lda: {{corpus: {name}, topics: 8}}]\n")
        assert [x for x in lines_of(mgpu_ngram("plan", "run.yaml")) if x.startswith("counts")] == expected
    assert json.loads("\n".join(lines_of(mgpu_ngram("plan", "run.yaml", "--json"))))[0]["counts_bytes"] is None


def test_settings_of_yaml_are_checked(folder):
    for text, message in [
        ("model: lda2, documents: docs.parquet, format: csv", "jobs\\[0\\].topics.format is 'csv'"),
        ("model: m, order: best", "jobs\\[0\\].topics.order is 'best'"),
        ("documents: docs.parquet", "key 'model' is missing"),
        ("model: m, dense: true, format: npz, documents: a", "format npz is a sparse matrix but dense is true"),
    ]:
        Path("run.yaml").write_text(f"output: out\njobs: [topics: {{{text}}}]\n")
        with pytest.raises(InputError, match=message):
            load("run.yaml")


def test_columns_are_looked_for_before_an_earlier_job_trains(folder, mgpu_ngram):
    Path("docs.jsonl").write_text('{"text": "apple oak", "day": "2020"}\n')
    train = "output: out\ncluster: {workers: 0}\njobs:\n- lda: {corpus: docs.parquet, topics: 3, sweeps: 1}\n"
    for settings, message in [
        ("documents: docs.parquet, group_by: kid", "'docs.parquet' lacks the column 'kid'; name one of text, kind"),
        ("documents: docs.jsonl, time: date", "'docs.jsonl' lacks the column 'date'; name one of text, day"),
    ]:
        Path("run.yaml").write_text(train + f"- topics: {{model: lda, {settings}}}\n")
        status, out, err = mgpu_ngram("run", "run.yaml")
        assert (status, out, err.count("\n")) == (2, "", 1) and message in err, err
        assert not Path("out").exists()


@pytest.fixture
def awkward(folder):
    """Files that a new user may name."""
    Path("text.txt").write_text("apple oak\n")
    Path("empty.txt").write_text("\n\n")
    Path("unknown.jsonl").write_text('{"text": "zebra yak", "day": "soon"}\n{"text": null, "day": null}\n')
    Path("taken.html").write_text("mine")
    Path("taken.npy").write_text("mine")
    Path("folder").mkdir()
    sp.save_npz("seven.npz", sp.csr_array(np.eye(7, dtype=np.int64)))
    pq.write_table(pa.table({"body": ["apple"], "year": [2020]}), "body.parquet")
    save_arrays("ngrams.safetensors", {"offsets_V": np.zeros(1)}, {"format": "mgpu_ngram model"})
    Path("counts").mkdir()
    Path("counts/manifest.json").write_text('{"format": "mgpu_ngram counts", "format_version": 1}')
    return folder


REFUSED = [
    ("ngrams.safetensors", "holds mgpu_ngram model, not a topic model; give the output of `mgpu-ngram lda`"),
    ("missing.lda", "the topic model missing.lda does not exist; give the output of"),
    ("counts", "counts has no model.safetensors; give the output of"),
    ("text.txt", "text.txt is not a topic model"),
    ("M --topic 3", "topic is 3 but the model has topics 0 to 2"),
    ("M --topic -1", "topic is -1 but the model has topics 0 to 2"),
    ("M --top 0", "top is 0 but must be at least 1"),
    ("M --limit 0", "limit is 0 but must be at least 1"),
    ("M --lambda 1.5", "relevance_lambda is 1.5 but must be 0 to 1"),
    ("M --lambda 1.0000001", "relevance_lambda is 1.0000001 but must be 0 to 1"),
    ("M docs.parquet --group-by=", "group_by is empty; give a name, or leave it out"),
    ("M -o rows.parquet", "-o rows.parquet would have the topics of documents; name documents"),
    ("M --group-by kind", "group_by is 'kind' but documents are not given"),
    ("M missing.txt", "'missing.txt' does not exist or holds no file"),
    ("M -", "documents are read more than once, so standard input cannot be used"),
    ("M seven.npz", "'seven.npz' has 7 columns but the model has 13 words; give the words of its columns"),
    ("M seven.npz text.txt", "'seven.npz' is a sparse matrix but 'text.txt' is a file of documents"),
    ("M seven.npz --text-column body", "text_column is 'body' but 'seven.npz' is a matrix of counts, not text"),
    ("M seven.npz --time day", "'seven.npz' is a matrix, which has no column 'day'"),
    ("M text.txt --vocabulary text.txt", "vocabulary is 'text.txt' but the documents are text; leave it out"),
    ("M text.txt --text-column body", "text_column is 'body' but 'text.txt' is plain text, without columns; leave"),
    ("M text.txt --group-by kind", "'text.txt' is plain text, without a column 'kind'"),
    ("M docs.parquet --group-by kid", "'docs.parquet' lacks the column 'kid'; name one of text, kind, day"),
    ("M docs.parquet --group-by kind --time day", "group_by is 'kind' and time is 'day'; give one of them"),
    ("M docs.parquet --text-column body", "lacks the column 'body'"),
    ("M unknown.jsonl --time day", "the column 'day' has 'soon'; give dates such as 2019-03-01"),
    ("M docs.parquet --by year", "--by year needs a column of dates; give --time COLUMN"),
    ("M docs.parquet --dense", "--dense is for the rows of documents; give -o doc_topics.parquet"),
    ("M docs.parquet --threshold 0.1", "--threshold is for the rows of documents"),
    ("M docs.parquet -o rows.parquet --threshold 2", "threshold is 2.0 but must be a share from 0 to 1"),
    ("M docs.parquet -o rows.npz --dense", "format npz is a sparse matrix but dense is true"),
    ("M docs.parquet -o rows.csv", "rows.csv ends with .csv but must end with .parquet, .jsonl, .npy"),
    ("M docs.parquet -o docs.parquet", "output docs.parquet is an input of this run; give another output path"),
    ("M --export topics.lda --overwrite", "output topics.lda is an input of this run"),
    ("M --html ./topics.lda --overwrite", "output ./topics.lda is topics.lda, an input of this run"),
    ("M docs.parquet -o taken.npy --overwrite", "taken.npy exists and is not a NumPy file; delete it"),
    ("M docs.parquet -o folder", "folder is not a file in an existing folder"),
    ("M docs.parquet -o no/rows.parquet", "no/rows.parquet is not a file in an existing folder"),
    ("M --html taken.html", "taken.html exists; add --overwrite"),
    ("M --html taken.html --overwrite", "taken.html exists and is not an HTML page; delete it"),
    ("M --export folder", "folder exists; add --overwrite"),
    ("M --export folder --overwrite", "folder exists and is not an output of mgpu_ngram"),
    ("M --export counts --overwrite", "counts holds mgpu_ngram counts, not mgpu_ngram exported topics; delete it"),
    ("M docs.parquet -o new --html new", "-o and --html are both new; give each output a path of its own"),
    ("M docs.parquet -o new --export folder/../new", "-o and --export are both folder/../new; give each output"),
    ("M --html new --export ./new", "--html and --export are both ./new; give each output"),
]


def test_wrong_input_gets_one_line(awkward, mgpu_ngram):
    before = {path.name for path in awkward.iterdir()}
    for words, message in REFUSED:
        words = ["topics.lda" if word == "M" else word for word in words.split()]
        status, out, err = mgpu_ngram("topics", *words, *HERE)
        assert (status, out) == (2, ""), (words, out)
        assert err.startswith("mgpu-ngram: ") and err.count("\n") == 1 and message in err, (words, err)
        assert {path.name for path in awkward.iterdir()} == before, words


def test_documents_without_known_words(awkward, topics):
    for name, number in ("empty.txt", 2), ("unknown.jsonl", 2):
        lines = lines_of(topics(name, "-o", "rows.npy", "--overwrite"))
        assert f"{number} documents without a known word" in lines[0]
        assert np.load("rows.npy") == pytest.approx(np.full((number, 3), 1 / 3)), "uniform rows"
    lines = lines_of(topics("body.parquet", "--text-column", "body", "--time", "year", "--by", "year"))
    assert "2020" in lines[lines.index("") + 1]
