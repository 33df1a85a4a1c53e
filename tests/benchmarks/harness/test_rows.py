"""Rows record their origin, pages quote them exactly, and `bench check` compares rows and finds stale ones."""

import subprocess
from pathlib import Path

import pytest

from mgpu_ngram import cli
from mgpu_ngram.benchmarks import BENCHES
from mgpu_ngram.benchmarks.harness import check, measured_code, origin
from mgpu_ngram.benchmarks.harness.bench_modules import open_bench
from mgpu_ngram.benchmarks.harness.measured_code import code_of
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.rows import Row, read_rows, rounded, with_unit, write_rows
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.reproduce import quote
from mgpu_ngram.core.errors import InputError, RunError

CHECKOUT = Path(__file__).resolve().parents[3]
RESULTS = CHECKOUT / "benchmarks" / "results"
COMMANDS = ("startup",)  # benches that run commands
BY_NAME = {"score": ["kenlm"]}  # modules that a bench imports by a name that it is given
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md")), *sorted(RESULTS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_quote_the_rows_as_they_are(page):
    text = page.read_text()
    assert quote.quoted(text, RESULTS) == text, "run `mgpu-ngram bench quote`"


def test_pages_beside_the_results_have_all_rows():
    for path in RESULTS.glob("*.csv"):
        text = path.with_suffix(".md").read_text()
        for device in {row.device for row in read_rows(path)}:
            assert f"<!-- table: {path.name}; {device} -->" in text


def missed_targets():
    """Return (file, row) of rows of an H200 or a CPU that miss their targets by more than runs differ."""
    for path in sorted(RESULTS.glob("*.csv")):
        for row in read_rows(path):
            if row.rate is None or row.target is None or "H100" in row.device:
                continue
            of_target = row.rate / row.target if row.rate_unit.endswith("/s") else row.target / row.rate
            if of_target < 0.95 and not (path.stem == "count" and is_left_out(row)):
                yield path.name, row


def is_left_out(row):
    """Tell whether `auto` does not use a strategy, or not at this n, as the page says."""
    return row.kernel.startswith("bytes/") and ("auto takes this" not in row.notes or "n=1" in row.sizes.split())


def test_missed_targets_are_listed():
    """A target of the start-up is in the text: a reference cannot name its row."""
    page = (CHECKOUT / "docs" / "performance.md").read_text()
    _, _, listed = page.partition("\n## Targets that are missed\n")
    marks = [mark[3].split(";") for mark in quote.MARK.finditer(listed.partition("\n## ")[0]) if mark[2] == "row"]
    quotes = [[part.strip() for part in mark] for mark in marks]
    missed = list(missed_targets())
    assert len(missed) > 20
    for file, row in missed:
        is_quoted = any(
            (name, kernel) == (file, row.kernel)
            and set(sizes.split()) <= set(row.sizes.split())
            and row.device.startswith(device)
            for name, kernel, sizes, device, _ in quotes
        )
        assert is_quoted or row.kernel == "startup/lda", f"{file}: {row.kernel}, {row.sizes}, {row.device}"


def test_the_readme_is_short():
    assert len((CHECKOUT / "README.md").read_text().splitlines()) <= 120


@pytest.fixture
def results(tmp_path):
    fast = Row("score/fast", "n=5 T=10", "NVIDIA H200", "1", 3, 0.0125, 0.01, 0.02, 1.891e10, "queries/s", speedup=2.0)
    slow = Row("score/fast", "n=5 T=20", "NVIDIA H200", "1", 3, 2.5, 2, 3, 4.5e6, "queries/s", notes="a | b")
    write_rows([fast, slow, Row("score/fast", "n=5 T=10", "a CPU", "1", notes="does not fit")], tmp_path / "score.csv")
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("T=10; NVIDIA H200; rate", "18.9 G queries/s"),
        ("T=10; NVIDIA; number:2", "19 G"),
        ("n=5 T=10; NVIDIA H200; seconds", "12.5 ms"),
        ("T=20; NVIDIA H200; seconds", "2.5 s"),
        ("T=10; NVIDIA H200; speedup", "2"),
    ],
)
def test_a_quote_by_hand(results, reference, expected):
    page = f"| a | <!-- row: score.csv; score/fast; {reference} -->wrong<!-- end --> |"
    assert f"-->{expected}<!-- end -->" in quote.quoted(page, results)


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("row: score.csv; score/fast; n=5; NVIDIA H200; rate", r"matches 2 rows \('n=5 T=10', 'n=5 T=20'\)"),
        ("row: score.csv; score/fast; T=1; NVIDIA H200; rate", r"matches 0 rows \(none\)"),
        ("row: score.csv; score/fast; T=20; NVIDIA H200; share", "has no share"),
        ("row: score.csv; score/fast; T=20; NVIDIA H200; colour", "asks for 'colour' but rows have rate, number"),
        ("row: score.csv; score/fast; T=20", "has 3 parts but needs 5"),
        ("row: none.csv; score/fast; T=20; NVIDIA H200; rate", r"none\.csv: no such file"),
        ("table: score.csv; AMD", "has no rows"),
        ("table: score.csv", "has 1 parts but needs 2"),
    ],
)
def test_a_reference_that_names_no_figure(results, mark, message):
    with pytest.raises(InputError, match=message):
        quote.quoted(f"<!-- {mark} --><!-- end -->", results)


def test_a_table_holds_the_rows_of_a_device(results):
    page = quote.quoted("<!-- table: score.csv; NVIDIA H200 -->\n<!-- end -->", results)
    assert page.count("| score/fast |") == 2 and "| 12.5 ms (3 runs) | 18.9 G queries/s |" in page
    assert "a \\| b" in page and "does not fit" not in page
    assert quote.quoted(page, results) == page


def test_the_command_updates_pages(results, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- row: score.csv; score/fast; T=20; NVIDIA H200; rate --><!-- end -->\n")
    for said in f"updated {page}", "up to date":
        assert cli.main(["bench", "quote", str(page), "--results", str(results)]) in (None, 0)
        assert capsys.readouterr().out == f"{said}\n"
    assert "4.5 M queries/s" in page.read_text()


def test_numbers_by_hand():
    assert [rounded(v, 2) for v in (1234, 0.0456, 9.99, 99.9)] == ["1,200", "0.046", "10", "100"]
    assert with_unit(999.9, "B/s") == "1 kB/s" and with_unit(0.5, "s") == "0.5 s"


def test_rows_come_back_as_they_were_written(tmp_path):
    row = Row(
        "a", "T=1", "cpu", "1", 2, 0.5, 0.25, 1.0, 3e9, "B/s", bytes_moved=7, commit="ab12-dirty", host="x, 2 cores"
    )
    write_rows([row], tmp_path / "a.csv")
    assert read_rows(tmp_path / "a.csv") == [row]


def test_rows_from_before_a_column_keep_their_cells(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text("kernel,sizes,device,version,runs,rate,notes\nold,T=1,cpu,1,3,1.50e+09,x\n")
    write_rows([Row("new", "T=1", "cpu", "2", commit="abc")], path)
    old = path.read_text().splitlines()[2]
    assert old.startswith("old,T=1,cpu,1,3,,,,1.50e+09,") and old.endswith(",x,,,,,")


def test_a_row_records_its_origin():
    origin.origin.cache_clear()  # another test may have asked where git is not on the PATH
    suite = Suite("cpu", command="mgpu-ngram bench score")
    row = suite.add_note("a", "T=1", "")
    assert (row.commit, row.date, row.command) == (origin.commit(), origin.origin()["date"], "mgpu-ngram bench score")
    assert " cores, " in row.host and row.host.endswith(" GiB") and len(row.date) == len("2026-01-31")


def test_the_commit_of_a_copy_without_history(monkeypatch):
    monkeypatch.setenv(origin.COMMIT_VARIABLE, "abc123")
    assert origin.commit() == "abc123"


def test_the_command_leaves_folders_out(tmp_path):
    (tmp_path / "a b.txt").touch()
    options = BenchOptions("cpu", tmp_path, tmp_path / "a b.txt", tokens=5, only="ids", folder=tmp_path)
    assert (
        options.command("estimate") == "mgpu-ngram bench estimate --device cpu --text 'a b.txt' --tokens 5 --only ids"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_benches_name_the_code_that_they_measure(name):
    """Each row has a group, and a bench imports the modules that it measures, or runs them as commands."""
    modules, stored = open_bench(name).MEASURES, RESULTS / f"{name}.csv"
    for row in read_rows(stored) if stored.is_file() else []:
        assert check.group_of(row.kernel, modules) is not None, row.kernel
    called = measured_code.files_of([BENCHES[name].removeprefix("mgpu_ngram."), *BY_NAME.get(name, [])])
    for module in {module for group in modules.values() for module in group}:
        path = measured_code.module_file(f"mgpu_ngram.{module}")
        assert path and path.name in (f"{module.split('.')[-1]}.py", "__init__.py"), f"no module {module}"
        assert path in called or name in COMMANDS, f"bench {name} does not import {module}"


def row(kernel, rate, seconds: float | None = 1.0, **more):
    return Row(kernel, "T=1", "cpu", "1", median_seconds=seconds, rate=rate, **more)


def test_comparisons_by_hand():
    stored = [row("same", 10), row("slow", 10), row("size", 10, None), row("gone", 1), Row("note", "T=1", "cpu", "1")]
    new = [row("same", 9.5), row("slow", 8), row("size", 12, None), row("young", 1), Row("note", "T=1", "cpu", "1")]
    found = check.compare(new, stored, 0.1)
    assert [(one.new.kernel, one.ratio, one.worse) for one in found] == [
        ("same", 0.95, False), ("slow", 0.8, True), ("size", 1.2, True),
    ]  # fmt: skip
    with pytest.raises(RunError, match="2 of 3 rows are beyond the tolerance of 10%"):
        check.raise_if_worse(found, 0.1)
    check.raise_if_worse(check.compare(new, stored, 0.25), 0.25)


def test_the_check_as_a_command(tmp_path, capsys):
    for folder, rate in (("old", 10.0), ("new", 8.0)):
        write_rows([row("score/a", rate), row("score/b", 10.0)], tmp_path / folder / "score.csv")
    line = ["bench", "check", "--new", str(tmp_path / "new"), "--results", str(tmp_path / "old")]
    assert cli.main(line) == 1
    out, err = capsys.readouterr()
    assert "0.80x  WORSE  score/a" in out and "1.00x         score/b" in out and "its commit is not known" in out
    assert "1 of 2 rows are beyond the tolerance of 10%" in err
    assert cli.main([*line, "--tolerance", "0.3"]) in (None, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check", "needs a bench to run again"),
        ("check topics", "takes one of count, cluster"),
        ("check --new nowhere", "nowhere holds no rows"),
        ("check score --new nowhere", "score.csv: no such file"),
        ("check --new x --tolerance 2", "tolerance is 2.0 but must be"),
        ("check --new x --tokens 5", "bench check takes no --tokens"),
        ("score table3", "bench score takes no 'table3'"),
        ("score --new x", "bench score takes no --new, which is of bench check"),
        ("quote nopage.md", "nopage.md: no such file"),
    ],
)
def test_invalid_options(words, message, capsys):
    assert cli.main(["bench", *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Return a function that commits files of a new checkout: it takes {path: text or None} and returns the commit."""

    def git(*words):
        return subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True, text=True).stdout

    def commit(files, message="change"):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).unlink(missing_ok=True)
            if text is not None:
                (tmp_path / path).write_text(text)
        git("add", ".")
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", message)
        return git("rev-parse", "HEAD").strip()

    git("init", "-q")
    (tmp_path / "mgpu_ngram").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "mgpu_ngram" / "kernels").symlink_to("../kernels")  # as in this checkout
    monkeypatch.setattr(origin, "CHECKOUT", tmp_path)
    monkeypatch.setattr(measured_code, "PACKAGE", tmp_path / "mgpu_ngram")
    return commit


def test_a_row_is_stale_when_its_code_changed_after_its_commit(tmp_path, monkeypatch, history):
    rows = tmp_path / "rows.csv"
    first = history({"mgpu_ngram/code.py": "1"})
    write_rows([row("recorded", 1.0)], rows)  # without a commit, the row's date counts
    history({"rows.csv": rows.read_text()})
    monkeypatch.setattr(open_bench("score"), "MEASURES", {"": ("code",)})
    unknown, recorded = row("unknown", 1.0), row("recorded", 1.0)
    assert check.Ages("score", rows).stale(recorded) == ""
    assert check.Ages("score", rows).stale(unknown) == "its commit is not known"
    history({"mgpu_ngram/other.py": "1"})
    assert check.Ages("score", rows).stale(row("a", 1.0, commit=f"{first}-dirty")) == ""
    history({"mgpu_ngram/code.py": "2"})
    for old in recorded, row("a", 1.0, commit=first):
        assert check.Ages("score", rows).stale(old).startswith("its code changed by ")
    rows.write_text("".join(f"{line},,\n" for line in rows.read_text().splitlines()))  # columns added later
    history({"rows.csv": rows.read_text()})
    assert check.Ages("score", rows).stale(recorded).startswith("its code changed by ")


LONG = "\n".join(f"value_{i} = {i}" for i in range(20))


def test_code_that_moves_is_the_same_code(tmp_path, monkeypatch, history):
    """A file is followed through renames; a commit with the trailer may also change or split the code."""
    rows, modules = tmp_path / "rows.csv", {"": ("code",)}
    monkeypatch.setattr(open_bench("score"), "MEASURES", modules)
    first = row("a", 1.0, commit=history({"mgpu_ngram/code.py": LONG}))
    moved = f"import os\n{LONG}"
    modules[""] = ("room.code",)
    history({"mgpu_ngram/code.py": None, "mgpu_ngram/room/code.py": moved})
    assert check.Ages("score", rows).stale(first) == ""
    modules[""] = ("room.new", "room.part")
    half = LONG.index("value_10")
    refactored = {"code": None, "new": LONG[:half] + "value_20 = 20", "part": LONG[half:]}
    refactored = {f"mgpu_ngram/room/{name}.py": text for name, text in refactored.items()}
    history(refactored, f"Split\n\n{check.TRAILER}")
    assert check.Ages("score", rows).stale(first) == ""
    second = row("a", 1.0, commit=history({"mgpu_ngram/other.py": ""}))
    history({"mgpu_ngram/room/part.py": "value_10 = 0"})
    for old in first, second:
        assert check.Ages("score", rows).stale(old).startswith("its code changed by ")


def test_a_change_before_a_refactoring_counts(tmp_path, monkeypatch, history):
    monkeypatch.setattr(open_bench("score"), "MEASURES", {"": ("new",)})
    first = history({"mgpu_ngram/code.py": LONG})
    changed = history({"mgpu_ngram/code.py": f"{LONG}\nmore = 1"})
    history({"mgpu_ngram/code.py": None, "mgpu_ngram/new.py": f"{LONG}\nmore = 2"}, f"Move\n\n{check.TRAILER}")
    stale = check.Ages("score", tmp_path / "rows.csv").stale
    assert stale(row("a", 1.0, commit=first)).startswith(f"its code changed by {changed[:7]}")
    assert stale(row("a", 1.0, commit=changed)) == ""


def test_code_without_imports_comments_and_docstrings():
    plain = "def f(a):\n    return a + 1\n"
    same = '"""Add."""\nimport os\nfrom a import b\n'
    same += '# of one\ndef f(a):\n    """Return\n    more."""\n    return (a\n            + 1)  # more\n'
    other = plain.replace("1", "2")
    assert code_of("a.py", plain) == code_of("a.py", same) != code_of("a.py", other)
    assert (
        code_of("a.cu", "int a; // 1\n/* b */ int c;") == code_of("a.cu", "int a;\nint c;") != code_of("a.cu", "int a;")
    )


SOURCES = {
    "mgpu_ngram/__init__.py": "from mgpu_ngram import unrelated",
    "mgpu_ngram/engine/score.py": "from mgpu_ngram.kernels.score.edges import find\nimport numpy",
    "mgpu_ngram/engine/count.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from . import score",
    "mgpu_ngram/engine/lazy.py": "def load():\n    from . import count",
    "mgpu_ngram/unrelated.py": "",
    "kernels/score/edges.py": "from ..common import mix",
    "kernels/score/edges.cu": '#include "edges.cuh"',
    "kernels/include/edges.cuh": '#include "common.cuh"',
    "kernels/include/common.cuh": "// 1",
    "kernels/include/floats.cuh": "// 1",
    "kernels/common/mix.py": "",
}


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("mgpu_ngram/engine/score.py", {"score/"}),
        ("mgpu_ngram/engine/count.py", {"score/count", "score/lazy"}),
        ("mgpu_ngram/engine/lazy.py", {"score/lazy"}),
        ("kernels/score/edges.cu", {"score/"}),
        ("kernels/include/common.cuh", {"score/"}),
        ("kernels/common/mix.py", {"score/"}),
        ("kernels/include/floats.cuh", set()),
        ("mgpu_ngram/unrelated.py", set()),
        ("mgpu_ngram/__init__.py", set()),
    ],
)
def test_a_change_makes_rows_stale_whose_modules_import_it(tmp_path, monkeypatch, history, changed, stale):
    modules = {
        "ceiling/": (), "score/": ("engine.score",), "score/count": ("engine.count",), "score/lazy": ("engine.lazy",),
    }  # fmt: skip
    monkeypatch.setattr(open_bench("score"), "MEASURES", modules)
    commit = history(SOURCES)
    before = check.Ages("score", tmp_path / "rows.csv")
    comment, code = ("# 2", "made = 2") if changed.endswith(".py") else ("/* 2\n*/ // 2", "int made;")
    history({changed: f"{SOURCES[changed]}\n{comment}"})
    assert not any(
        before.stale(row(kernel, 1.0, commit=commit)) for kernel in ("score/a", "score/count", "score/lazy a")
    )
    history({changed: f"{SOURCES[changed]}\n{code}"})
    ages = check.Ages("score", tmp_path / "rows.csv")
    kernels = {
        "ceiling/copy": "ceiling/",
        "score/a": "score/",
        "score/count": "score/count",
        "score/lazy a": "score/lazy",
    }
    assert {group for kernel, group in kernels.items() if ages.stale(row(kernel, 1.0, commit=commit))} == stale
    assert ages.stale(row("other/a", 1.0, commit=commit)) == "its bench does not say which code it measures"
