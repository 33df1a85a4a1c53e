"""Situations of real users with files of text: what came out wrong before, in small, and the files of the reports."""

import bz2
import gzip
import json
import lzma
import os
import re
import shutil
import warnings
import zlib
from pathlib import Path

import dask.bag
import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import mgpu_ngram as ng
from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.topic_model import find_topic_model, load_topic_model
from mgpu_ngram.core.errors import InputError, InputWarning
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.bags.open_bags import open_bags
from tests.support.slow_cases import first_fast

HERE = ["--workers", "0", "--device", "cpu"]
SHORT = ["--topics", "2", "--sweeps", "2", "--overwrite", *HERE]
REPORTS = Path(os.environ.get("MGPU_NGRAM_FAULTS", Path(__file__).parents[3] / "shared/data/faults")) / "text"
G2P = Path(__file__).parents[2] / "examples/g2p"
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def lda(tmp_path, monkeypatch, mgpu_ngram):
    """Return lda(*arguments) -> ({word: tokens}, warnings) of a training, or (None, the message of a refusal)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            status, _, err = mgpu_ngram("lda", *arguments, "-o", "model", *SHORT)
        if status:
            assert status == 2 and err.count("\n") == 1, err
            return None, err
        model = load_topic_model(find_topic_model("model"))
        words = [model.words.symbol(v) for v in range(model.num_words)]
        told = "\n".join(str(found.message) for found in caught)
        return dict(zip(words, model.word_totals_V().tolist(), strict=True)), told

    return run


def test_latin_1_passes_through(lda):
    """The bytes of a word are those of the text, by every way in."""
    Path("d.txt").write_bytes(b"caf\xe9 noir\ncaf\xe9 noir caf\xe9\nth\xe9 noir\n")
    Path("stop.txt").write_bytes(b"caf\xe9\n")
    Path("v.txt").write_bytes(b"caf\xe9\nnoir\nth\xe9\n")
    Path("d.jsonl").write_bytes(
        b'{"text": "caf\xe9 noir"}\n{"text": "caf\xe9 noir caf\xe9"}\n{"text": "th\xe9 noir"}\n'
    )
    spaces = "--token-pattern", r"\S+"
    for text in "d.txt", "d.jsonl":
        assert lda(text, *spaces)[0] == {b"caf\xe9": 3, b"noir": 3, b"th\xe9": 1}
        assert lda(text, *spaces, "--stop-words", "stop.txt")[0] == {b"noir": 3, b"th\xe9": 1}
        assert lda(text, *spaces, "--vocabulary", "v.txt")[0] == {b"caf\xe9": 3, b"noir": 3, b"th\xe9": 1}
    Path("half.jsonl").write_bytes(b'{"text": "a\\ud83d b"}\n{"text": "a\\udc80 b"}\n')  # halves of surrogate pairs
    assert lda("half.jsonl", *spaces)[0] == {b"a\xed\xa0\xbd": 1, b"b": 2, b"a\xed\xb2\x80": 1}


@pytest.mark.parametrize(
    ("text", "pattern", "cut"),
    [
        (b"caf\xe9 noir\n" * 3, None, True),
        (b"caf\xe9 noir\n" * 3, r"\w+", True),
        (b"caf\xe9 noir\n" * 3, r"\S+", False),
        ("café noir\n".encode() * 3, None, False),
    ],
)
def test_words_cut_at_odd_bytes_are_told_once(tmp_path, text, pattern, cut):
    (tmp_path / "d.txt").write_bytes(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = TextOptions(**({"token_pattern": pattern} if pattern else {}))
        assert open_bags([tmp_path / "d.txt"], None, options).num_words == 2
    found = [str(w.message) for w in caught if w.category is InputWarning]
    assert len(found) == cut and all("words are cut at bytes of the text that are not UTF-8" in line for line in found)


def test_byte_order_marks(lda, mgpu_ngram):
    """A mark at the start of a file is no part of its first word."""
    Path("d.txt").write_bytes(BOM + b"apple pear plum apple\ncar road bus car\napple plum pear\n")
    Path("stop.txt").write_bytes(BOM + b"apple\npear\n")
    Path("v.txt").write_bytes(BOM + b"apple\r\npear\r\ncar\r\n")
    Path("seeds.yaml").write_bytes(BOM + b"0: [apple]\n1: [car]\n")
    Path("d.jsonl").write_bytes(BOM + b'{"text": "apple pear"}\n' + BOM + b'{"text": "car"}\n')
    assert lda("d.txt", "--stop-words", "stop.txt")[0].keys() == {b"plum", b"car", b"road", b"bus"}
    assert lda("d.txt", "--vocabulary", "v.txt")[0] == {b"apple": 3, b"pear": 2, b"car": 2}
    assert lda("d.txt", "--token-pattern", r"\S+")[0][b"apple"] == 3
    assert lda("d.txt", "--seeds", "seeds.yaml")[0][b"apple"] == 3
    assert lda("d.jsonl")[0] == {b"apple": 1, b"pear": 1, b"car": 1}
    counts = ng.count("d.jsonl", order=1, device="cpu")
    assert counts["apple"] == counts["car"] == 1
    text = b"the cat sat\r\nthe dog\nthe end"
    for name, stored in (
        ("t.txt", BOM + text),
        ("t.gz", gzip.compress(BOM + text)),
        ("t.zst", zstandard.compress(BOM + text)),
    ):
        Path(name).write_bytes(stored)
        for chunk_bytes in 1, 2, 3, 4, 7, 1000:  # a chunk may end inside the mark
            counts = ng.count(
                name,
                order=2,
                chunk_bytes=chunk_bytes,
                sentence_markers=True,
                device="cpu",
                output="counted",
                overwrite=True,
            )
            assert [counts[w] for w in ("the", "the cat", "<s> the", "</s>")] == [3, 1, 3, 3], (name, chunk_bytes)
            [described] = json.loads(Path("counted/manifest.json").read_text())["inputs"]
            assert int(described["crc32"], 16) == zlib.crc32(stored), "of all bytes of the file"
    Path("mark.txt").write_bytes(BOM)
    assert ng.count("mark.txt", order=1, sentence_markers=True, device="cpu")["</s>"] == 0
    assert ng.count("t.txt", order=3, unit="byte", device="cpu")[BOM] == 1, "bytes are bytes"
    arpa = b"\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-0.5\t<s>\n-0.5\t</s>\n\n\\end\\\n"
    Path("m.arpa").write_bytes(BOM + arpa)
    Path("m.arpa.gz").write_bytes(gzip.compress(BOM + arpa))
    for name in "m.arpa", "m.arpa.gz":
        assert ng.Model.load(name, device="cpu").order == 1
        assert mgpu_ngram("info", name)[1].startswith(f"{name}: ARPA file")
        with pytest.raises(InputError, match="is an ARPA file, not text"):
            ng.count(name, device="cpu")


def test_words_that_can_never_match_are_told(lda):
    Path("d.txt").write_text("apple pear plum\ncar road bus\n")
    Path("v.txt").write_text("apple\nPear\ndon't\napple,pear\n")
    Path("stop.txt").write_text("Apple\nthe\na\ndon't\ndon\n")
    found, err = lda("d.txt", "--vocabulary", "v.txt")
    assert found == {b"apple": 1, b"Pear": 0, b"don't": 0, b"apple,pear": 0}
    assert "3 words ('Pear', \"don't\", 'apple,pear') of the vocabulary can match no token of text; write" in err
    found, err = lda("d.txt", "--stop-words", "stop.txt")
    assert b"apple" in found and "1 word ('Apple') of the stop words can match no token of text; write" in err
    assert "can match" not in lda("d.txt", "--stop-words", "english")[1]
    assert "can match" not in lda("d.txt", "--vocabulary", "v.txt", "--token-pattern", ".+", "--no-lowercase")[1]
    Path("tokens.jsonl").write_text('{"text": ["Pear", "apple"]}\n{"text": ["don\'t"]}\n')
    found, err = lda("tokens.jsonl", "--vocabulary", "v.txt")
    assert found[b"Pear"] == found[b"don't"] == 1 and "can match" not in err


def test_held_out_that_holds_out_nothing(lda, mgpu_ngram):
    """The perplexity is absent, not NaN, and tolerance looks at the training perplexity."""
    Path("d.txt").write_text("apple pear plum\ncar road bus\n" * 6)
    words = ["lda", "d.txt", "-o", "o", *SHORT, "--held-out", "0.01", "--seed", "1", "--json"]
    with pytest.warns(InputWarning, match="held_out is 0.01 but no token of the 12 documents is held out"):
        status, out, _ = mgpu_ngram(*words)
    result = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert status == 0 and result["held_out_tokens"] == 0 and "held_out_perplexity" not in result["metrics"]
    json.loads(Path("o/manifest.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    with pytest.warns(InputWarning, match="held_out is 0.01 but no token of the 12 documents is held out"):
        ng.LDA(2, max_iter=2, held_out=0.01, random_state=1, device="cpu").fit(Path("d.txt").read_text().splitlines())


def test_dask_collections():
    """A table is a matrix of counts; a series and a bag hold documents, or lines."""
    docs = ["apple pear plum", "car road bus", "apple plum pear", ""] * 4
    counts = pd.DataFrame(np.eye(4, 6, dtype=int).repeat(4, 0), columns=list("abcdef"))
    table = dask.dataframe.from_pandas(counts, npartitions=2)
    new = lambda: ng.LDA(2, max_iter=3, random_state=1, device="cpu")  # noqa: E731
    assert (new().fit(table).components_ == new().fit(counts).components_).all()
    plain = new().fit(docs)
    for documents in (
        dask.dataframe.from_pandas(pd.Series(docs), npartitions=2),
        dask.dataframe.from_pandas(pd.DataFrame({"text": docs}), npartitions=3)["text"],
        dask.bag.from_sequence(docs, npartitions=2),
    ):
        assert (new().fit(documents).components_ == plain.components_).all()
        assert plain.transform(documents).shape == (16, 2)
        found = ng.count(documents, order=2, device="cpu")
        assert found["apple"] == 8 and found["car road"] == 4
    with pytest.raises(InputError, match="give a column of it"):
        ng.count(table, device="cpu")


def test_parquet_columns_without_values(lda, tmp_path):
    """Writers give a column of nulls alone the type null; its documents are empty, and its lines too."""
    pq.write_table(pa.table({"text": pa.nulls(3), "id": ["a", "b", "c"]}), "nulls.parquet")
    pq.write_table(pa.table({"text": ["apple pear", "car"]}), "texts.parquet")
    assert lda("texts.parquet", "nulls.parquet")[0] == {b"apple": 1, b"pear": 1, b"car": 1}
    assert lda("texts.parquet", "nulls.parquet", "--token-pattern", r"\S+")[0] == {b"apple": 1, b"pear": 1, b"car": 1}
    counts = ng.count(["texts.parquet", "nulls.parquet"], order=1, sentence_markers=True, device="cpu")
    assert counts["apple"] == 1 and counts["</s>"] == 5
    Path("m.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-0.5\t<s>\n-0.5\t</s>\n\n\\end\\\n")
    pq.write_table(pa.table({"text": pa.nulls(3, pa.string()), "id": ["a", "b", "c"]}), "typed.parquet")
    ng.filter(["nulls.parquet", "typed.parquet"], "m.arpa", output="out", device="cpu")
    found = [pq.read_table(f"out/documents/{name}.parquet").drop(["text"]) for name in ("nulls", "typed")]
    assert found[0].num_rows == 3 and found[0].equals(found[1])


WHOLE = ['{"text": "apple pear", "when": "2021-01"}', '{"text": "car bus", "when": "2021-02"}']
MANY = [f'{{"text": "apple word{i % 40}", "when": "2022-{1 + i % 12:02}"}}' for i in range(4000)]


def damaged_files(folder):
    """Write files that are damaged, and return {name: (documents that can be read, rejects)}; None: some of them."""
    data = "\n".join(MANY).encode() + b"\n"
    for module, suffix in (gzip, "gz"), (lzma, "xz"), (bz2, "bz2"), (zstandard, "zst"):
        (folder / f"cut.jsonl.{suffix}").write_bytes(module.compress(data)[:-200])
    (folder / "head.jsonl.gz").write_bytes(b"\x1f\x8b\x08\0" + b"\xff" * 50)
    records = [
        *WHOLE,
        "{bad",
        '{"id": 3}',
        "[1]",
        '{"text": 5}',
        '{"text": {"a": 1}}',
        '{"text": null}',
        '{"text": "cut',
    ]
    (folder / "lines.jsonl").write_text("\n".join(records))
    texts = [json.loads(line) for line in MANY]
    columns = {name: [record[name] for record in texts] for name in ("text", "when")}
    pq.write_table(pa.table(columns), folder / "pages.parquet", row_group_size=1000, compression="none")
    table = (folder / "pages.parquet").read_bytes()
    (folder / "footer.parquet").write_bytes(table[:-100])
    groups = pq.ParquetFile(folder / "pages.parquet").metadata
    page = groups.row_group(1).column(0).data_page_offset
    (folder / "pages.parquet").write_bytes(table[:page] + b"\xff" * 20 + table[page + 20 :])
    (folder / "nothing.jsonl").write_bytes(b"")
    (folder / "nothing.jsonl.gz").write_bytes(gzip.compress(b""))
    return {
        "cut.jsonl.gz": (None, 1), "cut.jsonl.xz": (None, 1), "cut.jsonl.bz2": (0, 1), "cut.jsonl.zst": (None, 1),
        "head.jsonl.gz": (0, 1), "lines.jsonl": (3, 6), "pages.parquet": (4000, 1), "footer.parquet": (0, 1),
        "nothing.jsonl": (0, 0), "nothing.jsonl.gz": (0, 0),
    }  # fmt: skip


@pytest.mark.parametrize("grouped", first_fast([True, False]))
def test_a_damaged_file_does_not_stop_others(tmp_path, lda, mgpu_ngram, grouped):
    """It is left out, counted in the manifest and told once; a run without any document that can be read is refused."""
    expected = damaged_files(tmp_path)
    Path("whole.jsonl").write_text("\n".join(WHOLE * 3) + "\n")
    assert lda("whole.jsonl")[0] == {b"apple": 3, b"pear": 3, b"car": 3, b"bus": 3}
    os.rename("model", "trained")
    for name, (documents, rejects) in expected.items():
        if grouped:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                how = ["--time", "when", "--by", "year", "--json", *HERE]
                status, out, _ = mgpu_ngram("topics", "trained", "whole.jsonl", name, *how)
            assert status == 0
            found, messages = json.loads(out), [str(warning.message) for warning in caught]
            years = {group["group"]: group["documents"] for group in found["groups"]}
            of_lines = {"2021": 8, "": 1}  # the date of a document stays beside it
            others = {"2021": 6} | ({"2022": found["documents"] - 6} if found["documents"] > 6 else {})
            assert years == (of_lines if name == "lines.jsonl" else others), name
        else:
            words, told = lda("whole.jsonl", name)
            found, messages = json.loads(Path("model/manifest.json").read_text()), told.splitlines()
            if documents is None:
                assert words[b"apple"] == 3 + found["documents"] - 6, "whole lines before the damage"
        left = found["documents"] - 6
        assert found["rejects"] == rejects and (0 < left < 4000 if documents is None else left == documents), name
        messages = [message for message in messages if "could not be read" in message]
        assert len(messages) == bool(rejects)
        many = "1 record or file" if rejects == 1 else f"{rejects} records or files"
        assert all(message.startswith(f"{many} could not be read; the first: '{name}' ") for message in messages)
    if not grouped:
        found, err = lda("head.jsonl.gz", "footer.parquet")
        assert found is None and "'head.jsonl.gz' is damaged gzip data" in err
        status, _, err = mgpu_ngram("topics", "trained", "footer.parquet", "-o", "rows.npy", *HERE)
        assert status == 2 and "'footer.parquet' is damaged Parquet" in err and err.count("\n") == 1


def test_filter_reads_the_lines_before_damage(tmp_path, monkeypatch):
    """The damage of a file is a reject, and other files are read."""
    monkeypatch.chdir(tmp_path)
    damaged_files(tmp_path)
    Path("whole.jsonl").write_text("\n".join(WHOLE * 3) + "\n")
    Path("m.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-0.5\t<s>\n-0.5\t</s>\n\n\\end\\\n")
    with pytest.warns(
        InputWarning, match=r"2 of [\d,]+ records could not be read; .*out/rejects.jsonl has the reasons"
    ):
        result = ng.filter(["whole.jsonl", "cut.jsonl.gz", "cut.jsonl.xz"], "m.arpa", output="out", device="cpu")
    rejects = [json.loads(line) for line in Path("out/rejects.jsonl").read_text().splitlines()]
    read = [len(Path("out/documents/whole.jsonl").read_text().splitlines())]
    read += [
        len(module.open(f"out/documents/cut.jsonl.{suffix}").readlines())
        for module, suffix in ((gzip, "gz"), (lzma, "xz"))
    ]
    assert read[0] == 6 and 0 < min(read[1:]) and max(read[1:]) < 4000 and sum(read) == result.stats.documents
    assert [reject["line"] for reject in rejects] == [lines + 1 for lines in read[1:]]
    assert [reject["reason"].split(" at ")[0] for reject in rejects] == [
        f"'cut.jsonl.{suffix}' is truncated {kind} data" for suffix, kind in (("gz", "gzip"), ("xz", "xz"))
    ]


def test_sentencepiece_models_are_no_vocabularies(tmp_path):
    (tmp_path / "v.spm").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\xff")
    with pytest.raises(InputError, match=r"v.spm' is a SentencePiece model; give its pieces, one a line, .*spm_export"):
        load_nmt_vocabulary(str(tmp_path / "v.spm"))


def test_empty_lines_stay_in_n_best_lists(tmp_path, monkeypatch, mgpu_ngram):
    """Lists and sources stay in step, and a byte order mark is no word."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_bytes(BOM + b"r e a d\n\nb o y\n\n")
    system = [str(G2P / "model.npz"), "-s", str(G2P / "letters.json"), "-t", str(G2P / "phonemes.json")]
    status, out, _ = mgpu_ngram("decode", *system, "text", "-b", "2", "--n-best", *HERE)
    lists = [line.split(" ||| ") for line in out.splitlines()]
    assert status == 0 and [fields[0] for fields in lists] == ["0", "0", "1", "2", "2", "3"]
    assert lists[0][1] == "R EH1 D" and lists[2][1:] == lists[5][1:] == ["", "F0= 0.000", "0.000"]
    Path("lists").write_text(out)
    Path("m.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-0.5\t<s>\n-0.5\t</s>\n\n\\end\\\n")
    words = ["rescore", "lists", "--lm", "m.arpa", "--names", "lm", "--weights", "F0=1", "lm=0.1", "--best", *HERE]
    status, out, err = mgpu_ngram(*words)
    assert (status, out.splitlines()) == (0, ["R EH1 D", "", "B OY1", ""]), err


def test_the_translator_says_when_it_cuts():
    files = {"source_vocab": G2P / "letters.json", "target_vocab": G2P / "phonemes.json"}
    translator = ng.Translator(G2P / "model.npz", **{name: str(path) for name, path in files.items()}, device="cpu")
    with pytest.warns(InputWarning, match="sentences with more than 3 words were cut; max_length=0 reads all"):
        [found] = translator.translate("r e a d", max_length=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert translator.translate("r e a d", max_length=4)[0].text == "R EH1 D" != found.text


reported = pytest.mark.skipif(not REPORTS.is_dir(), reason="the files of the reports are not here")


@pytest.fixture
def report(tmp_path, request):
    """Copy the files of a report to the current folder."""
    shutil.copytree(REPORTS / request.param, tmp_path, dirs_exist_ok=True)


ALL = {b"apple": 2, b"pear": 1, b"car": 1, b"road": 1, b"bus": 1}
CASES = [
    ("bom_list", ["d.txt", "--stop-words", "stop_bom.txt"], {b"plum": 2, b"car": 2, b"road": 1, b"bus": 1}),
    ("bom_list", ["d.txt", "--vocabulary", "v_bom.txt"], {b"apple": 3, b"pear": 2, b"car": 2}),
    ("csv", ["news.csv", "--text-column", "text"], "is a CSV table by its name"),
    ("csv", ["news.csv"], "is a CSV table by its name"),
    ("json_blank", ["blank.json"], ALL),
    ("json_blank", ["noext"], ALL),
    ("json_blank", ["emptyobj.json"], ALL),
    ("json_blank", ["comma.json"], "at byte 0 is not a JSON object: Extra data"),
    ("json_blank", ["trunc1.json"], {b"car": 1, b"road": 1, b"bus": 1, b"plum": 1, b"pear": 1}),
    ("latin1", ["d.txt", "--token-pattern", r"\S+", "--stop-words", "stop.txt"], {b"noir": 3, b"th\xe9": 1}),
    ("latin1", ["d.txt"], {b"caf": 3, b"noir": 3, b"th": 1}),
    ("max_df", ["d.txt", "--max-df", "1"], {b"bus": 1, b"car": 2, b"road": 1}),
    ("max_df", ["d.txt", "--max-df", "1.0"], {b"apple": 3, b"pear": 2, b"plum": 2, b"car": 2, b"road": 1, b"bus": 1}),
    ("max_df", ["d.txt", "--max-df", "2"], {b"apple": 3, b"pear": 2, b"plum": 2, b"car": 2, b"road": 1, b"bus": 1}),
    ("time_slash", ["slash.jsonl"], None),
]


@reported
@pytest.mark.parametrize(("report", "arguments", "right"), CASES, indirect=["report"])
def test_reports(report, lda, arguments, right):
    found, err = lda(*arguments)
    if isinstance(right, str):
        assert found is None and right in err
    else:
        assert found == right if right else found
        assert ("words are cut at bytes" in err) == (arguments == ["d.txt"])


@reported
@pytest.mark.parametrize("report", ["time_slash"], indirect=True)
@pytest.mark.parametrize("name", ["iso", "slash", "dot"])
def test_reported_dates(report, lda, mgpu_ngram, name):
    lda("iso.jsonl", "--alpha", "0.1")
    status, out, _ = mgpu_ngram("topics", "model", f"{name}.jsonl", "--time", "when", "--by", "month", *HERE)
    months = sorted(set(re.findall(r"20\d\d-\d\d", out)))
    assert status == 0 and months == ["2021-01", "2021-05", "2022-12"], out
