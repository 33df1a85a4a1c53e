"""`generate` of Transformers with an n-gram model, beside a slow processor that asks KenLM's module word by word."""

import math
import pickle

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli, kenlm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
ours = pytest.importorskip("mgpu_ngram.torch")

V, PAD, BOS, EOS, WEIGHT = 40, 0, 1, 2, 0.7
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """Return an ARPA file of order 3 over token ids, made by `--unit id`; it lacks the tokens from 35 on."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("ids")
    lines = [[*(3 + rng.zipf(1.3, rng.integers(2, 14)) % 32), EOS] for _ in range(900)]
    np.concatenate(lines).astype(np.uint16).tofile(folder / "ids.bin")
    words = ["estimate", str(folder / "ids.bin"), "-o", str(folder / "ids.arpa"), "--order", "3", "--device", "cpu"]
    flags = ["--unit", "id", "--dtype", "uint16", "--separator-id", str(EOS), "--discount-fallback"]
    assert cli.main(words + flags) == 0
    return folder / "ids.arpa"


class Slow(transformers.LogitsProcessor):
    """The reference: KenLM's states from the first token of each row on."""

    def __init__(self, arpa, padded):
        self.model, self.padded = kenlm.Model(str(arpa)), padded

    def begin(self):
        state = kenlm.State()
        self.model.BeginSentenceWrite(state)
        return state

    def after(self, row):
        state, tokens = self.begin(), row.tolist()
        while self.padded and tokens and tokens[0] == PAD:
            tokens.pop(0)
        for token in tokens:
            following = kenlm.State()
            self.model.BaseScore(state, str(token), following)
            state = self.begin() if token in (BOS, EOS) else following
        return state

    def __call__(self, input_ids, scores):
        made = scores.clone()
        for b, row in enumerate(input_ids):
            state = self.after(row)
            for token in range(V):
                word = "</s>" if token == EOS else str(token)
                made[b, token] += WEIGHT * math.log(10) * self.model.BaseScore(state, word, kenlm.State())
        return made


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=BOS, eos_token_id=EOS
    )
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        vocab_size=V, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=BOS,
        pad_token_id=PAD, eos_token_id=EOS,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


HOW = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "samples": {"do_sample": True, "temperature": 0.8, "num_return_sequences": 2},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("make", [gpt2, t5])
def test_texts_are_those_of_the_slow_reference(make, how, arpa, device):
    torch.manual_seed(5)
    network = make().eval().to("cuda" if device == "gpu" else "cpu")
    prompts = torch.tensor([[PAD, PAD, BOS, 5], [BOS, 6, 4, 9], [7, 7, EOS, 3]]).to(network.device)
    mask = (prompts != PAD).long()
    fast = ours.LogitsProcessor(ng.Model.load(arpa, device), WEIGHT, **SPECIAL)
    texts = []
    for processor in (fast, Slow(arpa, True)):
        torch.manual_seed(9)
        options = HOW[how] | {"max_new_tokens": 8, "pad_token_id": PAD}
        processors = transformers.LogitsProcessorList([processor])
        texts.append(network.generate(prompts, attention_mask=mask, logits_processor=processors, **options))
    assert torch.equal(*texts) and texts[0].shape[0] == 3 * HOW[how].get("num_return_sequences", 1)
    without = network.generate(prompts, attention_mask=mask, max_new_tokens=8, pad_token_id=PAD)
    assert how != "greedy" or not torch.equal(without, texts[0])  # the n-grams have an effect


def test_scores_by_hand(arpa, device):
    fast = ours.LogitsProcessor(ng.Model.load(arpa, device), WEIGHT, **SPECIAL)
    place = "cuda" if device == "gpu" else "cpu"
    rows = torch.tensor([[PAD, 5, 6], [3, 4, 5], [EOS, PAD, 9], [PAD, PAD, PAD]]).to(place)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-2)):
        scores = torch.randn(4, V, device=place).to(dtype)
        before, made = scores.clone(), fast(rows, scores)
        assert made.dtype == dtype and torch.equal(scores, before)
        wanted = Slow(arpa, True)(rows, scores.float())
        assert torch.allclose(made.float(), wanted, atol=tolerance * 40, rtol=tolerance)


@pytest.mark.parametrize("pieces", [None, [b" %d" % i for i in range(V)]])
def test_a_sentence_begins_after_each_end(pieces, arpa):
    """Also without a token that begins sentences."""
    fast = ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), WEIGHT, eos_token_id=[EOS, 0], pieces=pieces)
    scores = fast(torch.tensor([[5, 6, EOS], [5, 6, 0], [5, 6, 7]]), torch.zeros(3, V))
    begun = fast(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, V))[0]
    assert torch.equal(scores[0], begun) and torch.equal(scores[1], begun) and not torch.equal(scores[2], begun)


def test_more_scores_than_tokens(arpa):
    words = [str(token) for token in range(V)]
    fast = ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), WEIGHT, tokens=words)
    scores = torch.randn(2, V + 8)
    made = fast(torch.tensor([[4], [5]]), scores)
    assert torch.equal(made[:, V:], scores[:, V:]) and not torch.equal(made[:, :V], scores[:, :V])


def test_tokens_are_words_in_the_order_of_a_list(arpa):
    model, words = ng.Model.load(arpa, "cpu"), torch.arange(V) * 7 % V
    rows, scores = torch.randint(V, (5, 4)), torch.zeros(5, V)
    made = ours.LogitsProcessor(model, 1, tokens=[str(word) for word in words.tolist()])(rows, scores)
    assert torch.equal(made, ours.LogitsProcessor(model, 1)(words[rows], scores)[:, words])


@pytest.mark.parametrize("weight", [-1, math.inf, math.nan, "1", True])
def test_a_wrong_weight_is_refused(arpa, weight):
    with pytest.raises(ng.InputError, match=r"weight is .* but must be a finite number, 0 or more"):
        ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos_token_id": "2"}, "eos_token_id is '2' but must be an integer"),
        ({"eos_token_id": [1, 2.0]}, "eos_token_id is 2.0 but must be an integer"),
        ({"bos_token_id": [1]}, r"bos_token_id is \[1\] but must be an integer"),
        ({"pad_token_id": "0"}, "pad_token_id is '0' but must be an integer"),
        ({"pad_token_id": 1 << 63}, "pad_token_id is 9223372036854775808 but must be an integer of 64 bits"),
        ({"bos_token_id": 1 << 70}, "bos_token_id is 1180591620717411303424 but must be an integer of 64 bits"),
        ({"eos_token_id": [2, -(1 << 64)]}, "eos_token_id is -18446744073709551616 but must be an integer of 64 bits"),
        ({"partial": "max"}, "partial is 'max' but must be sum or lexicon or none"),
        ({"tokens": {"4": 0}}, "tokens are {'4': 0} but must be a list of words, by token id"),
        ({"model": "lm.arpa"}, "model is 'lm.arpa' but must be a loaded model"),
    ],
)
def test_wrong_tokens_are_refused(arpa, options, message):
    with pytest.raises(ng.InputError, match=message):
        ours.LogitsProcessor(**{"model": ng.Model.load(arpa, "cpu"), "weight": WEIGHT, **options})


@pytest.mark.parametrize(
    ("rows", "scores"),
    [
        (torch.ones(2, 3), torch.zeros(2, V)),
        (torch.ones(3, dtype=torch.int64), torch.zeros(1, V)),
        (torch.ones(2, 3, dtype=torch.int64), torch.zeros(1, V)),
        (torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, V, dtype=torch.int64)),
        ([[1]], torch.zeros(1, V)),
    ],
    ids=["float rows", "one row", "other rows", "integer scores", "list"],
)
def test_wrong_rows_are_refused(arpa, rows, scores):
    with pytest.raises(ng.InputError, match=r"input_ids are .* and scores torch.* but must be tensors of integers"):
        ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), WEIGHT)(rows, scores)


def test_several_ends_may_be_a_tensor(arpa):
    model, rows = ng.Model.load(arpa, "cpu"), torch.tensor([[4, EOS]])
    made = [ours.LogitsProcessor(model, 1, eos_token_id=end)(rows, torch.zeros(1, V)) for end in (EOS, np.int64(EOS))]
    made.append(ours.LogitsProcessor(model, 1, eos_token_id=torch.tensor([EOS]))(rows, torch.zeros(1, V)))
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])


@pytest.mark.parametrize("options", [{"eos_token_id": EOS}, {"pieces": [b" %d" % i for i in range(V)]}])
def test_a_processor_pickles(arpa, options):
    processor = ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), WEIGHT, pad_token_id=PAD, **options)
    ids, scores = torch.tensor([[PAD, 5, 6], [7, 8, 9]]), torch.zeros(2, V)
    assert torch.equal(pickle.loads(pickle.dumps(processor))(ids, scores), processor(ids, scores))


@pytest.mark.parametrize("options", [{}, {"pieces": [b" 3", b"1", b" 4 5", *(b" %d" % i for i in range(3, V))]}])
def test_a_processor_may_stand_in_a_compiled_function(arpa, options, device):
    processor = ours.LogitsProcessor(ng.Model.load(arpa, device), WEIGHT, **SPECIAL, **options)
    place = "cuda" if device == "gpu" else "cpu"

    def scores(ids, scores):
        return 2 * processor(ids, scores + 1)

    torch._dynamo.reset()
    for fullgraph in (False, True):  # the first call makes the model of tokens
        compiled = torch.compile(scores, backend="aot_eager", fullgraph=fullgraph)
        for rows in 2, 3:
            inputs = torch.randint(V, (rows, 4), device=place), torch.randn(rows, V, device=place)
            assert torch.equal(compiled(*inputs), scores(*inputs))


def test_a_wider_network_may_follow(arpa):
    fast, rows = ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), WEIGHT), torch.tensor([[4, 5]])
    narrow, wide = (fast(rows, torch.zeros(1, width)) for width in (V - 3, V))
    assert torch.equal(narrow, wide[:, : V - 3]) and (wide[:, V - 3 :] < 0).all()


def test_the_weight_0_changes_nothing(tmp_path):
    (tmp_path / "a.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-inf\t<unk>\n-99\t<s>\n-1\t</s>\n-0.1\t0\n\n\\end\\\n"
    )
    fast = ours.LogitsProcessor(ng.Model.load(tmp_path / "a.arpa", "cpu"), 0)
    assert fast(torch.tensor([[0]]), torch.ones(1, 3)).tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("end", [V, -1])
def test_an_end_that_is_no_token_is_refused(arpa, end):
    fast = ours.LogitsProcessor(ng.Model.load(arpa, "cpu"), WEIGHT, eos_token_id=[EOS, end])
    with pytest.raises(ng.InputError, match=f"eos_token_id is {end} but there are scores of {V} tokens; give one of"):
        fast(torch.tensor([[4]]), torch.zeros(1, V))
