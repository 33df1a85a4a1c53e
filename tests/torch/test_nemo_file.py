"""N-gram models in files of NeMo's: one by hand, beside its ARPA file. tests/peers/run_nemo.sh reads one of NeMo's."""

import io
import math
import tarfile

import pytest

import mgpu_ngram as ng

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
NGramLM = pytest.importorskip("mgpu_ngram.torch").NGramLM

# Tokens d, e and f are 0 to 2; the model lacks f, and has no trigram </s> after <s> d. NeMo's automaton is below.
ARPA = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.25
-1\t</s>
-0.5\td\t-0.125
-0.75\te\t-0.375

\\2-grams:
-0.25\t<s> d\t-0.0625
-0.625\td e\t-0.1875
-0.875\td </s>
-1.25\te d

\\3-grams:
-0.4375\t<s> d e

\\end\\
"""
FIRST, BEGUN, D, E, BEGUN_D, D_E, E_D = range(7)
ARCS = [  # from, to, token, log10
    (FIRST, D, 0, -0.5), (FIRST, E, 1, -0.75), (FIRST, FIRST, 2, -1.5),
    (BEGUN, BEGUN_D, 0, -0.25), (D, D_E, 1, -0.625), (E, E_D, 0, -1.25), (BEGUN_D, D_E, 1, -0.4375),
]  # fmt: skip
STATES = [  # order, state without the first word, log10 of the backoff and of the end
    (1, FIRST, 0, -1), (2, FIRST, -0.25, -1.25), (2, FIRST, -0.125, -0.875), (2, FIRST, -0.375, -1.375),
    (3, D, -0.0625, -0.9375), (3, E, -0.1875, -1.5625), (3, D, 0, -0.875),
]  # fmt: skip
LN = math.log(10)
WAY_OUT = "give a file that NeMo's train_kenlm.py wrote"


def tensors(arcs=ARCS, vocab_size=3):
    from_A, to_A, token_A, log10_A = (list(column) + [0] * vocab_size for column in zip(*arcs, strict=True))
    order_S, shorter_S, backoff_S, end_S = zip(*STATES, strict=True)
    whole = {"from_states": from_A, "to_states": to_A, "ilabels": token_A}
    whole |= {"state_order": order_S, "backoff_to_states": shorter_S}
    real = {"arcs_weights": log10_A, "backoff_weights": backoff_S, "final_weights": end_S}
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in whole.items()} | {
        name: LN * torch.tensor(values, dtype=torch.float32) for name, values in real.items()
    }


def write(path, tensors, config="vocab_size: 3\n"):
    weights = io.BytesIO()
    torch.save(tensors, weights)
    with tarfile.open(path, "w") as archive:
        for name, data in ("model_config.yaml", config.encode()), ("model_weights.ckpt", weights.getvalue()):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def check_all_texts(lm, of_arpa):
    """All texts of three tokens have the scores of the ARPA file."""
    models = lm, of_arpa
    for bos in True, False:
        states = [model.get_init_states(1, bos) for model in models]
        for _ in range(4):
            rows, ends = zip(
                *((m.advance(s), m.get_final(s)) for m, s in zip(models, states, strict=True)), strict=True
            )
            assert torch.allclose(rows[0][0], rows[1][0], atol=1e-6) and torch.allclose(*ends, atol=1e-6)
            states = [after.flatten() for _, after in rows]


def test_a_file_by_hand(tmp_path, device):
    (tmp_path / "lm.arpa").write_text(ARPA)
    of_arpa = NGramLM.from_file(tmp_path / "lm.arpa", 3, device=device)
    lm = NGramLM.from_file(str(write(tmp_path / "lm.nemo", tensors())), 3, device=device)
    assert len(lm.model.arrays.trie) == len(of_arpa.model.arrays.trie) == 10
    check_all_texts(lm, of_arpa)


def test_an_ngram_without_a_state_has_no_backoff(tmp_path):
    """The history e d has no n-grams of its own; a file may go on from it in the state d."""
    (tmp_path / "lm.arpa").write_text(ARPA)
    whole = tensors([(E, D, 0, -1.25) if arc[:2] == (E, E_D) else arc for arc in ARCS])
    cut = {name: tensor[:-1] if len(tensor) == len(STATES) else tensor for name, tensor in whole.items()}
    lm = NGramLM.from_file(write(tmp_path / "lm.nemo", cut), 3, device="cpu")
    check_all_texts(lm, NGramLM.from_file(tmp_path / "lm.arpa", 3, device="cpu"))


def test_unknown_tokens_have_the_probability_in_the_file(tmp_path):
    """Tokens f and g share that of <unk> already."""
    log10 = -1.5 - math.log10(2)
    arcs = [*(arc for arc in ARCS if arc[2] != 2), (FIRST, FIRST, 2, log10), (FIRST, FIRST, 3, log10)]
    lm = NGramLM.from_file(write(tmp_path / "lm.nemo", tensors(arcs, 4), "vocab_size: 4"), 4, device="cpu")
    (tmp_path / "lm.arpa").write_text(ARPA)
    of_arpa = NGramLM.from_file(tmp_path / "lm.arpa", 4, device="cpu")
    scores, wanted = (model.advance(model.get_init_states(1, bos=False))[0][0] for model in (lm, of_arpa))
    assert scores[2:].tolist() == pytest.approx([LN * log10] * 2) and torch.allclose(scores, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("lost", "config", "message"),
    [
        ("ilabels", "vocab_size: 3", f"is not an n-gram model of NeMo: KeyError: 'ilabels'; {WAY_OUT}"),
        ("", "sample_rate: 3", f"is not an n-gram model of NeMo: KeyError: 'vocab_size'; {WAY_OUT}"),
        ("", "vocab_size: null", f"is not an n-gram model of NeMo: TypeError: vocab_size is None; {WAY_OUT}"),
        ("", "vocab_size: 4", "has 4 tokens but vocab_size is 3; give vocab_size=4"),
    ],
)
def test_other_files_are_refused(tmp_path, lost, config, message):
    path = write(tmp_path / "lm.nemo", {name: tensor for name, tensor in tensors().items() if name != lost}, config)
    with pytest.raises(ng.InputError) as error:
        NGramLM.from_file(path, 3, device="cpu")
    assert str(error.value) == f"{str(path)!r} {message}"


def test_damaged_and_absent_files_are_refused(tmp_path):
    (tmp_path / "text.nemo").write_text("no archive")
    with pytest.raises(ng.InputError, match="text.nemo' is not an n-gram model of NeMo: ReadError") as error:
        NGramLM.from_file(tmp_path / "text.nemo", 3)
    assert "\n" not in str(error.value)  # tarfile's message has a line for each compression
    assert str(error.value).endswith(f"opened successfully; {WAY_OUT}")
    with pytest.raises(ng.InputError, match="absent.nemo' does not exist"):
        NGramLM.from_file(tmp_path / "absent.nemo", 3)
    for change in {"to_states": 9}, {"ilabels": 3}:
        made = tensors()
        for name, value in change.items():
            made[name][4] = value
        with pytest.raises(ng.InputError, match="lm.nemo' is a damaged n-gram model of NeMo: "):
            NGramLM.from_file(write(tmp_path / "lm.nemo", made), 3)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ilabels", lambda a: a[:-1], "from_states, to_states, ilabels, arcs_weights have 10, 10, 9, 10 values"),
        ("state_order", lambda a: a[:-1], "backoff_weights, state_order, final_weights have 7, 7, 6, 7 values"),
        ("to_states", lambda a: a + 9, "is a damaged n-gram model of NeMo: index"),
        (
            "from_states",
            lambda a: 0 * a,
            "is a damaged n-gram model of NeMo: the first state has two arcs of one token",
        ),
        ("arcs_weights", lambda a: a / 0, "is a damaged n-gram model of NeMo: a weight is not a finite number"),
        ("final_weights", lambda a: a * math.nan, "is a damaged n-gram model of NeMo: a weight is not a finite number"),
        ("arcs_weights", lambda a: a[None], "arcs_weights is torch.float32 of shape (1, 10); give a file"),
        ("state_order", lambda a: a.float(), "state_order is torch.float32 of shape (7,); give a file"),
        ("ilabels", lambda a: a.sum(), "ilabels is torch.int64 of shape (); give a file"),
        ("ilabels", lambda a: a.tolist(), "ilabels is list; give a file"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path, name, change, message):
    given = tensors()
    path = write(tmp_path / "lm.nemo", given | {name: change(given[name])})
    with pytest.raises(ng.InputError) as error:
        NGramLM.from_file(path, 3, device="cpu")
    assert message in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).endswith((WAY_OUT, "copy it or write it again"))
