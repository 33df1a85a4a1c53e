"""`mgpu-ngram bench score` runs completely, writes all rows and files, and times no wrong result."""

import re
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram import cli, kenlm
from mgpu_ngram.benchmarks.harness import machine_rates, side_by_side
from mgpu_ngram.benchmarks.harness.cuda_source import with_common
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs import plain_scoring, scoring_subjects
from mgpu_ngram.benchmarks.inputs.frequency_models import trie_of
from mgpu_ngram.benchmarks.inputs.plain_scoring import ScoreWork, lookups, stump_shares, walk
from mgpu_ngram.benchmarks.inputs.scoring_subjects import EDGES, TREE, Subject
from mgpu_ngram.benchmarks.score import bench as score
from mgpu_ngram.benchmarks.score import drop_in as score_drop_in
from mgpu_ngram.benchmarks.score import effects as score_effects
from mgpu_ngram.benchmarks.score import peers as score_peers
from mgpu_ngram.benchmarks.score import rates as score_rates
from mgpu_ngram.benchmarks.score import sustained as score_sustained
from mgpu_ngram.benchmarks.score import text as score_text
from mgpu_ngram.benchmarks.score import workers as score_workers
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import with_fanout
from mgpu_ngram.kernels.launch import source
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from tests.support.ngrams import ngrams_in

pytestmark = pytest.mark.slow

TOKENS = 2_000
FIGURES = {"table3", "table4", "table5", "figure9", "figure10", "stumps"}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Run with little text and few rounds: the tests need no precise times."""
    with pytest.MonkeyPatch.context() as patch:
        for numbers, value in (
            (scoring_subjects.QUERIES, 300), (scoring_subjects.REPEATS, 3), (scoring_subjects.TEXT_WORDS, 1_500),
            (score_workers.PASSES, 1), (score_sustained.SECONDS, 0.01), (score_sustained.PASSES, 2),
        ):  # fmt: skip
            patch.setitem(numbers, "cpu", value)
        patch.setattr(score_effects, "FANOUTS", (4, 33))
        patch.setattr("mgpu_ngram.benchmarks.harness.timing.MAX_RUNS", 1)
        patch.setattr(side_by_side, "DELAY_SECONDS", 0.1)
        for module in score_text, side_by_side:
            patch.setattr(module, "ROUNDS", 2)
        patch.setattr(score_drop_in, "ROUNDS", 1)
        patch.setattr(score_drop_in, "find_spec", lambda name: None)
        yield


@pytest.fixture(scope="module")
def bench_run(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return score.bench(BenchOptions("cpu", folder, tokens=TOKENS, workers="1,2")), folder


@pytest.fixture(scope="module")
def subject(small):
    return Subject.make(TOKENS, 1_500, "cpu")


def test_every_part_has_rows(bench_run):
    found = Counter(row["kernel"].removeprefix("score/").split(",")[0] for row in bench_run[0])
    both = (EDGES, TREE)
    assert found == Counter(
        {f"table3 {name}": 2 for name in (*both, "B+-tree of 8 bits")}
        | {f"table3 size of {name}": 1 for name in (f"{EDGES} and trie", TREE, "B+-tree of 8 bits")}
        | {f"table4 {name}": 2 for name in both}
        | {f"table5 {name}": 3 for name in both}
        | {f"figure10 {name}": 4 for name in both}
        | {f"reads of {name}": 2 for name in both}
        | {"figure9 B+-tree": 2, "stumps of nodes": 4, "stumps of searches": 4, "constants": 1}
        | {
            "text to scores": 4,
            "load ARPA": 4,
            "workers edge table": 2,
            "table3 kenlm_benchmark on word ids": 1,
            "short runs of edge table": 1,
            "on end edge table": 1,
            "score_ids from Python": 1,
        }
        | {f"drop-in {name}": 5 for name in (*score_drop_in.CALLS, "load")}
        | {"drop-in two threads": 10, "drop-in import": 1}
        | {f"load {name}": 3 for name in ("model", "model with edge table", "model without verifying")}
    )


def test_rows_are_consistent(bench_run):
    for row in bench_run[0]:
        if "drop-in" in row["kernel"]:
            continue
        tokens = [int(word[2:]) for word in row["sizes"].split() if word.startswith("T=")]
        if row["median_seconds"] and tokens and "workers" not in row["sizes"] and "on end" not in row["kernel"]:
            assert row["rate"] == pytest.approx(tokens[0] / row["median_seconds"]), row["kernel"]
        assert (row["target"] is None) == ("size of" not in row["kernel"])  # other rows are of GPUs
    rows = {(r["kernel"], r["sizes"].split()[0], r["sizes"].split()[-1]): r for r in bench_run[0]}
    one, two = (rows["score/workers edge table", "n=5", f"workers={G}"] for G in (1, 2))
    assert one["speedup"] is None and two["speedup"] == pytest.approx(two["rate"] / one["rate"])
    short, on_end = (rows[f"score/{k} edge table", "n=5", "repeated=3"] for k in ("short runs of", "on end"))
    assert on_end["rate"] == pytest.approx(2 * short["rate"] * short["median_seconds"] / on_end["median_seconds"])
    assert on_end["speedup"] == pytest.approx(on_end["rate"] / short["rate"])
    assert re.fullmatch(r"2 passes a run; first \S+ [kM]; last \S+ [kM]", on_end["notes"])
    orders = [r["sizes"].split()[0] for r in bench_run[0] if r["kernel"] == "score/table5 B+-tree"]
    assert orders == ["n=5", "n=4", "n=3"]
    small, large = (r for r in bench_run[0] if r["kernel"] == "score/table4 edge table")
    assert 2.5 < int(large["sizes"].split()[1][2:]) / int(small["sizes"].split()[1][2:]) < 4


def test_the_drop_in_beside_a_peer(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(score_drop_in, "find_spec", lambda name: name)
    monkeypatch.setattr(score_drop_in, "PEER", score_drop_in.OURS)
    suite = Suite("cpu")
    score_drop_in.drop_in(suite, subject, tmp_path)
    rows = {(row.kernel, row.sizes.split("file=")[1]): row for row in suite.rows}
    for file in "ARPA", "probing", "trie", "model-file", "model-file-edges":
        ours, theirs = rows["score/drop-in BaseScore", file], rows.get(("score/kenlm module BaseScore", file))
        assert (theirs is None) == file.startswith("model-file")
        peer = theirs or rows["score/kenlm module BaseScore", "probing"]
        assert ours.speedup == pytest.approx(peer.median_seconds / ours.median_seconds) and ours.target == peer.rate
        assert re.fullmatch(
            r"then \d+ MB are resident, \S+ of kenlm's; at most 1.5", rows["score/drop-in load", file].notes
        )
    assert rows["score/drop-in load", "trie"].target == 10 and rows["score/drop-in import", "ARPA"].baseline
    run = score_drop_in._run
    wrong = iter([0.0, 1.0])
    monkeypatch.setattr(score_drop_in, "_run", lambda *words: run(*words) | {"sum": next(wrong)})
    with pytest.raises(WrongResult, match="kenlm gives log10 1.0 but the drop-in 0.0 for the same text; not timed"):
        score_drop_in.drop_in(suite, subject, tmp_path)


def test_csv_and_figures(bench_run, stored_rows):
    found, folder = bench_run
    stored_rows(folder, found)
    figures = {path.name.split("_")[1]: path for path in folder.glob("score_*.png")}
    assert set(figures) == FIGURES
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.values())


def test_only_some_parts(tmp_path):
    found = score.bench(BenchOptions("cpu", tmp_path, tokens=TOKENS, only="10,stumps"))
    assert {row["kernel"] for row in found} == {"score/constants", "score/stumps of nodes", "score/stumps of searches"}
    assert len(list(tmp_path.glob("*.png"))) == 1


# 6 words follow a, more than a B-stump of 4 holds; nothing follows </s>, so it is not a parent.
A, B, C, F = 3, 4, 5, 8
SYMBOLS = 9
SENTENCES = [[A, B], [A, C], [A, 6], [A, 7], [A, F], [B, A]]


def codes_of(sentences):
    return np.array([code for words in sentences for code in [*(w + 1 for w in words), 0]], np.uint32)


@pytest.fixture
def by_hand():
    return trie_of(codes_of(SENTENCES), SYMBOLS, 2, fanout=4)


@pytest.mark.parametrize(("fanout", "share", "met"), [(4, 6 / 7, 2), (5, 6 / 7, 2), (6, 1, 3)])
def test_stumps_by_hand(by_hand, fanout, share, met):
    trie = with_fanout(by_hand, fanout)
    assert stump_shares(trie) == [share]
    work = ScoreWork.of(trie, codes_of([[A, B]]))
    assert (work.searches.tolist(), work.parents.tolist(), work.stumps.tolist()) == ([3], [3], [met])


def test_lines_by_hand(by_hand):
    # The children of <s> are nodes 9 and 10. a has children 11 to 16, more than 4: every 4th is read before them.
    assert by_hand.first_child_M[[1, A, B]].tolist() == [9, 11, 17]
    # Three tokens, all found: 3 probabilities, 3 ranges of children, and 1, 2, 1 levels.
    assert ScoreWork.of(by_hand, codes_of([[A, B]])).lines == 3 + 3 + 4
    # The model lacks <s> f and f b: two backoffs.
    assert ScoreWork.of(by_hand, codes_of([[F, B]])).lines == 3 + 2 + 3 + 3
    # Nothing follows <unk>: no level is read for b, and only the word's own probability.
    work = ScoreWork.of(by_hand, codes_of([[0, B]]))
    assert work.lines == 3 + 2 + 3 + 2 and (work.searches.tolist(), work.parents.tolist()) == ([3], [2])


def log10(trie, nodes, history, word):
    """Return the score by Katz's backoff in float32, and the length of the match."""
    if (*history, word) in nodes:
        return trie.prob_G[nodes[*history, word]], len(history) + 1
    prob, order = log10(trie, nodes, history[1:], word)
    return prob + (trie.backoff_M[nodes[history]] if history in nodes else np.float32(0)), order


words = st.lists(st.integers(A, F), max_size=8)


@given(st.lists(words, min_size=1, max_size=8), st.lists(words, min_size=1, max_size=6), st.integers(2, 5))
def test_array_code_scores_with_katz_backoff(training, text, order):
    trie, codes_T = trie_of(codes_of(training), SYMBOLS, order, fanout=2), codes_of(text)
    nodes, expected, searches, levels, backoffs, let_through = ngrams_in(trie), [], Counter(), 0, 0, 0
    filter_bits = 3
    bit = lambda word, history: (word * 0x9E3779B1 % 2**32) * (64 if len(history) == 1 else filter_bits) >> 32  # noqa: E731
    children = {h: {ngram[-1] for ngram in nodes if ngram[:-1] == h} for h in nodes}
    for sentence in text:
        before = [1]
        for word in [*sentence, 2]:
            history = tuple(before[1 - order :])
            expected.append(log10(trie, nodes, history, word))
            suffixes = [history[i:] for i in range(len(history)) if history[i:] in nodes]
            searches.update(map(len, suffixes))
            let_through += sum(bit(word, s) in {bit(child, s) for child in children[s]} for s in suffixes)
            backoffs += sum(len(s) >= expected[-1][1] for s in suffixes)
            for run in (trie.first_child_M[nodes[s] : nodes[s] + 2].tolist() for s in suffixes):
                row = list(range(*run))
                levels += bool(row)
                while row and row[-1] - row[0] > trie.fanout:
                    row = list(range(row[0] // trie.fanout, row[-1] // trie.fanout + 1))
                    levels += 1
            before.append(word)
    work = ScoreWork.of(trie, codes_T)
    assert [tuple(pair) for pair in zip(*(a.tolist() for a in work.scores), strict=True)] == expected
    assert work.searches.tolist() == [searches[n] for n in range(1, order)]
    assert work.lines == len(expected) + backoffs + searches.total() + levels
    assert lookups(trie, codes_T, filter_bits) == let_through
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_scoring, "BLOCK_TOKENS", 3)
        parts = ScoreWork.of(trie, codes_T)
        assert lookups(trie, codes_T, filter_bits) == let_through
    assert all(map(np.array_equal, parts.scores, work.scores)) and parts.lines == work.lines
    assert parts.stumps.tolist() == work.stumps.tolist() and parts.parents.tolist() == work.parents.tolist()


def test_histories_by_hand(by_hand):
    found, histories = walk(by_hand, codes_of([[A, B], [F]]))
    assert found[0].tolist() == [A, B, 2, F, 2] and histories[0].tolist() == [1, A, B, 1, F]
    assert (found[1] < 0).tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(("number", "what"), [(0, "log10 probabilities"), (1, "orders")])
def test_a_wrong_score_gives_no_row(subject, monkeypatch, tmp_path, number, what):
    def wrong(*arguments):
        scores = score_by_edges(*arguments)
        scores[number][7] += 1
        return scores

    monkeypatch.setattr(scoring_subjects, "score_by_edges", wrong)
    suite = Suite("cpu")
    with pytest.raises(WrongResult, match=f"1 of [0-9]+ {what} are not those of array code"):
        score_rates.table3(suite, subject, tmp_path)
    assert not [row for row in suite.rows if "kenlm" not in row.kernel]


def test_a_wrong_score_of_text_gives_no_row(subject, monkeypatch, tmp_path):
    write = score_text.write_text
    monkeypatch.setattr(score_text, "write_text", lambda path, codes_T, words: write(path, codes_T[::-1], words))
    suite = Suite("cpu")
    with pytest.raises(WrongResult, match="sentences as text"):
        score_text.text(suite, subject, tmp_path)
    assert not suite.rows


def test_a_wrong_score_of_a_model_gives_no_row(subject, monkeypatch, tmp_path):
    save = score_text.save_model
    other = score_text.host_model(subject.of_order(2))
    monkeypatch.setattr(score_text, "save_model", lambda path, model: save(path, other))
    suite = Suite("cpu")
    with pytest.raises(WrongResult, match="model: the model that was loaded"):
        score_text.load(suite, subject, tmp_path)
    assert not suite.rows


def test_a_wrong_score_of_a_share_gives_no_row():
    suite, executor = Suite("cpu"), LocalExecutor("cpu", 1)
    try:
        with pytest.raises(WrongResult, match=r"share 0 sums to -[0-9.]+ here but -1.0 elsewhere"):
            side_by_side.add_row(suite, executor, score_workers.work_on("cpu"), TOKENS, {0: -1.0})
    finally:
        executor.close()
    assert not suite.rows


def test_work_that_does_not_fit_is_a_note(subject, monkeypatch):
    class FullSubject(Subject):
        @classmethod
        def make(cls, *_):
            raise MemoryError("no room")

    monkeypatch.setattr(score_rates, "Subject", FullSubject)
    suite = Suite("cpu")
    score_rates.table4(suite, subject)
    assert suite.rows[-1].notes == "does not fit: no room" and suite.rows[-1].rate is None
    assert [row.kernel for row in suite.rows[:-1]] == ["score/table4 edge table", "score/table4 B+-tree"]


def test_kenlm_is_compared(subject, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "kenlm", kenlm)  # a stand-in
    suite = Suite("cpu")
    score_rates.table3(suite, subject, tmp_path)
    rows = {row.kernel: row for row in suite.rows}
    peer, ours = rows["score/table3 kenlm module, 1 thread"], rows["score/table3 edge table"]
    tokens = len(scoring_subjects.head(subject.text_T, 300))
    assert peer.rate == pytest.approx(tokens / peer.median_seconds)
    assert ours.baseline == "kenlm module, 1 thread" and ours.speedup == pytest.approx(ours.rate / peer.rate)


# Stands in for KenLM's programs: ids are uint32, and query prints the sum that a file names.
FAKE_KENLM = """#!{python}
import sys
data = sys.stdin.buffer.read()
if sys.argv[1] == "-v":
    sys.stdout.buffer.write(b"ids:" + bytes(4 * len(data.split())))
elif sys.argv[1] == "-q":
    assert sys.argv[4] == "-t" and (not data or data.count(b"ids:") == 16)
    print("Threads: 2\\nProbability sum:", open("{sum}").read() if data else 0, file=sys.stderr)  # as of KenLM 9495443
else:
    assert sys.argv[1] == "probing" and open(sys.argv[2]).read(5).endswith("data")
"""


def test_kenlm_on_word_ids(subject, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    codes_T = scoring_subjects.head(subject.text_T, 300)
    suite = Suite("cpu")
    score_peers.kenlm_on_ids(suite, subject, codes_T, tmp_path)
    assert suite.rows[0].notes == "not measured: build_binary and kenlm_benchmark not on the PATH"
    for name in score_peers.PROGRAMS:
        (tmp_path / name).write_text(FAKE_KENLM.format(python=sys.executable, sum=tmp_path / "sum"))
        (tmp_path / name).chmod(0o755)
    total = 16 * float(scoring_subjects.edge_table(subject.trie).score(codes_T)[0].sum(dtype=np.float64))
    (tmp_path / "sum").write_text(str(1.01 * total))
    with pytest.raises(WrongResult, match="kenlm_benchmark gives log10"):
        score_peers.kenlm_on_ids(suite, subject, codes_T, tmp_path)
    (tmp_path / "sum").write_text(str(total))
    score_peers.kenlm_on_ids(suite, subject, codes_T, tmp_path)
    row = suite.rows[-1]
    assert len(suite.rows) == 2 and row.runs == 3 and row.kernel.startswith("score/table3 kenlm_benchmark on word ids")
    assert row.rate == pytest.approx(16 * len(codes_T) / row.median_seconds)


# Stands in for gLM's programs: a search takes 2 ms for each query of the text, and the sum is that of a file.
FAKE_GLM = """#!{python}
import sys
if len(sys.argv) == 3 and sys.argv[0].endswith("binarize_v2"):
    assert open(sys.argv[1]).read(5).endswith("data")
    open(sys.argv[2], "w").write("binary")
else:
    assert open(sys.argv[1]).read() == "binary" and len(open(sys.argv[2]).read().splitlines()) % 3 == 0
    print("Throughput: 500 queries per second.")
    print("Total file sum is:", open("{sum}").read())
"""


def test_glm_is_compared(subject, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    codes_T = np.tile(scoring_subjects.head(subject.text_T, 300), 3)
    suite = Suite("cpu")
    score_peers.glm_on_text(suite, subject, codes_T, 3, tmp_path)
    assert suite.rows[0].notes == "not measured: binarize_v2 and batch_query_v2 not on the PATH"
    for name in score_peers.GLM_PROGRAMS:
        (tmp_path / name).write_text(FAKE_GLM.format(python=sys.executable, sum=tmp_path / "sum"))
        (tmp_path / name).chmod(0o755)
    total = float(scoring_subjects.edge_table(subject.trie).score(codes_T)[0].sum(dtype=np.float64))
    (tmp_path / "sum").write_text(str(1.01 * total))
    score_peers.glm_on_text(suite, subject, codes_T, 3, tmp_path)
    assert suite.rows[-1].rate is None and suite.rows[-1].notes.startswith("not timed: gLM gives log10")
    (tmp_path / "sum").write_text(f"{total:.6g}")
    score_peers.glm_on_text(suite, subject, codes_T, 3, tmp_path)
    assert suite.rows[-1].kernel == "score/table3 gLM" and suite.rows[-1].runs == 3
    assert suite.rows[-1].rate == pytest.approx(500)


def test_a_kenlm_with_other_scores_gives_no_row(subject, monkeypatch, tmp_path):
    class Other(kenlm.Model):
        def score(self, sentence):
            return super().score(sentence) * 1.001

    monkeypatch.setitem(sys.modules, "kenlm", type("kenlm", (), {"Model": Other}))
    with pytest.raises(WrongResult, match="kenlm gives log10"):
        score_rates.table3(Suite("cpu"), subject, tmp_path)


def test_text_by_hand(tmp_path, monkeypatch):
    words = Words.of(["<unk>", "<s>", "</s>", "a", "bb"])
    for step in (1, 2, 3, 100):
        monkeypatch.setattr(score_text, "SPELLED_WORDS", step)
        score_text.write_text(tmp_path / "text", np.array([4, 5, 0, 0, 1, 0, 5, 4, 4, 0], np.uint32), words)
        assert (tmp_path / "text").read_bytes() == b"a bb\n\n<unk>\nbb a a\n"


def test_text_is_cut_between_sentences():
    codes_T = codes_of([[A, B], [A], [], [A, B, C], [F]])
    assert scoring_subjects._cut(codes_T, 1)[0].tolist() == codes_T.tolist()
    for parts in (2, 3, 7):
        cut = scoring_subjects._cut(codes_T, parts)
        assert len(cut) == parts and np.concatenate(cut).tolist() == codes_T.tolist()
        assert all(part[-1] == 0 for part in cut if len(part))
    assert [len(scoring_subjects.head(codes_T, tokens)) for tokens in (1, 3, 4, 5, 9, 10, 99)] == [
        3,
        3,
        3,
        5,
        6,
        10,
        12,
    ]


def test_the_ceilings_compile(compile_cuda):
    assert compile_cuda(with_common(machine_rates.SOURCE))[0]
    assert all(f"{name}(" in machine_rates.SOURCE for name in machine_rates.KERNELS.values())


def test_kernels_compile_with_constants(compile_cuda, subject):
    stems = "score_by_edges", "score_tokens"
    defines = {}, {"CHILD": "u32", "VALUE": "float"}
    found = score_effects.parameters(subject)
    for stem, of_stem, (module, _, values) in zip(stems, defines, found, strict=True):
        assert module.__name__.endswith(stem)
        plain = source(f"score/{stem}", of_stem)
        text = score_effects.with_constants(plain, values)
        succeeded, log = compile_cuda(text)
        assert succeeded, log
        assert "k < 5LL" in text and "k < N" in plain
        assert not [name for name in values if "." in name and name in text]


def test_constants_by_hand():
    text = score_effects.with_constants("f(i64 N, i64 a) { a.N = N + a.k + NN; } // a.kk", {"N": 5, "a.k": 7})
    assert text == "f(i64 N, i64 a) { a.N = 5LL + 7LL + NN; } // a.kk"
    with pytest.raises(ValueError, match="fanout is not in the source"):
        score_effects.with_constants("i64 fanout", {"fanout": 3})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "99"}, r"part '99' is none of table3, ceilings, .*, nor a number from 1 to \d+"),
        ({"only": "table6"}, "part 'table6' is none of table3"),
        ({"workers": "1,two"}, "workers is '1,two'"),
        ({"tokens": 5}, "tokens is 5 but must be at least 1000"),
        ({"folder": "/no/such/folder"}, "/no/such/folder: no such folder"),
    ],
)
def test_bad_options(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        score.bench(BenchOptions("cpu", tmp_path, **options))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score --text x", "bench score takes no --text, which is of bench count, bench estimate, "),
        (
            "score --size 1",
            "bench score takes no --size, which is of bench count, bench cluster, bench distribution, bench filter;",
        ),
        ("quote --only 1", "bench quote takes no --only, which is of bench count, bench cluster, bench score, "),
        ("score --only stump", "part 'stump' is none of"),
    ],
)
def test_flags_of_other_benches_are_refused(words, message, capsys):
    assert cli.main(["bench", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


@pytest.mark.gpu
def test_whole_suite_on_a_gpu(tmp_path, monkeypatch):
    for numbers, value in ((scoring_subjects.QUERIES, 10_000), (scoring_subjects.TEXT_WORDS, 50_000)):
        monkeypatch.setitem(numbers, "gpu", value)
    monkeypatch.setitem(score_rates.LARGER, "gpu", 2)
    monkeypatch.setattr(machine_rates, "READS", 1 << 20)
    found = {row["kernel"]: row for row in score.bench(BenchOptions("gpu", tmp_path, tokens=50_000, workers="1"))}
    assert {f"score/bound of {name}" for name in (EDGES, TREE)} <= set(found)
    for name in EDGES, TREE:
        assert found[f"score/bound of {name}"]["share_of_ceiling"] > 0
        assert found[f"score/figure10 {name}, copies"]["rate"] > 0
        assert found[f"score/constants, numbers in {name}"]["baseline"] == f"score/constants, parameters of {name}"
    assert {path.name.split("_")[1] for path in tmp_path.glob("*.png")} == FIGURES
