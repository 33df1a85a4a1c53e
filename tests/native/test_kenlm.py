"""The drop-in for the kenlm module: by hand, compared with a plain scorer, and with kenlm if it is installed."""

import copy
import gzip
import itertools
import lzma
import math
import pickle
import random
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mgpu_ngram as ng
from mgpu_ngram import kenlm as ours
from mgpu_ngram.core.models.model_file import save_model
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.trie.open_model import open_model

pytestmark = pytest.mark.filterwarnings("ignore:.*lacks <unk>")

ARPA = r"""\data\
ngram 1=5
ngram 2=4
ngram 3=2

\1-grams:
-99	<s>	-0.5
-1	<unk>
-1.5	</s>
-0.5	a	-0.25
-0.75	b

\2-grams:
-0.25	<s> a	-0.125
-0.5	a b	0
-0.375	a a
-1.25	a </s>

\3-grams:
-0.0625	<s> a b
-0.03125	a a </s>

\end\
"""
A, B, END, UNKNOWN = -0.5, -0.75, -1.5, -1.0  # log10 probabilities of single words, to which backoffs are added


@pytest.fixture(scope="session", params=["mgpu_ngram.kenlm", "kenlm"])
def kenlm(request):
    """Our module and the real one: every test of this page holds for both."""
    return pytest.importorskip(request.param, reason="the kenlm module is not installed")


def load(kenlm, path):
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    return kenlm.Model(str(path), config)


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    return path


@pytest.fixture
def model(kenlm, arpa):
    return load(kenlm, arpa)


BY_HAND = [  # sentence, bos, eos, scores
    ("a b", True, True, [(-0.25, 2, False), (-0.0625, 3, False), (END, 1, False)]),
    ("a a", True, True, [(-0.25, 2, False), (-0.375 - 0.125, 2, False), (-0.03125, 3, False)]),
    ("b a", True, True, [(B - 0.5, 1, False), (A, 1, False), (-1.25, 2, False)]),
    ("a a b", False, False, [(A, 1, False), (-0.375, 2, False), (-0.5, 2, False)]),
    ("a a", False, True, [(A, 1, False), (-0.375, 2, False), (-0.03125, 3, False)]),
    ("c <unk>", True, False, [(UNKNOWN - 0.5, 1, True), (UNKNOWN, 1, True)]),
    ("a <s> a", True, False, [(-0.25, 2, False), (-99 - 0.25 - 0.125, 1, False), (-0.25, 2, False)]),
    ("a </s>", True, False, [(-0.25, 2, False), (-1.25 - 0.125, 2, False)]),
    ("", True, True, [(END - 0.5, 1, False)]),
    ("", False, False, []),
    (" a\t\tb\n", True, False, [(-0.25, 2, False), (-0.0625, 3, False)]),
    ("a\x0bb\x0c\r", True, False, [(-0.25, 2, False), (-0.0625, 3, False)]),
    ("a\x85b", False, False, [(UNKNOWN, 1, True)]),
]


@pytest.mark.parametrize(("sentence", "bos", "eos", "scores"), BY_HAND)
def test_sentences_by_hand(model, sentence, bos, eos, scores):
    assert list(model.full_scores(sentence, bos, eos)) == scores
    assert list(model.full_scores(sentence.encode(), bos=bos, eos=eos)) == scores
    assert model.score(sentence, bos, eos) == model.score(sentence.encode(), bos=bos, eos=eos)
    assert model.score(sentence, bos, eos) == sum(prob for prob, _, _ in scores)


@pytest.mark.parametrize("format", ["kenlm-trie", "kenlm-probing"])
def test_files_that_we_write(kenlm, format, arpa, tmp_path):
    """KenLM's module loads them, too, and scores the same."""
    write_kenlm(tmp_path / "written.bin", open_model(arpa), format)
    model = load(kenlm, tmp_path / "written.bin")
    for sentence, bos, eos, scores in BY_HAND:
        assert list(model.full_scores(sentence, bos, eos)) == scores
    assert model.order == 3 and "a" in model and "c" not in model


def test_types_and_defaults(model):
    assert model.score("a b") == -0.25 - 0.0625 - 1.5 == model.score("a b", True, True)
    assert model.perplexity("a b") == model.perplexity(b"a b") == 10 ** (1.8125 / 3)
    assert type(model.score("a")) is type(model.perplexity("a")) is float
    assert [[type(value) for value in word] for word in model.full_scores("a")] == [[float, int, bool]] * 2
    generator = model.full_scores(3)  # fails on its first item, as generators do
    with pytest.raises(TypeError, match="Cannot convert <class 'int'> to string"):
        next(generator)
    for call in model.score, model.perplexity, model.__contains__:
        with pytest.raises(TypeError, match="Cannot convert <class 'NoneType'> to string"):
            call(None)
        with pytest.raises(UnicodeEncodeError):
            call("\ud800")


def test_the_model(kenlm, model, arpa):
    assert model.order == 3 and model.path == bytes(arpa) and repr(model) == "<Model from b'model.arpa'>"
    assert [word in model for word in ("a", b"b", "</s>", "<s>", "c", "<unk>", "", "a b")] == [True] * 4 + [False] * 4
    assert model.__reduce__() == (kenlm.Model, (bytes(arpa),))
    assert pickle.loads(pickle.dumps(model)).score("a b") == model.score("a b")
    with pytest.raises(AttributeError):
        model.order = 4
    alias = kenlm.LanguageModel(bytes(arpa))
    assert isinstance(alias, kenlm.Model) and alias.score("a b") == model.score("a b")


def test_a_relative_path(kenlm, arpa, monkeypatch):
    monkeypatch.chdir(arpa.parent)
    assert load(kenlm, "model.arpa").path == bytes(arpa)


def test_settings(kenlm):
    config, load, complain = kenlm.Config(), kenlm.LoadMethod, kenlm.ARPALoadComplain
    assert (config.load_method, config.show_progress, config.arpa_complain) == (2, True, 0)
    methods = [load.LAZY, load.POPULATE_OR_LAZY, load.POPULATE_OR_READ, load.READ, load.PARALLEL_READ]
    assert methods == list(range(5))
    assert [complain.ALL, complain.EXPENSIVE, complain.NONE] == [0, 1, 2]
    config.load_method, config.show_progress = load.LAZY, False
    assert (config.load_method, config.show_progress) == (0, False)
    with pytest.raises(AttributeError):
        config.probing_multiplier = "2"
    config.show_progress, config.load_method, config.arpa_complain = "yes", 3.0, True
    assert (config.show_progress, config.load_method, config.arpa_complain) == (True, 3, 1)
    for name in "load_method", "arpa_complain":
        for value in None, "3":
            with pytest.raises(TypeError, match="an integer is required"):
                setattr(config, name, value)


def after(kenlm, model, words, bos=False):
    """Return the state after words."""
    state = kenlm.State()
    (model.BeginSentenceWrite if bos else model.NullContextWrite)(state)
    for word in words.split():
        before, state = state, kenlm.State()
        model.BaseScore(before, word, state)
    return state


def test_states_by_hand(kenlm, model):
    empty, begin = kenlm.State(), after(kenlm, model, "", bos=True)
    a, a_a = after(kenlm, model, "a"), after(kenlm, model, "a a")
    same = [
        (empty, after(kenlm, model, ""), after(kenlm, model, "b"), after(kenlm, model, "c", bos=True)),
        (begin, after(kenlm, model, "<s>"), after(kenlm, model, "a <s>")),
        (a, after(kenlm, model, "b a"), after(kenlm, model, "c c a", bos=True)),
        (after(kenlm, model, "a", bos=True), after(kenlm, model, "b <s> a")),
        (a_a, after(kenlm, model, "a a a a"), after(kenlm, model, "a a", bos=True)),
    ]
    assert after(kenlm, model, "a b", bos=True) == empty, "neither b nor its backoffs matter any more"
    for (i, states), (j, others) in itertools.product(enumerate(same), repeat=2):
        for s, t in itertools.product(states, others):
            assert (s == t, s != t) == (i == j, i != j)
            assert (hash(s) == hash(t)) == (i == j)
            assert (s <= t, s >= t) == (s < t or i == j, s > t or i == j) and (s < t) + (s > t) == (i != j)
    assert empty < begin < a_a and empty < a < a_a, "longer states come later"
    assert sorted([a_a, a, begin, empty]) in ([empty, a, begin, a_a], [empty, begin, a, a_a])
    assert len({s for states in same for s in states}) == len(same)


def test_a_state_can_be_set(kenlm, model):
    state = after(kenlm, model, "a", bos=True)
    copied, out = copy.copy(state), kenlm.State()
    assert copied == state and copied is not state
    assert model.BaseScore(state, "b", out) == -0.0625 and out == kenlm.State() and copied == state
    model.BeginSentenceWrite(state)
    assert copied != state
    assert model.BaseScore(in_state=state, word="a", out_state=out) == -0.25 and out == copied
    model.NullContextWrite(state)
    assert state == kenlm.State()


def test_a_state_updated_in_place(arpa):
    """KenLM cannot do this: it writes the new state while it reads the old one."""
    model, state = load(ours, arpa), ours.State()
    model.BeginSentenceWrite(state)
    assert [model.BaseScore(state, word, state) for word in "aab"] == [-0.25, -0.5, -0.5]


def test_deepcopy(arpa):
    state = after(ours, load(ours, arpa), "a", bos=True)
    assert copy.deepcopy([state]) == [state] and copy.deepcopy(state) is not state, "in kenlm 0.3.0 this raises"


def test_full_scores_of_one_word(kenlm, model):
    state, out = after(kenlm, model, "a", bos=True), kenlm.State()
    word = model.BaseFullScore(state, "a", out)
    assert (word.log_prob, word.ngram_length, word.oov) == (-0.5, 2, False) and out == after(kenlm, model, "a a")
    assert repr(word) == "FullScoreReturn(-0.5, 2, False)"
    assert repr(model.BaseFullScore(out, "c", state)) == "FullScoreReturn(-1.25, 1, True)"
    assert type(word.log_prob) is float and type(word.ngram_length) is int and type(word.oov) is bool
    with pytest.raises(AttributeError):
        word.oov = True
    with pytest.raises(TypeError):
        model.BaseScore(state, 3, out)


def test_a_word_ends_at_a_nul_byte(kenlm, model):
    """A whole sentence, too, where both markers are scored; full_scores goes on after it."""
    state, out = kenlm.State(), kenlm.State()
    assert model.BaseScore(state, "a\0b", out) == A and model.BaseFullScore(state, "b\0", out).log_prob == B
    assert model.BaseScore(state, "\0a", out) == UNKNOWN
    assert "a\0x" in model and "\0a" not in model
    assert model.score("a\0 b b") == model.score("a") and model.score("\0 a") == model.score("")
    assert model.score("a\0x b", bos=False, eos=False) == model.score("a b", bos=False, eos=False)
    assert model.score("\0x b", bos=False) == model.score("z b", bos=False)
    assert list(model.full_scores("a\0x b\0")) == list(model.full_scores("a b"))


def test_types_of_arguments(kenlm, model):
    state, calls = kenlm.State(), (model.BaseScore, model.BaseFullScore)
    for word in b"a", 1:
        for call in calls:
            with pytest.raises(TypeError, match=r"Argument 'word' .*expected str, got"):
                call(state, word, state)
    for call in calls:
        with pytest.raises(TypeError, match=r"Argument 'in_state' .*expected kenlm.State, got int"):
            call(1, "a", state)
        with pytest.raises(TypeError, match=r"Argument 'out_state' .*expected kenlm.State, got str"):
            call(state, "a", "x")
    for call in model.BeginSentenceWrite, model.NullContextWrite:
        with pytest.raises(TypeError, match=r"Argument 'state' .*expected kenlm.State, got int"):
            call(1)
    with pytest.raises(TypeError, match=r"Argument 'config' .*expected kenlm.Config, got int"):
        kenlm.Model(model.path, 3)


def test_a_path_ends_at_a_nul_byte(kenlm, tmp_path):
    (tmp_path / "model.arpa").write_text(ARPA)
    assert kenlm.Model(f"{tmp_path}/model.arpa\0.bin").order == 3


@pytest.mark.parametrize("content", [None, b"", b"no model\n", ARPA.replace("ngram 2=4", "ngram 2=5").encode()])
def test_invalid_files(kenlm, content, tmp_path):
    path = tmp_path / "model.arpa"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(IOError, match=f"Cannot read model '{path}' \\(.*\\)$") as caught:
        load(kenlm, path)
    assert "\n" not in str(caught.value) and type(caught.value.__cause__) is RuntimeError
    with pytest.raises(IOError):
        load(kenlm, tmp_path)
    with pytest.raises(IOError) as caught:
        kenlm.Model(f"{path}\0.arpa")
    assert type(caught.value.__cause__) is RuntimeError
    with pytest.raises(TypeError, match="Cannot convert <class 'int'> to string"):
        kenlm.Model(3)


def test_a_compressed_kenlm_binary_file_is_refused(tmp_path):
    packed = tmp_path / "model.binary.gz"
    packed.write_bytes(gzip.compress(b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(100)))
    message = "a KenLM binary model, which must be a local file that is not compressed; unpack it or copy it"
    for load_model, error in (partial(load, ours), OSError), (ng.Model.load, ValueError), (open_model, ValueError):
        with pytest.raises(error, match=message) as caught:  # KenLM raises OSError
            load_model(packed)
        assert "\n" not in str(caught.value)


def test_other_files(arpa, tmp_path):
    expected = list(load(ours, arpa).full_scores("a a b c"))
    packed, saved = tmp_path / "model.arpa.gz", tmp_path / "model.safetensors"
    packed.write_bytes(gzip.compress(ARPA.encode()))
    save_model(saved, open_model(arpa))
    for path in packed, saved:
        model = load(ours, path)
        state = after(ours, model, "a", bos=True)
        assert list(model.full_scores("a a b c")) == expected and model.BaseScore(state, "b", state) == -0.0625


def test_a_unigram_model(tmp_path):
    path = tmp_path / "model.arpa"  # KenLM requires bigrams
    path.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-2\t</s>\n-0.5\ta\n\n\\end\\\n")
    model, state = load(ours, path), ours.State()
    assert list(model.full_scores("a b")) == [(-0.5, 1, False), (-1, 1, True), (-2, 1, False)]
    model.BeginSentenceWrite(state)
    assert state == ours.State(), "words are independent"
    assert model.BaseScore(state, "a", state) == -0.5 and state == ours.State()


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_random_models(kenlm, plain_model, tmp_path_factory, seed):
    plain, rng = plain_model(seed), random.Random(seed)
    path = tmp_path_factory.mktemp("kenlm") / "model.arpa"
    path.write_text(plain.text)
    try:
        model = load(kenlm, path)
    except OSError as error:
        assert kenlm is not ours and "blank space" in str(error), "KenLM has room for few missing suffixes"
        return
    seen = {}  # states by the history that each represents
    for bos, eos in itertools.product([False, True], repeat=2):
        sentence = rng.choices([*plain.words, "oov", "<unk>"], k=rng.randint(0, 12))
        history, state = ("<s>",) * bos, after(kenlm, model, "", bos)
        scores, total = [], np.float32(0)
        for word in sentence + ["</s>"] * eos:
            seen.setdefault(history, []).append(state)
            *score, history = plain.step(history, word)
            scores.append(tuple(score))
            total += np.float32(score[0])
            before, state = state, kenlm.State()
            found = model.BaseFullScore(before, word, state)
            assert (found.log_prob, found.ngram_length, found.oov) == scores[-1]
            other = kenlm.State()
            assert model.BaseScore(before, word, other) == scores[-1][0] and other == state
        seen.setdefault(history, []).append(state)
        text = " ".join(sentence)
        assert list(model.full_scores(text, bos, eos)) == scores
        assert model.score(text, bos, eos) == float(total)
    for (h, states), (g, others) in itertools.product(seen.items(), repeat=2):
        for s, t in itertools.product(states, others):
            assert (s == t) == (hash(s) == hash(t)) == (h == g)
            assert len(h) >= len(g) or s < t


def test_random_models_cover_every_case(plain_model):
    models = [plain_model(seed) for seed in range(60)]
    assert {m.order for m in models} == {2, 3, 4, 5} and {m.lacks_unknown for m in models} == {False, True}
    assert {m.filled > 0 for m in models} == {False, True}
    assert any(m.histories - set(m.backoffs) for m in models), "histories that are kept because of longer n-grams"
    assert any(set(m.probs) - m.histories for m in models)


@pytest.mark.parametrize("seed", range(25))
def test_bits_beside_kenlm(seed, plain_model, tmp_path):
    """Scores agree bit for bit, including the sign of 0, and the same states are equal."""
    real = pytest.importorskip("kenlm", reason="the kenlm module is not installed")
    plain, rng = plain_model(seed), random.Random(seed)
    path = tmp_path / "model.arpa"
    path.write_text(plain.text)
    try:
        theirs = load(real, path)
    except OSError as error:
        assert "blank space" in str(error)
        return
    mine = load(ours, path)
    pairs = [(real.State(), ours.State())]
    for _ in range(60):
        before, word = rng.choice(pairs), rng.choice([*plain.words, "oov"])
        next_pair = real.State(), ours.State()
        a = theirs.BaseFullScore(before[0], word, next_pair[0])
        b = mine.BaseFullScore(before[1], word, next_pair[1])
        assert struct.pack("d", a.log_prob) == struct.pack("d", b.log_prob), word
        assert (a.ngram_length, a.oov) == (b.ngram_length, b.oov)
        pairs.append(next_pair)
    for (s, x), (t, y) in itertools.combinations(pairs, 2):
        assert (s == t, hash(s) == hash(t)) == (x == y, hash(x) == hash(y))


def contents(path):
    packed = path.with_name(path.name + ".xz")
    return lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("small.o5", "edge_query"),
        ("small.o3.prune001", "edge_query"),
        ("small_unk.o3.skip", "edge_query"),
        ("tiny.o3.fallback", "tiny_heldout"),
        ("tiny.o5.fallback", "tiny_heldout"),
    ],
)
def test_golden_texts(kenlm, name, text, shared_data, tmp_path):
    folder, path = shared_data / "golden", tmp_path / "model.arpa"
    path.write_bytes(contents(folder / "models" / f"{name}.arpa"))
    model, sentences = load(kenlm, path), 0
    for markers in True, False:
        queries = contents(folder / "queries" / f"{name}__{text}{'' if markers else '__n'}.txt")
        for line in queries.split(b"\n"):
            if b"Total: " not in line:
                continue
            *fields, total = line.split(b"\t")
            tokens = [field.rpartition(b"=") for field in fields if b"=" in field]
            words = b" ".join(word for word, _, _ in tokens[: len(tokens) - markers])
            scores = [rest.split() for _, _, rest in tokens]
            found = list(model.full_scores(words, markers, markers))
            assert [(n, oov) for _, n, oov in found] == [(int(n), int(v) == 0) for v, n, _ in scores]
            for (log10, _, _), (_, _, expected) in zip(found, scores, strict=True):
                assert math.isclose(log10, float(expected), rel_tol=2e-6, abs_tol=2e-6)
            log10 = float(total.split()[1])
            assert math.isclose(model.score(words, markers, markers), log10, rel_tol=1e-5, abs_tol=1e-5)
            sentences += 1
    assert sentences > 2
