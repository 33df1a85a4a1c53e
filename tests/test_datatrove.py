"""The pipeline step for datatrove, in its own pipelines, and its figures beside those of datatrove's CCNet step."""

import json
import lzma
import pickle

import pytest

import mgpu_ngram as ng

pytest.importorskip("datatrove", reason="datatrove is not installed")

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.perplexity import KenlmModel

from mgpu_ngram.core.documents.normalize import normalizer
from mgpu_ngram.datatrove import PerplexityFilter

TEXTS = ["a b", "c", "a b\nc", "", "a  b"]


def documents(texts=TEXTS, **metadata):
    return [Document(text=text, id=str(i), metadata=dict(metadata)) for i, text in enumerate(texts)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
def test_a_step_by_hand(batch_size, arpa):
    step = PerplexityFilter(arpa, batch_size=batch_size, max_perplexity=10)
    kept = list(step(documents()))
    assert [(doc.id, doc.metadata["perplexity"]) for doc in kept] == [("0", 2.9), ("2", 9.6), ("4", 2.9)]
    assert kept[1].metadata == {"perplexity": 9.6, "log10": -4.90625, "words": 5, "oovs": 1}
    assert {name: step.stats[name].total for name in ("total", "forwarded", "dropped", "dropped_perplexity")} == {
        "total": 5, "forwarded": 3, "dropped": 2, "dropped_perplexity": 2,
    }  # fmt: skip


def test_one_document(arpa):
    step = PerplexityFilter(arpa, fixed_buckets="head:9.6", only="head,all")
    found = documents()
    assert [step.filter(doc) for doc in found] == [True, (False, "perplexity"), (False, "perplexity"), True, True]
    assert found[3].metadata == {"bucket": "all"} and found[1].metadata["bucket"] == "tail"


def test_a_pipeline_of_files(arpa, tmp_path):
    """Two tasks; the dropped documents are written with the reason."""
    (tmp_path / "in").mkdir()
    for name in "xy":
        lines = "".join(json.dumps({"text": text, "id": f"{name}{i}"}) + "\n" for i, text in enumerate(TEXTS) if text)
        (tmp_path / f"in/{name}.jsonl").write_text(lines)
    dropped = JsonlWriter(str(tmp_path / "dropped"), compression=None)
    steps = [
        JsonlReader(str(tmp_path / "in")),
        PerplexityFilter(str(arpa), dropped, max_perplexity=10),
        JsonlWriter(str(tmp_path / "kept"), compression=None),
    ]
    LocalPipelineExecutor(pickle.loads(pickle.dumps(steps)), tasks=2, logging_dir=str(tmp_path / "logs")).run()
    rows = {
        folder: [json.loads(line) for path in sorted((tmp_path / folder).iterdir()) for line in path.open()]
        for folder in ("kept", "dropped")
    }
    assert [row["id"] for row in rows["kept"]] == ["x0", "x2", "x4", "y0", "y2", "y4"]
    assert [(row["id"], row["metadata"]["filter_reason"]) for row in rows["dropped"]] == [
        ("x1", "perplexity"), ("y1", "perplexity"),
    ]  # fmt: skip
    assert rows["kept"][1]["metadata"]["perplexity"] == 9.6


def test_models_of_languages(arpa_text, tmp_path):
    for name, backoff in ("en", "-0.25"), ("de", "-0.75"):
        (tmp_path / f"{name}.arpa").write_text(arpa_text.replace("-0.25", backoff))
    found = [*documents(["a b"], language="en"), *documents(["a b"], language="de"), *documents(["a b"])]
    assert len(list(PerplexityFilter(str(tmp_path / "{language}.arpa"))(found))) == 3
    assert [doc.metadata.get("perplexity") for doc in found] == [2.9, 4.3, None]


def test_options_that_cannot_be_used(arpa):
    with pytest.raises(ng.InputError, match="text_column is given but the text of datatrove's documents is doc.text"):
        PerplexityFilter(arpa, text_column="body")
    with pytest.raises(ng.InputError, match="none.arpa: cannot be read"):
        PerplexityFilter("none.arpa")


def test_figures_of_datatrove(shared_data, tmp_path):
    """Those of its CCNet step, on documents that its normaliser makes the same as CCNet's."""
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    golden = shared_data / "golden/tools/ccnet"
    for name in "en.pieces.arpa", "en.sp.model", "docs.jsonl", "other_filters.jsonl":
        (tmp_path / name).write_bytes(lzma.decompress((golden / f"{name}.xz").read_bytes()))
    texts = {d["url"]: d.get("raw_content") for d in map(json.loads, (tmp_path / "docs.jsonl").open())}
    figures = {d["url"]: d.get("datatrove") for d in map(json.loads, (tmp_path / "other_filters.jsonl").open())}
    as_datatrove, as_ccnet = KenlmModel("wikipedia", "en").normalize, normalizer("ccnet")
    wanted = {
        url: figures[url]
        for url, text in texts.items()
        if figures[url] and text and as_datatrove(text) == as_ccnet(text)
    }
    step = PerplexityFilter(
        tmp_path / "en.pieces.arpa", tokenizer=str(tmp_path / "en.sp.model"), normalize="ccnet", keep="perplexity"
    )
    found = list(step(Document(text=texts[url], id=url) for url in wanted))
    perplexities = {doc.id: doc.metadata["perplexity"] for doc in found if doc.metadata}
    assert len(perplexities) > 1200 and perplexities == {url: wanted[url] for url in perplexities}
