"""`generate` with a model of words, beside a slow processor that asks KenLM's module for whole texts."""

import math

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.engine.states import word_pieces

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
ours = pytest.importorskip("mgpu_ngram.torch")
Tokenizer, decoders, models = tokenizers.Tokenizer, tokenizers.decoders, tokenizers.models
pre_tokenizers, trainers = tokenizers.pre_tokenizers, tokenizers.trainers

WORDS = [
    "the",
    "a",
    "an",
    "and",
    "ant",
    "then",
    "there",
    "cat",
    "cats",
    "catalog",
    "straße",
    "strand",
    "of",
    ",",
    ".",
    "x",
]
PIECES = [
    b" <pad> ", b" <s> ", b" </s> ",
    b" the", b"n", b"re", b" a", b"nd", b"nt", b"t", b" c", b"at", b"s", b"alog", b"cat", b" str", b"a\xc3", b"\x9fe",
    b",", b" ,", b"x", b" zz",  # punctuation, and what no word has
    b" ", b"\n\n", b"s ", b"nd\t",  # white space, and ends of words
    b" of the", b"t the", b"s, a", b" an ant ", b"n . x a",  # more than a word
    b"",
]  # fmt: skip
PAD, BOS, EOS, WEIGHT, MORE = 0, 1, 2, 0.7, 3  # the networks have more scores than there are pieces
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "pieces": PIECES}
V = len(PIECES)


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """Return an ARPA file of order 3 over words that begin alike."""
    rng, folder = np.random.default_rng(4), tmp_path_factory.mktemp("words")
    lines = [" ".join(WORDS[w % len(WORDS)] for w in rng.zipf(1.3, rng.integers(1, 9))) for _ in range(500)]
    (folder / "text").write_text("\n".join(lines) + "\n")
    words = ["estimate", str(folder / "text"), "-o", str(folder / "words.arpa"), "--order", "3", "--device", "cpu"]
    assert cli.main([*words, "--discount-fallback"]) == 0
    return folder / "words.arpa"


@pytest.fixture
def slow(arpa, plain_texts):
    """Return slow(partial)."""
    return lambda partial: Slow(plain_texts(arpa, [word.encode() for word in WORDS], partial))


class Slow(transformers.LogitsProcessor):
    """The reference: the score of the whole text with a token's bytes, less that of the text without them."""

    def __init__(self, texts):
        self.score = texts.score

    def __call__(self, input_ids, scores):
        made = scores.clone()
        for b, row in enumerate(input_ids.tolist()):
            while row and row[0] == PAD:
                row.pop(0)
            last = max((i + 1 for i, token in enumerate(row) if token in (BOS, EOS)), default=0)
            text = b"".join(PIECES[token] if token < V else b" ? " for token in row[last:])
            for token in range(V):
                after = self.score(text, True) if token == EOS else self.score(text + PIECES[token], False)
                made[b, token] += WEIGHT * (after - self.score(text, False))
        return made


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=V + MORE, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=BOS, eos_token_id=EOS
    )
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        vocab_size=V + MORE, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=BOS,
        pad_token_id=PAD, eos_token_id=EOS,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


HOW = {
    "greedy": ("sum", {}),
    "beams": ("sum", {"num_beams": 4, "num_return_sequences": 3}),
    "beams by a lexicon": ("lexicon", {"num_beams": 3}),
    "samples of whole words": ("none", {"do_sample": True, "temperature": 0.8, "num_return_sequences": 2}),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("make", [gpt2, t5])
def test_texts_are_those_of_the_slow_reference(make, how, arpa, slow, device):
    torch.manual_seed(5)
    network = make().eval().to("cuda" if device == "gpu" else "cpu")
    prompts = torch.tensor([[PAD, PAD, BOS, 3], [BOS, 6, 4, 10], [10, 11, EOS, 15]]).to(network.device)
    mask, (partial, options) = (prompts != PAD).long(), HOW[how]
    fast = ours.LogitsProcessor(ng.Model.load(arpa, device), WEIGHT, partial=partial, **SPECIAL)
    texts = []
    for processor in (fast, slow(partial)):
        torch.manual_seed(9)
        processors = transformers.LogitsProcessorList([processor])
        made = network.generate(
            prompts, attention_mask=mask, max_new_tokens=8, pad_token_id=PAD, logits_processor=processors, **options
        )
        texts.append(made)
    assert torch.equal(*texts) and texts[0].shape[0] == 3 * options.get("num_return_sequences", 1)


@pytest.mark.parametrize("room", [1, 1 << 30])
@pytest.mark.parametrize("partial", ["sum", "lexicon", "none"])
def test_scores_of_the_slow_reference(partial, room, arpa, slow, device, monkeypatch):
    monkeypatch.setitem(word_pieces.ROOM_BYTES, device, room)  # rows one by one, or together
    fast = ours.LogitsProcessor(ng.Model.load(arpa, device), WEIGHT, partial=partial, **SPECIAL)
    place, length = "cuda" if device == "gpu" else "cpu", 41
    rng = np.random.default_rng(1)
    rows = [
        [], [3], [3, 4], [10, 11, 12], [15, 16, 17], [14, 29, 3], [27, 28, 30, 21, 20], [3, EOS, 6], [EOS, PAD, 9],
        [22], [3, 22, 23], [10, V, 9], [6] + [8] * 40, [26, 3, 14] + [20] * 38, [22, 23] * 20,
        [6, 10, 11] + [31] * 10 + [22], [6, 10, 11] + [31] * 9 + [3, 22],  # words that began long before
        *rng.integers(3, V, (6, length)).tolist(),
    ]  # fmt: skip
    padded = torch.tensor([[PAD] * (length - len(row)) + row for row in rows]).to(place)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 8e-3)):
        scores = torch.randn(len(rows), V + MORE, device=place).to(dtype)
        before, made = scores.clone(), fast(padded, scores)
        assert made.dtype == dtype and torch.equal(scores, before) and torch.equal(made[:, V:], before[:, V:])
        wanted = slow(partial)(padded, scores.float())
        assert torch.allclose(made.float(), wanted, atol=tolerance * 4, rtol=tolerance)


HAND = """\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-2\t<unk>\t0
0\t<s>\t-0.5
-1\t</s>
-0.75\ta\t-0.25
-1.25\tab\t-0.125

\\2-grams:
-0.5\t<s> a
-0.375\ta ab

\\end\\
"""


def test_the_operator_keeps_the_rules_of_pytorch(arpa, device):
    from torch import library

    scores = ours.LogitsProcessor(ng.Model.load(arpa, device), WEIGHT, **SPECIAL)._words
    rows = torch.tensor([[PAD, 3, 4], [6, 10, 11]], device="cuda" if device == "gpu" else "cpu")
    library.opcheck(torch.ops.mgpu_ngram.piece_scores.default, (rows, rows != PAD, scores._number))


def test_scores_by_hand(tmp_path, device):
    (tmp_path / "hand.arpa").write_text(HAND)
    model = ng.Model.load(tmp_path / "hand.arpa", device)
    pieces = [b" a", b"b", b" ab", b"c", b"</s>"]
    rows = torch.tensor([[0]]).to("cuda" if device == "gpu" else "cpu")
    scores = torch.zeros(1, 5, device=rows.device)
    log = math.log
    # After <s>: a has -0.5, ab -0.5 - 1.25, <unk> -0.5 - 2.
    a, ab, unk = 10**-0.5, 10**-1.75, 10**-2.5
    # After <s> a: a has -0.25 - 0.75, ab -0.375, <unk> -0.25 - 2, </s> -0.25 - 1.
    again, ab_after, unk_after = 10**-1, 10**-0.375, 10**-2.25
    ended = log(a) - log(a + ab + unk)
    ab_alone = 10**-1.25 + 10**-2
    alone = 10**-0.75 + ab_alone  # what begins with a
    wanted = {
        "sum": [
            ended + log(again + ab_after + unk_after),
            log(ab + unk) - log(a + ab + unk),
            ended + log(ab_after + unk_after),
            log(unk) - log(a + ab + unk),
            ended - 1.25 * log(10),
        ],
        "lexicon": [
            log(a),
            log(ab_alone) - log(alone),
            log(a) - log(alone) + log(ab_alone),
            log(10**-2) - log(alone),
            log(a) - log(alone) - 1.25 * log(10),
        ],
        "none": [log(a), 0, log(a), 0, log(a) - 1.25 * log(10)],
    }
    for partial, values in wanted.items():
        fast = ours.LogitsProcessor(model, 1.0, eos_token_id=4, pieces=pieces, partial=partial)
        assert torch.allclose(fast(rows, scores)[0].cpu(), torch.tensor(values), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("partial", ["sum", "lexicon"])
def test_unknown_words_of_probability_0(partial, tmp_path):
    """A token that only unknown words have is as good as forbidden; it adds nothing where the text is unknown."""
    (tmp_path / "a.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-inf\t<unk>\n-99\t<s>\n-1\t</s>\n-0.1\tab\n\n\\end\\\n"
    )
    model = ng.Model.load(tmp_path / "a.arpa", "cpu")
    fast = ours.LogitsProcessor(model, 1, pieces=[b" a", b"b", b"x", b" "], partial=partial)
    known, unknown = fast(torch.tensor([[0], [2]]), torch.zeros(2, 4)).tolist()
    assert known[1] == 0 and known[2] < -1000 and known[3] < -1000
    assert unknown[1:] == [0, 0, 0] and unknown[0] == pytest.approx(-0.1 * np.log(10))


@pytest.mark.parametrize("backoff", [0, 1.5, 12])
@pytest.mark.parametrize("partial", ["sum", "lexicon"])
def test_words_whose_probabilities_sum_above_1(partial, backoff, tmp_path, device):
    """20 words have P = 1 each and <unk> 0.001; after <s>, each of them 10^backoff times as much."""
    unigrams = "".join(f"0\ta{letter}\n" for letter in "0123456789bcdefghijk")
    (tmp_path / "a.arpa").write_text(
        "\\data\\\nngram 1=24\nngram 2=1\n\n\\1-grams:\n-3\t<unk>\n"
        f"-99\t<s>\t{backoff}\n-1\t</s>\n-1\tb\n{unigrams}\n\\2-grams:\n-2\t<s> b\n\n\\end\\\n"
    )
    model = ng.Model.load(tmp_path / "a.arpa", device)
    fast = ours.LogitsProcessor(model, 1, pieces=[b" ", b" a", b"0"], partial=partial)
    rows = torch.tensor([[0], [1]], device="cuda" if device == "gpu" else "cpu")
    first, second = fast(rows, torch.zeros(2, 3, device=rows.device)).tolist()
    each = 10**backoff if partial == "sum" else 1
    assert first[1] == pytest.approx(math.log(each * 20.001), rel=1e-5)
    assert second[2] == pytest.approx(math.log(1.001 / 20.001), rel=1e-4)


def test_wrong_arguments_are_refused(arpa):
    model = ng.Model.load(arpa, "cpu")
    for options, message in (
        ({"pieces": PIECES, "partial": "max"}, "partial is 'max' but must be sum or lexicon or none"),
        ({"pieces": PIECES, "tokens": ["a"]}, "tokens are for a model of tokens and pieces for one of words; give one"),
        ({"pieces": [b" the", "Ġa"]}, "piece 1 is 'Ġa' but must be bytes; pieces_of"),
        ({"pieces": [b" THE", b" "]}, "none of the 2 pieces begins a word of the model; check how"),
        ({"pieces": []}, "none of the 0 pieces begins a word of the model"),
        ({"pieces": {b" the"}}, "pieces are {b' the'} but must be a list of bytes, by token id"),
    ):
        with pytest.raises(ng.InputError, match=message):
            ours.LogitsProcessor(model, 1.0, **options)


TEXTS = ("the cat sat, on the mat!", "Ünïcode text - with\nnew lines", "a cathedral  of cats")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False))
    all_bytes = "".join(map(chr, [*range(0x800), 0xFFFD, 0x1F600, 0x10FFFF]))  # of UTF-8
    return made, {text: text for text in (*TEXTS, all_bytes)}


def sentence_piece():
    vocabulary = [("<unk>", 0.0), *((byte, -9.0) for byte in BYTES), *((c, -5.0) for c in "▁acdefghilmnorstu")]
    made = Tokenizer(models.Unigram([*vocabulary, ("▁the", -2.0), ("▁c", -2.0), ("at", -2.0)], 0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made, {text: f" {text}" for text in TEXTS}


def metaspace():
    made, texts = sentence_piece()
    made.decoder = decoders.Metaspace()
    return made, {TEXTS[2]: texts[TEXTS[2]]}


def word_piece():
    words = ["[UNK]", "the", "cat", "##hed", "##ral", "s", "##at", ",", "on", "m", "!", "a", "of", "##s"]
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return made, {TEXTS[0]: " the cat sat , on the mat !", TEXTS[2]: " a cathedral of cats"}


def words():
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "of": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made, {"the cat of cats": " the cat of [UNK]"}


def ends_of_words():
    letters = [chr(c) for c in range(97, 123)]
    vocabulary = {piece: i for i, piece in enumerate([*letters, *(f"{c}</w>" for c in letters), "th", "the</w>"])}
    made = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e</w>")], end_of_word_suffix="</w>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.WhitespaceSplit(), decoders.BPEDecoder("</w>")
    return made, {"the mat": "the mat "}


@pytest.mark.parametrize("make", [byte_level, sentence_piece, metaspace, word_piece, words, ends_of_words])
def test_pieces_are_the_bytes_of_a_text(make):
    backend, texts = make()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    tokenizer.add_tokens(["<think>"])
    pieces = ours.pieces_of(tokenizer)
    for text, wanted in texts.items():
        assert b"".join(pieces[token] for token in tokenizer(text)["input_ids"]) == wanted.encode()
    assert len(pieces) == len(tokenizer) and pieces[tokenizer.eos_token_id] == b" </s> " and pieces[-1] == b"<think>"


def test_tokenizers_that_are_refused():
    backend, _ = byte_level()
    backend.decoder = decoders.CTC()
    with pytest.raises(ng.InputError, match="has the decoder CTC, which pieces_of does not know; give bytes"):
        ours.pieces_of(transformers.PreTrainedTokenizerFast(tokenizer_object=backend))
    with pytest.raises(ng.InputError, match="str has no backend_tokenizer; load the fast tokenizer, or give bytes"):
        ours.pieces_of("gpt2")
