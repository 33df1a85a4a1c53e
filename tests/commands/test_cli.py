"""The command line: its output, its exit status, and one clear line for each error."""

import gzip
import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram import cli
from mgpu_ngram.cluster import devices
from mgpu_ngram.commands import commands
from mgpu_ngram.core.interrupts import interrupted
from mgpu_ngram.core.storage.claim import claimed
from mgpu_ngram.engine.count import count_chunk as engine_count
from mgpu_ngram.jobs.count import passes as count_passes
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.jobs.mix import run as mix_job
from tests.support.slowness import scaled, wait_until

TEXT = b"of the people by the people\nfor the people of the people\n"
COMMAND = [sys.executable, "-m", "mgpu_ngram"]
HERE = ["--workers", "0"]
VERBS = list(commands())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder of a user, with a text in it."""
    (tmp_path / "text").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_refused(folder, result, *pieces, status=2, left=()):
    """Check that stderr is one line with all pieces, that nothing was printed, and that no file remains."""
    code, out, err = result
    assert (code, out) == (status, ""), err
    assert err.startswith("mgpu-ngram: ") and err.endswith("\n") and err.count("\n") == 1, err
    for piece in pieces:
        assert re.search(piece, err), f"{piece!r} is not in {err!r}"
    new = {p.name for p in folder.iterdir()} - {"text", *left}
    assert not new, f"left behind: {new}"


# Commands that succeed


def test_two_runs_with_one_output(folder, mgpu_ngram):
    (folder / "jobs.yaml").write_text("output: .\ncluster: {workers: 0}\njobs: [count: {corpus: text, name: out}]\n")
    who = f"^mgpu-ngram: another run writes {folder}/out: process {os.getpid()} on .*, since 20"
    with claimed(["out"]):
        for flag in "--resume", "--overwrite":
            result = mgpu_ngram("count", "text", "-o", "out", *HERE, flag)
            check_refused(folder, result, who, left=["jobs.yaml", ".out.claim"])
        check_refused(folder, mgpu_ngram("run", "jobs.yaml"), who, left=["jobs.yaml", ".out.claim"])
    assert mgpu_ngram("run", "jobs.yaml")[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == ["jobs.yaml", "out", "text"]
    for flag in "--resume", "--resume-or-start":
        assert mgpu_ngram("run", "jobs.yaml", flag) == (0, "", "out: finished before\n")


def test_resume_of_a_finished_run(folder, mgpu_ngram):
    assert mgpu_ngram("count", "text", "-o", "out", *HERE)[0] == 0
    assert mgpu_ngram("count", "text", "-o", "out", *HERE, "--resume") == (0, "", "out: finished before\n")
    size, twice = len(TEXT), 2 * len(TEXT)
    for more, changed in [
        (["--order", "3"], "the options changed: options.order was 5, is 3"),
        (["text"], rf'the inputs changed: inputs.1.name was absent, is "text"; inputs.1.size_bytes .* is {size}'),
    ]:
        status, _, err = mgpu_ngram("count", "text", *more, "-o", "out", *HERE, "--resume")
        assert status == 2 and re.search(f"out is finished, but {changed}; put back what changed or make it again", err)
    (folder / "text").write_bytes(TEXT * 2)
    status, _, err = mgpu_ngram("count", "text", "-o", "out", *HERE, "--resume")
    assert status == 2 and f"the inputs changed: inputs.0.size_bytes was {size}, is {twice}; put" in err
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    (folder / "out" / "manifest.json").write_text(json.dumps(manifest | {"format": "mgpu_ngram model"}))
    status, _, err = mgpu_ngram("count", "text", "-o", "out", *HERE, "--resume")
    assert status == 2 and "output out exists; add --overwrite" in err, "an output of another kind"


def test_count_export_info(folder, mgpu_ngram):
    status, out, err = mgpu_ngram("count", "text", "-o", "out", "--order", 2, *HERE)
    assert (status, err) == (0, ""), "no progress if stderr is not a terminal"
    for piece in (
        "12 tokens",
        "'the people' 4",
        "sort",
        "counted while the vocabulary is built",
        "tokens/s",
        "write",
        "host memory: ",
    ):
        assert piece in out
    status, out, err = mgpu_ngram("export", "out", "--order", 2)
    assert (status, err) == (0, "")
    lines: Counter[str] = Counter()
    for line in TEXT.decode().splitlines():
        words = line.split()
        lines.update(" ".join(pair) for pair in zip(words, words[1:], strict=False))
    assert sorted(out.splitlines()) == sorted(f"{ngram}\t{count}" for ngram, count in lines.items())
    assert mgpu_ngram("export", "out", "--order", 2, "--top", 1)[1] == "the people\t4\n"
    first = json.loads(mgpu_ngram("export", "out", "--order", 1, "--top", 1, "--json")[1])
    assert first == {"ngram": "people", "count": 4}
    status, out, err = mgpu_ngram("info", "out")
    assert (status, err) == (0, "") and "orders 1 to 2" in out and "12 tokens" in out
    assert json.loads(mgpu_ngram("info", "out", "--json")[1])["orders"]["2"]["total"] == 10


@pytest.mark.slow
def test_output_of_a_run_with_several_workers(folder, mgpu_ngram):
    """Rates by worker, the shares of time, and the transport; `plan` names the transport before the run."""
    cluster = ["--workers", "2", "--device", "cpu"]
    (folder / "run.yaml").write_text(
        "output: runs\ncluster: {device: cpu, workers: 2}\njobs:\n- count: {corpus: text}\n"
    )
    status, out, _ = mgpu_ngram("plan", "run.yaml")
    assert status == 0 and "2 cpu workers (transport tcp)" in out and "without that of estimating" not in out
    assert re.search(
        r"; this process \(cpu, \d+ threads?\), 1 shard\n", mgpu_ngram("plan", "run.yaml", "cluster.workers=0")[1]
    )
    (folder / "score.yaml").write_text(
        "output: scores\ncluster: {device: cpu, workers: 2}\njobs:\n- score: {model: model.arpa, text: text}\n"
    )
    mgpu_ngram("estimate", "text", "-o", "model.arpa", "--order", 2, "--discount-fallback", *HERE)
    for words, more in (
        (
            ["count", "text", "-o", "out", "--chunk-bytes", 20, *cluster],
            r"tokens/s while counting, by worker: .*: [\d,]+",
        ),
        (["run", "score.yaml"], r"OOVs:\t0"),
        (["distribution", "model.arpa", "text", "-o", "rows", *cluster], "histories/s"),
    ):
        status, out, err = mgpu_ngram(*words)
        assert (status, err) == (0, "")
        assert re.search(more, out) and "time went to " in out and "\ntransport: tcp\n" in out, out


def test_count_as_json(folder, mgpu_ngram):
    status, out, err = mgpu_ngram("count", "text", "-o", "out", "--order", 3, "--json", *HERE)
    (result,) = json.loads(out)
    assert (status, err) == (0, "")
    assert result["manifest"]["tokens"] == 12 and result["path"] == str(folder / "out")
    assert [p["order"] for p in result["plans"]] == [1, 2, 3] and all(p["reason"] for p in result["plans"])
    assert result["top"]["2"][0] == ["the people", 4] and result["tokens_per_second"] > 0
    assert {"tokenise", "count", "write"} <= result["seconds"].keys()


def test_zero_is_a_value(folder, mgpu_ngram):
    """Flags with order 0 and separator 0 do not count as missing."""
    (folder / "ids").write_bytes(bytes([1, 0, 0, 0, 2, 0, 1, 0]))
    assert mgpu_ngram("count", "ids", "-o", "out", "--unit", "id", "--separator-id", 0, "--order", 2, *HERE)[0] == 0
    assert mgpu_ngram("export", "out", "--order", 2)[1] == "2 1\t1\n"
    assert mgpu_ngram("export", "out", "--order", 2, "--json")[1] == '{"ngram": [2, 1], "count": 1}\n'
    assert "separator_id=0" in mgpu_ngram("info", "out")[1]


def test_bytes_are_escaped_one_ngram_a_line(folder, mgpu_ngram):
    (folder / "data").write_bytes(b"a\nb\tc\\\xff")
    assert mgpu_ngram("count", "data", "-o", "out", "--unit", "byte", "--order", 2, *HERE)[0] == 0
    lines = mgpu_ngram("export", "out", "--order", 2)[1].splitlines()
    assert lines == [r"\tc" + "\t1", r"\nb" + "\t1", r"\\\xff" + "\t1", r"a\n" + "\t1", r"b\t" + "\t1", r"c\\" + "\t1"]
    first = mgpu_ngram("export", "out", "--order", 2, "--json")[1].splitlines()[0]
    assert json.loads(first) == {"ngram": [9, 99], "count": 1}


def test_words_that_are_not_utf8_are_exported_as_they_are(folder):
    (folder / "odd").write_bytes(b"caf\xe9 \xff\n")
    subprocess.run([*COMMAND, "count", "odd", "-o", "out", "--order", "2", *HERE], check=True, capture_output=True)
    done = subprocess.run([*COMMAND, "export", "out", "--order", "2"], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"caf\xe9 \xff\t1\n", b"")


def test_every_flag_of_count(folder, mgpu_ngram):
    lines = TEXT.upper().decode().splitlines()
    (folder / "TEXT").write_text("".join(json.dumps({"x": line}) + "\n" for line in lines))
    words = "count text -o out TEXT --order 3 --unit word --sentence-markers --lowercase --min-count 2 --strategy hash"
    words += " --histograms 2 --chunk-bytes 16B --device cpu --dtype uint32 --text-column x --workers 0"
    assert mgpu_ngram(*words.split())[0] == 0
    assert mgpu_ngram("export", "out", "--order", 3, "--top", 1)[1] == "of the people\t4\n"
    options = json.loads(mgpu_ngram("info", "out", "--json")[1])["options"]
    assert options["lowercase"] and options["sentence_markers"] and options["min_count"] == 2
    assert mgpu_ngram(*words.split())[0] == 2
    assert mgpu_ngram(*words.split(), "--overwrite")[0] == 0


YAML = """
output: runs
cluster: {workers: 0}
jobs:
  - count: {corpus: text, order: 2, name: words}
  - count: {corpus: [text], order: 3, unit: byte, name: bytes, chunk_bytes: 1 KiB}
"""


def test_run_a_yaml_file_with_several_jobs(folder, mgpu_ngram):
    (folder / "run.yaml").write_text(YAML)
    status, out, err = mgpu_ngram("run", "run.yaml")
    assert (status, err) == (0, "") and "runs/words" in out and "runs/bytes" in out
    assert sorted(p.name for p in (folder / "runs").iterdir()) == ["bytes", "words"]
    status, _, err = mgpu_ngram("run", "run.yaml")
    assert status == 2 and "runs/words exists; add --overwrite" in err
    status, _, err = mgpu_ngram("run", "run.yaml", "--resume", "jobs.0.count.order=3")
    assert status == 2 and err.endswith(
        "runs/words is finished, but the options changed: options.order was 2, is 3; put back what changed or make it "
        "again with --overwrite\n"
    )
    status, out, _ = mgpu_ngram("run", "run.yaml", "--overwrite", "jobs.0.count.order=3", "--json")
    assert status == 0 and [r["manifest"]["order"] for r in json.loads(out)] == [3, 3]
    assert sorted(p.name for p in (folder / "runs").iterdir()) == ["bytes", "words"]


def test_plan_computes_nothing(folder, mgpu_ngram):
    with open(folder / "huge", "wb") as file:
        file.truncate(1 << 28)
    (folder / "run.yaml").write_text(YAML.replace("corpus: text", "corpus: huge"))
    status, out, err = mgpu_ngram("plan", "run.yaml")
    assert (status, err) == (0, "") and "268,435,456 bytes" in out and "strategy" in out and "shard" in out
    status, out, _ = mgpu_ngram("plan", "run.yaml", "--json")
    words, plain = json.loads(out)
    assert words["input_bytes"] == 1 << 28 and plain["job"] == "bytes" and plain["input_bytes"] == len(TEXT)
    os.truncate(folder / "huge", 1 << 40)  # a sparse file: a terabyte cannot be read meanwhile
    status, out, err = mgpu_ngram("plan", "run.yaml")
    assert (
        (status, out) == (2, "")
        and "bytes of tokens may be spilled" in err
        and ", raise memory.host_bytes to " in err
        and err.endswith(", or take parts of the corpus\n")
    )
    assert {p.name for p in folder.iterdir()} == {"text", "huge", "run.yaml"}


def test_plan_refuses_what_cannot_fit(folder, mgpu_ngram):
    (folder / "run.yaml").write_text(YAML)
    words = ("plan", "run.yaml", "jobs.1.count.order=8", "jobs.1.count.strategy=global")
    pieces = ("strategy global", r"256\*\*\d bins", "needs [0-9,]+ bytes", "[0-9,]+ are free", "use strategy sort")
    check_refused(folder, mgpu_ngram(*words), *pieces, left=["run.yaml"])


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_has_examples_that_parse(verb, mgpu_ngram):
    status, out, err = mgpu_ngram(*([verb] if verb else []), "--help")
    assert (status, err) == (0, "")
    examples = [line.strip() for line in out.splitlines() if line.startswith("  ") and "mgpu-ngram " in line]
    examples = [line for line in examples if not line.startswith("usage")]
    assert examples, "no example"
    for line in examples:
        words = shlex.split(line.partition("mgpu-ngram ")[2].partition("|")[0])
        if "--help" in words:
            continue
        cli._parse(words)
        assert verb in (None, words[0])


def test_version(mgpu_ngram):
    assert re.fullmatch(r"mgpu-ngram \d+\.\d+\.\d+\n", mgpu_ngram("--version")[1])


def test_summary_fits_100_columns(folder, mgpu_ngram):
    (folder / "long").write_bytes(b"a" * 300 + b" " + b"b" * 300 + b"\n" + TEXT * 2000)
    for words in (["--order", 5], ["--order", 4, "--unit", "byte"], ["--min-count", 2, "--strategy", "hash"]):
        status, out, _ = mgpu_ngram("count", "long", "-o", "out", "--overwrite", *words, *HERE)
        lines = out.splitlines()
        assert status == 0 and max(map(len, lines[1:])) <= 100, "all but the path"
        assert all(line == line.rstrip() for line in lines)
    (folder / "run.yaml").write_text(YAML)
    for words in (["plan", "run.yaml"], ["info", "out"]):
        assert max(map(len, mgpu_ngram(*words)[1].splitlines())) <= 100


def test_summary_on_a_terminal_with_few_characters(folder):
    (folder / "text").write_text("naïve naïve café\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, "count", "text", "-o", "out", *HERE], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "") and "na\\xefve" in done.stdout


# Pipes and terminals


def test_export_into_head(folder):
    (folder / "many").write_bytes(b"".join(b"word%d\n" % i for i in range(30_000)))
    subprocess.run([*COMMAND, "count", "many", "-o", "out", "--order", "1", *HERE], check=True, capture_output=True)
    export = subprocess.Popen(
        [*COMMAND, "export", "out", "--order", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert export.stdout.readline().endswith(b"\t1\n")
    export.stdout.close()
    assert (export.stderr.read(), export.wait(scaled(60))) == (b"", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_export_to_a_full_disk(folder, mgpu_ngram):
    mgpu_ngram("count", "text", "-o", "out", "--order", 1, *HERE)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "export", "out", "--order", "1"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert (
        done.stderr
        == "mgpu-ngram: cannot write to stdout (No space left on device); free space there or pipe it elsewhere\n"
    )


def test_stdin(folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    assert mgpu_ngram("count", "-", "text", "-o", "out", "--order", 1, *HERE)[0] == 0
    assert mgpu_ngram("export", "out", "--order", 1, "--top", 1)[1] == "people\t8\n"
    assert {p.name for p in folder.iterdir()} == {"text", "out"}, "the copy of stdin is removed"


def test_stdin_has_the_same_name_in_every_run(folder, mgpu_ngram, monkeypatch):
    manifests = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
        assert mgpu_ngram("count", "-", "-o", "out", "--overwrite", *HERE)[0] == 0
        manifests.append((folder / "out" / "manifest.json").read_bytes())
    assert manifests[0] == manifests[1]
    assert json.loads(manifests[0])["inputs"][0]["name"] == "-"


def test_damaged_stdin_is_named_in_the_error(folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(TEXT)[:-9])))
    check_refused(folder, mgpu_ngram("count", "-", "-o", "out", *HERE), "'-' is truncated gzip")


def test_progress_only_on_a_terminal(folder):
    command = [*COMMAND, "count", "text", "-o", "out", "--overwrite", *HERE]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    terminal, end = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env={**os.environ, "TERM": "xterm"})
    os.close(end)
    shown = b""
    try:
        while piece := os.read(terminal, 65536):  # a full terminal would stop the process
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    printed, _ = process.communicate()
    assert process.returncode == 0 and b"tokenise" in shown and b"write" in shown
    assert b"tokenise" in printed and b"\x1b" not in printed, "the summary, without colours in a pipe"


# Bad input


@pytest.fixture
def odds(folder):
    """Make files that cannot be used, and folders that are in the way."""
    (folder / "cut.gz").write_bytes(gzip.compress(os.urandom(1000))[:500])
    (folder / "bad.parquet").write_bytes(b"PAR1 no Parquet at all PAR1")
    pq.write_table(pa.table({"number": [1]}), folder / "numbers.parquet")
    (folder / "odd").write_bytes(b"123")
    (folder / "all").write_bytes(bytes(range(256)))
    (folder / "empty").mkdir()
    (folder / "foreign").mkdir()
    (folder / "foreign" / "precious").write_text("mine")
    return folder


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        ("missing", ["'missing'", "does not exist", "correct the path"]),
        ("no*such", [r"'no\*such'", "matches no file"]),
        ("empty", ["'empty'", "directory without files"]),
        ("nosuch://bucket/file", ["nosuch://bucket/file", "check the URL"]),
        ("cut.gz", ["'cut.gz'", "truncated gzip", "at byte 500 of 500", "compress it again"]),
        ("bad.parquet", ["'bad.parquet'", "damaged Parquet", "write it again"]),
        ("numbers.parquet", ["'numbers.parquet'", "lacks the column 'text'", r"number \(int64\)"]),
        ("bad.parquet --unit id", ["Parquet", "raw binary"]),
        ("odd --unit id", ["'odd'", "3 bytes", "2 bytes of one token id"]),
        ("odd --unit id --dtype uint32", ["'odd'", "3 bytes", "4 bytes of one token id"]),
        ("text --order 0", ["order is 0", "from 1 to 1000"]),
        ("text --order -3", ["order is -3", "from 1 to 1000"]),
        ("text --order 9 --unit byte", ["order is 9", "from 1 to 8"]),
        ("text --order 9 --unit byte", ["order is 9", "from 1 to 8 for unit byte"]),
        ("text --order many", ["--order", "invalid int value: 'many'", "mgpu-ngram count --help"]),
        ("text --min-count 0", ["min_count is 0", "at least 1"]),
        ("text --min-count -1", ["min_count is -1", "at least 1"]),
        ("text --histograms 0", ["histograms is 0", "at least 1"]),
        ("text --workers -1", ["workers is -1", r"0 \(in this process\) or more"]),
        ("text --lost-seconds 0", ["lost_seconds is 0 but must be more than 0; leave it out for 300"]),
        ("text --chunk-bytes 0", ["chunk_bytes", "at least 1"]),
        ("text --chunk-bytes -1", ["chunk_bytes", "at least 1|must be a size"]),
        ("text --chunk-bytes big", ["chunk_bytes is 'big'", "'64 MiB'"]),
        ("text --separator-id 5", ["separator_id needs unit id", "leave it out"]),
        ("text --unit id --separator-id -1", ["separator_id is -1", "ids of uint16 are 0 to 65535"]),
        ("text --unit id --separator-id 70000", ["separator_id is 70000", "ids of uint16 are 0 to 65535"]),
        ("text --unit byte --sentence-markers", ["sentence_markers needs unit word"]),
        ("text --unit id --lowercase", ["lowercase needs unit word or byte"]),
        ("all --unit byte --order 8 --strategy global", [r"256\*\*\d bins", "needs [0-9,]+ bytes", "[0-9,]+ are free"]),
        ("text --unit letter", ["--unit", "'letter'", "'word', 'byte', 'id'"]),
        ("text --strategy fast", ["--strategy", "'fast'", "'global'"]),
        ("text --speed 5", ["unrecognized arguments: --speed 5"]),
        ("text -o text/out", ["text/out", "another output path"]),
        ("text -o /proc/none/out", ["/proc/none/out", "another output path"]),
        ("- -o /proc/none/out", ["/proc/none", "another output path"]),
        ("text -o s3://bucket/out", ["'s3://bucket/out' is not a local path"]),
        ("text -o .", [r"output \. would replace text"]),
        ("text -o foreign", ["foreign exists", "--overwrite"]),
        ("text -o foreign --overwrite", ["foreign exists and is not an output of mgpu_ngram", "delete it yourself"]),
    ],
)  # fmt: skip
def test_count_refuses(words, pieces, odds, mgpu_ngram):
    words = words.split()
    if "-o" not in words:
        words += ["-o", "out"]
    if "--workers" not in words:
        words += HERE
    there = {p.name for p in odds.iterdir()}
    check_refused(odds, mgpu_ngram("count", *words), *pieces, left=there)
    assert (odds / "foreign" / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (None, ["run.yaml", "No such file", "path of a YAML file"]),
        (b"", ["run.yaml", "is empty", "output and jobs"]),
        (b"jobs: [a", ["run.yaml", "not YAML", "line 2"]),
        (b"output: \xff\xfe", ["run.yaml", "not YAML"]),
        (b"just words", ["run.yaml", "is of type str", "mapping"]),
        (b"- a\n- b", ["run.yaml", "is of type list", "mapping"]),
        (b"output: a\noutput: b\njobs: []", ["run.yaml", "'output' is given twice", "line 2"]),
        (b"jobs: []", ["run.yaml", "'output' is missing"]),
        (b"output: out\njobs: []", ["run.yaml", "jobs is empty", "- count"]),
        (b"output: 5\njobs: []", ["run.yaml.output is 5", "str"]),
        (b"output: s3://bucket\njobs: [count: {corpus: text}]", ["output is 's3://bucket'", "local folder"]),
        (b"ouput: out\njobs: []", ["unknown key 'ouput'", "did you mean 'output'"]),
        (b"output: out\njobs: [count: {corpus: text, oder: 3}]",
         [r"jobs\[0\].count", "unknown key 'oder'", "did you mean 'order'"]),
        (b"output: out\njobs: [count: {corpus: text, order: three}]", [r"jobs\[0\].count.order is 'three'", "int"]),
        (b"output: out\njobs: [count: {corpus: text, order: true}]", [r"jobs\[0\].count.order is True", "int"]),
        (b"output: out\njobs: [count: {corpus: text, order: 2.5}]", [r"jobs\[0\].count.order is 2.5", "int"]),
        (b"output: out\njobs: [count: {corpus: text, order: 0}]", [r"jobs\[0\].count", "order is 0", "from 1 to 1000"]),
        (b"output: out\njobs: [count: {corpus: [text, 5]}]", [r"count.corpus\[1\] is 5", "str"]),
        (b"output: out\njobs: [count: {corpus: text, unit: words}]", ["unit is 'words'", "did you mean 'word'"]),
        (b"output: out\njobs: [count: {corpus: text, chunk_bytes: 5 li}]", ["chunk_bytes is '5 li'", "64 MiB"]),
        (b"output: out\njobs: [count: {corpus: missing}]", ["'missing'", "does not exist"]),
        (b"output: out\njobs: [count: {order: 3}]", [r"jobs\[0\].count", "'corpus' is missing"]),
        (b"output: out\njobs: [count: ]", [r"jobs\[0\].count is None", "mapping"]),
        (b"output: out\njobs: [cuont: {corpus: text}]", [r"jobs\[0\]", "stage 'cuont'", "did you mean 'count'"]),
        (b"output: out\njobs: [{count: {corpus: text}, run: {}}]", [r"jobs\[0\] has 2 keys", "one, the stage"]),
        (b"output: out\njobs: [count: {corpus: text}, count: {corpus: text}]", ["2 jobs are called 'count'", "'name'"]),
        (b"output: out\njobs: [count: {corpus: text, name: ../up}]", ["name is '../up'", "plain folder name"]),
        (b"output: out\ncluster: {workers: -1}\njobs: [count: {corpus: text}]", ["cluster: workers is -1"]),
        (b"output: out\ncluster: {wrokers: 1}\njobs: [count: {corpus: text}]", ["cluster: .*'wrokers'", "'workers'"]),
        (b"output: out\ncluster: {kind: slurm}\njobs: [count: {corpus: text}]", ["cluster.kind is 'slurm'", "local"]),
        (b"output: out\ncluster: [1]\njobs: [count: {corpus: text}]", [r"cluster is \[1\]", "mapping"]),
        (b"output: out\ncluster: {workers: 1}\njobs: [count: {corpus: text}]\n"
         b"dask: {distributed.scheduler.alowed-failures: 1}",
         ["dask: unknown key", "did you mean 'distributed.scheduler.allowed-failures'"]),
        (b"output: out\ncluster: {workers: 1}\njobs: [count: {corpus: text}]\n"
         b"dask: {distributed: {comm: {retry: {count: 1}}}}",
         ["dask.distributed is a mapping", "with dots"]),
        (b"output: out\ncluster: {workers: 1}\njobs: [count: {corpus: text}]\n"
         b"dask: {distributed.comm.timeouts.connect: 10 parsecs}",
         ["dask.distributed.comm.timeouts.connect is '10 parsecs' but must be a time, such as 30s"]),
        (b"output: out\ncluster: {workers: 1}\njobs: [count: {corpus: text}]\n"
         b"dask: {distributed.comm.offload: much}",
         ["dask.distributed.comm.offload is 'much' but must be a size, such as 10MiB"]),
        (b"output: out\ncluster: {workers: 1}\njobs: [count: {corpus: text}]\n"
         b"dask: {distributed.scheduler.no-workers-timeout: soon}",
         ["dask.distributed.scheduler.no-workers-timeout is 'soon' but must be a time, such as 60s"]),
    ],
)  # fmt: skip
def test_run_refuses(text, pieces, folder, mgpu_ngram):
    if text is not None:
        if b"cluster" not in text and b"jobs" in text:
            text += b"\ncluster: {workers: 0}"
        (folder / "run.yaml").write_bytes(text)
    left = ["run.yaml"]
    check_refused(folder, mgpu_ngram("run", "run.yaml"), *pieces, left=[*left, *["out"] * empty_folder(folder / "out")])


def empty_folder(path):
    """A run may leave the folder of its outputs, but no output in it."""
    return path.is_dir() and not list(path.iterdir())


@pytest.mark.parametrize(
    ("override", "pieces"),
    [
        ("order", ["'order' must be key=value"]),
        ("jobs.7.count.order=3", ["'jobs.7.count.order=3'", "no '7'"]),
        ("jobs.first.count.order=3", ["no 'first'"]),
        ("output.name.x=3", ["no 'x'|no 'name'"]),
        ("cluster.worker=3", ["unknown key 'worker'", "did you mean 'workers'"]),
        ("jobs.0.count.order=[", ["'order' can be set|no 'order'"]),
        ("jobs.0.count.order=none", ["order is 'none'", "int"]),
    ],
)
def test_overrides_refused(override, pieces, folder, mgpu_ngram):
    (folder / "run.yaml").write_text(YAML)
    check_refused(folder, mgpu_ngram("run", "run.yaml", override), *pieces, left=["run.yaml"])


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        ("export out", ["--order"]),
        ("export out --order 3", ["orders 1 to 2, not 3"]),
        ("export out --order 0", ["orders 1 to 2, not 0"]),
        ("export out --order -1", ["orders 1 to 2, not -1"]),
        ("export out --order 1 --top 0", ["--top is 0", "at least 1"]),
        ("export text --order 1", ["text is not an output of count"]),
        ("export missing --order 1", ["missing is not an output of count", "nothing at that path"]),
        ("info missing", [".missing. does not exist; give a file, or"]),
        ("info .", ["no manifest.json"]),
        ("", ["COMMAND"]),
        ("cuont text", ["'cuont'", "'count'"]),
        ("count -o out2", ["TEXT"]),
        ("count text", ["-o/--output"]),
        ("run", ["CONFIG.yaml"]),
    ],
)
def test_other_refusals(words, pieces, folder, mgpu_ngram):
    mgpu_ngram("count", "text", "-o", "out", "--order", 2, *HERE)
    check_refused(folder, mgpu_ngram(*words.split()), *pieces, left=["out"])


def test_device_gpu_never_runs_on_a_cpu(folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: 0)
    for workers in ("0", "1"):
        result = mgpu_ngram("count", "text", "-o", "out", "--device", "gpu", "--workers", workers)
        check_refused(folder, result, "device is gpu but", "--device cpu")


# Runs that fail


def test_full_disk(folder, mgpu_ngram, full_disk):
    full_disk()
    result = mgpu_ngram("count", "text", "-o", "out", *HERE)
    check_refused(folder, result, "cannot write .*out", "No space left on device", "free space", status=1)


def test_out_of_memory(run_out_of_memory, folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr(engine_count, "_sparse", run_out_of_memory)
    result = mgpu_ngram("count", "text", "-o", "out", *HERE)
    pieces = ("out of host memory while counting", "[0-9,]+ bytes are free", r"use smaller chunks \(chunk_bytes\)")
    check_refused(folder, result, *pieces, status=1)


def test_out_of_memory_in_any_task(run_out_of_memory, folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr(count_job, "open_corpus", run_out_of_memory)
    result = mgpu_ngram("count", "text", "-o", "out", *HERE)
    check_refused(folder, result, "out of memory", "lower chunk_bytes or the number of workers", status=1)


def test_a_bug_is_one_line_without_debug(folder, mgpu_ngram, monkeypatch):
    def fail(*_):
        raise KeyError("two\nlines")

    monkeypatch.setattr(engine_count, "_sparse", fail)
    result = mgpu_ngram("count", "text", "-o", "out", *HERE)
    check_refused(folder, result, "the run failed: KeyError", "--debug shows where", status=1)
    status, _, err = mgpu_ngram("count", "text", "-o", "out", "--debug", *HERE)
    assert status == 1 and "Traceback" in err and err.splitlines()[-1].startswith("mgpu-ngram: the run failed")


def test_debug_keeps_the_status_of_bad_input(folder, mgpu_ngram):
    status, _, err = mgpu_ngram("count", "missing", "-o", "out", "--debug", *HERE)
    assert status == 2 and "Traceback" in err and err.splitlines()[-1].startswith("mgpu-ngram: input 'missing'")


def interrupt(*_, **__):
    raise KeyboardInterrupt


def interrupt_compiled(*_, **__):
    """Fail as a compiled function of Numba that Ctrl-C interrupts while it returns."""
    try:
        interrupt()
    except KeyboardInterrupt as error:
        raise SystemError("CPUDispatcher returned a result with an exception set") from error


@pytest.mark.parametrize("fails", [interrupt, interrupt_compiled])
def test_interrupted(fails, folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr(count_passes, "reduce_tasks", fails)
    hint = "; a job that has saved a checkpoint continues with --resume"
    refused = mgpu_ngram("count", "text", "-o", "out", *HERE)
    check_refused(folder, refused, f"interrupted; unfinished outputs are removed{hint}", status=130)


def test_an_interrupt_of_a_command_that_does_not_resume(folder, mgpu_ngram, monkeypatch):
    monkeypatch.setattr("mgpu_ngram.commands.info._show_file", interrupt)
    check_refused(folder, mgpu_ngram("info", "text"), "interrupted; unfinished outputs are removed\n", status=130)


def test_an_interrupt_ends_the_task_that_makes_a_model(arpa, folder, mgpu_ngram, monkeypatch):
    """Without an output, although the thread goes on after the main thread has the interrupt."""
    ended = []

    def compute(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(interrupted.is_set)
        found = mix_job_mix(*arguments)
        ended.append(found)
        return found

    mixing = "mix", str(arpa), str(arpa), "--weights", "0.5", "0.5", *HERE
    assert mgpu_ngram(*mixing, "-o", "first.arpa")[0] == 0  # compiles what is missing: an interrupt ends a compilation
    Path("first.arpa").unlink()
    mix_job_mix = mix_job.mix
    monkeypatch.setattr(mix_job, "mix", compute)
    refused = mgpu_ngram(*mixing, "-o", "out.arpa")
    check_refused(folder, refused, "interrupted; unfinished outputs are removed\n", status=130, left=[arpa.name])
    assert len(ended) == 1 and not interrupted.is_set(), "the next command is not interrupted"


FILE_VERBS = {  # arguments of commands that write no text
    "count": ["text"], "adapt": ["counts", "text"], "lda": ["text"], "filter": ["text", "--model", "arpa"],
    "compare": ["arpa", "arpa", "--text", "text"], "distribution": ["arpa", "text"], "score": ["arpa", "text"],
    "topics": ["topics.lda", "text"],
}  # fmt: skip


@pytest.mark.parametrize("verb", FILE_VERBS)
def test_files_that_standard_output_cannot_hold(folder, mgpu_ngram, verb):
    result = mgpu_ngram(verb, *FILE_VERBS[verb], "-o", "-", *HERE)
    check_refused(folder, result, f"-o - is standard output, where {verb} writes no files; name an output")


@pytest.mark.parametrize("flag", ["--html", "--export"])
def test_topics_on_standard_output(folder, mgpu_ngram, flag):
    check_refused(folder, mgpu_ngram("topics", "topics.lda", flag, "-"), f"{flag} - is standard output")


def other_name(path, how):
    """Return another name of a file or folder."""
    if how == "same":
        return path
    if how == "relative":
        return f"./{path}/../{path}" if os.path.isdir(path) else f"./made/../{path}"
    name = f"other{Path(path).suffix}"
    (os.link if how == "hard link" else os.symlink)(path, name)
    return name


@pytest.mark.parametrize("how", ["same", "relative", "link", "hard link"])
@pytest.mark.parametrize(
    "words, given",
    [
        (["convert", "model.arpa"], "model.arpa"),
        (["convert", "model.arpa", "--format", "kenlm-trie"], "model.arpa"),
        (["prune", "model.arpa", "--entropy", "1e-8"], "model.arpa"),
        (["mix", "model.arpa", "model.arpa", "--weights", "0.5", "0.5"], "model.arpa"),
        (["mix", "model.arpa", "model.arpa", "--tune", "held.arpa"], "held.arpa"),
        (["estimate", "held.arpa", "--order", "2"], "held.arpa"),
        (["estimate", "text", "--order", "2", "--vocabulary", "held.arpa"], "held.arpa"),
        (["score", "model.arpa", "text"], "model.arpa"),
        (["distribution", "model.arpa", "text"], "model.arpa"),
        (["rescore", "text", "--weights", "ac=1", "--costs", "ac=held.arpa", "--kaldi"], "held.arpa"),
        (["filter", "text", "--model", "model.arpa"], "model.arpa"),
        (["lda", "held.arpa"], "held.arpa"),
    ],
)
def test_an_output_that_is_an_input(folder, mgpu_ngram, arpa, words, given, how):
    (folder / "made").mkdir()
    shutil.copy("text", "held.arpa")
    before, name = Path(given).read_bytes(), other_name(given, how)
    result = mgpu_ngram(*words, "-o", name, "--overwrite", *HERE)
    is_it = "is an" if name == given else f"is {given}, an"
    left = ["model.arpa", "held.arpa", "made", name]
    check_refused(folder, result, f"output {name} {is_it} input of this run; give another output path", left=left)
    assert Path(given).read_bytes() == before


def test_an_output_folder_that_is_an_input_or_holds_one(folder, mgpu_ngram):
    markers = ["--sentence-markers", "--order", "2"]
    assert mgpu_ngram("count", "text", "-o", "out", *markers, *HERE)[0] == 0
    (folder / "link").symlink_to("out")
    (folder / "out" / "words").write_bytes(TEXT)
    for name in "out", "./out", "link":
        result = mgpu_ngram("adapt", "out", "text", "-o", name, "--overwrite", *HERE)
        assert result[0] == 2 and f"output {name} is " in result[2] and "an input of this run" in result[2]
        result = mgpu_ngram("count", "out/words", "-o", name, "--overwrite", *HERE)
        assert result[0] == 2 and f"output {name} would replace out/words, which this run reads; give" in result[2]
    assert (folder / "out" / "words").exists()


FAILING = {  # settings of jobs that fail while they run
    "count": "corpus: cut.gz", "estimate": "corpus: text, order: 2", "adapt": "earlier: counts, corpus: cut.gz",
    "lda": "corpus: docword.cut.txt", "filter": "text: cut.gz, model: cut.arpa", "convert": "model: cut.arpa",
    "prune": "model: cut.arpa, entropy: 1e-8", "mix": "models: [cut.arpa, cut.arpa], weights: [0.5, 0.5]",
    "score": "model: cut.arpa, text: text", "distribution": "model: cut.arpa, text: text, top_k: 2",
    "compare": "models: [cut.arpa, cut.arpa], text: text", "rescore": "text: text, weights: {F0: 1}",
    "tune": "text: text, weights: {F0: 1}, references: text, metric: wer, lm: cut.arpa",
}  # fmt: skip


@pytest.mark.parametrize("stage", FAILING)
def test_a_failed_run_leaves_no_folder(folder, mgpu_ngram, arpa, stage):
    Path("cut.arpa").write_bytes(arpa.read_bytes()[:150])
    Path("cut.gz").write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    Path("docword.cut.txt").write_text("2\n2\n3\n1 1 1\n")
    if stage == "adapt":
        assert mgpu_ngram("count", "text", "-o", "counts", "--sentence-markers", "--order", "2", *HERE)[0] == 0
    before = sorted(folder.iterdir())
    text = f"output: made/runs\ncluster: {{workers: 0, device: cpu}}\njobs:\n- {stage}: {{{FAILING[stage]}}}\n"
    Path("run.yaml").write_text(text)
    status, _, err = mgpu_ngram("run", "run.yaml")
    assert status in (1, 2) and err.count("\n") == 1, err
    Path("run.yaml").unlink()
    assert sorted(folder.iterdir()) == before, err


def test_a_failed_command_leaves_no_folder(folder, mgpu_ngram, monkeypatch):
    Path("cut.gz").write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    for words in ["count", "cut.gz", "-o", "made/it/out"], ["estimate", "cut.gz", "-o", "made/it/out.arpa"]:
        check_refused(folder, mgpu_ngram(*words, *HERE), "'cut.gz' is truncated gzip", left=["cut.gz"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    check_refused(folder, mgpu_ngram("estimate", "-", "-o", "made/out.arpa", *HERE), "the discount of", left=["cut.gz"])
    (folder / "made").mkdir()
    assert mgpu_ngram("count", "cut.gz", "-o", "made/it/out", *HERE)[0] == 2
    assert (folder / "made").exists() and not any((folder / "made").iterdir()), "it was there"


def test_a_yaml_job_that_would_replace_its_input(folder, mgpu_ngram):
    """A run that is repeated or resumed replaces or keeps its own outputs, which later jobs read."""
    jobs = "- count: {corpus: CORPUS, order: 2, sentence_markers: true}\n- estimate: {counts: count, FALLBACK}\n"
    text = f"output: runs\ncluster: {{workers: 0}}\njobs:\n{jobs}".replace("FALLBACK", "discount_fallback: []")
    (folder / "run.yaml").write_text(text.replace("CORPUS", "text"))
    for flags in [], ["--overwrite"], ["--resume"]:
        assert mgpu_ngram("run", "run.yaml", *flags)[0] == 0
    shutil.copy("text", "runs/estimate/text")
    (folder / "run.yaml").write_text(
        text.replace("count: {corpus: CORPUS", "count: {name: x, corpus: text").replace(
            "{counts: count", "{corpus: runs/estimate/text"
        )
    )
    status, _, err = mgpu_ngram("run", "run.yaml", "--overwrite")
    assert status == 2 and "runs/estimate would replace runs/estimate/text, which this run reads" in err
    assert not (folder / "runs" / "x").exists(), "before any work"


def test_a_wrong_path_in_the_last_job_stops_the_run_first(folder, mgpu_ngram):
    jobs = "- count: {name: a, corpus: text}\n- count: {name: b, corpus: txet}\n"
    (folder / "run.yaml").write_text(f"output: runs\ncluster: {{workers: 0}}\njobs:\n{jobs}")
    check_refused(folder, mgpu_ngram("run", "run.yaml"), "'txet' does not exist", left=["run.yaml"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_a_signal(number, folder):
    """The signal comes while the run waits for stdin, because only that shows from outside that it has started."""
    command = [*COMMAND, "count", "-", "-o", "out", *HERE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)
    wait_until(lambda: list(folder.glob(".stdin-*")))
    process.send_signal(number)
    out, err = process.communicate()
    check_refused(folder, (process.returncode, out, err), "interrupted", status=130)


@pytest.mark.slow
def test_two_worker_processes_print_no_traceback(folder):
    """Dask's own logs of failed tasks are silent; the error message of a worker arrives complete."""
    (folder / "cut.gz").write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    command = [*COMMAND, "count", "cut.gz", "text", "-o", "out", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    result = (done.returncode, done.stdout, done.stderr)
    check_refused(folder, result, "'cut.gz' is truncated gzip", "at byte 50000 of 50000", left=["cut.gz"])


def test_two_worker_processes_count(folder):
    command = [*COMMAND, "count", "text", "-o", "out", "--order", "2", "--workers", "2", "--chunk-bytes", "10"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "2 cpu workers" in done.stdout
    export = subprocess.run([*COMMAND, "export", "out", "--order", "2", "--top", "1"], capture_output=True, text=True)
    assert export.stdout == "the people\t4\n"
