"""The scripts in examples/, in the calls of a user, and the quickstart."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_ngram import cli, read_counts
from tests.support.slowness import scaled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


def run(*command, **options):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=scaled(600), **options)


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    """The text of the quickstart, in a user's folder."""
    folder = tmp_path_factory.mktemp("quickstart")
    done = run(ROOT / "examples" / "python_docs.py", cwd=folder)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return folder / "runs" / "python_docs.txt"


def test_python_docs_is_english_text(docs, tmp_path):
    text = docs.read_text("utf-8")
    assert 500_000 < len(text) < 20_000_000 and text.endswith("\n") and "\r" not in text
    assert 'The simple form, "assert expression", is equivalent to' in text, "a topic of pydoc"
    assert "Return a list of" in text and text.split().count("the") > 5000, "docstrings of the library"
    heldout = docs.with_name("python_docs_heldout.txt").read_text("utf-8")
    assert 10 * len(heldout) < len(text) < 60 * len(heldout) and heldout.endswith("\n")
    again = run(ROOT / "examples" / "python_docs.py", tmp_path / "deep" / "again.txt")
    assert again.returncode == 0 and (tmp_path / "deep" / "again.txt").read_bytes() == docs.read_bytes()


def test_kernels_of_the_later_jobs_are_compiled_by_running_them(tmp_path):
    done = run(ROOT / "examples" / "compile_kernels.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    parts = ["Tokens:\t3", "3 histories", "a sentence: "]
    assert [part for part in parts if part in done.stdout] == parts and list(tmp_path.iterdir()) == []


def test_quickstart(docs, monkeypatch, capsys):
    monkeypatch.chdir(docs.parents[1])
    assert cli.main(["run", str(ROOT / "configs" / "quickstart.yaml"), "--overwrite", "cluster.workers=0"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "'of the'" in out and "tokens/s" in out and "most frequent" in out
    text = docs.read_bytes()
    words, plain = read_counts("runs/quickstart/words"), read_counts("runs/quickstart/bytes")
    assert (words.max_order, plain.max_order) == (5, 4)
    lines = [[word for word in re.split(rb"[\0\t\r ]+", line) if word] for line in text.split(b"\n")]
    marked = 2 * text.count(b"\n")  # <s> and </s>
    assert words.manifest["tokens"] == sum(map(len, lines)) + marked
    bigrams = (pair for line in lines for pair in itertools.pairwise(line))
    assert words["of the"] == sum(pair == (b"of", b"the") for pair in bigrams) > 100
    assert plain.manifest["tokens"] == len(text) and plain["th"] == text.count(b"th")
    perplexity = float(re.search(r"Perplexity including OOVs:\t(\S+)", out)[1])
    assert 50 < perplexity < 1000, "far below the size of the vocabulary"
    done = run(ROOT / "examples" / "generate.py", "runs/quickstart/estimate/model.safetensors", cwd=docs.parents[1])
    assert (done.returncode, done.stderr) == (0, "")
    sentence, following = done.stdout.splitlines()
    assert re.match(r"a sentence: \S", sentence) and following.startswith("after ") and following.count("%") == 5


def test_plot_next_words(tmp_path):
    """Each panel shows the words after one history, in order of probability."""
    import matplotlib.image

    (tmp_path / "text").write_text("of the people by the people for the people\n" * 40 + "of a river\nin the end\n" * 9)
    estimate = ["estimate", str(tmp_path / "text"), "-o", str(tmp_path / "model.safetensors"), "--order", "2"]
    assert cli.main([*estimate, "--discount-fallback", "--workers", "0"]) == 0
    script = ROOT / "examples" / "plot_next_words.py"
    done = run(
        script, "model.safetensors", "plot.png", "of the", "by", cwd=tmp_path, env={**os.environ, "MPLBACKEND": "Agg"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    height, width, _ = matplotlib.image.imread(tmp_path / "plot.png").shape
    assert (width, height) == (768, 336), "two panels of 3.2 x 2.8 inches at 120 dots an inch"
    done = run(script, "model.safetensors", cwd=tmp_path)
    assert done.returncode == 1 and "Needs matplotlib" in done.stderr


def without_logs_of_dask(stderr):
    """Leave out what Dask logs, with tracebacks, when a busy machine takes long to end a worker."""
    return re.sub(r"^\d{4}-[-\d :,]+ - distributed\.(.*\n)+?(?=\d{4}-|mgpu-ngram: |\Z)", "", stderr, flags=re.MULTILINE)


def test_logs_of_dask_are_left_out():
    log = "2026-11-24 20:38:57,280 - distributed.worker - ERROR - Failed.\nTraceback (most recent call last):\n  x\n"
    assert without_logs_of_dask(f"{log}{log}") == ""
    assert without_logs_of_dask(f"warning\n{log}mgpu-ngram: late\n") == "warning\nmgpu-ngram: late\n"


def test_dask_client(tmp_path):
    (tmp_path / "text").write_text("of the people by the people\n" * 3 + "for the people\n")
    done = run(ROOT / "examples" / "dask_client.py", tmp_path / "text")
    assert (done.returncode, without_logs_of_dask(done.stderr)) == (0, "")
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert rows == [["7", "the people"], ["3", "by the"], ["3", "of the"], ["3", "people by"], ["1", "for the"]]


def test_dask_client_on_a_running_cluster(tmp_path):
    from distributed import LocalCluster

    (tmp_path / "text").write_text("of the people\n" * 1234)
    with LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        done = run(ROOT / "examples" / "dask_client.py", tmp_path / "text", cluster.scheduler_address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["   1,234  of the", "   1,234  the people"]
