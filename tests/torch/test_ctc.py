"""Search over the outputs of CTC: the facts of pyctcdecode's tests, a slow search on strings, all alignments."""

import itertools
import math
import pickle

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.core.errors import InputError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
CTCBeamSearch = pytest.importorskip("mgpu_ngram.torch").CTCBeamSearch

CHARACTERS = [" ", "b", "g", "n", "s", "u", "y", ""]
PIECES = ["", *"abc", "ab", "ba", "bab", "ca", "cb", "▁a", "▁b", "▁c", "▁ab", "▁ba", "▁⁇▁", "▁"]
BUGS = """\\data\\
ngram 1=5
ngram 2=5

\\1-grams:
-2\t<unk>
-1\t<s>\t-0.5
-1\t</s>
-0.7\tbugs\t-0.5
-0.7\tbunny\t-0.5

\\2-grams:
-0.3\t<s> bugs
-0.1\tbugs </s>
-0.1\tbugs bunny
-0.3\tbunny </s>
-2\tbunny bunny

\\end\\
"""


def to(device, rows):
    return torch.tensor(np.array(rows), dtype=torch.float32).to("cuda" if device == "gpu" else "cpu")


def frames(*texts, weights=None, labels=CHARACTERS):
    """Return ln P of frames, each with the characters of the texts at its place; "-" is the blank."""
    rows = np.zeros((len(texts[0]), len(labels)))
    for text, weight in zip(texts, weights or [1.0], strict=True):
        for t, label in enumerate(text):
            rows[t, labels.index(label.replace("-", ""))] += weight
    return np.log(np.clip(rows, 1e-15, 1))


TEST = np.vstack([frames("bugs--", "bun-ny", weights=[0.49, 0.51]), frames(" bun-ny")])


@pytest.fixture(scope="module")
def bugs_arpa(tmp_path_factory):
    path = tmp_path_factory.mktemp("bugs") / "bugs.arpa"
    path.write_text(BUGS)
    return path


@pytest.fixture
def bugs(bugs_arpa, device):
    return ng.Model.load(bugs_arpa, device)


def best(search, rows, device, **options):
    return search(to(device, [rows]), **options)[0][0]


def test_facts_of_pyctcdecode(bugs, device):
    """A model corrects "bunny bunny" to "bugs bunny", unless its weight is 0, "bugs" is unknown, or "bunny" is hot."""
    plain = CTCBeamSearch(CHARACTERS)
    assert best(plain, TEST, device).text == "bunny bunny"
    assert best(plain, TEST, device, hotwords=["bugs"]).text == "bugs bunny"
    found = plain(to(device, [TEST]), n_best=100)[0]
    assert len(found) == 16 and found[-1].text == "bugs bunny"
    assert found[0].words == [("bunny", 0, 6), ("bunny", 7, 13)]
    assert found[0].logit_score == pytest.approx(4 * math.log(0.51), abs=1e-5)
    assert all(h.score == h.logit_score and h.state == -1 for h in found)

    assert best(CTCBeamSearch(CHARACTERS, bugs, alpha=0.0), TEST, device).text == "bunny bunny"
    for unigrams in (None, [], ["bugs", "bunny"]):
        search = CTCBeamSearch(CHARACTERS, bugs, unigrams=unigrams, alpha=1.0)
        assert best(search, TEST, device).text == "bugs bunny"
    assert best(CTCBeamSearch(CHARACTERS, bugs, unigrams=["bunny"], alpha=1.0), TEST, device).text == "bunny bunny"
    free = CTCBeamSearch(CHARACTERS, bugs, unigrams=["bunny"], alpha=1.0, unk_score_offset=0.0)
    assert best(free, TEST, device).text == "bugs bunny"

    search = CTCBeamSearch(CHARACTERS, bugs)
    assert best(search, TEST, device, token_min_logp=0.0).text == "bunny bunny"  # the best tokens alone
    assert best(search, TEST, device, hotwords=["bunny"], hotword_weight=20).text == "bunny bunny"
    assert best(search, TEST, device, hotwords=["bugs bunny"], hotword_weight=20).text == "bugs bunny"


def test_equal_histories_are_pruned(device):
    rows = np.vstack([TEST, *[frames(" bun-ny")] * 5])
    search = CTCBeamSearch(CHARACTERS)
    assert len(search(to(device, [rows]), n_best=100)[0]) == 16
    [only] = search(to(device, [rows]), n_best=100, prune_history=True)[0]
    assert only.text == " ".join(["bunny"] * 7)


def test_states_continue_a_text(bugs, device):
    rows = np.vstack([frames("bugs"), frames(" "), frames("bugs--", "bun-ny", weights=[0.51, 0.49])])
    search = CTCBeamSearch(CHARACTERS, bugs)
    assert best(search, rows, device).text == "bugs bunny"
    first = best(search, rows[:4], device)
    assert (first.text, best(search, rows[5:], device).text) == ("bugs", "bugs")
    assert best(search, rows[5:], device, start_states=[first.state]).text == "bunny"


def test_scores_by_hand(bugs, device):
    """One path of certain frames: ln P(bugs | <s>) and ln P(bunny </s> | bugs), with weights."""
    found = best(CTCBeamSearch(CHARACTERS, bugs, alpha=0.5, beta=1.5), frames("bugs bun-ny"), device)
    log10 = -0.3 + -0.1 + -0.3
    assert found.score == pytest.approx(0.5 * log10 * math.log(10) + 2 * 1.5, abs=1e-6)
    assert found.logit_score == 0 and found.words == [("bugs", 0, 4), ("bunny", 5, 11)]
    assert found.state == bugs.step(bugs.start(1, bos=False), bugs.start(1) * 0 + bugs.vocabulary.id("bunny"))[1][0]


@pytest.mark.parametrize("labels", [["", "a", " "], ["▁a", "", "a"]], ids=["characters", "pieces"])
def test_wide_beams_sum_all_alignments(labels, device):
    rng, T = np.random.default_rng(5), 6
    rows = np.log(rng.dirichlet(np.ones(3), T))
    sums = {}
    for path in itertools.product(range(3), repeat=T):
        tokens = [labels[v] for v, _ in itertools.groupby(path)]
        text = " ".join("".join(tokens).replace("▁", " ").split())
        sums[text] = sums.get(text, 0.0) + math.exp(sum(rows[t, v] for t, v in enumerate(path)))
    options = {"n_best": 1024, "beam_width": 1024, "beam_prune_logp": -1e6, "token_min_logp": -1e6}
    found = CTCBeamSearch(labels)(to(device, [rows]), **options)[0]
    assert {h.text: pytest.approx(math.exp(h.score), rel=1e-5) for h in found} == sums


@pytest.fixture(scope="module")
def words_arpa(tmp_path_factory):
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("words")
    words = ["a", "b", "ab", "abab", "ba", "bab", "caab", "⁇", "abcabcabc"]
    lines = [" ".join(rng.choice(words, rng.integers(1, 7))) for _ in range(200)]
    (folder / "text").write_text("\n".join(lines) + "\n")
    command = ["estimate", str(folder / "text"), "-o", str(folder / "words.arpa"), "--order", "3", "--device", "cpu"]
    assert cli.main([*command, "--discount-fallback"]) == 0
    return folder / "words.arpa"


@pytest.mark.parametrize("seed", range(12))
def test_results_are_those_of_a_slow_search(seed, words_arpa, plain_ctc, device):
    """Random frames of both kinds of labels, with and without a model, hot words, known words and pruning."""
    rng, model = np.random.default_rng(seed), ng.Model.load(words_arpa, device)
    pieces, scored = seed % 2 == 0, seed % 3 > 0
    labels = PIECES if pieces else ["a", "", "b", " ", "c"]
    lengths = rng.integers(0, 15, 3)
    logits = rng.normal(0, 1 + seed % 3, (3, max(lengths), len(labels)))
    log_probs = torch.tensor(logits, dtype=torch.float32).log_softmax(-1)
    given = [None, ["ab", "ba", "caab", "elsewhere"], []][seed % 5 % 3]
    settings = {"alpha": 0.7, "beta": 0.5, "unknown": -3.0, "boundary": seed % 4 > 0}
    options = {
        "beam_width": (4, 30)[seed % 2], "beam_prune_logp": (-15.0, -60.0)[seed % 4 == 3],
        "token_min_logp": (-4.0, -40.0)[seed % 5 > 1], "prune_history": seed % 3 == 1,
    }  # fmt: skip
    hot = [(), ["abab ba", "cab", "bbé", "bbéé"]][seed // 2 % 2]
    search = CTCBeamSearch(
        labels, model if scored else None, unigrams=given if scored else None, alpha=settings["alpha"],
        beta=settings["beta"], unk_score_offset=settings["unknown"], lm_score_boundary=settings["boundary"],
    )  # fmt: skip
    listed = [word for word in model.vocabulary if word[0] != "<"] if given is None else given
    plain = plain_ctc(labels, pieces, words_arpa if scored else None, listed, **settings)
    found = search(to(device, log_probs.numpy()), lengths, n_best=options["beam_width"], hotwords=hot, **options)
    for b, length in enumerate(lengths):
        wanted = plain(log_probs[b, :length].double().tolist(), hot, **options)
        assert [(h.text, h.words) for h in found[b]] == [(text, words) for text, words, _, _ in wanted]
        scores = [(h.logit_score, h.score) for h in found[b]]
        assert np.allclose(scores, [(logit, score) for _, _, logit, score in wanted], atol=1e-9)


def test_utterances_do_not_depend_on_their_batch(words_arpa, device):
    model = ng.Model.load(words_arpa, device)
    log_probs = torch.randn(5, 40, 5, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    rows, lengths = to(device, log_probs.numpy()), [40, 0, 7, 39, 40]
    search = CTCBeamSearch(["a", "", "b", " ", "c"], model)
    found = search(rows, torch.tensor(lengths), n_best=3)
    rows[1:4, 39] = 0  # behind their ends
    alone = [search(rows[b : b + 1, : max(n, 1)], [n], n_best=3)[0] for b, n in enumerate(lengths)]
    assert found == alone and [h.text for h in found[1]] == [""]
    assert search(rows[:0]) == []


@pytest.mark.parametrize(
    ("labels", "texts"),
    [
        (["|", "a", "<pad>", "[UNK]"], [" ", "a", "", "⁇"]),
        (["_", "a", "|", " "], ["", "a", "|", " "]),
        (["a", "b"], ["a", "b", ""]),
        (["##a", "b", "[PAD]", "<unk>", "▁"], ["a", "▁b", "", "▁⁇▁", "▁"]),
        (["▁a", "_"], ["▁a", "_", ""]),
    ],
    ids=["wav2vec2", "underscore", "no blank", "wordpiece", "sentencepiece"],
)
def test_labels_are_read_as_pyctcdecode_reads_them(labels, texts, device):
    """Each label alone in a frame, behind the letter "a", if that is one."""
    T = len(texts)
    found = CTCBeamSearch(labels)(to(device, np.log(np.eye(T)[:, None] + 1e-9)).clip(max=0))
    spelled = [text.replace("▁", " ").strip() for text in texts]
    assert [h[0].text for h in found] == spelled


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("ab", "labels are 'ab' but must be a list of strings"),
        (["a", 1], "must be a list of strings"),
        ({"a": 0, "": 1}, "labels are {'a': 0, '': 1} but must be a list of strings, one for each token"),
        (None, "labels are None but must be a list of strings"),
        (["a", "b", "a"], "labels 0 and 2 are both 'a'"),
        (["", "a", "<pad>"], "labels 0 and 2 are both ''"),
        (["▁a", "a b"], "label 1 is 'a b', with a space"),
        (["", " "], "have no characters"),
    ],
)
def test_bad_labels(labels, says):
    with pytest.raises(InputError, match=says):
        CTCBeamSearch(labels)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"log_probs": np.zeros((1, 2, 3))}, "log_probs are ndarray but must be a tensor"),
        ({"log_probs": torch.zeros(2, 3)}, r"torch.float32 of shape \(2, 3\) but must be .* of shape \(B, T, V\)"),
        ({"log_probs": torch.zeros(1, 2, 3, dtype=torch.int64)}, "torch.int64 of shape .* but must be floating-point"),
        ({"log_probs": torch.zeros(1, 2, 4)}, "log_probs have 4 tokens but there are 3 labels, with the blank; give"),
        ({"log_probs": torch.full((1, 2, 3), math.nan)}, r"log_probs\[0\] has NaN; give natural logarithms"),
        ({"log_probs": torch.ones(1, 2, 3)}, r"log_probs\[0\] has numbers above 0; .*log_softmax"),
        ({"lengths": [3]}, "lengths have 3 but must be 0 to 2"),
        ({"lengths": [1 << 40]}, "lengths have 1099511627776 but must be 0 to 2"),
        ({"lengths": [1, 1]}, r"lengths are int64 of shape \(2,\) but must be an integer for each of the 1 utterances"),
        ({"lengths": [1.0]}, r"lengths are float64"),
        ({"lengths": [[1], [1, 2]]}, r"lengths are \[\[1\], \[1, 2\]\] but must be an integer for each"),
        ({"lengths": torch.ones(1, dtype=torch.bfloat16)}, r"lengths are tensor\(.* but must be an integer for each"),
        ({"n_best": 0}, "n_best is 0 but must be an integer, 1 or more"),
        ({"n_best": 5, "beam_width": 4}, "n_best is 5 but must be at most beam_width, which is 4"),
        ({"beam_width": 1025}, "beam_width is 1,025 but must be at most 1,024"),
        ({"beam_prune_logp": 1}, "beam_prune_logp is 1.0 but must be at most 0; -10 drops"),
        ({"token_min_logp": math.inf}, "token_min_logp is inf but must be a finite number"),
        ({"hotwords": "abc"}, r"hotwords are 'abc' but must be a list of words"),
        ({"hotwords": 5}, r"hotwords are 5 but must be a list of words"),
        ({"hotwords": [1]}, "hotwords have 1 but must be strings"),
        ({"hotword_weight": "1"}, "hotword_weight is '1' but must be a finite number"),
        ({"start_states": [0]}, "start_states are given but no model; make the search with a model"),
    ],
)
def test_bad_calls(change, says):
    arguments = {"log_probs": torch.zeros(1, 2, 3), **change}
    with pytest.raises(InputError, match=says) as error:
        CTCBeamSearch(["", "a", " "])(**arguments)
    assert "\n" not in str(error.value)


def test_bad_settings(bugs):
    with pytest.raises(InputError, match="alpha is nan"):
        CTCBeamSearch(["a"], bugs, alpha=math.nan)
    with pytest.raises(InputError, match="unigrams are given but no model"):
        CTCBeamSearch(["a"], unigrams=["a"])
    with pytest.raises(InputError, match="unigrams are 'a' but must be a list of words"):
        CTCBeamSearch(["a"], bugs, unigrams="a")
    with pytest.raises(InputError, match="unigrams have b'bugs' but must be strings"):
        CTCBeamSearch(["a"], bugs, unigrams=[b"bugs"])
    with pytest.raises(InputError, match="model is 'bugs.arpa' but must be a loaded model"):
        CTCBeamSearch(["a"], "bugs.arpa")
    with pytest.raises(InputError, match=r"start_states are int64 of shape \(2,\) but must be an integer for each"):
        CTCBeamSearch(CHARACTERS, bugs)(to(bugs.device, [TEST]), start_states=[0, 0])


def test_a_search_pickles(bugs, device):
    search = CTCBeamSearch(CHARACTERS, bugs)
    expected = search(to(device, TEST[None]), n_best=3)  # makes what a copy makes anew
    assert pickle.loads(pickle.dumps(search))(to(device, TEST[None]), n_best=3) == expected


def test_a_search_may_stand_in_a_compiled_function(bugs, device):
    """It is made in the first call, and leaves a break in the graph."""
    search, rows = CTCBeamSearch(CHARACTERS, bugs), to(device, [TEST])
    compiled = torch.compile(lambda rows: search((2 * rows) / 2, hotwords=["bunny"]), backend="eager")
    assert compiled(rows) == search(rows, hotwords=["bunny"])


def test_a_search_takes_other_weights_of_the_same_hot_words(device):
    """The first frames are 0.49 "bugs" and 0.51 "bunny", in 4 frames: ln (0.51 / 0.49) x 4 = 0.16."""
    search = CTCBeamSearch(CHARACTERS)
    texts = [best(search, TEST, device, hotwords=["bugs"], hotword_weight=weight).text for weight in (0.1, 10, 0.1)]
    assert texts == ["bunny bunny", "bugs bunny", "bunny bunny"]


def test_numbers_of_numpy_are_numbers(bugs, device):
    plain, numpy = (CTCBeamSearch(CHARACTERS, bugs, alpha=kind(0.5)) for kind in (float, np.float32))
    assert numpy(to(device, [TEST]), beam_width=np.int64(9)) == plain(to(device, [TEST]), beam_width=9)


@pytest.mark.gpu
def test_a_tensor_elsewhere_than_the_model_is_refused(bugs_arpa):
    search = CTCBeamSearch(CHARACTERS, ng.Model.load(bugs_arpa, "cpu"))
    with pytest.raises(InputError, match="log_probs are on cuda:0 but the model is on the cpu; .*device='gpu'"):
        search(to("gpu", [TEST]))


def test_long_unknown_words_cost_more(bugs, device):
    """After "ababab", an "a" of 0.6 gives ln 0.6 - 3 * 7 / 6 = -4.01, and a blank of 0.4 gives ln 0.4 - 3 = -3.92."""
    labels = ["", "a", "b"]
    rows = np.vstack([frames("ababab", labels=labels), frames("a", "-", weights=[0.6, 0.4], labels=labels)])
    search = CTCBeamSearch(labels, bugs, unk_score_offset=-3.0)
    assert best(search, rows, device, beam_width=1).text == "ababab"
    assert best(search, rows[1:], device, beam_width=1).text == "bababa"


def test_marks_of_sentences_are_no_words(bugs, device):
    """Labels that spell <s> and </s> make unknown words: P(<unk> | <s>), the offset, P(</s> | <unk>)."""
    labels = ["<s>", "</s>", "", " "]
    rows = np.log(np.clip([[0.0, 1, 0, 0]], 1e-15, 1))
    found = best(CTCBeamSearch(labels, bugs, alpha=1.0, beta=0.0), rows, device)
    assert found.text == "</s>" and found.score == pytest.approx((-2.0 + -0.5 - 10.0 + -1.0) * math.log(10), abs=1e-5)


def test_equal_scores_rank_by_token_then_by_parent(device):
    rows = np.log([[0.2, 0.4, 0.4], [0.2, 0.4, 0.4]])
    found = CTCBeamSearch(["", "b", "a"])(to(device, [rows]), n_best=9)[0]
    assert [h.text for h in found] == ["b", "a", "ab", "ba", ""]
    assert found[0].score == found[1].score > found[2].score == found[3].score
    assert best(CTCBeamSearch(["", "b", "a"]), rows, device, beam_width=1).text == "b"


def test_words_of_other_characters_begin_as_known_ones(bugs, device):
    """The word "bugs" has an "s" that labels lack, so its beginning "bug" is not unknown, but the word is."""
    labels = ["b", "u", "g", ""]
    rows = frames("bug", labels=labels)
    search = CTCBeamSearch(labels, bugs, unk_score_offset=-10.0, alpha=1.0, beta=0.0)
    unknown = -2.0 + -0.5 - 10.0 + -1.0  # P(<unk> | <s>), the offset, P(</s> | <unk>)
    assert best(search, rows, device).score == pytest.approx(unknown * math.log(10), abs=1e-5)


@pytest.mark.gpu
def test_a_search_waits_for_the_stream_of_its_input(words_arpa):
    search = CTCBeamSearch(["a", "", "b", " ", "c"], ng.Model.load(words_arpa, "gpu"))
    logits = torch.randn(8, 50, 5, generator=torch.Generator().manual_seed(2)).cuda()
    expected = search(logits.log_softmax(-1))
    large, stream = torch.randn(4096, 4096, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            large = (large @ large).clamp(-1, 1)
        log_probs = (logits + 0 * large[0, 0]).log_softmax(-1)
        found = search(log_probs, hotwords=[])
    assert found == expected


@pytest.mark.multigpu
def test_another_than_the_current_gpu_is_refused():
    with pytest.raises(InputError, match="log_probs are on cuda:1 but the current device is cuda:0"):
        CTCBeamSearch(["", "a"])(torch.zeros(1, 1, 2, device="cuda:1"))
