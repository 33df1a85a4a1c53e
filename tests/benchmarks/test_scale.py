"""`mgpu-ngram bench scale --only cores,words,written` runs completely, and times no wrong result."""

from itertools import count, product

import pytest

from mgpu_ngram.benchmarks import scale, scale_cores
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.core.errors import RunError
from tests.support.fake_lmplz import FAKE_LMPLZ
from tests.support.short_benches import measure_once

pytestmark = pytest.mark.slow

TOKENS = 3_000
PRUNES, LIMITS = ("0,0,1,1,1", "none"), ("auto", "6000000000", "1000000000")


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with little text and few rounds: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale, "VOCABULARY", 1_000)
        patch.setattr(scale_cores, "ROUNDS", 1)
        patch.setattr(scale_cores, "HEAD_TOKENS", 100)
        measure_once(patch)
        yield


def run(folder):
    """Return the rows by (name, pruning, memory)."""
    found = scale.bench(BenchOptions("cpu", folder, tokens=TOKENS, only="cores", folder=folder))
    rows = [row for row in found if "ceiling" not in row["kernel"]]
    settings = [dict(word.split("=") for word in row["sizes"].split()) for row in rows]
    memory = [of_row.get("host_bytes") or of_row["memory"] for of_row in settings]
    assert {(of_row["tokens"], of_row["V"]) for of_row in settings} == {("3000", "1000")}
    return {
        (row["kernel"], of_row["prune"], size): row for row, of_row, size in zip(rows, settings, memory, strict=True)
    }


def test_rows(lmplz_on_path, tmp_path, stored_rows):
    lmplz_on_path(FAKE_LMPLZ)
    rows = run(tmp_path)
    ours, peer = scale_cores.AS_COMMAND, scale_cores.PEER
    assert rows.keys() == {*product([ours], PRUNES, LIMITS), *product([peer], PRUNES, ["6G"])}
    assert all(row["rate"] == pytest.approx(TOKENS / row["median_seconds"]) for row in rows.values())
    for prune in PRUNES:
        unlimited, beside, least = (rows[ours, prune, limit] for limit in LIMITS)
        for row, name, other in (
            (beside, peer, rows[peer, prune, "6G"]), (least, "all memory", unlimited),
        ):  # fmt: skip
            assert row["baseline"] == name
            assert row["speedup"] == pytest.approx(other["median_seconds"] / row["median_seconds"])
        assert unlimited["speedup"] is None and unlimited["notes"].startswith("1.00 x the time with all memory")
    ngrams = [rows[ours, prune, "auto"]["notes"].split("; ")[1] for prune in PRUNES]
    assert ngrams[0] != ngrams[1], "one model is pruned"
    assert not list(tmp_path.rglob("*.arpa"))


def test_without_lmplz(lmplz_on_path, tmp_path):
    lmplz_on_path(None)
    rows = run(tmp_path)
    assert rows.keys() == set(product([scale_cores.AS_COMMAND], PRUNES, LIMITS))
    for (_, _, limit), row in rows.items():
        assert row["notes"].endswith("; lmplz is not on the PATH")
        assert row["baseline"] == ("all memory" if limit == "1000000000" else "")


def test_many_words(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "MANY_WORDS", {"cpu": 20_000})
    found = scale.bench(BenchOptions("cpu", tmp_path, tokens=TOKENS, only="words", folder=tmp_path))
    rows = [row for row in found if row["kernel"] == scale.OF_MANY_WORDS]
    assert [row["sizes"].split()[-2:] for row in rows] == [
        ["V=20000", f"cpu_bytes={limit}"] for limit in ("all", *scale.LIMITS["cpu"])
    ]
    words = {int(row["notes"].split()[0].replace(",", "")) for row in rows}
    assert len(words) == 1 and min(words) > 1_000, "more than the other texts can have"


def test_written(tmp_path):
    found = scale.bench(BenchOptions("cpu", tmp_path, tokens=TOKENS, only="written", folder=tmp_path))
    whole, writing = (next(row for row in found if row["kernel"] == name) for name in (scale.TO_FILE, scale.WRITING))
    size_bytes = int(whole["notes"].split()[-2].replace(",", ""))
    assert writing["bytes_moved"] == size_bytes > 3 * 4 * TOKENS, "each n-gram takes more than 12 bytes"
    assert writing["median_seconds"] < whole["median_seconds"]
    assert writing["ceiling"] == scale.PLAIN_WRITES and writing["share_of_ceiling"] > 0
    assert not list(tmp_path.rglob("written*")) and not list(tmp_path.rglob("plain"))


def cores(folder):
    """Run the part, which must fail before it adds a row."""
    suite = Suite("cpu")
    try:
        scale.cores(scale.ScaleBench(suite, TOKENS, folder))
    finally:
        assert not suite.rows


@pytest.mark.parametrize(
    ("head_tokens", "message"), [(1_000, "other n-grams"), (10, r"lmplz's model has \[.*\] n-grams, not \[")]
)
def test_a_different_model_of_lmplz_gives_no_row(head_tokens, message, lmplz_on_path, tmp_path, monkeypatch):
    """Few lines have no n-gram of order 3 that occurs three times, so their models are equal."""
    monkeypatch.setattr(scale_cores, "HEAD_TOKENS", head_tokens)
    lmplz_on_path(FAKE_LMPLZ.replace("for count in rest[1:-1]]", "for count in '00222']"))
    with pytest.raises(WrongResult, match=message):
        cores(tmp_path)


def test_a_different_file_with_less_memory_gives_no_row(lmplz_on_path, tmp_path, monkeypatch):
    lmplz_on_path(None)
    real, runs = scale_cores.run_estimate, count()

    def run_estimate(device, text, arpa, *options):
        result = real(device, text, arpa, *options)
        if next(runs) == 2:  # after the head and the run with all memory
            arpa.write_bytes(arpa.read_bytes().replace(b"\\end\\", b"\\end\\\n"))
        return result

    monkeypatch.setattr(scale_cores, "run_estimate", run_estimate)
    with pytest.raises(WrongResult, match="within 6000000000 bytes of memory the ARPA file is another one"):
        cores(tmp_path)


def test_a_failing_lmplz(lmplz_on_path, tmp_path):
    lmplz_on_path("#!/bin/sh\necho no memory >&2\nexit 3\n")
    with pytest.raises(RunError, match="status 3: no memory; take it off the PATH"):
        cores(tmp_path)


def test_no_rows_of_a_gpu(tmp_path, capsys):
    suite = Suite("cpu")
    suite.device = "gpu"
    scale.cores(scale.ScaleBench(suite, TOKENS, tmp_path))
    assert not suite.rows and "give --device cpu" in capsys.readouterr().err
