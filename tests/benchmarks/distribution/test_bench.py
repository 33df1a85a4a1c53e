"""`mgpu-ngram bench distribution` runs completely, writes all rows and files, and times no wrong result."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram import cli
from mgpu_ngram.benchmarks.distribution import bench as distribution
from mgpu_ngram.benchmarks.distribution import ceilings as distribution_limits
from mgpu_ngram.benchmarks.distribution import compact as distribution_compact
from mgpu_ngram.benchmarks.distribution import files as distribution_files
from mgpu_ngram.benchmarks.distribution import rates as distribution_rates
from mgpu_ngram.benchmarks.distribution import sampling as distribution_sampling
from mgpu_ngram.benchmarks.distribution import states as distribution_states
from mgpu_ngram.benchmarks.distribution import steps as distribution_steps
from mgpu_ngram.benchmarks.distribution import thesis as distribution_thesis
from mgpu_ngram.benchmarks.distribution import workers as distribution_workers
from mgpu_ngram.benchmarks.harness import machine_rates, side_by_side
from mgpu_ngram.benchmarks.harness.cuda_source import with_common
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs import distribution_cases, plain_distributions
from mgpu_ngram.benchmarks.inputs.distribution_cases import (
    LARGE,
    LARGEST,
    MIDDLE,
    SHAPES,
    SMALL,
    Case,
    DistributionBench,
    ModelSize,
)
from mgpu_ngram.benchmarks.inputs.frequency_models import trie_of
from mgpu_ngram.benchmarks.inputs.plain_distributions import check_children, check_found, check_rows, check_top, row_of
from mgpu_ngram.benchmarks.inputs.scoring_subjects import Subject
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.kernels.distribution.row_launch import BLOCK_SHAPE
from mgpu_ngram.kernels.launch import source
from tests.support.ngrams import ngrams_in

pytestmark = pytest.mark.slow

TOKENS = 2_000
FIGURES = {"dense", "small", "peers", "saturation", "order", "steps"}
NGPU_LM = {(150, 1): 1e3, (150, 64): 1e5, (210, 1): 1e2}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with few words and few rounds: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        shapes = {
            SMALL: ModelSize(150, 1_000),
            MIDDLE: ModelSize(200, 1_500),
            LARGE: ModelSize(301),
            LARGEST: ModelSize(402),
        }
        for name, shape in shapes.items():
            patch.setitem(SHAPES, name, shape)
        for numbers, value in (
            (distribution_cases.TEXT_WORDS, 1_200), (distribution_cases.FOUND_HISTORIES, 500),
            (distribution_steps.QUERIES, 9_000), (distribution_workers.PASSES, 2), (distribution_workers.HISTORIES, 9),
            (distribution_files.DISK_BYTES, 1 << 18),
        ):  # fmt: skip
            patch.setitem(numbers, "cpu", value)
        patch.setattr(distribution_compact, "TOP_K", 20)
        patch.setattr(distribution_rates, "BATCHES", (1, 10, 100))
        patch.setattr(distribution_rates, "NGPU_LM_RATES", NGPU_LM)
        patch.setattr(distribution_thesis, "SENTENCES", (1, 5, 20))
        patch.setattr("mgpu_ngram.benchmarks.harness.timing.MAX_RUNS", 1)
        patch.setattr(side_by_side, "DELAY_SECONDS", 0.1)
        for module in side_by_side, distribution_files:
            patch.setattr(module, "ROUNDS", 1)
        # Worker processes take seconds to start; only the rows of distribution_workers start them.
        patch.setattr(distribution_files, "open_executor", lambda config: LocalExecutor("cpu", config.workers))
        yield


@pytest.fixture(scope="module")
def bench_run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return distribution.bench(BenchOptions("cpu", folder, tokens=TOKENS, size="1 MiB", workers="1,2")), folder


@pytest.fixture(scope="module")
def case(small):
    return Case.make(ModelSize(301), TOKENS, 1_200, "cpu")


@pytest.fixture
def run(tmp_path):
    made = DistributionBench(Suite("cpu"), TOKENS, 1 << 20, [1], tmp_path)
    made.suite.ceilings |= {name: 1e9 for name in ("writes of all cores", "copy")}
    return made


def test_every_part_has_rows(bench_run):
    found = Counter(row["kernel"].removeprefix("distribution/") for row in bench_run[0])
    kinds = "smoothed float32", "stored float32", "smoothed float16", "smoothed bfloat16"
    names = LARGE, SMALL
    assert found == Counter(
        {f"dense {kind}": 2 for kind in kinds}
        | {
            "dense packed smoothed float32": 2,
            "dense with finding": 2,
            "ceiling/writes of all cores": 1,
            "ceiling/copy": 1,
        }
        | {"small batches": 8, "small from the host": 2, "peer batches": len(NGPU_LM)}
        | {"states, a word after each": 1, "states, one from Python": 1}
        | {f"states, {what}": len(NGPU_LM) for what in ("rows", "rows and states")}
        | {f"top 20, orders {orders}": 1 for orders in ("max", "all")}
        | {f"top: dense rows, orders {orders}, smoothed float32": 1 for orders in ("max", "all")}
        | {
            "sums of weights": 1,
            "words drawn of all": 1,
            "words drawn of all, temperature 0.7": 1,
            "words drawn of the best 50": 1,
            "words drawn of a share of 0.9": 1,
            "words drawn after one history": 1,
            "search only": 1,
            "children": 1,
            "compact size": 1,
            "compact to the host": 1,
        }
        | {"compact made dense": 1, "saturation scores": 3, "saturation rows": 3}
        | {f"table5.1 {name} {mode} float32": 1 for name in names for mode in ("smoothed", "stored")}
        | {f"table5.1 {name}, no backoffs, stored float32": 1 for name in names}
        | {f"table5.1 {name} scores": 1 for name in names}
        | {f"table5.2 {name} {what}": 1 for name in names for what in ("smoothed", "stored", "scores")}
        | {f"model {name} {what} backoffs": 1 for name in names for what in ("with", "without")}
        | {f"table5.3 {name} {what}": 3 for name in names for what in ("smoothed float32", "scores")}
        | {f"table5.4 {name} {s}": 1 for name in names for s in ("only search", "no write", "normal smoothed float32")}
        | {"one by one: rows": 1, "one by one: scores": 1, "workers rows": 2, "disk zarr": 2, "disk plain writes": 2}
    )


def numbers(row):
    return {word.split("=")[0]: int(word.split("=")[1]) for word in row["sizes"].split() if "=" in word}


def test_rows_are_consistent(bench_run):
    rows = {(row["kernel"].removeprefix("distribution/"), row["sizes"]): row for row in bench_run[0]}
    for (kernel, _), row in rows.items():
        assert row["target"] is None  # these rows are of GPUs
        sizes = numbers(row)
        if "float32" in kernel and row["median_seconds"]:
            orders = 1 if "orders max" in kernel else sizes["n"]
            assert row["rate"] == pytest.approx(sizes["H"] * orders / row["median_seconds"]), kernel
            assert row["bytes_moved"] == sizes["H"] * orders * sizes["V"] * 4
            assert row["share_of_ceiling"] == pytest.approx(row["bytes_per_second"] / row["ceiling_bytes_per_second"])
    assert {numbers(row)["V"] for (kernel, _), row in rows.items() if kernel.startswith("dense")} == {301, 402}
    assert {numbers(row)["n"] for (kernel, _), row in rows.items() if kernel.startswith("table5.3")} == {5, 4, 3}
    by_name = {kernel: row for (kernel, _), row in rows.items()}
    for name in LARGE, SMALL:
        with_backoffs, without = (by_name[f"model {name} {what} backoffs"]["rate"] for what in ("with", "without"))
        assert 0 < with_backoffs - without <= 4 * numbers(by_name[f"table5.1 {name} scores"])["G"] + 256
        distributions, outputs = by_name[f"table5.1 {name} smoothed float32"], by_name[f"table5.2 {name} smoothed"]
        assert outputs["rate"] == pytest.approx(distributions["rate"] * SHAPES[name].symbols)
        assert outputs["speedup"] == pytest.approx(
            distributions["rate"] / distribution_thesis.TABLE_51["smoothed"][name]
        )
    one, two = (row for (kernel, _), row in rows.items() if kernel == "workers rows")
    assert one["speedup"] is None and two["speedup"] == pytest.approx(two["rate"] / one["rate"])


def test_csv_and_figures(bench_run, stored_rows):
    found, folder = bench_run
    kept = stored_rows(folder, found)
    assert len(kept) == len(found)
    figures = {path.name.split("_")[1]: path for path in folder.glob("distribution_*.png")}
    assert set(figures) == FIGURES
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.values())


def test_only_some_parts(tmp_path):
    found = distribution.bench(BenchOptions("cpu", tmp_path, tokens=TOKENS, size=1_000_001, only="one_by_one"))
    kernels = {row["kernel"] for row in found}
    ceilings = {"ceiling/writes of all cores", "ceiling/copy"}
    assert kernels == ceilings | {f"distribution/one by one: {what}" for what in ("rows", "scores")}
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 10}, "tokens is 10 but must be at least 1000"),
        (
            {"size": "1 KiB", "only": "order"},
            "size is 1,024 bytes but the rows of one history take 6,400; give a larger",
        ),
        ({"only": "denser"}, "part 'denser' is none of dense, small, peers"),
        ({"workers": "0"}, "workers is '0' but must be numbers of workers"),
        ({"folder": "nowhere"}, "nowhere: no such folder"),
    ],
)
def test_invalid_options(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        distribution.bench(BenchOptions("cpu", tmp_path, **{"tokens": TOKENS} | options))


def test_command(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(distribution, "bench", lambda given: asked.append(given) or [])
    line = f"bench distribution --device cpu --size 1MiB --tokens 5000 --results {tmp_path} --only dense --workers 1"
    assert cli.main(line.split()) in (None, 0)
    assert asked == [BenchOptions("cpu", str(tmp_path), size="1MiB", tokens=5000, workers="1", only="dense")]


def test_flags_of_other_benches_are_refused(capsys):
    assert cli.main(["bench", "distribution", "--text", "x"]) == 2
    assert "bench distribution takes no --text, which is of bench count, bench estimate, " in capsys.readouterr().err


# By hand: <s> is followed by a (two of three times) and b; "<s> b" is followed by a only.
A, B, C = 3, 4, 5
SYMBOLS = 6


def codes_of(sentences):
    return np.array([code for words in sentences for code in [*(w + 1 for w in words), 0]], np.uint32)


def case_of(sentences, text, order):
    codes_T = codes_of(sentences)
    trie = trie_of(codes_T, SYMBOLS, order)
    words = Words.of(["<unk>", "<s>", "</s>", "a", "b", "c"])
    return Case.of(Subject(trie, words, codes_T, codes_of(text)), "cpu")


def test_rows_by_hand():
    case = case_of([[A, B], [A, B], [B]], [[A]], 3)
    first, after_a, no_such = (
        row_of(case.subject.trie, nodes, "smoothed")
        for nodes in [*plain_distributions.nodes_of(case, 2).tolist(), [-1, -1]]
    )
    counts = [1, 3, 3, 2, 3, 1]  # of 10: a 2, b 3, </s> 3, and 1 for each missing one
    assert (10 ** first[0])[[0, 2, 3, 4, 5]] == pytest.approx([counts[v] / 10 for v in (0, 2, 3, 4, 5)])
    # <s> has 2 successors; half of each count is discounted: backoff 0.5 * 2 / 3.
    assert (10 ** first[1])[[2, A, B, C]] == pytest.approx([3 / 10 / 3, 2 / 3, 1 / 3, 1 / 10 / 3])
    assert first[2].tolist() == first[1].tolist()  # <s> is the whole history
    # a has 1 successor of 2 tokens; "<s> a" the same.
    assert (10 ** after_a[1])[[2, A, B, C]] == pytest.approx([3 / 10 / 4, 2 / 10 / 4, 1, 1 / 10 / 4])
    assert (10 ** after_a[2])[[2, A, B, C]] == pytest.approx([3 / 10 / 16, 2 / 10 / 16, 1, 1 / 10 / 16])
    assert all(row.tolist() == no_such[0].tolist() for row in no_such)
    _, stored, _ = row_of(case.subject.trie, plain_distributions.nodes_of(case, 1)[0].tolist(), "stored")
    assert np.isfinite(stored).tolist() == [False, False, False, True, True, False]


words = st.lists(st.integers(A, C), max_size=6)


@given(st.lists(words, min_size=1, max_size=5), st.lists(words, min_size=1, max_size=4), st.integers(2, 4))
def test_array_code_uses_katz_backoff(training, text, order):
    case = case_of(training, text, order)
    trie, codes_T = case.subject.trie, case.subject.text_T
    nodes, rows, before = ngrams_in(trie), [], [1]

    def log10(history, word):
        if (*history, word) in nodes:
            return float(trie.prob_G[nodes[*history, word]])
        weight = float(trie.backoff_M[nodes[history]]) if history in nodes else 0.0
        return weight + log10(history[1:], word)

    for code in codes_T.tolist():
        rows.append(tuple(before[1 - order :]))
        before = [*before, code - 1] if code else [1]
    node_HK = plain_distributions.nodes_of(case, len(codes_T))
    for history, node_K in zip(rows, node_HK.tolist(), strict=True):
        smoothed, stored = (row_of(trie, node_K, mode) for mode in ("smoothed", "stored"))
        for n in range(1, order + 1):
            known = history[max(0, len(history) - n + 1) :]
            for word in range(SYMBOLS):
                assert smoothed[n - 1][word] == pytest.approx(log10(known, word), abs=1e-9)
                there = (*known, word) in nodes and len(known) == n - 1
                assert stored[n - 1][word] == (pytest.approx(trie.prob_G[nodes[*known, word]]) if there else -math.inf)


def made(case, H=40, **options):
    options = case.options(**options)
    return options, case.model.dense(case.find_first(H), options)


@pytest.mark.parametrize("scale", ["prob", "log10", "ln"])
@pytest.mark.parametrize("mode", ["smoothed", "stored"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_right_rows_pass_and_wrong_ones_do_not(case, dtype, mode, scale):
    options, rows = made(case, dtype=dtype, mode=mode, scale=scale)
    check_rows(case, options, rows)
    bits = rows.view(np.uint32 if dtype == "float32" else np.uint16)
    bits[0, 0, 7] += 40 if dtype == "float32" else 4  # rows of the first history are always compared
    with pytest.raises(WrongResult, match="1 of 1,505 probabilities after history 0 are not those of array code"):
        check_rows(case, options, rows)


def test_a_wrong_range_is_found(case):
    found = case.find_first(40)
    check_found(case, found)
    for k in range(3):
        arrays = [array.copy() for array in found.arrays]
        arrays[k][3, 1] += 1
        with pytest.raises(WrongResult, match=r"1 of 160 (first children|last children|backoffs) are not those"):
            check_found(case, FoundHistories(*arrays))


def test_a_wrong_best_word_is_found(case):
    options = replace(case.options(), top_k=10)
    ids, values = case.model.top(case.find_first(40), options)
    check_top(case, options, (ids, values))
    for change in ("twice", "begin", "value", "not the greatest"):
        wrong_ids, wrong_values = ids.copy(), values.copy()
        if change == "twice":
            wrong_ids[0, 0, 4] = wrong_ids[0, 0, 3]
        elif change == "begin":
            wrong_ids[0, 0, 4] = 1
        elif change == "value":
            wrong_values[0, 0, 4] *= 1.001
        else:
            row = made(case, 1)[1][0, 0]
            least = int(row.argmin())
            wrong_ids[0, 0, 9], wrong_values[0, 0, 9] = least, row[least]
        with pytest.raises(WrongResult, match="most probable words after history 0"):
            check_top(case, options, (wrong_ids, wrong_values))


def test_a_wrong_child_is_found(case):
    found = case.find_first(40)
    gathered = distribution_compact.gather_children(
        found.first_HK.reshape(-1), found.end_HK.reshape(-1), case.subject.trie.word_G, case.subject.trie.prob_G
    )
    check_children(case, found, gathered)
    for k, what in enumerate(("offsets", "words", "log10 probabilities")):
        arrays = [array.copy() for array in gathered]
        arrays[k][5] += 1
        with pytest.raises(WrongResult, match=f"{what}( of children)? are not those|offsets are not those"):
            check_children(case, found, tuple(arrays))


def test_a_wrong_row_gives_no_row_of_results(run, monkeypatch):
    dense = distribution_cases.NextWordModel.dense

    def wrong(self, found, options, out=None):
        rows = dense(self, found, options, out)
        rows[-1, 0, 0] *= 1.01
        return rows

    monkeypatch.setattr(distribution_cases.NextWordModel, "dense", wrong)
    thesis = distribution_thesis.order, distribution_thesis.saturation
    for part in distribution_rates.dense, distribution_rates.small, distribution_rates.peers, *thesis:
        with pytest.raises(WrongResult, match="1 of [0-9,]+ probabilities after history"):
            part(run)
    assert not run.suite.rows
    with pytest.raises(WrongResult, match="1 of [0-9,]+ log10 probabilities are not the scores of words"):
        distribution_steps.one_by_one(run)


def test_a_wrong_step_of_states_gives_no_row(run, monkeypatch):
    step = distribution_states.Model.step

    def wrong(self, states, words, scale="log10", out=None):
        log10, after = step(self, states, words, scale, out)
        log10[-1] += 0.01
        return log10, after

    monkeypatch.setattr(distribution_states.Model, "step", wrong)
    with pytest.raises(WrongResult, match="the word after state [0-9]+ has log10 .* but array code gives"):
        distribution_states.states(run)
    assert not run.suite.rows


def test_a_wrong_share_gives_no_row(run):
    executor = LocalExecutor("cpu", 1)
    try:
        with pytest.raises(WrongResult, match=r"share 0 sums to [0-9.]+ here but 1.0 elsewhere"):
            side_by_side.add_row(run.suite, executor, distribution_workers.work_on("cpu"), TOKENS, {0: 1.0})
    finally:
        executor.close()
    assert not run.suite.rows


def test_a_sampled_word_has_a_rank(case, run):
    distribution_sampling.check_drawn(case, np.array([0, 300, 2]))
    for wrong in 301, -1, 1:
        with pytest.raises(WrongResult, match="1 of 3 words that were drawn"):
            distribution_sampling.check_drawn(case, np.array([5, wrong, 7]))


def test_words_that_come_too_often_are_found():
    expected = np.array([0.5, 0, 0.25, 0.25])
    even = np.repeat([0, 2, 3], [500, 250, 250])
    distribution_sampling.check_shares(expected, even)
    for wrong in np.repeat([0, 2, 3], [420, 290, 290]), np.append(even, 1):
        with pytest.raises(WrongResult, match="chi-square of 1,00[01] words that were drawn is [0-9.]+, of"):
            distribution_sampling.check_shares(expected, wrong)


def test_lookups_by_hand():
    """A history of two levels with children, and one of none."""
    found = FoundHistories(np.array([[0, 5], [2, 2]]), np.array([[3, 6], [2, 2]]), np.zeros((2, 2), np.float32))
    assert distribution_sampling.lookups(found) == (2 + 4) + 4


def test_rows_in_a_buffer_do_not_overlap(run, case):
    options = RowOptions.of(5, "all", dtype="float16")
    rows = run.rows(3, case, options)
    assert rows.shape == (3, 5, 320) and rows.strides == (5 * 640, 640, 2)  # 602 bytes, rounded up to a multiple of 128
    assert run.rows(3, case, options, packed=True).strides == (5 * 602, 602, 2)
    assert run.most(case, options) == (1 << 20) // (5 * 640)


def test_missing_rows_are_found(run, case):
    rows = run.rows(2, case, case.options())[:, :, :301]
    distribution_steps._check_untouched(rows)
    with pytest.raises(WrongResult, match="1,505 of 1,505 probabilities after history 0"):
        check_rows(case, case.options(), rows)
    rows[1, 4, 300] = 0
    with pytest.raises(WrongResult, match="rows that are not to be written were"):
        distribution_steps._check_untouched(rows)


def test_words_one_by_one_by_hand():
    case = case_of([[A, B]], [[A, B, C], [A], [C, B, A, B]], 3)
    # Codes: a b c 0 a 0 c b a b 0. In a sentence, two words precede the third word and each word after it.
    assert distribution_steps.whole_histories(case, 99).tolist() == [2, 3, 8, 9, 10]
    assert distribution_steps.whole_histories(case, 2).tolist() == [2, 3]
    queries = distribution_steps.queries_after(case, np.array([3, 8])).reshape(2, SYMBOLS, 4)
    assert queries[0].tolist() == [[B + 1, C + 1, v + 1, 0] for v in range(SYMBOLS)]
    assert queries[1].tolist() == [[C + 1, B + 1, v + 1, 0] for v in range(SYMBOLS)]


def test_histories_that_fit():
    found = FoundHistories(
        np.array([[0, 5], [2, 2], [0, 7]]), np.array([[3, 6], [2, 2], [6, 9]]), np.zeros((3, 2), np.float32)
    )
    assert distribution_compact.children_of(found).tolist() == [4, 0, 8]
    assert [distribution_compact.that_fit(found, C) for C in (0, 4, 11, 12)] == [1, 2, 2, 3]


def test_plain_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_rates, "CHUNK_BYTES", 1_000)
    written = []
    write_at = machine_rates.write_at

    def at_most_300(file, data, offset):
        written.append(len(data[:300]))
        return write_at(file, data[:300], offset)

    monkeypatch.setattr(machine_rates, "write_at", at_most_300)
    for size_bytes in (1, 999, 1_000, 2_500):
        written.clear()
        assert machine_rates.write_plainly(tmp_path / "plain", size_bytes, 2) > 0
        assert sum(written) == size_bytes and not (tmp_path / "plain").exists()


def test_the_ceilings_compile(compile_cuda):
    succeeded, log = compile_cuda(with_common(distribution_limits.SOURCE))
    assert succeeded, log


def test_rows_without_stores_compile(compile_cuda):
    float32 = {"CHILD": "u32", "VECTOR": 1}
    cases = {
        "write_rows": [{"TILE": 1024}],
        "find_and_write_rows": [{"TILE": 512, "FIND": f} | BLOCK_SHAPE for f in (0, 1)],
    }
    for stem, defines in ((stem, one) for stem, some in cases.items() for one in some):
        plain = source(f"distribution/{stem}", defines | float32)
        succeeded, log = compile_cuda(distribution_steps.without_stores(plain))
        assert succeeded, log
    with pytest.raises(ValueError, match="the source has 0 functions `store`"):
        distribution_steps.without_stores(plain.replace("void store", "void keep"))
