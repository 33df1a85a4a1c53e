"""Tiny texts through all jobs that make language models: right values, rows that sum to 1, or an error of our own."""

import itertools
import math
import runpy
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mgpu_ngram import kenlm
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.counts import Counts
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.jobs.adapt import run as adapt
from mgpu_ngram.jobs.adapt.config import AdaptConfig
from mgpu_ngram.jobs.compare import run as compare
from mgpu_ngram.jobs.compare.config import CompareConfig
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.convert import run as convert
from mgpu_ngram.jobs.convert.config import ConvertConfig
from mgpu_ngram.jobs.count import run as count
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from mgpu_ngram.jobs.mix import run as mix
from mgpu_ngram.jobs.mix.config import MixConfig
from mgpu_ngram.jobs.prune import run as prune
from mgpu_ngram.jobs.prune.config import PruneConfig
from tests.support.plain_smoothing import PlainSmoothing

WORDS = ["a", "b", "c", "d", "<UNK>"]
texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), min_size=1, max_size=5)
VALUES = {"absolute": "discount", "additive": "delta", "good-turing": "gt_max"}  # settings that the oracle calls values
pytestmark = pytest.mark.filterwarnings("ignore")
FAST = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
LONG = settings(FAST, max_examples=300)


@st.composite
def smoothings(draw, order):
    """Return settings of an estimate of plain counts."""
    name = draw(st.sampled_from(["witten-bell", "absolute", "good-turing", "additive"]))
    found = {"smoothing": name}
    if name in ("witten-bell", "absolute"):
        found["interpolate"] = draw(st.booleans())
    if name == "absolute":
        found["discount"] = draw(st.sampled_from([[], [0.5], [0.25, 0.75], [0.0]]))
    if name == "additive":
        found["delta"] = draw(st.sampled_from([[1.0], [0.125], [1.0, 0.0]]))
    if name == "good-turing":
        found["gt_max"] = draw(st.sampled_from([[1, 7], [7], [0], [2, 3]]))
    return found | draw(prunings(order))


@st.composite
def prunings(draw, order):
    thresholds = sorted(draw(st.lists(st.integers(0, 2), max_size=order)))
    return {"prune": thresholds} if thresholds else {}


class Folder:
    """A folder of one example, in which jobs write models."""

    def __init__(self):
        self.path, self.made = Path(tempfile.mkdtemp()), 0
        self.executor = LocalExecutor("cpu", 1)

    def close(self):
        self.executor.close()
        shutil.rmtree(self.path)

    def text(self, lines):
        self.made += 1
        path = self.path / f"text{self.made}"
        path.write_text("".join(" ".join(line) + "\n" for line in lines))
        return str(path)

    def run(self, job, config, suffix=".arpa", single_file=True):
        """Return the path of what a job makes, or None if it is refused with an error of our own."""
        self.made += 1
        path = self.path / f"model{self.made}{suffix}"
        try:
            job.run(config, RunContext(self.executor, path, single_file=single_file))
        except (InputError, RunError) as error:
            assert "\n" not in str(error) and "report it" not in str(error), error
            return None
        return path


@pytest.fixture
def open_folder():
    """Return Folder; a fixture, as the tests run examples that each have one."""
    return Folder


def model_of(path):
    """Return ({n-gram: (probability, backoff weight)} of an ARPA file, read as KenLM reads it, its words)."""
    found = {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) < 2:
            continue
        gram = tuple("<unk>" if word == "<UNK>" else word for word in fields[1].split(" "))
        values = 10.0 ** float(fields[0]), 10.0 ** float(fields[2]) if len(fields) > 2 else 1.0
        if gram == ("<unk>",) or gram not in found:  # the last <unk>, the first of others
            found[gram] = values
    return found, sorted({gram[0] for gram in found if len(gram) == 1} - {"<s>"})


def prob(model, context, word):
    if (*context, word) in model:
        return model[*context, word][0]
    return model.get(context, (0, 1.0))[1] * prob(model, context[1:], word) if context else 0.0


def assert_rows_sum_to_1(path, sources=(), near=1e-4):
    """Of a model without <UNK> beside <unk>, made of `sources` without it: as in KenLM, the mass of one is lost."""
    if any("<UNK>" in source.read_text() for source in (path, *sources)):
        return
    model, words = model_of(path)
    order = max(map(len, model))
    for context in itertools.chain([()], (g for g in model if len(g) < order and g[-1] != "</s>")):
        total = math.fsum(prob(model, context, word) for word in words)
        assert total == pytest.approx(1, abs=near), context


def assert_same_scores(folder, path, texts):
    """The ARPA file, both KenLM binaries and the model file give the values of the definition."""
    model, words = model_of(path)
    order = max(map(len, model))
    if order < 2:
        return
    files = [path]
    for format, suffix in ("kenlm-probing", ".bin"), ("kenlm-trie", ".bin"), ("safetensors", ".safetensors"):
        files.append(folder.run(convert, ConvertConfig(str(path), format=format), suffix))
    for line in texts:
        expected, context = 0.0, ("<s>",)
        for word in [*line, "</s>"]:
            word = word if word in words else "<unk>"
            p = prob(model, context[-(order - 1) :], word)
            expected += math.log10(p) if p > 0 else -math.inf
            context = (*context, word)
        for file in files:
            found = kenlm.Model(str(file)).score(" ".join(line))
            assert found == pytest.approx(expected, abs=1e-4) or (found < -90 and expected < -90), (file, line)


def walk_plain(open_folder, data):
    """Plain counts: the values of the plain oracle."""
    folder = open_folder()
    try:
        lines, order = data.draw(texts), data.draw(st.integers(1, 4))
        options = data.draw(smoothings(order))
        options["closed"] = data.draw(st.booleans())
        vocabulary = data.draw(st.none() | st.lists(st.sampled_from([*WORDS[:4], "z"]), min_size=1, max_size=4))
        if vocabulary is not None:
            options["vocabulary"] = folder.text([vocabulary])
        config = EstimateConfig([folder.text(lines)], format="arpa", order=order, **options)
        path = folder.run(estimate, config)
        if path is None:
            return
        plain = PlainSmoothing(
            lines, order, options["smoothing"], vocabulary, options["closed"], options.get("interpolate", False),
            options.get("prune", ()), options.get(VALUES.get(options["smoothing"]), ()),
        )  # fmt: skip
        text = path.read_text()
        found = {tuple(f[1].split(" ")): float(f[0]) for f in (x.split("\t") for x in text.splitlines()) if len(f) > 1}
        assert found.keys() - {("<unk>",)} == plain.probs.keys() - {("<unk>",)}
        for gram, p in plain.probs.items():
            assert max(found.get(gram, -99), -99) == pytest.approx(math.log10(p) if p > 0 else -99, abs=1e-5), gram
        assert_rows_sum_to_1(path)
        if not options["closed"]:
            assert_same_scores(folder, path, data.draw(texts))
    finally:
        folder.close()


def walk_kneser_ney(open_folder, data, oracle):
    """Kneser-Ney: the values of the plain oracle of lmplz; model files, mixtures, tunings and prunings sum to 1."""
    folder = open_folder()
    try:
        models, order = [], data.draw(st.integers(1, 4))
        for lines in data.draw(st.lists(texts, min_size=1, max_size=3)):
            options = data.draw(prunings(order))
            fallback = data.draw(st.sampled_from([[], [], None, [0.25]]))
            text = folder.text(lines)
            config = EstimateConfig([text], format="arpa", order=order, discount_fallback=fallback, **options)
            path = folder.run(estimate, config)
            if path is None:
                continue
            models.append(path)
            assert_rows_sum_to_1(path)
            assert_same_scores(folder, path, data.draw(texts))
            thresholds = options.get("prune", [0])
            if oracle and fallback == [] and thresholds[0] < len(lines):  # else lmplz gives </s> the probability 1
                assert_equals_oracle(oracle, path, text, order, thresholds)
            walk_prunings(folder, path, data)
        if len(models) > 1:
            walk_mixtures(folder, models, data)
    finally:
        folder.close()


def windows(lines, order, least=1):
    """Return {n-gram: count} of all orders, with <s> and </s>; those of less than `least` are left out."""
    padded = [["<s>", *line, "</s>"] for line in lines]
    grams = (tuple(line[i : i + n]) for n in range(1, order + 1) for line in padded for i in range(len(line) - n + 1))
    return {gram: number for gram, number in Counter(grams).items() if number >= least}


def tables_of(folder, order):
    """Return {n-gram: count} of a folder of counts."""
    counts = Counts(folder)
    return {tuple(gram.split(" ")): number for n in range(1, order + 1) for gram, number in counts.order(n)}


def walk_counts(open_folder, data):
    """Counts are those of windows, models of counts those of the text; cut counts are refused, or rows sum to 1."""
    folder = open_folder()
    try:
        lines, more, order = data.draw(texts), data.draw(texts), data.draw(st.integers(1, 4))
        least = data.draw(st.sampled_from([1, 1, 2, 3]))
        text, new = folder.text(lines), folder.text(more)
        counted = folder.run(count, CountConfig([text], order, sentence_markers=True, min_count=least), "", False)
        assert tables_of(counted, order) == windows(lines, order, least)
        options = data.draw(smoothings(order) | st.just({"discount_fallback": []}))
        path = folder.run(estimate, EstimateConfig(counts=str(counted), format="arpa", **options))
        if least > 1:
            assert path is None, "counts that were cut off"
        else:
            whole = folder.run(estimate, EstimateConfig([text], format="arpa", order=order, **options))
            assert (path and path.read_bytes()) == (whole and whole.read_bytes())
            walk_adapt(folder, (counted, order, options), (text, new), lines + more)
        walk_cut_counts(folder, windows(lines, order), data)
        walk_comparisons(folder, [lines, more], data)
    finally:
        folder.close()


def walk_adapt(folder, earlier, paths, lines):
    counted, order, options = earlier
    adapted = folder.run(adapt, AdaptConfig(str(counted), [paths[1]], {"format": "arpa"} | options), "", False)
    whole = folder.run(estimate, EstimateConfig(list(paths), format="arpa", order=order, **options))
    assert (adapted is None) == (whole is None)
    if adapted:
        assert (adapted / "model.arpa").read_bytes() == whole.read_bytes(), "the model of all text"
        assert tables_of(adapted / "counts", order) == windows(lines, order)


def walk_cut_counts(folder, counts, data):
    """Counts of another tool, with a cut-off for each order, as a file of SRILM's counts."""
    order = max(map(len, counts))
    cuts = [data.draw(st.integers(1, 3)) for _ in range(order)]
    kept = {gram: number for gram, number in counts.items() if number >= cuts[len(gram) - 1]}
    path = folder.path / "srilm.counts"
    path.write_text("".join(f"{' '.join(gram)}\t{number}\n" for gram, number in sorted(kept.items())))
    for options in (data.draw(smoothings(order)), {"discount_fallback": []}):
        if made := folder.run(estimate, EstimateConfig(counts=str(path), format="arpa", **options)):
            assert_rows_sum_to_1(made)


def walk_comparisons(folder, corpora, data):
    """Sums of log10 probabilities by the definition, and sentences that are better, worse and equal."""
    models = []
    for lines in corpora:
        config = EstimateConfig([folder.text(lines)], format="arpa", order=2, smoothing="witten-bell")
        models.append(folder.run(estimate, config))
    held_out = data.draw(texts)
    if None in models or any("<UNK>" in line for lines in [*corpora, held_out] for line in lines):
        return
    config = CompareConfig([str(model) for model in models], [folder.text(held_out)])
    try:
        found = compare.run(config, RunContext(folder.executor, None))
    except InputError as error:
        assert "\n" not in str(error)
        return
    read = [model_of(model) for model in models]
    known = {*read[0][1]} & {*read[1][1]}
    every = [[log10_of(model, line, WORDS) for line in held_out] for model in read]
    for figures, scores in zip(found.models, every, strict=True):
        if min(scores) > -90:  # a word of probability 0 is -99 or less
            assert figures.totals.log10 == pytest.approx(math.fsum(scores), abs=1e-3)
    shared = [[log10_of(model, line, known) for line in held_out] for model in read]
    if min(map(min, every)) > -90:
        gains = [b - a for a, b in zip(*shared, strict=True)]
        [pair] = found.paired
        clear = [gain for gain in gains if abs(gain) > 1e-5]
        assert pair.better + pair.worse + pair.equal == len(gains)
        assert pair.better >= sum(gain > 0 for gain in clear) and pair.worse >= sum(gain < 0 for gain in clear)


def log10_of(model_and_words, line, counted):
    """Return the sum over a line's words that are `counted`, and its </s>."""
    model, words = model_and_words
    total, context = 0.0, ("<s>",)
    for word in [*line, "</s>"]:
        known = word if word in words else "<unk>"
        if word in counted or word == "</s>":
            p = prob(model, context, known)
            total += math.log10(p) if p > 0 else -99
        context = (known,)
    return total


def assert_equals_oracle(oracle, path, text, order, thresholds):
    arguments = [oracle, str(order), text, "--arpa", str(path), "--prune", *map(str, thresholds)]
    given, sys.argv, out = sys.argv, [str(a) for a in arguments], sys.stdout
    sys.stdout = StringIO()
    try:
        with redirect_stderr(StringIO()), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = runpy.run_path(str(oracle))
    except ZeroDivisionError:
        return
    finally:
        sys.argv, sys.stdout = given, out
    assert (found["mism"], found["miss"]) == (0, 0) and not found["maxd"] > 1e-5, Path(text).read_text()


def walk_prunings(folder, path, data):
    most = data.draw(st.integers(3, 20))
    for how in {"entropy": data.draw(st.sampled_from([0.0, 1e-3, 0.5]))}, {"max_ngrams": most}:
        if pruned := folder.run(prune, PruneConfig(str(path), format="arpa", **how)):
            assert_rows_sum_to_1(pruned, [path])


def walk_mixtures(folder, models, data):
    paths, weights = list(map(str, models)), data.draw(st.sampled_from([[1.0], [1.0, 3.0], [1e-3, 1.0], [5.0, 0.0]]))
    weights = [weights[i % len(weights)] for i in range(len(paths))]
    share = [weight / sum(weights) for weight in weights]
    tune = folder.text(data.draw(texts))
    for how in (
        {"weights": share}, {"weights": weights, "log_linear": True}, {"tune": tune},
        {"tune": tune, "log_linear": True}, {"weights": share, "bayes": 1},
    ):  # fmt: skip
        try:
            config = MixConfig(paths, format="arpa", **how)
        except InputError:
            continue
        if mixed := folder.run(mix, config):
            assert_rows_sum_to_1(mixed, () if "log_linear" in how else models)
            assert_same_scores(folder, mixed, data.draw(texts))


@FAST
@given(data=st.data())
def test_plain_counts(open_folder, data):
    walk_plain(open_folder, data)


@FAST
@given(data=st.data())
def test_kneser_ney(open_folder, data, oracle):
    walk_kneser_ney(open_folder, data, oracle)


@FAST
@given(data=st.data())
def test_counts(open_folder, data):
    walk_counts(open_folder, data)


@pytest.mark.slow
@LONG
@given(data=st.data())
def test_counts_at_length(open_folder, data):
    walk_counts(open_folder, data)


@pytest.mark.slow
@LONG
@given(data=st.data())
def test_plain_counts_at_length(open_folder, data):
    walk_plain(open_folder, data)


@pytest.mark.slow
@LONG
@given(data=st.data())
def test_kneser_ney_at_length(open_folder, data, oracle):
    walk_kneser_ney(open_folder, data, oracle)


@pytest.fixture(scope="module")
def oracle(shared_data):
    """Return the path of the oracle of lmplz, or None."""
    path = shared_data.parent / "oracles" / "lmplz_ref.py"
    return path if path.is_file() else None
