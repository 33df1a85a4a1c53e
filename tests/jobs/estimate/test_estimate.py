"""Model files of text equal those of KenLM's lmplz, for any division of the work, on a cluster, and after faults."""

import itertools
import json
import lzma
import os
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mgpu_ngram as ng
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, InputWarning, RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.checkpoint_entries import read_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.estimate import assemble
from mgpu_ngram.engine.estimate.part import Contexts, Estimated, Unigrams
from mgpu_ngram.engine.estimate.part_values import lasting_arrays
from mgpu_ngram.engine.memory import spill as keep
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.count import plan as count_plan
from mgpu_ngram.jobs.estimate import assemble as estimate_model
from mgpu_ngram.jobs.estimate import plan as estimate_plan
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate import tasks, text_parts
from mgpu_ngram.jobs.estimate.run import EstimateConfig, changed_since, run, run_to_model
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.stages.registry import STAGES
from tests.support import interrupt
from tests.support.slow_cases import first_fast, only_fast, slow_cases
from tests.support.slowness import wait_until

ORACLE = Path(__file__).resolve().parents[3].parent / "shared" / "oracles" / "lmplz_ref.py"
HOOKS = Path(__file__).parents[2] / "support" / "task_hooks.py"
FALLBACK = {"discount_fallback": []}
pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="module")
def here():
    executor = LocalExecutor(workers=2)
    yield executor
    executor.close()


@pytest.fixture(autouse=True)
def small_models_are_cut(monkeypatch):
    """Cut the model into stretches, as several workers do with a large one."""
    monkeypatch.setattr(assemble, "SAMPLED_NGRAMS", 4)


@pytest.fixture(scope="module")
def make(here, tmp_path_factory):
    """Return a function: (the bytes of the file, the result) of texts, or of paths."""
    folder = tmp_path_factory.mktemp("made")

    def estimated(*texts, executor=None, memory=None, **options):
        paths = []
        for i, text in enumerate(texts):
            path = text if isinstance(text, Path) else folder / f"text{i}"
            if path is not text:
                path.write_bytes(text)
            paths.append(str(path))
        config = EstimateConfig(paths, **{"format": "arpa", **options})
        output = folder / f"model.{config.format}"
        result = run(
            config,
            RunContext(executor or here, output, single_file=True, overwrite=True, memory=memory or MemoryConfig()),
        )
        assert result.size_bytes == output.stat().st_size and result.path == output
        assert {p.name for p in folder.iterdir()} <= {*map(os.path.basename, paths), "text0", "text1", "text2",
                                                      "model.arpa", "model.safetensors", "limit"}  # fmt: skip
        return output.read_bytes(), result

    return estimated


def random_lines(rng, lines, words=40, exponent=1.4):
    return [
        " ".join(f"w{w}" for w in rng.zipf(exponent, rng.integers(0, 14)).clip(1, words)).encode() for _ in range(lines)
    ]


@pytest.fixture(scope="module")
def text():
    """About 4,000 words, enough to compute the discounts of orders 1 to 3."""
    return b"".join(line + b"\n" for line in random_lines(np.random.default_rng(5), 700, 400))


# File contents, read by plain Python


def arpa_values(data):
    """Return {n-gram: (log10 probability, backoff)}, as bytes, of an ARPA file; sections match its header."""
    head, *sections = data.split(b"-grams:\n")
    counts = [int(c) for c in re.findall(rb"^ngram \d+=(\d+)$", head, re.MULTILINE)]
    found = {}
    for count, section in zip(counts, sections, strict=True):
        lines = [line.split(b"\t") for line in section.split(b"\n") if b"\t" in line]
        assert len(lines) == count
        found |= {line[1]: (line[0], line[2] if len(line) > 2 else b"0") for line in lines}
    assert len(found) == sum(counts)
    return found


def model_values(path):
    """Return the same as numbers, of a model file, order 1 first."""
    arrays, metadata = load_arrays(path)
    ends, data = arrays["offsets_V"].tolist(), arrays["data"].tobytes()
    words = [data[a:b] for a, b in itertools.pairwise(ends)]
    ids, first = arrays["word_G"].tolist(), arrays["first_child_M"]
    names = words[:]
    for begin, end in itertools.pairwise(metadata["starts"][:-1]):
        sizes = np.diff(first[begin : end + 1])
        parents = np.repeat(np.arange(begin, end), sizes).tolist()
        names += [names[p] + b" " + words[ids[first[begin] + i]] for i, p in enumerate(parents)]
    backoffs = np.zeros(len(names), np.float32)
    backoffs[: len(arrays["backoff_M"])] = arrays["backoff_M"]
    assert len(set(names)) == len(names) == len(ids)
    return names, np.column_stack([-np.abs(arrays["prob_G"]), backoffs])  # also of <s>: log10 of 1 is 0


def assert_same_model(got, wanted):
    """Compare the bytes of two ARPA files."""
    assert_same_values(arpa_values(got), arpa_values(wanted))


def assert_same_values(got, wanted):
    """Compare what `arpa_values` returns; only values with other digits are read as numbers."""
    assert got.keys() == wanted.keys()
    differ = [g for g, values in wanted.items() if got[g] != values]
    mine, theirs = (np.array([values[g] for g in differ], np.float32) for values in (got, wanted))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


# KenLM's output


def golden_models():
    """Return (name, file of the text, options, whether lmplz fails) of each command that made a model."""
    path = ORACLE.parents[1] / "data" / "golden" / "COMMANDS.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    options = {
        "-o": lambda v: {"order": int(v[0])},
        "--prune": lambda v: {"prune": [int(t) for t in v]},
        "--interpolate_unigrams": lambda v: {"interpolate_unigrams": v != ["0"]},
        "--limit_vocab_file": lambda v: {"limit_vocab_file": v[0]},
        "--vocab_pad": lambda v: {"vocab_pad": int(v[0])},
        "--collapse_values": lambda v: {"collapse_values": True},
        "--verbose_header": lambda v: {"verbose_header": True},
        "--skip_symbols": lambda v: {"skip_symbols": True},
        "--discount_fallback": lambda v: {"discount_fallback": [float(d) for d in v]},
        "-S": lambda v: {},
        "-T": lambda v: {},
    }
    found = []
    for line, after in itertools.pairwise([*lines, ""]):
        if line.startswith("lmplz") and "--intermediate" not in line:
            name = re.search(r"models/(\S+)\.arpa", line)[1]
            text = re.search(r"inputs/(\S+)", line)[1]
            given = {}
            for flag, values in re.findall(r"(?<= )(--?[a-zA-Z_]+)((?: [^- ]\S*)*)", line.split(" --text")[0]):
                given |= options[flag](values.split())
            found.append(pytest.param(name, text, given, after == f"FAILED {name} rc=134", id=name))
    return found


GOLDEN = golden_models()


def unpacked(path):
    """Return the bytes of a file, or of the .xz file beside it."""
    return path.read_bytes() if path.exists() else lzma.open(f"{path}.xz").read()


def rounded(discounts):
    return [float(f"{d:.6g}") for d in discounts]


# Each kind of options once, and texts that lmplz refuses.
SHORT = [
    "small.o1",
    "small.o2",
    "small.o3.collapse",
    "small.o3.limitvocab.prune001",
    "small.o3.prune01",
    "small.o3.vhead",
]
SHORT += ["small.o4", "small.o5.iu0", "small.o5.prune00112", "small_unk.o3.noskip", "mr.o4"]
SHORT += [case.id for case in GOLDEN if case.id.startswith(("edge", "tiny"))]


@pytest.mark.parametrize(("name", "text", "options", "fails"), only_fast(GOLDEN, *SHORT))
def test_golden_models(name, text, options, fails, shared_data, make, tmp_path):
    """Files and figures of lmplz's runs; only the figures if the file is not stored."""
    golden = shared_data / "golden"
    log = (golden / "models" / f"{name}.log").read_text()
    corpus = next(p for p in (golden / "inputs" / text, golden / "inputs" / f"{text}.xz") if p.exists())
    if "limit_vocab_file" in options:
        options = {**options, "limit_vocab_file": str(golden / "inputs" / options["limit_vocab_file"])}
    if fails:
        [reason] = re.findall(
            r"for (\d-grams with adjusted count \d), because|for (\d-grams with adjusted count \d) be", log
        ) or [""]
        message = "none has adjusted count" if reason else "^<unk> stands in .*--skip-symbols"
        with pytest.raises(InputError, match=message) as error:
            make(corpus, **options)
        assert "\n" not in str(error.value) and "".join(reason) in str(error.value)
        return
    is_there = any((golden / "models").glob(f"{name}.arpa*"))
    data, result = make(corpus, **options) if is_there else (None, make(corpus, **{**options, "format": "arpa"})[1])
    s = result.statistics
    printed = re.findall(r"^(\d+) (?:(\d+)/)?(\d+) D1=(\S+) D2=(\S+) D3\+=(\S+)", log, re.MULTILINE)
    assert [(int(n), int(kept or total), int(total), list(map(float, ds))) for n, kept, total, *ds in printed] == [
        (n, s.kept[n], s.total[n], rounded(s.discounts[n])) for n in range(1, options["order"] + 1)
    ]
    substituted = re.findall(r"Substituting fallback discounts for order (\d)", log)
    assert s.fallback == [int(n) + 1 for n in substituted]
    [(tokens, types)] = re.findall(r"Unigram tokens (\d+) types (\d+)", log)
    assert (result.tokens, result.types) == (int(tokens), int(types))
    if is_there:
        wanted = arpa_values(unpacked(golden / "models" / f"{name}.arpa"))
        assert_same_values(arpa_values(data), wanted)
        path = make(corpus, **options, format="safetensors")[1].path
        names, values = model_values(path)
        assert set(names) == wanted.keys()
        np.testing.assert_allclose(values, np.array([wanted[g] for g in names], np.float32), rtol=0, atol=1e-6)


def test_there_are_golden_models(shared_data):
    assert len(GOLDEN) == 29 and sum(p.values[3] for p in GOLDEN) == 2


def golden_queries():
    """Return (text of the model, options, [name of a scored text]) of each model whose query output is stored."""
    golden = ORACLE.parents[1] / "data" / "golden"
    commands = (golden / "COMMANDS.txt").read_text() if golden.exists() else ""
    asked = set(re.findall(r"^query .* models/(\S+)\.arpa < inputs/(\S+)\.txt$", commands, re.MULTILINE))
    asked -= set(re.findall(r"^FAILED query (\S+) (\S+) ", commands, re.MULTILINE))
    asked = {(model, about) for model, about in asked if any((golden / "queries").glob(f"{model}__{about}.txt*"))}
    return [
        pytest.param(text, options, sorted(about for model, about in asked if model == name), id=name)
        for name, text, options, _ in (p.values for p in GOLDEN)
        if any(model == name for model, _ in asked)
    ]


@pytest.mark.parametrize(("text", "options", "asked"), only_fast(golden_queries(), *SHORT))
def test_scores_and_perplexity_are_kenlms(text, options, asked, shared_data, make, tmp_path, request):
    """The stored output of query for unseen texts, with and without <s> and </s>."""
    golden, name = shared_data / "golden", request.node.callspec.id
    corpus = next(p for p in (golden / "inputs" / text, golden / "inputs" / f"{text}.xz") if p.exists())
    if "limit_vocab_file" in options:
        options = {**options, "limit_vocab_file": str(golden / "inputs" / options["limit_vocab_file"])}
    model = ng.Model.load(make(corpus, **options, format="safetensors")[1].path, device="cpu")
    for about, markers in itertools.product(asked, (True, False)):
        lines = unpacked(golden / "inputs" / f"{about}.txt").removesuffix(b"\n").split(b"\n")
        printed = unpacked(golden / "queries" / f"{name}__{about}{'' if markers else '__n'}.txt").decode(
            errors="replace"
        )
        totals = [float(total) for total in re.findall(r"Total: (\S+) OOV", printed)]
        found = model.score(lines, markers, markers)
        np.testing.assert_allclose(found, totals, atol=1e-4)
        [perplexity] = re.findall(r"^Perplexity including OOVs:\t(\S+)$", printed, re.MULTILINE)
        [tokens] = re.findall(r"^Tokens:\t(\d+)$", printed, re.MULTILINE)
        assert 10 ** (-found.sum(dtype=np.float64) / int(tokens)) == pytest.approx(float(perplexity), rel=1e-5)
        if markers:
            assert model.perplexity(lines) == pytest.approx(float(perplexity), rel=1e-5)


def test_there_are_golden_queries(shared_data):
    assert len(golden_queries()) == 14


# Plain Python


def oracle(order, path, *words):
    """Return (log, line of comparison) of the plain implementation in ../shared."""
    if not ORACLE.exists():
        pytest.skip("the folder shared is not beside this checkout")
    command = [sys.executable, str(ORACLE), str(order), str(path), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr, done.stdout


CASES = [  # order, lines, words, options; some orders exceed the longest line
    (1, 30, 9, {}),
    (1, 90, 60, {"prune": [2]}),
    (2, 1, 3, {}),
    (2, 200, 90, {"vocab_pad": 500}),
    (2, 90, 30, {"prune": [2, 2], "interpolate_unigrams": False}),
    (3, 300, 40, {}),
    (3, 300, 40, {"exact_discounts": True}),
    (3, 60, 10, {"prune": [0, 1]}),
    (3, 200, 300, {"prune": [1, 2, 5], "limit": 0.7}),
    (4, 20, 4, {"limit": 0.5, "exact_discounts": True}),
    (4, 120, 300, {"interpolate_unigrams": False, "limit": 0.9}),
    (5, 5, 40, {}),
    (6, 120, 20, {"prune": [0, 0, 1]}),
    (7, 60, 6, {"exact_discounts": True}),
    (8, 2, 5, {}),
    (8, 200, 10, {"prune": [0, 1, 1, 1, 2]}),
]


@pytest.mark.parametrize(("order", "lines", "words", "options"), [*CASES[:8], *slow_cases(*CASES[8:])])
def test_against_plain_python(order, lines, words, options, make, tmp_path):
    """Random text gives the same n-grams, values, discounts and sizes."""
    rng = np.random.default_rng([order, lines, words])
    text = tmp_path / "text"
    text.write_bytes(b"\n".join([*random_lines(rng, lines, words), b"w1 w2", b""]))
    given = dict(options)
    flags = ["--clean-last"] if options.get("exact_discounts") else []
    if "prune" in options:
        flags += ["--prune", *options["prune"]]
    if "vocab_pad" in options:
        flags += ["--vocab-pad", options["vocab_pad"]]
    if options.get("interpolate_unigrams") is False:
        flags += ["--no-interp-uni"]
    if share := given.pop("limit", 0):
        limit = tmp_path / "limit"
        limit.write_text("\n".join(f"w{w}" for w in range(1, words + 9) if rng.random() < share))
        flags, given["limit_vocab_file"] = [*flags, "--limit", limit], str(limit)
    data, result = make(text, order=order, chunk_bytes=500, **given, **FALLBACK)
    (tmp_path / "arpa").write_bytes(data)
    log, compared = oracle(order, text, "--arpa", tmp_path / "arpa", *flags)
    entries, unexpected, missing = map(int, re.findall(r"(?:entries|unexpected|missing) (\d+)", compared))
    [difference] = re.findall(r"max\|diff\| (\S+)", compared)
    assert (entries, unexpected, missing) == (sum(result.statistics.kept.values()), 0, 0)
    assert float(difference) <= 1e-6
    s = result.statistics
    for line, n in zip(log.splitlines(), range(1, order + 1), strict=True):
        found = re.fullmatch(r"order (\d+) n= (\[.*\]) D (\[.*\]) kept (\d+) of (\d+)", line)
        assert json.loads(found[2]) == s.counts_of_counts[n]
        np.testing.assert_allclose(json.loads(found[3]), s.discounts[n], rtol=1e-6)
        assert (int(found[1]), int(found[4]), int(found[5])) == (n, s.kept[n], s.total[n])


def test_the_slip_by_hand(make):
    """Text "a b a b" has the bigrams <s> a, a b, b a, b </s>. Its last suffix is "a b", because b appeared last.

    lmplz then uses raw counts: b has 2 instead of the adjusted 1, and "a b" has 2, as its adjusted count.
    """
    text = b"a b a b\n"
    exact, slipped = (make(text, order=3, exact_discounts=e, **FALLBACK)[1].statistics for e in (True, False))
    # order 1: a after <s> and b, b after a, </s> after b; order 2: "<s> a" with its raw count, "a b" after <s> and b
    assert exact.counts_of_counts == {1: [2, 1, 0, 0], 2: [3, 1, 0, 0], 3: [4, 0, 0, 0]}
    assert slipped.counts_of_counts == {1: [1, 2, 0, 0], 2: [3, 1, 0, 0], 3: [4, 0, 0, 0]}


def test_the_slip_is_of_the_word_that_appeared_last_in_the_last_file(make):
    """The word is q, 3 times, after <s> and q; not c, which is further from the beginning of its file."""
    joined, cut = (
        make(*texts, order=3, **FALLBACK)[1].statistics for texts in ([b"a b c\nq q q\n"], [b"a b c\n", b"q q q\n"])
    )
    assert joined.counts_of_counts[1] == cut.counts_of_counts[1] == [3, 1, 1, 0]  # a, b, c; </s>; q


# No choice of a run changes the model


@pytest.fixture(scope="module")
def whole(text, make):
    """Return the bytes of both formats, made from one chunk."""
    options = {"order": 4, "prune": [0, 0, 1], **FALLBACK}
    return {format: make(text, format=format, **options)[0] for format in ("arpa", "safetensors")}, options


@pytest.mark.parametrize("chunk_bytes", [300, 5000])
@pytest.mark.parametrize("workers", [1, 3])
def test_cuts_change_nothing(workers, chunk_bytes, text, whole, make):
    data, options = whole
    executor = LocalExecutor(workers=workers)
    try:
        for format in data:
            made, _ = make(text, executor=executor, chunk_bytes=chunk_bytes, format=format, **options)
            assert made == data[format]
    finally:
        executor.close()


def test_files_change_nothing(text, whole, make, tmp_path):
    data, options = whole
    cut = [text.index(b"\n", len(text) * part // 3) + 1 for part in (1, 2)]
    pieces = text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]
    assert make(*pieces, **options)[0] == data["arpa"]
    lines = text.decode().splitlines()
    pq.write_table(pa.table({"text": lines}), tmp_path / "rows", row_group_size=50)
    assert make(tmp_path / "rows", **options)[0] == data["arpa"]
    (tmp_path / "text.xz").write_bytes(lzma.compress(text))
    assert make(tmp_path / "text.xz", **options)[0] == data["arpa"]


@pytest.mark.parametrize("shard_tokens", [1 << 20, 500, 30])
def test_parts_change_nothing(shard_tokens, text, whole, make, part_tokens, monkeypatch):
    """Some parts have no n-grams."""
    data, options = whole
    part_tokens(shard_tokens)
    for format in data:
        assert make(text, format=format, **options)[0] == data[format]


@pytest.mark.parametrize(
    "options", [{}, {"prune": [0, 0, 1]}, {"smoothing": "absolute", "prune": [0, 1]}, {"collapse_values": True}]
)
def test_what_lasts_of_the_counts_of_a_part(options, text, make, part_tokens, monkeypatch):
    """It lies in memory of its own: all else of the counts is freed when the values are known."""
    part_tokens(500)
    real, found = tasks.with_names, []

    def with_names(values, counts, how):
        whole = real(values, counts, how)
        taken = {id(array) for array in whole.arrays().values()}
        found.append(({name for name, a in counts.arrays().items() if id(a) in taken}, lasting_arrays(counts, how)))
        return whole

    monkeypatch.setattr(tasks, "with_names", with_names)
    make(text, order=4, **({} if "smoothing" in options else {"discount_fallback": []}), **options)
    assert len(found) > 1 and all(taken == lasting and taken for taken, lasting in found)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_worker_of_a_cpu_makes_a_part(workers, text, whole, make, monkeypatch):
    """The only part of a model is made in another way than several parts."""
    found = []
    for name in "estimate_part", "values_of_part":
        real = getattr(tasks, name)
        monkeypatch.setattr(tasks, name, lambda *a, name=name, real=real: found.append(name) or real(*a))
    executor = LocalExecutor(workers=workers)
    try:
        assert make(text, executor=executor, **whole[1])[0] == whole[0]["arpa"]
    finally:
        executor.close()
    assert found == (["estimate_part"] if workers == 1 else workers * ["values_of_part"])


@pytest.mark.parametrize(
    ("tokens", "workers", "shares"),
    [
        (10**9, 1, (0.55, 0.6)),  # 4 of 20 GB
        (2.2 * 10**9, 1, (0.1, 0.484)),
        (2.2 * 10**9, 2, (0.55, 0.6)),
        (3 * 10**9, 1, (0.1, 0.1)),
    ],
)
def test_what_gpus_keep_of_a_text(tokens, workers, shares):
    """Until words are numbered, and after that; with 4 bytes a token."""
    budgets = estimate_plan.plan_budgets(Budget("gpu", 20 * 10**9, 1 << 40, spills=True), int(tokens), workers)
    assert [budget.kept_device_share() for budget in budgets] == pytest.approx(shares)


@pytest.mark.parametrize(
    ("device", "device_bytes", "workers", "seconds", "said"),
    [
        ("gpu", 200 * 10**9, 1, 1.7, "about 1.7 s at the rates of H200s"),  # one part
        ("gpu", 200 * 10**9, 2, 1.7, "about 1.7 s at the rates of H200s"),  # one GPU makes it
        ("gpu", 125 * 10**9, 1, 2.03, "about 2.0 s at"),  # 6 parts in a group
        ("gpu", 20 * 10**9, 1, 2.21, "about 2.2 s at"),  # 38 parts in 7 groups; 7 passes over tokens on the GPU
        ("cpu", None, 2, 632, "about 632 s at the rates of cores of a Xeon"),  # 240 parts; 8 groups for each thread
    ],
)
def test_a_plan_says_how_long_it_takes(device, device_bytes, workers, seconds, said, tmp_path, capsys):
    """1 G tokens at the rates of the machines where they were measured."""
    with open(tmp_path / "text", "wb") as file:
        file.truncate(int(1e9 * count_plan.BYTES_PER_TOKEN["word"]))
    memory = MemoryConfig(host_bytes=400 * 10**9, device_bytes=device_bytes)
    plan = estimate_plan.plan(
        EstimateConfig([str(tmp_path / "text")], order=5), PlanContext(workers, device, 0, memory=memory)
    )
    assert plan["seconds_about"] == pytest.approx(seconds)
    STAGES["estimate"].show_plan(plan | {"transport": "memory"})  # as the command adds
    assert f"time: {said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "workers", "transport", "million_tokens", "parts", "passes"),
    [
        ("gpu", 4, "ipc", 505, 1, 1),  # 0.8 * 0.9 * 100 GB / 142.4 bytes: up to 505 M tokens on one GPU
        ("gpu", 4, "ipc", 506, 8, 1),  # a group of 2 parts of up to 91 M tokens for each GPU
        ("gpu", 4, "ipc", 1000, 12, 1),  # a group of 3 parts of up to 91 M tokens for each GPU
        ("gpu", 2, "ipc", 2000, 22, 2),
        ("cpu", 1, "memory", 1, 1, 1),
        ("cpu", 2, "memory", 1, 2, 1),
        ("cpu", 2, "tcp", 100, 24, 1),  # up to 4.2 M tokens
    ],
)
def test_a_plan_says_how_many_parts(device, workers, transport, million_tokens, parts, passes, tmp_path):
    with open(tmp_path / "text", "wb") as file:
        file.truncate(int(million_tokens * 1e6 * count_plan.BYTES_PER_TOKEN["word"]))
    memory = MemoryConfig(host_bytes=200 * 10**9)
    context = PlanContext(workers, device, 100 * 10**9, transport, memory, tmp_path)
    plan = estimate_plan.plan(EstimateConfig([str(tmp_path / "text")]), context)
    assert (plan["shards"], plan["passes"]) == (parts, passes)
    assert plan["token_bytes"] == 4 * plan["tokens_about"] == pytest.approx(4e6 * million_tokens)
    assert plan["device_bytes"] + plan["host_bytes"] + plan["spill_bytes"] == plan["token_bytes"]
    kept = 0.6 * workers * 100e9 if device == "gpu" else 0.2 * 200e9  # shares of memory for intermediate results
    assert plan["spill_bytes" if device == "cpu" else "host_bytes"] == max(0, int(plan["token_bytes"] - kept))
    assert bool(plan["device_bytes"]) == (device == "gpu")


def test_memory_changes_nothing(text, whole, make, tmp_path, part_tokens, monkeypatch):
    """Parts are kept in host memory, in files, or in both."""
    data, options = whole
    part_tokens(500)
    in_files, save_entry, room = [], keep.save_entry, random.Random(0)
    monkeypatch.setattr(keep, "save_entry", lambda *a, **o: in_files.append(save_entry(*a, **o)) or in_files[-1])
    memory = MemoryConfig(host_bytes=64 << 20, spill_dir=str(tmp_path / "spill"))
    assert make(text, memory=memory, **options)[0] == data["arpa"] and not in_files
    for fits in (lambda self, nbytes: False), (lambda self, nbytes: room.random() < 0.5):
        monkeypatch.setattr(Budget, "fits_host", fits)
        assert make(text, memory=memory, chunk_bytes=5000, **options)[0] == data["arpa"]
        assert make(text, memory=memory, format="safetensors", **options)[0] == data["safetensors"]
        parts = len(text.split()) // 500
        assert len(in_files) > parts and list((tmp_path / "spill").iterdir()) == []
        in_files.clear()


def test_a_small_budget(make, monkeypatch):
    """Parts that do not fit the least memory are spilled to files, only while they are needed."""
    rng = np.random.default_rng(0)
    lines = rng.zipf(1.2, (30_000, 20)).clip(1, 50_000)
    text = b"".join(b" ".join(b"w%d" % w for w in line) + b"\n" for line in lines.tolist())
    in_files, save_entry = [], keep.save_entry
    monkeypatch.setattr(keep, "save_entry", lambda *a, **o: in_files.append(save_entry(*a, **o)) or in_files[-1])
    options = {"order": 5, "format": "safetensors", **FALLBACK}
    expected, _ = make(text, **options)
    assert not in_files
    found, _ = make(text, memory=MemoryConfig(host_bytes=64 << 20), **options)
    assert found == expected and in_files and not any(map(os.path.exists, in_files))


def test_results_in_host_memory_are_counted(text, whole, make, part_tokens, monkeypatch):
    sizes, hold = [], keep.hold
    monkeypatch.setattr(keep, "hold", lambda held: sizes.append(held.host_bytes) or hold(held))
    part_tokens(1 << 20)
    monkeypatch.setattr(estimate_plan, "_least_parts", lambda executor: 2)
    make(text, **whole[1])
    # Streams, vocabulary and run of the only chunk; lexicon and numbered vocabulary; the counts, totals and values of
    # two parts, the values with their names, and two stretches, before and after linking. Some have 100 rows or more,
    # of 2 numbers of 8 bytes.
    assert len(sizes) == 17 and min(sizes) > 16 * 100


def estimated_by_hand():
    """Return a part of order 2 over <unk>, <s>, </s> and a, in 3 bits: "<s> a" and "a </s>"."""
    values = np.array([-0.5, -0.25], np.float32)
    contexts = Contexts(np.array([[2 << 61, 4 << 61]], np.uint64), 2 * values, np.array([0, 1, 2], np.uint32))
    return Estimated({2: values}, {2: np.array([3, 2], np.uint32)}, {1: contexts}, {"adjust": 1.0})


def test_spilled_results_use_no_host_memory(tmp_path):
    there = estimated_by_hand()
    kept = keep.spill(there, Budget("cpu", 0, 0), str(tmp_path))
    assert names(tmp_path) == [] and kept.seconds == there.seconds
    for name, array in there.arrays().items():
        assert kept.arrays()[name].tolist() == array.tolist()
        assert isinstance(kept.arrays()[name].base, np.memmap) or kept.arrays()[name] is not array


def test_a_device_without_room_for_the_model(monkeypatch):
    """It is tried once more without gaps in memory; then assembled in host memory from the same parts, or in
    stretches.
    """
    parts, devices, assemble, freed = [estimated_by_hand()], [], estimate_model.assemble, []

    def full_twice(unigrams, parts, *more):
        devices.append(len(parts[0].probabilities))
        trie = assemble(unigrams, parts, *more)
        if len(devices) < 3:
            raise MemoryError
        return trie

    monkeypatch.setattr(estimate_model, "assemble", full_twice)
    monkeypatch.setattr(estimate_model, "return_unused_memory", lambda: freed.append(len(devices)))
    monkeypatch.setattr(estimate_model, "move_to", lambda array, device: array)
    monkeypatch.setattr(estimate_model, "result_to_device", lambda part, device: part.with_arrays(part.arrays()))
    monkeypatch.setattr(estimate_model, "Stopwatch", lambda device: Stopwatch("cpu"))
    words = Words.of(["<unk>", "<s>", "</s>", "a"])
    unigrams = Unigrams(np.array([0.1, 1, 0.4, 0.5], np.float32), np.ones(4, bool))
    assert estimate_model.finish(parts, unigrams, words, 3, False, (), "gpu", False) is None
    devices.clear()
    made = estimate_model.finish(parts, unigrams, words, 3, False, (), "gpu", True)
    assert devices == [1, 1, 1] and freed == [1, 1] and made.trie.starts == (0, 4, 6)
    assert np.abs(made.trie.prob_G[4:]).tolist() == [0.5, 0.25]
    assert made.trie.backoff_M.tolist() == [0, -1, 0, -0.5]
    with pytest.raises(MemoryError):
        devices.clear()
        estimate_model.finish(parts, unigrams, words, 3, False, (), "cpu", True)


@pytest.mark.parametrize("options", [{}, {"prune": [0, 1, 1]}, {"vocab_pad": 9000}])
def test_sentences_in_another_order(options, text, make):
    """The n-grams and values are the same, bit for bit; only the slip of lmplz depends on the order."""
    lines = text.splitlines()
    random.Random(3).shuffle(lines)
    options = {"order": 3, "exact_discounts": True, **options, **FALLBACK}
    one, other = make(text, **options)[0], make(b"\n".join(lines) + b"\n", **options)[0]
    assert arpa_values(one) == arpa_values(other)


@pytest.mark.parametrize(
    "options", [{}, {"prune": [0, 1, 2]}, {"prune": [3]}, {"interpolate_unigrams": False}, {"limit": True}]
)
def test_rows_sum_to_one(options, text, make, tmp_path):
    """After every history of the model, and after other histories."""
    if options.pop("limit", False):
        (tmp_path / "limit").write_text(" ".join(f"w{w}" for w in range(1, 30, 2)))
        options["limit_vocab_file"] = str(tmp_path / "limit")
    _, result = make(text, order=3, format="safetensors", **options, **FALLBACK)
    model = ng.Model.load(result.path, device="cpu")
    histories = [
        b" ".join(g) for g in {tuple(line.split()[i : i + 2]) for line in text.splitlines()[:300] for i in (0, 3)}
    ]
    rows = model.distribution([*histories, b"zzz w1", b"w3 zzz", b""])
    start = model.vocabulary.id("<s>")
    np.testing.assert_allclose(np.delete(rows, start, axis=2).sum(axis=2), 1, atol=3e-6)


# On a cluster


@pytest.fixture(scope="module")
def on_cluster(corpus, tmp_path_factory):
    """Return the options of runs on a cluster, and the expected files."""
    options = {"order": 4, "chunk_bytes": 20_000, "format": "safetensors", **FALLBACK}
    executor = LocalExecutor(workers=1)
    try:
        path = tmp_path_factory.mktemp("whole") / "model"
        run(
            EstimateConfig([str(c) for c in corpus], **{**options, "chunk_bytes": 1 << 30}),
            RunContext(executor, path, single_file=True),
        )
    finally:
        executor.close()
    return EstimateConfig([str(c) for c in corpus], **options), path.read_bytes()


@pytest.fixture
def many_parts(part_tokens, monkeypatch):
    """Several parts, and a pass over the tokens for one part of each worker."""
    part_tokens(10_000)
    monkeypatch.setattr(estimate, "most_in_group", lambda *_: 1)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("workers", first_fast([2, 1]))
def test_workers_change_nothing(workers, start, cluster, on_cluster, hooks, tmp_path):
    config, data = on_cluster
    executor = cluster if workers == 2 else start(1)
    result = run(config, RunContext(executor, tmp_path / "model", single_file=True))
    assert result.path.read_bytes() == data and result.workers == workers
    assert names(tmp_path) == ["model"]


@pytest.mark.gpu
def test_a_gpu_makes_the_same_model(on_cluster, tmp_path):
    config, data = on_cluster
    executor = LocalExecutor("gpu", 1)
    try:
        assert run(config, RunContext(executor, tmp_path / "model", single_file=True)).path.read_bytes() == data
    finally:
        executor.close()


@pytest.mark.multigpu
def test_several_gpus(several_gpus, on_cluster, many_parts, tmp_path):
    config, data = on_cluster
    assert run(config, RunContext(several_gpus, tmp_path / "model", single_file=True)).path.read_bytes() == data


def test_the_file_of_a_killed_run_is_removed(on_cluster, here, tmp_path):
    config, data = on_cluster
    for name in ".model.0123abcd.tmp", ".model2.0123abcd.tmp", ".model.tmp":
        (tmp_path / name).write_bytes(b"half")
    assert run(config, RunContext(here, tmp_path / "model", single_file=True)).path.read_bytes() == data
    assert names(tmp_path) == [".model.tmp", ".model2.0123abcd.tmp", "model"]


@pytest.mark.slow
def test_more_stretches_than_the_window_holds(cluster, on_cluster, many_parts, tmp_path, monkeypatch):
    config, data = on_cluster
    windows, stretches, real = [], [], estimate_model.windowed

    def watched(executor, calls, window, done):
        windows.append(window)
        real(executor, (stretches.append(1) or handle for handle in calls), window, done)

    monkeypatch.setattr(estimate_model, "windowed", watched)
    monkeypatch.setattr(estimate_model, "STRETCH_COPIES", 1 << 40)
    assert run(config, RunContext(cluster, tmp_path / "model", single_file=True)).path.read_bytes() == data
    assert windows == [4] and 4 < len(stretches) <= estimate_model.MAX_STRETCHES


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_in_every_task(when, cluster, on_cluster, many_parts, hooks, hooks_folder, tmp_path, wait_for_workers):
    """Up to three deaths may meet one task that makes parts; Dask gives up a task after four."""
    config, data = on_cluster
    tasks = [
        "select_keys",
        "take_keys",
        "adjust_parts",
        "estimate_one",
        "make_stretch",
        "link_stretch",
        "join",
        "save",
    ]
    hooks(**{f"{task}.{when}": "" for task in tasks if (task, when) != ("save", "after")})
    result = run(config, RunContext(cluster, tmp_path / "model", single_file=True, checkpoint_seconds=0))
    assert names(hooks_folder) == ["shard_tokens"], "a worker died in every task"
    assert result.path.read_bytes() == data and names(tmp_path) == ["model"]
    wait_for_workers(cluster.client, 2)


class AfterParts(Progress):
    """Call `act` once, when some parts are made."""

    def __init__(self, parts, act):
        self.phase, self.left, self.act = "", parts, act

    def start(self, phase, total, unit="", rate=""):
        self.phase = phase
        if phase == "adjust":
            self.total = total

    def advance(self, done, amount=0):
        if self.phase == "adjust" and self.left > 0:
            self.left -= done
            if self.left <= 0:
                self.act()


@pytest.mark.parametrize("task", first_fast(["adjust_parts.after", "select_keys.before", "take_keys.before"]))
def test_a_death_in_a_later_pass(
    task, cluster, on_cluster, many_parts, part_tokens, hooks, hooks_folder, tmp_path, wait_for_workers
):
    """The windows of earlier passes are freed, so Dask cannot make the parts again that the worker held. The run makes
    them; nothing was saved so soon.
    """
    part_tokens(5000)
    config, data = on_cluster
    progress = AfterParts(9, lambda: hooks(**{task: ""}))
    with pytest.warns(InputWarning, match="lost with its results; the run goes on from its checkpoint, which has 0 e"):
        result = run(config, RunContext(cluster, tmp_path / "model", single_file=True, progress=progress))
    assert progress.total == 14 and progress.left <= 0 and names(hooks_folder) == ["shard_tokens"], "a worker died"
    assert result.path.read_bytes() == data and names(tmp_path) == ["model"]
    wait_for_workers(cluster.client, 2)


class Phases(Progress):
    def __init__(self):
        self.phase, self.seen = "", []

    def start(self, phase, total, unit="", rate=""):
        self.phase = phase
        self.seen.append(phase)

    def finish(self):
        self.start("write", 1)


@pytest.mark.slow
def test_kills_at_random(cluster, on_cluster, many_parts, hooks, tmp_path, wait_for_workers):
    """Workers die after counting; some die as soon as they have restarted."""
    config, data = on_cluster
    slow = {"adjust_parts": 0.2, "estimate_one": 0.2, "make_stretch": 0.3, "join": 0.3, "save": 0.6}
    hooks(**{f"{task}.slow": seconds for task, seconds in slow.items()})
    choose, over, progress, killed = random.Random(2), threading.Event(), Phases(), dict.fromkeys(
        ("adjust", "estimate", "assemble", "write"), 0
    )  # fmt: skip

    def kill_now_and_then():
        while not over.wait(choose.uniform(0.05, 0.3)):
            if killed.get(progress.phase, 9) < 2:
                nannies = list(cluster.client.cluster.workers.values())
                with suppress(ProcessLookupError, TypeError):  # it has not restarted yet
                    os.kill(choose.choice(nannies).pid, signal.SIGKILL)
                    killed[progress.phase] += 1

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        result = run(
            config,
            RunContext(
                cluster, tmp_path / "model", single_file=True, progress=progress or Progress(), checkpoint_seconds=0
            ),
        )
    finally:
        over.set()
        killer.join()
    assert min(killed.values()) >= 1
    assert result.path.read_bytes() == data and names(tmp_path) == ["model"]
    wait_for_workers(cluster.client, 2)


# Early ends

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import task_hooks
from mgpu_ngram.cluster.dask import start_cluster
from mgpu_ngram.cluster.devices import visible_gpus
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate.run import EstimateConfig, run
config = EstimateConfig(sys.argv[3:], order=4, chunk_bytes=20000, discount_fallback=[])
run(config, RunContext(LocalExecutor(workers=2), sys.argv[2], single_file=True, checkpoint_seconds=0))
"""


def stored(folder):
    """Return the number of saved vocabularies."""
    return len(list(folder.glob("model.checkpoint/entries-*/vocabulary_*.safetensors")))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_driver_is_killed_while_it_counts(workers, corpus, on_cluster, hooks, tmp_path):
    """Another process resumes, with more or fewer workers and other parts."""
    config, data = on_cluster
    hooks(**{"text_ids.slow": 0.15})
    command = [sys.executable, "-c", DRIVER, str(HOOKS.parent), str(tmp_path / "model"), *config.corpus]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: stored(tmp_path) >= 3 or process.poll() is not None)
        assert process.poll() is None and stored(tmp_path) >= 3, process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert names(tmp_path) == ["model.checkpoint"]
    executor = LocalExecutor(workers=workers)
    try:
        with pytest.raises(InputError, match="holds an unfinished run of .* add --resume"):
            run(config, RunContext(executor, tmp_path / "model", single_file=True))
        result = run(config, RunContext(executor, tmp_path / "model", single_file=True, resume=True))
    finally:
        executor.close()
    assert result.resumed_chunks >= 3 and result.path.read_bytes() == data and names(tmp_path) == ["model"]


class Interrupt(Progress):
    def __init__(self, wanted):
        self.wanted = wanted

    def start(self, phase, total, unit="", rate=""):
        if phase == self.wanted:
            raise KeyboardInterrupt


def unfinished(config, here, folder, phase="adjust"):
    with pytest.raises(KeyboardInterrupt):
        run(
            config,
            RunContext(here, folder / "model", single_file=True, progress=Interrupt(phase), checkpoint_seconds=0),
        )
    assert names(folder) == ["model.checkpoint"] and stored(folder) > 0


@pytest.mark.parametrize("phase", ["adjust", "estimate", "assemble"])
def test_interrupted(phase, on_cluster, here, tmp_path, monkeypatch):
    """The run resumes with more memory."""
    config, data = on_cluster
    with monkeypatch.context() as patch:
        for name in "_part_tokens", "_lone_part_tokens":
            patch.setattr(estimate_plan, name, lambda *_: 10_000)
        unfinished(config, here, tmp_path, phase)
    result = run(config, RunContext(here, tmp_path / "model", single_file=True, resume=True))
    assert result.resumed_chunks > 0 and (result.resumed_parts > 1) == (phase != "adjust")
    assert result.path.read_bytes() == data and names(tmp_path) == ["model"]


@pytest.mark.parametrize("workers", [1, 3])
def test_sums_of_parts_are_resumed(workers, on_cluster, here, tmp_path, monkeypatch):
    """An interrupt after two groups of parts; the rest is made in other groups, by another number of workers."""
    config, data = on_cluster
    monkeypatch.setattr(estimate, "most_in_group", lambda *_: 2)
    with monkeypatch.context() as patch:
        for name in "_part_tokens", "_lone_part_tokens":
            patch.setattr(estimate_plan, name, lambda *_: 10_000)
        progress = interrupt.Interrupt("adjust", 5, pause=0.3)
        with pytest.raises(KeyboardInterrupt):
            run(
                config,
                RunContext(here, tmp_path / "model", single_file=True, progress=progress, checkpoint_seconds=0),
            )
    entries = [read_entry(str(path)).items for path in sums_of(tmp_path)]
    summed, real = [], tasks.adjust_parts
    executor = LocalExecutor(workers=workers)
    monkeypatch.setattr(text_parts, "adjust_parts", lambda *a: summed.append(a[3]) or real(*a))
    try:
        result = run(config, RunContext(executor, tmp_path / "model", single_file=True, resume=True))
    finally:
        executor.close()
    assert result.path.read_bytes() == data and names(tmp_path) == ["model"]
    again, saved = {s for shards in summed for s in shards}, {s for items in entries for s in items}
    assert len(saved) > 1 and not again & saved and sorted(again | saved) == list(range(len(again | saved)))


def sums_of(folder):
    return folder.glob("model.checkpoint/entries-*/counted_*.safetensors")


def test_parts_of_other_settings_are_made_again(on_cluster, here, tmp_path, monkeypatch):
    """Saved parts depend on thresholds, saved words do not."""
    config, _ = on_cluster
    with monkeypatch.context() as patch:
        for name in "_part_tokens", "_lone_part_tokens":
            patch.setattr(estimate_plan, name, lambda *_: 10_000)
        unfinished(config, here, tmp_path, "assemble")
    pruned = replace(config, prune=[0, 1])
    result = run(pruned, RunContext(here, tmp_path / "model", single_file=True, resume=True))
    assert result.resumed_chunks > 0 and result.resumed_parts == 0
    expected = run(pruned, RunContext(here, tmp_path / "alone", single_file=True)).path.read_bytes()
    assert result.path.read_bytes() == expected


def test_discounts_that_cannot_be_computed_need_no_second_count(here, text, tmp_path):
    """Settings that do not affect the counts may change."""
    (tmp_path / "text").write_bytes(text)
    config = EstimateConfig([str(tmp_path / "text")], order=8, chunk_bytes=1000)
    for _ in range(2):
        with pytest.raises(InputError, match="--discount-fallback"):
            run(
                config,
                RunContext(
                    here, tmp_path / "model", single_file=True, checkpoint_seconds=0, resume=stored(tmp_path) > 0
                ),
            )
        assert names(tmp_path) == ["model.checkpoint", "text"]
    more = {"format": "arpa", "prune": [0, 1], **FALLBACK}
    config = EstimateConfig(config.corpus, order=8, chunk_bytes=1000, **more)
    result = run(config, RunContext(here, tmp_path / "model", single_file=True, resume=True))
    assert result.resumed_chunks > 1 and names(tmp_path) == ["model", "text"]
    assert result.statistics == run(config, RunContext(here, tmp_path / "again", single_file=True)).statistics
    assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": 2}, "settings.order was 3, is 2"),
        ({"skip_symbols": True}, "settings.skip_symbols was false, is true"),
        ({"unit": "id"}, 'settings.unit was "word", is "id"'),
    ],
)
def test_other_settings_are_not_resumed(changes, message, here, text, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "one").write_bytes(text)
    (tmp_path / "out").mkdir()
    corpus = [str(tmp_path / "text" / "one")]
    unfinished(EstimateConfig(corpus, order=3, chunk_bytes=1000), here, tmp_path / "out")
    with pytest.raises(InputError, match=re.escape(message)):
        run(
            EstimateConfig(corpus, **{"order": 3, **changes}),
            RunContext(here, tmp_path / "out" / "model", single_file=True, resume=True),
        )
    (tmp_path / "text" / "one").write_bytes(text + b"a\n")
    with pytest.raises(InputError, match=r"the corpus changed: corpus.inputs.0.size_bytes"):
        run(
            EstimateConfig(corpus, order=3), RunContext(here, tmp_path / "out" / "model", single_file=True, resume=True)
        )


@pytest.mark.parametrize("format", ["arpa", "safetensors"])
def test_a_full_disk(format, on_cluster, here, full_disk, tmp_path, monkeypatch):
    config, data = on_cluster
    config = EstimateConfig(config.corpus, order=4, chunk_bytes=20_000, format=format, **FALLBACK)
    with monkeypatch.context() as patch:
        full_disk(room=3000, of=".model.")
        message = r"^cannot write \S+/model after [\d,]+ bytes: No space left on device; free space there or give .*$"
        with pytest.raises(RunError, match=message) as error:
            run(config, RunContext(here, tmp_path / "model", single_file=True, checkpoint_seconds=0))
        assert "\n" not in str(error.value)
        assert names(tmp_path) == ["model.checkpoint"]
        patch.undo()
    full_disk(room=1 << 30, of=".model.")
    result = run(config, RunContext(here, tmp_path / "model", single_file=True, resume=True))
    assert result.resumed_chunks > 0 and names(tmp_path) == ["model"]
    assert format == "arpa" or result.path.read_bytes() == data


def test_a_full_disk_of_spilled_parts(here, text, full_disk, tmp_path, part_tokens, monkeypatch):
    (tmp_path / "text").write_bytes(text)
    phases = []

    class Note(Progress):
        def start(self, phase, *more):
            phases.append(phase)

    monkeypatch.setattr(Budget, "fits_host", lambda self, nbytes: "adjust" not in phases)
    part_tokens(500)
    memory = MemoryConfig(spill_dir=str(tmp_path / "spill"))
    config, output = EstimateConfig([str(tmp_path / "text")], order=3), tmp_path / "model"
    full_disk(of="waiting-")
    message = r"^cannot write \S+/spill/\S+/waiting-\w+.safetensors after 0 bytes: No space left on device; free space"
    with pytest.raises(RunError, match=message):
        run(config, RunContext(here, output, True, progress=Note(), memory=memory, checkpoint_seconds=0))
    full_disk(room=1 << 30)
    # The counts are kept.
    result = run(config, RunContext(here, output, single_file=True, memory=memory or MemoryConfig(), resume=True))
    assert result.resumed_chunks > 0 and result.tokens == len(text.split())
    assert names(tmp_path) == ["model", "spill", "text"] and names(tmp_path / "spill") == []


# Outputs


@pytest.mark.parametrize("format", ["arpa", "safetensors"])
def test_overwritten_outputs(format, here, text, tmp_path):
    """A model of the same format is overwritten; other files are refused."""
    (tmp_path / "text").write_bytes(text)
    config = EstimateConfig([str(tmp_path / "text")], order=2, format=format)
    path = run(config, RunContext(here, tmp_path / "new" / "model", single_file=True)).path
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"^output .*model exists; add --overwrite"):
        run(config, RunContext(here, path, single_file=True))
    other = EstimateConfig(config.corpus, order=3, format=format)
    assert run(other, RunContext(here, path, single_file=True, overwrite=True)).path.read_bytes() != before
    for foreign in (b"", b"text\n", text):
        path.write_bytes(foreign)
        with pytest.raises(InputError, match="exists and is not (an ARPA|a model) file; delete it"):
            run(config, RunContext(here, path, single_file=True, overwrite=True))
        assert path.read_bytes() == foreign
    with pytest.raises(InputError, match="is not (an ARPA|a model) file"):
        run(config, RunContext(here, tmp_path / "new", single_file=True, overwrite=True))
    with pytest.raises(InputError, match="is not a local path"):
        run(config, RunContext(here, "s3://bucket/model", single_file=True))
    assert names(path.parent) == ["model"]


def test_one_format_does_not_overwrite_the_other(here, text, tmp_path):
    (tmp_path / "text").write_bytes(text)
    for format, other in itertools.permutations(("arpa", "safetensors")):
        path = tmp_path / format
        run(EstimateConfig([str(tmp_path / "text")], order=2, format=format), RunContext(here, path, single_file=True))
        with pytest.raises(InputError, match="exists and is not "):
            run(
                EstimateConfig([str(tmp_path / "text")], order=2, format=other),
                RunContext(here, path, single_file=True, overwrite=True),
            )


@pytest.mark.parametrize("format", ["arpa", "safetensors"])
def test_as_a_job(format, here, text, make, tmp_path):
    """A folder with the model and a manifest; the model in memory is the same."""
    (tmp_path / "text").write_bytes(text)
    config = EstimateConfig([str(tmp_path / "text")], order=3, format=format, prune=[0, 1])
    result = run(config, RunContext(here, tmp_path / "out"))
    name = {"arpa": "model.arpa", "safetensors": "model.safetensors"}[format]
    assert result.path == tmp_path / "out" / name and names(tmp_path / "out") == ["manifest.json", name]
    assert names(tmp_path) == ["out", "text"]
    assert result.path.read_bytes() == make(tmp_path / "text", order=3, format=format, prune=[0, 1])[0]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["statistics"]["kept"] == {str(n): kept for n, kept in result.statistics.kept.items()}
    assert (manifest["order"], manifest["tokens"]) == (3, len(text.split()))
    assert manifest["fingerprint"] == result.fingerprint and bool(result.fingerprint) == (format == "safetensors")
    assert not changed_since(
        EstimateConfig(config.corpus, order=3, format=format, prune=[0, 1], chunk_bytes=9), manifest
    )
    assert changed_since(EstimateConfig(config.corpus, order=3, format=format, prune=[0, 2]), manifest)
    assert json.loads(json.dumps(result.as_json()))["tokens_per_second"] > 0
    with pytest.raises(InputError, match="exists; add --overwrite"):
        run(config, RunContext(here, tmp_path / "out"))
    run(config, RunContext(here, tmp_path / "out", overwrite=True))
    (tmp_path / "spill").mkdir()
    model = run_to_model(config, RunContext(here, tmp_path / "spill"))
    if format == "safetensors":
        assert model.fingerprint == result.fingerprint
    assert names(tmp_path) == ["out", "spill", "text"] and names(tmp_path / "spill") == []


def test_a_changed_vocabulary_limit_gives_another_model(here, text, tmp_path):
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "limit").write_text("w1 w2")
    config = EstimateConfig([str(tmp_path / "text")], order=2, limit_vocab_file=str(tmp_path / "limit"))
    run(config, RunContext(here, tmp_path / "out"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert not changed_since(config, manifest)
    (tmp_path / "limit").write_text("w1 w2 w3")
    assert changed_since(config, manifest)


def test_a_header(text, make, tmp_path):
    """lmplz's header precedes the same model."""
    (tmp_path / "text").write_bytes(text)
    plain, head = (make(tmp_path / "text", order=2, verbose_header=v)[0] for v in (False, True))
    tokens = len(text.split())
    comments = f"# Input file: {tmp_path / 'text'}\n# Token count: {tokens}\n# Smoothing: Modified Kneser-Ney\n"
    assert head == comments.encode() + plain


@pytest.mark.parametrize(("order", "copies", "told"), [(2, 3, 1), (4, 3, 2), (2, 10**9, 1), (4, 10**9, 2)])
def test_phases(order, copies, told, text, here, tmp_path, part_tokens, monkeypatch):
    """Each phase reports as many units as it finishes. A model with suffixes reports each stretch twice: when it is
    made, and when it has its suffixes.
    """
    (tmp_path / "text").write_bytes(text)
    part_tokens(500)
    monkeypatch.setattr(estimate_model, "STRETCH_COPIES", copies)
    cut, cuts = estimate_model.cut_words, []
    monkeypatch.setattr(estimate_model, "cut_words", lambda *a: cuts.append(cut(*a)) or cuts[-1])

    class Units(Progress):
        def __init__(self):
            self.all = []

        def start(self, phase, total, unit="", rate=""):
            self.all.append([phase, total, 0])

        def advance(self, done, amount=0):
            self.all[-1][2] += done

    units = Units()
    result = run(
        EstimateConfig([str(tmp_path / "text")], order=order),
        RunContext(here, tmp_path / "out", single_file=True, progress=units or Progress()),
    )
    assert [u[0] for u in units.all] == ["tokenise", "count", "adjust", "estimate", "assemble"]
    assert all(total == done > 0 for _, total, done in units.all)
    [stretches] = map(len, cuts)
    assert stretches == 2 if copies == 3 else stretches > 4
    assert units.all[-1][1] == told * stretches + 1
    assert {"tokenise", "adjust", "estimate", "assemble", "write"} <= result.seconds.keys()


# Texts at the limits


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (b"a b\r\na\r\n", b"a b\na\n"),
        (b" a \t b\0\na\n", b"a b\na\n"),
        (b"a b\na\n \t ", b"a b\na\n"),
        (b"\n\na\n\n", b"\n\na\n \n"),
    ],
)
def test_repeated_texts(text, same, make):
    options = {"order": 3, **FALLBACK}
    assert make(text, **options)[0] == make(same, **options)[0]


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_one_word(order, make):
    """Text "a": each n-gram of <s> a </s> occurs once.

    By hand, D1 = 0.5: each of two words keeps half of 0.5 and gets a third of the other 0.5, which <unk> shares.
    """
    data, result = make(b"a\n", order=order, **FALLBACK)
    values = {g: tuple(map(float, v)) for g, v in arpa_values(data).items()}
    one, gram = 0.25 + 0.5 / 3, -0.30103 if order > 1 else 0
    assert values[b"<unk>"] == pytest.approx((np.log10(0.5 / 3), 0))
    assert values[b"a"] == pytest.approx((np.log10(one), gram), abs=1e-6)
    assert values[b"</s>"] == pytest.approx((np.log10(one), 0), abs=1e-6)
    assert values[b"<s>"] == pytest.approx((0, gram), abs=1e-6)
    if order > 1:
        two = 0.5 + 0.5 * one
        assert values[b"a </s>"] == pytest.approx((np.log10(two), 0), abs=1e-6)
    if order > 2:
        assert values[b"<s> a </s>"] == pytest.approx((np.log10(0.5 + 0.5 * two), 0), abs=1e-6)
    assert result.statistics.total == {1: 4} | {n: max(0, 4 - n) for n in range(2, order + 1)}
    assert (result.tokens, result.types, result.order) == (1, 4, order)


def test_a_last_line_without_newline(make):
    """Its words count, but not the n-grams that would follow: nothing follows "a b"."""
    values = arpa_values(make(b"a b\nc a b", order=3, **FALLBACK)[0])
    assert {b"c a b", b"<s> c a", b"a b </s>"} <= values.keys()
    assert values[b"c a"][1] != b"0" and values[b"<s> c"][1] != b"0"
    unended = arpa_values(make(b"a\nb", order=2, **FALLBACK)[0])
    assert b"b </s>" not in unended and unended[b"b"][1] == b"0"


def test_blank_lines_are_sentences(make):
    values = arpa_values(make(b"\n\n\n", order=2, **FALLBACK)[0])
    assert set(values) == {b"<unk>", b"<s>", b"</s>", b"<s> </s>"}


@pytest.mark.parametrize("text", [b"", b" ", b"\t \r"])
def test_an_empty_text_is_refused(text, here, tmp_path):
    (tmp_path / "text").write_bytes(text)
    with pytest.raises(InputError, match="^the text is empty; .*one sentence per line$"):
        run(EstimateConfig([str(tmp_path / "text")], order=2), RunContext(here, tmp_path / "model", single_file=True))
    assert names(tmp_path) == ["text"]


def test_special_words(make):
    for word in (b"<s>", b"</s>", b"<unk>"):
        with pytest.raises(InputError, match=f"^{word.decode()} stands in .*text0' at byte 2,.*--skip-symbols"):
            make(b"a " + word + b" b\n", order=2, **FALLBACK)
    skipped = make(b"a <unk> b\n<s> </s>a </s>\n", order=2, skip_symbols=True, **FALLBACK)[0]
    assert skipped == make(b"a b\n</s>a\n", order=2, **FALLBACK)[0]


def test_token_ids(make, tmp_path):
    """They are words, in decimal notation."""
    ids = np.random.default_rng(0).zipf(1.6, 900).clip(1, 50).astype("<u2")
    ids[::9] = 0
    ids.tofile(tmp_path / "ids")
    text = " ".join(map(str, ids.tolist())).replace(" 0 ", "\n").replace("0 ", "\n", 1)
    options = {"order": 3, **FALLBACK}
    data, _ = make(tmp_path / "ids", unit="id", separator_id=0, exact_discounts=True, **options)
    assert_same_model(data, make(text.encode(), exact_discounts=True, **options)[0])


def test_pruned_words(text, make):
    """Words get other ids; scores match the ARPA file, where a pruned word is <unk>."""
    data, result = make(text, order=3, prune=[2, 2, 3])
    values, kept = arpa_values(data), result.statistics.kept[1]
    assert 3 < kept < result.statistics.total[1] == result.types
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    assert {g for g in values if b" " not in g} == {w for w, c in counts.items() if c > 2} | {b"<unk>", b"<s>", b"</s>"}
    model = ng.Model.load(make(text, order=3, prune=[2, 2, 3], format="safetensors")[1].path, device="cpu")
    for line in text.splitlines()[:200]:
        assert model.score(line) == pytest.approx(walk(values, line), abs=1e-4)


def walk(values, line):
    """Return the log10 probability of a sentence by an ARPA file, in plain Python."""
    words = [b"<s>", *(w if w in values else b"<unk>" for w in line.split()), b"</s>"]
    total = 0.0
    for i in range(1, len(words)):
        history = words[max(0, i - 2) : i]
        while b" ".join([*history, words[i]]) not in values:
            total += float(values.get(b" ".join(history), (0, 0))[1])
            history = history[1:]
        total += float(values[b" ".join([*history, words[i]])][0])
    return total


@pytest.mark.parametrize("options", [{}, {"prune": [0, 1, 2]}, {"prune": [2]}])
def test_collapsed_values_add_up_to_scores(options, text, make):
    """The value of the longest match of each word: their sum is the sentence's probability."""
    options = {"order": 3, **options}
    values, collapsed = (arpa_values(make(text, collapse_values=collapse, **options)[0]) for collapse in (False, True))
    assert collapsed.keys() == values.keys()
    assert {float(backoff) for _, backoff in collapsed.values()} == {0.0}
    for line in [*text.splitlines()[:200], b"zzz w1 w2 w1 zzz", b"w9 w8 w7 w6 w5 w4 w3"]:
        # nothing follows </s>, so its backoffs are 0; those of <s> come first
        assert walk(collapsed, line) + float(values[b"<s>"][1]) == pytest.approx(walk(values, line), abs=1e-4)


def test_zero_probabilities_are_written_as_by_lmplz(make):
    """D3+ is 3 where no count is 4: a word of count 3 has no mass, and gets no share of the uniform distribution."""
    text = b"a b c\na d c\ne a\nf a c g\n"
    data, result = make(text, order=2, exact_discounts=True, interpolate_unigrams=False, discount_fallback=[1, 2, 3])
    values = arpa_values(data)
    assert values[b"<s>"][0] == b"0"
    assert result.statistics.fallback == [1, 2] and {values[w][0] for w in (b"b", b"a", b"c", b"g")} == {b"-inf"}
    assert float(values[b"<unk>"][0]) == 0


def test_a_zero_backoff_is_a_number(make):
    """Readers accept it; lmplz writes -inf."""
    path = make(b"a b c\na c\n", order=2, discount_fallback=[0])[1].path
    backoffs = {float(v[1]) for g, v in arpa_values(path.read_bytes()).items() if b" " not in g}
    assert max(b for b in backoffs if b) < -37 and min(backoffs) > -99
    model = ng.Model.load(path, device="cpu")
    assert model.score("a b c") == pytest.approx(np.log10(0.5), abs=1e-6)  # every bigram except a b is certain


@pytest.mark.parametrize("order", [2, 3])
def test_the_end_of_a_sentence_is_never_pruned(order, make):
    """By hand: a, b and c are pruned with their counts, 4 of 5 bigrams; </s> keeps its count less D1 = 0.5."""
    values = arpa_values(make(b"a b\nc b\n", order=order, prune=[5], **FALLBACK)[0])
    assert values.keys() == {b"<unk>", b"<s>", b"</s>"}
    gamma = (4 + 0.5) / 5
    assert 10 ** float(values[b"</s>"][0]) == pytest.approx((1 - 0.5) / 5 + gamma / 2)
    assert 10 ** float(values[b"<unk>"][0]) == pytest.approx(gamma / 2)


# Settings and discounts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"counts": "counts"}, "both corpus and counts are given; give one of them"),
        ({"corpus": []}, "neither corpus nor counts is given; give one of them"),
        ({"order": 0}, "order is 0 but must be from 1 to 1000"),
        ({"prune": [0, 2, 1]}, "prune is [0, 2, 1] but thresholds must be 0 or more and must not fall"),
        ({"prune": [-1]}, "prune is [-1] but thresholds must be 0 or more"),
        ({"order": 2, "prune": [0, 0, 1]}, "prune has 3 thresholds for 2 orders"),
        ({"vocab_pad": -1}, "vocab_pad is -1 but must be at least 0"),
        ({"vocab_pad": 9, "interpolate_unigrams": False}, "vocab_pad needs interpolate_unigrams"),
        ({"separator_id": 3}, "separator_id needs unit id"),
        ({"unit": "id", "separator_id": 65536}, "separator_id is 65536 but ids of uint16 are 0 to 65535"),
        ({"discount_fallback": [0.5, 1, 1.5, 2]}, "discount_fallback has 4 values but there are only 3 discounts"),
        ({"discount_fallback": [1.5]}, "discount_fallback has 1.5 for count 1 but it must be from 0 to 1"),
        ({"discount_fallback": [0, 2.5]}, "discount_fallback has 2.5 for count 2 but it must be from 0 to 2"),
        ({"discount_fallback": [0, 0, 3.01]}, "discount_fallback has 3.01 for count 3 but it must be from 0 to 3"),
        ({"discount_fallback": [-0.1]}, "discount_fallback has -0.1 for count 1"),
        ({"verbose_header": True}, "verbose_header needs format arpa"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0 but must be at least 1"),
        ({"name": "a/b"}, "name"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(InputError, match=re.escape(message)) as error:
        EstimateConfig(**{"corpus": ["text"], **settings})
    assert "\n" not in str(error.value)


def test_settings_at_their_limits():
    EstimateConfig(["text"], unit="id", separator_id=65535, order=1, prune=[3], chunk_bytes=1, vocab_pad=0)
    EstimateConfig(["text"], discount_fallback=[1, 2, 3], order=3, prune=[0, 0, 0])
    assert EstimateConfig(["text"]).highest == 5 and EstimateConfig(["text"], order=8).highest == 8
    assert EstimateConfig(["text"], prune=[0, 1]).options(4).thresholds == (0, 1, 1, 1)


@pytest.mark.parametrize(
    ("given", "three"),
    [([], (0.5, 1, 1.5)), ([0.4], (0.4,) * 3), ([0.4, 0.8], (0.4, 0.8, 0.8)), ([0.4, 0.8, 2.2], (0.4, 0.8, 2.2))],
)
def test_fallback_discounts(given, three, make):
    s = make(b"a b\n", order=2, discount_fallback=given)[1].statistics
    assert s.discounts == {1: three, 2: three} and s.fallback == [1, 2]


def test_a_count_without_words(make):
    message = (
        "^no discount can be computed for 1-grams with adjusted count 3, because none has adjusted count 2 "
        r"\(seen: 3 with 1, 0 with 2, 0 with 3, 0 with 4\); .*--discount-fallback"
    )
    with pytest.raises(InputError, match=message) as error:
        make(b"a b\n", order=2)
    assert "\n" not in str(error.value)


def test_discounts_out_of_range(make):
    """Order 1, raw counts: two words, a and </s>, with 1, one with 2, four with 3.

    y = 2 / (2 + 2 * 1) = 1 / 2, so D2 = 2 - 3 * 1 / 2 * 4 / 1 = -4.
    """
    words = b"a " + b"b " * 2 + b"c d e f " * 3
    with pytest.raises(
        InputError,
        match=r"^the discount of 1-grams with adjusted count 2 would be -4, which is outside 0 to 2 "
        r"\(seen: 2 with 1, 1 with 2, 4 with 3, 0 with 4\)",
    ) as error:
        make(words + b"\n", order=1)
    assert "\n" not in str(error.value) and "--discount-fallback" in str(error.value)
    s = make(words + b"\n", order=1, discount_fallback=[0.1])[1].statistics
    assert s.discounts == {1: (0.1, 0.1, 0.1)} and s.fallback == [1]


def test_an_unreadable_limit_file(here, text, tmp_path):
    (tmp_path / "text").write_bytes(text)
    config = EstimateConfig([str(tmp_path / "text")], order=2, limit_vocab_file=str(tmp_path / "none"))
    with pytest.raises(
        InputError, match=r"^limit_vocab_file .*none: cannot be read \(No such file or directory\)"
    ) as e:
        run(
            config, RunContext(here, tmp_path / "model", single_file=True, progress=Interrupt("tokenise"))
        )  # before any work
    assert "\n" not in str(e.value) and names(tmp_path) == ["text"]


def test_a_limit_without_words_of_the_text(text, make, tmp_path):
    (tmp_path / "limit").write_bytes(b"zzz <s> zzz\t</s>\n<unk>")
    data, result = make(text, order=2, limit_vocab_file=str(tmp_path / "limit"))
    assert arpa_values(data).keys() <= {b"<unk>", b"<s>", b"</s>", b"<s> </s>"} and result.statistics.kept[1] == 3
