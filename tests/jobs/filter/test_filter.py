"""Whole runs of the filter: figures worked by hand and those of CCNet, all formats, resumed runs, dead workers."""

import base64
import bz2
import gzip
import json
import lzma
import re
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mgpu_ngram.api.document_filter import DocumentFilter, filter_records
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, InputWarning
from mgpu_ngram.core.storage.output import find_manifest
from mgpu_ngram.engine.filter import shard as filter_shard
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.filter import run as filter_job
from mgpu_ngram.jobs.filter.config import FilterConfig
from mgpu_ngram.jobs.filter.run import run
from mgpu_ngram.jobs.progress import Progress

pytestmark = pytest.mark.timeout(120)
TEXTS = ["a b", "c", "a b\nc", "", None, "a  b"]
BY_HAND = [  # the model gives a b </s> the log10 probability -1.40625, and the unknown c with </s> -3.5
    {"perplexity": 2.9, "log10": -1.40625, "words": 3, "oovs": 0},
    {"perplexity": 56.2, "log10": -3.5, "words": 2, "oovs": 1},
    {"perplexity": 9.6, "log10": -4.90625, "words": 5, "oovs": 1},
    {},
    {},
    {"perplexity": 2.9, "log10": -1.40625, "words": 3, "oovs": 0},
]
LINES = [json.dumps({"id": i, "text": text}) for i, text in enumerate(TEXTS)]
TASKS = "score_shard", "find_cutoffs", "write_shard"
PACKERS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
UNPACKERS = {"": bytes, ".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
UNPACKERS[".zst"] = lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)


def filtered(executor, arpa, text, out, *, context=None, **more):
    return run(FilterConfig([str(text)], str(arpa), **more), RunContext(executor, out, **(context or {})))


def new_fields(path):
    """Return the fields that each document of a file has got."""
    return [{k: v for k, v in json.loads(line).items() if k not in ("id", "text")} for line in path.open()]


@pytest.mark.parametrize("suffix", PACKERS)
def test_json_lines(suffix, arpa, here, tmp_path):
    """Old fields stay as they are, byte for byte, and so do the order, the format and the compression."""
    docs = tmp_path / f"docs.jsonl{suffix}"
    docs.write_bytes(PACKERS[suffix]("\n".join(LINES).encode()))
    result = filtered(here, arpa, docs, tmp_path / "out")
    lines = UNPACKERS[suffix]((tmp_path / "out/documents" / docs.name).read_bytes()).decode().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [json.loads(a) | b for a, b in zip(LINES, BY_HAND, strict=True)]
    assert all(line.startswith(old[:-1]) for line, old in zip(lines, LINES, strict=True))
    assert (result.stats.documents, result.stats.kept, result.stats.words) == (6, 6, 13)


def test_parquet(arpa, here, tmp_path):
    """Row groups, types, metadata and compression stay; a column of a new field's name is replaced."""
    schema = pa.schema([("words", pa.string()), ("text", pa.string()), ("n", pa.int8())], {"who": "me"})
    table = pa.table({"words": ["x"] * 6, "text": TEXTS, "n": range(6)}, schema)
    pq.write_table(table, tmp_path / "docs.parquet", row_group_size=4, compression="gzip")
    keep = ["perplexity,words", "lines"]
    filtered(here, arpa, tmp_path / "docs.parquet", tmp_path / "out", max_perplexity=10, keep=keep)
    with pq.ParquetFile(tmp_path / "out/documents/docs.parquet") as file:
        groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
        assert [group.num_rows for group in groups] == [2, 1] and groups[0].column(0).compression == "GZIP"
        assert file.schema_arrow.metadata[b"who"] == b"me" and file.schema_arrow.field("n").type == pa.int8()
        found = file.read().to_pydict()
    assert found == {
        "words": [3, 5, 3], "text": ["a b", "a b\nc", "a  b"], "n": [0, 2, 5], "perplexity": [2.9, 9.6, 2.9],
        "lines": [[2.9], [2.9, 56.2], [2.9]],
    }  # fmt: skip


def test_a_row_group_without_kept_documents(arpa, here, tmp_path):
    """The file has no group without rows."""
    table = pa.table({"text": ["c", "c", "a b", "c"]})
    pq.write_table(table, tmp_path / "docs.parquet", row_group_size=2, compression="none")
    filtered(here, arpa, tmp_path / "docs.parquet", tmp_path / "out", max_perplexity=10)
    with pq.ParquetFile(tmp_path / "out/documents/docs.parquet") as file:
        assert [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] == [1]
        assert file.metadata.row_group(0).column(0).compression == "UNCOMPRESSED"


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_types_of_parquet(kind, arpa, here, tmp_path):
    """Texts of each type of Arrow are read, dropped and written as this type."""
    texts = pa.array(TEXTS).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(TEXTS).cast(kind)
    pq.write_table(pa.table({"text": texts}), tmp_path / "docs.parquet")
    filtered(here, arpa, tmp_path / "docs.parquet", tmp_path / "out", max_perplexity=10, keep=["words"])
    found = pq.read_table(tmp_path / "out/documents/docs.parquet")
    assert found.schema.field("text").type == kind
    assert found.to_pydict() == {"text": ["a b", "a b\nc", "a  b"], "words": [3, 5, 3]}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.string_view()), [["a"], None, [], ["b", "c"]]),
        (pa.large_list(pa.binary_view()), [[b"a"], None, [], [b"b", None]]),
        (pa.list_(pa.string_view(), 2), [["a", "b"], None, ["c", "d"], ["e", "f"]]),
        (pa.map_(pa.string(), pa.string_view()), [[("a", "b")], None, [], [("c", "d")]]),
        (pa.struct([("x", pa.struct([("y", pa.list_(pa.string_view()))]))]), [{"x": {"y": ["a"]}}, None] * 2),
    ],
)
def test_views_inside_lists_and_records(kind, values, arpa, here, tmp_path):
    pq.write_table(
        pa.table({"text": ["a b", "c", "a b", "c"], "inside": pa.array(values, kind)}), tmp_path / "d.parquet"
    )
    filtered(here, arpa, tmp_path / "d.parquet", tmp_path / "out", max_perplexity=10, keep=["words"])
    wanted = {"text": ["a b", "a b"], "inside": [values[0], values[2]], "words": [3, 3]}
    assert pq.read_table(tmp_path / "out/documents/d.parquet").to_pydict() == wanted


def test_views_in_lists_of_records(arpa, here, tmp_path):
    """Arrow reads these columns as their stored schema says, and cannot write them."""
    views, plain = (pa.schema([("text", pa.string()), ("a", pa.list_(pa.struct([("b", kind)])))]) for kind in
                    (pa.string_view(), pa.string()))  # fmt: skip
    table = pa.table({"text": ["a b", "c"], "a": [[{"b": "x"}], [{"b": "y"}, {"b": None}]]}, plain)
    with pq.ParquetWriter(tmp_path / "d.parquet", plain, store_schema=False) as file:
        file.add_key_value_metadata({"ARROW:schema": base64.b64encode(views.serialize())})
        file.write_table(table)
    assert pq.read_schema(tmp_path / "d.parquet").field("a").type.value_type.field("b").type == pa.string_view()
    filtered(here, arpa, tmp_path / "d.parquet", tmp_path / "out", min_perplexity=10, keep=["oovs"])
    found = pq.read_table(tmp_path / "out/documents/d.parquet").to_pydict()
    assert found == {"text": ["c"], "a": [[{"b": "y"}, {"b": None}]], "oovs": [1]}


def test_two_columns_of_one_name(arpa, here, tmp_path):
    table = pa.Table.from_arrays([pa.array(["a b"]), pa.array([1]), pa.array([2])], ["text", "n", "n"])
    pq.write_table(table, tmp_path / "docs.parquet")
    with pytest.raises(InputError, match="has two columns 'n'; rename one of them or leave it out"):
        filtered(here, arpa, tmp_path / "docs.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_first_record_without_text(arpa, here, tmp_path):
    """It is a reject like any other; only a key that all first lines lack is an error."""
    (tmp_path / "docs.jsonl").write_text('{"id": 9}\n' + LINES[0] + "\n")
    with pytest.warns(InputWarning, match="1 of 2 records could not be read"):
        filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out")
    assert new_fields(tmp_path / "out/documents/docs.jsonl") == BY_HAND[:1]
    assert json.loads((tmp_path / "out/rejects.jsonl").read_text())["reason"] == "no key 'text'"


def test_records_that_cannot_be_read(arpa, here, tmp_path):
    """They are told with file, line and reason; all else is filtered."""
    docs = tmp_path / "docs.jsonl"
    docs.write_bytes(LINES[0].encode() + b'\n\n{"text": 3}\n\xff\n' + LINES[1].encode() + b'\n{"text"')
    with pytest.warns(InputWarning, match="3 of 5 records could not be read; .*rejects.jsonl has the reasons"):
        result = filtered(here, arpa, docs, tmp_path / "out")
    assert new_fields(tmp_path / "out/documents/docs.jsonl") == BY_HAND[:2] and result.stats.rejects == 3
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").open()]
    assert [(r["file"], r["line"], r["record"]) for r in rejects] == [
        (str(docs), 3, '{"text": 3}'), (str(docs), 4, "\\xff"), (str(docs), 6, '{"text"'),
    ]  # fmt: skip
    assert rejects[0]["reason"] == "'text' is int, no text"
    whole = (tmp_path / "out/rejects.jsonl").read_bytes()
    with pytest.warns(InputWarning):  # in blocks of a line
        filtered(here, arpa, docs, tmp_path / "out", block_bytes=1, context={"overwrite": True})
    assert (tmp_path / "out/rejects.jsonl").read_bytes() == whole


def wet_record(text, kind="conversion", **headers):
    content = text.encode("latin-1")
    lines = "".join(f"{name}: {value}\r\n" for name, value in ({"WARC-Type": kind} | headers).items())
    return f"WARC/1.0\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("name", "pack", "wanted"),
    [
        ("CC-0.warc.wet.gz", lambda parts: b"".join(map(gzip.compress, parts)), "CC-0.jsonl.gz"),
        ("CC-0.wet", b"".join, "CC-0.jsonl"),
        ("CC-0", b"".join, "CC-0.jsonl"),
        ("CC-0.wet.xz", lambda parts: lzma.compress(b"".join(parts)), "CC-0.jsonl.xz"),
    ],
)
def test_wet(name, pack, wanted, arpa, here, tmp_path):
    """Texts of a crawl become JSON lines of the same compression; records without text are passed over."""
    headers = {"WARC-Target-URI": "http://a.org/", "WARC-Date": "2024-03-01T00:00:00Z"}
    kinds = "Conversion", *["conversion"] * 5  # in any case
    parts = [wet_record("x", "warcinfo")]
    parts += [wet_record(f"{text or ''}\n", kind, **headers) for text, kind in zip(TEXTS, kinds, strict=True)]
    parts.insert(3, wet_record("a \xff b"))
    (tmp_path / name).write_bytes(pack([*parts, wet_record("cut short")[:-9]]))
    with pytest.warns(InputWarning, match="2 of 8 records could not be read"):
        filtered(here, arpa, tmp_path / name, tmp_path / "out")
    data = (tmp_path / "out/documents" / wanted).read_bytes()
    suffix = "." + name.rpartition(".")[2] if name.endswith("z") else ""
    found = [json.loads(line) for line in UNPACKERS[suffix](data).splitlines()]
    for document, text, values in zip(found, TEXTS, BY_HAND, strict=True):
        text = text or ""
        fields = {"url": "http://a.org/", "date": "2024-03-01T00:00:00Z", "length": len(text) + 1, "text": text}
        assert document == fields | values
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").open()]
    assert [(r["byte"], r["reason"]) for r in rejects] == [
        (sum(map(len, parts[:3])), "no UTF-8 at byte 2 of the text"),
        (sum(map(len, parts)), "the file ends after 4 of 9 bytes of the text"),
    ]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.filterwarnings("ignore:1 of . records")
def test_a_wet_file_that_is_damaged_near_its_beginning(cut, arpa, here, tmp_path):
    """The whole records are read, as after damage further on."""
    head = "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 3\r\n\r\n"
    members = [gzip.compress(f"{head}{text}\r\n\r\n".encode()) for text in ("a b", "b c", "c a")]
    members[1] = members[1][:-20] if cut else members[1][:-8] + bytes(8)
    path = tmp_path / "x.warc.wet.gz"
    path.write_bytes(b"".join(members[: 2 if cut else 3]))
    result = filtered(here, arpa, path, tmp_path / "out")
    data = gzip.decompress((tmp_path / "out/documents/x.jsonl.gz").read_bytes())
    assert [json.loads(line)["text"] for line in data.splitlines()] == (["a b"] if cut else ["a b", "c a"])
    assert result.stats.rejects == 1


def write_many(tmp_path, shards=5):
    """Write shards of documents of random words with a language each; return all documents in order."""
    rng = np.random.default_rng(0)
    (tmp_path / "docs").mkdir()
    documents = []
    for shard in range(shards):
        some = [
            {"id": f"{shard}-{i}", "lang": rng.choice(["en", "de"]).item(), "text": " ".join(rng.choice([*"abc"], n))}
            for i, n in enumerate(rng.integers(0, 9, 40))
        ]
        (tmp_path / f"docs/{shard}.jsonl").write_text("".join(json.dumps(d) + "\n" for d in some))
        documents += some
    return documents


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"}


@pytest.mark.parametrize("language", [None, "lang"])
def test_exact_percentiles(language, arpa, here, tmp_path):
    """Cut-offs are NumPy's percentiles of the written perplexities, of each language or of all."""
    write_many(tmp_path)
    result = filtered(
        here, arpa, tmp_path / "docs", tmp_path / "out", buckets=["head:30,middle:60"], language_column=language
    )
    found = [json.loads(line) for i in range(5) for line in (tmp_path / f"out/documents/{i}.jsonl").open()]
    assert len(found) == 200 and len(result.cutoffs) == (2 if language else 1)
    for name, cutoffs in result.cutoffs.items():
        some = [d for d in found if name in ("", d["lang"])]
        known = [d["perplexity"] for d in some if "perplexity" in d]
        assert cutoffs == pytest.approx(np.percentile(known, [30, 60]))
        for d in some:
            place = sum(d["perplexity"] >= c for c in cutoffs) if "perplexity" in d else -1
            assert d["bucket"] == ("head", "middle", "tail", "all")[place]


@pytest.mark.parametrize("buckets", [[], ["low:50"]])
def test_a_model_of_each_language(buckets, arpa_text, here, tmp_path):
    """Documents have the figures of runs with one model; those of a language without a model have none."""
    documents = write_many(tmp_path)
    models = {"en": arpa_text, "fr": arpa_text.replace("-0.25", "-0.75"), "x": arpa_text}
    for name, text in models.items():
        (tmp_path / f"lm.{name}.arpa").write_text(text)
    for path in (tmp_path / "docs").iterdir():
        path.write_text(path.read_text().replace('"de"', '"fr"' if path.name < "3" else '"de"'))
    config = FilterConfig(
        [str(tmp_path / "docs")], str(tmp_path / "lm.{language}.arpa"), language_column="lang", buckets=buckets,
        keep=["log10,words"], block_bytes=900,
    )  # fmt: skip
    run(config, RunContext(here, tmp_path / "out"))
    found = [json.loads(line) for i in range(5) for line in (tmp_path / f"out/documents/{i}.jsonl").open()]
    assert [d["id"] for d in found] == [d["id"] for d in documents]
    wanted = {}
    for name in "en", "fr":
        filtered(here, tmp_path / f"lm.{name}.arpa", tmp_path / "docs", tmp_path / name, keep=["log10,words"])
        for i in range(5):
            for document in map(json.loads, (tmp_path / name / f"documents/{i}.jsonl").open()):
                if document["lang"] == name:
                    wanted[document["id"]] = document
    assert {d["lang"] for d in found} == {"en", "fr", "de"} and len({d.get("log10") for d in wanted.values()}) > 20
    for document in found:
        same = {k: v for k, v in document.items() if k in ("id", "lang", "text")}
        assert document == wanted.get(document["id"], same)


@pytest.fixture
def contrast(arpa_text, tmp_path):
    """The path of a model that gives a b </s> the log10 probability -1.90625, and the unknown c with </s> -3.5."""
    path = tmp_path / "contrast.arpa"
    path.write_text(arpa_text.replace("-0.25", "-0.75"))
    return path


def test_a_contrast_model_by_hand(arpa, contrast, here, tmp_path):
    """Cross-entropy differences are bits per word: (-1.90625 + 1.40625) * log2(10) / 3 = -0.5537, and 0 for c."""
    (tmp_path / "docs.jsonl").write_text("\n".join(LINES))
    filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", contrast_model=str(contrast))
    found = new_fields(tmp_path / "out/documents/docs.jsonl")
    figures = [(d.pop("contrast_perplexity", None), d.pop("cross_entropy_difference", None)) for d in found]
    assert figures == [(4.3, -0.5537), (56.2, 0.0), (12.1, -0.3322), (None, None), (None, None), (4.3, -0.5537)]
    assert found == BY_HAND
    settings = {"contrast_model": str(contrast), "max_difference": -0.4, "keep": ["cross_entropy_difference"]}
    filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "few", **settings)
    assert new_fields(tmp_path / "few/documents/docs.jsonl") == [{"cross_entropy_difference": -0.5537}] * 2


@pytest.mark.parametrize("buckets", [["near:40"], []])
def test_buckets_by_difference(buckets, arpa, contrast, here, tmp_path):
    """Percentiles of the written differences, or fixed limits; the report shows them with four decimals."""
    write_many(tmp_path)
    fixed = [] if buckets else ["near:-0.3"]
    settings = {"buckets": buckets, "fixed_buckets": fixed, "bucket_by": "difference", "only": ["near,all"]}
    result = filtered(here, arpa, tmp_path / "docs", tmp_path / "out", contrast_model=str(contrast), **settings)
    filtered(here, arpa, tmp_path / "docs", tmp_path / "all", contrast_model=str(contrast))
    everything = [json.loads(line) for i in range(5) for line in (tmp_path / f"all/documents/{i}.jsonl").open()]
    known = [d["cross_entropy_difference"] for d in everything if "words" in d]
    (cutoff,) = result.cutoffs[""]
    assert cutoff == (pytest.approx(np.percentile(known, 40)) if buckets else -0.3)
    found = [json.loads(line) for i in range(5) for line in (tmp_path / f"out/documents/{i}.jsonl").open()]
    assert [d["id"] for d in found] == [d["id"] for d in everything if d.get("cross_entropy_difference", -9) < cutoff]
    page = (tmp_path / "out/report.html").read_text()
    assert "Cut-offs by difference" in page and f"<td>{cutoff:.4f}</td>" in page


@pytest.mark.parametrize("settings", [{"buckets": ["low:50"]}, {"model": "{language}.arpa"}, {"cutoffs": "cutoff.csv"}])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "wet"])
def test_a_field_of_the_language_that_no_document_has(kind, settings, arpa, here, tmp_path, monkeypatch):
    """It is an error, after which a run with the right name needs no --overwrite; one document with it is enough."""
    monkeypatch.chdir(tmp_path)
    arpa.rename("en.arpa")
    (tmp_path / "cutoff.csv").write_text(",en\n50,9.0\n")
    settings = {"model": "en.arpa", "buckets": ["low:50"] * ("cutoffs" in settings)} | settings
    records = [{"text": "a b", "lang": None, "n": 3}, {"text": "c", "lang": "en", "n": 4}]
    if kind == "jsonl":
        (tmp_path / "docs").write_text("".join(json.dumps(record) + "\n" for record in records))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "docs")
    else:
        (tmp_path / "docs").write_bytes(
            wet_record("a b") + wet_record("c", **{"WARC-Identified-Content-Language": "en"})
        )
    names = ("id", "language") if kind == "wet" else ("lnag", "lang") if kind == "parquet" else ("n", "lang")
    what = "lacks the column 'lnag'; name one with language_column: text, lang, n" if kind == "parquet" else (
        f"no document has a text in the field '{names[0]}'; name the field of the language with language_column"
    )  # fmt: skip
    with pytest.raises(InputError, match=what):
        run(FilterConfig(["docs"], language_column=names[0], **settings), RunContext(here, "out"))
    assert not [*tmp_path.glob("out*")]
    run(FilterConfig(["docs"], language_column=names[1], keep=["words"], **settings), RunContext(here, "out"))
    assert len([*(tmp_path / "out/documents").iterdir()]) == 1


@pytest.mark.parametrize("lines", ["", '{"text": "", "lang": "en"}\n'])
@pytest.mark.parametrize("language", [None, "lang"])
@pytest.mark.parametrize("more", [{}, {"sample": 9}])
def test_percentiles_of_no_words(lines, language, more, arpa, here, tmp_path):
    (tmp_path / "docs.jsonl").write_text(lines)
    with pytest.warns(InputWarning, match="no document has a perplexity.*, so there are no percentiles; all documents"):
        result = filtered(
            here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", buckets=["head:30"], language_column=language, **more
        )
    assert result.cutoffs == {} and set(result.stats.buckets) == ({"all"} if lines else set())


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            {"model": "{language}.arpa"},
            "no document has a perplexity: none has words and a language with a model, de, nl",
        ),
        (
            {"model": "de.arpa", "cutoffs": "cutoff.csv", "buckets": ["low:50"]},
            "all documents have the bucket 'all': none has words and a language of cutoff.csv, de",
        ),
    ],
)
def test_no_document_in_a_known_language(settings, wanted, arpa, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(arpa, "de.arpa")
    arpa.rename("nl.arpa")
    (tmp_path / "cutoff.csv").write_text(",de\n50,9.0\n")
    (tmp_path / "docs.jsonl").write_text('{"text": "a b", "language": "en"}\n')
    with pytest.warns(InputWarning, match=re.escape(wanted)):
        run(FilterConfig(["docs.jsonl"], **settings), RunContext(here, "out"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "memory"])
def test_old_figures_of_documents_without_words(kind, arpa, here, tmp_path):
    """They are not those of this model."""
    records = [
        {"text": "", "words": 7, "n": 1},
        {"text": None, "bucket": "x", "n": 2},
        {"text": "a", "words": 9, "n": 3},
    ]
    settings = {"fixed_buckets": ["low:9"], "keep": ["words", "bucket"]}
    if kind == "memory":
        found = filter_records(records, DocumentFilter(arpa, **settings))
    else:
        path = tmp_path / f"d.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        else:
            pq.write_table(pa.Table.from_pylist(records), path)
        filtered(here, arpa, path, tmp_path / "out", **settings)
        out = tmp_path / f"out/documents/d.{kind}"
        found = pq.read_table(out).to_pylist() if kind == "parquet" else [json.loads(line) for line in out.open()]
    known = [{name: value for name, value in record.items() if value not in ("", None)} for record in found]
    assert known == [
        {"n": 1, "bucket": "all"},
        {"n": 2, "bucket": "all"},
        {"text": "a", "n": 3, "words": 2, "bucket": "low"},
    ]


@pytest.mark.parametrize("text", ["\n", '{"text": 3}\n'], ids=["blank", "rejected"])
@pytest.mark.filterwarnings("ignore:1 of 3 records")
def test_percentiles_beside_a_shard_without_documents(text, arpa, here, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n{"text": "c"}\n')
    (tmp_path / "b.jsonl").write_text(text)
    result = filtered(here, arpa, tmp_path / "*.jsonl", tmp_path / "out", buckets=["low:60"])
    assert (result.stats.documents, result.stats.rejects) == (2, text != "\n")
    assert [d["bucket"] for d in new_fields(tmp_path / "out/documents/a.jsonl")] == ["low", "tail"]
    assert (tmp_path / "out/documents/b.jsonl").read_text() == ""


def test_a_language_named_none(arpa, here, tmp_path):
    """Its percentiles are those of its own documents, not of documents without a language."""
    docs = tmp_path / "docs.jsonl"
    docs.write_text('{"text": "a b", "lang": "None"}\n{"text": "c", "lang": null}\n{"text": "c"}\n')
    result = filtered(here, arpa, docs, tmp_path / "out", buckets=["low:60"], language_column="lang")
    assert result.cutoffs == {"None": (2.9,)}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("more", [{"buckets": ["low:60"]}, {"fixed_buckets": ["low:9"]}, {"contrast_model": "m.arpa"}])
def test_words_of_probability_0(kind, more, arpa, here, tmp_path, monkeypatch):
    """Such a document is in the tail and has no infinite figure, which JSON lacks."""
    monkeypatch.chdir(tmp_path)
    words = ["-1\t<unk>", "-99\t<s>", "-0.5\t</s>", "-0.5\ta", "-inf\tb"]
    (tmp_path / "m.arpa").write_text("\n".join(["\\data\\", "ngram 1=5", "", "\\1-grams:", *words, "", "\\end\\", ""]))
    documents = [{"text": text} for text in ("a", "b", "a\nb", "a a", 'b "\\')]
    if kind == "jsonl":
        (tmp_path / "d").write_text("".join(json.dumps(document) + "\n" for document in documents))
    else:
        pq.write_table(pa.Table.from_pylist(documents), tmp_path / "d")
    keep = ["perplexity,log10,words,lines", *(["cross_entropy_difference"] if "contrast_model" in more else ["bucket"])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = filtered(here, "m.arpa", "d", "out", keep=keep, **more)
    if "buckets" in more:  # the percentile 60 of 3.2 twice and infinity three times
        assert result.cutoffs == {"": (np.inf,)} and result.as_json()["cutoffs"] == {"": [None]}
    json.loads((tmp_path / "out/manifest.json").read_text(), parse_constant=pytest.fail)
    path = tmp_path / "out/documents/d"
    if kind == "jsonl":
        found = [json.loads(line, parse_constant=pytest.fail) for line in path.open()]
    else:
        rows = pq.read_table(path).to_pylist()
        found = [{name: value for name, value in row.items() if value is not None} for row in rows]
    lines = [[3.2], [None], [3.2, None], [3.2], [None]]
    assert [d["lines"] for d in found] == lines and [d["words"] for d in found] == [2, 2, 4, 3, 3]
    assert [d.get("perplexity") for d in found] == [3.2, None, None, 3.2, None]
    assert [d.get("log10") for d in found] == [-1, None, None, -1.5, None]
    if "contrast_model" in more:
        assert [d.get("cross_entropy_difference") for d in found] == [0, None, None, 0, None]
    else:
        assert [d["bucket"] for d in found] == ["low" if "perplexity" in d else "tail" for d in found]
    assert "3.2" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize("read", ["documents", "model", "cutoffs"])
def test_an_output_that_would_replace_an_input(read, arpa, here, tmp_path):
    """The files stay, also where a link leads to the folder."""
    (tmp_path / "docs.jsonl").write_text('{"text": "a b", "language": "en"}\n')
    filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out")
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "out/m.arpa").write_text(arpa.read_text())
    (tmp_path / "out/cutoff.csv").write_text(",en\n50,9.0\n")
    before = contents(tmp_path / "out")
    docs = tmp_path / ("out/documents" if read == "documents" else "docs.jsonl")
    model = tmp_path / "out/m.arpa" if read == "model" else arpa
    more = {"cutoffs": str(tmp_path / "out/cutoff.csv"), "buckets": ["low:50"]} if read == "cutoffs" else {}
    for out in "out", "link":
        with pytest.raises(InputError, match=f"{out} would replace .*, which this run reads; give another output path"):
            filtered(here, model, docs, tmp_path / out, context={"overwrite": True}, **more)
    assert contents(tmp_path / "out") == before
    filtered(here, model, docs, tmp_path / "out2", **more)


def test_fixed_buckets(arpa, here, tmp_path):
    (tmp_path / "docs.jsonl").write_text("\n".join(LINES))
    settings = {"fixed_buckets": ["head:9.6,middle:56.2"], "keep": ["bucket"]}
    filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", **settings)
    found = [d["bucket"] for d in new_fields(tmp_path / "out/documents/docs.jsonl")]
    assert found == ["head", "tail", "middle", "all", "all", "head"]


@pytest.mark.parametrize("block_bytes", [None, 300])
def test_percentiles_of_a_sample(block_bytes, arpa, here, tmp_path):
    """The first 7 documents of each shard: 35 for 31 to 35 documents in 5 shards."""
    documents = write_many(tmp_path)
    settings = {"buckets": ["head:30,middle:60"], "sample": 31, "block_bytes": block_bytes}
    result = filtered(here, arpa, tmp_path / "docs", tmp_path / "out", **settings)
    found = [json.loads(line) for i in range(5) for line in (tmp_path / f"out/documents/{i}.jsonl").open()]
    assert [d["id"] for d in found] == [d["id"] for d in documents]
    known = [d["perplexity"] for d in found if int(d["id"].partition("-")[2]) < 7 and "perplexity" in d]
    assert result.cutoffs[""] == pytest.approx(np.percentile(known, [30, 60]))
    for d in found:
        place = sum(d["perplexity"] >= c for c in result.cutoffs[""]) if "perplexity" in d else -1
        assert d["bucket"] == ("head", "middle", "tail", "all")[place]


def test_a_sample_is_read_from_the_beginning_of_a_file(arpa, here, tmp_path, monkeypatch):
    """The second pass reads all blocks, the first pass few of them."""
    docs, blocks, read_shard = tmp_path / "docs.jsonl", [], filter_shard.read_shard
    docs.write_text('{"text": "a b"}\n' * 3000)

    def counted(*arguments):
        for block in read_shard(*arguments):
            blocks.append(block)
            yield block

    monkeypatch.setattr(filter_shard, "read_shard", counted)
    filtered(here, arpa, docs, tmp_path / "once", block_bytes=300)
    whole = len(blocks)
    filtered(here, arpa, docs, tmp_path / "out", buckets=["low:50"], sample=20, block_bytes=300)
    assert whole > 100 and len(blocks) - whole < 1.5 * whole


@pytest.mark.parametrize("suffix", [".csv", ".yaml"])
def test_a_table_of_models(suffix, arpa_text, contrast, here, tmp_path):
    """The files of a table have the figures of {language} in a path; two languages may share a model."""
    write_many(tmp_path)
    (tmp_path / "lm").mkdir()
    for name in "en", "de":
        (tmp_path / f"lm/{name}.arpa").write_text(arpa_text.replace("-0.25", "-0.5" if name == "de" else "-0.25"))
    tables = {
        ".csv": "\ufefflanguage,model,contrast_model\nen,lm/en.arpa,contrast.arpa\n\nde, lm/de.arpa ,contrast.arpa\n",
        ".yaml": "en: {model: lm/en.arpa, contrast_model: contrast.arpa}\n"
        f"de: {{model: {tmp_path}/lm/de.arpa, contrast_model: contrast.arpa}}\n",
    }
    (tmp_path / f"models{suffix}").write_text(tables[suffix], "utf-8")
    settings = {"language_column": "lang", "keep": ["perplexity,cross_entropy_difference"]}
    filtered(here, tmp_path / f"models{suffix}", tmp_path / "docs", tmp_path / "out", **settings)
    settings["contrast_model"] = str(contrast)
    filtered(here, tmp_path / "lm/{language}.arpa", tmp_path / "docs", tmp_path / "whole", **settings)
    assert contents(tmp_path / "out/documents") == contents(tmp_path / "whole/documents")


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("m.csv", "", "its first line is not the names of columns; give a CSV file with the columns language, model"),
        ("m.csv", "en,en.arpa\n", "its first line is not the names of columns"),
        ("m.csv", "language,model\n", "the table has no models"),
        ("m.csv", "language,model\nen,a.arpa,b\n", "line 2 has 3 values but there are 2 columns"),
        ("m.csv", "language,model,tokeniser\nen,a.arpa,b\n", "unknown key 'tokeniser'; did you mean 'tokenizer'?"),
        ("m.csv", "language,model\n,a.arpa\n", "line 2 has the language '', which is not a name"),
        ("m.csv", "language,model\nen,a.arpa\nen,b.arpa\n", "line 3 gives the language 'en' a second model"),
        ("m.csv", "language,model\nen,\n", "line 2 has no model; give the path of one"),
        ("m.csv", "language,model\nen,a\0.arpa\n", "line 2 has 'a\\x00.arpa' as model, which is not a path"),
        ("m.csv", "language,model,contrast_model\nen,a.arpa,b.arpa\nde,a.arpa,\n", "'de' has no contrast_model but"),
        ("m.yaml", "no: a.arpa\n", "the entry False has the language False, which is not a name; write it in quotes"),
        ("m.yaml", "en: [a.arpa]\n", "the entry 'en' is ['a.arpa'] but must be a path"),
        ("m.yaml", "en: {model: 3}\n", "has 3 as model, which is not a path"),
        ("m.yaml", "en: x.arpa\n", "x.arpa: cannot be read (No such file or directory)"),
        ("n.yaml", "", "n.yaml: is empty but must be a mapping from languages to models"),
    ],
)
def test_tables_that_cannot_be_used(name, text, wanted, here, tmp_path):
    (tmp_path / "docs.jsonl").write_text(LINES[0])
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(wanted)):
        filtered(here, tmp_path / name, tmp_path / "docs.jsonl", tmp_path / "out")


def test_cuts_and_threads_change_nothing(arpa, here, tmp_path):
    """Blocks of one document and more; the report has the same samples, too."""
    write_many(tmp_path)
    more = {"buckets": ["low:50"], "normalize": "nfc", "only": ["low"]}
    outputs = []
    for block_bytes in None, 1, 700:
        filtered(here, arpa, tmp_path / "docs", tmp_path / f"{block_bytes}", block_bytes=block_bytes, **more)
        outputs.append(contents(tmp_path / f"{block_bytes}"))
    assert outputs[0] == outputs[1] == outputs[2] and len(outputs[0]) == 7
    page = outputs[0]["report.html"].decode()
    samples = {part.partition("<")[0]: part.count("<li>") for part in page.split("<h2>Samples of ")[1:]}
    assert samples["low"] == samples["tail"] == 20 and "<script" not in page


class Stop(Progress):
    """Ends a run after some shards of a phase."""

    def __init__(self, phase, done):
        self.wanted, self.left, self.phase = phase, done, ""

    def start(self, phase, total, unit="", rate=""):
        self.phase = phase

    def advance(self, done, amount=0):
        self.left -= self.phase == self.wanted
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["score", "filter"])
def test_a_resumed_run_does_no_shard_twice(phase, arpa, here, tmp_path, monkeypatch):
    write_many(tmp_path)
    more = {"buckets": ["low:50"]}
    filtered(here, arpa, tmp_path / "docs", tmp_path / "whole", **more)
    stopped = LocalExecutor(workers=2)
    with pytest.raises(KeyboardInterrupt):
        filtered(stopped, arpa, tmp_path / "docs", tmp_path / "out", context={"progress": Stop(phase, 3)}, **more)
    stopped.close()  # waits for the tasks that were running
    assert not (tmp_path / "out").exists()
    done = {kind: len([*tmp_path.glob(f"out.checkpoint/*/{kind}-*.safetensors")]) for kind in ("scores", "shard")}
    assert done["scores" if phase == "score" else "shard"] >= 3
    real = {"scores": filter_job.score_shard, "shard": filter_job.write_shard}
    again = {"scores": 0, "shard": 0}

    def counted(kind):
        def task(*arguments):
            again[kind] += 1
            return real[kind](*arguments)

        return task

    monkeypatch.setattr(filter_job, "score_shard", counted("scores"))
    monkeypatch.setattr(filter_job, "write_shard", counted("shard"))
    filtered(here, arpa, tmp_path / "docs", tmp_path / "out", context={"resume": True}, **more)
    assert {kind: done[kind] + again[kind] for kind in done} == {"scores": 5, "shard": 5}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "out.checkpoint").exists()


@pytest.mark.parametrize("name", ["shard", "rejects"])
def test_finished_shards_that_are_cut_short(name, arpa, here, tmp_path):
    """A resumed run writes them again: a host that stops may lose the ends of files."""
    write_many(tmp_path)
    for path in (tmp_path / "docs").iterdir():
        path.write_text(path.read_text() + "no JSON\n")
    with pytest.warns(InputWarning):
        filtered(here, arpa, tmp_path / "docs", tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        filtered(LocalExecutor(), arpa, tmp_path / "docs", tmp_path / "out", context={"progress": Stop("filter", 3)})
    finished = [path for path in tmp_path.glob(f"out.checkpoint/*/{name}-*") if not path.suffix]
    assert len(finished) >= 3
    for path in finished:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(InputWarning):
        filtered(here, arpa, tmp_path / "docs", tmp_path / "out", context={"resume": True})
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_on_a_cluster(arpa, cluster, hooks, hooks_folder, here, tmp_path):
    """Workers die before and after shards; their shards are done again."""
    write_many(tmp_path)
    more = {"buckets": ["low:50"]}
    filtered(here, arpa, tmp_path / "docs", tmp_path / "whole", **more)
    hooks(**{f"{task}.{when}": "" for task in TASKS for when in ("before1", "after1")})
    filtered(cluster, arpa, tmp_path / "docs", tmp_path / "out", **more)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert [p.name for p in hooks_folder.iterdir()] == ["shard_tokens"], "a worker died in every task"


@pytest.mark.gpu
def test_on_a_gpu(arpa, here, tmp_path):
    write_many(tmp_path)
    more = {"buckets": ["low:50"], "normalize": "ccnet"}
    executor = LocalExecutor("gpu")
    try:
        filtered(executor, arpa, tmp_path / "docs", tmp_path / "out", **more)
    finally:
        executor.close()
    filtered(here, arpa, tmp_path / "docs", tmp_path / "whole", **more)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_inputs_of_one_name(arpa, here, tmp_path):
    for folder in "x", "y":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "docs.jsonl").write_text(f'{{"text": "a b", "id": "{folder}"}}\n')
    config = FilterConfig([str(tmp_path / name) for name in "xy"], str(arpa))
    run(config, RunContext(here, tmp_path / "out"))
    found = {path.name: json.loads(path.read_text())["id"] for path in (tmp_path / "out/documents").iterdir()}
    assert found == {"00000-docs.jsonl": "x", "00001-docs.jsonl": "y"}


def test_files_that_are_no_documents(arpa, here, tmp_path):
    for data, wanted in [
        (b'[{"text": "a"},\n{"text": "b"}]\n', "jq -c '.\\[\\]' .*docs > documents.jsonl"),
        (b'[\n  {\n    "text": "a"\n  }\n]\n', "holds a JSON array, which is not read; give JSON lines, an object a"),
        (b"[" + b'{"text": "a"}, ' * 500 + b"{}]", "holds a JSON array"),
        (gzip.compress(b'[{"text": "a"}]\n'), "gzip -dc .*docs | jq -c '.\\[\\]' > documents.jsonl"),
        (b"[1, 2]\nplain text\n", "is text, not JSON lines"),
        (b"plain text\n", "is text, not JSON lines; give one JSON object with the key 'text' a line"),
        (wet_record("<html>", "response"), "is a WARC file of response records, which hold no text"),
        (b'{"body": "a"}\n', "lacks the key 'text'; name one with text_column: body"),
        (gzip.compress(b"")[:10] + b"\xff" * 9, "is damaged gzip data"),  # from its first byte
    ]:
        (tmp_path / "docs").write_bytes(data)
        with pytest.raises(InputError, match=wanted):
            filtered(here, arpa, tmp_path / "docs", tmp_path / "out")
        assert not (tmp_path / "out").exists()
    (tmp_path / "docs").write_bytes(b"")
    filtered(here, arpa, tmp_path / "docs", tmp_path / "out")
    assert (tmp_path / "out/documents/docs").read_bytes() == b""


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"buckets": ["head"]}, "not NAME:PERCENTILE"),
        ({"keep": ["perplexty"]}, "did you mean 'perplexity'"),
        ({"keep": ["bucket"]}, "there are no buckets"),
        ({"only": ["head"]}, "only has 'head' but there are no buckets"),
        ({"only": ["hed"], "buckets": ["head:3"]}, "only has 'hed' but must name some of the buckets head, tail, all"),
        ({"cutoffs": "cutoff.csv"}, "there are no buckets"),
        ({"min_perplexity": 9, "max_perplexity": 3}, "must be at most max_perplexity, 3"),
        ({"max_perplexity": 0.5}, "must be at least 1"),
        ({"tokenizer": "{language}.model"}, "may occur once in the path of the model"),
        ({"model": "{language}/{language}.arpa"}, "may occur once in the path of the model"),
        ({"text": ["-"]}, "standard input cannot be used"),
        (
            {"model": "m.csv", "tokenizer": "en.model"},
            "tokenizer is 'en.model' but m.csv is a table; set it in the table",
        ),
        ({"max_difference": 0.0}, "max_difference needs a second model; add --contrast-model MODEL"),
        ({"keep": ["contrast_perplexity"]}, "keep contrast_perplexity needs a second model"),
        ({"bucket_by": "difference"}, "bucket_by difference needs a second model"),
        ({"buckets": ["a:3"], "fixed_buckets": ["a:3"]}, "buckets and fixed_buckets are given"),
        ({"fixed_buckets": ["a:3"], "sample": 9}, "sample is 9 but no percentiles are computed"),
        ({"sample": 0}, "sample is 0 but must be at least 1"),
        ({"contrast_model": "m", "min_difference": 1.0, "max_difference": 0.5}, "must be at most max_difference, 0.5"),
        ({"text_column": "words"}, "text_column is 'words', which is a new field; rename the documents' field"),
        (
            {"language_column": "bucket", "buckets": ["low:3"], "text_column": "lines"},
            "language_column is 'bucket', which is a new field",
        ),
        ({"buckets": [","]}, "buckets is ',' but must have a name; leave it out, or give one"),
        ({"only": [""], "buckets": ["low:3"]}, "only is '' but must have a name"),
        ({"keep": [""]}, "keep is '' but must have a name"),
        ({"fixed_buckets": ["low:0.5"]}, "fixed_buckets ends at 0.5 but a perplexity is at least 1"),
    ],
)
def test_settings_that_contradict(settings, wanted):
    with pytest.raises(InputError, match=wanted):
        FilterConfig(**{"text": ["docs"], "model": "m.arpa"} | settings)


@pytest.mark.parametrize("normalize", ["nfc", "nfkc"])
def test_lines_are_sentences_unless_ccnet_joins_them(normalize, arpa, here, tmp_path):
    documents = ({"text": text and text.upper()} for text in TEXTS)
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, documents)))
    filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", normalize=normalize)
    assert new_fields(tmp_path / "out/documents/docs.jsonl") == BY_HAND


def test_a_newline_in_a_sentence_is_a_space(arpa, here, tmp_path):
    """Also in a text that the kernel leaves to Python, because of its capital sigma."""
    lines = [json.dumps({"text": text}) for text in ("A\nB \u03a3", "A B \u03a3", "A\nB", "A B")]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", normalize="nfc", sentences="document")
    found = new_fields(tmp_path / "out/documents/docs.jsonl")
    assert found[0] == found[1] and found[2] == found[3] == BY_HAND[0]


def test_two_equal_limits(arpa, here, tmp_path):
    (tmp_path / "docs.jsonl").write_text("\n".join(LINES))
    result = filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", min_perplexity=2.9, max_perplexity=2.9)
    assert result.stats.kept == 2


@pytest.fixture
def ccnet(shared_data, tmp_path):
    """Return (the folder of unpacked files of CCNet, its figures by URL)."""
    for path in (shared_data / "golden/tools/ccnet").glob("*.xz"):
        (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    figures = map(json.loads, (tmp_path / "ccnet.jsonl").open())
    return tmp_path, {found["url"]: found for found in figures}


@pytest.mark.parametrize("kind", ["ccnet_sp", "ccnet_words"])
@pytest.mark.filterwarnings("ignore:1 of 2,014 records")
def test_ccnet_figures(kind, ccnet, here, shared_data):
    """All printed digits, lengths and buckets, but for documents of languages that CCNet passes over."""
    folder, figures = ccnet
    more = {"normalize": "ccnet", "text_column": "raw_content", "buckets": ["head:30", "middle:60"]}
    more["cutoffs"] = str(shared_data / "golden/tools/ccnet/cutoff.csv")
    if kind == "ccnet_sp":
        pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
        more |= {"tokenizer": str(folder / "en.sp.model")}
    else:
        more |= {"sentences": "line"}
    model = folder / ("en.pieces.arpa" if kind == "ccnet_sp" else "en.words.arpa")
    filtered(here, model, folder / "docs.jsonl", folder / "out", **more)
    compared = 0
    for line in (folder / "out/documents/docs.jsonl").open():
        found = json.loads(line)
        wanted = figures[found["url"]][kind]
        if wanted is None or found.get("language") != "en":
            continue
        compared += 1
        assert found.get("perplexity") == wanted.get("perplexity") and found.get("words") == wanted.get("length")
        assert found["bucket"] == wanted.get("bucket", found["bucket"])
    assert compared > 1990


def train_pieces(folder):
    """Write a small SentencePiece model to m.model; return the library."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    (folder / "text.txt").write_text("the cat sat on the mat ?\n" * 500)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "m"), vocab_size=50, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    return sentencepiece


@pytest.mark.parametrize("swapped", [False, True])
def test_a_contrast_model_of_pieces(swapped, here, tmp_path):
    """Its perplexities are those of a run with it alone, whether its pieces are some of the model's or more."""
    sentencepiece = train_pieces(tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model")).encode(
        "the cat sat on a mat", out_type=str
    )
    names = sorted(set(pieces))
    for name, words in ("large", names), ("small", names[::-2]):
        grams = [f"{-1 - i / 8}\t{word}" for i, word in enumerate(["<unk>", "<s>", "</s>", *words])]
        lines = ["\\data\\", f"ngram 1={len(grams)}", "", "\\1-grams:", *grams, "", "\\end\\", ""]
        (tmp_path / f"{name}.arpa").write_text("\n".join(lines))
    model, other = (tmp_path / f"{name}.arpa" for name in (("small", "large") if swapped else ("large", "small")))
    texts = ["the cat", "the mat sat on a cat", "a x", ""]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    how = {"tokenizer": str(tmp_path / "m.model"), "context": {"overwrite": True}}
    filtered(here, other, tmp_path / "docs.jsonl", tmp_path / "alone", **how)
    filtered(here, model, tmp_path / "docs.jsonl", tmp_path / "both", contrast_model=str(other), **how)
    alone, both = (new_fields(tmp_path / name / "documents/docs.jsonl") for name in ("alone", "both"))
    assert [d.get("contrast_perplexity") for d in both] == [d.get("perplexity") for d in alone]
    assert both[1]["perplexity"] != both[1]["contrast_perplexity"]


def test_another_tokeniser_is_a_change(arpa, here, tmp_path):
    train_pieces(tmp_path)
    (tmp_path / "docs.jsonl").write_text(LINES[0])
    config = FilterConfig([str(tmp_path / "docs.jsonl")], str(arpa), tokenizer=str(tmp_path / "m.model"))
    run(config, RunContext(here, tmp_path / "out"))
    manifest = find_manifest(tmp_path / "out")
    assert not filter_job.changed_since(config, manifest)
    (tmp_path / "m.model").write_bytes((tmp_path / "m.model").read_bytes() + b" ")
    assert "tokenizer" in filter_job.changed_since(config, manifest)


@pytest.mark.parametrize("changed", ["model.arpa", "cutoff.csv"])
def test_another_model_or_table_is_a_change(changed, arpa, here, tmp_path):
    docs, table, model = (tmp_path / name for name in ("docs.jsonl", "cutoff.csv", "model.arpa"))
    docs.write_text('{"text": "a b", "language": "en"}\n')
    table.write_text(",en\n50,9.0\n")
    model.write_text(arpa.read_text())
    config = FilterConfig([str(docs)], str(model), cutoffs=str(table), buckets=["low:50"])
    run(config, RunContext(here, tmp_path / "out"))
    manifest = find_manifest(tmp_path / "out")
    assert not filter_job.changed_since(config, manifest)
    (tmp_path / changed).write_text((tmp_path / changed).read_text().replace("9.0", "8.0") + "\n")
    assert {"model.arpa": "model", "cutoff.csv": "table"}[changed] in filter_job.changed_since(config, manifest)


def test_halves_of_surrogate_pairs(arpa, here, tmp_path):
    """A text that UTF-8 cannot write is scored with ? in their place, also by a tokeniser of another library."""
    train_pieces(tmp_path)
    (tmp_path / "docs.jsonl").write_text('{"text": "a \\ud800 b"}\n{"text": "a ? b"}\n')
    for more in {"tokenizer": str(tmp_path / "m.model")}, {}, {"normalize": "ccnet"}:
        filtered(here, arpa, tmp_path / "docs.jsonl", tmp_path / "out", context={"overwrite": True}, **more)
        odd, plain = new_fields(tmp_path / "out/documents/docs.jsonl")
        assert odd == plain and odd["words"] > 3
