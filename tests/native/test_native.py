"""The C++ behind the drop-in: files of every shape, damaged files, long histories, threads, and how it is compiled."""

import copy
import gzip
import itertools
import lzma
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram import kenlm
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.trie import open_model as slow
from mgpu_ngram.engine.trie.build import edges_of
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.engine.trie.quantize import quantize

pytestmark = pytest.mark.filterwarnings("ignore:.*lacks <unk>")

TEXTS = ["a b", "b a naïve b c a", "", "<unk> a a b", "b a naïve", "a b a b a naïve naïve"]


def scores(model):
    return [list(model.full_scores(text, bos)) for text in TEXTS for bos in (True, False)]


@pytest.fixture
def no_slow_path(monkeypatch):
    """Let the test fail when a file is left to core's readers."""

    def fail(*_):
        raise AssertionError("C++ did not read the file")

    monkeypatch.setattr(slow, "open_model", fail)


@pytest.fixture
def expected(binaries, put):
    """The scores of the model of `binaries`, which core's readers and another search find."""
    path = put(binaries.ARPA.encode(), "expected.safetensors")
    trie_model = open_model(path)
    save_model(path, trie_model)
    return scores(kenlm.Model(str(path)))


@pytest.mark.parametrize("strip", [1, 7, 1 << 20])
def test_arpa_files_are_read_in_parts(binaries, put, expected, no_slow_path, monkeypatch, strip):
    monkeypatch.setattr(kenlm, "HEAD_BYTES", 600)
    monkeypatch.setattr(kenlm, "STRIP_BYTES", strip)
    arpa = binaries.ARPA
    for text in arpa, arpa.replace("\n", "\r\n"), arpa[:-1], "# a comment\n\n" + arpa, arpa.replace("\t0\n", "\n"):
        assert scores(kenlm.Model(str(put(text.encode(), "model.arpa")))) == expected


def test_compressed_arpa_files(binaries, put, expected, no_slow_path):
    for compress in gzip.compress, lzma.compress:
        assert scores(kenlm.Model(str(put(compress(binaries.ARPA.encode()), "model.arpa")))) == expected


def test_other_lines_are_left_to_the_slow_reader(binaries, put, expected):
    for old, new in ("-0.625\ta a", "-0.625\ta  a"), ("-0.375\ta b", "-0.375 a\tb"), ("-1.5\t<unk>", " -1.5\t<unk>"):
        assert old in binaries.ARPA
        assert scores(kenlm.Model(str(put(binaries.ARPA.replace(old, new).encode(), "model.arpa")))) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        ("ngram 2=6", "ngram 2=5"),
        ("ngram 2=6", "ngram 2=7"),
        ("-0.875\tb a", "0.875\tb a"),
        ("-0.875\tb a", "-0.875\tb z"),
        ("-0.875\tb a", "-0.875\ta b"),
        ("-0.875\tb a", "-x\tb a"),
        ("-0.0625\ta b </s>", "-0.0625\tnaïve a b"),
        ("-0.0625\ta b </s>", "-0.0625\ta b </s>\t-1"),
        ("-0.75\ta", "-0.75\tb"),
        ("\\end\\", ""),
        ("</s>", "</S>"),
    ],
)
def test_a_wrong_arpa_file_is_refused_with_its_line(binaries, put, wrong):
    assert wrong[0] in binaries.ARPA
    path = put(binaries.ARPA.replace(*wrong).encode(), "model.arpa")
    with pytest.raises(OSError, match="Cannot read model '.*model.arpa' \\('.*model.arpa'(, line [0-9]+:| ends)"):
        kenlm.Model(str(path))


def nearest(text):
    """The float32 nearest to a decimal number, by exact fractions."""
    exact, guess = Fraction(text), np.float32(text)
    around = [np.nextafter(guess, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    best = min(abs(Fraction(float(x)) - exact) for x in (guess, *around))
    near = [x for x in (guess, *around) if abs(Fraction(float(x)) - exact) == best]
    return next(x for x in near if len(near) == 1 or x.view(np.uint32) % 2 == 0)


def test_numbers_are_the_nearest_float32(put, no_slow_path):
    rng = random.Random(0)
    texts = ["-0", "-1e-2", "-2.5E+1", "-0.1", "-1.401298464324817e-45", "-3.4e38"]
    for _ in range(200):
        value = np.float32(-rng.expovariate(1) * 10 ** rng.randint(-3, 2))
        middle = (Fraction(float(value)) + Fraction(float(np.nextafter(value, np.float32(0))))) / 2
        digits = f"{float(middle):.60f}".rstrip("0")  # exact: a float64 has room for the bit in the middle
        texts += [f"{float(middle):.{n}g}" for n in (15, 16)]  # beside the middle, but the same float64
        texts += [digits, digits + "00000000000000000001", digits[:-1] + "4999999", f"{value:.8g}", repr(float(value))]
    words = "".join(f"{text}\tw{i}\n" for i, text in enumerate(texts))
    head = f"\\data\\\nngram 1={len(texts) + 3}\n\n\\1-grams:\n-1\t<unk>\n-1\t<s>\n-1\t</s>\n"
    model = kenlm.Model(str(put(f"{head}{words}\n\\end\\\n".encode(), "model.arpa")))
    for i, text in enumerate(texts):
        assert model.score(f"w{i}", eos=False) == -abs(nearest(text)), text


@pytest.fixture
def files(binaries, tmp_path):
    """Every kind of file that is memory-mapped: KenLM's binaries, model files with each index."""
    contents = dict(binaries.BINARIES)
    path = tmp_path / "m"
    path.write_text(binaries.ARPA)
    model = open_model(path)
    for name, trie, edges in (
        ("model file", model.trie, None),
        ("edges", model.trie, edges_of(model.trie)),
        ("codes", quantize(model.trie, 8), None),
        ("wide codes", quantize(model.trie, 9), None),
        ("codes and edges", quantize(model.trie, 8), edges_of(quantize(model.trie, 8))),
    ):
        save_model(path, BackoffModel.of(trie, model.words, edges))
        contents[name] = path.read_bytes()
    return contents


def test_all_files_score_the_same(files, put, expected, no_slow_path):
    for name, content in files.items():
        assert scores(kenlm.Model(str(put(content)))) == expected, name


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_files_are_mapped(files, put):
    """Their pages are those of the file, also of the edge table, so they take no time to load."""
    for name, content in files.items():
        path = put(content)
        model = kenlm.Model(str(path))
        with open("/proc/self/maps") as maps:
            assert str(path) in maps.read(), name
        del model


LIGHT = """
import sys
for name in "numpy", "numba", "pyarrow", "dask":
    sys.modules[name] = None
from mgpu_ngram import kenlm
for path in sys.argv[1:]:
    print(kenlm.Model(path).score("a b"), *kenlm.Model(path).full_scores("naïve"))
assert not [name for name in sys.modules if name.startswith("mgpu_ngram.engine")]
"""


def test_a_light_import(files, binaries, put):
    """A program that imports the drop-in and loads a file does not wait for NumPy, which takes longer than KenLM."""
    paths = [put(content, f"{i}.bin") for i, content in enumerate([binaries.ARPA.encode(), *files.values()])]
    done = subprocess.run([sys.executable, "-c", LIGHT, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.splitlines())) == 1 and done.stdout.count("\n") == len(paths) > 11


@pytest.mark.parametrize("seed", range(12))
def test_random_models_have_the_same_states_in_all_files(seed, plain_model, tmp_path):
    """States of the same words are equal in one file where they are in another, so each keeps as much as it needs."""
    plain, rng = plain_model(seed), random.Random(seed)
    path = tmp_path / "model.arpa"
    path.write_text(plain.text)
    model, models = open_model(path), [kenlm.Model(str(path))]
    save_model(tmp_path / "tree", model)
    save_model(tmp_path / "edges", BackoffModel.of(model.trie, model.words, edges_of(model.trie)))
    write_kenlm(tmp_path / "probing", model, "kenlm-probing")
    models += [kenlm.Model(str(tmp_path / name)) for name in ("tree", "edges", "probing")]
    states = [[kenlm.State() for _ in models]]
    for _ in range(60):
        before, word = rng.choice(states), rng.choice([*plain.words, "oov"])
        states.append([kenlm.State() for _ in models])
        found = [repr(m.BaseFullScore(s, word, t)) for m, s, t in zip(models, before, states[-1], strict=True)]
        assert len(set(found)) == 1, (word, found)
    for some, others in itertools.combinations(states, 2):
        assert len({(s == t, hash(s) == hash(t)) for s, t in zip(some, others, strict=True)}) == 1


@pytest.mark.parametrize("words", [1, 63, 64, 65, 128, 200])
def test_sentences_score_as_their_words_do(words, plain_model, tmp_path):
    """A sentence is scored in blocks of 64 words, by order; BaseFullScore scores word by word."""
    plain, rng = plain_model(words), random.Random(words)
    path = tmp_path / "model.arpa"
    path.write_text(plain.text)
    model = open_model(path)
    coded = quantize(model.trie, 8)
    save_model(tmp_path / "tree", model)
    save_model(tmp_path / "edges", BackoffModel.of(model.trie, model.words, edges_of(model.trie)))
    save_model(tmp_path / "codes", BackoffModel.of(coded, model.words))
    for name in "probing", "trie":
        write_kenlm(tmp_path / name, model, f"kenlm-{name}")
    for name in "model.arpa", "tree", "edges", "codes", "probing", "trie":
        scorer = kenlm.Model(str(tmp_path / name))
        for bos, eos in itertools.product([True, False], repeat=2):
            text, state, expected = rng.choices([*plain.words, "oov"], k=words), kenlm.State(), []
            if bos:
                scorer.BeginSentenceWrite(state)
            for word in [*text, "</s>"] if eos else text:
                found = scorer.BaseFullScore(state, word, state)
                expected.append((found.log_prob, found.ngram_length, found.oov))
            assert list(scorer.full_scores(" ".join(text), bos, eos)) == expected, name
            total = np.float32(0)
            for prob, _, _ in expected:
                total += np.float32(prob)
            assert scorer.score(" ".join(text), bos, eos) == total, name


def test_histories_of_many_words(put, tmp_path, no_slow_path):
    """Searches of a block go on until the longest has ended; each word here is found after one history alone."""
    rng, words = random.Random(0), [f"w{i}" for i in range(700)]
    after = {f"h{size}": rng.sample(words, size) for size in (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 511, 600)}
    singles = ["<unk>", "<s>", "</s>", *words, *after]
    pairs = [f"{history} {word}" for history, some in after.items() for word in some]
    text = f"\\data\\\nngram 1={len(singles)}\nngram 2={len(pairs)}\n\n\\1-grams:\n"
    text += "".join(f"-1\t{word}\t-0.5\n" for word in singles) + "\n\\2-grams:\n"
    text += "".join(f"-0.25\t{pair}\n" for pair in pairs) + "\n\\end\\\n"
    source = open_model(put(text.encode(), "model.arpa"))
    save_model(tmp_path / "tree", source)
    save_model(tmp_path / "edges", BackoffModel.of(source.trie, source.words, edges_of(source.trie)))
    for name in "tree", "edges":
        model = kenlm.Model(str(tmp_path / name))
        for _ in range(100):
            chosen = [(history, rng.choice([*some, *words])) for history, some in rng.sample(list(after.items()), 10)]
            found = model.full_scores(" ".join(f"{history} {word}" for history, word in chosen), eos=False)
            lengths = [length for _, length, _ in found]
            assert lengths == [n for history, word in chosen for n in (1, 2 if word in after[history] else 1)]


TEXT_BYTES = b" \t\n\v\f\r" + b"aaaabb" + bytes([0, 1, 8, 14, 28, 31, 33, 95, 127, 128, 133, 137, 141, 160, 195, 255])


@given(st.lists(st.sampled_from(TEXT_BYTES), max_size=200).map(bytes))
def test_words_end_at_white_space_and_nul(letters, text):
    words = [word.split(b"\0")[0] for word in text.split()]  # bytes.split knows the white space of isspace
    found = [(length, oov) for _, length, oov in letters.full_scores(text, False, False)]
    assert found == [(1, word not in (b"a", b"b", b"ab" * 4, b"a" * 9)) for word in words]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A model of single words."""
    path = tmp_path_factory.mktemp("letters") / "model.arpa"
    words = "".join(f"-1\t{word}\n" for word in ("<unk>", "<s>", "</s>", "a", "b", "ab" * 4, "a" * 9))
    path.write_text(f"\\data\\\nngram 1=7\n\n\\1-grams:\n{words}\n\\end\\\n")
    return kenlm.Model(str(path))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_do_not_crash(files_once, tmp_path_factory, seed):
    """They are refused, or score wrong; a search must not leave the file or go on for ever."""
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("damaged") / "model.binary"
    for content in files_once.values():
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 3, 30])):
            damaged[rng.randrange(88, len(damaged))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        path.write_bytes(damaged[: rng.choice([len(damaged)] * 4 + [rng.randrange(100, len(damaged))])])
        try:
            model = kenlm._states.Model()
            load_without_slow_path(model, path)
        except (OSError, ValueError, kenlm._states.Refused):
            continue
        state = kenlm.State()
        for text in TEXTS:
            model.score(text)
            model.BeginSentenceWrite(state)
            for word in text.split():
                model.BaseScore(state, word, state)


def load_without_slow_path(model, path):
    with open(path, "rb") as file:
        if file.read(9)[8:] == b"{":
            model._map_arrays(*kenlm._arrays_of(file.fileno()))
        else:
            model._map_kenlm(path.read_bytes())


@pytest.fixture(scope="module")
def files_once(binaries, tmp_path_factory):
    return files.__wrapped__(binaries, tmp_path_factory.mktemp("files"))


ORDER = 40
LONG = "".join(
    [
        "\\data\\\n",
        *(f"ngram {n}={4 if n == 1 else 1}\n" for n in range(1, ORDER + 1)),
        "\n\\1-grams:\n-1\t<unk>\n-1\t<s>\n-1\t</s>\n-1\ta\t-0.5\n",
        *(f"\n\\{n}-grams:\n-{1 / n}\t{' '.join('a' * n)}\t{-0.5 * (n < ORDER)}\n" for n in range(2, ORDER + 1)),
        "\n\\end\\\n",
    ]
)


@pytest.mark.parametrize("saved", [False, True])
def test_a_model_of_a_high_order(put, saved, no_slow_path, monkeypatch):
    path = put(LONG.encode(), "model.arpa")
    if saved:
        monkeypatch.undo()
        save_model(path, open_model(path))
    model, states = kenlm.Model(str(path)), [kenlm.State()]
    for n in range(1, 50):
        states.append(kenlm.State())
        found = model.BaseFullScore(states[-2], "a", states[-1])
        assert (found.log_prob, found.ngram_length) == (np.float32(-1 / min(n, ORDER)), min(n, ORDER))
        assert states[-1] > states[-2] or n >= ORDER
    assert len(set(states)) == ORDER and states[-1] == states[-2] == copy.copy(states[-1])
    assert model.BaseScore(states[-1], "z", states[-1]) == -1 - 0.5 * (ORDER - 1) and states[-1] == kenlm.State()


def test_states_of_other_models_do_no_harm(binaries, put, files):
    models = [kenlm.Model(str(put(content, f"m{i}.binary"))) for i, content in enumerate(files.values())]
    models.append(kenlm.Model(str(put(LONG.encode(), "model.arpa"))))
    for other in models:
        state = kenlm.State()
        for _ in range(45):
            other.BaseScore(state, "a", state)
        for model in models:
            model.BaseScore(state, "b", kenlm.State())


def test_threads_score_long_sentences_at_once(binaries, put):
    model, text = kenlm.Model(str(put(binaries.ARPA.encode(), "model.arpa"))), "a b a naïve " * 5_000
    expected = model.score(text), list(model.full_scores(text))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: (model.score(text), list(model.full_scores(text))), range(8)):
            assert found == expected


def test_python_runs_while_a_long_sentence_is_scored(binaries, put):
    """A thread that keeps the GIL finishes before the thread that started it resumes."""
    model, text, ended = kenlm.Model(str(put(binaries.ARPA.encode(), "model.arpa"))), "a b a naïve " * 500_000, []
    thread = threading.Thread(target=lambda: ended.append(model.score(text)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # seconds that a thread keeps the lock, unless it passes it on
    try:
        thread.start()
        assert not ended
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert len(ended) == 1


def test_threads_score_short_sentences_at_once(binaries, put):
    """Threads that score pass Python's lock to each other; one of them alone keeps it."""
    model, texts = kenlm.Model(str(put(binaries.ARPA.encode(), "model.arpa"))), TEXTS * 300
    expected = [(model.score(text), list(model.full_scores(text))) for text in texts]
    assert expected == expected[: len(TEXTS)] * 300

    def score_all(_):
        return [(model.score(text), list(model.full_scores(text))) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(score_all, range(8)))
    assert score_all(0) == expected


def test_a_model_that_is_not_loaded():
    model = kenlm.Model.__new__(kenlm.Model)
    for call in model.score, model.__contains__:
        with pytest.raises(ValueError, match="the model is not loaded; call its __init__ with the path of a file"):
            call("a")


def test_wrong_arguments(binaries, put):
    model, state = kenlm.Model(str(put(binaries.ARPA.encode(), "model.arpa"))), kenlm.State()
    for call, message in (
        (lambda: model.score("a", begin=True), r"score\(\) got an unexpected keyword argument 'begin'"),
        (lambda: model.score("a", sentence="b"), r"score\(\) got multiple values for argument 'sentence'"),
        (lambda: model.score(), r"score\(\) lacks its argument 'sentence'"),
        (lambda: model.score("a", True, True, True), r"score\(\) takes at most 3 arguments \(4 given\)"),
        (lambda: model.BaseScore(state, "a"), r"BaseScore\(\) lacks its argument 'out_state'"),
        (lambda: kenlm.FullScoreReturn(), "cannot create 'mgpu_ngram.kenlm.FullScoreReturn' instances"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


COMPILE = (
    "import sys; sys.modules['mgpu_ngram.native._states'] = None; from mgpu_ngram import kenlm; "
    "print(kenlm._states.__file__)"
)


@pytest.mark.slow
def test_a_checkout_compiles_it_once(tmp_path):
    def python(**more):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **more}
        return subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)

    failed = python(CXX="no-such-compiler")
    assert failed.returncode == 1
    assert (
        "ImportError: mgpu_ngram.kenlm needs its C++ part, which is not installed and cannot be compiled"
        in failed.stderr
    )
    made = python()
    assert made.stdout.startswith(str(tmp_path / "mgpu_ngram" / "native")), made.stderr
    assert python(CXX="no-such-compiler").stdout == made.stdout, "it is compiled once"
