"""Models of plain counts equal SRILM's and plain Python's, for any division of the work and on any device."""

import itertools
import math

import numpy as np
import pytest

from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import run as estimate
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from mgpu_ngram.jobs.progress import Progress
from tests.support.plain_smoothing import PlainSmoothing
from tests.support.slow_cases import first_fast
from tests.support.srilm_models import LINES, MODELS, VOCABULARY

VALUES = {"absolute": "discount", "additive": "delta", "good-turing": "gt_max"}  # settings that the oracle calls values
pytestmark = pytest.mark.filterwarnings("ignore:Good-Turing")
SMOOTHINGS = [
    {"smoothing": "witten-bell"},
    {"smoothing": "witten-bell", "interpolate": True},
    {"smoothing": "absolute", "discount": [0.6]},
    {"smoothing": "absolute", "interpolate": True, "discount": [0.5, 0.8]},
    {"smoothing": "additive", "delta": [1.0, 0.1]},
    {"smoothing": "good-turing", "gt_max": [3, 7]},
]


@pytest.fixture
def made(model_bytes, tmp_path, part_tokens, monkeypatch):
    """Return a function: the bytes of an ARPA file of lines, made in about that many shards."""

    def run(lines, cluster=None, shards=1, vocabulary=None, **options):
        (tmp_path / "text").write_text("".join(line + "\n" for line in lines))
        if vocabulary is not None:
            (tmp_path / "words").write_text(vocabulary)
            options["vocabulary"] = str(tmp_path / "words")
        tokens = sum(len(line.split()) + 2 for line in lines)
        part_tokens(-(-tokens // shards))
        config = EstimateConfig([str(tmp_path / "text")], **{"format": "arpa", **options})
        return model_bytes(config, cluster)

    return run


def values_of(arpa):
    """Return {n-gram, a tuple of words: (log10 probability, log10 backoff)}."""
    rows = [line.split("\t") for line in arpa.decode().splitlines() if "\t" in line]
    return {tuple(row[1].split(" ")): (float(row[0]), float(row[2]) if len(row) > 2 else 0.0) for row in rows}


def assert_same(found, expected, masses=None, near=2e-6):
    """Compare log10 values; those of 0 are -99 or less, and those of a backoff of 0 are -37 or less.

    masses  context -> both masses whose ratio is its backoff. What remains of 1 has the rounding errors of float32
    """
    assert found.keys() == expected.keys()
    for gram, (prob, backoff) in expected.items():
        assert max(found[gram][0], -99) == pytest.approx(prob, abs=near), gram
        rounding = sum(5e-8 / mass for mass in (masses or {}).get(gram, ()) if mass)
        assert max(found[gram][1], -37) == pytest.approx(max(backoff, -37), abs=near + rounding), gram


def log10(value):
    return math.log10(value) if value > 0 else -99.0


def random_lines(count, seed=0, words=30):
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{w}" for w in rng.zipf(1.4, rng.integers(1, 14)).clip(1, words)) for _ in range(count)]


@pytest.mark.parametrize("command", MODELS)
def test_srilm_s_models(command, made):
    options, arpa = MODELS[command]
    options = dict(options)
    if options.pop("vocabulary", None):
        options["vocabulary"] = VOCABULARY
    assert_same(values_of(made(LINES, **options)), values_of(arpa.encode()))


@pytest.mark.parametrize("options", SMOOTHINGS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize(
    "case",
    first_fast(
        [
            pytest.param({}, id="open"),
            pytest.param(
                {"vocabulary": "w1 w2 w3 w8 w9 w77", "closed": True, "prune": [1, 1, 2]}, id="given-closed-pruned"
            ),
            pytest.param({"closed": True}, id="closed"),
            pytest.param({"vocabulary": "w1 w2 w3 w4 w5 w9 w11 w77"}, id="given"),
            pytest.param({"prune": [0, 1, 2]}, id="pruned"),
        ],
        2,
    ),
)
def test_models_equal_plain_python(options, case, made):
    """Sets of n-grams and values; the rows of all contexts sum to 1."""
    lines, order = random_lines(150, words=60), 3
    found = values_of(made(lines, order=order, **options, **case))
    vocabulary = case.get("vocabulary")
    plain = PlainSmoothing(
        [line.split() for line in lines], order, options["smoothing"],
        None if vocabulary is None else vocabulary.split(), case.get("closed", False),
        options.get("interpolate", False), case.get("prune", ()),
        options.get(VALUES.get(options["smoothing"]), ()),
    )  # fmt: skip
    expected = {g: (log10(p), log10(plain.weights.get(g, 1.0))) for g, p in plain.probs.items()}
    assert_same(found, expected, plain.masses)
    model = {g: (10**prob if prob > -99 else 0.0, 10**backoff) for g, (prob, backoff) in found.items()}
    for context in itertools.chain([()], (g for g in model if len(g) < order and g[-1] != "</s>")):
        assert math.fsum(backed_off(model, context, w) for w in plain.events) == pytest.approx(1, abs=1e-5), context


def backed_off(model, context, word):
    """Return P(word | context) of {n-gram: (probability, backoff)}, by the definition of ARPA files."""
    if (*context, word) in model:
        return model[*context, word][0]
    return model.get(context, (0, 1))[1] * backed_off(model, context[1:], word) if context else 0.0


@pytest.mark.parametrize("options", SMOOTHINGS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("case", [{}, {"vocabulary": "w1 w2 w3 w4 w9", "closed": True, "prune": [0, 1]}])
def test_the_model_of_one_shard(options, case, made):
    """Bit for bit; many shards split words."""
    lines = random_lines(200)
    expected = made(lines, order=4, **options, **case)
    for shards in 4, 30:
        assert made(lines, shards=shards, order=4, **options, **case) == expected


@pytest.mark.slow
def test_on_two_processes(start, device, made):
    """The fixture's workers have CPUs."""
    if device == "gpu":
        pytest.skip("once is enough")
    lines, options = random_lines(200), {"order": 4, **SMOOTHINGS[3], "vocabulary": "w1 w2 w3 w4 w9"}
    assert made(lines, start(2), shards=12, **options) == made(lines, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("options", SMOOTHINGS, ids=lambda o: "-".join(map(str, o.values())))
def test_a_gpu_makes_the_same_model(options, tmp_path):
    (tmp_path / "text").write_text("".join(line + "\n" for line in random_lines(2000, words=500)))
    found = []
    for device in "cpu", "gpu":
        executor = LocalExecutor(device, 1)
        try:
            config = EstimateConfig([str(tmp_path / "text")], order=4, **options)
            estimate.run(config, RunContext(executor, tmp_path / device, single_file=True))
        finally:
            executor.close()
        found.append((tmp_path / device).read_bytes())
    assert found[0] == found[1]


def test_unknown_words_and_ends_of_text(device, tmp_path):
    """<unk> in the text is an unknown word, and a last line without a newline has </s>; Kneser-Ney differs."""
    models = []
    for text in "a b\n<unk> b", "a b\nx b\n":
        (tmp_path / "text").write_text(text)
        (tmp_path / "words").write_text("a b")
        options = {"vocabulary": str(tmp_path / "words")} if "x" in text else {}
        config = EstimateConfig([str(tmp_path / "text")], order=2, smoothing="witten-bell", **options)
        executor = LocalExecutor(device, 1)
        estimate.run(config, RunContext(executor, tmp_path / "model", single_file=True, overwrite=True))
        executor.close()
        models.append((tmp_path / "model").read_bytes())
    assert models[0] == models[1]


def test_kneser_ney_with_a_vocabulary(made):
    """Words outside count as <unk>, as if the text had another word in their place."""
    lines = random_lines(300)
    inside = {f"w{i}" for i in range(1, 12)}
    replaced = [" ".join(w if w in inside else "other" for w in line.split()) for line in lines]
    options = {"order": 3, "discount_fallback": [], "exact_discounts": True}
    given = values_of(made(lines, vocabulary=" ".join(inside), **options))
    expected = {tuple("<unk>" if w == "other" else w for w in gram): v
                for gram, v in values_of(made(replaced, **options)).items() if gram != ("<unk>",)}  # fmt: skip
    assert given.keys() == expected.keys()  # one word less: <unk> is a word of the text
    assert given["w1", "w2"][1] == pytest.approx(expected["w1", "w2"][1], abs=1e-6)
    words = [g for g in given if len(g) == 1 and g != ("<s>",)]
    assert math.fsum(10 ** given[g][0] for g in words) == pytest.approx(1, abs=1e-5)


def test_a_vocabulary_with_nul_bytes(made):
    """A NUL ends a word, as in a text."""
    lines = random_lines(30)
    found = made(lines, vocabulary="w1\0w2 w1\0\nw3", order=2, smoothing="witten-bell")
    assert values_of(found) == values_of(made(lines, vocabulary="w1 w2 w3", order=2, smoothing="witten-bell"))


class Ended(Progress):
    """End a run when all chunks are counted and saved."""

    def start(self, phase, *_):
        if phase == "adjust":
            raise KeyboardInterrupt


def test_resume(corpus, tmp_path):
    """Counts are taken over by another smoothing, and not by Kneser-Ney, which reads text otherwise."""

    def run(name, workers=2, **options):
        executor = LocalExecutor("cpu", workers)
        context = RunContext(executor, tmp_path / name, single_file=True, **options.pop("context", {}))
        try:
            return estimate.run(EstimateConfig([*map(str, corpus)], order=3, chunk_bytes=50_000, **options), context)
        finally:
            executor.close()

    run("whole", smoothing="absolute")
    with pytest.raises(KeyboardInterrupt):
        run("resumed", smoothing="witten-bell", context={"progress": Ended(), "checkpoint_seconds": 0})
    with pytest.raises(InputError, match="smoothing"):
        run("resumed", context={"resume": True})
    found = run("resumed", 3, smoothing="absolute", context={"resume": True})
    assert found.resumed_chunks > 3
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"discount": [0.5]}, "discount is for smoothing absolute, not kneser-ney"),
        ({"interpolate": True, "smoothing": "good-turing"}, "interpolate is for smoothing witten-bell or absolute"),
        ({"closed": True}, "closed needs another smoothing than kneser-ney"),
        ({"vocab_pad": 9, "smoothing": "additive"}, "vocab_pad is for smoothing kneser-ney, not additive"),
        ({"smoothing": "absolute", "discount": [1.0]}, "discount has 1 but must be at least 0 and below 1"),
        ({"smoothing": "additive", "delta": [-1.0]}, "delta has -1 but must be at least 0"),
        ({"smoothing": "additive", "delta": []}, "delta is empty"),
        ({"smoothing": "good-turing", "gt_max": [1, 5000]}, "gt_max has 5000 but must be at least 0 and below 1001"),
        ({"smoothing": "absolute", "unit": "id", "vocabulary": "words"}, "vocabulary needs unit word"),
        ({"vocabulary": "words", "limit_vocab_file": "words"}, "vocabulary and limit_vocab_file"),
    ],
)
def test_refused_settings(options, message):
    with pytest.raises(InputError, match=message) as found:
        EstimateConfig(["text"], **options)
    assert "\n" not in str(found.value)


def test_refused_inputs(made, tmp_path):
    with pytest.raises(InputError, match="no discount can be computed for 1-grams, because none occurs twice"):
        made(["a b c d e"], order=2, smoothing="absolute")
    with pytest.raises(InputError, match="vocabulary .*missing: cannot be read"):
        estimate.read_word_file(str(tmp_path / "missing"), "vocabulary")
    with pytest.raises(InputError, match="<s> stands in"):
        made(["a <s> b"], order=2, smoothing="witten-bell")


def test_warnings_of_good_turing(made):
    with pytest.warns(UserWarning, match="Good-Turing discounts of 2-grams: none occurs 4 times"):
        made(["a b", "a b", "a c", "b c a"], order=2, smoothing="good-turing", gt_max=[0, 3])
