"""`mgpu-ngram bench count` runs completely, writes all rows and files, and times no wrong result."""

import csv
import json

import numpy as np
import pytest

from mgpu_ngram import cli
from mgpu_ngram.benchmarks.count import byte_histograms, byte_ngrams, words_run
from mgpu_ngram.benchmarks.count.bench import bench
from mgpu_ngram.benchmarks.harness import rows
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs import corpora, oracles
from mgpu_ngram.benchmarks.inputs.corpora import splitmix64
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.count import count_chunk as engine
from mgpu_ngram.kernels.count.histogram_global import histogram_global

pytestmark = pytest.mark.slow

SENTENCES = b"It was the best of times, it was the worst of times.\nIt was the age of wisdom.\nWe had everything.\n"


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "dickens.txt"
    path.write_bytes(SENTENCES)
    return str(path)


@pytest.fixture(scope="module")
def small():
    """Run with ceilings of a few megabytes: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mgpu_ngram.benchmarks.harness.suite.CEILING_BYTES", {"cpu": 1 << 22})
        patch.setattr("mgpu_ngram.benchmarks.harness.suite.SORTED_KEYS", {"cpu": 1 << 12})
        patch.setattr("mgpu_ngram.benchmarks.harness.timing.MAX_RUNS", 2)
        yield


@pytest.fixture(scope="module")
def suite_run(small, text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return bench(BenchOptions("cpu", folder, text_file, "10 kB", 3000)), folder


def test_every_part_has_rows(suite_run):
    found = {row["kernel"] for row in suite_run[0]}
    for strategy in ("global", "private K=1", "private K=128", "sort", "hash"):
        assert {f"bytes/a {strategy}", f"bytes/b {strategy}"} <= found
    for kernel in (
        "ceiling/copy", "ceiling/read", "ceiling/numpy.sort", "bytes/count_bytes", "bytes/histogram_global",
        "bytes/python loop", "words/codes to tables", "words/ngram_keys", "words/radix_sort", "words/prefix_runs",
        "words/text to tables", "words/text to shards", "words/stage tokenise", "words/tables to Parquet",
        "words/run to Parquet", "words/run without writing", "words/peer collections.Counter",
    ):  # fmt: skip
        assert kernel in found


def test_files_have_a_floor(suite_run):
    """The bytes over the rate of plain writes."""
    kernels = [f"words/{what} to Parquet{columns}" for what in ("tables", "run") for columns in ("", " of ids")]
    written = {row["kernel"]: row for row in suite_run[0] if row["kernel"] in kernels}
    assert sorted(written) == sorted(kernels)
    for row in written.values():
        assert row["ceiling"] == words_run.PLAIN_WRITES and row["bytes_moved"] > 0 and row["floor_seconds"] > 0
    assert all(" to the page cache" in written[kernel]["notes"] for kernel in kernels[:2])


def test_strategies_and_orders_of_experiment_a(suite_run):
    orders = {}
    for row in suite_run[0]:
        if row["kernel"].startswith("bytes/a "):
            orders.setdefault(row["kernel"].removeprefix("bytes/a "), []).append(row["sizes"].split("n=")[1])
    assert orders.pop("sort") == orders.pop("hash") == list("12345678")
    assert all(found == list("1234") for found in orders.values()) and len(orders) == 3


def test_rows_are_consistent(suite_run):
    for row in suite_run[0]:
        if row["median_seconds"] is None:
            assert row["notes"].startswith("does not fit")
            continue
        assert 0 < row["min_seconds"] <= row["median_seconds"] <= row["max_seconds"]
        assert row["rate"] > 0 and row["rate_unit"] and row["device"] and row["version"].startswith("mgpu-ngram ")
        if row["share_of_ceiling"] is not None:
            assert row["bytes_per_second"] == pytest.approx(row["bytes_moved"] / row["median_seconds"])
            assert row["share_of_ceiling"] == pytest.approx(row["bytes_per_second"] / row["ceiling_bytes_per_second"])
            assert row["floor_seconds"] == pytest.approx(row["bytes_moved"] / row["ceiling_bytes_per_second"])
        if row["kernel"] == "bytes/a sort" and row["sizes"].endswith("n=2"):
            loop = next(r for r in suite_run[0] if r["kernel"] == "bytes/python loop" and r["sizes"].endswith("n=2"))
            assert row["speedup"] == pytest.approx(loop["median_seconds"] / row["median_seconds"])
            assert "extrapolated" in loop["notes"]


def test_csv_and_figures(suite_run, stored_rows):
    found, folder = suite_run
    kept = stored_rows(folder, found)
    assert set(kept[0]) == set(rows.COLUMNS) == set(found[0])
    for name in ("experiment_a", "experiment_b", "words"):
        assert next(folder.glob(f"{name}_*.png")).read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.iterdir())) == 4


def test_rows_replace_rows_of_the_same_work_and_keep_others(tmp_path):
    path = tmp_path / "new" / "count.csv"
    rows.write_rows([rows.Row("sort", "T=1", "cpu", "1", rate=1.5), rows.Row("hash", "T=1", "cpu", "1")], path)
    rows.write_rows([rows.Row("sort", "T=1", "cpu", "2", rate=123456.7), rows.Row("sort", "T=1", "gpu", "2")], path)
    with open(path, newline="") as file:
        found = [(r["device"], r["kernel"], r["version"], r["rate"]) for r in csv.DictReader(file)]
    assert found == [("cpu", "hash", "1", ""), ("cpu", "sort", "2", "1.235e+05"), ("gpu", "sort", "2", "")]


def one_more(bins):
    bins[np.flatnonzero(bins)[-1]] += 1
    return bins


def one_elsewhere(bins):
    first, last = np.flatnonzero(bins)[[0, -1]]
    bins[first] -= 1
    bins[last] += 1
    return bins


@pytest.mark.parametrize("spoil", [one_more, one_elsewhere])
def test_a_wrong_strategy_is_an_error_and_gives_no_row(small, text_file, tmp_path, monkeypatch, spoil):
    right = engine.histogram_private
    monkeypatch.setattr(engine, "histogram_private", lambda *arguments: spoil(right(*arguments)))
    with pytest.raises(WrongResult, match="strategy private at n=1"):
        bench(BenchOptions("cpu", tmp_path, text_file, "2 kB", 1000, only="a"))
    kernels = {row.kernel for row in rows.read_rows(tmp_path / "count.csv")}
    assert kernels and not any(kernel.startswith("bytes/a private") for kernel in kernels)


def test_a_wrong_sort_of_words_is_an_error(small, text_file, tmp_path, monkeypatch):
    right = engine.count_prefixes

    def wrong(columns, bits, first_order, last_order, *rest):
        tables = right(columns, bits, first_order, last_order, *rest)
        if last_order == 5 and first_order == 1:
            tables[3][1][:2] += np.array([1, -1])
        return tables

    monkeypatch.setattr(engine, "count_prefixes", wrong)
    with pytest.raises(WrongResult, match="order 4"):
        bench(BenchOptions("cpu", tmp_path, tokens=1000, only="words"))


def test_only_some_parts(small, text_file, tmp_path):
    found = bench(BenchOptions("cpu", tmp_path, text_file, "2 kB", 1000, only="b"))
    assert {row["kernel"].partition(" ")[0] for row in found if "ceiling" not in row["kernel"]} == {"bytes/b"}
    assert [path.name.partition("_")[0] for path in tmp_path.glob("*.png")] == ["experiment"]


def reversed_bins(bins_A, symbols):
    return bins_A[::-1].copy()


def reversed_after_the_first_symbol(bins_A, symbols):
    return bins_A.reshape(symbols, -1)[:, ::-1].ravel()


def last_symbol_first(bins_A, symbols):
    return bins_A.reshape(-1, symbols).T.ravel()


@pytest.mark.parametrize("spoil", [reversed_bins, reversed_after_the_first_symbol, last_symbol_first])
def test_a_wrong_histogram_is_an_error_and_gives_no_row(spoil):
    suite, text = Suite("cpu"), byte_ngrams.Text.of(np.frombuffer(SENTENCES, np.uint8))

    def wrong(text_B, n, symbols, lut):
        return spoil(histogram_global(text_B, n, symbols, lut), symbols)

    byte_histograms._histogram(suite, text, 2, "histogram_global", histogram_global, 1)
    with pytest.raises(WrongResult, match="wrong at n=2, checksum of the bins"):
        byte_histograms._histogram(suite, text, 2, "wrong", wrong, 1)
    assert [row.kernel for row in suite.rows] == ["bytes/histogram_global"]


def test_checksums_by_hand():
    lut = np.zeros(256, np.uint16)
    lut[list(b"ab")] = 1, 2
    bins = np.array([0, 2, 1, 0], np.uint32)  # ab twice, ba once
    expected = int((2 * splitmix64(np.array([2], np.uint64)) + splitmix64(np.array([3], np.uint64)))[0])
    assert oracles.checksum_of_bins(bins) == expected
    assert oracles.checksum_of_windows(np.frombuffer(b"abab", np.uint8), 2, 2, lut) == expected
    assert oracles.checksum_of_windows(np.frombuffer(b"a", np.uint8), 2, 2, lut) == 0


def test_checksums_of_parts(monkeypatch):
    text = byte_ngrams.Text.of(np.frombuffer(SENTENCES, np.uint8))
    whole = oracles.checksum_of_windows(text.text_B, 3, text.symbols, text.lut)
    monkeypatch.setattr(oracles, "CHECKSUM_ITEMS", 7)
    assert oracles.checksum_of_windows(text.text_B, 3, text.symbols, text.lut) == whole
    assert oracles.checksum_of_bins(histogram_global(text.text_B, 3, text.symbols, text.lut)) == whole


def test_unique_windows_by_hand():
    values, counts = oracles.unique_windows(np.frombuffer(b"abab", np.uint8), 2)
    assert values.tolist() == [0x6162, 0x6261] and counts.tolist() == [2, 1]


def test_unique_ngrams_by_hand():
    words, counts = zip(*oracles.unique_ngrams(np.array([2, 1, 2, 0, 2, 1, 0], np.uint32), 3), strict=True)
    assert [w.T.tolist() for w in words] == [[[1], [2]], [[1, 2], [2, 1]], [[2, 1, 2]]]
    assert [c.tolist() for c in counts] == [[2, 3], [1, 2], [1]]


def test_count_lines_by_hand():
    first, second = oracles.count_lines([b"a b a\n", b"b a\n"], 2)
    assert first == {(b"a",): 3, (b"b",): 2} and second == {(b"a", b"b"): 1, (b"b", b"a"): 2}


def test_python_loop_by_hand():
    assert oracles.python_loop(b"abab", 2) == {"ab": 2, "ba": 1}


def test_check_bytes_sees_each_difference(pack_keys):
    def table_of(ngrams, counts):
        return Table(pack_keys(ngrams, 2, 2), np.array(counts), 2, 2)

    alphabet = np.array([ord("a"), ord("b")])
    right = np.array([0x6162, 0x6261], np.uint64), np.array([2, 1])
    oracles.check_bytes(table_of([(1, 2), (2, 1)], [2, 1]), alphabet, right, "right")
    for ngrams, counts in (([(1, 2)], [2]), ([(1, 2), (2, 2)], [2, 1]), ([(1, 2), (2, 1)], [1, 2])):
        with pytest.raises(WrongResult, match="wrong: "):
            oracles.check_bytes(table_of(ngrams, counts), alphabet, right, "wrong")


def test_work_that_does_not_fit_is_a_row():
    def too_large():
        raise MemoryError("no room")

    suite = Suite("cpu")
    row = suite.run("huge", "T=1", too_large, items=1, unit="tokens/s")
    assert suite.rows == [row] and row.median_seconds is None and row.notes == "does not fit: no room"


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        Suite("cpu").run("broken", "T=1", lambda: 1 / 0, items=1, unit="tokens/s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "10"}, "size is 10 bytes but must be at least 1024"),
        ({"size": "large"}, "size is 'large'"),
        ({"tokens": 5}, "tokens is 5 but must be at least 1000"),
        ({"text": "/no/such/file"}, "/no/such/file: no such file"),
    ],
)
def test_bad_options(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        bench(BenchOptions("cpu", tmp_path, **options))


@pytest.mark.parametrize("as_json", [True, False])
def test_command_line(monkeypatch, capsys, as_json, text_file):
    made = {"kernel": "words/radix_sort", "sizes": "tokens=1", "device": "cpu", "version": "1", "rate": 2.5e9}
    row = {name: None for name in rows.COLUMNS} | {"rate_unit": "tokens/s", "notes": ""} | made
    asked = []
    monkeypatch.setattr("mgpu_ngram.benchmarks.count.bench.bench", lambda given: asked.append(given) or [row])
    flags = ["--device", "cpu", "--size", "1 MB", "--tokens", "7", "--results", "there", "--text", text_file]
    assert cli.main(["bench", "count", *flags, *(["--json"] if as_json else [])]) == 0
    assert asked == [BenchOptions("cpu", "there", text_file, "1 MB", 7)]
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == [row]
    else:
        assert "words/radix_sort" in out and "2.5 G tokens/s" in out


@pytest.mark.gpu
def test_whole_suite_on_a_gpu(text_file, tmp_path):
    found = bench(BenchOptions("gpu", tmp_path, text_file, "1 MiB", 100_000))
    assert {"words/codes to tables", "words/text to tables", "ceiling/pinned host to device"} <= {
        r["kernel"] for r in found
    }
    assert all(r["median_seconds"] or r["notes"].startswith("does not fit") for r in found)


def test_files_with_other_counts_are_not_timed(tmp_path):
    """The whole run of a GPU, on a CPU."""
    path = tmp_path / "corpus.txt"
    corpora.zipf_text(path, 2_000, 50)
    with open(path, "rb") as file:
        counters = oracles.count_lines(file, words_run.ORDER)
    expected = [np.array(sorted(counter.values())) for counter in counters]
    suite = Suite("cpu")
    words_run.run_on_gpu(suite, path, 2_000, expected)
    assert [row.kernel for row in suite.rows] == ["words/run to Parquet of ids", "words/run to Parquet"]
    assert all(row.ceiling == words_run.PLAIN_WRITES and row.share_of_ceiling < 1 for row in suite.rows)
    expected[2][-1] += 1
    with pytest.raises(WrongResult, match="other counts of order 3"):
        words_run.run_on_gpu(suite, path, 2_000, expected)
